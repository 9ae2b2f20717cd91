# SPDX-License-Identifier: Apache-2.0
"""Copies of the files of a host's ranks in the memory of the next host, which survive the loss of a host.

The hosts form a ring. Files are sent as bytes, over a separate gloo group.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_sagemaker.checkpoint.host_memory import HostMemory, RankFile

_CHUNK = 256 * 2**20
"""Maximum bytes of one message."""


class Neighbors:
    """Sends and receives files between neighboring hosts.

    Args:
        memory: Files of this host.
        rank: Rank of this process.
        hosts: Name of the host of each rank.
        group: Process group of all ranks, used for nothing else; None for the default group.

    """

    def __init__(self, memory: HostMemory, rank: int, hosts: Sequence[str], group: dist.ProcessGroup | None) -> None:
        self._memory, self._rank, self._group = memory, rank, group
        names = list(dict.fromkeys(hosts))
        ranks = {name: [one for one, host in enumerate(hosts) if host == name] for name in names}
        after = dict(zip(names, [*names[1:], names[0]], strict=True))
        keeper = {}
        for name in names if len(names) > 1 else []:
            for place, one in enumerate(ranks[name]):
                others = ranks[after[name]]
                keeper[one] = others[place % len(others)]
        self._keeper = keeper.get(rank)
        self._kept = [one for one, by in keeper.items() if by == rank]

    def exchange(self, file: RankFile, path: Path | None) -> None:
        """Send this rank's file to a rank of the next host, and store those that this rank receives. Collective.

        Args:
            file: File of this rank.
            path: Path of the file; None if it could not be written.

        Raises:
            OSError: If memory is full.

        """
        works = []
        if self._keeper is not None:
            works = self._send(path, self._keeper)
        failures = [self._receive(RankFile(file.step, one, file.world_size), one) for one in self._kept]
        for work in works:
            work.wait()
        for failure in filter(None, failures):
            raise failure

    def fetch(self, step: int, seen: Sequence[Collection[RankFile]]) -> int:
        """Fetch missing files of a step, so that each rank's file is on its own host. Collective.

        Args:
            step: A step for which each rank's file is on some host.
            seen: Files that each rank finds on its host.

        Returns:
            Number of files that came from another host.

        Raises:
            OSError: If memory is full.

        """
        size, fetched = len(seen), 0
        failure: OSError | None = None  # raised at the end, as others may wait for this rank's files
        for rank in range(size):
            file = RankFile(step, rank, size)
            if file in seen[rank]:
                continue
            fetched += 1
            source = next(one for one in range(size) if file in seen[one])
            if self._rank == source:
                for work in self._send(self._memory.path(file), rank):
                    work.wait()
            elif self._rank == rank:
                failure = self._receive(file, source)
        if failure is not None:
            raise failure
        return fetched

    def _send(self, path: Path | None, to: int) -> list[_Sent]:
        size = 0 if path is None else path.stat().st_size
        parts = [torch.tensor([size])]
        if path is not None:
            parts += torch.split(torch.from_file(str(path), size=size, dtype=torch.uint8), _CHUNK)
        return [_Sent(part, to, self._group) for part in parts]

    def _receive(self, file: RankFile, source: int) -> OSError | None:
        size = torch.zeros(1, dtype=torch.int64)
        dist.recv(size, source, self._group)
        received, length = 0, int(size)

        def fill(path: Path) -> None:
            nonlocal received
            with path.open("r+b") as opened:
                os.posix_fallocate(opened.fileno(), 0, length)  # or writing to it could kill the process
            content = torch.from_file(str(path), shared=True, size=length, dtype=torch.uint8)
            for part in torch.split(content, _CHUNK):
                dist.recv(part, source, self._group)
                received += part.numel()

        if not length:
            return None
        try:
            self._memory.write(file, fill)
        except OSError as error:
            while received < length:  # even after an error, or the sender would wait
                part = torch.empty(min(_CHUNK, length - received), dtype=torch.uint8)
                dist.recv(part, source, self._group)
                received += part.numel()
            return error
        return None


class _Sent:
    """A message, whose tensor is kept alive until it is sent, as gloo does not do so."""

    def __init__(self, part: Tensor, to: int, group: dist.ProcessGroup | None) -> None:
        self._part = part
        self._work = dist.isend(part, to, group)

    def wait(self) -> None:
        if self._work is not None:
            self._work.wait()
