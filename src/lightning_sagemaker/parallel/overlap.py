# SPDX-License-Identifier: Apache-2.0
"""Averages the gradients of replicas during the last backward passes of a step.

A gradient is final after the last microbatch's backward pass through every stage of this process that uses its
parameter. As soon as all gradients of a bucket are final, its all-reduce starts. Buckets start in a fixed order, the
same on all replicas, whichever is complete first. Two kinds of parameters are not in buckets and are reduced at the
end: tied ones, whose gradients are first summed over the stages, and those without a gradient in the previous step.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lightning_sagemaker.parallel.gradients import any_replica_has, average_present
from lightning_sagemaker.parallel.tied import TiedParameters

_LARGEST, _SMALLEST, _COUNT = 25 * 2**20, 2**20, 8
"""Maximum bytes of a bucket, as in ``DistributedDataParallel``, minimum bytes, and number of buckets of small models."""


@dataclass
class _Bucket:
    """Parameters whose gradients are reduced together; ``missing`` of them are not final yet."""

    parameters: list[nn.Parameter]
    missing: int = field(init=False)

    def __post_init__(self) -> None:
        self.missing = len(self.parameters)


class OverlappedReduction:
    """The mean of a process's gradients over the replicas of its stages.

    For each step: :meth:`begin`, the passes of the engine, which calls :meth:`begin_last` and :meth:`end_last`, and
    :meth:`finish`. All replicas do this in the same steps.

    Args:
        parameters: Parameters of this process, in the same order on all replicas.
        stages: ``id`` of each parameter -> the stages of this process that use it.
        tied: Parameters that other processes of the pipeline also hold.
        group: Process group of the ranks that hold these parameters.

    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        stages: Mapping[int, frozenset[int]],
        tied: TiedParameters,
        group: dist.ProcessGroup,
    ) -> None:
        self._parameters, self._stages, self._tied, self._group = list(parameters), stages, tied, group
        self._size = dist.get_world_size(group)
        held = {id(parameter) for parameter in tied.parameters}
        self._candidates = [parameter for parameter in parameters if id(parameter) not in held]
        self._expected = {id(parameter) for parameter in self._candidates if parameter.requires_grad}
        self._hooked: dict[int, torch.utils.hooks.RemovableHandle] = {}
        self._active = False
        self._reset({})

    def _reset(self, kept: dict[int, Tensor]) -> None:
        self._kept = kept
        self._final_stages: set[int] = set()
        self._final: set[int] = set()
        self._had: set[int] = set()
        self._copied: list[tuple[Tensor, Tensor]] = []
        self._works: list[dist.Work] = []
        self._buckets = self._make_buckets()
        self._bucket_of = {id(one): bucket for bucket in self._buckets for one in bucket.parameters}
        self._begun = 0

    def _make_buckets(self) -> list[_Bucket]:
        """From the last parameter to the first, approximately the order in which gradients become final."""
        expected = [parameter for parameter in self._candidates if id(parameter) in self._expected][::-1]
        limit = min(_LARGEST, max(_SMALLEST, sum(parameter.nbytes for parameter in expected) // _COUNT))
        buckets: list[list[nn.Parameter]] = []
        size = 0
        for parameter in expected:
            if not buckets or size + parameter.nbytes > limit or parameter.dtype != buckets[-1][0].dtype:
                buckets.append([])
                size = 0
            buckets[-1].append(parameter)
            size += parameter.nbytes
        return [_Bucket(bucket) for bucket in buckets]

    def begin(self, kept: Sequence[Tensor | None] = ()) -> None:
        """Reduce the gradients of the backward passes that follow.

        Args:
            kept: For each parameter the accumulated gradient of earlier batches; default: none.

        """
        pairs = zip(self._parameters, kept, strict=False)
        self._reset({id(parameter): gradient for parameter, gradient in pairs if gradient is not None})
        for parameter in self._candidates:
            if parameter.requires_grad and id(parameter) not in self._hooked:
                hook = functools.partial(self._on_gradient)  # torch sets an attribute on it
                self._hooked[id(parameter)] = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        self._active = True

    def begin_last(self, stage: int) -> None:
        """The step's last backward pass through ``stage`` begins."""
        self._final_stages.add(stage)

    def end_last(self, stage: int) -> None:
        """The step's last backward pass through ``stage`` has ended: missing gradients will not come any more."""
        for parameter in self._parameters:
            stages = self._stages[id(parameter)]
            if stage in stages and stages <= self._final_stages:
                self._add(parameter)

    def abandon(self) -> None:
        """A stage has failed; the step has no gradients."""
        self._active = False
        self._works.clear()

    def remove(self) -> None:
        """Remove the hooks from the parameters."""
        self._active = False
        for handle in self._hooked.values():
            handle.remove()
        self._hooked.clear()

    def _on_gradient(self, parameter: Tensor) -> None:
        if self._active and self._stages[id(parameter)] <= self._final_stages:
            self._add(parameter)

    @torch.no_grad()
    def _add(self, parameter: Tensor) -> None:
        """Record that a parameter's gradient is final."""
        key = id(parameter)
        if key in self._final:
            return
        self._final.add(key)
        before = self._kept.pop(key, None)
        if before is not None:
            parameter.grad = before if parameter.grad is None else before.add_(parameter.grad)
        if parameter.grad is not None:
            self._had.add(key)
        bucket = self._bucket_of.get(key)
        if bucket is None:
            return
        bucket.missing -= 1
        while self._begun < len(self._buckets) and not self._buckets[self._begun].missing:
            self._start(self._buckets[self._begun])
            self._begun += 1

    def _start(self, bucket: _Bucket) -> None:
        """Make the gradients views of one flat tensor, and start its all-reduce."""
        found = [torch.zeros_like(one) if one.grad is None else one.grad for one in bucket.parameters]
        flat = torch.cat([gradient.reshape(-1) for gradient in found])
        flat /= self._size  # before the sum, as DistributedDataParallel does
        work = dist.all_reduce(flat, group=self._group, async_op=True)
        assert work is not None
        self._works.append(work)
        parts = torch.split(flat, [gradient.numel() for gradient in found])
        for parameter, gradient, part in zip(bucket.parameters, found, parts, strict=True):
            view = part.view_as(gradient)
            if gradient.is_contiguous():
                parameter.grad = view
            else:  # the gradient keeps the parameter's memory format
                parameter.grad = gradient
                self._copied.append((gradient, view))

    @torch.no_grad()
    def finish(self) -> None:
        """Wait until all gradients are reduced, and reduce the remaining ones. Collective over the replicas.

        A parameter that has a gradient on no replica keeps none; if only some replicas have one, the others count as
        zero.
        """
        for parameter in self._parameters:
            self._add(parameter)
        self._active = False
        self._tied.add_gradients()
        held = [
            id(one) in self._had or (id(one) not in self._bucket_of and one.grad is not None)
            for one in self._parameters
        ]
        present = any_replica_has(held, self._parameters[0].device, self._group) if self._parameters else []
        for work in self._works:
            work.wait()
        self._works.clear()
        for gradient, view in self._copied:
            gradient.copy_(view)
        self._copied.clear()
        late = []
        for parameter, has in zip(self._parameters, present, strict=True):
            if id(parameter) not in self._bucket_of:
                late += [parameter] * has
            elif not has:
                parameter.grad = None
        average_present(late, self._group)
        self._expected = {id(one) for one, has in zip(self._parameters, present, strict=True) if has}
