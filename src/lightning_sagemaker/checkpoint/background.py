# SPDX-License-Identifier: Apache-2.0
"""Asynchronous sharded checkpoints; complete or absent, whenever the process ends.

The saving step copies the weights and continues, without any collective. A thread of each process copies the optimizer
states before their next update, and writes the copies to a temporary folder. The threads exchange messages. The
first process's thread coordinates: it chooses the path and assigns the shards, waits for all of them, completes the folder,
renames it, and publishes the outcome, for which all processes wait before they start the next checkpoint.
"""

from __future__ import annotations

import io
import itertools
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.optim import Optimizer

from lightning_sagemaker._compat.store import process_store
from lightning_sagemaker.checkpoint.atomic_write import sync_folder
from lightning_sagemaker.checkpoint.deferred import DeferredCopies
from lightning_sagemaker.checkpoint.find import fits_before
from lightning_sagemaker.checkpoint.integrity import META, write_checksums
from lightning_sagemaker.checkpoint.messages import Messages, Refusal
from lightning_sagemaker.checkpoint.own_shard import UNFINISHED, OwnShard, Written
from lightning_sagemaker.checkpoint.s3 import S3CheckpointIO
from lightning_sagemaker.checkpoint.staging import Staging
from lightning_sagemaker.checkpoint.write_plan import WritePlan

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint, StateDict

_OLD = ".old.ckpt"
"""Suffix of a folder that is being replaced; AutoResume finds it."""
_YIELD = 0.0005
"""Seconds before the thread copies: on a busy core the training thread would otherwise only run after the copies."""
_HEAD_START = 0.01
"""Seconds before the thread writes, so that training continues first: only one of them holds the GIL."""

_NUMBERS = itertools.count()
"""Counter of this process's checkpoints, the same on all processes, whose Trainers save in the same order."""


@dataclass(frozen=True)
class _Task:
    """The work of the thread for one checkpoint.

    Attributes:
        state: Copies of weights and optimizer states, unchanged until the task is done.
        deferred: Copies of ``state`` still to be made.
        version: Number of the state's structure; it changes with the structure.
        rest: Everything else, serialized; the first process's is written.
        place: Folder, or S3 URI; the first process's is used.
        step: Optimizer steps.
        fits: Fits that the script had completed before.
        messages: Messages of this checkpoint.

    """

    state: StateDict
    deferred: DeferredCopies
    version: int
    rest: bytes
    place: str
    step: int
    fits: int
    messages: Messages


class BackgroundSave:
    """Writes one checkpoint at a time. All processes create one and call its methods in the same order.

    Args:
        rank: Rank of this process.
        world_size: Number of processes.
        remote: Creates the S3 writer, for an S3 URI.

    Attributes:
        seconds: Seconds that the last checkpoint took until it was complete.
        deferred: Copies of the optimizer states of the last checkpoint.

    """

    def __init__(self, rank: int, world_size: int, remote: Callable[[], S3CheckpointIO]) -> None:
        self._rank, self._world_size, self._remote = rank, world_size, remote
        self._staging, self._plan = Staging(), WritePlan(rank, world_size)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_whole: bool | None = None
        self._after: list[Callable[[], None]] = []
        self._error: Exception | None = None
        self._written, self._given_up = threading.Event(), threading.Event()
        self._last: Messages | None = None
        self._is_new = True
        self.deferred = DeferredCopies()
        self.seconds = 0.0

    @property
    def is_under_way(self) -> bool:
        """Whether a checkpoint is in progress."""
        return self._thread is not None

    def begin(
        self, parts: StateDict, rest: Checkpoint, place: str, optimizers: Mapping[str, Optimizer] | None = None
    ) -> None:
        """Wait for the last checkpoint, copy, and start writing.

        Args:
            parts: Weights and optimizer states of this process.
            rest: Everything else; the first process's is written.
            place: Folder, or S3 URI; the first process's is used.
            optimizers: Name of an entry of ``parts`` -> optimizer whose update alone changes it: copied before the
                next update.

        Raises:
            RuntimeError: On all processes, if one could not write its shard of the last checkpoint.

        """
        self.finish()
        self.deferred, optimizers = DeferredCopies(), optimizers or {}
        state = self._staging.copy(parts, self.deferred, optimizers)
        content = io.BytesIO()
        if self._rank == 0:
            torch.save(rest, content)
        self._given_up.clear()
        name = f"lightning-sagemaker/checkpoint/{next(_NUMBERS)}"
        messages = Messages(process_store(), name, self._given_up)
        step, fits = int(rest.get("global_step", 0)), fits_before(rest)
        task = _Task(state, self.deferred, self._staging.version, content.getvalue(), place, step, fits, messages)
        self._is_whole = None
        self._written.clear()
        self._thread = threading.Thread(target=self._run, args=(task,), name="checkpoint")
        self._thread.start()
        self.deferred.hold_updates(optimizers.values())  # not earlier: without the thread updates would wait forever

    def after(self, action: Callable[[], None]) -> None:
        """Call a function on this process once the checkpoint in progress is complete, but not if it fails."""
        with self._lock:
            if self._is_whole is None:
                self._after.append(action)
                return
        if self._is_whole:
            action()

    def finish(self) -> None:
        """Wait for the checkpoint in progress.

        Raises:
            RuntimeError: On all processes, if one could not write its shard; an existing checkpoint is unchanged.

        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self.deferred.release()
            error, self._error = self._error, None
            if isinstance(error, Refusal):
                raise RuntimeError(
                    f"The last checkpoint was not written. {error}. HINT: free disk space or fix the permissions there;"
                    " earlier checkpoints are unaffected."
                ) from error.__cause__
            if error is not None:
                raise error

    def give_up(self, seconds: float) -> None:
        """After an error, wait up to ``seconds`` for this process's shard, but not for other processes: they may be gone."""
        if self._thread is not None:
            self._written.wait(seconds)
            self._given_up.set()

    def _run(self, task: _Task) -> None:
        """Main function of the thread."""
        begin = time.monotonic()
        error: Exception | None = None
        try:
            (self._write_first if self._rank == 0 else self._write_part)(task)
        except Exception as found:
            error = found
            self._plan.forget()
        self.seconds = time.monotonic() - begin
        with self._lock:
            self._is_whole = error is None
            after, self._after = self._after, []
        try:
            if self._is_whole:
                for action in after:
                    action()
        except Exception as found:
            error = found
        self._error = error
        self._written.set()

    def _write_part(self, task: _Task) -> None:
        """Write the shard of a process other than the first; a failure of any process is raised here, too."""
        cause: Exception | None = None
        try:
            _copy_the_rest(task)
            planner, place = self._plan.planner(task.state, task.version, task.messages, task.place)
            part = OwnShard(place, self._rank, self._remote)
            try:
                part.folder.mkdir(parents=True, exist_ok=True)  # on another host than the first process
                task.messages.publish(f"{self._rank}/wrote", part.write(self._plan.own, planner))
            finally:
                part.remove()
        except Refusal:
            pass  # received again below
        except Exception as error:
            cause = error
            task.messages.publish(f"{self._rank}/failed", f"{type(error).__name__}: {error}")
        self._written.set()
        if failure := task.messages.wait_for("end"):
            raise Refusal(failure) from cause

    def _write_first(self, task: _Task) -> None:
        """Write the checkpoint on the first process, and publish the outcome."""
        failure: str | None = None
        try:
            _copy_the_rest(task)
            part = OwnShard(task.place, 0, self._remote)
            try:
                self._write_whole(task, part)
            finally:
                part.remove()
        except Refusal as refusal:
            failure = str(refusal)
            raise
        except Exception as error:
            failure = f"rank 0: {type(error).__name__}: {error}"
            raise Refusal(failure) from error
        finally:
            task.messages.publish("end", failure)

    def _write_whole(self, task: _Task, part: OwnShard) -> None:
        if not part.is_remote:
            self._make_folder(part.folder)
        planner, _ = self._plan.planner(task.state, task.version, task.messages, task.place)
        if self._last is not None:
            self._last.forget("end")  # received by all, as they have started this checkpoint
        self._last = task.messages
        own: list[Written] = []
        try:
            own.append(part.write(self._plan.own, planner))
        finally:
            others = self._collect_results(task.messages)  # before removing a folder in which they write
        if failures := [one for one in others if isinstance(one, str)]:
            raise Refusal("; ".join(failures))
        results, sums = zip(*own, *others, strict=True)
        assert self._plan.metadata is not None  # set on this process, which coordinates
        part.writer.finish(self._plan.metadata, list(results))
        (part.folder / META).write_bytes(task.rest)
        everything = {name: facts for of_one in sums for name, facts in of_one.items()}
        everything |= {name: part.put(part.folder / name) for name in (META, ".metadata")}
        if part.is_remote:
            self._remote().finish_parts(task.place, task.step, everything, task.fits)
        else:
            write_checksums(part.folder, everything)
            _put_in_place(part.folder, Path(task.place))

    def _collect_results(self, messages: Messages) -> list[Written | str]:
        """The results of the other processes, or why they failed."""
        results: list[Written | str] = []
        for rank in range(1, self._world_size):
            try:
                results.append(messages.wait_for(f"{rank}/wrote", instead=f"{rank}/failed"))
                messages.forget(f"{rank}/wrote")
            except Refusal as refusal:
                results.append(f"rank {rank}: {refusal}")
        return results

    def _make_folder(self, folder: Path) -> None:
        if self._is_new and folder.parent.is_dir():
            for left in folder.parent.glob(f".*.ckpt{UNFINISHED}"):  # left by a killed process
                shutil.rmtree(left, ignore_errors=True)
        self._is_new = False
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)


def _copy_the_rest(task: _Task) -> None:
    time.sleep(_YIELD)
    task.deferred.run()
    time.sleep(_HEAD_START)


def _put_in_place(folder: Path, place: Path) -> None:
    """Rename a complete folder into place. An existing one is renamed before, to a name under which it can be found."""
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
