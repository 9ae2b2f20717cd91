# SPDX-License-Identifier: Apache-2.0
"""Sharded parameters and AWS's own layers on the shim of ``smdistributed.modelparallel`` train as in one process."""

from pathlib import Path

import pytest

from tests.conftest import fork_ranks, read_ranks
from tests.skips import needs_shards

WORKER = Path(__file__).with_name("smp_parts_worker.py")


def run(folder, script):
    fork_ranks(WORKER, folder, script, processes=2)
    ranks = read_ranks(folder)
    for rank in ranks:
        for name in ("losses", "norms", "weights"):
            assert rank["found"][name] == pytest.approx(rank["expected"][name], abs=1e-5), name
    return [rank["found"] for rank in ranks], ranks[0]["expected"]


@needs_shards
def test_parameters_are_sharded(tmp_path):
    """Losses, norms and weights; gradients are clipped by the optimizer's step; it goes on from parts and wholes."""
    ranks, expected = run(tmp_path, "shards")
    assert sum(found["own"] for found in ranks) == ranks[0]["all"]
    for found in ranks:
        assert found["own"] < found["all"]
        assert found["states"] == 2 * found["own"]  # Adam's
        assert found["degree"] == 2
        assert found["files"] == [
            *(f"{kind}_0_0_{rank}.pt" for kind in ("model", "optimizer") for rank in (0, 1)),
            "user_content.pt",
        ]
        for name in ("partial", "states"):
            assert found["again"][name] == pytest.approx(expected["losses"][3:], abs=1e-5), name
        assert found["again"]["file"][0] == pytest.approx(expected["losses"][3], abs=1e-5)  # without the optimizer
        assert "with tensor_parallel_degree=2" in found["refused"]
        assert "HINT" in found["refused"]
        assert "stepped before the model was sharded" in found["stepped"]


def test_own_layers_are_shared(tmp_path):
    """A linear layer by its inputs, an embedding by the dimension of its vectors; the rest is refused."""
    ranks, expected = run(tmp_path, "layers")
    for found in ranks:
        losses, norms, weights, shared = found["alone"]  # torch's layers, trained without a step
        assert losses == pytest.approx(expected["losses"], abs=1e-5)
        assert norms == pytest.approx(expected["norms"], abs=1e-5)
        assert weights == pytest.approx(expected["weights"], abs=1e-5)
        assert shared == 2
        assert found["chain"] == pytest.approx(0, abs=1e-6)
        for name, away in found["models"].items():
            assert away is None or away < 1e-3, name
        assert "Network has no layer to shard. HINT: enable" in found["refused"]["none"]
        assert found["own"] == {"embed.weight": [11, 3], "head.weight": [3, 3]}
        assert "in_features=5" in found["refused"]["in_features"]
        assert "max_norm" in found["refused"]["max_norm"]
        assert "DistributedTransformerLayer was built" in found["refused"]["layer"]
