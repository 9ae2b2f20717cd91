# SPDX-License-Identifier: Apache-2.0
"""``jobs --watch`` and the progress of an upload, against the service on loopback."""

import io
import re
import time

import pytest

from lightning_sagemaker import cli
from lightning_sagemaker.launch import TrainingJobs
from lightning_sagemaker.launch.request.upload import shown_upload
from lightning_sagemaker.launch.tracking.watch import Watch, watch_jobs


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def running(aws):
    """``running(name, seconds)`` makes a spot job that prints steps, is interrupted once, and ends."""

    def make(name, status="InProgress", spot=True):
        begin = time.time() - 1800
        aws.jobs[name] = {
            "TrainingJobName": name,
            "TrainingJobStatus": status,
            "SecondaryStatus": "Training" if status == "InProgress" else status,
            "SecondaryStatusTransitions": [
                {"Status": one, "StartTime": begin} for one in ("Starting", "Training", "Interrupted", "Training")
            ],
            "TrainingStartTime": begin,
            "CreationTime": begin,
            "EnableManagedSpotTraining": spot,
            "ResourceConfig": {"InstanceType": "ml.g5.12xlarge", "InstanceCount": 2},
        }
        aws.log(
            name, "algo-1-1700000000", ["step=10 epoch=0 loss=5.5", "step=20 epoch=0 loss=4.5 samples_per_second=120"]
        )

    kept = dict(aws.jobs)
    aws.jobs.clear()
    yield make
    aws.jobs.clear()
    aws.jobs.update(kept)


def end(aws, name):
    aws.jobs[name] |= {"TrainingJobStatus": "Completed", "SecondaryStatus": "Completed", "TrainingEndTime": time.time()}


def test_running_jobs_are_shown_as_lines_until_none_runs(aws, running, capsys):
    running("one")
    running("two", spot=False)
    running("old", "Failed")
    watch, output = Watch(TrainingJobs()), io.StringIO()
    first = {row.name: row for row in watch.look()}
    assert set(first) == {"one", "two"}
    assert (first["one"].state, first["one"].step, first["one"].loss, first["one"].speed) == (
        "Training",
        "20",
        "4.5",
        "120",
    )
    assert (first["one"].interruptions, first["two"].interruptions) == ("1", "-")
    # 7.09 an hour and host, two hosts, half an hour; spot is taken as 40%
    costs = [float(first[name].cost.removeprefix("$")) for name in ("one", "two")]
    assert costs == pytest.approx([2.84, 7.09], rel=0.1)
    aws.log("one", "algo-2-1700000000", ["step=30 epoch=0 loss=3.5"])
    end(aws, "two")
    assert {row.name: (row.state, row.step) for row in watch.look()} == {
        "one": ("Training", "30"),
        "two": ("Completed", "20"),
    }
    end(aws, "one")
    watch_jobs(watch, 0.05, output)
    assert re.search(
        r"^one Completed step=30 loss=3.5 .*cost_so_far=\$[23]\.\d\d interruptions=1$", output.getvalue(), re.M
    )
    assert cli.main(["jobs", "--watch", "--poll", "0.05"]) == 0
    assert capsys.readouterr().out == "No job is running.\n"


def test_on_a_terminal_there_is_a_table(aws, running, monkeypatch):
    running("three")
    watch, output = Watch(TrainingJobs()), Terminal()
    look = watch.look

    def look_and_end():
        rows = look()
        end(aws, "three")
        return rows

    monkeypatch.setenv("COLUMNS", "120")
    watch.look = look_and_end
    watch_jobs(watch, 0.05, output)
    shown = output.getvalue()
    assert "interruptions" in shown
    assert re.search(r"three +Training +20 +4\.5 +120 +\$[23]\.\d\d +1", re.sub(r"\x1b\[[\d;]*m", "", shown))
    assert "Completed" in shown


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_an_upload_says_how_far_it_is(kind):
    class Session:
        def upload_data(self, path, callback=None):
            for _ in range(3):
                callback(2**20)
            return path

    session, output = Session(), kind()
    with shown_upload(session, 4 * 2**20, output):
        assert session.upload_data("a") == "a"
    shown = output.getvalue()
    assert re.search(r"lightning-sagemaker: uploaded 3\.0 MiB in [\d.]+ s\n$", shown)
    assert ("uploading 1.0 of 4.0 MiB (25%)" in shown) == (kind is Terminal)
    assert ("uploading 4.0 MiB\n" in shown) == (kind is not Terminal)
    assert "upload_data" not in vars(session)
    with pytest.raises(OSError, match="gone"), shown_upload(session, 1, output):
        raise OSError("gone")
    assert "upload_data" not in vars(session)
