# SPDX-License-Identifier: Apache-2.0
"""Gradients of the shards of lost ranks (adopted shards), in a custom loop with Fabric.

They are computed in separate passes, before the pass of this rank's own shard, in which the gradients of all shards are
averaged. The loop's body may average several times, after each of its backward passes. What a shard adds between two
averages is stored separately, as the result of the first average is only known in the own pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

Gradients = dict[nn.Parameter, Tensor]


class AdoptedGradients:
    """Gradients of adopted shards in the current step."""

    def __init__(self) -> None:
        self._parts: dict[int, list[Gradients]] = {}
        """Shard -> its gradients up to the first average, then what it adds up to each further one."""
        self._begun: dict[int, Gradients] = {}
        """Shard -> gradients that were accumulated in earlier batches and not averaged yet."""
        self._base: Gradients | None = None
        """This rank's gradients before the first backward pass after an average: the mean over all shards."""
        self._averages, self._is_open = 0, False

    @contextmanager
    def own_pass(self) -> Iterator[None]:
        """Context for the pass of this rank's shard, after those of adopted shards."""
        self._averages, self._base = 0, None
        yield
        for shard, parts in self._parts.items():
            for rest in parts[self._averages :]:
                self._begun[shard] = _sum(self._base, rest)
        self._parts = {}

    @contextmanager
    def one_pass(self, shard: int, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
        """Context for the pass of an adopted shard, which does not change this rank's gradients."""
        own, self._is_open = _taken(parameters), False
        parts = self._parts[shard] = []
        # Averaged gradients are equal on all shards: this shard's are added to them, unless the body sets them to zero.
        begun = self._begun.pop(shard) if shard in self._begun else {one: own[one].clone() for one in own}
        _put(parameters, begun)
        try:
            yield
        finally:
            if not parts:
                parts.append(_taken(parameters))
            _put(parameters, own)

    @contextmanager
    def backward(self, shard: int, parameters: Sequence[nn.Parameter], averages: bool) -> Iterator[None]:
        """Context for a backward pass within the pass of an adopted shard.

        Args:
            shard: The adopted shard.
            parameters: Trained parameters.
            averages: Whether the gradients are averaged next.

        """
        parts = self._parts[shard]
        if parts:
            _put(parameters, parts.pop() if self._is_open else {})
        yield
        parts.append(_taken(parameters))  # the body cannot change them any more
        self._is_open = not averages

    def keep_base(self, parameters: Sequence[nn.Parameter]) -> None:
        """Save the averaged gradients before a backward pass of the own shard."""
        if self._parts and self._averages and self._base is None:
            self._base = {parameter: one.clone() for parameter, one in _gradients(parameters).items()}

    def add(self) -> None:
        """Add the gradients of adopted shards to this rank's, before an average."""
        for parts in self._parts.values():
            found = parts[self._averages] if self._averages < len(parts) else {}
            for parameter, gradient in _sum(self._base, found).items():
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        self._averages, self._base = self._averages + 1, None


def _sum(base: Gradients | None, added: Gradients) -> Gradients:
    if base is None:
        return added
    return {
        one: base[one] + added[one] if one in base and one in added else (base | added)[one] for one in base | added
    }


def _gradients(parameters: Sequence[nn.Parameter]) -> Gradients:
    return {parameter: parameter.grad for parameter in parameters if parameter.grad is not None}


def _taken(parameters: Sequence[nn.Parameter]) -> Gradients:
    """Take the gradients away from their parameters."""
    found = _gradients(parameters)
    _put(parameters, {})
    return found


def _put(parameters: Sequence[nn.Parameter], found: Gradients) -> None:
    for parameter in parameters:
        parameter.grad = found.get(parameter)
