# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are written beside the training, each process its part; whole or absent, whenever it ends.

All that is collective is done by the training itself, in one exchange: how the last checkpoint went, where this one goes,
and whether who writes what is as before. Then a thread of each process writes, without any collective, to a folder with
another name. What it has written it says in the store by which the processes found each other. The first process's thread
waits for all, completes the folder and gives it its name.
"""

from __future__ import annotations

import base64
import io
import itertools
import pickle
import shutil
import tempfile
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
from lightning_sagemaker.checkpoint.staging import Staging
from lightning_sagemaker.checkpoint.whole import CheckpointError, sync_folder
from lightning_sagemaker.collectives.agreement import of_all

_PART, _OLD = ".part", ".old.ckpt"
"""Ends of the names of a folder that is being written, and of one that is being replaced: AutoResume finds the latter."""
_PAUSE = 0.02
_TIME_LIMIT = 1800.0
"""Seconds for which the first process waits for the parts of the others, as torch's collectives do."""

_NUMBERS = itertools.count()
"""Of the checkpoints of this process; alike on all, whose Trainers save in the same order."""


@dataclass(frozen=True)
class _Plan:
    """Who writes what; the same for all checkpoints of a model.

    Attributes:
        local: What this process has.
        own: What of it this process writes, as of replicas one does.
        metadata: Of all; on the first process.

    """

    local: Any
    own: Any
    metadata: Any


@dataclass(frozen=True)
class _Task:
    """What the thread has to do."""

    writer: FileSystemWriter
    planner: DefaultSavePlanner
    plan: _Plan
    folder: Path
    place: str
    step: int
    rest: bytes
    store: dist.Store
    key: str

    @property
    def is_remote(self) -> bool:
        return self.place.startswith(SCHEME)


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
        self._staging = Staging()
        self._plan: _Plan | None = None
        self._is_new = True
        self.seconds = 0.0

    @property
    def is_under_way(self) -> bool:
        """Whether a checkpoint was begun and not asked about."""
        return self._thread is not None

    def begin(self, parts: dict[str, Any], rest: dict[str, Any], place: str) -> None:
        """Wait for the last one, copy, and begin to write. Collective.

        Args:
            parts: Weights and optimizer states of this process.
            rest: All else; the first process's is written.
            place: Folder, or address in S3; the first process's is used.

        Raises:
            RuntimeError: On all processes, if one could not write its part of the last checkpoint.

        """
        is_first = self._rank == 0
        self.wait()
        copied = self._staging.copy(parts)
        planner = DefaultSavePlanner()
        planner.set_up_planner(copied, None, is_first)
        local = planner.create_local_plan()
        is_known = self._plan is not None and self._plan.local == local
        told = of_all((self._text_of_failure(), place, is_known), self._world_size)
        self._conclude([failure for failure, _, _ in told])
        place = told[0][1]
        name = Path(place)
        is_remote = place.startswith(SCHEME)
        folder = Path(tempfile.mkdtemp()) if is_remote else name.with_name(f".{name.name}{_PART}")
        writer = FileSystemWriter(folder)
        writer.set_up_storage_writer(is_first)
        if self._plan is None or not all(known for _, _, known in told):
            self._plan = _make_plan(planner, writer, local, self._rank, self._world_size)
        planner.finish_plan(self._plan.own)
        content = io.BytesIO()
        if is_first:
            torch.save(rest, content)
        store, key = process_store(), f"lightning-sagemaker/checkpoint/{next(_NUMBERS)}"
        step = int(rest.get("global_step", 0))
        task = _Task(writer, planner, self._plan, folder, place, step, content.getvalue(), store, key)
        self._thread = threading.Thread(target=self._run, args=(task,), name="checkpoint")
        self._thread.start()

    def after(self, action: Callable[[], None]) -> None:
        """Do something on this process when the checkpoint under way is whole; not if it fails."""
        self._after.append(action)

    def finish(self) -> None:
        """Wait for the checkpoint under way. Collective.

        Raises:
            RuntimeError: On all processes, if one could not write its part; what was at its place is as it was.

        """
        if self._thread is not None:
            self.wait()
            self._conclude(of_all(self._text_of_failure(), self._world_size))

    def wait(self, seconds: float | None = None) -> None:
        """Give the checkpoint under way some time; not collective, as after an error others may not come."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _text_of_failure(self) -> str | None:
        return None if self._failure is None else f"{type(self._failure).__name__}: {self._failure}"

    def _conclude(self, failures: list[str | None]) -> None:
        self._thread = None
        cause, self._failure = self._failure, None
        after, self._after = self._after, []
        found = [f"rank {rank}: {text}" for rank, text in enumerate(failures) if text is not None]
        if found:
            raise RuntimeError(
                f"The last checkpoint was not written. {'; '.join(found)}. HINT: make room or give leave to write there; the"
                " checkpoints before it are as they were."
            ) from cause
        for action in after:
            action()

    def _run(self, task: _Task) -> None:
        """The thread."""
        begin = time.monotonic()
        try:
            if self._rank:
                self._write_part(task)
            else:
                self._write_first(task)
        except Exception as error:
            self._failure = error
        finally:
            if self._rank == 0 or task.is_remote:
                shutil.rmtree(task.folder, ignore_errors=True)  # nothing, if it has its name
            self.seconds = time.monotonic() - begin

    def _write_part(self, task: _Task) -> None:
        """On all but the first process, which learns of a failure here, too."""
        said: dict[str, Any] = {"failure": "it ended"}
        try:
            if not task.is_remote:
                ready = self._hear(task, 0)
                if "failure" in ready:
                    raise CheckpointError(f"rank 0 could not begin {task.place}: {ready['failure']}")
                task.folder.mkdir(parents=True, exist_ok=True)  # of another host
            results, sums = self._write(task)
            said = {"results": results, "sums": sums}
        except Exception as error:
            said = {"failure": f"{type(error).__name__}: {error}"}
            raise
        finally:
            task.store.set(f"{task.key}/{self._rank}", _pack(said))

    def _write_first(self, task: _Task) -> None:
        """On the first process: make the folder, write, wait for the others, complete it."""
        try:
            if not task.is_remote:
                self._make_folder(task.folder)
            task.store.set(f"{task.key}/0", _pack({}))
        except Exception as error:
            task.store.set(f"{task.key}/0", _pack({"failure": f"{type(error).__name__}: {error}"}))
            raise
        results, sums = self._write(task)
        others = [self._hear(task, rank) for rank in range(1, self._world_size)]
        failed = [(rank, other["failure"]) for rank, other in enumerate(others, 1) if "failure" in other]
        if failed:
            raise CheckpointError(f"rank {failed[0][0]} did not write its part of {task.place}: {failed[0][1]}")
        task.writer.finish(task.plan.metadata, [results, *(other["results"] for other in others)])
        (task.folder / META).write_bytes(task.rest)
        for path in (task.folder / META, task.folder / ".metadata"):
            sums[path.name] = self._put(task, path)
        everything = {
            name: facts for one in (sums, *(other["sums"] for other in others)) for name, facts in one.items()
        }
        if task.is_remote:
            self._remote().finish_parts(task.place, task.step, everything)
        else:
            write_sums(task.folder, everything)
            _put_in_place(task.folder, Path(task.place))

    def _make_folder(self, folder: Path) -> None:
        if self._is_new and folder.parent.is_dir():
            for left in folder.parent.glob(f".*.ckpt{_PART}"):  # of a process that was killed
                shutil.rmtree(left, ignore_errors=True)
        self._is_new = False
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def _write(self, task: _Task) -> tuple[Any, dict[str, list[int]]]:
        """The own part: what torch's writer says of it, and check sums by name."""
        writes = task.writer.write_data(task.plan.own, task.planner)
        writes.wait()
        own = sorted(task.folder.glob(f"__{self._rank}_*"))
        return writes.value(), {path.name: self._put(task, path) for path in own}

    def _put(self, task: _Task, path: Path) -> list[int]:
        return self._remote().put_part(task.place, path) if task.is_remote else file_sum(path)

    def _hear(self, task: _Task, rank: int) -> dict[str, Any]:
        """What the thread of a process says of this checkpoint."""
        key, deadline = f"{task.key}/{rank}", time.monotonic() + _TIME_LIMIT
        while not task.store.check([key]):
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"rank {rank} said nothing of {task.place} in {_TIME_LIMIT:.0f} s. HINT: see its log."
                )
            time.sleep(_PAUSE)
        found = _unpack(task.store.get(key))
        if rank:  # heard by the first process alone
            task.store.delete_key(key)
        return found


def _make_plan(planner: DefaultSavePlanner, writer: FileSystemWriter, local: Any, rank: int, world_size: int) -> _Plan:
    """Who writes what, by torch's planner; replicated tensors are written once. Collective."""
    gathered: list[Any] | None = [None] * world_size if rank == 0 else None
    dist.gather_object(writer.prepare_local_plan(local), gathered)
    plans: list[Any] | None = None
    metadata = None
    if gathered is not None:
        plans, metadata = planner.create_global_plan(gathered)
        plans = writer.prepare_global_plan(plans)
    own: list[Any] = [None]
    dist.scatter_object_list(own, plans)
    return _Plan(local, own[0], metadata)


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
