# SPDX-License-Identifier: Apache-2.0
"""What a supervised job's time went into, from notes whose answer is known."""

import json
import xml.etree.ElementTree as ET

import pytest

from lightning_sagemaker import cli
from lightning_sagemaker.supervisor import goodput
from lightning_sagemaker.supervisor.events import FILE, Events

ROWS = [
    {"time": 100.0, "event": "start", "world_size": 4},
    {"time": 108.0, "event": "quorum", "number": 1, "step": 0, "ranks": [0, 1, 2, 3]},
    {"time": 110.0, "event": "resumed", "step": 1, "ranks": 4},
    {"time": 120.0, "event": "steps", "step": 101, "ranks": 4},
    {"time": 145.0, "event": "lost", "rank": 2, "step": 301, "since": 140.0},  # frozen: 5 s of silence
    {"time": 145.1, "event": "waiting", "step": 301, "left": 3},
    {"time": 147.0, "event": "quorum", "number": 2, "step": 301, "ranks": [0, 1, 3]},
    {"time": 148.0, "event": "resumed", "step": 302, "ranks": 3},
    {"time": 151.0, "event": "joining", "step": 322},
    {"time": 151.1, "event": "quorum", "number": 3, "step": 322, "ranks": [0, 1, 3, 2]},
    {"time": 151.5, "event": "resumed", "step": 323, "ranks": 4},
    {"time": 197.0, "event": "finished", "step": 800},
    {"time": 200.0, "event": "close", "step": 800, "finished": True},
]
EXPECTED = {
    goodput.STARTING: 10.0,
    goodput.TRAINING: 30.0 + 45.5,
    goodput.RECOVERING: 5.1 + 1.0 + 0.5,
    goodput.WAITING: 1.9,
    goodput.SMALLER: 3.0,
    goodput.ENDING: 3.0,
}


def written(folder, rows=ROWS):
    path = folder / FILE
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_each_second_has_one_cause(tmp_path):
    found = goodput.read(written(tmp_path))
    assert dict(found.seconds) == pytest.approx(EXPECTED)
    assert found.total == sum(EXPECTED.values()) == 100
    assert (found.share, found.share_after_start) == pytest.approx((0.755, 0.755 / 0.9))
    assert (found.steps, found.smaller_steps, found.losses) == (800, 20, (145.0,))
    assert found.worth == pytest.approx(0.755 * 800 / 780)
    assert all(a.end == b.begin for a, b in zip(found.spans, found.spans[1:], strict=False))


def test_a_job_that_was_started_again(tmp_path):
    again = [{**row, "time": row["time"] + 130} for row in ROWS]
    found = goodput.read(written(tmp_path, [*ROWS, *again]))
    assert found.seconds[goodput.RESTARTING] == 30
    assert (found.steps, found.smaller_steps) == (1600, 40)


def test_a_loss_before_the_last_step_takes_nothing_back_that_was_counted(tmp_path):
    rows = [*ROWS[:8], {"time": 148.5, "event": "lost", "rank": 1, "step": 302, "since": 147.9}, ROWS[-1]]
    found = goodput.read(written(tmp_path, rows))
    assert all(span.end > span.begin for span in found.spans)
    assert found.total == 100


def test_table_and_picture(tmp_path, capsys):
    written(tmp_path)
    (tmp_path / FILE).open("a").write('{"time": 2')  # its host was killed
    assert cli.main(["doctor", "--goodput", str(tmp_path), "--output", str(tmp_path / "picture.svg")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "training 75.5 75.50% in smaller quorum 3.0 3.00% recovering 6.6 6.60% waiting for a replacement 1.9" in text
    assert (
        "1 ranks were lost; 800 steps count, 20 in a smaller quorum. goodput 75.50%, 83.89% of the time after" in text
    )
    svg = "{http://www.w3.org/2000/svg}"
    picture = ET.parse(tmp_path / "picture.svg").getroot()
    bars = [bar for bar in picture.iter(f"{svg}rect") if bar.find(f"{svg}title") is not None]
    assert sum(float(bar.get("width")) for bar in bars) == pytest.approx(680, abs=0.1)
    assert len(list(picture.iter(f"{svg}path"))) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--goodput", "nowhere"], "nowhere does not exist. HINT"),
        (["--goodput", "."], "recovery.jsonl contains 1 event(s). HINT"),
        (["--goodput", "full", "--output", "."], "Is a directory"),
        (["--output", "x.svg"], "--output was set without --goodput"),
    ],
)
def test_slips_are_one_sentence(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    written(tmp_path / "full")
    written(tmp_path, ROWS[:1])
    assert cli.main(["doctor", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_notes_are_lines_with_the_time(tmp_path):
    for number in (1, 2):  # a job that is started again goes on in the file
        Events(tmp_path / "new" / FILE).note("lost", rank=number)
    rows = [json.loads(line) for line in (tmp_path / "new" / FILE).read_text().splitlines()]
    assert [(row["event"], row["rank"]) for row in rows] == [("lost", 1), ("lost", 2)]
    assert rows[0]["time"] <= rows[1]["time"]
