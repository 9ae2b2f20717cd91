# SPDX-License-Identifier: Apache-2.0
"""What a restart could not read is refused before there is work to lose."""

import collections
import os
import random
import signal
import threading

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric
from torch.optim import lr_scheduler

from lightning_sagemaker import InterruptibleLoop
from lightning_sagemaker._compat.fabric import inner_loader
from lightning_sagemaker.callbacks.fabric_data import LoopData
from lightning_sagemaker.callbacks.fabric_values import restore_loop_generators
from lightning_sagemaker.checkpoint.atomic_write import CheckpointError
from lightning_sagemaker.checkpoint.generators import generator_state
from tests.conftest import new_process


class Meter:
    """Without a state of its own."""

    def __init__(self, total=0.0):
        self.total = total


class HasState(Meter):
    """Whose state is not plain data."""

    def state_dict(self):
        return {"meter": Meter(self.total)}

    def load_state_dict(self, state):
        self.total = state["meter"].total


def loop_of(folder, state, **options):
    return InterruptibleLoop(Fabric(accelerator="cpu", devices=1), folder, state, **options)


def stopped(folder, state, change=lambda state: None, **options):
    """A loop that is stopped in its first epoch."""

    def run():
        loop = loop_of(folder, state, **options)
        for _ in loop.epochs(2):
            for _ in loop.batches([1, 2, 3]):
                change(state)
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit):
        run()


def resumed(folder, state, **options):
    new_process()
    loop = loop_of(folder, state, **options)
    for _ in loop.epochs(2):
        for _ in loop.batches([1, 2, 3]):  # before, the values are those of the epoch's beginning
            return state


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Meter(), "holds a Meter"),
        (HasState(), "holds a Meter"),
        ({"a": [torch.Generator()]}, "holds a Generator"),
        (lambda: 1, "holds a function"),
        (threading.Lock(), "holds a lock"),
        (np.array(["a"]), "holds an array of <U1"),
        ([torch.nn.Linear(1, 1)], "holds a Linear"),
    ],
)
def test_what_could_not_be_read_is_refused_at_once(value, words, tmp_path):
    with pytest.raises(ValueError, match=rf"state\['x'\] {words}.*HINT: .*InterruptibleLoop\(weights_only=False\)"):
        loop_of(tmp_path, {"x": value})


def test_any_object_if_the_file_is_trusted(tmp_path):
    stopped(tmp_path, {"meter": Meter(1.0), "other": HasState(2.0)}, weights_only=False)
    found = resumed(tmp_path, {"meter": Meter(), "other": HasState()}, weights_only=False)
    assert (found["meter"].total, found["other"].total) == (1.0, 2.0)


def test_what_comes_into_the_state_later_is_written_with_a_warning(tmp_path, recwarn):
    stopped(tmp_path, {"x": 1}, lambda state: state.update(x=Meter(3.0)))
    assert any("a restart will not read the checkpoint. HINT" in str(one.message) for one in recwarn)
    with pytest.raises(CheckpointError, match=r"HINT: .*InterruptibleLoop\(weights_only=False\)"):
        resumed(tmp_path, {"x": 1})
    assert resumed(tmp_path, {"x": 1}, weights_only=False)["x"].total == 3.0


def test_values_are_those_of_the_stop(tmp_path):
    def state():
        counts = collections.defaultdict(list)
        return {"best": 1e9, "recent": collections.deque(maxlen=2), "counts": counts, "rows": [], "half": None}

    def change(found):
        found["best"] = np.float64(0.5)
        found["recent"].extend([1, 2, 3])
        found["counts"]["a"].append(np.arange(3))
        found["rows"].append({"a": ("deque", 1)})  # as a stored value begins
        found["half"] = torch.ones(2, dtype=torch.float16)

    stopped(tmp_path, state(), change)
    own = state()
    recent, counts = own["recent"], own["counts"]
    found = resumed(tmp_path, own)
    assert (found["best"], type(found["best"])) == (0.5, np.float64)
    assert found["recent"] is recent
    assert [*recent] == [2, 3]
    assert found["counts"] is counts
    assert counts["a"][0].tolist() == [0, 1, 2]
    assert counts["b"] == []
    assert found["rows"] == [{"a": ("deque", 1)}]
    assert found["half"].tolist() == [1, 1]
    assert found["half"].dtype == torch.float16


def test_torch_schedules_are_accepted(tmp_path):
    made = {
        "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step),
        "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5),
        "CyclicLR": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.1, 0.2),
        "Plateau": lr_scheduler.ReduceLROnPlateau,
        "Cosine": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3),
        "Sequential": lambda optimizer: lr_scheduler.SequentialLR(
            optimizer, [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)], [2]
        ),
    }
    for name, make in made.items():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1, momentum=0.9)
        state = {"optimizer": optimizer, name: make(optimizer)}
        stopped(tmp_path / name, state)
        assert resumed(tmp_path / name, state) is state


def test_a_number_of_numpy_in_a_schedule(tmp_path):
    """``schedule.step(np.mean(losses))``, of which the schedule keeps the least."""

    def state():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)
        return {"optimizer": optimizer, "schedule": lr_scheduler.ReduceLROnPlateau(optimizer)}

    stopped(tmp_path, state(), lambda found: found["schedule"].step(np.mean([1.0, 2.0])))
    assert resumed(tmp_path, state())["schedule"].best == 1.5


def test_objects_stay_the_same_when_a_checkpoint_is_saved(tmp_path):
    state = {"recent": collections.deque([1], maxlen=2), "noise": random.Random(1), "rows": []}
    objects = dict(state)
    loop = loop_of(tmp_path, state)
    for _ in loop.epochs(1):
        for _ in loop.batches([1]):
            pass
        state["rows"].append(1)
        drawn = state["noise"].getstate()
        loop.save()
    assert all(state[name] is value for name, value in objects.items())
    assert state["rows"] == [1]
    assert state["noise"].getstate() == drawn
    assert resumed(tmp_path, dict(state))["rows"] == []  # as at the last batch's end


def test_generators_of_another_number_of_ranks():
    ranks = [{"noise": generator_state(torch.Generator().manual_seed(rank))} for rank in range(2)]
    for rank in range(3):
        state = {"noise": torch.Generator().manual_seed(0)}
        restore_loop_generators(state, ranks, rank)
        assert state["noise"].initial_seed() == (rank if rank < 2 else 0)


class SaysItself(torch.utils.data.DataLoader):
    """A loader with a state of its own, as torchdata's."""

    begun = 0

    def state_dict(self):
        return {"begun": self.begun}

    def load_state_dict(self, state):
        self.begun = state["begun"]


def test_a_loader_that_fabric_has_set_up_has_its_own_state(tmp_path):
    def state():
        fabric = Fabric(accelerator="cpu", devices=1)
        return {"loader": fabric.setup_dataloaders(SaysItself([1, 2]), use_distributed_sampler=False)}

    stopped(tmp_path, state(), lambda found: setattr(inner_loader(found["loader"]), "begun", 5))
    own = state()
    loader = own["loader"]
    assert resumed(tmp_path, own)["loader"] is loader
    assert inner_loader(loader).begun == 5


class Continues(SaysItself):
    """A loader that can go on once: torchdata's raises if a state is loaded while another one is to be."""

    def __iter__(self):
        for number in range(self.begun + 1, 5):
            self.begun = number
            yield number
        self.begun = 0

    def load_state_dict(self, state):
        assert self.begun == 0, "it has been loaded"
        super().load_state_dict(state)


def test_a_loader_in_the_state_that_the_loop_iterates_over_goes_on_once(tmp_path):
    seen = []

    def run(stop):
        new_process()
        fabric = Fabric(accelerator="cpu", devices=1)
        loader = fabric.setup_dataloaders(Continues([1, 2, 3, 4]), use_distributed_sampler=False)
        loop = loop_of(tmp_path, {"loader": loader})
        for _ in loop.epochs(2):
            for number in loop.batches(loader):
                seen.append(number)
                if len(seen) == stop:
                    os.kill(os.getpid(), signal.SIGTERM)

    for stop in (2, 6):
        with pytest.raises(SystemExit):
            run(stop)
    run(None)
    assert seen == [1, 2, 3, 4, 1, 2, 3, 4]


def test_a_module_that_a_strategy_has_not_loaded_is(tmp_path):
    """FSDP's strategy returns the states of what is not sharded."""
    average = torch.nn.Linear(1, 1)
    data = LoopData({"average": average}, weights_only=True)
    content = {"average": {"weight": torch.ones(1, 1), "bias": torch.zeros(1)}}
    data.put(content, (), torch.device("cpu"))
    assert [one.item() for one in average.parameters()] == [1, 0]


def test_a_strategy_that_shards_parameters_is_refused(tmp_path):
    fabric = Fabric(strategy="smddp_fsdp", accelerator="cpu", devices=1)
    with pytest.raises(ValueError, match=r"FabricSMDDPFSDPStrategy writes sharded checkpoints itself.*HINT: use"):
        InterruptibleLoop(fabric, tmp_path, {"step": 0})
