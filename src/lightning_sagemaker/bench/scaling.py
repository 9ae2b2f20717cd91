# SPDX-License-Identifier: Apache-2.0
"""The scaling model: the time of a step of data-parallel training on several hosts. Pure functions of their arguments.

A step is the compute of its micro-batches, the part of the gradients' reduction that is not overlapped with the last
backward pass, and the part of data loading that loader processes do not hide. Compute comes from a measurement if there
is one (the *anchor*), else from operations over peaks; the rest from :class:`~tables.Constants`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from lightning_sagemaker.bench.tables import Constants, accelerator, bus_bandwidth
from lightning_sagemaker.bench.workload import Workload
from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.planning.instances import Instance

BACKWARD = 2 / 3
"""Share of a micro-batch's compute that is its backward pass."""
IN_FLIGHT = 2
"""Number of buckets whose latency counts: that of later buckets is hidden while earlier ones are sent."""
REDUCES = ("ddp", "smddp")


@dataclass(frozen=True)
class Cluster:
    """Hosts of one instance type.

    Attributes:
        instance: The instance type.
        hosts: Number of hosts.
        processes: Ranks per host; 0: one for each GPU, or one without GPUs.

    """

    instance: Instance
    hosts: int
    processes: int = 0

    @property
    def local(self) -> int:
        """Ranks on each host."""
        return self.processes or max(1, self.instance.gpus)

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        return self.hosts * self.local


@dataclass(frozen=True)
class Step:
    """Seconds of the parts of an optimizer step.

    Attributes:
        compute: Forward, backward and optimizer.
        straggling: Waiting for the slowest rank.
        communication: Reduction of the gradients, overlapped or not.
        exposed: Communication that is not overlapped with computation.
        feeding: Data loading that loader processes do not hide.
        samples: Global batch size.

    """

    compute: float
    straggling: float
    communication: float
    exposed: float
    feeding: float
    samples: float

    @property
    def seconds(self) -> float:
        """Duration of the step."""
        return self.compute + self.straggling + self.exposed + self.feeding

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds


@dataclass(frozen=True)
class Anchor:
    """A measurement.

    Attributes:
        cluster: Cluster of the measurement.
        rate: Samples per second of all ranks together.
        workload: The measured workload.
        strategy: ``"ddp"`` or ``"smddp"``, the reduction of the gradients.

    """

    cluster: Cluster
    rate: float
    workload: Workload
    strategy: str = "ddp"


def compute_seconds(workload: Workload, instance: Instance, constants: Constants) -> float:
    """Seconds of one micro-batch on one GPU, from operations and memory traffic over the peaks.

    Raises:
        LaunchError: If the table has no peaks for the instance.

    """
    gpu = accelerator(instance)
    if gpu is None:
        what = f"a {instance.gpu}" if instance.gpu else "CPUs only"
        raise LaunchError(
            f"{instance.name} has {what}, whose speed is unknown. HINT: measure it:"
            f" --measured {instance.name}=SAMPLES_PER_SECOND."
        )
    model, precision = workload.model, workload.precision
    operations = workload.batch * model.flops(workload.length) * (4 / 3 if workload.recompute else 1)
    traffic = workload.batch * workload.length * model.layers * model.hidden * constants.traffic_bytes
    traffic *= 1 if "16" in precision else 2
    matmul = operations / (constants.matmul_share * gpu.sustained * gpu.tflops(precision) * 1e12)
    return constants.launch_seconds + matmul + traffic / (gpu.sustained * gpu.memory_bandwidth * 1e9)


def reduce_seconds(workload: Workload, cluster: Cluster, strategy: str, constants: Constants) -> tuple[float, float]:
    """Seconds of the gradients' all-reduce, within and between hosts, and seconds of its last bucket alone."""
    total, buckets = workload.all_reduced, max(1, workload.buckets)
    local, hosts = cluster.local, cluster.hosts
    within = 2 * (local - 1) / local * total / bus_bandwidth(cluster.instance)
    between = 0.0
    if hosts > 1:
        speedup = constants.smddp_speedup if strategy == "smddp" else 1.0
        network = constants.network_share * cluster.instance.network / 8 * 1e9
        sending = 2 * (hosts - 1) / hosts * total / network
        latency = constants.latency_seconds * math.log2(hosts) * min(buckets, IN_FLIGHT)
        between = (sending + latency) / speedup
    return within + between, (within + between) / buckets


def feeding_seconds(workload: Workload, cluster: Cluster, compute: float, constants: Constants) -> float:
    """Seconds of loading a micro-batch that are not hidden behind ``compute`` seconds.

    With a sharded ``IterableDataset`` each rank also reads the other ranks' samples; loader processes hide only a part
    of that.
    """
    cost = workload.batch * (constants.feed_seconds if workload.feed_seconds is None else workload.feed_seconds)
    cores = max(1, cluster.instance.cpus // cluster.local)
    workers = cores if workload.workers is None else workload.workers
    others = cost * (cluster.ranks - 1) if workload.reads_all else 0.0
    if workers == 0:
        return cost + others
    return others * constants.unhidden_feed + max(0.0, cost / min(workers, cores) - compute)


def predict_step(workload: Workload, cluster: Cluster, micro_batch: float, strategy: str, constants: Constants) -> Step:
    """A step of data-parallel training.

    Args:
        workload: The workload.
        cluster: The hosts.
        micro_batch: Seconds of compute of one micro-batch on one rank.
        strategy: ``"ddp"`` or ``"smddp"``.
        constants: Fitted constants.

    """
    compute = workload.accumulation * micro_batch
    ranks = cluster.ranks
    # the largest of n normal deviates is about sqrt(2 ln n); those of the micro-batches add up as squares
    spread = constants.straggler_spread * micro_batch * math.sqrt(workload.accumulation)
    straggling = spread * math.sqrt(2 * math.log(ranks)) if ranks > 1 else 0.0
    communication, last = reduce_seconds(workload, cluster, strategy, constants) if ranks > 1 else (0.0, 0.0)
    hidden = 0.0
    if workload.overlaps and not workload.model.shared:
        hidden = constants.overlap * BACKWARD * micro_batch
    exposed = max(last, communication - hidden)
    feeding = workload.accumulation * feeding_seconds(workload, cluster, micro_batch, constants)
    samples = float(ranks * workload.batch * workload.accumulation)
    return Step(compute, straggling, communication, exposed, feeding, samples)


def anchored_seconds(anchor: Anchor, constants: Constants) -> float:
    """Seconds of a micro-batch's compute with which the model predicts the measured rate.

    Raises:
        LaunchError: If the rate is not positive.

    """
    if not anchor.rate > 0:
        raise LaunchError(f"{anchor.rate:g} samples/s were passed as the measured rate. HINT: pass a rate above 0.")

    def rate(micro_batch: float) -> float:
        return predict_step(anchor.workload, anchor.cluster, micro_batch, anchor.strategy, constants).rate

    return _solve(rate, anchor.rate)


def _solve(rate: Callable[[float], float], wanted: float) -> float:
    """The seconds at which a falling ``rate`` is ``wanted``, by bisection; almost 0 if it is lower even there."""
    low, high = 1e-7, 1.0
    while rate(high) > wanted:
        high *= 2
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if rate(middle) > wanted else (low, middle)
    return high


def carried_over(anchor: Anchor, workload: Workload, instance: Instance, constants: Constants) -> float:
    """Seconds of a micro-batch of ``workload`` on ``instance``, from a measurement that may be of another one.

    If GPU, model, batch, length, precision and ``recompute`` are those of the measurement, it is the measured time,
    else that time scaled by the ratio of :func:`compute_seconds` of both.

    Raises:
        LaunchError: If it must be scaled, and the table has no peaks for an instance.

    """
    measured, before = anchored_seconds(anchor, constants), anchor.workload
    key = (instance.gpu, workload.batch, workload.length, workload.precision, workload.recompute, workload.model)
    there = anchor.cluster.instance
    if key == (there.gpu, before.batch, before.length, before.precision, before.recompute, before.model) and (
        instance.gpu or instance == there
    ):
        return measured
    return measured * compute_seconds(workload, instance, constants) / compute_seconds(before, there, constants)


def scaling_efficiency(
    workload: Workload, cluster: Cluster, micro_batch: float, strategy: str, constants: Constants
) -> float:
    """Throughput over hosts times that of one host, as in the published tables: 1 is perfect scaling."""
    one = Cluster(cluster.instance, 1, cluster.processes)
    alone = predict_step(workload, one, micro_batch, strategy, constants).rate
    return predict_step(workload, cluster, micro_batch, strategy, constants).rate / (cluster.hosts * alone)
