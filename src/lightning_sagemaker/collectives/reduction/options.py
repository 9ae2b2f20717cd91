# SPDX-License-Identifier: Apache-2.0
"""The user's options for the reduction of gradients, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lightning_sagemaker._lightning import MisconfigurationException
from lightning_sagemaker.collectives.reduction.plan import AUTO, COMPRESSIONS, FLAT, POWERSGD, REDUCTIONS

_OTHERS = ("ddp_comm_hook", "ddp_comm_state", "ddp_comm_wrapper", "model_averaging_period", "mixed_precision")
RANK, START = 4, 1000
"""Default rank of PowerSGD, and torch's own default for the steps before it starts."""


@dataclass(frozen=True)
class ReductionOptions:
    """The options of a strategy, checked.

    Attributes:
        reduction: ``flat``, ``hierarchical`` or ``auto``.
        compression: ``bf16``, ``fp16``, ``powersgd`` or None.
        powersgd_rank: Rank of PowerSGD's matrices; None means 4.
        powersgd_start: Number of exact optimizer steps before PowerSGD starts; None means 1000, as in torch.

    Raises:
        MisconfigurationException: If a value is invalid, or an option of PowerSGD is set without PowerSGD.

    """

    reduction: str = FLAT
    compression: str | None = None
    powersgd_rank: int | None = None
    powersgd_start: int | None = None

    def __post_init__(self) -> None:
        _one_of("gradient_reduction", self.reduction, REDUCTIONS)
        _one_of("gradient_compression", self.compression, (None, *COMPRESSIONS))
        for name, least in (("powersgd_rank", 1), ("powersgd_start", 0)):
            value = getattr(self, name)
            if value is None:
                continue
            if self.compression != POWERSGD:
                raise MisconfigurationException(
                    f"{name}={value!r} was set with gradient_compression={self.compression!r}."
                    f" HINT: set gradient_compression='powersgd', or leave {name} out."
                )
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise MisconfigurationException(f"{name}={value!r} was set. HINT: set an integer >= {least}.")

    @property
    def is_default(self) -> bool:
        """Whether gradients are reduced by DDP's own all-reduce."""
        return self.reduction == FLAT and self.compression is None

    @property
    def measures(self) -> bool:
        """Whether the fastest plan is chosen by measurement."""
        return self.reduction == AUTO

    @property
    def description(self) -> str:
        """The options and their values, for a message."""
        return f"gradient_reduction={self.reduction!r}, gradient_compression={self.compression!r}"

    def check_other_arguments(self, arguments: Mapping[str, object]) -> None:
        """Check that no other option reduces the gradients.

        Args:
            arguments: The strategy's other arguments.

        Raises:
            MisconfigurationException: If one of them sets a communication hook.

        """
        others = [name for name in _OTHERS if arguments.get(name) is not None]
        if others and not self.is_default:
            raise MisconfigurationException(
                f"{self.description} was set with {', '.join(others)}, but only one of them can reduce gradients."
                " HINT: leave one out."
            )

    def check_precision(self, precision: object) -> None:
        """Check that PowerSGD's error feedback is possible with a precision.

        Args:
            precision: Precision of the strategy, such as ``16-mixed``.

        Raises:
            MisconfigurationException: If gradients of this precision overflow occasionally.

        """
        if self.compression == POWERSGD and str(precision).startswith("16"):
            raise MisconfigurationException(
                f"gradient_compression='powersgd' was set with precision={precision!r}, whose gradients overflow"
                " occasionally: PowerSGD's error feedback would carry the overflow into all later steps. HINT: set"
                " precision='bf16-mixed', or gradient_compression='bf16'."
            )


def _one_of(name: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        listed = ", ".join(map(repr, known))
        raise MisconfigurationException(f"{name}={value!r} was set. HINT: choose one of {listed}.")
