# SPDX-License-Identifier: Apache-2.0
"""The keys of ``mp_parameters``, of both generations of SageMaker's model parallel library, and how each is handled.

Those of version 1 are documented in the SageMaker Python SDK up to 2.199 (library 1.15), those of version 2 in its
reference on docs.aws.amazon.com (library 2.8), read November 2026. Seven more appear in AWS's samples only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class KeySupport(str, Enum):
    """How a key is handled."""

    USED = "used"
    NO_OP = "accepted, without effect"
    REFUSED = "refused"


@dataclass(frozen=True)
class Key:
    """One key of ``mp_parameters``.

    Attributes:
        name: Name of the key.
        version: Version of the library that documents it: 1, 2, 0 for both, -1 for none.
        kind: Type of its value.
        default: Value when it is absent.
        support: How it is handled.
        note: What it does here, or why it has no effect or is refused.
        minimum: Minimum of a number.
        choices: Allowed values; empty if these are not a fixed set.

    """

    name: str
    version: int
    kind: type
    default: Any
    support: KeySupport
    note: str
    minimum: float | None = None
    choices: tuple[Any, ...] = ()


def _used(name: str, version: int, kind: type, default: Any, note: str, **rules: Any) -> Key:
    return Key(name, version, kind, default, KeySupport.USED, note, **rules)


def _no_op(name: str, version: int, kind: type, default: Any, why: str) -> Key:
    return Key(name, version, kind, default, KeySupport.NO_OP, why)


def _refused(name: str, version: int, kind: type, default: Any, why: str) -> Key:
    return Key(name, version, kind, default, KeySupport.REFUSED, why)


_TENSORFLOW = "for TensorFlow only"
_SCHEDULED = "receives are posted in the order of the schedule, so nothing needs to be prefetched"
_SHARDING = "FSDP2 gathers one block at a time and prefetches the next"
_PRECISION = "the precision is the Trainer's (precision='bf16-mixed'), or the script's (torch.autocast)"
_SAMPLES = "undocumented; used in AWS's samples only"

KEYS = (
    _used("partitions", 1, int, 1, "number of pipeline partitions", minimum=1),
    _used("pipeline_parallel_degree", 1, int, 1, "alias of partitions", minimum=1),
    _used("microbatches", 1, int, 1, "number of microbatches that a batch is split into", minimum=1),
    _used(
        "pipeline",
        1,
        str,
        "interleaved",
        "order of forward and backward passes: interleaved (1F1B), simple (GPipe), zero_bubble (ours)",
        choices=("interleaved", "simple", "zero_bubble", "_only_forward"),
    ),
    _used(
        "optimize",
        1,
        str,
        "memory",
        "weight of time and memory in the automatic partition",
        choices=("memory", "speed"),
    ),
    _used("placement_strategy", 1, str, "cluster", "cluster (DPT), spread (TPD), or any order of D, P and T"),
    _used("auto_partition", 1, bool, True, "false: only default_partition and the script's assignments"),
    _used("default_partition", 1, int, 0, "partition of unassigned modules, if auto_partition is false", minimum=0),
    _used(
        "memory_weight", 1, float, None, "weight of memory versus time in the automatic partition, 0 to 1", minimum=0
    ),
    _used("ddp", 1, bool, False, "replicas of the model train on different data"),
    _used(
        "active_microbatches",
        1,
        int,
        None,
        "maximum number of active microbatches; a stage needs no more than partitions",
        minimum=1,
    ),
    _used("tensor_parallel_degree", 0, int, 1, "number of ranks that each matrix is sharded across", minimum=1),
    _used(
        "sharded_data_parallel_degree",
        1,
        int,
        1,
        "number of replicas that parameters are sharded across with FSDP2; not with partitions",
        minimum=1,
    ),
    _used("offload_activations", 1, bool, False, "activations saved for the backward pass are offloaded to CPU memory"),
    _used(
        "delayed_parameter_initialization",
        1,
        bool,
        False,
        "with partitions: parameters get values on the process that needs them, so that none has the full model",
    ),
    _used("hybrid_shard_degree", 2, int, 0, "number of replicas that parameters are sharded across; 0: all", minimum=0),
    _no_op(
        "sdp_gradient_clipping", 1, float, 1.0, "the Trainer clips (gradient_clip_val), by the norm of the full model"
    ),
    _no_op("prescaled_batch", 1, bool, False, "processes of a tensor parallel group always have the same batch"),
    _no_op("random_seed", 2, int, None, "the script seeds the weights"),
    _no_op("ddp_port", 1, int, None, "all process groups use the launcher's port"),
    _no_op("ddp_dist_backend", 1, str, "auto", "the strategy chooses and logs the backend"),
    _no_op("deterministic_server", 1, bool, False, "the schedule is fixed, so every replica has the same order"),
    _no_op("skip_tracing", 1, bool, False, "tracing runs on shapes only and takes no memory"),
    _no_op("activation_loading_horizon", 0, int, 4, _SCHEDULED),
    _no_op("sdp_reduce_bucket_size", 1, float, 5e8, _SHARDING),
    _no_op("sdp_param_persistence_threshold", 1, float, 1e6, _SHARDING),
    _no_op("sdp_max_live_parameters", 1, float, 1e9, _SHARDING),
    _no_op("sdp_hierarchical_allgather", 1, bool, True, _SHARDING),
    _no_op("fp16_params", 1, bool, False, "mixed precision keeps float32 parameters"),
    _refused("fp16", 1, bool, False, _PRECISION),
    _refused("bf16", 1, bool, False, _PRECISION),
    _no_op("contiguous", 1, bool, True, _TENSORFLOW),
    _no_op("fsdp_cache_flush_warnings", 2, bool, True, "the allocator's cache is never flushed here"),
    _no_op("allow_empty_shards", 2, bool, False, "FSDP2 allows them"),
    _no_op(
        "sm_activation_offloading",
        2,
        bool,
        True,
        "option of FSDP's offload_wrapper, which is not used; offload_activations is version 1's",
    ),
    _refused("shard_optimizer_state", 1, bool, False, "optimizer states are not sharded in this version"),
    _refused("horovod", 1, bool, False, _TENSORFLOW),
    _refused("context_parallel_degree", 2, int, 1, "sequences are not split"),
    _refused("expert_parallel_degree", 2, int, 1, "no expert parallelism"),
    *(
        _no_op(name, -1, object, None, _SAMPLES)
        for name in (
            "load_partition",
            "partition_file",
            "static_mode",
            "fast_mode",
            "checkpoint_attentions",
            "_match_weights",
            "_fp32_grad_accumulation",
        )
    ),
)

BY_NAME = {key.name: key for key in KEYS}
