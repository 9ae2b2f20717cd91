# SPDX-License-Identifier: Apache-2.0
"""Processes that Lightning starts: every start method and name of ``ddp`` for our strategies, equal to the last bit."""

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import fork_ranks, run_bounded

WORKER = Path(__file__).with_name("starting_worker.py")
METHODS = ("spawn", "fork", "forkserver", "popen")
CLASSES = ("SMDDPStrategy", "SageMakerDDPStrategy")
UNUSED = ("", "_find_unused_parameters_true", "_find_unused_parameters_false")
FORKED = [f"smddp_{method}{unused}" for method in ("fork", "notebook") for unused in UNUSED]
FORKED += ["sagemaker_fork", "sagemaker_notebook"]


def run(folder: Path, *cases: str) -> dict:
    out = folder / f"{cases[0].replace(':', '-')}.json"
    fork_ranks(WORKER, out, *cases, processes=0)
    return json.loads(out.read_text())


def test_forked_processes_equal_ddps(tmp_path):
    """By name; the main process has the weights, metrics and best checkpoint of the first."""
    trainer, fabric = (
        [f"{kind}:{name}" for name in ("ddp_fork", *names)]
        for kind, names in (
            ("Trainer", FORKED[:2] + FORKED[-1:]),
            ("Fabric", ("smddp_fork", "sagemaker_notebook")),
        )
    )
    results = run(tmp_path, *trainer, *fabric)
    assert len(results) == len(trainer) + len(fabric)
    for cases in (trainer, fabric):
        for case in cases:
            assert results[case] == results[cases[0]], case
    assert results["Fabric:ddp_fork"]["ranks"] == [0, 1]
    assert "FINISHED" in results["Trainer:ddp_fork"]["state"].upper()


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["Trainer", "Fabric"])
def test_each_start_method_equals_ddps(tmp_path, kind, method):
    # From a fork server Lightning's own processes train one and the same weights, in memory that they share.
    stock = f"{kind}:DDPStrategy={'spawn' if method == 'forkserver' else method}"
    cases = [stock, *(f"{kind}:{name}={method}" for name in CLASSES)]
    results = [run(tmp_path, case)[case] for case in cases]
    assert results == [results[0]] * len(cases)


@pytest.mark.slow
def test_every_name_equals_ddps(tmp_path):
    cases = [f"Trainer:{name}" for name in ("ddp_fork", *FORKED)]
    results = run(tmp_path, *cases)
    assert list(results.values()) == [results[cases[0]]] * len(cases)


@pytest.mark.slow
def test_in_an_interactive_interpreter(tmp_path):
    out = tmp_path / "out.json"
    cases = [f"Trainer:{name}" for name in ("auto", "sagemaker", "smddp_notebook")]
    run_bounded([sys.executable, "-i", WORKER, out, *cases])
    results = json.loads(out.read_text())
    assert list(results.values()) == [results[cases[0]]] * len(cases)
