# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are written beside the training, each process its part; whole or absent, whenever it ends.

All that is collective is done by the training itself, before and after: it plans who writes what, and later asks how it
went. In between a thread of each process writes, without any collective, to a folder with another name. What it has written
it says in the store by which the processes found each other. The first process's thread waits for all, completes the folder
and gives it its name.
"""

from __future__ import annotations

import base64
import io
import pickle
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter

from lightning_sagemaker._compat.store import process_store
from lightning_sagemaker.checkpoint.resume import META, file_sum, write_sums
from lightning_sagemaker.checkpoint.s3 import SCHEME, S3CheckpointIO
from lightning_sagemaker.checkpoint.whole import CheckpointError, sync_folder
from lightning_sagemaker.collectives.agreement import together

_PART, _OLD = ".part", ".old.ckpt"
"""Ends of the names of a folder that is being written, and of one that is being replaced: AutoResume finds the latter."""
_PAUSE = 0.02
_TIME_LIMIT = 1800.0
"""Seconds for which the first process waits for the parts of the others, as torch's collectives do."""


@dataclass
class _Plan:
    """What one process is to write, and how."""

    writer: FileSystemWriter
    planner: DefaultSavePlanner
    own: Any
    metadata: Any


class BackgroundSave:
    """Writes one checkpoint at a time. All processes make one and call its methods in the same order.

    Args:
        rank: Of this process.
        world_size: Number of processes.
        remote: Makes what writes to S3, where an address is one there.

    Attributes:
        seconds: What the last checkpoint took from its beginning until it was whole, on this process.

    """

    def __init__(self, rank: int, world_size: int, remote: Callable[[], S3CheckpointIO]) -> None:
        self._rank, self._world_size, self._remote = rank, world_size, remote
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._after: list[Callable[[], None]] = []
        self._count = 0
        self.seconds = 0.0

    @property
    def is_under_way(self) -> bool:
        """Whether a checkpoint was begun and not asked about."""
        return self._thread is not None

    def begin(self, parts: dict[str, Any], rest: dict[str, Any], place: str, scratch: Path) -> None:
        """Plan, and begin to write. Collective; the last one must have been finished.

        Args:
            parts: Weights and optimizer states of this process, in memory that stays as it is until :meth:`finish`.
            rest: All else; the first process's is written.
            place: Folder, or address in S3.
            scratch: Folder for what goes to S3, on each host.

        """
        assert self._thread is None
        self._count += 1
        name = Path(place)
        folder = scratch if place.startswith(SCHEME) else name.with_name(f".{name.name}{_PART}")
        together(lambda: self._prepare(folder))
        plan = _make_plan(parts, folder, self._rank, self._world_size)
        content = io.BytesIO()
        if self._rank == 0:
            torch.save(rest, content)
        step = int(rest.get("global_step", 0))
        store, key = process_store(), f"lightning-sagemaker/checkpoint/{self._count}"

        def run() -> None:
            begin = time.monotonic()
            try:
                self._write(plan, folder, place, step, content.getvalue(), store, key)
            except Exception as error:
                self._failure = error
            self.seconds = time.monotonic() - begin

        self._thread = threading.Thread(target=run, name="checkpoint")
        self._thread.start()

    def after(self, action: Callable[[], None]) -> None:
        """Do something on this process when the checkpoint under way is whole; not if it fails."""
        self._after.append(action)

    def finish(self) -> None:
        """Wait for the checkpoint under way. Collective.

        Raises:
            RuntimeError: On all processes, if one could not write its part; what was at its place is as it was.

        """
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        failure, self._failure = self._failure, None
        after, self._after = self._after, []

        def tell() -> None:
            if failure is not None:
                raise failure

        together(tell)
        for action in after:
            action()

    def wait(self, seconds: float) -> None:
        """Give the checkpoint under way some time; not collective, as after an error others may not come."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _prepare(self, folder: Path) -> None:
        if self._rank == 0 and self._count == 1 and folder.parent.is_dir():
            for left in folder.parent.glob(f".*.ckpt{_PART}"):  # of a process that was killed
                shutil.rmtree(left, ignore_errors=True)
        if self._rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)

    def _write(
        self, plan: _Plan, folder: Path, place: str, step: int, rest: bytes, store: dist.Store, key: str
    ) -> None:
        """In the thread: write the own part and say so; complete the folder, on the first process."""
        is_remote = place.startswith(SCHEME)
        put = (lambda path: self._remote().put_part(place, path)) if is_remote else file_sum
        results: list[Any] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)  # of another host
            writes = plan.writer.write_data(plan.own, plan.planner)
            writes.wait()
            results = writes.value()
            sums = {path.name: put(path) for path in sorted(folder.glob(f"__{self._rank}_*"))}
        except Exception as error:
            store.set(f"{key}/{self._rank}", _pack({"failure": f"{type(error).__name__}: {error}"}))
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if self._rank:
            store.set(f"{key}/{self._rank}", _pack({"results": results, "sums": sums}))
            if is_remote:
                shutil.rmtree(folder, ignore_errors=True)
            return
        try:
            others = [self._read(store, f"{key}/{rank}", rank) for rank in range(1, self._world_size)]
            failed = [(rank, other["failure"]) for rank, other in enumerate(others, 1) if "failure" in other]
            if failed:
                raise CheckpointError(f"rank {failed[0][0]} did not write its part of {place}: {failed[0][1]}")
            plan.writer.finish(plan.metadata, [results, *(other["results"] for other in others)])
            (folder / META).write_bytes(rest)
            for path in (folder / META, folder / ".metadata"):
                sums[path.name] = put(path)
            everything = {name: facts for one in ({"sums": sums}, *others) for name, facts in one["sums"].items()}
            if is_remote:
                self._remote().finish_parts(place, step, everything)
            else:
                write_sums(folder, everything)
                _put_in_place(folder, Path(place))
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # nothing, if it has its name

    def _read(self, store: dist.Store, key: str, rank: int) -> dict[str, Any]:
        deadline = time.monotonic() + _TIME_LIMIT
        while not store.check([key]):
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"rank {rank} did not write its part of the checkpoint in {_TIME_LIMIT:.0f} s. HINT: see its log."
                )
            time.sleep(_PAUSE)
        found = _unpack(store.get(key))
        store.delete_key(key)
        return found


def _make_plan(parts: dict[str, Any], folder: Path, rank: int, world_size: int) -> _Plan:
    """Who writes what, by torch's planner; replicated tensors are written once. Collective."""
    planner, writer, is_first = DefaultSavePlanner(), FileSystemWriter(folder), rank == 0
    planner.set_up_planner(parts, writer.storage_meta(), is_first)
    writer.set_up_storage_writer(is_first)
    local = writer.prepare_local_plan(planner.create_local_plan())
    gathered: list[Any] | None = [None] * world_size if is_first else None
    dist.gather_object(local, gathered)
    plans: list[Any] = [None] * world_size
    metadata = None
    if gathered is not None:
        plans, metadata = planner.create_global_plan(gathered)
        plans = writer.prepare_global_plan(plans)
    own: list[Any] = [None]
    dist.scatter_object_list(own, plans if is_first else None)
    return _Plan(writer, planner, planner.finish_plan(own[0]), metadata)


def _put_in_place(folder: Path, place: Path) -> None:
    """Give a whole folder its name. What had it has another, under which it is found, until then."""
    sync_folder(folder)
    old = place.with_name(f".{place.stem}{_OLD}")
    shutil.rmtree(old, ignore_errors=True)
    if place.is_dir():
        place.replace(old)
    elif place.exists():
        place.unlink()
    folder.replace(place)
    sync_folder(place.parent)
    shutil.rmtree(old, ignore_errors=True)


def _pack(value: dict[str, Any]) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def _unpack(content: bytes) -> dict[str, Any]:
    found: dict[str, Any] = pickle.loads(base64.b64decode(content))
    return found
