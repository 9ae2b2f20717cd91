# SPDX-License-Identifier: Apache-2.0
"""How gradients are reduced: the algorithms and compressions that exist, and the plan that combines them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint, StateDict


FLAT, HIERARCHICAL, AUTO = "flat", "hierarchical", "auto"
REDUCTIONS = (FLAT, HIERARCHICAL, AUTO)
POWERSGD = "powersgd"
WIRE = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Compressions that send elements with fewer bits -> dtype."""
COMPRESSIONS = (*WIRE, POWERSGD)

PIECE = 2 * 2**20
"""Bytes of a piece of a bucket if nothing was measured."""


@dataclass(frozen=True)
class Plan:
    """A way to reduce gradients.

    Attributes:
        algorithm: ``flat`` (among all processes at once) or ``hierarchical`` (within hosts, between hosts, within
            hosts).
        compression: ``bf16``, ``fp16`` or ``powersgd``; None to send the gradients in their own dtype.
            else.
        piece_bytes: Bytes of a piece of a bucket: one is reduced between hosts while the next is reduced within its
            host.

    """

    algorithm: str = FLAT
    compression: str | None = None
    piece_bytes: int = PIECE

    @property
    def is_plain(self) -> bool:
        """Whether this is DDP's own all-reduce."""
        return self.algorithm == FLAT and self.compression is None

    @property
    def wire(self) -> torch.dtype | None:
        """Dtype in which elements are sent; None for their own."""
        return WIRE.get(self.compression or "")

    @property
    def description(self) -> str:
        """A few words for a log line."""
        if self.is_plain:
            return "flat (DDP's own all-reduce)"
        how = {None: "", POWERSGD: ", low-rank (PowerSGD)"}.get(self.compression, f", sent as {self.compression}")
        pieces = "" if self.compression == POWERSGD else f", in chunks of {self.piece_bytes / 2**20:g} MiB"
        return f"{self.algorithm}{how}{pieces}"

    def as_dict(self) -> StateDict:
        """The plan as plain values, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, found: Checkpoint) -> Plan:
        """Restore a plan from :meth:`as_dict`; unknown entries, of another version, are ignored."""
        return cls(**{field.name: found[field.name] for field in fields(cls) if field.name in found})
