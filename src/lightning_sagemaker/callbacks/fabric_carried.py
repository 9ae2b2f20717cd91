# SPDX-License-Identifier: Apache-2.0
"""Loaders from which the body of a custom loop takes batches itself, by ``next`` or ``zip``: they go on where they were.

An iterator counts if the body takes a batch of one that was made before this pass through it: any other is made again
when the pass is repeated. From then on the loader's later iterators count too, as those that begin where one has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lightning_sagemaker._compat.fabric import inner_loader, iterations, listed_loaders, observe, set_iterations
from lightning_sagemaker._lightning import rank_zero_warn
from lightning_sagemaker.data.epoch_end import pass_end
from lightning_sagemaker.data.tracked import release, watch

if TYPE_CHECKING:
    from lightning_sagemaker.callbacks.fabric_entries import CarriedEntry
    from lightning_sagemaker.data.position import Watch


class _Made(NamedTuple):
    """Where an iterator was made, and whether as the first of its loader since the loop began."""

    place: int | None
    is_first: bool


@dataclass(eq=False)
class _Begun:
    """An iterator of which a batch was taken."""

    watch: Watch


class CarriedLoaders:
    """Those of one loop, by their place among the loaders that Fabric had set up when it began.

    Args:
        place: Returns the number of the batch whose pass is running; None outside of the body.

    """

    def __init__(self, place: Callable[[], int | None]) -> None:
        self._place = place
        self._loaders: dict[int, object] = {}
        self._made: set[int] = set()
        self._wanted: dict[int, CarriedEntry] = {}
        self._carried: set[int] = set()
        self._begun: dict[int, _Begun] = {}

    def start(self, entry: Mapping[int, CarriedEntry]) -> None:
        """The loop begins; ``entry`` is this rank's of the checkpoint to resume from."""
        self._loaders = listed_loaders()
        self._wanted = {number: one for number, one in entry.items() if number in self._loaders}
        self._carried = set(self._wanted)
        observe(self)

    def makes(self, loader: object) -> _Made:
        """As of :class:`~lightning_sagemaker._compat.fabric.Observer`."""
        number = self._number(loader)
        is_first = number not in self._made
        self._made.add(number)
        return _Made(self._place(), is_first)

    def begins(self, loader: object, made: object) -> Callable[[], None]:
        """As of :class:`~lightning_sagemaker._compat.fabric.Observer`."""
        made = made if isinstance(made, _Made) else _Made(None, True)
        number, place = self._number(loader), self._place()
        if number < 0 or place is None or (made.place == place and number not in self._carried):
            return lambda: None
        self._carried.add(number)
        watched = watch(inner_loader(loader), rank_zero_warn)[1]
        wanted = self._wanted.pop(number, None)
        if wanted is not None and made.is_first:
            set_iterations(loader, wanted["calls"] - 1)
            watched.seek(wanted["position"])
        else:
            watched.begin_epoch()
            if wanted is not None:  # the resumed epoch had no batch left, so nobody has taken one of its iterator
                set_iterations(loader, wanted["calls"])
                pass_end(watched, wanted["position"])
        own = self._begun[number] = _Begun(watched)
        return lambda: self._end_one(number, own)

    def _number(self, loader: object) -> int:
        return next((number for number, one in self._loaders.items() if one is loader), -1)

    def _end_one(self, number: int, own: _Begun) -> None:
        if self._begun.get(number) is own:  # there may be another one by now
            del self._begun[number]

    def entry(self) -> dict[int, CarriedEntry]:
        """Their positions, for a checkpoint."""
        now: dict[int, CarriedEntry] = {
            number: {"calls": iterations(self._loaders[number]), "position": begun.watch.here()}
            for number, begun in sorted(self._begun.items())
        }
        return self._wanted | now

    def end(self) -> None:
        """The loop ends."""
        observe(None)
        for number in self._carried:
            release(inner_loader(self._loaders[number]))
        self._loaders, self._begun, self._wanted = {}, {}, {}
        self._made, self._carried = set(), set()


class NotCarried:
    """Where nothing is carried, as with recovery from the loss of a rank: warns once of such loaders.

    Args:
        place: As of :class:`CarriedLoaders`.

    """

    def __init__(self, place: Callable[[], int | None]) -> None:
        self._place, self._has_warned = place, False

    def makes(self, loader: object) -> int | None:
        """As of :class:`~lightning_sagemaker._compat.fabric.Observer`."""
        return self._place()

    def begins(self, loader: object, made: object) -> Callable[[], None]:
        """As of :class:`~lightning_sagemaker._compat.fabric.Observer`."""
        place = self._place()
        if place is not None and made != place and not self._has_warned:
            self._has_warned = True
            rank_zero_warn(
                "The loop's body takes batches of a loader itself (by next or zip). Under supervise its position is in no"
                " checkpoint, and a batch that is repeated as a rank is lost gets the loader's next one: some of its samples"
                " are seen twice and others never. HINT: give loop.batches one loader, over a data set of both."
            )
        return lambda: None
