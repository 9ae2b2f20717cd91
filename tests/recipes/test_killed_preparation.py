# SPDX-License-Identifier: Apache-2.0
"""``prepare`` that is killed at any moment and started again makes what one left alone makes, on disk and in S3."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import boto3
import pytest
from botocore.config import Config

from lightning_sagemaker.errors import CommandError
from lightning_sagemaker.recipes._common.data.cache import MANIFEST
from lightning_sagemaker.recipes._common.data.checksums import find_fault
from lightning_sagemaker.recipes._common.data.verify import verify
from lightning_sagemaker.recipes.albert_mlm.jobs import finished_files
from lightning_sagemaker.recipes.albert_mlm.prepare_text import progress_line, staging_folder
from tests.chaos.s3_server import Servers
from tests.conftest import ROOT
from tests.forked import run_forked
from tests.recipes import killed_preparation

KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
OPTIONS = ["--vocab-size", "300", "--sequence-length", "32", "--test-fraction", "0.1", "--sentence-order"]
BUCKET = "killed"


class Place:
    """Where shards are prepared to.

    Args:
        output: A folder, or an address in S3.
        folder: Where they are made.
        text: Of the articles.
        client: Of S3.

    """

    def __init__(self, output: str, folder: Path, text: Path, client) -> None:
        self.output, self.folder, self._text, self._client = output, folder, text, client
        self._work = folder.parent
        self._work.mkdir(parents=True, exist_ok=True)

    def arguments(self, workers: int) -> list[str]:
        here = ["--staging", str(self._work)] if self._client else []
        return [str(self._text), self.output, *OPTIONS, *here, "--workers", str(workers)]

    def prepare(self, number: int = 0) -> int:
        """In one process that kills itself; how many moments it had, or 0 if it was killed."""
        count = self._work / "count"
        count.unlink(missing_ok=True)
        command = [killed_preparation.__file__, str(number), str(count), *self.arguments(0)]
        log = self._work / "log"
        code = run_forked(command, 0, {**os.environ, "PYTHONPATH": str(ROOT)}, log, 120)
        assert code == (-signal.SIGKILL if not count.exists() else 0), log.read_text()
        return int(count.read_text()) if count.exists() else 0

    def contents(self) -> dict[str, bytes]:
        """All files of the output."""
        if self._client is None:
            found = (path for path in self.folder.rglob("*") if path.is_file())
            return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in found}
        prefix = self.output.removeprefix(f"s3://{BUCKET}/") + "/"
        keys = [one["Key"] for one in self._client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])]
        bodies = {key: self._client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}
        return {key.removeprefix(prefix): body for key, body in bodies.items()}

    def check_what_is_there(self, expected: dict[str, bytes]) -> None:
        """After a kill: nothing that is half written is taken for done."""
        assert not [name for name, entry in finished_files(self.folder).items() if find_fault(self.folder, name, entry)]
        found = self.contents()
        with nullcontext() if MANIFEST in found else pytest.raises(CommandError, match="holds no manifest"):
            assert verify(self.output) == 0
        named = {name for name in found if not name.split("/")[0].startswith(".")}
        if self._client or MANIFEST in named:
            assert all(found[name] == expected[name] for name in named)
        if MANIFEST in named:
            assert named == expected.keys()

    def check_end(self, expected: dict[str, bytes]) -> None:
        assert self.contents() == expected
        assert verify(self.output) == 0
        assert self._client is None or not self.folder.exists()
        assert not list(self._work.glob(".*"))


@pytest.fixture(scope="module")
def servers():
    found = Servers()
    yield found
    found.close()


@pytest.fixture(scope="module")
def places(servers, text_file, tmp_path_factory):
    """Makes places; and one left alone, with its number of moments."""
    root, count = tmp_path_factory.mktemp("killed"), iter(range(1000))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": servers.direct}.items():
            patch.setenv(name, value)
        client = boto3.client("s3", config=Config(s3={"addressing_style": "path"}))
        client.create_bucket(Bucket=BUCKET)

        def make(kind: str) -> Place:
            work = root / f"{kind}-{next(count)}"
            if kind == "disk":
                return Place(str(work / "shards"), work / "shards", text_file, None)
            output = f"s3://{BUCKET}/{work.name}"
            return Place(output, staging_folder(output, work), text_file, client)

        calm = make("disk")
        yield make, calm.prepare(), calm.contents(), {**KEYS, "AWS_ENDPOINT_URL": servers.direct}


@pytest.fixture
def environment(places, monkeypatch):
    for name, value in places[3].items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("kind", "seed", "kills"),
    [
        ("disk", 0, 2),
        ("S3", 0, 1),
        *(pytest.param(kind, seed, 4, marks=pytest.mark.slow) for kind in ("disk", "S3") for seed in range(1, 7)),
    ],
)
def test_killed_at_any_moment_it_goes_on(places, environment, kind, seed, kills):
    make, moments, expected, _ = places
    place, draw = make(kind), random.Random(seed)
    for _ in range(kills):
        place.prepare(draw.randint(1, moments))
        place.check_what_is_there(expected)
    place.prepare()
    place.check_end(expected)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_before_each_of_the_last_things_it_does(places, environment):
    """When all is written to S3, what it was made from is removed."""
    make, _, expected, _ = places
    moments = make("S3").prepare()
    for number in range(moments - 30, moments + 1, 3):
        place = make("S3")
        place.prepare(number)
        place.check_what_is_there(expected)
        place.prepare()
        place.check_end(expected)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["disk", "S3"])
def test_killed_at_random_times_with_processes_that_outlive_it(places, environment, kind):
    """Only the first process is killed; its pool is left to itself, and the next start comes at once."""
    make, _, expected, _ = places
    draw, kills = random.Random(7), 0

    def start(place: Place) -> subprocess.Popen[bytes]:
        command = [sys.executable, killed_preparation.__file__, "0", os.devnull, *place.arguments(2)]
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)

    begin, place = time.monotonic(), make(kind)
    assert start(place).wait() == 0
    longest = time.monotonic() - begin
    place.check_end(expected)
    while kills < 20:
        place = make(kind)
        for _ in range(4):
            process = start(place)
            time.sleep(draw.uniform(0.2, longest))
            kills += process.poll() is None
            process.kill()
            process.wait()
        assert start(place).wait() == 0
        place.check_end(expected)


def test_the_time_that_is_left_is_said():
    assert progress_line(25_000_000, 100_000_000, 0.5) == "25 of 100 MB, 0.5 MB/s, 0:02:30 left"
    assert progress_line(25_000_000, None, 0.5) == "25 MB, 0.5 MB/s"
    assert str(timedelta(seconds=0)) in progress_line(5, 4, 1.0)
