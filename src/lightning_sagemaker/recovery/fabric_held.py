# SPDX-License-Identifier: Apache-2.0
"""The state of a custom loop with Fabric after its last step: for a repeated step, for replacements and for checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

from lightning_sagemaker._compat.fabric import inner_loader
from lightning_sagemaker.callbacks.fabric_values import loop_flags, restore_loop_flags
from lightning_sagemaker.checkpoint.atomic_write import CheckpointError
from lightning_sagemaker.checkpoint.stateful import Stateful, is_stateful
from lightning_sagemaker.data.dealing import batch_size_of
from lightning_sagemaker.parallel.gradients import swap_gradients
from lightning_sagemaker.recovery.buffers import SharedBuffers

if TYPE_CHECKING:
    from torch import Tensor

    from lightning_sagemaker._types import StateDict
    from lightning_sagemaker.callbacks.fabric_entries import LoopEntry
    from lightning_sagemaker.callbacks.fabric_state import FabricState
    from lightning_sagemaker.callbacks.fabric_values import Flags, Values
    from lightning_sagemaker.recovery.fabric_steps import InJobStrategy

Position = tuple[int, int, int]
"""Epoch, number of its batches so far, and number of batches of all epochs so far."""


class Changing(TypedDict):
    """State that the body of a loop changes, apart from weights and optimizer states."""

    values: Values
    buffers: list[Tensor]


class HeldLoop(TypedDict):
    """The state that a replacement receives."""

    objects: dict[str, StateDict]
    flags: Flags
    precision: StateDict
    position: Position
    seed: int
    changing: Changing


class FabricHeld:
    """The state of one loop. Weights and optimizers stay in place; everything else is copied after each step.

    Args:
        strategy: A strategy that recovers in the job.
        objects: The user's ``state`` dictionary.
        state: Copies ``objects`` and writes checkpoints of it.
        buffers: Buffers of the modules in ``objects``.

    """

    def __init__(self, strategy: InJobStrategy, objects: StateDict, state: FabricState, buffers: SharedBuffers) -> None:
        self._strategy, self._objects, self._state, self._buffers = strategy, objects, state, buffers
        self._held: tuple[Position, int, Changing] | None = None

    @contextmanager
    def unchanged_by(self, shard: int) -> Iterator[None]:
        """Context for a pass for an adopted shard, after which everything but gradients is restored."""
        before = self._state.values()
        with self._buffers.of_shard(shard):
            yield
        self._state.put(before)

    def take(self, position: Position, seed: int) -> None:
        """Save the current state, from which training continues after a loss."""
        self._held = position, seed, {"values": self._state.values(), "buffers": self._buffers.now()}
        self._buffers.begin_step()

    def go_back(self) -> Position:
        """Restore the last saved state, and drop all gradients."""
        assert self._held is not None
        position, _, changing = self._held
        self._state.put(changing["values"])
        self._buffers.put(changing["buffers"])
        self._buffers.begin_step()
        swap_gradients(self._strategy.parameters)
        return position

    def all_of_it(self) -> HeldLoop:
        """The state that a replacement needs."""
        assert self._held is not None
        position, seed, changing = self._held
        return {
            "objects": {name: one.state_dict() for name, one in self._objects.items() if is_stateful(one)},
            "flags": loop_flags(self._objects),
            "precision": self._strategy.precision.state_dict(),
            "position": position,
            "seed": seed,
            "changing": changing,
        }

    def take_over(self, state: HeldLoop) -> tuple[Position, int]:
        """Take over the state of another rank; returns its position and seed."""
        for name, found in state["objects"].items():
            cast(Stateful, self._objects[name]).load_state_dict(found)
        restore_loop_flags(self._objects, state["flags"])
        self._strategy.precision.load_state_dict(state["precision"])
        self._held = state["position"], state["seed"], state["changing"]
        return self.go_back(), state["seed"]

    # Checkpoints

    def write(self, position: Position, loader: object, world_size: int, is_left: bool) -> Path:
        """Write a checkpoint, for a job of the same number of ranks to resume from. Collective.

        Args:
            position: The current position.
            loader: The training loader; None before the first epoch.
            world_size: Number of shards of the job.
            is_left: Whether the epoch's loop over batches has been left.

        """
        epoch, batch, step = position
        size = None if loader is None else batch_size_of(inner_loader(loader))
        entry: LoopEntry = {
            "epoch": epoch,
            "batch": batch,
            "step": step,
            "calls": epoch,
            "batch_size": size,
            "samples": None if size is None else batch * size * world_size,
            "modules": [{"buckets": None, "sends": None} for _ in self._objects],
            "ranks": [],  # their positions follow from that of the loop
            "passed": [(epoch, batch)] if is_left else [],
            "left": is_left,
            "loaders": None,
            "begin": None,
        }
        held = self._held[2]["values"] if self._held is not None and self._held[0] == position else None
        with self._state.as_at_last_batch(held):
            return self._state.write(step, entry)

    def check_loaded(self, loader: object, world_size: int) -> int | None:
        """Raise if a checkpoint's position refers to other shards or batches.

        Args:
            loader: The training loader.
            world_size: Number of shards of the job.

        Returns:
            Number of batches after which the epoch's loop was left, as the checkpoint says; None if it goes on.

        Raises:
            CheckpointError: If it was saved within an epoch with other ranks or batches, or in one that has several loops.

        """
        loaded, self._state.loaded = self._state.loaded, None
        size = batch_size_of(inner_loader(loader))
        if loaded is not None and (passed := loaded.get("passed")):
            if loaded["left"] and len(passed) == 1:
                return passed[0][1]
            raise CheckpointError(
                "The checkpoint was saved in an epoch with several loops over batches, which is not resumed where ranks"
                " recover in the job. HINT: set recovery='restart'."
            )
        if loaded is None or not loaded["batch"]:
            return None
        if loaded["batch_size"] != size or loaded["samples"] != loaded["batch"] * (size or 0) * world_size:
            raise CheckpointError(
                f"The checkpoint was saved after {loaded['samples']} samples of an epoch in {loaded['batch']} batches of"
                f" {loaded['batch_size']}; here are {world_size} ranks with batches of {size}, which recover in the job."
                " HINT: start as many ranks with the same batches, or set recovery='restart'."
            )
        return None
