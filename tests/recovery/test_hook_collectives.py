# SPDX-License-Identifier: Apache-2.0
"""Which steps are expected to have hooks that communicate; the group is a real one, of this process."""

import pytest
import torch
import torch.distributed as dist

from lightning_sagemaker.collectives import clean_exit
from lightning_sagemaker.recovery.hook_collectives import HookCollectives


@pytest.fixture
def hooks(group_of_one):
    return HookCollectives(torch.device("cpu"))


def train(hooks, steps, every):
    """Steps that were expected to communicate, of which each ``every``-th does."""
    expected = []
    for step in steps:
        dist.all_reduce(torch.ones(1))  # of the step itself
        hooks.begin()
        if hooks.are_next(step):
            expected.append(step)
        if every and step % every == 0:
            dist.all_gather_object([None], step)
        hooks.end(step)
    return expected


def test_a_script_whose_hooks_do_not_is_not_slowed_down(hooks):
    assert train(hooks, range(1, 30), 0) == []


@pytest.mark.parametrize("every", [1, 10])
def test_the_first_time_tells_of_the_others(hooks, every):
    assert train(hooks, range(1, 41), every) == list(range(2 * every, 41, every))


def test_after_two_rhythms_all_steps_that_both_have_in_common_are_expected(hooks):
    train(hooks, [6], 6)
    train(hooks, [9], 9)
    assert train(hooks, range(10, 20), 0) == [12, 15, 18]


def test_a_device_that_the_group_has_no_backend_for(tmp_path):
    dist.init_process_group("cpu:gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        assert train(HookCollectives(torch.device("cuda", 0)), range(1, 4), 1) == [2, 3]
    finally:
        clean_exit.let_threads_finish()
        dist.destroy_process_group()
