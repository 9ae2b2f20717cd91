# SPDX-License-Identifier: Apache-2.0
"""What can be asked of the reduction of gradients, which way is taken for the fastest, and stages one after the other."""

import threading
import time

import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lightning_sagemaker import SageMakerDDPStrategy, SageMakerJob, SMDDPStrategy
from lightning_sagemaker.collectives.reduction import choice
from lightning_sagemaker.collectives.reduction.choice import candidates, choose
from lightning_sagemaker.collectives.reduction.options import ReductionOptions
from lightning_sagemaker.collectives.reduction.pipeline import ThreadPipeline
from lightning_sagemaker.collectives.reduction.plan import Plan
from lightning_sagemaker.collectives.reduction.topology import Topology
from lightning_sagemaker.strategies.ddp import FabricSageMakerDDPStrategy
from lightning_sagemaker.strategies.factory import sagemaker_strategy
from lightning_sagemaker.strategies.smddp import FabricSMDDPStrategy

CPU = torch.device("cpu")
TWO_BY_TWO = Topology.of([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"gradient_reduction": "ring"},
            r"gradient_reduction='ring'.*HINT: choose one of 'flat', 'hierarchical', 'auto'",
        ),
        ({"gradient_compression": "int8"}, r"gradient_compression='int8'.*one of None, 'bf16', 'fp16', 'powersgd'"),
        ({"gradient_compression": ["bf16"]}, r"gradient_compression=\['bf16'\].*HINT"),
        ({"powersgd_rank": 2}, r"powersgd_rank=2 was set with gradient_compression=None.*HINT"),
        ({"gradient_compression": "powersgd", "powersgd_rank": 0}, "powersgd_rank=0.*integer >= 1"),
        ({"gradient_compression": "powersgd", "powersgd_start": 1.5}, r"powersgd_start=1\.5.*integer"),
        ({"gradient_reduction": "auto", "ddp_comm_hook": print}, "with ddp_comm_hook"),
        ({"gradient_compression": "bf16", "model_averaging_period": 4}, "with model_averaging_period"),
    ],
)
def test_a_wrong_option_is_one_error_when_the_strategy_is_made(wrong, message):
    fabrics = (FabricSageMakerDDPStrategy, FabricSMDDPStrategy) * (
        wrong.keys() <= {"gradient_reduction", "powersgd_rank"}
    )
    for kind in (SageMakerDDPStrategy, SMDDPStrategy, *fabrics):
        with pytest.raises(MisconfigurationException, match=message):
            kind(job=SageMakerJob(), **wrong)
    assert not torch.distributed.is_initialized()


def test_low_rank_refuses_gradients_that_overflow():
    options = ReductionOptions(compression="powersgd")
    options.check_precision("bf16-mixed")
    with pytest.raises(MisconfigurationException, match="precision='16-mixed'.*HINT"):
        options.check_precision("16-mixed")
    ReductionOptions(compression="fp16").check_precision("16-mixed")


def test_recovery_in_the_job_reduces_in_its_own_way():
    for kind in (SageMakerDDPStrategy, SMDDPStrategy):
        with pytest.raises(
            MisconfigurationException, match=r"gradient_compression='bf16' was set, but .*recovery='restart'"
        ):
            kind(job=SageMakerJob(), recovery="in_job", gradient_reduction="flat", gradient_compression="bf16")
        assert (
            kind(job=SageMakerJob(), recovery="restart", gradient_compression="bf16")._reduction.compression == "bf16"
        )


def test_a_users_hook_is_left_in_force():
    SMDDPStrategy(job=SageMakerJob(), ddp_comm_hook=print)


def test_the_options_pass_through_what_a_job_chooses(monkeypatch):
    monkeypatch.setattr(SageMakerJob, "from_environment", classmethod(lambda cls, *_: SageMakerJob()))
    assert sagemaker_strategy(gradient_compression="bf16")._reduction.compression == "bf16"


def test_ranks_of_hosts():
    assert TWO_BY_TWO.hosts == ((0, 1), (2, 3))
    assert TWO_BY_TWO.across == ((0, 2), (1, 3))
    assert TWO_BY_TWO.obstacle is None
    assert Topology.of([1, 0, 1, 0]).hosts == ((0, 2), (1, 3))  # ranks dealt out by host
    assert "one host" in Topology.of([0, 0]).obstacle
    assert "one process" in Topology.of([0, 1]).obstacle
    assert "different numbers of processes (2 hosts x 1 to 2 processes)" in Topology.of([0, 0, 1]).obstacle
    assert TWO_BY_TWO.description == "2 hosts x 2 processes"
    assert Topology.of([0, 1]).description == "2 hosts x 1 process"


def test_a_plan_goes_through_a_checkpoint():
    plan = Plan("hierarchical", "bf16", 4096)
    assert Plan.from_dict(plan.as_dict() | {"of a newer version": 1}) == plan


def test_what_was_not_asked_for_is_not_tried():
    assert all(plan.compression is None for plan in candidates(TWO_BY_TWO, None, CPU))
    assert {plan.compression for plan in candidates(TWO_BY_TWO, "bf16", CPU)} == {None, "bf16"}
    assert {plan.compression for plan in candidates(TWO_BY_TWO, "powersgd", CPU)} == {None, "powersgd"}
    assert {plan.algorithm for plan in candidates(Topology.of([0, 1]), "bf16", CPU)} == {"flat"}
    assert candidates(TWO_BY_TWO, "bf16", CPU)[0].is_plain


class Network:
    """Seconds of each plan by the bytes tried, and a clock that they move."""

    def __init__(self, per_byte: dict[Plan, float], offset: dict[Plan, float] | None = None) -> None:
        self.per_byte, self.now, self.sizes, self.tried = per_byte, 0.0, [], []
        self.offset = dict.fromkeys(per_byte, 1e-4) | (offset or {})

    def round(self, trials, size, begin, device):
        seconds = [self.offset[plan] + self.per_byte[plan] * size for plan in trials]
        self.now += sum(seconds)
        self.sizes.append(size)
        self.tried.append(list(trials))
        return [*seconds, self.now]


@pytest.mark.parametrize(
    ("other", "rate", "is_taken"),
    [(0.5, 1e9, True), (0.97, 1e9, False), (1.5, 1e9, False), (0.5, 1e5, True), (0.5, 1e12, True)],
)
def test_another_way_is_taken_where_it_is_faster_by_more_than_noise(monkeypatch, other, rate, is_taken):
    hierarchical = Plan("hierarchical")
    network = Network({Plan(): 1 / rate, hierarchical: other / rate})
    monkeypatch.setattr(choice, "_round", network.round)
    found = choose(dict.fromkeys(network.per_byte), 50 * 2**20, CPU)
    assert (found.plan == hierarchical) is is_taken
    assert found.tried_bytes <= 50 * 2**20
    assert network.now < 4.2  # what has begun by two seconds is finished, the slowest's first trial too
    assert found.seconds[Plan()] == pytest.approx(1e-4 + found.gradient_bytes / rate, rel=1e-3)


def test_plans_are_compared_for_all_gradients_not_for_what_was_tried(monkeypatch):
    """BERT-base on 2 hosts of 2 with links of 1 Gbit/s: a hierarchy's pipeline fills slowly, and pays from 12 MiB on."""
    flat, hierarchical, mebibyte = Plan("flat", "bf16"), Plan("hierarchical", "bf16"), 2**20
    per_byte = {Plan(): 14.5e-3 / mebibyte, flat: 7.9e-3 / mebibyte, hierarchical: 5.2e-3 / mebibyte}
    for slower in (1, 3):
        network = Network(
            {plan: slower * taken for plan, taken in per_byte.items()},
            {plan: slower * taken for plan, taken in ((flat, 0.006), (hierarchical, 0.035))},
        )
        monkeypatch.setattr(choice, "_round", network.round)
        found = choose(dict.fromkeys(per_byte), 418 * mebibyte, CPU)
        assert found.plan == hierarchical
        assert found.seconds[hierarchical] == pytest.approx(slower * (0.035 + 5.2e-3 * 418), rel=0.01)
        assert network.now < 2.2


def test_the_time_is_left_to_those_that_are_near_the_fastest(monkeypatch):
    plans = [Plan(), *(Plan("hierarchical", None, size) for size in range(1, 7))]
    network = Network(dict(zip(plans, [9e-9, 5e-9, 6e-9, 10e-9, 11e-9, 12e-9, 13e-9], strict=True)))
    monkeypatch.setattr(choice, "_round", network.round)
    found = choose(dict.fromkeys(plans), 2**30, CPU)
    assert found.plan == plans[1]
    assert network.tried[-1] == plans[1:3]
    assert found.tried_bytes >= 32 * 2**20
    assert set(found.seconds) == set(plans)


def test_a_small_model_is_tried_for_less_than_two_seconds(monkeypatch):
    network = Network({Plan(): 1e-9})
    monkeypatch.setattr(choice, "_round", network.round)
    assert choose({Plan(): None}, 1000, CPU).plan.is_plain
    assert network.now < 0.1
    assert set(network.sizes) == {1000}


def place(piece, result):
    piece.copy_(result)


def test_pieces_pass_the_stages_in_their_order_and_at_the_same_time():
    order, running, most = {"a": [], "b": []}, set(), []

    def stage(name):
        def work(value):
            running.add(name)
            most.append(len(running))
            order[name].append(int(value[0]))
            time.sleep(0.02)
            running.discard(name)
            return value + 1

        return work

    pipeline = ThreadPipeline([stage("a"), stage("b")], place)
    buffers = [torch.arange(10.0), torch.arange(10.0, 20.0)]
    futures = [pipeline.run(buffer, buffer.split(2)) for buffer in buffers]
    for future, buffer in zip(futures, buffers, strict=True):
        assert future.wait() is buffer or torch.equal(future.wait(), buffer)
    assert torch.equal(torch.cat(buffers), torch.arange(20.0) + 2)
    assert order["a"] == list(range(0, 20, 2))
    assert order["b"] == [number + 1 for number in order["a"]]
    assert max(most) == 2


def test_what_fails_in_a_stage_is_raised_where_the_gradients_are_waited_for():
    def stage(value):
        if value[0] == 1:
            raise ConnectionError("the other one is gone")
        return value

    pipeline = ThreadPipeline([stage, stage], place)
    good, bad = torch.zeros(4), torch.ones(4)
    first, failed, last = (pipeline.run(buffer, buffer.split(2)) for buffer in (good, bad, good))
    first.wait()
    last.wait()
    with pytest.raises(Exception, match="the other one is gone"):
        failed.wait()


def test_what_is_under_way_is_finished_without_the_pipeline():
    def slow(value):
        time.sleep(0.05)
        return value + 1

    buffer = torch.zeros(6)
    ThreadPipeline([slow, slow], place).run(buffer, buffer.split(2)).wait()
    assert torch.equal(buffer, torch.full((6,), 2.0))


def test_threads_end_with_the_pipeline():
    pipeline = ThreadPipeline([lambda value: value], place)
    buffer = torch.zeros(2)
    others = set(threading.enumerate())  # of other tests, which may end at any time
    pipeline.run(buffer, [buffer]).wait()
    own = set(threading.enumerate()) - others
    assert len(own) == 2
    del pipeline
    for thread in own:
        thread.join(10)
    assert not any(thread.is_alive() for thread in own)
