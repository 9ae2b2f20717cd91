# SPDX-License-Identifier: Apache-2.0
"""Loaders of which a loop's body takes batches itself go on where they were."""

import gc
from pathlib import Path

import pytest
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

from lightning_sagemaker import InterruptibleLoop
from lightning_sagemaker._compat.fabric import all_iterations, is_listed, observe
from lightning_sagemaker.callbacks.fabric_carried import NotCarried
from tests.callbacks.fabric_runs import plain_runs, start
from tests.callbacks.test_fabric_passed import lines_of

WORKER = Path(__file__).with_name("carried_worker.py")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return plain_runs(WORKER, tmp_path_factory.mktemp)


@pytest.mark.parametrize(
    ("ranks", "stops"), [(1, [[0, 0]]), (1, [[0, 2], [1, 3]]), (1, [[1, 0]]), (1, [[0, 5]]), (2, [[0, 3], [2, 1]])]
)
def test_goes_on_as_if_it_had_been_left_alone(ranks, stops, reference, tmp_path):
    for stop in stops:
        assert start(WORKER, tmp_path, ranks, "ours", stop) != 0, (tmp_path / "log").read_text()
    assert start(WORKER, tmp_path, ranks, "ours") == 0, (tmp_path / "log").read_text()
    for rank in range(ranks):
        found, written = lines_of(tmp_path, rank)
        assert found == lines_of(reference[ranks], rank)[0]
        assert written == len(found)


def loaders(number):
    """Set up with Fabric, one after the other."""
    fabric = Fabric(accelerator="cpu", devices=1)
    return [fabric.setup_dataloaders(DataLoader(range(4))) for _ in range(number)]


def test_loaders_of_each_epoch_are_not_kept(tmp_path):
    (before,) = loaders(1)
    known = len(all_iterations())
    loop = InterruptibleLoop(Fabric(accelerator="cpu", devices=1), tmp_path, {}, save_every=None)
    for _ in loop.epochs(3):
        (loader,) = loaders(1)
        assert is_listed(loader)
        assert list(loop.batches(loader))
        assert len(all_iterations()) == known
    del before
    gc.collect()
    assert len(all_iterations()) < known


@pytest.mark.parametrize("kind", ["next", "anew"])
def test_a_loader_that_the_body_advances_is_named_where_it_is_not_carried(kind, recwarn):
    (loader,) = loaders(1)
    step = None
    observe(NotCarried(lambda: step))
    try:
        others = iter(loader)
        for step in range(3):  # noqa: B007
            next(iter(loader) if kind == "anew" else others)
    finally:
        observe(None)
    said = [str(one.message) for one in recwarn if "takes batches of a loader itself" in str(one.message)]
    assert len(said) == (kind != "anew")
