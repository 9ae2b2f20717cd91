# SPDX-License-Identifier: Apache-2.0
"""From the options to what reduces the gradients: as configured, as in the resumed checkpoint, or the fastest plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_sagemaker.collectives.reduction.choice import Choice, Trial, VectorAsBucket, candidates, choose, plain
from lightning_sagemaker.collectives.reduction.hook import Reducer
from lightning_sagemaker.collectives.reduction.low_rank import LowRankReducer
from lightning_sagemaker.collectives.reduction.options import RANK, START, ReductionOptions
from lightning_sagemaker.collectives.reduction.plan import FLAT, HIERARCHICAL, POWERSGD, Plan
from lightning_sagemaker.collectives.reduction.topology import Groups

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint, StateDict


_CHOICES: dict[tuple[object, ...], Choice] = {}
"""Choices that were measured in this process, by topology, options, device type and size."""


class Engine:
    """The gradient reduction of one run. Creating it is collective over all ranks; the plan is the same on all.

    Args:
        options: The strategy's options.
        groups: Process groups.
        device: Device of the gradients.
        gradient_bytes: Bytes of all gradients.
        before: The result of :meth:`as_dict` in the run that is resumed; None for a new run.

    Attributes:
        plan: The plan in use.
        reason: Why this plan, in a sentence or two.
        reducer: For :func:`~lightning_sagemaker.collectives.reduction.hook.attach`; None where DDP's own all-reduce
            stays in use.

    """

    def __init__(
        self,
        options: ReductionOptions,
        groups: Groups,
        device: torch.device,
        gradient_bytes: int,
        before: Checkpoint | None = None,
    ) -> None:
        self._options, self._groups, self._device = options, groups, device
        self.plan, self.reason = self._choose(gradient_bytes, dict(before or {}))
        self.reducer = None if self.plan.is_plain else self._make(self.plan)

    def _choose(self, gradient_bytes: int, before: Checkpoint) -> tuple[Plan, str]:
        options, topology = self._options, self._groups.topology
        if options.measures:
            if before.get("topology") == topology.description and before.get("asked") == options.description:
                return Plan.from_dict(
                    before["plan"]
                ), f"As chosen before this run was resumed, with {topology.description}."
            key = (topology, options, self._device.type, gradient_bytes)
            if key in _CHOICES:
                return _CHOICES[key].plan, "As chosen before in this process."
            if len(candidates(topology, options.compression, self._device)) == 1:
                return Plan(), f"There is no alternative: {topology.obstacle}, and compression is off."
            _CHOICES[key] = choose(self._trials(), gradient_bytes, self._device)
            return _CHOICES[key].plan, f"{topology.description}. {_CHOICES[key].reason}"
        if options.reduction == HIERARCHICAL and topology.obstacle:
            return Plan(FLAT, options.compression), f"Not hierarchical, as {topology.obstacle}."
        return Plan(options.reduction, options.compression), f"As configured, with {topology.description}."

    def _make(self, plan: Plan, **low_rank: int) -> Reducer | LowRankReducer:
        if plan.compression != POWERSGD:
            return Reducer(plan, self._groups, self._device)
        exact = Reducer(Plan(plan.algorithm), self._groups, self._device)
        rank, start = self._options.powersgd_rank or RANK, self._options.powersgd_start
        settings = {"rank": rank, "start": START if start is None else start} | low_rank
        return LowRankReducer(exact, self._groups, self._device, **settings)

    def _trials(self) -> dict[Plan, Trial]:
        plans = candidates(self._groups.topology, self._options.compression, self._device)
        return {plan: plain if plan.is_plain else self._trial(plan) for plan in plans}

    def _trial(self, plan: Plan) -> Trial:
        reducer = self._make(plan, **({"start": 0} if plan.compression == POWERSGD else {}))

        def reduce(vector: Tensor) -> None:
            reducer.reduce_bucket(VectorAsBucket(vector)).wait()

        if isinstance(reducer, LowRankReducer):
            reducer.begin()
        return reduce

    def as_dict(self) -> StateDict:
        """The plan and what it depends on, for a checkpoint."""
        return {
            "plan": self.plan.as_dict(),
            "topology": self._groups.topology.description,
            "asked": self._options.description,
        }
