# SPDX-License-Identifier: Apache-2.0
import contextlib
import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_sagemaker.parallel import sharding
from lightning_sagemaker.parallel.degrees import ParallelConfigError, ParallelDegrees
from lightning_sagemaker.parallel.keys import BY_NAME, KEYS, KeySupport
from lightning_sagemaker.parallel.schedule import SCHEDULES

ORDERS = ["".join(order) for order in itertools.permutations("DPT")]

# AWS's documented tables: (placement, P, T, world) -> groups.
DOCUMENTED = {
    ("spread", 2, 1, 8): {"MP": [[0, 4], [1, 5], [2, 6], [3, 7]], "DP": [[0, 1, 2, 3], [4, 5, 6, 7]]},
    ("cluster", 2, 1, 8): {"MP": [[0, 1], [2, 3], [4, 5], [6, 7]], "DP": [[0, 2, 4, 6], [1, 3, 5, 7]]},
    ("cluster", 4, 1, 8): {"MP": [[0, 1, 2, 3], [4, 5, 6, 7]], "DP": [[0, 4], [1, 5], [2, 6], [3, 7]]},
    ("spread", 4, 1, 8): {"MP": [[0, 2, 4, 6], [1, 3, 5, 7]], "DP": [[0, 1], [2, 3], [4, 5], [6, 7]]},
    ("DPT", 2, 2, 8): {
        "MP": [[0, 1, 2, 3], [4, 5, 6, 7]],
        "DP": [[0, 1, 4, 5], [2, 3, 6, 7]],
        "TP": [[0, 1], [2, 3], [4, 5], [6, 7]],
        "RDP": [[0, 4], [1, 5], [2, 6], [3, 7]],
    },
    ("TPD", 2, 2, 8): {
        "MP": [[0, 2, 4, 6], [1, 3, 5, 7]],
        "DP": [[0, 1, 4, 5], [2, 3, 6, 7]],
        "TP": [[0, 4], [1, 5], [2, 6], [3, 7]],
        "RDP": [[0, 1], [2, 3], [4, 5], [6, 7]],
    },
    ("PTD", 2, 2, 8): {
        "MP": [[0, 2, 4, 6], [1, 3, 5, 7]],
        "DP": [[0, 1, 2, 3], [4, 5, 6, 7]],
        "TP": [[0, 2], [1, 3], [4, 6], [5, 7]],
        "RDP": [[0, 1], [2, 3], [4, 5], [6, 7]],
    },
    ("DTP", 2, 2, 8): {
        "MP": [[0, 1, 2, 3], [4, 5, 6, 7]],
        "DP": [[0, 2, 4, 6], [1, 3, 5, 7]],
        "TP": [[0, 2], [1, 3], [4, 6], [5, 7]],
        "RDP": [[0, 4], [1, 5], [2, 6], [3, 7]],
    },
    ("cluster", 2, 1, 2): {"MP": [[0, 1]], "DP": [[0], [1]]},
    ("cluster", 1, 1, 2): {"MP": [[0], [1]], "DP": [[0, 1]]},
    ("spread", 2, 1, 4): {"MP": [[0, 2], [1, 3]], "DP": [[0, 1], [2, 3]]},
}


@pytest.mark.parametrize("layout", DOCUMENTED, ids=str)
def test_groups_are_those_of_the_documentation(layout):
    placement, pipeline, tensor, world = layout
    degrees = ParallelDegrees(pipeline=pipeline, tensor=tensor, placement=placement)
    for kind, groups in DOCUMENTED[layout].items():
        assert sorted(degrees.groups(kind, world)) == groups


def test_documented_process():
    spread = ParallelDegrees(pipeline=2, placement="spread")
    assert spread.group_of("MP", 6, 8).index(6) == 1
    assert spread.group_of("DP", 6, 8).index(6) == 2
    cluster = ParallelDegrees(pipeline=2, placement="cluster")
    assert cluster.group_of("MP", 6, 8).index(6) == 0
    assert cluster.group_of("DP", 6, 8).index(6) == 3


@pytest.mark.parametrize("order", ORDERS)
def test_every_world_size_to_64(order):
    for world in range(1, 65):
        for pipeline, tensor in itertools.product(range(1, world + 1), repeat=2):
            if world % (pipeline * tensor):
                continue
            degrees = ParallelDegrees(pipeline=pipeline, tensor=tensor, placement=order)
            sizes = {"D": world // (pipeline * tensor), "P": pipeline, "T": tensor}
            assert degrees.replicas(world) == sizes["D"]
            for rank in range(world):
                at = degrees.coordinates(rank, world)
                digit = {"D": at.replica, "P": at.pipeline, "T": at.tensor}
                first, second, third = order
                assert rank == (digit[first] * sizes[second] + digit[second]) * sizes[third] + digit[third]
                assert all(0 <= digit[letter] < sizes[letter] for letter in order)


@pytest.mark.parametrize("world", [1, 2, 6, 8, 12, 24, 36, 48, 64])
def test_groups_divide_the_world(world):
    expected = {"PP": "P", "TP": "T", "RDP": "D", "MP": "PT", "DP": "DT"}
    for pipeline, tensor, order in itertools.product((1, 2, 3, 4), (1, 2, 3), ORDERS):
        if world % (pipeline * tensor):
            continue
        degrees = ParallelDegrees(pipeline=pipeline, tensor=tensor, placement=order)
        sizes = {"D": world // (pipeline * tensor), "P": pipeline, "T": tensor}
        for kind, letters in expected.items():
            groups = degrees.groups(kind, world)
            assert sorted(rank for group in groups for rank in group) == list(range(world))
            size = 1
            for letter in letters:
                size *= sizes[letter]
            assert {len(group) for group in groups} == {size}


def test_parameters_of_the_first_generation():
    parameters = {
        "partitions": 4,
        "microbatches": "4",
        "placement_strategy": "spread",
        "pipeline": "interleaved",
        "optimize": "speed",
        "ddp": "True",
    }
    degrees, notes = ParallelDegrees.from_parameters(parameters)
    assert notes == []
    assert (degrees.pipeline, degrees.microbatches, degrees.placement, degrees.ddp) == (4, 4, "spread", True)
    assert degrees.optimize == "speed"
    assert degrees.replicas(8) == 2


def test_every_schedule_can_be_asked_for():
    for name in SCHEDULES:
        assert ParallelDegrees.from_parameters({"partitions": 2, "pipeline": name})[0].schedule == name


def test_parameters_of_the_second_generation():
    degrees, notes = ParallelDegrees.from_parameters({"tensor_parallel_degree": 2, "sm_activation_offloading": False})
    assert (degrees.pipeline, degrees.tensor, degrees.ddp, degrees.replicas(8)) == (1, 2, True, 4)
    assert degrees.shards(8) == 4  # the default of hybrid_shard_degree is all
    assert ParallelDegrees.from_parameters({"hybrid_shard_degree": 2})[0].shards(8) == 2
    assert len(notes) == 1


@pytest.mark.parametrize("key", [key for key in KEYS if key.kind is not object], ids=lambda key: key.name)
def test_every_key_is_used_reported_or_refused(key):
    other = {bool: not key.default, str: None, int: 2, float: 0.5}[key.kind]
    if other is None:
        other = {"pipeline": "simple", "optimize": "speed", "placement_strategy": "spread"}.get(key.name, "nccl")
    base = {"partitions": 4} if key.name != "pipeline_parallel_degree" and key.version != 2 else {}
    base |= {"auto_partition": False} if key.name == "default_partition" else {}
    if key.support is KeySupport.REFUSED:
        with pytest.raises(ParallelConfigError, match=f"{key.name}.*HINT"):
            ParallelDegrees.from_parameters({**base, key.name: other})
        ParallelDegrees.from_parameters({**base, key.name: key.default})
        return
    reference, _ = ParallelDegrees.from_parameters(base)
    degrees, notes = ParallelDegrees.from_parameters({**base, key.name: other})
    if key.support is KeySupport.NO_OP:
        assert degrees == ParallelDegrees.from_parameters({**base, key.name: key.default})[0]
        assert len(notes) == 1
        assert key.name in notes[0]
    else:
        assert notes == []
        assert degrees != reference


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"partition": 2}, "did you mean partitions"),
        ({"zzz": 2}, "known keys are"),
        ({"partitions": 0}, "at least 1"),
        ({"partitions": "two"}, "an integer"),
        ({"partitions": 2.5}, "an integer"),
        ({"partitions": True}, "an integer"),
        ({"partitions": float("nan")}, "an integer"),
        ({"ddp": "perhaps"}, "true or false"),
        ({"pipeline": "fast"}, "interleaved, simple"),
        ({"memory_weight": 2}, "0 to 1"),
        ({"placement_strategy": "DPX"}, "letters D, P and T"),
        ({"partitions": 2, "pipeline_parallel_degree": 4}, "are aliases"),
        ({"partitions": 2, "auto_partition": False, "default_partition": 2}, "at most 1"),
        ({"tensor_parallel_degree": 0}, "at least 1"),
        ({"hybrid_shard_degree": 2, "ddp": True}, "use one version"),
        ({"fp16": True}, "precision"),
    ],
)
def test_bad_parameters_are_refused(parameters, message):
    with pytest.raises(ParallelConfigError, match=message) as raised:
        ParallelDegrees.from_parameters(parameters)
    assert "HINT" in str(raised.value)


@pytest.mark.parametrize(
    ("degrees", "world", "message"),
    [
        (ParallelDegrees(pipeline=4), 6, "start 8"),
        (ParallelDegrees(pipeline=2, ddp=False), 4, '"ddp": true'),
    ],
)
def test_degrees_that_do_not_fit_the_processes_are_refused(degrees, world, message):
    with pytest.raises(ParallelConfigError, match=f"{message}"):
        degrees.replicas(world)


def test_a_torch_that_cannot_shard_on_a_cpu_is_named(monkeypatch):
    monkeypatch.setattr(sharding, "SHARDS_ON_CPU", False)
    sharding.check_shardable("cuda")
    with pytest.raises(ParallelConfigError, match=r"need torch 2\.6, and this is torch .* HINT"):
        sharding.check_shardable("cpu")


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # the first text takes a second
@given(
    st.dictionaries(
        st.sampled_from([*BY_NAME, "other"]),
        st.none() | st.booleans() | st.floats() | st.text() | st.lists(st.integers()),
    )
)
def test_any_parameters_are_read_or_refused(parameters):
    with contextlib.suppress(ParallelConfigError):
        assert ParallelDegrees.from_parameters(parameters)[0].pipeline >= 1
