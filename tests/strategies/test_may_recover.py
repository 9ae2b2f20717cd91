# SPDX-License-Identifier: Apache-2.0
"""Which strategies recover in the job under a supervisor."""

from __future__ import annotations

import pytest
from lightning.pytorch.strategies import DDPStrategy

from lightning_sagemaker import SageMakerDDPStrategy, SMDDPFSDPStrategy, SMDDPStrategy, SMPShardedStrategy
from lightning_sagemaker._compat.fsdp_groups import CAN_BEGIN_AGAIN
from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.recovery import wire
from lightning_sagemaker.recovery.coordinator_client import RecoveryError
from lightning_sagemaker.strategies.in_job import InJobDDPStrategy
from lightning_sagemaker.strategies.in_job_fsdp import InJobFSDPStrategy


def supervised(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    """A process that a supervisor has started."""
    for name, value in (
        (wire.MODE, "in_job"),
        (wire.ADDRESS, "127.0.0.1:1"),
        ("WORLD_SIZE", str(ranks)),
        ("RANK", "0"),
    ):
        monkeypatch.setenv(name, value)
    for name, value in (("LOCAL_WORLD_SIZE", str(ranks)), ("LOCAL_RANK", "0"), ("TORCHELASTIC_RUN_ID", "a")):
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("ranks", "arguments", "recovers"),
    [
        (4, {"hybrid_shard_degree": 2}, True),
        (4, {"hybrid_shard_degree": 2, "recovery": "restart"}, False),
        (4, {"parameters": {"hybrid_shard_degree": 2}}, True),
        (4, {"hybrid_shard_degree": 2, "save_distributed_checkpoint": True}, True),
        (4, {"hybrid_shard_degree": 2, "async_checkpoint": True}, False),
        (4, {"hybrid_shard_degree": 4}, False),
        (4, {"hybrid_shard_degree": 1}, False),
        (4, {}, False),
        (8, {"parameters": {"hybrid_shard_degree": 2, "tensor_parallel_degree": 2}}, False),
    ],
)
def test_what_recovers_in_the_job(monkeypatch, ranks, arguments, recovers):
    supervised(monkeypatch, ranks)
    strategy = SMDDPFSDPStrategy(**arguments)
    assert isinstance(strategy, SMPShardedStrategy)
    assert isinstance(strategy, InJobFSDPStrategy) == (recovers and CAN_BEGIN_AGAIN)


def test_what_is_asked_for(monkeypatch):
    supervised(monkeypatch, 4)
    if CAN_BEGIN_AGAIN:
        assert isinstance(SMDDPFSDPStrategy(hybrid_shard_degree=2, recovery="in_job"), InJobFSDPStrategy)
    else:
        with pytest.raises(RecoveryError, match="cannot resume FSDP after a failed step"):
            SMDDPFSDPStrategy(hybrid_shard_degree=2, recovery="in_job")


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({}, RecoveryError, "there is one replica of the model"),
        ({"hybrid_shard_degree": 3}, ParallelConfigError, "the shard degree 3 was set, but there are 4 model replicas"),
        (
            {"parameters": {"hybrid_shard_degree": 2, "tensor_parallel_degree": 2}},
            RecoveryError,
            "tensor_parallel_degree=2",
        ),
    ],
)
def test_what_is_asked_for_and_cannot(monkeypatch, arguments, error, sentence):
    supervised(monkeypatch, 4)
    with pytest.raises(error, match=sentence):
        SMDDPFSDPStrategy(**arguments, recovery="in_job")


class Own(SMDDPStrategy):
    """A script's strategy."""


class OwnShards(SMDDPFSDPStrategy):
    """Likewise."""


@pytest.mark.parametrize("kind", [SMDDPStrategy, SageMakerDDPStrategy])
def test_data_parallel_strategies_do(monkeypatch, kind):
    assert type(kind()) is kind
    supervised(monkeypatch, 2)
    assert type(kind()) is InJobDDPStrategy
    assert isinstance(kind(), kind)  # as scripts ask
    assert isinstance(kind(), DDPStrategy)
    assert not isinstance(kind(), SMPShardedStrategy)
    assert type(kind(recovery="restart")) is kind


@pytest.mark.parametrize(("kind", "arguments"), [(Own, {}), (OwnShards, {"hybrid_shard_degree": 2})])
def test_a_class_of_the_scripts_own_keeps_its_overrides(monkeypatch, caplog, kind, arguments):
    supervised(monkeypatch, 4)
    with caplog.at_level("INFO"):
        assert type(kind(**arguments)) is kind
    assert f"{kind.__name__} is a strategy of this script's own" in caplog.text
    with pytest.raises(RecoveryError, match="strategy of this script's own.*HINT: leave it out"):
        kind(**arguments, recovery="in_job")
