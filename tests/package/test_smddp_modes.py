# SPDX-License-Identifier: Apache-2.0
"""SMDDP's modes against AWS's documentation: launchers x variables x versions x instance types, each row with its source.

``R``: SMDDP takes AllReduce and nccl AllGather; ``G``: the other way round; ``-``: nccl takes both. Where the pages do not
agree, or say nothing, the row says how it was read.
"""

import itertools
import subprocess
import sys

import pytest

from lightning_sagemaker import smddp_modes as modes
from lightning_sagemaker.job import Launcher, SageMakerJob, SageMakerJobError
from lightning_sagemaker.smddp_modes import SmddpMode, job_engines, smddp_engines

SDP = {"SMDATAPARALLEL_OPTIMIZE_SDP": "true"}
COLUMNS = list(itertools.product((Launcher.TORCHRUN, Launcher.MPI, Launcher.SMDDPRUN), ({}, SDP)))

LAUNCHERS = "Use the PyTorch framework estimators: considerations for activating SMDDP collective operations"
GATHER = "Introduction to the SMDDP library: AllGather is available in smdistributed-dataparallel>=2.0.1"
TYPES = "Supported frameworks, Regions, and instance types: p3dn (AllReduce only), p4d, p4de; AllGather on P4 only"
BEFORE_2 = "Developer guide of 2023, data-parallel-use-api: smdistributed is its launcher; it has not the variable"
P4DE = "SDK v2.212, SMDDP 1.6.0 release notes: adds ml.p4de.24xlarge"
SDK = "SDK v2.257, fw_utils.SM_DATAPARALLEL_SUPPORTED_INSTANCE_TYPES has ml.p3.16xlarge"
CONFLICT = f"{TYPES}; against {SDK}: the guide is taken, since SMDDP 2.3.0 checks its list at import (release notes)"
EXCLUSIVE = f"{LAUNCHERS}: the modes are exclusive; {TYPES}: so on p3dn the second leaves SMDDP nothing"

# torchrun, torchrun + SDP, mpirun, mpirun + SDP, smddprun, smddprun + SDP
TABLE = [
    ("1.4.0 1.8.0", "p3.16xlarge", "- - - - R R", f"{BEFORE_2}, and ml.p3.16xlarge among its types; {SDK}"),
    ("1.4.0 1.8.0", "p3dn.24xlarge", "- - - - R R", BEFORE_2),
    ("1.4.0 1.8.0", "p4d.24xlarge", "- - - - R R", f"{BEFORE_2}; {GATHER}"),
    ("1.4.0", "p4de.24xlarge", "- - - - - -", P4DE),
    ("1.8.0", "p4de.24xlarge", "- - - - R R", f"{P4DE}; {GATHER}"),
    ("2.0.1 2.3.0 2.6.0", "p3.16xlarge", "- - - - - -", CONFLICT),
    ("2.0.1 2.3.0 2.6.0", "p3dn.24xlarge", "- - R - R -", EXCLUSIVE),
    ("2.0.1 2.3.0 2.6.0", "p4d.24xlarge", "G G R G R G", f"{LAUNCHERS}; {GATHER}; {TYPES}"),
    ("2.0.1 2.3.0 2.6.0", "p4de.24xlarge", "G G R G R G", f"{LAUNCHERS}; {GATHER}; {TYPES}"),
    ("1.4.0 1.8.0 2.0.1 2.3.0 2.6.0", "p5.48xlarge", "- - - - - -", TYPES),
    ("1.4.0 1.8.0 2.0.1 2.3.0 2.6.0", "g5.48xlarge", "- - - - - -", TYPES),
]
ENGINES = {"R": ("smddp", "nccl"), "G": ("nccl", "smddp"), "-": ("nccl", "nccl")}
ROWS = [
    pytest.param(
        version, f"ml.{kind}", *column, ENGINES[letter], id=f"{version}-{kind}-{column[0].value}-{bool(column[1])}"
    )
    for versions, kind, letters, source in TABLE
    for version in versions.split()
    for column, letter in zip(COLUMNS, letters.split(), strict=True)
]


def test_the_table_is_whole():
    assert len(ROWS) == 5 * 6 * len(COLUMNS)
    assert all(row[3] for row in TABLE)


@pytest.mark.parametrize(("version", "kind", "launcher", "variables", "expected"), ROWS)
def test_truth_table(version, kind, launcher, variables, expected):
    engines = smddp_engines(launcher, variables, version, kind)
    assert (engines.all_reduce.name, engines.all_gather.name) == expected
    for engine in (engines.all_reduce, engines.all_gather):
        assert engine.reason.endswith(".")
        assert engine.source.startswith("https://")
    without = smddp_engines(launcher, variables, version, kind, has_gpus=False)
    assert {without.all_reduce.name, without.all_gather.name} <= {"smddp", "gloo"}


@pytest.mark.parametrize(
    ("launcher", "variables", "version", "mode"),
    [
        (Launcher.TORCHRUN, {}, "2.6.0", SmddpMode.ALL_GATHER),
        (Launcher.MPI, {}, "2.6.0", SmddpMode.ALL_REDUCE),
        (Launcher.MPI, SDP, "2.6.0", SmddpMode.ALL_GATHER),
        (Launcher.MPI, {"SMDATAPARALLEL_OPTIMIZE_SDP": "false"}, "2.6.0", SmddpMode.ALL_REDUCE),
        (Launcher.SMDDPRUN, SDP, "1.8.0", SmddpMode.ALL_REDUCE),
        (Launcher.NONE, {}, "2.6.0", SmddpMode.NONE),
        (Launcher.SMDDPRUN, {}, None, SmddpMode.NONE),
    ],
)
def test_refusals_follow_the_mode(launcher, variables, version, mode):
    """Page data-parallel-modify-sdp-pt: no new_group in jobs of DDP; deep-learning-containers PR 4119: _allgather_base."""
    engines = smddp_engines(launcher, variables, version, "ml.p4d.24xlarge")
    assert engines.mode is mode
    assert engines.sub_groups.refused is engines.other_collectives.refused is (mode is not SmddpMode.ALL_GATHER)


MIB = 2**20


@pytest.mark.parametrize(
    ("variables", "input_bytes", "group_size", "words"),
    [
        ({}, 16 * MIB, 64, None),  # 1/8 x 64 x 16 MiB is 128 MiB
        ({}, 16 * MIB + 2, 8, "larger than SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES=16777216"),
        ({}, 16 * MIB, 72, "needs 150994944 bytes, more than SMDDP_AG_SORT_BUFFER_SIZE_BYTES=134217728"),
        ({modes.SCRATCH: str(32 * MIB)}, 32 * MIB, 32, None),
        ({modes.SCRATCH: "8192", modes.SORT: "8192"}, 8192, 8, None),
        ({modes.SCRATCH: "16384", modes.SORT: "8192"}, 8200, 8, "needs 8200 bytes"),
    ],
)
def test_what_all_gather_takes(variables, input_bytes, group_size, words):
    """``model-parallel-extended-features-pytorch-sharded-data-parallelism``, "Performance and memory tuning"."""
    engines = smddp_engines(Launcher.TORCHRUN, variables, "2.6.0", "ml.p4d.24xlarge")
    obstacle = engines.gather_obstacle(input_bytes, group_size)
    assert obstacle is None if words is None else words in obstacle


def test_what_all_gather_never_takes():
    by_torchrun = smddp_engines(Launcher.TORCHRUN, {}, "2.6.0", "ml.p4d.24xlarge")
    assert "floating-point" in by_torchrun.gather_obstacle(8, 8, floating_point=False)
    assert "started by mpirun" in smddp_engines(Launcher.MPI, {}, "2.6.0", None).gather_obstacle(8, 8)


@pytest.mark.parametrize("text", ["16MB", "0", "-8192", "8193", "1e9", "²"])
def test_a_buffer_that_smddp_does_not_take(text):
    with pytest.raises(SageMakerJobError, match="multiples of 8192 bytes. HINT") as error:
        smddp_engines(Launcher.TORCHRUN, {modes.SORT: text}, "2.6.0", None)
    assert text in str(error.value)


def test_a_version_that_is_none():
    with pytest.raises(SageMakerJobError, match="HINT"):
        smddp_engines(Launcher.TORCHRUN, {}, "newest", None)
    assert smddp_engines(Launcher.TORCHRUN, {}, "2.6.0.post1+cu124", None).mode is SmddpMode.ALL_GATHER


@pytest.mark.parametrize(("version", "leaks"), [("2.0.1", True), ("2.0.2", True), ("2.1.0", False), ("1.8.0", False)])
def test_the_known_leak(version, leaks):
    """``data-parallel-release-notes``: known issue of 2.0.1 with AllReduce, fixed in 2.1.0."""
    assert bool(smddp_engines(Launcher.SMDDPRUN, {}, version, "ml.p4d.24xlarge").notes) is leaks
    assert not smddp_engines(Launcher.TORCHRUN, {}, version, "ml.p4d.24xlarge").notes


def test_of_a_job():
    """The shim stands in for the newest SMDDP, except in a real job, which has it or not."""
    torchrun = {"launcher": Launcher.TORCHRUN, "smddp_variables": {}}
    assert job_engines(SageMakerJob(**torchrun)).all_gather.name == "smddp"
    assert job_engines(SageMakerJob(**torchrun)).all_reduce.name == "gloo"
    assert job_engines(SageMakerJob(**torchrun, in_container=True)).all_gather.name == "gloo"
    kinds = {"in_container": True, "simulated": True, "num_gpus": 8}
    assert job_engines(SageMakerJob(**torchrun, **kinds, instance_type="ml.p3dn.24xlarge")).all_gather.name == "nccl"
    by_mpirun = SageMakerJob(launcher=Launcher.MPI, smddp_variables=SDP)
    assert job_engines(by_mpirun).mode is SmddpMode.ALL_GATHER


def test_the_variables_are_read_with_the_job():
    job = SageMakerJob.from_environment({**SDP, modes.SCRATCH: "8192", "SMDATAPARALLEL_OTHER": "1"})
    assert job.smddp_variables == {**SDP, modes.SCRATCH: "8192"}


def test_imported_without_torch():
    code = "import lightning_sagemaker.smddp_modes, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
