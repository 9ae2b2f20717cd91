# SPDX-License-Identifier: Apache-2.0
"""Three interruptions of a training that logs to a real MLflow server; ``make chaos`` has fifty, of every kind."""

import pytest

from tests.chaos.mlflow_server import PACKAGES, Server
from tests.chaos.tracked import Tracked

pytestmark = pytest.mark.skipif(not PACKAGES.is_dir(), reason="MLflow was not brought by `make containers`")

STEPS = 120
EVENTS = ("SIGTERM", "SIGKILL of training and sender, and its disk is lost", "SIGTERM while no answer arrives")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("mlflow"))
    yield server.wait()
    server.close()


@pytest.mark.timeout(600)
def test_an_interrupted_training_is_one_run(server, tmp_path):
    reference = Tracked(server, tmp_path / "left-alone", STEPS, 0)
    assert reference.finish() == []
    assert [step for step, _ in reference.series("loss")] == [*range(STEPS)]
    tracked = Tracked(server, tmp_path / "interrupted", STEPS, 3)
    assert [wrong for event in EVENTS for wrong in tracked.interrupt(event)] == []
    assert tracked.finish() == []
    assert tracked.differs(reference) == []
    assert tracked.run.data.params == {"rate": "0.1"}

    failing = Tracked(server, tmp_path / "failing", STEPS, 0)
    assert failing.start("error") == 1
    failing.send_rest()
    assert failing.run.info.status == "FAILED"
    for one in (reference, tracked, failing):
        one.close()
