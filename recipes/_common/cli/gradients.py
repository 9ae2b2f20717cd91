# SPDX-License-Identifier: Apache-2.0
"""Options for the reduction of gradients across processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lightning_sagemaker import SMDDPStrategy, sagemaker_strategy

OPTIONS = ("gradient_reduction", "gradient_compression")
_STRATEGIES: dict[str, Callable[..., Strategy]] = {"sagemaker": sagemaker_strategy, "smddp": SMDDPStrategy}


def add_options(parser: LightningArgumentParser) -> None:
    """Add :data:`OPTIONS` to ``parser``."""
    parser.add_argument(
        "--gradient_reduction",
        type=Literal["flat", "hierarchical", "auto"] | None,
        default=None,
        help="How gradients are reduced across processes; auto: the fastest in a trial of two seconds.",
    )
    parser.add_argument(
        "--gradient_compression",
        type=Literal["bf16", "fp16", "powersgd"] | None,
        default=None,
        help="Compress gradients before sending them, which changes the results; see docs/strategies.md.",
    )


def with_options(strategy: Any, option: Callable[[str], Any]) -> Any:
    """The strategy for the Trainer: ``strategy`` itself, or built with those of :data:`OPTIONS` that were set.

    Args:
        strategy: Value of ``trainer.strategy``, a name or an object.
        option: Returns the value of an option by its name; ``None`` where it was not set.

    Raises:
        MisconfigurationException: If an option was set that the strategy does not have.

    """
    wanted = {name: option(name) for name in OPTIONS if option(name) is not None}
    if not wanted:
        return strategy
    if strategy not in _STRATEGIES:
        listed = " and ".join(f"{name}={value!r}" for name, value in wanted.items())
        raise MisconfigurationException(
            f"{listed} was set with strategy={strategy!r}, which has no such option."
            " HINT: leave strategy out, or set strategy=smddp."
        )
    return _STRATEGIES[strategy](**wanted)
