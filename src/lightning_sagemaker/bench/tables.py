# SPDX-License-Identifier: Apache-2.0
"""The tables of the scaling model: accelerators, links within a host, model sizes, fitted constants."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, cast

from lightning_sagemaker.errors import LaunchError, suggestion
from lightning_sagemaker.launch.planning.instances import Instance


@dataclass(frozen=True)
class Accelerator:
    """Peak performance of one GPU.

    Attributes:
        half_tflops: Dense 16-bit matrix multiplications, TFLOP/s.
        single_tflops: The same in float32, or in TF32 if the GPU supports it.
        memory_bandwidth: Memory bandwidth, GB/s.
        sustained: Share of these peaks that the power limit allows in the long run.

    """

    half_tflops: float
    single_tflops: float
    memory_bandwidth: float
    sustained: float

    def tflops(self, precision: str) -> float:
        """Peak for a precision as in ``Trainer(precision=...)``."""
        return self.half_tflops if "16" in precision else self.single_tflops


@dataclass(frozen=True)
class Constants:
    """Constants of the scaling model, fitted by ``benchmarks/plan_validation.py --write``.

    Attributes:
        date: Date of the fit.
        source: Results that the constants were fitted to.
        matmul_share: Share of the peak that matrix multiplications reach.
        traffic_bytes: Bytes moved in GPU memory for each token, layer and hidden unit, 16-bit, forward and backward.
        launch_seconds: Seconds that each micro-batch takes in addition, whatever its size.
        network_share: Share of the instance's network bandwidth that an all-reduce between hosts reaches.
        latency_seconds: Seconds that each doubling of the hosts adds to the all-reduce of a bucket.
        smddp_speedup: Speedup of SMDDP's all-reduce between hosts over a ring's.
        overlap: Share of the backward pass under which gradients can be reduced.
        straggler_spread: Relative standard deviation of a rank's micro-batch.
        feed_seconds: Seconds one vCPU takes to load a sample.
        unhidden_feed: Share of reading other ranks' samples that loader workers do not hide.
        anchored_error: Relative error not exceeded by nine of ten predictions that start from a measurement.
        unanchored_error: The same for predictions from operations and peaks.
        largest_hosts: Most hosts in any published result that predictions were compared with.
        validated: Instance types of the results compared with predictions from a measurement.

    """

    date: str
    source: str
    matmul_share: float
    traffic_bytes: float
    launch_seconds: float
    network_share: float
    latency_seconds: float
    smddp_speedup: float
    overlap: float
    straggler_spread: float
    feed_seconds: float
    unhidden_feed: float
    anchored_error: float
    unanchored_error: float
    largest_hosts: int
    validated: Sequence[str]


@cache
def read(name: str) -> dict[str, Any]:
    """One of the package's JSON tables."""
    return cast("dict[str, Any]", json.loads((resources.files(f"{__package__}.data") / f"{name}.json").read_text()))


@cache
def constants() -> Constants:
    """The fitted constants."""
    return Constants(**read("constants"))


def accelerator(instance: Instance) -> Accelerator | None:
    """The GPU of an instance type; None if it has none, or one without published figures in the table."""
    facts = read("hardware")["accelerators"].get(instance.gpu)
    if facts is None:
        return None
    found = Accelerator(*facts)
    if instance.gpu == "A100" and instance.gpu_memory > 40:  # the 80 GiB model has faster memory
        return Accelerator(found.half_tflops, found.single_tflops, 2039, found.sustained)
    return found


def bus_bandwidth(instance: Instance) -> float:
    """Bytes per second of an all-reduce among the GPUs of one host (nccl-tests' bus bandwidth)."""
    table = read("hardware")
    known = table["bus_gbytes_per_second"]
    found = known.get(instance.name, known.get(instance.name.rpartition(".")[0]))
    return float(found or table["default_bus_gbytes_per_second"]) * 1e9


def recipe_preset(name: str) -> dict[str, Any] | None:
    """A recipe's model and settings; None for another name."""
    found = read("models")["recipes"].get(name)
    return dict(found) if found else None


def model_facts(name: str) -> list[Any]:
    """The columns of a model in the table.

    Raises:
        LaunchError: If the table has no model of that name.

    """
    table = read("models")
    if name not in table["models"]:
        known = [*table["models"], *table["recipes"]]
        raise LaunchError(
            f"{name!r} is neither a model nor a recipe that plan knows. HINT: {suggestion(name, known)} Or describe it:"
            " --parameters 350M --layers 24 --hidden 1024."
        )
    return list(table["models"][name])
