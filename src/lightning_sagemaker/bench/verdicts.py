# SPDX-License-Identifier: Apache-2.0
"""Conclusions from the figures, in sentences, only where they are significant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median_low

from lightning_sagemaker.bench import breakdown, stats
from lightning_sagemaker.bench.cases import Case
from lightning_sagemaker.bench.results import Measured, Results, best
from lightning_sagemaker.errors import LaunchError

_COMPARED = ("processor", "cores", "torch", "lightning", "transformers", "instance_type")
_MACHINE = ("processor", "cores", "instance_type")
_WORTH = 1.10
"""Minimum possible speedup that is reported."""
_WILD = 1.5
"""Ratio of an interval's ends above which a measurement is unusable."""
_LARGE = 0.10
"""Minimum share of a step for a part to be reported."""
_LIMITS = {"data": "waiting for data", "communication": "communication not overlapped with computation"}
_BUSY = 0.5
"""Load per core above which the figures are unreliable."""


@dataclass(frozen=True)
class Pair:
    """The same case in two results.

    Attributes:
        name: Name of the case.
        first: Samples per second of the first.
        second: Samples per second of the second.
        ratio: The second over the first.

    """

    name: str
    first: stats.Interval
    second: stats.Interval
    ratio: stats.Interval

    @property
    def verdict(self) -> str:
        """A sentence with its uncertainty."""
        found = self.ratio
        between = f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"
        if 1 in found:
            return f"no significant difference: B over A is {between}"
        return f"B is {'faster' if found.value > 1 else 'slower'}: B over A is {between}"


def compare(first: Results, second: Results) -> list[Pair]:
    """Pairs of cases with equal settings; if both results have one case only, these two.

    Raises:
        LaunchError: If nothing can be compared.

    """
    known = {one.case: one for one in first.cases}
    pairs = [(known[one.case], one) for one in second.cases if one.case in known]
    if not pairs and len(first.cases) == len(second.cases) == 1:
        pairs = [(first.cases[0], second.cases[0])]
    if not pairs:
        raise LaunchError(
            "no case of one has the same settings as a case of the other. HINT: measure both with the same options, or one"
            " case each with `bench throughput`."
        )
    return [_pair(_difference(a.case, b.case), a, b) for a, b in pairs]


def differences(first: Results, second: Results) -> list[str]:
    """Differences of machine, versions and settings, which may also explain a difference in speed."""
    found = [
        f"{name}: {first.environment.get(name)} in A, {second.environment.get(name)} in B"
        for name in _COMPARED
        if first.environment.get(name) != second.environment.get(name)
    ]
    if any(first.environment.get(name) != second.environment.get(name) for name in _MACHINE):
        found.append(
            "the machine: a difference may come from the machine, not the program. HINT: measure both on one machine"
        )
    for name in ("target", "samples", "threads"):
        a, b = getattr(first, name), getattr(second, name)
        found += [f"{name}: {a} in A, {b} in B"] if a != b else []
    return found


def verdict_lines(results: Results) -> list[str]:
    """Conclusions from a sweep, one per line."""
    found = [f"{one.case.name} is not steady: the speed of its second half differs from the first." for one in results.cases
             if not one.is_steady]  # fmt: skip
    found += [
        f"{one.case.name} was measured between {one.rate.low:.3g} and {one.rate.high:.3g} samples/s: too far apart to use."
        for one in results.cases
        if one.rate.high > _WILD * one.rate.low
    ]
    most = max(one.case.ranks for one in results.cases)
    cores = results.environment["cores"]
    if most > cores:
        found.append(
            f"{most} ranks shared {cores} CPU cores: the slowdown with the number of ranks says nothing about a cluster."
        )
    found += _breakdown_sentences(results.cases)
    load = results.environment.get("load_before") or 0.0
    if load > _BUSY * cores:
        found.append(f"The machine was busy before the first run (load {load:g} on {cores} cores): measure again.")
    if results.kind == "workers":
        found += workers(results.cases, cores)
    elif results.kind == "scaling":
        found += [_scaling(results, one) for one in results.cases if results.efficiency(one) is not None]
    elif len(results.cases) > 1:
        top, base = best(results.cases), results.cases[0]
        if top is not base:
            found.append(f"Fastest: {top.case.name}, {_times(_pair('', base, top).ratio)} {base.case.name}.")
    return found


def _breakdown_sentences(cases: Sequence[Measured]) -> list[str]:
    """Sentences about parts that take a large share of a step, and about stragglers."""
    found = []
    for one in cases:
        if not one.breakdown:
            continue
        mean = breakdown.mean(one.breakdown)
        for part, words in _LIMITS.items():
            if mean.share(part) > _LARGE:
                found.append(f"{one.case.name}: {mean.share(part):.0%} of a step is {words}.")
        own = [rank.traced_seconds - rank.seconds["communication"] for rank in one.breakdown]
        slowest, typical = max(own), median_low(own)
        if slowest - typical > _LARGE * mean.traced_seconds:
            rank = one.breakdown[own.index(slowest)].rank
            found.append(
                f"{one.case.name}: rank {rank} is a straggler, busy for {1e3 * (slowest - typical):.0f} ms per step more"
                " than the others, which wait for it."
            )
    return found


def workers(cases: Sequence[Measured], cores: int) -> list[str]:
    """The fewest loader processes that no other number beats significantly, the gain over 0, and the bottleneck."""
    ordered = sorted(cases, key=lambda one: one.case.num_workers or 0)
    top = best(ordered)
    enough = next(one for one in ordered if one is top or 1 in stats.ratio(top.windows, one.windows))
    number, none = enough.case.num_workers or 0, ordered[0]
    if none.case.num_workers:
        return [f"Best: --num_workers {number}. The gain over 0 needs 0 among the values."]
    if number == 0:
        sentence = "Best: --num_workers 0; no other tested number is significantly faster."
        most = max(stats.ratio(one.windows, none.windows).high for one in ordered)
        if most > _WORTH:
            much = f"a gain of {most - 1:.0%}" if most < _WILD else "that they are several times as fast"
            return [sentence, f"But this measurement does not exclude {much}: use more --rounds, on a quieter machine."]
        return [sentence, "Loading is not the bottleneck: the model's compute is."]
    gain = stats.ratio(enough.windows, none.windows)
    sentence = (
        f"Best: --num_workers {number}, {gain.value - 1:+.1%} over 0 ({gain.low - 1:+.1%} to {gain.high - 1:+.1%})."
    )
    largest = ordered[-1]
    if enough is largest and len(ordered) > 1:
        full = number * enough.case.ranks >= cores
        limit = f"the {cores} cores" if full else "still loading: try more workers"
        return [sentence, f"It is the largest number tested; the bottleneck is {limit}."]
    return [sentence, "More workers gain nothing: beyond that the model's compute is the bottleneck."]


def _scaling(results: Results, one: Measured) -> str:
    efficiency = results.efficiency(one) or 0.0
    return f"{one.case.name}: {efficiency:.1%} of perfect scaling."


def _times(found: stats.Interval) -> str:
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f}) times"


def _difference(first: Case, second: Case) -> str:
    a, b = asdict(first), asdict(second)
    changed = [f"{name} {a[name]} -> {b[name]}" for name in a if a[name] != b[name]]
    return first.name + (f" ({', '.join(changed)})" if changed else "")


def _pair(name: str, first: Measured, second: Measured) -> Pair:
    return Pair(name, first.rate, second.rate, stats.ratio(second.windows, first.windows))
