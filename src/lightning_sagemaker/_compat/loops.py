# SPDX-License-Identifier: Apache-2.0
"""Lightning's training loops from within: events without a callback hook, a run's position between them, and resuming there.

Lightning restarts loops by guesses about where a checkpoint was made. Some things are then done twice, others never:
the scheduler that follows a validation, a validation, the end of an epoch. Here a checkpoint says its :class:`Phase`,
and the loops continue as usual, through the same methods that they call themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeVar

from lightning_sagemaker._compat.guard import TakenOver, require
from lightning_sagemaker._compat.trainer import counts

if TYPE_CHECKING:
    from lightning_sagemaker._compat.reloads import Requests
    from lightning_sagemaker._types import CombinedLoader, DataFetcher, Trainer


T = TypeVar("T")

EVENTS = "_lightning_sagemaker_events"
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


class _HasLoaders(Protocol):
    """A loop, once its loaders have been requested."""

    _combined_loader: CombinedLoader | None


class Phase(str, Enum):
    """Where in a fit a checkpoint was made."""

    STEP = "step"
    """After a batch and all that follows it."""
    BATCH_END = "batch_end"
    """In the hooks of a batch's end: a validation may be due."""
    VALIDATING = "validating"
    """In a validation, which is done again."""
    VALIDATED = "validated"
    """In the hooks of a validation's end."""
    EPOCH_END = "epoch_end"
    """In the hooks of an epoch's end."""
    BETWEEN = "between"
    """Before an epoch, or after the last."""
    AMID = "amid"
    """Within a batch, as after an exception: the batch is done again, with other random numbers."""


class LoopEvents:
    """Moments of a fit, and lists of what to call then; see :func:`events_of`.

    Attributes:
        checkpoint_is_loaded: After the module and the callbacks have loaded a checkpoint, if there is one.
        optimizers_are_loaded: After the optimizers have.
        loaders_are_there: After loaders were requested: "training"'s or "validation"'s.
        loaders_made: Called with the ``CombinedLoader`` of training before it is iterated.
        validation_loaders_made: Called with that of validation.
        epoch_is_next: Before anything of an epoch, the first one's included.
        epoch_begins: Before the iterator of an epoch is made.
        validation_begins: Before anything of a validation within a fit.
        validation_steps: Before each of its batches' steps.
        validation_ends: After all of it.
        weights_are_next: After the hooks before an optimizer step, and the clipping of gradients.
        module_is_done: After the module's hook of a batch's end, which is called after the callbacks'.
        batch_hooks_are_over: After the hooks of a batch's end, before a validation.
        batch_is_over: After a batch and all that follows it.
        goes_on: If set, runs the fit in the place of ``fit_loop.run``, which it is given.
        evaluates: If set, each batch of a validation, and its hooks, are within it.
        ends_evaluation: If set, the hooks after a validation's batches are within it, before what they log is reduced.
        requests: What is known of the requests for loaders.
        is_ending: Whether what follows a batch is being done.
        validated: Whether the validation in it is over.
        is_trial: Whether the loops are run within a hook, by one of Lightning's finders: its steps do not count as
            training, so nothing but loaders is told of.

    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.checkpoint_is_loaded: list[Callable[[], None]] = []
        self.optimizers_are_loaded: list[Callable[[], None]] = []
        self.loaders_are_there: list[Callable[[str], None]] = []
        self.loaders_made: list[Callable[[CombinedLoader], None]] = []
        self.validation_loaders_made: list[Callable[[CombinedLoader], None]] = []
        self.epoch_is_next: list[Callable[[], None]] = []
        self.epoch_begins: list[Callable[[], None]] = []
        self.validation_begins: list[Callable[[], None]] = []
        self.validation_steps: list[Callable[[], None]] = []
        self.validation_ends: list[Callable[[], None]] = []
        self.weights_are_next: list[Callable[[], None]] = []
        self.module_is_done: list[Callable[[], None]] = []
        self.batch_hooks_are_over: list[Callable[[], None]] = []
        self.batch_is_over: list[Callable[[], None]] = []
        self.goes_on: Callable[[Callable[[], None]], None] | None = None
        self.evaluates: Callable[[], AbstractContextManager[None]] | None = None
        self.ends_evaluation: Callable[[], AbstractContextManager[None]] | None = None
        self.requests: Requests | None = None
        self.is_ending = self.validated = self.is_trial = False
        self._users = 0
        self._taken = TakenOver()

    def install(self) -> None:
        """Take the loops' methods over."""
        fit, epoch = self.trainer.fit_loop, self.trainer.fit_loop.epoch_loop
        require(type(fit), *_FIT)
        require(type(epoch), *_EPOCH)
        take = self._taken.take
        connector = self.trainer._checkpoint_connector
        take(connector, "restore_callbacks", lambda load: self._then(load, self.checkpoint_is_loaded))
        take(connector, "restore_training_state", lambda load: self._then(load, self.optimizers_are_loaded))
        take(fit, "run", self._run)
        take(fit, "setup_data", lambda setup: self._requested(setup, fit, "training"))
        take(fit, "on_advance_start", self._epoch_is_next)
        take(fit, "_load_combined_loader_states", self._loaders_made)
        take(epoch, "on_run_start", self._epoch_begins)
        require(type(self.trainer.precision_plugin), "_after_closure")
        take(self.trainer.precision_plugin, "_after_closure", self._weights_are_next)
        take(self.trainer._logger_connector, "on_batch_end", self._module_is_done)
        take(epoch, "on_advance_end", self._ends)
        take(epoch.val_loop, "run", self._validates)
        take(epoch.val_loop, "setup_data", self._validation_loaders_made)
        take(epoch.val_loop, "setup_data", lambda setup: self._requested(setup, epoch.val_loop, "validation"))
        require(type(epoch.val_loop), "_evaluation_step", "_on_evaluation_epoch_end")
        take(epoch.val_loop, "_evaluation_step", lambda step: self._within(self._steps(step), lambda: self.evaluates))
        take(
            epoch.val_loop, "_on_evaluation_epoch_end", lambda hooks: self._within(hooks, lambda: self.ends_evaluation)
        )

    def release(self) -> None:
        """One who listened is done; the last gives the methods back."""
        self._users -= 1
        if self._users <= 0:
            self._taken.give_back()
            vars(self.trainer).pop(EVENTS, None)

    def _then(self, load: Callable[[], None], listeners: list[Callable[[], None]]) -> Callable[[], None]:
        def loaded() -> None:
            load()
            for listener in listeners:
                listener()

        return loaded

    def _run(self, run: Callable[[], None]) -> Callable[[], None]:
        def running() -> None:
            self.is_trial = self.trainer.lightning_module._current_fx_name is not None
            try:
                run() if self.goes_on is None else self.goes_on(run)
            finally:
                self.is_trial = False

        return running

    def _epoch_is_next(self, start: Callable[[], None]) -> Callable[[], None]:
        def starts() -> None:
            if not self.trainer.fit_loop.restarted_mid_epoch and not self.is_trial:
                for listener in self.epoch_is_next:
                    listener()
            start()

        return starts

    def _loaders_made(self, load_states: Callable[[], None]) -> Callable[[], None]:
        def made() -> None:
            loaders = self.trainer.fit_loop._combined_loader
            assert loaders is not None
            for listener in self.loaders_made:
                listener(loaders)
            load_states()
            for begins in self.epoch_begins:  # the first epoch's iterator is made next
                begins()

        return made

    def _requested(self, setup: Callable[[], None], loop: _HasLoaders, whose: str) -> Callable[[], None]:
        def requested() -> None:
            before = loop._combined_loader
            with nullcontext() if self.requests is None else self.requests.around(whose, is_first=before is None):
                setup()
            for are_there in self.loaders_are_there if loop._combined_loader is not before else []:
                are_there(whose)

        return requested

    def _validation_loaders_made(self, setup: Callable[[], None]) -> Callable[[], None]:
        def made() -> None:
            loop = self.trainer.fit_loop.epoch_loop.val_loop
            before = loop._combined_loader
            setup()
            if loop._combined_loader is not None and loop._combined_loader is not before:
                for listener in self.validation_loaders_made:
                    listener(loop._combined_loader)

        return made

    def _epoch_begins(self, start: Callable[[DataFetcher], None]) -> Callable[[DataFetcher], None]:
        def begins(fetcher: DataFetcher) -> None:
            if self.trainer.current_epoch > 0:
                for listener in self.epoch_begins:
                    listener()
            start(fetcher)

        return begins

    def _validates(self, run: Callable[[], T]) -> Callable[[], T]:
        def validates() -> T:
            counts = not self.trainer.sanity_checking and not self.is_trial
            for listener in self.validation_begins if counts else []:
                listener()
            result = run()
            for listener in self.validation_ends if counts else []:
                listener()
            return result

        return validates

    def _steps(self, step: Callable[..., None]) -> Callable[..., None]:
        def steps(*arguments: object) -> None:
            counts = not self.trainer.sanity_checking and not self.is_trial
            for listener in self.validation_steps if counts else []:
                listener()
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

    def _weights_are_next(self, hooks: Callable[..., None]) -> Callable[..., None]:
        def are_next(*arguments: object) -> None:
            hooks(*arguments)
            for listener in [] if self.is_trial else self.weights_are_next:
                listener()

        return are_next

    def _module_is_done(self, end: Callable[[], None]) -> Callable[[], None]:
        def is_done() -> None:
            if self.trainer.training and not self.is_trial:
                for listener in self.module_is_done:
                    listener()
            end()

        return is_done

    def _ends(self, end: Callable[[DataFetcher], None]) -> Callable[[DataFetcher], None]:
        def ends(fetcher: DataFetcher) -> None:
            self.is_ending, self.validated = True, False
            for listener in [] if self.is_trial else self.batch_hooks_are_over:
                listener()
            end(fetcher)
            self.is_ending = False
            for listener in [] if self.is_trial else self.batch_is_over:
                listener()

        return ends


def tells_of_weights(trainer: Trainer) -> bool:
    """Whether the Trainer's precision plugin calls the hooks before an optimizer step as Lightning's own do."""
    return type(trainer.precision_plugin).optimizer_step.__module__.startswith(_PACKAGES)


def events_of(trainer: Trainer) -> LoopEvents:
    """The events of a Trainer's present fit; each user calls :meth:`LoopEvents.release` in the end."""
    events: LoopEvents | None = vars(trainer).get(EVENTS)
    if events is None:
        events = vars(trainer)[EVENTS] = LoopEvents(trainer)
        events.install()
    events._users += 1
    return events


def phase_of(trainer: Trainer, events: LoopEvents) -> Phase:
    """Where a fit is now."""
    epoch, batch = (
        counts(trainer.fit_loop.epoch_progress.current),
        counts(trainer.fit_loop.epoch_loop.batch_progress.current),
    )
    if epoch.processed == epoch.ready:
        return Phase.EPOCH_END if epoch.completed < epoch.processed else Phase.BETWEEN
    if epoch.started < epoch.ready:
        return Phase.BETWEEN
    if events.is_ending:
        return Phase.VALIDATED if events.validated else Phase.VALIDATING
    if batch.completed == batch.processed == batch.ready:
        return Phase.STEP
    return Phase.BATCH_END if batch.processed == batch.ready else Phase.AMID
