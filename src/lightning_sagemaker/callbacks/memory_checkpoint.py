# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in the memory of this host and the next, from which sharded training resumes in restarted processes."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import torch.distributed as dist

from lightning_sagemaker._compat.loops import LoopEvents, events_of
from lightning_sagemaker._compat.trainer import ensure_callback, full_checkpoint
from lightning_sagemaker._lightning import Callback, MisconfigurationException, rank_zero_info, rank_zero_warn
from lightning_sagemaker.callbacks.auto_resume import AutoResume
from lightning_sagemaker.callbacks.copied_by_arguments import CopiedByArguments
from lightning_sagemaker.checkpoint.deferred import DeferredCopies
from lightning_sagemaker.checkpoint.host_memory import HostMemory, RankFile, launcher_folder, newest_complete
from lightning_sagemaker.checkpoint.neighbors import Neighbors
from lightning_sagemaker.checkpoint.rank_state import write_rank
from lightning_sagemaker.checkpoint.sharded_entries import by_name, pop_sharded_entries
from lightning_sagemaker.checkpoint.staging import Staging
from lightning_sagemaker.collectives import forks
from lightning_sagemaker.collectives.agreement import of_all

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from lightning_sagemaker._types import LightningModule, Trainer

_FITS = itertools.count()
"""Counter of this script's fits, so that a restarted script does not use a later fit's state for an earlier one."""


class _Sharded(Protocol):
    """A strategy that supports checkpoints of each rank's own state."""

    local_rank: int

    def own_parts(self) -> AbstractContextManager[None]:
        """Context in which a checkpoint has the weights and optimizer states of this process."""


class _Outcome(NamedTuple):
    """Outcome of the last copy on a rank, exchanged with all ranks."""

    is_over: bool
    failure: str | None


class MemoryCheckpoint(CopiedByArguments, Callback):
    """Keeps each rank's training state in memory, from which :class:`AutoResume` resumes after a restart of the processes.

    For models without replicas, sharded across the ranks by ``"smddp_fsdp"`` or ``"smp"``, whose ranks cannot continue
    without each other: when one dies, all are restarted (by ``supervise``, or ``torchrun --max-restarts``), and resume
    from memory with only a few repeated steps. Every ``every_n_steps`` steps each rank copies its shards, as an
    asynchronous checkpoint does, and writes them to its host's memory while training continues; with several hosts, to
    the next host's memory too. A restarted rank whose host is new gets its file from there. Without a complete set, the
    newest checkpoint is used.

    Args:
        every_n_steps: Optimizer steps between copies. A copy that is due while the last is being written is skipped.
        folder: Folder in memory (tmpfs), of this job alone, on each host. Default: one in ``/dev/shm`` that belongs to the
            launcher, and is removed after the fit, or by the next job if the launcher dies.

    Raises:
        MisconfigurationException: If the strategy does not shard parameters, or has pipeline stages.

    """

    def __init__(self, every_n_steps: int = 10, folder: str | Path | None = None) -> None:
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps={every_n_steps} was set. HINT: set 1 or more.")
        self._every_n_steps, self._folder = every_n_steps, folder
        self._memory: HostMemory | None = None
        self._events: LoopEvents | None = None
        self._neighbors: Neighbors | None = None
        self._staging = Staging()
        self._deferred = DeferredCopies()
        self._thread: threading.Thread | None = None
        self._failure: str | None = None
        self._has_failed = False
        self._step = self._due = self._written = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the folder.

        Raises:
            CheckpointError: If there is no folder in memory.

        """
        if stage != "fit" or self._memory is not None:
            return
        if not hasattr(trainer.strategy, "own_parts"):
            raise MisconfigurationException(
                f"MemoryCheckpoint was given with {type(trainer.strategy).__name__}, whose ranks all have the full state."
                " HINT: leave it out, and start the script with 'lightning-sagemaker supervise', which recovers in the job;"
                " or use strategy='smddp_fsdp'."
            )
        if getattr(trainer.strategy, "recovers", False):
            rank_zero_info(
                "MemoryCheckpoint makes no copies: a lost rank's state is in the memory of the model's other replicas."
            )
            return
        fit = next(_FITS)
        found = launcher_folder(fit) if self._folder is None else Path(self._folder) / str(fit)
        if found is None:
            rank_zero_warn(
                "MemoryCheckpoint makes no copies: nothing restarts these processes. HINT: start them with 'torchrun"
                " --max-restarts=3', or set folder=."
            )
            return
        self._memory = HostMemory(found)
        self._events = events_of(trainer)
        self._events.after_checkpoint_load.append(lambda: self._stay_out(trainer))
        self._events.after_batch.append(lambda: self._end_batch(trainer))
        resume = ensure_callback(trainer, AutoResume(search=False))  # if it is added, its setup is called next
        if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0:
            resume.search()
        resume.look_in(lambda least: self._newest(trainer, least))

    def _stay_out(self, trainer: Trainer) -> None:
        """Make no copies of a fit that was given its checkpoint; earlier, the Trainer may have that of a finder's trial."""
        memory = self._memory
        if trainer.ckpt_path is not None and memory is not None:
            self._memory = None
            if not cast("_Sharded", trainer.strategy).local_rank:
                memory.remove()
            rank_zero_warn(
                f"MemoryCheckpoint makes no copies: fit was given ckpt_path={str(trainer.ckpt_path)!r}, from which a"
                " restarted script begins again. HINT: leave it out, and let AutoResume find the newest checkpoint."
            )

    def _newest(self, trainer: Trainer, least: int) -> str | None:
        """This rank's file to resume from, if all ranks have one of the same step. Collective.

        Args:
            trainer: The Trainer.
            least: Number of steps of the newest checkpoint on disk.

        Returns:
            The file; None if there is none, or only older ones.

        """
        memory = self._memory
        assert memory is not None
        if not cast("_Sharded", trainer.strategy).local_rank:
            memory.remove_unfinished()
        hosts, seen = zip(*of_all((memory.host, memory.files()), trainer.world_size), strict=True)
        group = None
        if len(set(hosts)) > 1:
            forks.guard()
            group = dist.new_group(backend="gloo")
        self._neighbors = Neighbors(memory, trainer.global_rank, hosts, group)
        step = newest_complete(seen)
        if step is None or step < least:
            memory.keep(())
            if any(seen):
                rank_zero_info("The copies in memory are not complete, or older than the newest checkpoint: not used.")
            return None
        fetched = self._agree(trainer, lambda: self._neighbor.fetch(step, seen))
        memory.keep((step,))
        self._written = step
        where = f", {fetched} of them from another host" if fetched else ""
        rank_zero_info(f"Resuming from step {step}: the copies of {len(seen)} ranks in memory{where}")
        return str(memory.path(RankFile(step, trainer.global_rank, len(seen))))

    @property
    def _neighbor(self) -> Neighbors:
        assert self._neighbors is not None
        return self._neighbors

    def _agree(self, trainer: Trainer, action: Callable[[], int]) -> int:
        """Run ``action``; a failure of one rank is raised on all. Collective."""
        result, failure = 0, None
        try:
            result = action()
        except OSError as error:
            failure = str(error)
        failures = [f"rank {n}: {one}" for n, one in enumerate(of_all(failure, trainer.world_size)) if one]
        if failures:
            raise RuntimeError(f"copies in memory could not be fetched. {'; '.join(failures)}. HINT: free memory.")
        return result

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start counting steps."""
        self._step = trainer.global_step
        self._due = self._step + self._every_n_steps

    def _end_batch(self, trainer: Trainer) -> None:
        stepped, self._step = trainer.global_step > self._step, trainer.global_step
        if stepped and self._step >= self._due and self._memory is not None and not self._has_failed:
            self._due = self._step + self._every_n_steps
            if self._last_is_over(trainer, self._memory):
                self._begin(trainer, self._memory)

    def _last_is_over(self, trainer: Trainer, memory: HostMemory) -> bool:
        """Whether all ranks have completed the last copy. Collective."""
        is_over = self._thread is None or not self._thread.is_alive()
        outcomes = of_all(_Outcome(is_over, self._failure), trainer.world_size)
        failures = [f"rank {rank}: {one.failure}" for rank, one in enumerate(outcomes) if one.failure]
        if failures:
            self._join()
            self._has_failed = True
            memory.keep(())
            rank_zero_warn(
                f"MemoryCheckpoint makes no more copies: {'; '.join(failures)}. HINT: give the container more shared memory"
                " ('docker run --shm-size'), or copy into another folder=."
            )
            return False
        return all(one.is_over for one in outcomes)

    def _begin(self, trainer: Trainer, memory: HostMemory) -> None:
        """Copy the state, and start writing."""
        strategy = cast("_Sharded", trainer.strategy)
        self._join()
        with strategy.own_parts():
            rest = full_checkpoint(trainer)
        parts, optimizers = pop_sharded_entries(rest), by_name(trainer.optimizers)
        self._deferred = deferred = DeferredCopies()
        state = self._staging.copy(parts, deferred, optimizers)
        last, self._written = self._written, trainer.global_step
        file = RankFile(self._written, trainer.global_rank, trainer.world_size)

        def fill(path: Path) -> None:
            write_rank(path, state, rest if trainer.is_global_zero else None)

        self._thread = threading.Thread(
            target=self._run, args=(memory, last, file, fill, deferred), name="memory-checkpoint", daemon=True
        )
        self._thread.start()
        deferred.hold_updates(optimizers.values())

    def _run(
        self, memory: HostMemory, last: int, file: RankFile, fill: Callable[[Path], None], deferred: DeferredCopies
    ) -> None:
        """Main function of the thread."""
        path = None
        try:
            deferred.run()
            memory.remove_before(last)  # this step is complete on all hosts
            path = memory.write(file, fill)
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
        try:
            self._neighbor.exchange(file, path)
        except Exception as error:
            self._failure = self._failure or f"{type(error).__name__}: {error}"

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._deferred.release()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the files, which are no longer needed."""
        memory = self._memory
        self._join()
        if memory is not None:
            trainer.strategy.barrier()  # a neighbor may be about to write
            if not cast("_Sharded", trainer.strategy).local_rank:
                memory.remove()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Restore the loops."""
        if self._events is not None:
            self._events.release()
            self._events = None
        self._memory, self._failure, self._has_failed = None, None, False

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Keep the files, for the restarted processes."""
        self.teardown(trainer, pl_module, "fit")
