# SPDX-License-Identifier: Apache-2.0
"""``lightning-sagemaker bench``: real child processes, what is read from their lines, and what is said of it."""

import csv
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import psutil
import pytest

from lightning_sagemaker import cli
from lightning_sagemaker.bench import stats, verdicts
from lightning_sagemaker.bench.breakdown import PARTS, Breakdown
from lightning_sagemaker.bench.cases import Case, Program, sweep
from lightning_sagemaker.bench.measure import Round, window_rates
from lightning_sagemaker.bench.page import comparison, report
from lightning_sagemaker.bench.results import Measured, Results
from lightning_sagemaker.bench.text_report import table
from lightning_sagemaker.commands import bench as bench_command

SCRIPT = """
import argparse, os, sys, time
from concurrent.futures import ThreadPoolExecutor
parser = argparse.ArgumentParser()
for name in ("global_batch_size", "accumulate_grad_batches", "max_steps", "log_every_n_steps", "num_workers"):
    parser.add_argument(f"--{name}", type=int, default=0)
parser.add_argument("--compute", type=float, default=0.004)
parser.add_argument("--fail", action="store_true")
parser.add_argument("--hang", action="store_true")
given = parser.parse_args()
if given.fail:
    sys.exit("error: the data is not there")
if given.hang:
    time.sleep(600)
load = lambda: time.sleep(0.006)
pool = ThreadPoolExecutor(max(1, given.num_workers))
ahead = [pool.submit(load) for _ in range(2 * given.num_workers)]
time.sleep(0.05)  # the first step is slow
for step in range(1, given.max_steps + 1):
    begin = time.perf_counter()
    if ahead:
        ahead.pop(0).result()
        ahead.append(pool.submit(load))
    else:
        load()
    time.sleep(given.compute)
    rate = given.global_batch_size / (time.perf_counter() - begin)
    print(f"step={step} epoch=0 loss=1.0 samples_per_second={rate:.6g}", flush=True)
pool.shutdown(cancel_futures=True)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def run(capsys, *arguments) -> tuple[int, str, str]:
    code = cli.main(["bench", *map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err


def made(rates_of_rounds: list[list[float]], parts: tuple[Breakdown, ...] = (), **settings: object) -> Measured:
    rounds = tuple(Round(tuple(rates), 0, 1.0, 2.0) for rates in rates_of_rounds)
    return Measured(Case(**settings), rounds, "python train.py", parts)


def a_step(rank: int = 0, **seconds: float) -> Breakdown:
    found = dict.fromkeys(PARTS, 0.01) | seconds
    return Breakdown(rank, found, sum(found.values()), sum(found.values()) * 0.97, 8)


def results(*cases: Measured, kind: str = "throughput", **environment: object) -> Results:
    return Results(kind, "train.py", 100, 1, {"cores": 8, "command": ["x"], **environment}, cases)


def noisy(mean: float, seed: int, number: int = 40) -> list[float]:
    made_up = random.Random(seed)
    return [made_up.gauss(mean, 0.05 * mean) for _ in range(number)]


# the steady state, and how sure a figure is


def test_a_slow_beginning_is_left_out():
    rates = [10.0, 20.0, 60.0, *noisy(100, 0)]
    assert 3 <= stats.warm_up(rates) <= 8
    assert stats.is_steady(rates[stats.warm_up(rates) :])
    assert stats.warm_up(noisy(100, 1)) <= 20
    assert stats.warm_up([5.0]) == 0


def test_a_trend_is_not_a_steady_state():
    assert not stats.is_steady([100 + 5 * number for number in range(40)])


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    missed = 0
    for seed in range(20):
        rounds = [noisy(100, seed * 10 + number, 20) for number in range(3)]
        missed += 100 not in stats.rate(rounds)
    assert missed <= 5  # 5% of 20 are 1; resampling few rounds is not exact


def test_a_ratio_tells_what_differs_and_not_what_does_not():
    a, same, faster = ([noisy(mean, seed), noisy(mean, seed + 50)] for mean, seed in ((100, 1), (100, 2), (115, 3)))
    assert 1 in stats.ratio(same, a)
    found = stats.ratio(faster, a)
    assert 1.08 < found.low < found.value < found.high < 1.22


def test_rates_without_their_own_metric_come_from_the_clock():
    lines = [(10.0 + 0.5 * number, f"algo-1 [0] | step={2 * number} loss=1") for number in range(1, 6)]
    assert window_rates([*lines, (20.0, "algo-1 [1] | step=99 loss=1")], 8) == pytest.approx([32.0] * 4)


# real processes


def test_workers_of_a_program_that_waits_for_its_data(script, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bench_command, "_SECONDS_BETWEEN_LINES", 0.0)  # each of these runs is short
    folder = tmp_path / "out"
    code, out, err = run(
        capsys, "workers", script, "--workers", 0, 2, "--batch-size", 4, "--samples", 160, "--output", folder
    )
    assert code == 0, err
    assert "no step breakdown" in err  # it trains with no Trainer
    assert out.startswith(f"cases: 2, rounds: 2, output of the runs: {folder / 'runs'}\n")
    assert re.search(r"^round 1  \S+: step \d+ of 40$", out, re.MULTILINE), out
    gain = re.search(r"Best: --num_workers 2, \+([\d.]+)% over 0", out)
    assert gain, out
    assert 20 < float(gain[1]) < 300  # without waiting a step is 4 instead of 10 ms
    found = json.loads((folder / "results.json").read_text())
    assert [one["settings"]["num_workers"] for one in found["cases"]] == [0, 2]
    assert all(len(one["rounds"]) == 2 and len(one["rounds"][0]["rates"]) == 40 for one in found["cases"])
    rows = list(csv.DictReader((folder / "results.csv").open()))
    assert [row["num_workers"] for row in rows] == ["0", "2"]
    assert "--num_workers 2" in found["cases"][1]["command"]
    assert list(folder.glob("runs/*/output.log"))
    check_page((folder / "report.html").read_text(), plots=3)
    assert Results.load(folder).cases[1].rate.value == found["cases"][1]["samples_per_second"]


def test_compare_tells_a_change_from_none(script, tmp_path, capsys):
    for name, compute in (("a", 0.004), ("b", 0.004), ("c", 0.016)):
        code, _, err = run(
            capsys,
            "throughput",
            script,
            "--samples",
            240,
            "--output",
            tmp_path / name,
            "--no-breakdown",
            "--compute",
            compute,
        )
        assert code == 0, err
    code, out, _ = run(capsys, "compare", tmp_path / "a", tmp_path / "c", "--output", tmp_path / "page.html")
    assert code == 0
    assert "B is slower" in out
    assert 0.3 < float(re.search(r"B over A is ([\d.]+)", out)[1]) < 0.75
    check_page((tmp_path / "page.html").read_text(), plots=0)
    _, out, _ = run(capsys, "compare", tmp_path / "a", tmp_path / "a")
    assert "no significant difference" in out


def test_a_failed_program_is_one_error_with_its_last_lines(script, tmp_path, capsys):
    code, _, err = run(capsys, "throughput", script, "--output", tmp_path / "out", "--fail")
    assert code == 2
    assert "exit code 1" in err
    assert "the data is not there" in err
    assert "HINT:" in err
    assert not (tmp_path / "out" / "results.json").exists()


def test_complete_rounds_are_kept_when_a_later_one_fails(script, tmp_path, capsys):
    mark = tmp_path / "ran"
    script.write_text(SCRIPT.replace("pool.shutdown", f"open({str(mark)!r}, 'x').close()\npool.shutdown"))
    code, out, err = run(capsys, "throughput", script, "--samples", 160, "--output", tmp_path / "out", "--no-breakdown")
    assert code == 1
    assert "round 2 is skipped" in err
    assert "FileExistsError" in err
    assert "report:" in out
    assert len(Results.load(tmp_path / "out").cases[0].rounds) == 1


def test_a_stopped_measurement_leaves_no_process(script, tmp_path):
    code = "import signal, sys; from lightning_sagemaker import cli; "
    # What a shell runs in the background ignores the signal, and so does all that it starts.
    code += "signal.signal(signal.SIGINT, signal.default_int_handler); sys.exit(cli.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "bench", "throughput", script, "--output", tmp_path / "out", "--hang"]
    process = subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True, start_new_session=True)
    log = tmp_path / "out" / "runs" / "1x1-batch8x1-1" / "output.log"
    deadline = time.monotonic() + 60
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)  # the child is there
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.count("\n") == 1
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(script) in (one.info["cmdline"] or [])]


def test_a_program_that_hangs_is_ended(script, tmp_path, capsys):
    begin = time.monotonic()
    code, _, err = run(capsys, "throughput", script, "--output", tmp_path / "out", "--timeout", 2, "--hang")
    assert code == 2
    assert "--timeout 2" in err
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["throughput", "albert-mln"], "did you mean 'albert-mlm'?"),
        (["throughput", "SCRIPT", "--ranks", "2"], "as 2x1"),
        (["throughput", "SCRIPT", "--samples", "8"], "a steady state needs"),
        (["throughput", "SCRIPT", "--batch-size", "0"], "at least 1"),
        (["throughput", "SCRIPT", "--rounds", "0"], "at least 1"),
        (["workers", "SCRIPT", "--workers", "-1"], "at least 0"),
        (["compare", "/nowhere", "/nowhere"], "is not a result of bench"),
    ],
)
def test_bad_input_is_one_sentence(script, capsys, arguments, said):
    code, _, err = run(capsys, *[script if one == "SCRIPT" else one for one in arguments])
    assert code == 2
    assert said in err
    assert err.count("\n") == 1
    assert "HINT:" in err


# what is run


def test_a_fixed_number_of_samples_is_fewer_steps_on_more_ranks():
    program = Program("sequence-classification", ("--config", "tiny.yaml"))
    for ranks, steps in (((1, 1), 100), ((2, 1), 50), ((2, 2), 25)):
        case = Case(*ranks, batch=4, strategy="smddp")
        command = program.launched(case, 400, Path("/out"), 1)
        assert command[command.index("--max_steps") + 1] == str(steps)
        assert command[command.index("--global_batch_size") + 1] == str(4 * case.ranks)
        assert ("local" in command) == (case.ranks > 1)
    assert command[command.index("--distribution") + 1] == "smddp"


def test_a_sweep_is_all_combinations():
    found = sweep(Case(), strategy=["ddp", "smddp"], batch=[4, 8], precision=[])
    assert [(one.strategy, one.batch) for one in found] == [("ddp", 4), ("ddp", 8), ("smddp", 4), ("smddp", 8)]


# what is said


def test_efficiency_is_over_the_smallest_of_the_same_settings():
    one, two = made([noisy(100, 0)]), made([noisy(150, 1)], hosts=2)
    other = made([noisy(500, 2)], hosts=2, batch=64)
    found = results(one, two, other, kind="scaling")
    assert found.efficiency(two) == pytest.approx(0.75, rel=0.05)
    assert found.efficiency(one) is None
    assert found.efficiency(other) is None


def test_the_fewest_workers_that_nothing_beats():
    slow, enough, same = (
        made([noisy(mean, seed), noisy(mean, seed + 9)], num_workers=workers)
        for workers, mean, seed in ((0, 60, 0), (1, 100, 1), (4, 100.5, 2))
    )
    said = " ".join(verdicts.workers([slow, enough, same], 8))
    assert "--num_workers 1, +" in said
    assert "compute is the bottleneck" in said
    assert "try more workers" in " ".join(verdicts.workers([slow, enough], 8))
    assert "the 1 cores" in " ".join(verdicts.workers([slow, enough], 1))
    assert "Loading is not the bottleneck" in " ".join(
        verdicts.workers([made([noisy(99, 3)], num_workers=0), enough], 8)
    )


def test_noise_is_no_proof_that_workers_gain_nothing():
    wild = [[random.Random(seed).uniform(10, 400) for _ in range(20)] for seed in range(3)]
    said = " ".join(verdicts.workers([made(wild, num_workers=0), made(wild[::-1], num_workers=2)], 8))
    assert "does not exclude" in said
    assert "is not the bottleneck" not in said
    assert "too far apart" in " ".join(verdicts.verdict_lines(results(made(wild))))


def test_more_ranks_than_cores_are_said():
    found = verdicts.verdict_lines(results(made([noisy(9, 0)]), made([noisy(9, 1)], hosts=16), kind="scaling"))
    assert any("shared 8 CPU cores" in one for one in found)


def test_a_busy_machine_is_said():
    busy, quiet = (verdicts.verdict_lines(results(made([noisy(9, 0)]), load_before=load)) for load in (7.0, 1.0))
    assert any("busy" in one for one in busy)
    assert quiet == []


def test_what_takes_a_large_share_of_a_step_is_said():
    waiting = made([noisy(9, 0)], (a_step(0, data=0.05),))
    assert verdicts.verdict_lines(results(waiting)) == ["1x1-batch8x1: 50% of a step is waiting for data."]
    uneven = made([noisy(9, 0)], (a_step(0, communication=0.035), a_step(1, forward=0.035)), hosts=2)
    said = verdicts.verdict_lines(results(uneven))
    assert any("26% of a step is communication" in one for one in said)
    assert any("rank 1 is a straggler, busy for 25 ms" in one for one in said)
    assert (
        verdicts.verdict_lines(results(made([noisy(9, 0)], (a_step(0, forward=0.2), a_step(1, forward=0.2)), hosts=2)))
        == []
    )


def test_results_of_two_machines_are_compared_with_a_caution():
    a, b = (results(made([noisy(9, seed)]), processor=name) for seed, name in enumerate(("old", "new")))
    assert any("the machine: a difference may come" in one for one in verdicts.differences(a, b))
    assert verdicts.differences(a, a) == []


# the page


class _Page(HTMLParser):
    """Tags that are closed, and whatever a browser would ask for."""

    VOID = ("meta", "link", "br", "img", "input", "circle", "line", "polyline", "path")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.asked: list[str] = []
        self.counts: dict[str, int] = {}

    def handle_starttag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        for name, value in attributes:
            if name in ("src", "href", "xlink:href", "action", "data") and not (value or "").startswith(("data:", "#")):
                self.asked.append(f"{tag} {name}={value}")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check_page(text: str, plots: int) -> _Page:
    found = _Page()
    found.feed(text)
    assert found.open == []
    assert found.asked == []
    assert "script" not in found.counts
    assert "url(" not in text
    assert "@import" not in text
    assert found.counts.get("svg", 0) == plots
    assert 'name="viewport"' in text
    assert "@media print" in text
    assert found.counts["table"] >= 2
    for numbers in re.findall(r'points="([^"]+)"', text):
        for pair in numbers.split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= 440
            assert 0 <= y <= 250
    return found


def a_report() -> Results:
    return results(
        made([noisy(100, 0), noisy(101, 1)], strategy="ddp"),
        made([noisy(170, 2), noisy(171, 3)], strategy="ddp", hosts=2),
        made([noisy(98, 4), noisy(97, 5)], strategy="smddp"),
        made(
            [noisy(180, 6), noisy(182, 7)],
            (a_step(0, communication=0.03), a_step(1, forward=0.04)),
            strategy="smddp",
            hosts=2,
        ),
        kind="scaling",
        evil="<script>alert(1)</script>",
    )


def test_pages_are_complete_and_ask_for_nothing():
    text = report(a_report())
    check_page(text, plots=8)
    assert "&lt;script&gt;" in text
    pairs = verdicts.compare(a_report(), a_report())
    check_page(comparison(a_report(), a_report(), pairs), plots=0)


def test_a_browser_shows_the_page(tmp_path):
    try:
        from playwright import sync_api as playwright
    except ImportError:
        pytest.skip("playwright not found")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("Chromium not found")
    path = tmp_path / "report.html"
    path.write_text(report(a_report()))
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        wrong: list[str] = []
        for width in (390, 1280):
            page = browser.new_page(viewport={"width": width, "height": 900})
            page.on("console", lambda message: message.type == "error" and wrong.append(message.text))
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on("request", lambda asked: asked.url.startswith(("file:", "data:")) or wrong.append(asked.url))
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            for plot in page.locator("svg").all():
                box = plot.bounding_box()
                assert box is not None
                assert box["width"] > 250
                assert box["height"] > (100 if plot.locator("polyline").count() else 50)
            page.screenshot(path=tmp_path / f"{width}.png", full_page=True)
            assert (tmp_path / f"{width}.png").stat().st_size > 20_000  # something is drawn
        page.emulate_media(media="print")  # where browsers leave backgrounds out, the legend's colors too
        colors = page.locator(".key i").evaluate_all("all => all.map(one => getComputedStyle(one).printColorAdjust)")
        assert set(colors) == {"exact"}
        assert len(page.pdf()) > 10_000
        browser.close()
    assert wrong == []


def test_parts_of_a_step_are_in_every_form_of_the_results(tmp_path):
    found = a_report()
    found.save(tmp_path)
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert [row["communication_seconds"] for row in rows] == ["", "", "", "0.02"]
    assert Results.load(tmp_path) == found
    assert "communication" in table(found)
    text = report(found)
    for words in ("communication 30 ms", "forward 40 ms", "rank 1"):
        assert words in text


# a recipe, and simulated hosts


@pytest.mark.slow
def test_in_a_job_the_report_is_stored_with_the_model(tmp_path):
    bench = [sys.executable, "-m", "lightning_sagemaker.cli", "bench", "throughput", "sequence-classification"]
    bench += ["--config", "tiny.yaml", "--rounds", "1", "--max_train_samples", "1000", "--max_eval_samples", "8"]
    job = [
        sys.executable,
        "-m",
        "lightning_sagemaker.cli",
        "local",
        "--hosts",
        "1",
        "--root",
        str(tmp_path),
        "--",
        *bench,
    ]
    done = subprocess.run(job, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-3000:]
    found = Results.load(tmp_path / "algo-1" / "model" / "bench")
    (one,) = found.cases[0].breakdown
    assert one.seconds["forward"] > 0
    assert (tmp_path / "algo-1" / "model" / "bench" / "report.html").stat().st_size > 5000
    assert not list((tmp_path / "algo-1" / "model").rglob("model.safetensors"))  # the runs' own models are no artefact


@pytest.mark.slow
def test_a_recipe_on_two_simulated_hosts(tmp_path, capsys):
    asked = ["scaling", "sequence-classification", "--ranks", "1x1", "2x1", "--strategy", "smddp", "--batch-size", 8]
    asked += ["--samples", 480, "--rounds", 1, "--output", tmp_path / "out", "--config", "tiny.yaml"]
    code, out, err = run(capsys, *asked, "--max_train_samples", 600, "--max_eval_samples", 8)
    assert code == 0, err
    found = Results.load(tmp_path / "out")
    efficiency = found.efficiency(found.cases[1])
    assert efficiency is not None
    assert 0.1 < efficiency < 1.5
    assert statistics.median(found.cases[0].windows[0]) > 0
    assert "T(N)/(N T(1))" in out
    assert os.path.getsize(tmp_path / "out" / "report.html") > 5000
    assert sys.executable in found.cases[0].command
