# SPDX-License-Identifier: Apache-2.0
"""Layouts of a model over the ranks, with the GPU memory that each needs, and its step time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from lightning_sagemaker.bench.scaling import BACKWARD, IN_FLIGHT, Cluster, Step, predict_step
from lightning_sagemaker.bench.tables import Constants, bus_bandwidth
from lightning_sagemaker.bench.workload import Workload
from lightning_sagemaker.smddp_modes import GATHERING, REDUCING

STRATEGIES = ("ddp", "smddp", "fsdp", "smddp_fsdp", "smp")
GIB = 2**30
RESERVED = 1.5 * GIB
"""Bytes of CUDA's context, nccl's buffers, and the allocator's fragmentation."""
_SMDDP = {"smddp": REDUCING, "smddp_fsdp": GATHERING}
STATE = 16
"""Bytes for each parameter: float32 weights, their gradients, Adam's two moments."""


@dataclass(frozen=True)
class Layout:
    """How a model is laid out over the ranks.

    Attributes:
        strategy: Value of ``Trainer(strategy=...)``; ``"smp"`` for stages and tensor parallelism.
        stages: Number of pipeline stages.
        tensor: Tensor parallel degree: ranks that shard each layer.
        replicas: Number of data parallel replicas.

    """

    strategy: str
    stages: int = 1
    tensor: int = 1
    replicas: int = 1

    def __str__(self) -> str:
        if self.strategy != "smp":
            return self.strategy
        return f"smp {self.stages} x {self.tensor} x {self.replicas}"


@dataclass(frozen=True)
class Judged:
    """A layout, with its memory and speed.

    Attributes:
        layout: The layout.
        memory: Bytes needed on the fullest GPU.
        room: Bytes of a GPU's memory; 0 without GPUs.
        step: Predicted step.

    """

    layout: Layout
    memory: float
    room: float
    step: Step

    @property
    def fits(self) -> bool:
        """Whether the layout fits into a GPU's memory; true on hosts without GPUs."""
        return self.room == 0 or self.memory <= self.room


def layouts(workload: Workload, cluster: Cluster, strategy: str | None = None) -> Iterator[Layout]:
    """The layouts that can be tried, of one strategy or of all: powers of two, tensor parallelism within a host."""
    ranks, model = cluster.ranks, workload.model
    for name in ("ddp", "smddp", "fsdp", "smddp_fsdp"):
        helps = cluster.hosts > 1 or strategy is not None  # SMDDP is for several hosts
        if (
            strategy in (None, name)
            and cluster.instance.name in _SMDDP.get(name, (cluster.instance.name,))
            and (helps or name not in _SMDDP)
        ):
            yield Layout(name, replicas=ranks)
    if strategy not in (None, "smp"):
        return
    for stages in _powers(min(model.layers, ranks)):
        for tensor in _powers(min(cluster.local, model.heads)):
            whole = ranks % (stages * tensor) == 0 and model.heads % tensor == 0
            if whole and stages * tensor > 1:
                yield Layout("smp", stages, tensor, ranks // (stages * tensor))


def judge(workload: Workload, cluster: Cluster, layout: Layout, micro_batch: float, constants: Constants) -> Judged:
    """Memory and time of a layout.

    Args:
        workload: The workload.
        cluster: The hosts.
        layout: The layout.
        micro_batch: Seconds of compute of one micro-batch of the complete model on one rank.
        constants: Fitted constants.

    """
    room = cluster.instance.gpu_memory * GIB * (cluster.instance.gpus > 0)
    memory = RESERVED + _state_bytes(workload, cluster, layout) + _activation_bytes(workload, layout)
    return Judged(layout, memory, room, _step(workload, cluster, layout, micro_batch, constants))


def _powers(most: int) -> Iterator[int]:
    power = 1
    while power <= most:
        yield power
        power *= 2


def _state_bytes(workload: Workload, cluster: Cluster, layout: Layout) -> float:
    """Bytes of weights, gradients and optimizer, and of the strategy's buffers."""
    parameters = workload.model.parameters
    half = 2 if "16" in workload.precision else 0  # autocast's copies of the weights
    if "fsdp" in layout.strategy:
        gathered = 2 * workload.model.layer_parameters * (half or 4)  # the layer that is computed and the next
        return parameters * STATE / cluster.ranks + gathered
    if layout.strategy == "smp":
        return parameters * (STATE + half) / (layout.stages * layout.tensor)
    return parameters * (STATE + half) + workload.all_reduced  # DDP's buckets


def _activation_bytes(workload: Workload, layout: Layout) -> float:
    model, batch = workload.model, workload.batch
    each = batch * model.activation_bytes(workload.length, workload.precision, workload.recompute) / layout.tensor
    layers = math.ceil(model.layers / layout.stages)
    kept = min(layout.stages, _micro_batches(workload, layout))  # micro-batches in flight in a stage of 1F1B
    working = batch * model.activation_bytes(workload.length, workload.precision, False) if workload.recompute else 0.0
    logits = 3 * batch * workload.length * model.head_share * model.vocabulary * 4.0 / layout.tensor
    return each * layers * kept + working + logits


def _micro_batches(workload: Workload, layout: Layout) -> int:
    """Micro-batches of a replica in a step: as many samples as if each of its ranks were a replica."""
    return workload.accumulation * layout.stages * layout.tensor


def _step(workload: Workload, cluster: Cluster, layout: Layout, micro_batch: float, constants: Constants) -> Step:
    if "fsdp" in layout.strategy:
        return _sharded_step(workload, cluster, layout, micro_batch, constants)
    if layout.strategy == "smp":
        return _pipeline_step(workload, cluster, layout, micro_batch, constants)
    return predict_step(workload, cluster, micro_batch, layout.strategy, constants)


def _network(cluster: Cluster, constants: Constants, fast: bool) -> float:
    """Bytes per second between hosts."""
    speedup = constants.smddp_speedup if fast else 1.0
    return constants.network_share * speedup * cluster.instance.network / 8 * 1e9


def _sharded_step(
    workload: Workload, cluster: Cluster, layout: Layout, micro_batch: float, constants: Constants
) -> Step:
    """Weights are gathered for the forward and the backward pass, gradients scattered, in every micro-batch."""
    plain = predict_step(workload, cluster, micro_batch, "ddp", constants)
    width = 2 if "16" in workload.precision else 4
    moved = 3 * workload.model.parameters * width
    hosts, local = cluster.hosts, cluster.local
    seconds = (local - 1) / local * moved / bus_bandwidth(cluster.instance)
    if hosts > 1:
        is_fast = layout.strategy == "smddp_fsdp"
        seconds += (hosts - 1) / hosts * moved / _network(cluster, constants, is_fast)
        latency = constants.latency_seconds * math.log2(hosts) * IN_FLIGHT  # there are as many buckets as layers
        seconds += latency / (constants.smddp_speedup if is_fast else 1.0)
    first = seconds / (3 * workload.model.layers)
    exposed = seconds if workload.model.shared else max(first, seconds - constants.overlap * micro_batch)
    count = workload.accumulation
    return Step(plain.compute, plain.straggling, count * seconds, count * exposed, plain.feeding, plain.samples)


def _pipeline_step(
    workload: Workload, cluster: Cluster, layout: Layout, micro_batch: float, constants: Constants
) -> Step:
    """Micro-batches pass through the stages in turn; stages idle while the pipeline fills and drains."""
    share = micro_batch / (layout.stages * layout.tensor)
    model, width = workload.model, 2 if "16" in workload.precision else 4
    hidden = workload.batch * workload.length * model.hidden * width
    bus = bus_bandwidth(cluster.instance)
    # four all-reduces of the hidden states for each layer, forward and backward (Shoeybi et al. 2019)
    tensor = 4 * model.layers / layout.stages * 2 * (layout.tensor - 1) / layout.tensor * hidden / bus
    count = _micro_batches(workload, layout)
    slots = count + layout.stages - 1
    compute = slots * share
    own = model.parameters / (layout.stages * layout.tensor) * workload.gradient_bytes
    reduce = 2 * (layout.replicas - 1) / layout.replicas * own
    within = cluster.local // max(1, min(cluster.local, layout.stages * layout.tensor))
    if layout.replicas > within:  # every rank of a host sends its own shard over the host's network
        reduction = reduce * cluster.local / _network(cluster, constants, False)
        reduction += constants.latency_seconds * math.log2(layout.replicas / within)
    else:
        reduction = reduce / bus
    exposed = slots * tensor + max(0.0, reduction - constants.overlap * BACKWARD * share)
    spread = constants.straggler_spread * compute * math.sqrt(2 * math.log(max(2, layout.replicas)))
    samples = float(layout.replicas * workload.batch * count)
    return Step(compute, spread, slots * tensor + reduction, exposed, 0.0, samples)
