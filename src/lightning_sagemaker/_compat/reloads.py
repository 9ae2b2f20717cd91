# SPDX-License-Identifier: Apache-2.0
"""``reload_dataloaders_every_n_epochs`` in a resumed run: loaders are requested as in the epoch in which the run last did.

Lightning requests them in the epoch in which it resumes, and counts from there. A script may use random numbers for them,
such as for a subset, so they are requested with the random states of the earlier request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, TypedDict

from typing_extensions import NotRequired

from lightning_sagemaker._compat.guard import require
from lightning_sagemaker._compat.loops import current_events
from lightning_sagemaker._compat.trainer import counts

if TYPE_CHECKING:
    from lightning_sagemaker._compat.loops import LoopEvents
    from lightning_sagemaker._types import Trainer


class Reloads(TypedDict):
    """Epochs in which the loaders were last requested; -inf for never."""

    training: float
    validation: float
    has_validation: NotRequired[bool]
    """Whether the loop has validation loaders, which a sanity check also requests."""
    random: NotRequired[dict[str, object]]
    """States of the random number generators at these requests, for training and for validation."""


class Requests:
    """Records the states of random number generators at the last requests for loaders.

    Args:
        trainer: The Trainer of the fit.
        events: Events of the fit.
        take: Returns the states.
        put: Restores them.

    Attributes:
        random: States at the last requests.
        wanted: States with which a resumed run requests its loaders again.
        epochs: The epochs in which it had requested them, as loaders may depend on it.

    """

    def __init__(
        self, trainer: Trainer, events: LoopEvents, take: Callable[[], object], put: Callable[[object], None]
    ) -> None:
        self._trainer, self._take, self._put = trainer, take, put
        self._next: object = None
        self.random: dict[str, object] = {}
        self.wanted: dict[str, object] = {}
        self.epochs: dict[str, float] = {}
        events.requests = self
        events.after_loaders_request.append(self._keep)

    def _keep(self, whose: str) -> None:
        self.random = {**self.random, whose: self._next}

    @contextmanager
    def around(self, whose: str, is_first: bool) -> Iterator[None]:
        """Context for code that may request loaders, as the process's first request or a later one."""
        now = self._next = self._take()
        wanted = self.wanted.pop(whose, None) if is_first else None
        if wanted is None:
            yield
            return
        self._next = wanted
        self._put(wanted)
        epoch = self.epochs.pop(whose, math.inf)
        with _in_epoch(self._trainer, int(epoch)) if math.isfinite(epoch) else nullcontext():
            yield
        self._put(now)

    @contextmanager
    def of_then(self, whose: str) -> Iterator[None]:
        """Context with the random states of the last request; the current states are restored afterwards."""
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
    events = current_events(trainer)
    return None if events is None else events.requests


def reloads_of(trainer: Trainer) -> Reloads:
    """The epochs of a fit's last requests."""
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
    """Make the loaders be requested again when due after these epochs."""
    trainer.fit_loop._last_train_dl_reload_epoch = reloads["training"]
    trainer.fit_loop.epoch_loop.val_loop._last_val_dl_reload_epoch = reloads["validation"]
    requests = _requests(trainer)
    if requests is not None:
        requests.random = reloads.get("random", {})


def reload_as(trainer: Trainer, reloads: Reloads | None) -> None:
    """Request the loaders as in the epochs of the resumed run's last requests, if it reloads them.

    Otherwise they are requested later, with the random states of these requests and in their epochs.

    Args:
        trainer: Trainer of the fit, whose progress has been loaded. Collective over its strategy's ranks.
        reloads: The resumed run's; None, from a checkpoint of an older version, does nothing.

    """
    requests = _requests(trainer)
    if reloads is not None and requests is not None and not _reloads(trainer):
        requests.wanted = {**reloads.get("random", {})}
        requests.epochs = {"training": reloads["training"], "validation": reloads["validation"]}
        requests.random = requests.wanted | requests.random  # for a checkpoint before the request
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
    """Request the loaders that the other ranks of a fit had requested before this rank joined.

    Args:
        trainer: Trainer of the fit, whose progress has been loaded.
        reloads: Another rank's. If it has validation loaders, it will not wait for this rank to request them.

    """
    with _without_collectives(trainer):
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
def _without_collectives(trainer: Trainer) -> Iterator[None]:
    """Context for a request on one rank only: the others have reduced the lengths of the loaders before."""
    own = vars(trainer.strategy)
    own.update(reduce=lambda tensor, *_, **__: tensor, barrier=lambda *_, **__: None)
    try:
        yield
    finally:
        del own["reduce"], own["barrier"]
