# SPDX-License-Identifier: Apache-2.0
"""Replays results of the script's collectives before training in a replacement, which is alone at that time.

A script may count its classes over all ranks, or broadcast a folder, before its first step. The training ranks keep the
results in their stores, by the calling line; the replacement runs the same lines and reads them. Calls of libraries use
the replacement's group of one process. The same is done for the hooks at the start of the current epoch, which a
replacement calls when it joins in the middle of one.
"""

from __future__ import annotations

import base64
import io
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta

import torch
import torch.distributed as dist

from lightning_sagemaker._compat.collective_results import tensors_in, watch_results
from lightning_sagemaker._compat.default_group import another_default_group, done, fill
from lightning_sagemaker.recovery.calling_code import library_functions, line_of_script
from lightning_sagemaker.recovery.wire import Info

_SIZE, _ENDED = "size", "ended"
_MOST = 64 << 20
"""Maximum bytes of results that a rank keeps; they are counts, names and sizes."""
_PATIENCE = 60.0
"""Seconds to wait for ranks that have not reached their first step either, as when hosts join."""
_TO_CONNECT = timedelta(seconds=5)
_AGAIN = 0.05


class EarlyResults:
    """Records or replays results of collectives before a rank's first step.

    Args:
        store: The store that this rank serves to others.
        part: Name of the part of the job: before the training, or an epoch.

    Attributes:
        world_size: Number of ranks that started together; with elastic hosts, more may have joined since.

    """

    world_size = 1

    def __init__(self, store: dist.Store, part: str = "early") -> None:
        self._store, self._active, self._part = store, ExitStack(), part
        self._keys: set[str] = set()
        self._calls, self._left, self._is_active = Counter[str](), _MOST, False

    def record(self, world_size: int) -> None:
        """Record results until :meth:`end`.

        Args:
            world_size: Number of ranks that start together.

        """
        # No rank waits for others: votes are asynchronous, so ranks need not be at the same line.
        self._begin(watch_results(lambda: line_of_script() is not None, self._keep), world_size)

    def replay(self, number: int, peers: list[Info]) -> None:
        """Replace collectives by the recorded results of others, until :meth:`end`.

        Args:
            number: Rank of this process in the job.
            peers: Information about the training ranks.

        """
        kept = _Kept(peers, f"{self._part}/{_ENDED}")
        world_size = int(kept.get(f"{self._part}/{_SIZE}") or 1)

        def instead(name: str, *arguments: object, **keywords: object) -> object:
            line = line_of_script()
            if line is None or not name:
                return None
            if "barrier" not in name and not self._replay_result(kept, line, name, arguments):
                _warn(number, line, name)
                if "gather" in name:
                    fill(*arguments[:2])
            return done()

        self._begin(another_default_group(instead, lambda: _place(number % world_size, world_size)), world_size)

    def _begin(self, end: Callable[[], None], world_size: int) -> None:
        self._active.callback(end)
        self._is_active, self.world_size = True, world_size
        self._set(f"{self._part}/{_SIZE}", str(world_size))

    def end(self) -> None:
        """Stop, as the first step begins or the rank joins the others."""
        if self._is_active:
            self._is_active = False
            self._active.close()
            self._set(f"{self._part}/{_ENDED}", "1")

    def forget(self) -> None:
        """Delete the results, as no rank needs them any more."""
        self.end()
        for key in self._keys:
            self._store.delete_key(key)

    def _set(self, key: str, value: str) -> None:
        self._keys.add(key)
        self._store.set(key, value)

    def _key(self, line: str, name: str) -> str:
        call = f"{self._part}/{line}:{name}"
        self._calls[call] += 1
        return f"{call}:{self._calls[call]}"

    def _keep(self, name: str, results: list[torch.Tensor]) -> None:
        line = line_of_script()
        assert line is not None
        self._left -= sum(one.nbytes for one in results)
        if self._left < 0:
            return self.end()
        file = io.BytesIO()
        torch.save([one.detach().cpu().clone() for one in results], file)
        self._set(self._key(line, name), base64.b64encode(file.getvalue()).decode())

    def _replay_result(self, kept: _Kept, line: str, name: str, arguments: tuple[object, ...]) -> bool:
        key = self._key(line, name)
        content = kept.get(key)
        if content is None:
            return False
        found = torch.load(io.BytesIO(base64.b64decode(content)), weights_only=True)
        places = tensors_in(arguments[0])
        if [one.shape for one in found] != [one.shape for one in places]:
            return False
        for place, one in zip(places, found, strict=True):
            place.detach().copy_(one)
        self._set(key, content)  # for the next replacement
        return True


class _Kept:
    """The results in the stores of the training ranks."""

    def __init__(self, peers: list[Info], ended: str) -> None:
        self._peers, self._ended = list(peers), ended
        self._store: dist.Store | None = None

    def get(self, key: str) -> str | None:
        """The value of a key in any of the stores; None if there is none."""
        deadline = time.monotonic() + _PATIENCE
        while self._store is not None or self._peers:
            try:
                if self._store is None:
                    peer = self._peers[0]
                    self._store = dist.TCPStore(
                        peer["host"], peer["store"], None, False, _TO_CONNECT, wait_for_workers=False
                    )
                ended = self._store.check([self._ended])
                if self._store.check([key]):
                    return bytes(self._store.get(key)).decode()
            except RuntimeError:  # that rank is lost, too
                self._store, self._peers = None, self._peers[1:]
                continue
            if ended or time.monotonic() > deadline:
                return None
            time.sleep(_AGAIN)
        return None


def _place(number: int, world_size: int) -> tuple[int, int] | None:
    """Rank and world size that the script sees; None for those of the group of one process, as for groups of the script."""
    through = library_functions()
    if line_of_script() is None or "new_group" in through:
        return None
    # The sender of objects ignores those that it receives.
    return (world_size if "broadcast_object_list" in through else number), world_size


def _warn(number: int, line: str, name: str) -> None:
    print(
        f"lightning-sagemaker: rank {number} replaces another, and has no result of {name.strip('_')} in {line}, which the"
        " others called before it joined: its result is this rank's alone. HINT: use all_reduce, all_gather or broadcast"
        " there.",
        flush=True,
    )
