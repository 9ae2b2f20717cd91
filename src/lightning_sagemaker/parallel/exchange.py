# SPDX-License-Identifier: Apache-2.0
"""Point-to-point transfer of tensors between the stages of a pipeline.

Each message is a header of fixed length (on the CPU) and its tensors, so their number, shapes and dtypes may change from
step to step. Each ordered pair of ranks has its own process groups, in which messages arrive in the order of sending,
so that neither gloo nor nccl can deadlock. A receiver buffers what it does not need yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_sagemaker.parallel.degrees import PipelineError

_HEADER = 64
_TEXT = 7 * (_HEADER - 5)
"""Maximum bytes of an error message, sent seven to an integer of the header."""
_DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.bool,
    torch.uint8,
)


class Tag(NamedTuple):
    """Identifies a message: activations of a stage (``kind`` 0) or gradients for it (1), of one microbatch."""

    kind: int
    stage: int
    microbatch: int


class Message(NamedTuple):
    """A received message: tensors with their requires_grad, or an error."""

    tensors: list[Tensor]
    needs_grad: list[bool]
    failure: str | None


class Channel(NamedTuple):
    """Process groups for messages from one rank to another."""

    source: int
    target: int
    headers: dist.ProcessGroup
    payload: dist.ProcessGroup


class Exchange:
    """Sends and receives the messages of one process.

    Args:
        channels: (source, target) as global ranks -> process groups for that direction.
        rank: Global rank of this process.
        device: Device of received tensors.

    """

    def __init__(self, channels: dict[tuple[int, int], Channel], rank: int, device: torch.device) -> None:
        self._channels, self._rank, self._device = channels, rank, device
        self._kept: dict[tuple[int, Tag], Message] = {}
        self._pending: list[tuple[dist.Work, Tensor]] = []

    def send(self, target: int, tag: Tag, tensors: Sequence[Tensor], failure: str | None = None) -> None:
        """Start sending."""
        if target == self._rank:
            flags = [tensor.requires_grad for tensor in tensors]
            self._kept[target, tag] = Message([tensor.detach() for tensor in tensors], flags, failure)
            return
        channel = self._channels[self._rank, target]
        self._post(_encode(tag, tensors, failure), channel.target, channel.headers)
        for tensor in tensors:
            self._post(tensor.detach().contiguous(), channel.target, channel.payload)

    def receive(self, source: int, tag: Tag) -> Message:
        """Wait for a message."""
        while (source, tag) not in self._kept:
            channel = self._channels[source, self._rank]
            header = torch.empty(_HEADER, dtype=torch.int64)
            dist.recv(header, channel.source, channel.headers)
            found, shapes, needs_grad, failure = _decode(header)
            tensors = [torch.empty(shape, dtype=dtype, device=self._device) for shape, dtype in shapes]
            for tensor in tensors:
                dist.recv(tensor, channel.source, channel.payload)
            self._kept[source, found] = Message(tensors, needs_grad, failure)
        return self._kept.pop((source, tag))

    def finish(self) -> None:
        """Wait until everything sent has arrived."""
        for work, _ in self._pending:
            work.wait()
        self._pending.clear()
        self._kept.clear()

    def _post(self, tensor: Tensor, target: int, group: dist.ProcessGroup) -> None:
        work = dist.isend(tensor, target, group)
        assert work is not None  # this process is in the group
        self._pending.append((work, tensor))


def _encode(tag: Tag, tensors: Sequence[Tensor], failure: str | None) -> Tensor:
    """Kind, stage, microbatch, number of tensors (or -1 and an error), then dtype, requires_grad and shape of each."""
    if failure is not None:
        text = failure.encode()[:_TEXT]
        numbers = [int.from_bytes(text[place : place + 7], "little") for place in range(0, len(text), 7)]
        words = [*tag, -1, len(text), *numbers]
    else:
        words = [*tag, len(tensors)]
        for tensor in tensors:
            words += [_DTYPES.index(tensor.dtype), int(tensor.requires_grad), tensor.dim(), *tensor.shape]
    if len(words) > _HEADER:
        raise PipelineError(
            f"a block returns {len(tensors)} tensors, too many to describe in a message. HINT: return fewer from each block."
        )
    return torch.tensor([*words, *[0] * (_HEADER - len(words))], dtype=torch.int64)


def _decode(header: Tensor) -> tuple[Tag, list[tuple[list[int], torch.dtype]], list[bool], str | None]:
    words = iter(header.tolist())
    tag = Tag(next(words), next(words), next(words))
    count = next(words)
    if count < 0:
        length = next(words)
        text = b"".join(next(words).to_bytes(7, "little") for _ in range(-(-length // 7)))
        return tag, [], [], text[:length].decode(errors="replace")
    shapes, flags = [], []
    for _ in range(count):
        dtype, needs_grad = _DTYPES[next(words)], bool(next(words))
        flags.append(needs_grad)
        shapes.append(([next(words) for _ in range(next(words))], dtype))
    return tag, shapes, flags, None
