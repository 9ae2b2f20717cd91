# SPDX-License-Identifier: Apache-2.0
"""Batches of other forms than a dict of tensors, and models that branch on what they compute, equal one process."""

from pathlib import Path

import pytest
import torch

from tests.conftest import Runs, fork_ranks, read_ranks

WORKER = Path(__file__).with_name("varied_worker.py")
BATCHES = ["Collated", "Popped", "Dataclass", "Named", "Ragged", "Equal", "Zipped", "Unsplit"]
MODELS = ["Experts", "Mixtral", "XLNet", "Own", *(["Compiled"] if hasattr(torch.compiler, "set_stance") else [])]
TWICE = ["Popped", "Named"]
"""With two stages on each process, which runs the step twice for each microbatch."""


def launched(folder: Path, processes: int, *arguments) -> list[dict]:
    fork_ranks(WORKER, folder, *arguments, processes=processes)
    return read_ranks(folder)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return launched(tmp_path_factory.mktemp("alone"), 0, 1)[0]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return Runs(lambda stages: launched(tmp_path_factory.mktemp("ranks"), 2, stages, *(TWICE if stages > 1 else ())))


@pytest.mark.parametrize(
    ("case", "stages"), [*((case, 1) for case in BATCHES + MODELS), *((case, 2) for case in TWICE)]
)
def test_losses_metrics_weights_and_predictions_equal_one_process(alone, ranks, case, stages):
    expected = alone[case]
    assert len(expected["losses"]) == 3
    for found in (rank[case] for rank in ranks[stages]):
        assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-4)
        assert found["weights"] == pytest.approx(expected["weights"], rel=1e-4, abs=1e-5)
        assert found["predictions"] == pytest.approx(expected["predictions"], rel=1e-4, abs=1e-5)
