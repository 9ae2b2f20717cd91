# SPDX-License-Identifier: Apache-2.0
"""State of a custom loop in a checkpoint, in addition to the user's objects, for an exact resume."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, cast

from lightning_sagemaker._compat.fabric import (
    all_iterations,
    is_listed,
    iterations,
    set_all_iterations,
    set_iterations,
    wrapped_module,
)
from lightning_sagemaker._lightning import rank_zero_info, rank_zero_warn
from lightning_sagemaker.callbacks.fabric_begin import EpochBegin, is_within
from lightning_sagemaker.callbacks.fabric_data import LoopData
from lightning_sagemaker.callbacks.fabric_folder import LoopFolder
from lightning_sagemaker.callbacks.fabric_io import note_failures
from lightning_sagemaker.callbacks.fabric_passed import PassedLoops
from lightning_sagemaker.callbacks.fabric_reducer import reducer_state, restore_reducer
from lightning_sagemaker.callbacks.fabric_values import (
    as_with,
    loop_flags,
    loop_generators,
    loop_metrics,
    put_values,
    restore_loop_flags,
    restore_loop_generators,
    values_of,
)
from lightning_sagemaker.checkpoint.atomic_write import CheckpointError
from lightning_sagemaker.checkpoint.exchanged_weights import LoopWeights
from lightning_sagemaker.checkpoint.find import STATE
from lightning_sagemaker.checkpoint.metric_state import entries_of, merged_entries, restore_entries
from lightning_sagemaker.checkpoint.random_state import random_state, restore_random_state
from lightning_sagemaker.checkpoint.rank_buffers import buffers_in, copied, differing, restore_buffers
from lightning_sagemaker.collectives.agreement import of_all
from lightning_sagemaker.data.dealing import batch_size_of, remaining, united
from lightning_sagemaker.data.epoch_end import pass_end
from lightning_sagemaker.data.position import Watch

if TYPE_CHECKING:
    from lightning_sagemaker._types import Fabric, StateDict
    from lightning_sagemaker.callbacks.fabric_entries import CarriedEntry, LoopEntry, LoopRankEntry, WrittenEntry
    from lightning_sagemaker.callbacks.fabric_values import Values
    from lightning_sagemaker.data.position import Position


_STEP = "global_step"  # the key by which the newest checkpoint is found


class FabricState:
    """Saves and restores the state of one loop.

    Args:
        fabric: Fabric, which writes and reads checkpoints.
        folder: Folder of the checkpoints.
        state: The user's objects.
        keep: Number of checkpoints to keep.
        weights_only: Whether to load data only.

    Raises:
        ValueError: If the folder is a URL, or an entry has a reserved name, or could not be read from a checkpoint.

    """

    def __init__(self, fabric: Fabric, folder: str | Path, state: StateDict, keep: int, weights_only: bool) -> None:
        if taken := {_STEP, STATE} & state.keys():
            raise ValueError(f"state has the entries {sorted(taken)}, which the loop writes itself. HINT: rename them.")
        self._fabric, self._state, self._weights_only = fabric, state, weights_only
        self._folder = LoopFolder(fabric, folder, keep, weights_only)
        self._data = LoopData(state, weights_only)
        self._begin = EpochBegin(state, self._data)
        self.carried: dict[int, CarriedEntry] = {}
        """Of this rank in the loaded checkpoint: the loaders of which the loop's body takes batches."""
        self.loaded: WrittenEntry | None = None
        """The position in the checkpoint, until the first epoch has begun."""
        self._path: Path | None = None
        self._before_evaluation: Values | None = None
        self.weights = LoopWeights()
        self._loader: object = None
        self._ended: Position | None = None
        self._passed = PassedLoops()
        self._at_checkpoint: Values | None = None
        self._iterations: dict[int, int] = {}  # of all loaders, when the epoch began
        self._calls = self._samples_before = self._batch_before = 0
        note_failures(fabric)

    def begin_epoch(self) -> None:
        """Record what an epoch begins with, or restore it in one that is resumed, whose first code is repeated."""
        self._begin.begin(self.loaded if is_within(self.loaded) else None, self._fabric)

    # Positions in the data

    def skips(self, watched: Watch, loader: object) -> int | None:
        """Move a loader to its loop's end, if the checkpoint was saved after that; returns the number of its batches."""
        self._passed.begin()
        if (loaded := self.loaded) is None or not self._passed.is_next_in(loaded):
            return None
        is_same, rank = len(loaded["ranks"]) == self._fabric.world_size, self._fabric.global_rank
        calls, batch, self._ended = self._passed.skip(loaded, rank if is_same else None)
        set_iterations(loader, calls + 1)
        self._calls, self._loader = calls, loader
        if self._ended is not None:
            pass_end(watched, self._ended)
        if loaded["left"] and not self._passed.is_next_in(loaded):  # what follows is the code after this loop
            self.loaded = None
            self._put_checkpoint()
            if is_same:
                restore_random_state(loaded["ranks"][rank]["random"])
            self._remember()
        return batch

    def begin_batches(self, watched: Watch, loader: object) -> int:
        """Restore the position of an epoch's loader from the checkpoint, before it is iterated.

        Args:
            watched: The watch of the loader.
            loader: The iterable, possibly Fabric's wrapper.

        Returns:
            The batches that were consumed before the checkpoint: as many samples, in this run's batches.

        """
        loaded, self.loaded = self.loaded, None
        self._before_evaluation, self._ended, self._loader = None, None, loader
        if loaded is None:
            self._calls, self._samples_before, self._batch_before = iterations(loader), 0, 0
            watched.begin_epoch()
            return 0
        if is_within(loaded):
            self._put_checkpoint()
        batch = loaded["batch"]
        if batch or _iterations_in(loaded) is None or not is_listed(loader):  # otherwise it may be another one
            set_iterations(loader, loaded["calls"])
        self._calls = iterations(loader)
        self._set_epoch(watched.loader)
        if len(loaded["ranks"]) != self._fabric.world_size or loaded["batch_size"] != batch_size_of(watched.loader):
            return self._deal(watched, loaded)
        self._samples_before, self._batch_before = loaded["samples"] or 0, batch
        own = loaded["ranks"][self._fabric.global_rank]
        if batch:
            watched.seek(own["position"])
        else:
            watched.begin_epoch()
            if own["position"] is not None:
                pass_end(watched, own["position"])
                self._set_epoch(watched.loader)
        if is_within(loaded):  # otherwise the epoch's own code has gone on drawing
            restore_random_state(own["random"])
        return batch

    def _set_epoch(self, loader: object) -> None:
        sampler = getattr(loader, "sampler", None)
        if sampler is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self._calls)

    def _deal(self, watched: Watch, loaded: LoopEntry) -> int:
        """Redistribute the rest of the epoch to another number of ranks, or in other batches."""
        positions = [rank["position"] for rank in loaded["ranks"]]
        bits = united([None if position is None else position.get("bits") for position in positions])
        place = {"num_replicas": self._fabric.world_size, "rank": self._fabric.global_rank}
        done, rest = 0, None
        if loaded["samples"] is not None and hasattr(watched.loader, "sampler"):
            rest = remaining(watched.loader, place, loaded["epoch"], loaded["samples"], 0, bits)
        message = "the epoch starts over, and some of its samples are seen twice"
        watched.seek(None)
        if rest is not None:
            done = max(0, len(watched.loader) - len(rest))
            watched.seek_rest(rest, done, bits)
            message = "each sample of the epoch is seen once, in other batches"
        self._samples_before, self._batch_before = (loaded["samples"] or 0) if rest is not None else 0, done
        rank_zero_info(
            f"The checkpoint was saved {f'on {len(positions)} ranks' if positions else 'under supervise'} with batches of"
            f" {loaded['batch_size']}; here it is {self._fabric.world_size} and {batch_size_of(watched.loader)}: {message}."
            " Random numbers (dropout) differ."
        )
        return done

    def end_batches(self, watched: Watch, batch: int, *, is_left: bool = False) -> None:
        """Save the state after a loop over batches, or where it was left: a stop in an evaluation rolls back to it."""
        self._ended = watched.position(batch)
        self._passed.end(self._calls, batch, self._ended, is_left)
        self._remember()

    def _put_checkpoint(self) -> None:
        """Undo what the epoch's code before the checkpoint has changed, as it was run a second time."""
        values, self._at_checkpoint = self._at_checkpoint, None
        if values is not None:
            self.put(values)

    def _remember(self) -> None:
        self._before_evaluation = values_of(self._state, modules=True)
        self.weights.take(self._state)

    def go_back(self) -> None:
        """Reset weights, schedulers and values to their state before an evaluation: the code in between is repeated."""
        self.weights.put_back()
        if self._before_evaluation is not None:
            self.put(self._before_evaluation)

    def values(self) -> Values:
        """State that the body of the loop changes, apart from weights, optimizer states and the states of metrics."""
        return values_of(self._state, modules=False)

    def put(self, values: Values) -> None:
        """Restore the result of :meth:`values`."""
        put_values(self._state, values)

    def as_at_last_batch(self, values: Values | None = None) -> AbstractContextManager[None]:
        """Context in which the state has the values of the last batch's end, as the code after it is repeated."""
        values = values or self._before_evaluation
        return nullcontext() if values is None else as_with(self._state, values)

    def end_epoch(self) -> None:
        """Drop the state of the epoch's last batch."""
        self._calls, self._before_evaluation = iterations(self._loader), None
        self.weights.forget()
        self._passed, self._at_checkpoint, self._iterations = PassedLoops(), None, all_iterations()
        self._samples_before = self._batch_before = 0

    # Checkpoints

    def save(self, epoch: int, batch: int, step: int, watched: Watch | None, carried: dict[int, CarriedEntry]) -> Path:
        """Write a checkpoint and remove older ones, if there has been a batch since the loaded one. Collective."""
        if self._path is not None and is_within(self.loaded):
            return self._path
        ranks, buffers = self._fabric.world_size, buffers_in(self._state)
        size = None if watched is None else batch_size_of(watched.loader)
        position = self._ended if self._ended is not None or watched is None else watched.position(batch)
        passed, is_left = self._passed.of_checkpoint()
        changed = differing(buffers, copied(buffers), ranks)
        own: LoopRankEntry = {
            "random": random_state(),
            "position": position,
            "buffers": changed,
            "metrics": entries_of(loop_metrics(self._state)),
            "generators": loop_generators(self._state),
            "passed": [one["position"] for one in passed],
            "begin": self._begin.own,
            "carried": carried,
        }
        entry: LoopEntry = {
            "epoch": epoch,
            "batch": batch,
            "step": step,
            "calls": self._calls,
            "batch_size": size,
            "samples": None if size is None else self._samples_before + (batch - self._batch_before) * size * ranks,
            "modules": [reducer_state(wrapped_module(value)) for value in self._state.values()],
            "ranks": of_all(own, ranks),
            "passed": [(one["calls"], one["batch"]) for one in passed],
            "left": is_left,
            "loaders": self._iterations,
            "begin": self._begin.entry,
        }
        return self.write(step, entry)

    def write(self, step: int, entry: LoopEntry) -> Path:
        """Write a checkpoint with a loop's position, and remove older ones. Collective."""
        ranks = self._fabric.world_size
        path = self._folder.path(step)
        content, others = self._data.content()
        written: WrittenEntry = {**entry, "flags": loop_flags(self._state), "others": others}
        self._fabric.save(path, {**content, _STEP: step, STATE: {**written, "fits": self._folder.loops}})
        failure = getattr(self._fabric.strategy.checkpoint_io, "failure", None)
        if failures := [one for one in of_all(failure, ranks) if one is not None]:
            raise CheckpointError(failures[0])
        self._folder.delete_older(step)
        return path

    def complete(self) -> None:
        """Record that all epochs are complete: a later loop of this process in the same folder has its own checkpoints."""
        self._folder.complete()

    def load(self) -> tuple[int, int, int]:
        """Load the newest complete checkpoint, if there is one. Collective.

        Returns:
            Epoch, number of its batches, and number of batches of all epochs.

        Raises:
            CheckpointError: On all ranks, if it cannot be used.

        """
        self._iterations = all_iterations()
        if (path := self._folder.newest()) is None:
            return 0, 0, 0
        self._path = Path(path)
        content = {**self._data.wanted(), _STEP: 0, STATE: {}}
        self._fabric.load(path, content, weights_only=self._weights_only)
        self.loaded = cast("WrittenEntry", content[STATE])
        self._data.put(content, self.loaded.get("others", ()), self._fabric.device)
        restore_loop_flags(self._state, self.loaded.get("flags", {}))
        self._restore_ranks(self.loaded)
        set_all_iterations(_iterations_in(self.loaded) or {})
        self._iterations = all_iterations()
        self._at_checkpoint = values_of(self._state, modules=True)
        return self.loaded["epoch"], self.loaded["batch"], self.loaded["step"]

    def _restore_ranks(self, loaded: WrittenEntry) -> None:
        """Restore the state of this rank."""
        ranks, rank, metrics = loaded["ranks"], self._fabric.global_rank, loop_metrics(self._state)
        restore_loop_generators(self._state, [one.get("generators", {}) for one in ranks], rank)
        own = [one.get("metrics", {}) for one in ranks[rank :: self._fabric.world_size]]
        restore_entries(metrics, merged_entries(metrics, own))
        if len(ranks) == self._fabric.world_size:
            for value, kept in zip(self._state.values(), loaded["modules"], strict=True):
                restore_reducer(wrapped_module(value), kept)
            restore_buffers(buffers_in(self._state), ranks[rank]["buffers"])
            restore_random_state(ranks[rank]["random"])
            self.carried = ranks[rank].get("carried", {})
        elif any(one.get("carried") for one in ranks):
            rank_zero_warn(
                f"The checkpoint was saved on {len(ranks)} ranks; here it is {self._fabric.world_size}: loaders of which the"
                " loop's body takes batches itself begin anew, so some of their samples are seen twice and others never."
                " HINT: resume on as many ranks."
            )


def _iterations_in(loaded: LoopEntry) -> dict[int, int] | None:
    """Of all loaders, by place; earlier checkpoints have a list, which is empty if unknown."""
    found: object = loaded.get("loaders")
    return (dict(enumerate(found)) or None) if isinstance(found, list) else loaded.get("loaders")
