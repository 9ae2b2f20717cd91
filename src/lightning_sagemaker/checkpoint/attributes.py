# SPDX-License-Identifier: Apache-2.0
"""Plain attributes that a script's own classes change as they train: counters, lists of outputs, running averages.

No ``state_dict`` has them. Checkpoints hold each rank's values of the current epoch. With recovery in the job, the
remaining ranks restore those of the step that they return to, and a replacement receives those of the rank that sends the
training state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import nn
from torchmetrics import Metric

from lightning_sagemaker._compat.trainer import callbacks_of
from lightning_sagemaker._lightning import Callback, rank_zero_warn
from lightning_sagemaker.checkpoint.epoch_names import names_reset
from lightning_sagemaker.checkpoint.module_walk import Children
from lightning_sagemaker.checkpoint.own_states import OBJECTS, load_states, states_of
from lightning_sagemaker.checkpoint.plain_values import (
    EXACT,
    KEPT,
    Values,
    assign,
    copied,
    differs,
    filled,
    is_plain,
    is_sendable,
    numbers_of,
    plain,
    restored_value,
    sent,
)
from lightning_sagemaker.checkpoint.records import is_library, records_in
from lightning_sagemaker.checkpoint.stored_values import LARGEST_STORED, NotStored, is_large, loaded, stored
from lightning_sagemaker.checkpoint.unkept import Unkept

if TYPE_CHECKING:
    from lightning_sagemaker._types import Trainer

Held = list[tuple[object, Values, frozenset[str]]]
"""Objects, copies of their plain attributes, and the names of all their attributes."""


class PlainAttributes:
    """Copies and restores plain attributes of a Trainer's module, its submodules and its callbacks.

    They are numbers and text, tensors and arrays of up to 2^20 elements, and containers of up to 100,000 entries.
    Entries of a container stay the same objects; values of a dict are copied like attributes. Records, such as an
    ``AverageMeter``, are searched (:func:`~.records.records_in`). Other objects, metrics, and callbacks that
    have a ``state_dict`` are excluded.

    Args:
        trainer: The Trainer.
        children: Returns :func:`~.module_walk.named_modules` of its module.

    """

    def __init__(self, trainer: Trainer, children: Callable[[], Children]) -> None:
        self._trainer, self._children = trainer, children
        self._seen: Children | None = None
        self._owners: dict[str, object] = {}
        self._of_epoch: set[str] = set()
        self._begun: Held | None = None
        self._warned: set[str] = set()
        self._unkept = Unkept(trainer)

    def _of(self) -> dict[str, object]:
        """Name -> object that has the attributes."""
        children = self._children()
        if children is not self._seen:
            parts = {
                f"module.{name}".rstrip("."): child for name, child in children if not is_library(_own_class(child))
            }
            callbacks = enumerate(filter(_is_own, callbacks_of(self._trainer)))
            self._seen, self._owners = (
                children,
                {
                    **{name: part for name, part in parts.items() if not isinstance(part, Metric)},
                    **{f"callbacks.{number}.{type(one).__name__}": one for number, one in callbacks},
                },
            )
            self._of_epoch = set().union(*map(names_reset, {*map(type, self._owners.values())}))
        return self._owners

    def _all(self) -> Iterator[tuple[str, object]]:
        """As :meth:`_of`, with the current records."""
        for name, owner in self._of().items():
            yield name, owner
            for key, value in [*vars(owner).items()]:
                if key not in KEPT and type(value) not in EXACT:
                    yield from records_in(f"{name}.{key}", value, is_plain)

    def begin(self) -> None:
        """Record the values at the start of the fit; in a replacement, before it takes over a state."""
        if self._begun is None:
            self._begun = self.now()
            self._unkept.begin(self._of(), self._of_epoch)

    def now(self) -> Held:
        """Copies of the current values, for :meth:`put`."""
        return [
            (owner, {name: copied(value) for name, value in plain(owner)}, frozenset(vars(owner)))
            for _, owner in self._all()
        ]

    def put(self, held: Held) -> None:
        """Restore what :meth:`now` has returned; attributes that were set since are removed."""
        for owner, values, names in held:
            for name in [name for name, _ in plain(owner) if name not in names]:
                del vars(owner)[name]
            assign(owner, {name: restored_value(value) for name, value in values.items()})

    @contextmanager
    def of_another_rank(self, start: Held) -> Iterator[None]:
        """Context for a pass on another rank's batches, with the values of the step's start; restores this rank's values."""
        own = [(owner, numbers_of(dict(plain(owner)))) for _, owner in self._all()]
        for owner, values, _ in start:
            assign(owner, numbers_of(values))
        try:
            yield
        finally:
            for owner, values in own:
                assign(owner, values)

    def changed(self) -> dict[str, Values]:
        """Values that have changed since the start of the fit, by owner, for a replacement or a later job.

        Values that differ between ranks from the start, such as a rank's number, are not among them.
        """
        begun = self._begun_with()
        found = {
            name: {
                key: sent(value)
                for key, value in vars(owner).items()
                if key not in KEPT and is_sendable(value) and differs(begun.get(id(owner), {}).get(key), value)
            }
            for name, owner in self._all()
        }
        return {name: values for name, values in found.items() if values}

    def _begun_with(self) -> dict[int, Values]:
        return {id(owner): values for owner, values, _ in self._begun or []}

    def adopt(self, values: Mapping[str, Values]) -> None:
        """Take over the result of :meth:`changed` of another rank or of an earlier job."""
        owners = dict(self._all())
        for name in values.keys() & owners.keys():
            own = vars(owners[name])
            assign(owners[name], {key: filled(own.get(key), value) for key, value in values[name].items()})

    def stored(self) -> dict[str, Values]:
        """The current epoch's values that have changed, and objects' states, in a form that a checkpoint can hold.

        Other values are not stored: as in Lightning, a resumed script starts with those that it sets.
        """
        begun = self._begun_with()
        found: dict[str, Values] = {}
        for owner, one in self._all():
            is_epochs = not self._of_epoch.isdisjoint(owner.split("."))  # a record that is reset each epoch
            for name, value in [*vars(one).items()]:
                is_own = (is_epochs or name in self._of_epoch) and name not in KEPT
                if is_own and differs(begun.get(id(one), {}).get(name), value):
                    try:
                        found.setdefault(owner, {})[name] = _entry(value)
                    except NotStored as error:
                        if is_plain(value) and not [*records_in(name, value, is_plain)]:
                            self._report(f"{owner}.{name}", error)
        if objects := states_of(self._trainer, self._of(), self._report):
            found[OBJECTS] = objects
        self._unkept.look(self._of(), self._of_epoch)
        return found

    def _report(self, name: str, why: NotStored) -> None:
        if name not in self._warned:
            self._warned.add(name)
            rank_zero_warn(
                f"Checkpoints do not hold {name}, which {why}: a run that is resumed begins without it."
                " HINT: keep numbers, tensors, sums or a metric of torchmetrics."
            )

    def load(self, values: Mapping[str, Values]) -> None:
        """Take over the result of :meth:`stored` of an earlier job."""
        device = self._trainer.strategy.root_device
        self.adopt(
            {
                name: {key: loaded(value, device) for key, value in found.items()}
                for name, found in values.items()
                if name != OBJECTS
            }
        )
        load_states(self._trainer, self._of(), dict(values.get(OBJECTS, {})))


def _entry(value: object) -> object:
    if not is_sendable(value):
        raise NotStored("has more than 100,000 entries, or some of other classes than plain ones")
    entry = stored(value)
    if is_large(entry):
        raise NotStored(f"is larger than {LARGEST_STORED >> 20} MiB")
    return entry


def _is_own(callback: Callback) -> bool:
    """Whether a callback is the script's own and has no ``state_dict``."""
    inherited = [kind for kind in type(callback).__mro__ if kind is not Callback and kind is not object]
    return type(callback).state_dict is Callback.state_dict and not any(map(is_library, inherited))


def _own_class(module: nn.Module) -> type:
    """A module's original class, which FSDP2 replaces by a subclass."""
    kind = type(module)
    is_sharded = kind.__module__.startswith("torch.distributed.") and kind.__name__.startswith("FSDP")
    return kind.__bases__[-1] if is_sharded else kind
