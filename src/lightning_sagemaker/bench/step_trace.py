# SPDX-License-Identifier: Apache-2.0
"""Records some optimizer steps of a Trainer with torch's profiler, and divides them into their parts.

Lightning calls its profiler around each of its actions; :class:`_Ranges` wraps the Trainer's own profiler, forwards all
calls to it, and opens a range of torch's profiler around the actions that are parts of a step.
"""

from __future__ import annotations

import gc
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from lightning_sagemaker._lightning import Callback, Profiler, rank_zero_warn
from lightning_sagemaker.bench.breakdown import Breakdown, Recorded, divide
from lightning_sagemaker.bench.intervals import Interval
from lightning_sagemaker.bench.traced import ACTIVE, PREPARING, TIMED, WARM_UP

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from torch.autograd.profiler_util import FunctionEvent

_STEP = "bench: step"
_EXCLUDED = "bench: validation"
_PREFIX = "bench: part "
_ACTIONS = {
    "train_dataloader_next": "data",
    "batch_to_device": "data",
    "training_step": "forward",
    "backward": "backward",
    "optimizer_step": "optimizer",
    "run_training_batch": "other",
}
"""Last word of the name of a Lightning action -> part of a step.

The closure runs in ``optimizer_step``, with its own ranges inside.
"""
_COLLECTIVES = ("gloo:", "nccl", "ucc:", "mpi:", "c10d::")
_OPTIMIZER_STEP = "Optimizer.step#"
_BACKWARD = "autograd::engine::evaluate_function"


class _Ranges(Profiler):
    """A Trainer's profiler that also opens ranges of torch's.

    Args:
        inner: The profiler that the Trainer was given.

    """

    def __init__(self, inner: Profiler) -> None:
        super().__init__()
        self._inner = inner
        self._open: dict[str, record_function] = {}
        self.is_recording = False

    def start(self, action_name: str) -> None:
        """Open a range, if the action is a part of a step."""
        part = _ACTIONS.get(action_name.rpartition(".")[2]) if self.is_recording else None
        if part is not None and not action_name.startswith("[Callback]"):
            _synchronize()
            self._open[action_name] = _opened(_PREFIX + part)
        self._inner.start(action_name)

    def stop(self, action_name: str) -> None:
        """Close the action's range, if there is one."""
        self._inner.stop(action_name)
        opened = self._open.pop(action_name, None)
        if opened is not None:
            _synchronize()
            opened.__exit__(None, None, None)

    def summary(self) -> str:
        """Summary of the inner profiler."""
        return self._inner.summary()

    def describe(self) -> None:
        """Make the inner profiler report."""
        self._inner.describe()

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """Set the inner profiler up."""
        self._inner.setup(stage, local_rank, log_dir)

    def teardown(self, stage: str | None) -> None:
        """Tear the inner profiler down."""
        self._inner.teardown(stage)


class StepTrace(Callback):
    """Writes a :class:`Breakdown` for its rank.

    Args:
        folder: Folder for the breakdowns.

    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ranges: _Ranges | None = None
        self._profile: profile | None = None
        self._step_range: record_function | None = None
        self._validation: record_function | None = None
        self._paused = 0.0
        self._ends: list[float] = []
        self._last = 0

    def attach(self, trainer: Trainer) -> None:
        """Wrap a Trainer's profiler, and append this callback to the Trainer's.

        Args:
            trainer: Trainer that is about to fit.

        """
        given: Profiler = trainer.profiler  # type: ignore[attr-defined]
        if type(given).__name__ == "PyTorchProfiler":
            rank_zero_warn("no step breakdown: the script uses its own PyTorchProfiler. HINT: measure without it.")
        elif not any(isinstance(one, StepTrace) for one in trainer.callbacks):  # type: ignore[attr-defined]
            self._ranges = _Ranges(given)
            trainer.profiler = self._ranges  # type: ignore[attr-defined]
            trainer.callbacks.append(self)  # type: ignore[attr-defined]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start to count steps."""
        self._last = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """At the end of an optimizer step, end its range and open the next."""
        if trainer.global_step == self._last:
            return
        self._last = trainer.global_step
        self._end_range()
        if len(self._ends) < WARM_UP + TIMED:
            _synchronize()
            self._ends.append(time.perf_counter() - self._paused)
            if len(self._ends) < WARM_UP + TIMED:
                return
            self._profile = self._started(trainer)
        elif self._profile is not None:
            self._profile.step()
        if self._profile is not None:
            self._step_range = _opened(_STEP)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Exclude a validation from the step."""
        self._paused -= time.perf_counter()
        if self._step_range is not None:
            self._validation = _opened(_EXCLUDED)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the exclusion."""
        self._paused += time.perf_counter()
        if self._validation is not None:
            self._validation.__exit__(None, None, None)
            self._validation = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the profiler; a run that was too short writes nothing."""
        self._end_range()
        if self._profile is not None:
            self._profile.stop()
            self._profile = None

    def _started(self, trainer: Trainer) -> profile:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)

        def ready(found: profile) -> None:
            if self._ranges is not None:
                self._ranges.is_recording = False
            self._profile = None  # must not be stepped any more
            self._write(found, trainer.global_rank)

        if self._ranges is not None:
            self._ranges.is_recording = True
        started = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=PREPARING, active=ACTIVE, repeat=1),
            on_trace_ready=ready,
            acc_events=True,
        )
        gc.collect()  # else collecting objects of imports, a quarter of a second, may be part of a recorded step
        started.start()
        return started

    def _write(self, found: profile, rank: int) -> None:
        recorded = read(list(found.events()))  # type: ignore[no-untyped-call]
        parts = {part: microseconds / 1e6 for part, microseconds in divide(recorded).items()}
        timed = self._ends[WARM_UP - 1 :]
        untraced = statistics.median(after - before for before, after in pairwise(timed))
        Breakdown(rank, parts, sum(parts.values()), untraced, len(recorded.steps)).save(self._folder)

    def _end_range(self) -> None:
        if self._step_range is not None:
            _synchronize()
            self._step_range.__exit__(None, None, None)
            self._step_range = None


def read(events: list[FunctionEvent]) -> Recorded:
    """The intervals in the events of torch's profiler, in microseconds.

    If kernels ran on a GPU, collectives and computation are its kernels, else the operators on the CPU.

    Args:
        events: Events of one rank's profiler.

    """
    kernels = [one for one in events if one.device_type != DeviceType.CPU and not _is_range(one)]
    ran = kernels or [one for one in events if not _is_range(one) or _is_collective(one)]
    ranges: dict[str, list[Interval]] = {}
    steps, excluded = [], []
    for one in events:
        if one.device_type != DeviceType.CPU:
            continue
        if one.name == _STEP:
            steps.append(_times(one))
        elif one.name == _EXCLUDED:
            excluded.append(_times(one))
        elif one.name.startswith(_PREFIX):
            ranges.setdefault(one.name[len(_PREFIX) :], []).append(_times(one))
        elif one.name.startswith(_OPTIMIZER_STEP):
            ranges.setdefault("optimizer", []).append(_times(one))
        elif one.name.startswith(_BACKWARD):
            ranges.setdefault("backward", []).append(_times(one))
    return Recorded(
        steps,
        ranges,
        [_times(one) for one in ran if _is_collective(one) and not one.name.startswith("c10d::")],
        [_times(one) for one in ran if not _is_collective(one)],
        excluded,
    )


def _is_collective(event: FunctionEvent) -> bool:
    return event.name.startswith(_COLLECTIVES)


def _is_range(event: FunctionEvent) -> bool:
    """Whether an event is a range that a program opened, not an operator."""
    return bool(getattr(event, "is_user_annotation", False)) or event.scope == _USER_SCOPE


_USER_SCOPE = 7
"""``RecordScope.USER_SCOPE`` of torch."""


def _times(event: FunctionEvent) -> Interval:
    return event.time_range.start, event.time_range.end


def _opened(name: str) -> record_function:
    """An opened range of torch's profiler."""
    found = record_function(name)
    found.__enter__()  # type: ignore[no-untyped-call]
    return found


def _synchronize() -> None:
    """Wait for the GPU, if there is one, so that a range on the CPU includes the kernels that were launched in it."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
