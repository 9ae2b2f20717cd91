# SPDX-License-Identifier: Apache-2.0
"""Degrees of pipeline, tensor and data parallelism, and the coordinates of each rank."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_sagemaker.job.source import is_true
from lightning_sagemaker.parallel.keys import BY_NAME, KEYS, Key, KeySupport

PLACEMENTS = {"cluster": "DPT", "spread": "TPD"}
"""AWS's names of two orders (developer guide, "Ranking mechanism"). The last letter varies fastest with the rank."""


class ParallelConfigError(ValueError):
    """Degrees that contradict each other or the number of processes; the message has the fix."""


class PipelineError(RuntimeError):
    """The user's code cannot run in a pipeline, or another stage failed; the message has the fix."""


@dataclass(frozen=True)
class Coordinates:
    """Coordinates of one process: pipeline stage, tensor parallel shard, and replica."""

    pipeline: int
    tensor: int
    replica: int


@dataclass(frozen=True)
class ParallelDegrees:
    """The parallel layout of a job.

    Attributes:
        pipeline: Partitions (stages) of the layers.
        tensor: Ranks that each matrix is sharded across.
        shard: Number of replicas that parameters are sharded across with FSDP2; 0 for all of them, 1 for no sharding.
        microbatches: Number of microbatches per batch.
        schedule: ``interleaved`` (1F1B), ``simple`` (all forward passes first), ``zero_bubble`` or ``_only_forward``.
        placement: ``cluster``, ``spread`` or an order of D, P and T.
        ddp: Whether replicas may train on different data.
        active_microbatches: Maximum number of microbatches in flight in a stage; None for as many as the schedule needs.
        auto_partition: Whether layers are assigned to the stages by their cost.
        default_partition: Partition of unassigned layers, without ``auto_partition``.
        memory_weight: Weight of memory versus time in the automatic partition; default 0.8, or 0.2 with
            ``optimize="speed"``.
        optimize: ``memory`` or ``speed``.
        offload_activations: Whether saved activations are offloaded to CPU memory.
        delayed: Whether parameters have no values until a stage needs them.

    """

    pipeline: int = 1
    tensor: int = 1
    shard: int = 1
    microbatches: int = 1
    schedule: str = "interleaved"
    placement: str = "cluster"
    ddp: bool = True
    active_microbatches: int | None = None
    auto_partition: bool = True
    default_partition: int = 0
    memory_weight: float | None = None
    optimize: str = "memory"
    offload_activations: bool = False
    delayed: bool = False

    def __post_init__(self) -> None:
        letters = PLACEMENTS.get(self.placement, self.placement)
        if sorted(letters) != ["D", "P", "T"]:
            raise ParallelConfigError(
                f"placement_strategy={self.placement!r} was set. HINT: use cluster, spread, or a permutation of the letters"
                " D, P and T, such as DPT."
            )
        if not self.auto_partition and self.default_partition >= self.pipeline:
            raise ParallelConfigError(
                f"default_partition={self.default_partition} was set, but there are {self.pipeline} partitions."
                f" HINT: set at most {self.pipeline - 1}."
            )

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> tuple[ParallelDegrees, list[str]]:
        """Degrees from ``mp_parameters``, and a log line for each key without effect.

        Raises:
            ParallelConfigError: If a value is of the wrong kind, out of range, or is not supported.

        """
        notes: list[str] = []
        values: dict[str, Any] = {}
        for name, value in parameters.items():
            key = BY_NAME.get(name)
            if key is None:
                raise ParallelConfigError(_unknown(name))
            if value is None:
                continue
            checked = _check(key, value)
            if key.support is KeySupport.REFUSED and checked != key.default:
                raise ParallelConfigError(f"mp_parameters has {name}={value!r}: {key.note}. HINT: remove {name}.")
            if key.support is KeySupport.NO_OP and checked != key.default:
                notes.append(f"mp_parameters: {name}={value!r} has no effect: {key.note}.")
            values[name] = checked
        return _from_values(values), notes

    def replicas(self, world_size: int) -> int:
        """Number of replicas of the model among ``world_size`` processes.

        Raises:
            ParallelConfigError: If it is not divisible by the degrees.

        """
        per_copy = self.pipeline * self.tensor
        if world_size % per_copy:
            raise ParallelConfigError(
                f"partitions={self.pipeline} and tensor_parallel_degree={self.tensor} need a multiple of {per_copy}"
                f" processes, but {world_size} were started. HINT: start {-(-world_size // per_copy) * per_copy}, or"
                " lower a degree."
            )
        copies = world_size // per_copy
        if copies > 1 and not self.ddp:
            raise ParallelConfigError(
                f"{world_size} processes are {copies} replicas of a model partitioned {per_copy} ways, but "
                "mp_parameters has no"
                ' "ddp": true. HINT: set it, or start'
                f" {per_copy} processes."
            )
        return copies

    def shards(self, world_size: int) -> int:
        """Number of replicas among ``world_size`` processes that their parameters are sharded across.

        Raises:
            ParallelConfigError: If the number of replicas is not divisible by the shard degree.

        """
        copies = self.replicas(world_size)
        shards = self.shard or copies
        if copies % shards:
            raise ParallelConfigError(
                f"the shard degree {self.shard} was set, but there are {copies} model replicas to shard its"
                f" parameters across. HINT: set a divisor of {copies}."
            )
        return shards

    def coordinates(self, rank: int, world_size: int) -> Coordinates:
        """Coordinates of ``rank``: the digits of the rank, in the order of the placement."""
        sizes = {"D": self.replicas(world_size), "P": self.pipeline, "T": self.tensor}
        digits: dict[str, int] = {}
        for letter in reversed(PLACEMENTS.get(self.placement, self.placement)):
            rank, digits[letter] = divmod(rank, sizes[letter])
        return Coordinates(digits["P"], digits["T"], digits["D"])

    def groups(self, kind: str, world_size: int) -> list[list[int]]:
        """All groups of ranks of one kind, each ascending.

        Args:
            kind: ``PP`` (the stages of a replica), ``TP`` (tensor parallel), ``RDP`` (ranks with the same parameters),
                ``MP`` (all ranks of a replica) or ``DP`` (ranks with the same stage).
            world_size: Number of processes.

        """
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(world_size):
            at = self.coordinates(rank, world_size)
            same = {
                "PP": (at.replica, at.tensor),
                "TP": (at.replica, at.pipeline),
                "RDP": (at.pipeline, at.tensor),
                "MP": (at.replica,),
                "DP": (at.pipeline,),
            }[kind]
            groups.setdefault(same, []).append(rank)
        return list(groups.values())

    def group_of(self, kind: str, rank: int, world_size: int) -> list[int]:
        """The group of one kind that ``rank`` is in."""
        return next(group for group in self.groups(kind, world_size) if rank in group)


def _from_values(values: Mapping[str, Any]) -> ParallelDegrees:
    def get(name: str) -> Any:
        return values.get(name, BY_NAME[name].default)

    partitions, alias = values.get("partitions"), values.get("pipeline_parallel_degree")
    if partitions is not None and alias is not None and partitions != alias:
        raise ParallelConfigError(
            f"mp_parameters has partitions={partitions} and pipeline_parallel_degree={alias}, which are aliases. HINT:"
            " keep one."
        )
    older = [name for name in values if BY_NAME[name].version == 1]
    newer = [name for name in values if BY_NAME[name].version == 2 and BY_NAME[name].support is KeySupport.USED]
    if older and newer:
        raise ParallelConfigError(
            f"mp_parameters has {', '.join(newer)} of the library's version 2 together with {', '.join(older)} of "
            "version 1. HINT:"
            " use one version; sharded_data_parallel_degree is version 1's hybrid_shard_degree."
        )
    first_generation = bool(older)
    return ParallelDegrees(
        pipeline=partitions or alias or 1,
        tensor=get("tensor_parallel_degree"),
        shard=get("sharded_data_parallel_degree") if first_generation else get("hybrid_shard_degree"),
        microbatches=get("microbatches"),
        schedule=get("pipeline"),
        placement=get("placement_strategy"),
        ddp=get("ddp") if first_generation else True,  # the second generation always has replicas
        active_microbatches=get("active_microbatches"),
        auto_partition=get("auto_partition"),
        default_partition=get("default_partition"),
        memory_weight=get("memory_weight"),
        optimize=get("optimize"),
        offload_activations=get("offload_activations"),
        delayed=get("delayed_parameter_initialization"),
    )


def _check(key: Key, value: Any) -> Any:
    """``value`` as the key's type; estimators also write numbers and flags as text."""
    if key.kind is object:
        return value
    try:
        if key.kind is bool:
            if not isinstance(value, bool) and str(value).strip().lower() not in _FLAGS:
                raise ValueError
            converted: Any = is_true(value)
        elif key.kind is str:
            converted = str(value)
        else:
            number = float(value)
            converted = int(number) if key.kind is int else number
            if isinstance(value, bool) or converted != number:
                raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ParallelConfigError(f"mp_parameters has {key.name}={value!r}. HINT: give {_KINDS[key.kind]}.") from None
    if key.minimum is not None and not converted >= key.minimum:
        raise ParallelConfigError(f"mp_parameters has {key.name}={value!r}. HINT: give at least {key.minimum:g}.")
    if key.choices and converted not in key.choices:
        raise ParallelConfigError(
            f"mp_parameters has {key.name}={value!r}. HINT: choose one of {', '.join(map(str, key.choices))}."
        )
    if key.name == "memory_weight" and converted > 1:
        raise ParallelConfigError(f"mp_parameters has memory_weight={value!r}. HINT: give a number from 0 to 1.")
    return converted


_FLAGS = ("true", "false", "1", "0", "yes", "no")
_KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, [key.name for key in KEYS], 1)
    hint = f"did you mean {near[0]}?" if near else f"remove it; known keys are {', '.join(key.name for key in KEYS)}."
    return f"mp_parameters has {name!r}, which is not a key of SageMaker's model parallel library. HINT: {hint}"
