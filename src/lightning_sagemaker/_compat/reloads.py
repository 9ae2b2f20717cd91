# SPDX-License-Identifier: Apache-2.0
"""``reload_dataloaders_every_n_epochs`` in a resumed run: loaders are requested as in the epoch in which the run last did.

Lightning requests them in the epoch in which it resumes, and counts from there. A script may draw random numbers for them,
as those of a subset, so they are requested with the numbers of then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, TypedDict

from typing_extensions import NotRequired

from lightning_sagemaker._compat.guard import require
from lightning_sagemaker._compat.loops import EVENTS
from lightning_sagemaker._compat.trainer import counts

if TYPE_CHECKING:
    from lightning_sagemaker._compat.loops import LoopEvents
    from lightning_sagemaker._types import Trainer


class Reloads(TypedDict):
    """Epochs in which the loaders were last requested; -inf: never."""

    training: float
    validation: float
    has_validation: NotRequired[bool]
    """Whether the loop has validation loaders, which a sanity check also requests."""
    random: NotRequired[dict[str, object]]
    """States of the random number generators then, for training and for validation."""


class Requests:
    """Remembers the states of random number generators at the last requests for loaders.

    Args:
        trainer: The Trainer of the fit.
        events: Events of the fit.
        take: Returns the states.
        put: Restores them.

    Attributes:
        random: Those of the last requests.
        wanted: In a resumed run, those with which it requests loaders once more.

    """

    def __init__(
        self, trainer: Trainer, events: LoopEvents, take: Callable[[], object], put: Callable[[object], None]
    ) -> None:
        self._trainer, self._take, self._put = trainer, take, put
        self._next: object = None
        self.random: dict[str, object] = {}
        self.wanted: dict[str, object] = {}
        events.requests = self
        events.after_loaders_request.append(self._keep)

    def _keep(self, whose: str) -> None:
        self.random = {**self.random, whose: self._next}

    @contextmanager
    def around(self, whose: str, is_first: bool) -> Iterator[None]:
        """What may be a request, the process's first or another."""
        now = self._next = self._take()
        wanted = self.wanted.pop(whose, None) if is_first else None
        if wanted is None:
            yield
            return
        self._next = wanted
        self._put(wanted)
        yield
        self._put(now)

    @contextmanager
    def of_then(self, whose: str) -> Iterator[None]:
        """Draws are those of the last request; the next ones are again what they would have been."""
        if whose not in self.random:
            yield
            return
        now = self._take()
        self._put(self.random[whose])
        try:
            yield
        finally:
            self._put(now)


def _requests(trainer: Trainer) -> Requests | None:
    events: LoopEvents | None = vars(trainer).get(EVENTS)
    return None if events is None else events.requests


def reloads_of(trainer: Trainer) -> Reloads:
    """Those of a fit."""
    fit = trainer.fit_loop
    require(fit, "_last_train_dl_reload_epoch")
    require(fit.epoch_loop.val_loop, "_last_val_dl_reload_epoch")
    loop, requests = fit.epoch_loop.val_loop, _requests(trainer)
    return {
        "training": fit._last_train_dl_reload_epoch,
        "validation": loop._last_val_dl_reload_epoch,
        "has_validation": loop._combined_loader is not None,
        "random": {} if requests is None else requests.random,
    }


def set_reloads(trainer: Trainer, reloads: Reloads) -> None:
    """Have the loaders requested again when it is time after these epochs."""
    trainer.fit_loop._last_train_dl_reload_epoch = reloads["training"]
    trainer.fit_loop.epoch_loop.val_loop._last_val_dl_reload_epoch = reloads["validation"]
    requests = _requests(trainer)
    if requests is not None:
        requests.random = reloads.get("random", {})


def reload_as(trainer: Trainer, reloads: Reloads | None) -> None:
    """Request the loaders as in the epochs in which a run had last done so, if it does so more than once.

    Otherwise they are still to be requested: with the random numbers of then.

    Args:
        trainer: The one of the fit, whose progress has been loaded. Collective over its strategy's ranks.
        reloads: What the resumed run had; None, from a checkpoint of an older version, does nothing.

    """
    requests = _requests(trainer)
    if reloads is not None and requests is not None and not _reloads(trainer):
        requests.wanted = {**reloads.get("random", {})}
        requests.random = requests.wanted | requests.random  # for a checkpoint before they are
    _reload_as(trainer, reloads)


def _reloads(trainer: Trainer) -> bool:
    return bool(trainer.reload_dataloaders_every_n_epochs)  # type: ignore[attr-defined]


def _reload_as(trainer: Trainer, reloads: Reloads | None) -> None:
    if reloads is None or not _reloads(trainer):
        return
    set_reloads(trainer, {**reloads, "training": -math.inf, "validation": -math.inf})
    if math.isfinite(reloads["training"]):
        with _in_epoch(trainer, int(reloads["training"])), _random_of_then(trainer, "training"):
            trainer.fit_loop.setup_data()
    if math.isfinite(reloads["validation"]):
        _request_validation(trainer, int(reloads["validation"]))
    set_reloads(trainer, reloads)


def request_as_others(trainer: Trainer, reloads: Reloads) -> None:
    """Request what the other ranks of a fit have requested before this one joined it.

    Args:
        trainer: The one of the fit, whose progress has been loaded.
        reloads: Those of another rank. One that has validation loaders will not wait for this rank to request them.

    """
    with without_collectives(trainer):
        _reload_as(trainer, reloads)
        if reloads.get("has_validation") and trainer.fit_loop.epoch_loop.val_loop._combined_loader is None:
            _request_validation(trainer, 0)  # as a sanity check does
            set_reloads(trainer, reloads)


def _request_validation(trainer: Trainer, epoch: int) -> None:
    with _in_epoch(trainer, epoch), _random_of_then(trainer, "validation"):
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.setup_data()
        trainer.training = True


def _random_of_then(trainer: Trainer, whose: str) -> AbstractContextManager[None]:
    requests = _requests(trainer)
    return nullcontext() if requests is None else requests.of_then(whose)


@contextmanager
def _in_epoch(trainer: Trainer, epoch: int) -> Iterator[None]:
    progress = counts(trainer.fit_loop.epoch_progress.current)
    now, progress.completed = progress.completed, epoch
    try:
        yield
    finally:
        progress.completed = now


@contextmanager
def without_collectives(trainer: Trainer) -> Iterator[None]:
    """What one rank does alone: others have agreed on the lengths of the loaders before."""
    own = vars(trainer.strategy)
    own.update(reduce=lambda tensor, *_, **__: tensor, barrier=lambda *_, **__: None)
    try:
        yield
    finally:
        del own["reduce"], own["barrier"]
