# SPDX-License-Identifier: Apache-2.0
"""Which engine runs SMDDP's collectives in a job, as AWS documents it. Pure functions; no torch.

SMDDP has two mutually exclusive modes. Started by mpirun it runs AllReduce, and nccl runs AllGather. Started by
torchrun, or by mpirun with ``SMDATAPARALLEL_OPTIMIZE_SDP=true``, it runs AllGather, and AllReduce falls back to nccl.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from lightning_sagemaker.job import SMDDP_VARIABLES, Launcher, SageMakerJob, SageMakerJobError

GUIDE = "https://docs.aws.amazon.com/sagemaker/latest/dg/"

LAUNCHERS = GUIDE + "data-parallel-framework-estimator.html"
"""Launchers and modes: "Considerations for activating SMDDP collective operations"."""

INTRODUCTION = GUIDE + "data-parallel-intro.html"
"""AllGather is in SMDDP from 2.0.1 on."""

SUPPORT = GUIDE + "distributed-data-parallel-support.html"
"""Instance types: AllReduce on p3dn and P4, AllGather on P4."""

RELEASES_2 = GUIDE + "data-parallel-release-notes.html"
"""SMDDP 2.0.1 to 2.5.0."""

SCRIPTS = GUIDE + "data-parallel-modify-sdp-pt.html"
"""The backend in a script: ``new_group`` is refused "for PyTorch DDP jobs only"."""

COLLECTIVES = GUIDE + "model-parallel-extended-features-pytorch-sharded-data-parallelism.html"
"""Sizes that AllGather accepts: "Sharded data parallelism with SMDDP Collectives"."""

RELEASES_1 = (
    "https://sagemaker.readthedocs.io/en/v2.212.0/api/training/smd_data_parallel_release_notes/"
    "smd_data_parallel_change_log.html"
)
"""SMDDP 1.0 to 1.8: ml.p4de.24xlarge from 1.6.0 on, no ``new_group``."""

GUIDE_1 = "https://github.com/awsdocs/amazon-sagemaker-developer-guide/blob/a869fa5/doc_source/data-parallel-use-api.md"
"""The guide of 2023, for SMDDP 1.x: the launcher is ``smdistributed``, and ml.p3.16xlarge is among its types."""

REPORT = "https://github.com/aws/deep-learning-containers/pull/4119"
"""``SMDDP does not support: _allgather_base`` under mpirun, answered by ``torch_distributed``."""

OPTIMIZE_SDP, SCRATCH, SORT = SMDDP_VARIABLES

SMDDP_VERSIONS = {
    "1.6.0": "1.0.0", "1.7.1": "1.0.0", "1.8.1": "1.2.x", "1.9.1": "1.2.x", "1.10.2": "1.4.0", "1.11.0": "1.4.1",
    "1.12.0": "1.5.0", "1.12.1": "1.6.0", "1.13.1": "1.7.0", "2.0.0": "1.8.0", "2.0.1": "2.0.2", "2.1.0": "2.1.0",
    "2.2.0": "2.2.0", "2.3.0": "2.3.0", "2.5.1": "2.6.0",
}  # fmt: skip
"""PyTorch of AWS's image -> its SMDDP (developer guide's release notes, read November 2026). Later images have none."""

NEWEST_PYTORCH, NEWEST = list(SMDDP_VERSIONS.items())[-1]
"""The last image that has SMDDP, and its version; the shim replaces this one."""

_UNIT = 8192
_DEFAULTS = {SCRATCH: 16 * 2**20, SORT: 128 * 2**20}
_GPUS_PER_HOST = 8
"""Of every instance type that SMDDP runs on: the eighth in the rule for the sort buffer (:data:`COLLECTIVES`)."""

_P4DE, _GATHERS, _LEAK_FIXED = (1, 6), (2, 0, 1), (2, 1)

REDUCING = ("ml.p3dn.24xlarge", "ml.p4d.24xlarge", "ml.p4de.24xlarge")
GATHERING = ("ml.p4d.24xlarge", "ml.p4de.24xlarge")
"""Instance types of SMDDP's AllReduce and AllGather, by the developer guide's support page (read November 2026)."""

_DISPUTED = "ml.p3.16xlarge"
"""SDK 2.257 lists it (``fw_utils.SM_DATAPARALLEL_SUPPORTED_INSTANCE_TYPES``), :data:`SUPPORT` does not. The page is
followed: SMDDP from 2.3 on checks its list when it is imported (:data:`RELEASES_2`)."""

INSTANCE_TYPES = (_DISPUTED, *REDUCING)
"""Where some version of SMDDP runs."""

_MPIRUN = (Launcher.MPI, Launcher.SMDDPRUN)


class SmddpMode(str, Enum):
    """Which of its collectives SMDDP runs; ``NONE`` where it is documented to run neither."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    NONE = "none"


@dataclass(frozen=True)
class Engine:
    """The engine of a collective.

    Attributes:
        name: ``smddp``, ``nccl`` or ``gloo``.
        reason: Why, in one sentence.
        source: Where AWS documents it.

    """

    name: str
    reason: str
    source: str


@dataclass(frozen=True)
class Refusal:
    """Whether SMDDP's backend refuses an operation.

    Attributes:
        refused: True if it raises ``RuntimeError: SMDDP does not support: ...``.
        reason: Why, in one sentence.
        source: Where AWS documents it.

    """

    refused: bool
    reason: str
    source: str


@dataclass(frozen=True)
class SmddpEngines:
    """The engines of a job's collectives.

    Attributes:
        mode: The job's mode.
        all_reduce: Engine of AllReduce.
        all_gather: Engine of AllGather for tensors without a :meth:`gather_obstacle`.
        sub_groups: ``torch.distributed.new_group``.
        other_collectives: All but all_reduce, broadcast, reduce, all_gather and barrier, and other reductions than sum,
            minimum and maximum.
        scratch_bytes: Size of AllGather's scratch buffer.
        sort_bytes: Size of AllGather's sort buffer.
        notes: Known issues, one sentence each.

    """

    mode: SmddpMode
    all_reduce: Engine
    all_gather: Engine
    sub_groups: Refusal
    other_collectives: Refusal
    scratch_bytes: int
    sort_bytes: int
    notes: tuple[str, ...] = ()

    def gather_obstacle(self, input_bytes: int, group_size: int, floating_point: bool = True) -> str | None:
        """Why an AllGather goes to nccl or gloo, in one sentence; None if SMDDP runs it.

        Args:
            input_bytes: Input size of one process.
            group_size: Number of processes (the sharded data parallel degree).
            floating_point: Whether the elements are floating-point numbers; SMDDP is documented for these only.

        """
        if self.all_gather.name != "smddp":
            return self.all_gather.reason
        if not floating_point:
            return "AllGather of non-floating-point elements is undocumented."
        if input_bytes > self.scratch_bytes:
            return f"AllGather's input of {input_bytes} bytes is larger than {SCRATCH}={self.scratch_bytes}."
        needed = -(-group_size * input_bytes // _GPUS_PER_HOST)
        if needed > self.sort_bytes:
            return (
                f"AllGather of {input_bytes} bytes from each of {group_size} processes needs {needed} bytes, more than"
                f" {SORT}={self.sort_bytes}."
            )
        return None


def smddp_engines(
    launcher: Launcher,
    variables: Mapping[str, str],
    version: str | None,
    instance_type: str | None,
    *,
    has_gpus: bool = True,
) -> SmddpEngines:
    """Which engine runs which collective.

    Args:
        launcher: What started the processes: ``TORCHRUN`` (``torch_distributed``), ``MPI`` (``pytorchddp``),
            ``SMDDPRUN`` (``smdistributed``) or ``NONE``.
        variables: Those of the process, or of the job (``SageMakerJob.smddp_variables``).
        version: Version of SMDDP, such as ``2.6.0``; None where it is not installed.
        instance_type: Such as ``ml.p4d.24xlarge``; None if unknown, which excludes nothing.
        has_gpus: Whether the hosts have GPUs; without, gloo is the fallback instead of nccl.

    Raises:
        SageMakerJobError: If a buffer's size is not one that SMDDP accepts, or the version is malformed.

    """
    plain = "nccl" if has_gpus else "gloo"
    number = None if version is None else parse_smddp_version(version)
    mode, why, source = _mode(launcher, variables, number, plain)
    reduce = _all_reduce(mode, why, source, number, instance_type, plain)
    gather = _all_gather(mode, why, source, number, instance_type, plain)
    return SmddpEngines(
        mode=mode,
        all_reduce=reduce,
        all_gather=gather,
        sub_groups=_sub_groups(mode, number),
        other_collectives=_other_collectives(mode),
        scratch_bytes=_buffer(variables, SCRATCH),
        sort_bytes=_buffer(variables, SORT),
        notes=_notes(reduce, number, version),
    )


def job_engines(job: SageMakerJob) -> SmddpEngines:
    """Which engine runs which collective in ``job``; with the shim, as with the newest SMDDP.

    Args:
        job: As read.

    Raises:
        SageMakerJobError: If a buffer's size is not one that SMDDP accepts.

    """
    version = job.smddp_version
    if version is None and (job.simulated or not job.in_container):
        version = NEWEST
    kind = job.instance_type if job.in_container else None
    has_gpus = bool(job.num_gpus)
    return smddp_engines(job.launcher, job.smddp_variables, version, kind, has_gpus=has_gpus)


def parse_smddp_version(version: str) -> tuple[int, ...]:
    """The leading numbers of an SMDDP version.

    Raises:
        SageMakerJobError: If there are none.

    """
    found = re.match(r"\d+(\.\d+)*", version)
    if found is None:
        raise SageMakerJobError(f"SMDDP's version is {version!r}. HINT: use the form 2.6.0.")
    return tuple(map(int, found[0].split(".")))


def _mode(
    launcher: Launcher, variables: Mapping[str, str], number: tuple[int, ...] | None, plain: str
) -> tuple[SmddpMode, str, str]:
    """The mode, why, and the source."""
    if number is None:
        return SmddpMode.NONE, "SMDDP is not installed", SUPPORT
    if launcher is Launcher.NONE:
        return SmddpMode.NONE, "SMDDP is documented only for processes started by torchrun or mpirun", LAUNCHERS
    if number < _GATHERS:
        if launcher is Launcher.SMDDPRUN:
            return SmddpMode.ALL_REDUCE, "SMDDP before 2.0.1 takes AllReduce", INTRODUCTION
        return SmddpMode.NONE, "SMDDP before 2.0.1 is documented only for smddprun (smdistributed)", GUIDE_1
    if launcher not in _MPIRUN:
        return (
            SmddpMode.ALL_GATHER,
            f"SMDDP started by torchrun takes AllGather, and AllReduce falls back to {plain}",
            LAUNCHERS,
        )
    if variables.get(OPTIMIZE_SDP, "").strip().lower() == "true":
        why = f"SMDDP started by mpirun with {OPTIMIZE_SDP}=true takes AllGather, and AllReduce falls back to {plain}"
        return SmddpMode.ALL_GATHER, why, LAUNCHERS
    return SmddpMode.ALL_REDUCE, f"SMDDP started by mpirun takes AllReduce, and AllGather goes to {plain}", LAUNCHERS


def _all_reduce(
    mode: SmddpMode, why: str, source: str, number: tuple[int, ...] | None, instance_type: str | None, plain: str
) -> Engine:
    if mode is not SmddpMode.ALL_REDUCE or number is None:
        return Engine(plain, f"{why}.", source)
    if instance_type == _DISPUTED:
        if number < _GATHERS:
            return Engine("smddp", f"{why}.", GUIDE_1)
        reason = f"The guide of SMDDP 2 does not list {instance_type}, although SageMaker's SDK does."
        return Engine(plain, reason, SUPPORT)
    if instance_type == "ml.p4de.24xlarge" and number < _P4DE:
        return Engine(plain, f"SMDDP supports {instance_type} from 1.6.0 on.", RELEASES_1)
    if instance_type is not None and instance_type not in REDUCING:
        return Engine(plain, f"SMDDP does not support {instance_type} (only {', '.join(REDUCING)}).", SUPPORT)
    return Engine("smddp", f"{why}.", source)


def _all_gather(
    mode: SmddpMode, why: str, source: str, number: tuple[int, ...] | None, instance_type: str | None, plain: str
) -> Engine:
    if number is not None and number < _GATHERS:
        return Engine(plain, "SMDDP takes AllGather from 2.0.1 on.", INTRODUCTION)
    if mode is not SmddpMode.ALL_GATHER:
        return Engine(plain, f"{why}.", source)
    if instance_type is not None and instance_type not in GATHERING:
        return Engine(
            plain, f"SMDDP's AllGather is for P4 only ({', '.join(GATHERING)}), not {instance_type}.", SUPPORT
        )
    return Engine("smddp", f"{why}.", source)


def _sub_groups(mode: SmddpMode, number: tuple[int, ...] | None) -> Refusal:
    if mode is SmddpMode.ALL_GATHER:
        return Refusal(False, "Sub-groups are refused in DDP-only jobs, and this one gathers shards.", SCRIPTS)
    source = RELEASES_1 if number is not None and number < _GATHERS else SCRIPTS
    return Refusal(True, "SMDDP has no sub-groups in DDP jobs.", source)


def _other_collectives(mode: SmddpMode) -> Refusal:
    if mode is SmddpMode.ALL_GATHER:
        return Refusal(False, "SMDDP falls back for everything but AllGather, as FSDP and DeepSpeed need.", COLLECTIVES)
    return Refusal(True, "SMDDP started by mpirun has only the collectives of DDP.", REPORT)


def _notes(all_reduce: Engine, number: tuple[int, ...] | None, version: str | None) -> tuple[str, ...]:
    if all_reduce.name == "smddp" and number is not None and _GATHERS <= number < _LEAK_FIXED:
        return (f"SMDDP {version} leaks CPU memory in AllReduce (release notes; 2.1.0 does not).",)
    return ()


def _buffer(variables: Mapping[str, str], name: str) -> int:
    """Bytes of a buffer of AllGather: a multiple of 8192 (:data:`COLLECTIVES`)."""
    text = variables.get(name, "").strip()
    if not text:
        return _DEFAULTS[name]
    size = int(text) if text.isascii() and text.isdigit() else 0
    if not size or size % _UNIT:
        raise SageMakerJobError(
            f"{name}={text!r} is set, and SMDDP takes multiples of {_UNIT} bytes. HINT: the default is"
            f" {_DEFAULTS[name]}."
        )
    return size
