# SPDX-License-Identifier: Apache-2.0
"""Events of Lightning's training loops for which there is no callback hook."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from lightning_sagemaker._compat.guard import TakenOver, require
from lightning_sagemaker._compat.loader_requests import requesting
from lightning_sagemaker._compat.seen_batches import loaders_are_made

if TYPE_CHECKING:
    from lightning_sagemaker._compat.reloads import Requests
    from lightning_sagemaker._types import CombinedLoader, DataFetcher, Trainer


T = TypeVar("T")

_EVENTS = "_lightning_sagemaker_events"
_PACKAGES = ("lightning.", "pytorch_lightning.")
_FIT = [
    "run",
    "setup_data",
    "on_run_start",
    "on_advance_start",
    "on_advance_end",
    "on_iteration_done",
    "on_run_end",
    "done",
    "skip",
    "_load_combined_loader_states",
]
_EPOCH = [
    "run",
    "advance",
    "on_advance_end",
    "on_run_start",
    "on_iteration_done",
    "done",
    "update_lr_schedulers",
    "_num_ready_batches_reached",
    "_on_before_fetch",
    "_on_after_fetch",
]


def _notify(listeners: Iterable[Callable[..., None]], *arguments: object) -> None:
    for listener in listeners:
        listener(*arguments)


class LoopEvents:
    """Events of a fit, each a list of listeners; see :func:`events_of`.

    The listeners of an event are called in the order of its list. Each appends itself when its callback starts the fit: in
    ``setup`` :class:`.FitState` and the callbacks that stop the fit or copy its state, in the Trainer's order of callbacks,
    in ``on_fit_start`` recovery in the job. A listener of ``after_batch`` or ``after_module_batch_end`` may save, wait for
    other ranks or leave the loops. Listeners that save the state of the step therefore precede all others, by ``insert(0)``:
    recovery in the job, which inserts itself last and so comes first, then :class:`.FitState`.

    Attributes:
        before_checkpoint_load: Before the module loads a checkpoint, if there is one.
        after_checkpoint_load: After the module and the callbacks have loaded a checkpoint, if there is one.
        after_optimizers_load: After the optimizers have loaded a checkpoint, if there is one.
        after_loaders_request: After loaders were requested; called with "training" or "validation".
        after_training_loaders: Called with the ``CombinedLoader`` of training before it is iterated.
        after_validation_loaders: Called with the ``CombinedLoader`` of validation before it is iterated.
        before_epoch: Before an epoch starts, also before the first one.
        before_epoch_iterator: Before the iterator of an epoch is created.
        before_validation: Before a validation within a fit starts.
        before_validation_step: Before each step of such a validation.
        after_validation: After such a validation and its hooks.
        before_weight_update: After the hooks before an optimizer step, and the clipping of gradients.
        after_module_batch_end: After the module's hook of a batch's end, which follows the callbacks' hooks.
        after_batch_hooks: After the hooks of a batch's end, before a validation.
        after_batch: After a batch and all that follows it.
        run_override: Not a list: if set, is called with ``fit_loop.run`` in its place.
        validation_step_context: Not a list: if set, a context for each batch of a validation, and its hooks.
        validation_end_context: Not a list: if set, a context for the hooks after a validation's batches, before logged
            values are reduced.
        requests: Record of the requests for loaders.
        is_ending: Whether the code after a batch is running.
        schedules_due: Intervals whose schedulers are yet to be stepped for a batch that an exception has ended.
        validated: Whether the validation in that code is over.
        loads_loaders: Whether Lightning loads the states of loaders that have one, which are those of rank zero.
        is_trial: Whether the loops are run within a hook, by one of Lightning's finders: its steps do not count as
            training, so only listeners for loaders are called.

    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.before_checkpoint_load: list[Callable[[], None]] = []
        self.after_checkpoint_load: list[Callable[[], None]] = []
        self.after_optimizers_load: list[Callable[[], None]] = []
        self.after_loaders_request: list[Callable[[str], None]] = []
        self.after_training_loaders: list[Callable[[CombinedLoader], None]] = []
        self.after_validation_loaders: list[Callable[[CombinedLoader], None]] = []
        self.before_epoch: list[Callable[[], None]] = []
        self.before_epoch_iterator: list[Callable[[], None]] = []
        self.before_validation: list[Callable[[], None]] = []
        self.before_validation_step: list[Callable[[], None]] = []
        self.after_validation: list[Callable[[], None]] = []
        self.before_weight_update: list[Callable[[], None]] = []
        self.after_module_batch_end: list[Callable[[], None]] = []
        self.after_batch_hooks: list[Callable[[], None]] = []
        self.after_batch: list[Callable[[], None]] = []
        self.run_override: Callable[[Callable[[], None]], None] | None = None
        self.validation_step_context: Callable[[], AbstractContextManager[None]] | None = None
        self.validation_end_context: Callable[[], AbstractContextManager[None]] | None = None
        self.requests: Requests | None = None
        self.schedules_due: list[str] = []
        self.is_ending = self.validated = self.is_trial = False
        self.loads_loaders = True
        self._users = 0
        self._taken = TakenOver()

    def install(self) -> None:
        """Replace the loops' methods."""
        fit, epoch = self.trainer.fit_loop, self.trainer.fit_loop.epoch_loop
        require(type(fit), *_FIT)
        require(type(epoch), *_EPOCH)
        take = self._taken.take
        connector = self.trainer._checkpoint_connector
        take(connector, "restore_model", self._before_load)
        take(connector, "restore_callbacks", lambda load: self._after_load(load, self.after_checkpoint_load))
        take(connector, "restore_training_state", lambda load: self._after_load(load, self.after_optimizers_load))
        take(fit, "run", self._run)
        take(fit, "setup_data", lambda setup: requesting(self, setup, fit, "training"))
        take(fit, "on_advance_start", self._on_epoch)
        take(fit, "_load_combined_loader_states", self._on_training_loaders)
        take(epoch, "on_run_start", self._on_epoch_iterator)
        require(type(self.trainer.precision_plugin), "_after_closure")
        take(self.trainer.precision_plugin, "_after_closure", self._on_weight_update)
        take(self.trainer._logger_connector, "on_batch_end", self._on_module_batch_end)
        take(epoch, "on_advance_end", self._on_batch_end)
        take(epoch.val_loop, "run", self._on_validation)
        take(epoch.val_loop, "setup_data", self._on_validation_loaders)
        take(epoch.val_loop, "setup_data", lambda setup: requesting(self, setup, epoch.val_loop, "validation"))
        require(type(epoch.val_loop), "_evaluation_step", "_on_evaluation_epoch_end")
        step, end = (lambda: self.validation_step_context), (lambda: self.validation_end_context)
        take(epoch.val_loop, "_evaluation_step", lambda run: self._within(self._on_validation_step(run), step))
        take(epoch.val_loop, "_on_evaluation_epoch_end", lambda hooks: self._within(hooks, end))

    def release(self) -> None:
        """Release one user's claim; the last release restores the methods."""
        self._users -= 1
        if self._users <= 0:
            self._taken.restore()
            vars(self.trainer).pop(_EVENTS, None)

    def _before_load(self, load: Callable[[], None]) -> Callable[[], None]:
        def loading() -> None:
            _notify(self.before_checkpoint_load)
            load()

        return loading

    def _after_load(self, load: Callable[[], None], listeners: list[Callable[[], None]]) -> Callable[[], None]:
        def loaded() -> None:
            load()
            _notify(listeners)

        return loaded

    def _run(self, run: Callable[[], None]) -> Callable[[], None]:
        def running() -> None:
            self.is_trial = self.trainer.lightning_module._current_fx_name is not None
            try:
                run() if self.run_override is None else self.run_override(run)
            finally:
                self.is_trial = False

        return running

    def _on_epoch(self, start: Callable[[], None]) -> Callable[[], None]:
        def starts() -> None:
            if not self.trainer.fit_loop.restarted_mid_epoch and not self.is_trial:
                _notify(self.before_epoch)
            start()

        return starts

    def _on_training_loaders(self, load_states: Callable[[], None]) -> Callable[[], None]:
        def made() -> None:
            loaders = self.trainer.fit_loop._combined_loader
            assert loaders is not None
            _notify(self.after_training_loaders, loaders)
            if self.loads_loaders:
                load_states()
            _notify(self.before_epoch_iterator)  # the first epoch's iterator is created next

        return made

    def _on_validation_loaders(self, setup: Callable[[], None]) -> Callable[[], None]:
        def made() -> None:
            loop = self.trainer.fit_loop.epoch_loop.val_loop
            before = loop._combined_loader
            setup()
            if loop._combined_loader is not None and loop._combined_loader is not before:
                loaders_are_made(self.trainer)
                _notify(self.after_validation_loaders, loop._combined_loader)

        return made

    def _on_epoch_iterator(self, start: Callable[[DataFetcher], None]) -> Callable[[DataFetcher], None]:
        def begins(fetcher: DataFetcher) -> None:
            if self.trainer.current_epoch > 0:
                _notify(self.before_epoch_iterator)
            start(fetcher)

        return begins

    def _on_validation(self, run: Callable[[], T]) -> Callable[[], T]:
        def validates() -> T:
            counts = not self.trainer.sanity_checking and not self.is_trial
            _notify(self.before_validation if counts else [])
            result = run()
            _notify(self.after_validation if counts else [])
            return result

        return validates

    def _on_validation_step(self, step: Callable[..., None]) -> Callable[..., None]:
        def steps(*arguments: object) -> None:
            counts = not self.trainer.sanity_checking and not self.is_trial
            _notify(self.before_validation_step if counts else [])
            step(*arguments)

        return steps

    def _within(
        self, part: Callable[..., None], context: Callable[[], Callable[[], AbstractContextManager[None]] | None]
    ) -> Callable[..., None]:
        def evaluates(*arguments: object) -> None:
            within = None if self.trainer.sanity_checking or self.is_trial else context()
            with nullcontext() if within is None else within():
                part(*arguments)

        return evaluates

    def _on_weight_update(self, hooks: Callable[..., None]) -> Callable[..., None]:
        def are_next(*arguments: object) -> None:
            hooks(*arguments)
            _notify([] if self.is_trial else self.before_weight_update)

        return are_next

    def _on_module_batch_end(self, end: Callable[[], None]) -> Callable[[], None]:
        def is_done() -> None:
            if self.trainer.training and not self.is_trial:
                _notify(self.after_module_batch_end)
            end()
            if self.trainer.training:  # next are its counter and its row, for which a logger may fail
                self.is_ending, self.validated = True, False

        return is_done

    def _on_batch_end(self, end: Callable[[DataFetcher], None]) -> Callable[[DataFetcher], None]:
        def ends(fetcher: DataFetcher) -> None:
            self.is_ending, self.validated = True, False
            _notify([] if self.is_trial else self.after_batch_hooks)
            end(fetcher)
            self.is_ending = False
            _notify([] if self.is_trial else self.after_batch)

        return ends


def announces_weight_update(trainer: Trainer) -> bool:
    """Whether the Trainer's precision plugin calls the hooks before an optimizer step as Lightning's own do."""
    return type(trainer.precision_plugin).optimizer_step.__module__.startswith(_PACKAGES)


def events_of(trainer: Trainer) -> LoopEvents:
    """The events of a Trainer's current fit; each caller must call :meth:`LoopEvents.release` at its end."""
    events = current_events(trainer)
    if events is None:
        events = vars(trainer)[_EVENTS] = LoopEvents(trainer)
        events.install()
    events._users += 1
    return events


def current_events(trainer: Trainer) -> LoopEvents | None:
    """The same, if there are any."""
    found: LoopEvents | None = vars(trainer).get(_EVENTS)
    return found
