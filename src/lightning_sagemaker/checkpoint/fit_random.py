# SPDX-License-Identifier: Apache-2.0
"""The random number generators of a fit, except those whose draws a resumed run repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, cast

from lightning_sagemaker._compat.plain_copy import plain_copy
from lightning_sagemaker._compat.reloads import Requests
from lightning_sagemaker._compat.trainer import callbacks_of, datamodule_of
from lightning_sagemaker._lightning import LightningDataModule
from lightning_sagemaker.checkpoint.own_generators import OwnGenerators
from lightning_sagemaker.checkpoint.random_state import RandomState, random_state, restore_random_state

if TYPE_CHECKING:
    from lightning_sagemaker._compat.loops import LoopEvents
    from lightning_sagemaker._types import StateDict, Trainer


class Loaders(Protocol):
    """The loaders of a fit.

    Attributes:
        restored: Returns the ids of generators that are restored with the fit.

    """

    restored: Callable[[], set[int]]

    def read_again(self) -> set[int]:
        """Ids of generators whose draws a resumed run repeats, to reach the position of a loader."""


class _Request(RandomState, total=False):
    """What a request for loaders depends on; ``data`` is the state of a data module that has one."""

    data: StateDict | None


class FitRandom:
    """Saves and restores a fit's random number generators: the libraries', and those of module, data module and callbacks.

    Generators of a data set that is created for a loader only are part of the loader's position.

    Args:
        trainer: The Trainer of the fit.
        events: Events of the fit.
        loaders: Loaders of the fit.

    """

    def __init__(self, trainer: Trainer, events: LoopEvents, loaders: Loaders) -> None:
        self._trainer, self._read_again = trainer, loaders.read_again
        loaders.restored = self.ids
        self._own = OwnGenerators(self._roots)
        Requests(trainer, events, self._take_request, lambda state: self._put_request(cast("_Request", state)))

    def _roots(self) -> Iterator[tuple[str, object]]:
        yield "module", self._trainer.lightning_module
        yield "datamodule", getattr(self._trainer, "datamodule", None)
        for number, callback in enumerate(callbacks_of(self._trainer)):
            yield f"callbacks.{number}.{type(callback).__name__}", callback

    def take(self) -> RandomState:
        """The states of the generators."""
        return {**random_state(), "own": self._own.take(but=self._read_again())}

    def put(self, state: RandomState) -> None:
        """Restore :meth:`take`."""
        restore_random_state(state)
        self._own.put(state.get("own", {}), but=self._read_again())

    def _take_request(self) -> _Request:
        """With what a later hook may change in the data module."""
        data = datamodule_of(self._trainer)
        is_stateful = data is not None and type(data).state_dict is not LightningDataModule.state_dict
        return {**self.take(), "data": plain_copy(data.state_dict()) if data is not None and is_stateful else None}

    def _put_request(self, state: _Request) -> None:
        self.put(state)
        data, kept = datamodule_of(self._trainer), state.get("data")
        if data is not None and kept is not None:
            data.load_state_dict(plain_copy(kept))

    def ids(self) -> set[int]:
        """Ids of the script's own generators."""
        return {id(generator) for _, generator in self._own.now()}
