# SPDX-License-Identifier: Apache-2.0
"""Interrupted loops of one's own with Fabric equal the same loop in plain Fabric that was left alone."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from lightning.fabric import Fabric

from lightning_sagemaker import InterruptibleLoop
from tests.chaos.fabric_program import BATCHES, EPOCHS
from tests.conftest import ROOT, Runs, is_contract_variable
from tests.forked import run_forked

PROGRAM = Path(__file__).with_name("fabric_program.py")
USUAL = {"ranks": 1, "strategy": "sagemaker", "workers": 0, "persistent": False, "every": 1, "batch_size": 4}
USUAL |= {"same": False, "averages": False}
ALIKE = ("ranks", "every", "workers", "persistent", "same", "averages")
"""What the run that is left alone has as well, apart from the strategy."""


def case_of(**changes):
    strike = {"signal": "SIGTERM", "rank": -1, "at": ["batch", 1, 2]}
    return USUAL | {"ours": True, "strike": strike | changes.pop("strike", {})} | changes


CASES = {
    "in a batch": case_of(),
    "last batch": case_of(strike={"at": ["batch", 1, BATCHES - 1]}),
    "a strategy of Fabric": case_of(strategy="auto", strike={"signal": "SIGUSR1"}),
    "in an evaluation": case_of(strike={"at": ["evaluation", 1]}, workers=2),
    "in an evaluation of the same data": case_of(strike={"at": ["evaluation", 1]}, same=True),
    "in the first evaluation of averages": case_of(strike={"at": ["evaluation", 0]}, averages=True),
    "in an evaluation of averages": case_of(strike={"at": ["evaluation", 1]}, averages=True, ranks=2),
    "after an evaluation": case_of(strike={"at": ["epoch", 1]}, workers=2, persistent=True),
    "within accumulation": case_of(strike={"at": ["batch", 1, 3]}, every=3),
    "two ranks, workers": case_of(ranks=2, strategy="smddp", workers=2, strike={"signal": "SIGINT"}),
    "three ranks, persistent": case_of(ranks=3, workers=1, persistent=True, strike={"at": ["batch", 1, 4]}),
    "killed": case_of(ranks=2, saves=[1, 1], strike={"signal": "SIGKILL", "at": ["batch", 1, 4]}),
    "killed after an epoch's end": case_of(
        ranks=2, workers=2, saves=[0, "end"], strike={"signal": "SIGKILL", "at": ["batch", 1, 1]}
    ),
}


def start(folder, case, number):
    environment = {name: value for name, value in os.environ.items() if not is_contract_variable(name)}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    later = case.get("then", {}) if number else {}
    ranks = (case | later)["ranks"]
    command = [str(PROGRAM), str(folder), json.dumps(case), str(number)]
    return run_forked(command, ranks if ranks > 1 else 0, environment, folder / "log", 100)


def lines_of(folder, rank):
    return [json.loads(line) for line in (folder / f"rank-{rank}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    def make(key):
        folder = tmp_path_factory.mktemp("plain")
        case = USUAL | dict(zip(("strategy", *ALIKE), key, strict=True)) | {"ours": False, "strike": None}
        assert start(folder, case, 0) == 0, (folder / "log").read_text()
        return folder

    return Runs(make)


@pytest.mark.parametrize("name", CASES)
def test_goes_on_as_if_it_had_been_left_alone(name, reference, tmp_path):
    case = CASES[name]
    code = start(tmp_path, case, 0)
    assert code != 0
    assert not (tmp_path / "done").exists()
    assert ("a stop waits for its" in (tmp_path / "log").read_text()) is case["averages"]
    seen = [len(lines_of(tmp_path, rank)) for rank in range(case["ranks"])]
    assert 0 < min(seen) < EPOCHS * (BATCHES + 1)
    assert start(tmp_path, case, 1) == 0, (tmp_path / "log").read_text()
    strategy = "auto" if case["strategy"] == "auto" else "ddp"
    plain = reference[(strategy, *map(case.get, ALIKE))]
    for rank in range(case["ranks"]):
        done = lines_of(tmp_path, rank)
        assert {str(line["place"]): line for line in done} == {
            str(line["place"]): line for line in lines_of(plain, rank)
        }
        twice = {place for place, count in Counter(str(line["place"]) for line in done).items() if count > 1}
        assert len(twice) <= (3 if case["strike"]["signal"] == "SIGKILL" else 0)


@pytest.mark.parametrize(("before", "after"), [((2, 4), (1, 8)), ((1, 8), (2, 4))])
def test_on_other_ranks_each_sample_once(before, after, tmp_path):
    then = {"ranks": after[0], "batch_size": after[1], "size": BATCHES * before[0] * before[1]}
    case = case_of(ranks=before[0], batch_size=before[1], then=then)
    assert start(tmp_path, case, 0) != 0
    stopped = {rank: lines_of(tmp_path, rank)[-1]["place"] for rank in range(before[0])}
    assert stopped[0][0] == 1
    assert start(tmp_path, case, 1) == 0, (tmp_path / "log").read_text()
    ids = [
        index
        for rank in range(2)
        for line in lines_of(tmp_path, rank)
        if line["place"][:2] == [1, "batch"]
        for index in line["ids"]
    ]
    assert sorted(ids) == list(range(then["size"]))
    assert "each sample of the epoch is seen once" in (tmp_path / "log").read_text()


def test_the_page_has_a_loop_that_runs(tmp_path):
    page = (ROOT / "docs" / "interruptions.md").read_text().split("## Your own loop")[1]
    script = tmp_path / "loop.py"
    script.write_text(
        page.split("```python")[1].split("```")[0].replace('"checkpoints"', repr(str(tmp_path / "checkpoints")))
    )
    environment = {name: value for name, value in os.environ.items() if not is_contract_variable(name)}
    assert run_forked([str(script)], 0, environment, tmp_path / "log", 100) == 0, (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("folder", "entry", "words"), [("s3://bucket/run", "model", "is a URL"), ("run", "global_step", "rename")]
)
def test_bad_input_is_one_sentence(folder, entry, words):
    fabric = Fabric(accelerator="cpu", devices=1)
    with pytest.raises(ValueError, match=f"{words}.*HINT|HINT.*{words}"):
        InterruptibleLoop(fabric, folder, {entry: 1})
