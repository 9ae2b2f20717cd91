# SPDX-License-Identifier: Apache-2.0
"""Predicted speed, efficiency, hours and cost of each instance type and count, and the cheapest for a goal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lightning_sagemaker.bench.layouts import Judged, Layout, judge, layouts
from lightning_sagemaker.bench.runs import SPOT_SHARES, Policy, Run, run_time
from lightning_sagemaker.bench.scaling import REDUCES, Anchor, Cluster, carried_over, compute_seconds
from lightning_sagemaker.bench.tables import Constants, accelerator
from lightning_sagemaker.bench.workload import Workload
from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.planning.instances import INSTANCES, Instance, find_instance
from lightning_sagemaker.launch.planning.pricing import Prices

_LIMITED = 0.05
"""Minimum share of the step for a part to be reported as its limit."""


@dataclass(frozen=True)
class Offer:
    """A prediction for one cluster.

    Attributes:
        cluster: Instance type and hosts.
        judged: Layout, memory and step.
        efficiency: Throughput over hosts times that of one host; None if one host does not hold the model in this
            layout.
        error: Relative error that nine of ten comparable predictions did not exceed.
        is_extrapolated: Whether there are more hosts than in any published result that predictions were compared with.
        run: Hours; None if the number of samples is not known.
        price: US dollars an hour for all hosts, on demand; None if it is not known.

    """

    cluster: Cluster
    judged: Judged
    efficiency: float | None
    error: float
    is_extrapolated: bool
    run: Run | None
    price: float | None

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.judged.step.rate

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper bound of the samples per second, by ``error``."""
        return self.rate / (1 + self.error), self.rate * (1 + self.error)

    @property
    def cost(self) -> float | None:
        """US dollars on demand; None if hours or price are not known."""
        return None if self.run is None or self.price is None else self.run.hours * self.price

    @property
    def spot_cost(self) -> tuple[float, float] | None:
        """US dollars on spot instances: with few interruptions at a low price, and with many at a high price."""
        if self.run is None or self.price is None:
            return None
        few, _, many = self.run.spot_hours
        return few * self.price * SPOT_SHARES[0], many * self.price * SPOT_SHARES[1]

    @property
    def limit(self) -> str:
        """The largest part of a step other than compute, if it is large, else ``compute``."""
        step = self.judged.step
        parts = {"network": step.exposed, "loading": step.feeding, "stragglers": step.straggling}
        name = max(parts, key=lambda part: parts[part])
        return name if parts[name] > _LIMITED * step.seconds else "compute"


@dataclass(frozen=True)
class Question:
    """The inputs of a prediction, the same for each cluster.

    Attributes:
        workload: The workload.
        anchor: A measurement to start from; None without one.
        strategy: ``Trainer(strategy=...)``; None for data parallelism if the model fits, else the fastest.
        policy: When checkpoints are saved.
        prices: On-demand prices in one region.
        constants: Fitted constants of the scaling model.

    """

    workload: Workload
    anchor: Anchor | None
    strategy: str | None
    policy: Policy
    prices: Prices
    constants: Constants


def candidates(names: Sequence[str], prices: Prices) -> list[Instance]:
    """The instance types of these names; without names, of each family the cheapest and the one with the most GPUs.

    Args:
        names: Instance types.
        prices: On-demand prices; without ``names``, types without a price or known peaks are left out.

    Raises:
        LaunchError: If a name is not an instance type.

    """
    if names:
        return [find_instance(name) for name in names]
    families: dict[str, list[Instance]] = {}
    for name, one in sorted(INSTANCES.items()):
        if accelerator(one) is not None and name in prices.usd_per_hour:
            families.setdefault(name.rpartition(".")[0], []).append(one)
    chosen = []
    for family in families.values():
        cheap = min(family, key=lambda one: prices.usd_per_hour[one.name])
        large = max(family, key=lambda one: (one.gpus, -prices.usd_per_hour[one.name]))
        chosen += [cheap] if cheap is large else [cheap, large]
    return chosen


def micro_batch_seconds(question: Question, instance: Instance) -> float:
    """Seconds of a micro-batch's compute: from the measurement, else from operations over peaks."""
    if question.anchor is None:
        return compute_seconds(question.workload, instance, question.constants)
    return carried_over(question.anchor, question.workload, instance, question.constants)


def relative_error(question: Question, cluster: Cluster, strategy: str) -> float:
    """Relative error that nine of ten comparable predictions did not exceed.

    The smaller error holds for data parallelism predicted from a measurement on the same instance type, for types and
    host counts of published results, or for as many hosts as were measured.
    """
    anchor, constants = question.anchor, question.constants
    if anchor is None or cluster.instance.name != anchor.cluster.instance.name or strategy not in REDUCES:
        return constants.unanchored_error
    known = cluster.instance.name in constants.validated and cluster.hosts <= constants.largest_hosts
    return constants.anchored_error if known or cluster.hosts == anchor.cluster.hosts else constants.unanchored_error


def all_layouts(question: Question, cluster: Cluster) -> list[Judged]:
    """Every layout of the requested strategies: those that fit first, the fastest first.

    Raises:
        LaunchError: If the strategy has no layout on this cluster.

    """
    seconds = micro_batch_seconds(question, cluster.instance)
    found = [
        judge(question.workload, cluster, layout, seconds, question.constants)
        for layout in layouts(question.workload, cluster, question.strategy)
    ]
    if not found:
        where = f"{cluster.hosts} x {cluster.instance.name}"
        raise LaunchError(
            f"{question.strategy!r} cannot run on {where}. HINT: SMDDP needs ml.p3dn, ml.p4d or ml.p4de, smp two ranks."
        )
    return sorted(found, key=lambda one: (not one.fits, -one.step.rate if one.fits else one.memory))


def simplest(judged: Sequence[Judged]) -> Judged:
    """The layout to offer, of those of :func:`all_layouts`: data parallelism if the model fits, else the fastest."""
    return next((one for one in judged if one.fits and one.layout.strategy in REDUCES), judged[0])


def offer(question: Question, cluster: Cluster) -> Offer:
    """The prediction for one cluster."""
    best = simplest(all_layouts(question, cluster))
    error = relative_error(question, cluster, best.layout.strategy)
    price = question.prices.usd_per_hour.get(cluster.instance.name)
    samples = question.workload.samples
    run = run_time(samples, best.step.rate, cluster.hosts, question.policy) if samples and best.fits else None
    extrapolated = cluster.hosts > question.constants.largest_hosts
    total = None if price is None else price * cluster.hosts
    return Offer(cluster, best, _efficiency(question, cluster, best), error, extrapolated, run, total)


def offers(question: Question, instances: Iterable[Instance], hosts: Sequence[int]) -> list[Offer]:
    """Offers of each instance type and host count; types that the strategy cannot run on are left out.

    Raises:
        LaunchError: If the strategy cannot run on any of them.

    """
    found, refusal = [], None
    for instance in instances:
        for count in hosts:
            try:
                found.append(offer(question, Cluster(instance, count)))
            except LaunchError as error:
                refusal = error
    if not found and refusal is not None:
        raise refusal
    return found


def cheapest(found: Iterable[Offer], hours: float | None, budget: float | None, spot: bool) -> Offer | None:
    """The cheapest offer within the hours; with a budget only, the fastest within it; None if there is none.

    Args:
        found: The offers.
        hours: Maximum hours; None for no limit.
        budget: Maximum US dollars; None for no limit.
        spot: Whether to use the usual hours and the highest price on spot instances, instead of those on demand.

    """
    possible = []
    for one in found:
        if one.run is None or one.price is None:
            continue
        took = one.run.spot_hours[1] if spot else one.run.hours
        cost = took * one.price * (SPOT_SHARES[1] if spot else 1.0)
        if (hours is None or took <= hours) and (budget is None or cost <= budget):
            possible.append((cost, took, one))
    if not possible:
        return None
    order = (0, 1) if hours is not None or budget is None else (1, 0)
    return min(possible, key=lambda entry: (entry[order[0]], entry[order[1]]))[2]


def _efficiency(question: Question, cluster: Cluster, best: Judged) -> float | None:
    """Scaling efficiency relative to one host in the same kind of layout; None if it does not fit there."""
    one = Cluster(cluster.instance, 1, cluster.processes)
    layout = best.layout
    if layout.strategy == "smp":
        size = layout.stages * layout.tensor
        if one.ranks % size:
            return None
        layout = Layout("smp", layout.stages, layout.tensor, one.ranks // size)
    seconds = micro_batch_seconds(question, cluster.instance)
    alone = judge(question.workload, one, layout, seconds, question.constants)
    return best.step.rate / (cluster.hosts * alone.step.rate) if alone.fits else None
