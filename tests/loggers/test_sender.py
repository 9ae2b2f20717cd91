# SPDX-License-Identifier: Apache-2.0
"""What is sent to MLflow, whatever happens to the sender. The store here is a list; tests/chaos has a real server."""

import os

import pytest

from lightning_sagemaker.loggers import address, sender
from lightning_sagemaker.loggers.address import TrackingError, keep_password, tracking_address, without_password
from lightning_sagemaker.loggers.journal import Journal, journals
from lightning_sagemaker.loggers.mlflow_store import metric_name
from lightning_sagemaker.loggers.sender import Delivery, send_all


class Store:
    """A server, of which each connection is one of these."""

    def __init__(self):
        self.runs, self.points, self.statuses, self.params = {}, [], [], {}
        self.is_down = self.forgets_to_answer = False

    def __call__(self, _):
        self._answer()
        return self

    def _answer(self):
        if self.is_down:
            raise ConnectionError("refused\nand more")

    def find(self, experiment, key):
        return self.runs.get((experiment, key))

    def create(self, experiment, key, name, tags):
        return self.runs.setdefault((experiment, key), f"id-{len(self.runs)}")

    def history(self, run_id, name):
        self._answer()
        return {(one.step, one.milliseconds) for one in self.points if one.name == name}

    def log(self, run_id, points):
        self._answer()
        self.points += points
        if self.forgets_to_answer:
            self.forgets_to_answer = False
            raise TimeoutError

    def log_params(self, run_id, params):
        self.params |= params

    def set_status(self, run_id, status):
        self._answer()
        self.statuses.append(status)

    @property
    def steps(self):
        return sorted((one.name, one.step) for one in self.points)


@pytest.fixture
def store(monkeypatch):
    store = Store()
    monkeypatch.setattr(sender, "MLflowStore", store)
    return store


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path / "journal", "key")
    journal.append({"about": {"address": "http://x", "experiment": "e", "name": None, "tags": {}}})
    return journal


def rows(first, last, begin=0):
    return [{"t": begin + step, "step": step, "metrics": {"loss": 1.0 / (step + 1)}} for step in range(first, last)]


def losses(first, last):
    return [("loss", step) for step in range(first, last)]


def send(journal, start=None):
    delivery = Delivery(journal, start)
    while delivery.send():
        pass
    return delivery


def test_rows_arrive_once_and_the_run_ends_as_it_did(store, journal):
    journal.append({"start": "a"}, {"params": {"lr": "0.1"}}, *rows(0, 5))
    delivery = Delivery(journal, "a")
    assert delivery.send()
    journal.append(*rows(5, 7), {"status": "FINISHED"})
    while delivery.send():
        pass
    delivery.end()
    assert store.steps == losses(0, 7)
    assert store.statuses == ["RUNNING", "FINISHED"]
    assert store.params == {"lr": "0.1"}
    assert journal.progress().run_id == "id-0"
    assert journal.unsent() == []


def test_steps_that_are_repeated_keep_their_first_values(store, journal):
    journal.append({"start": "a"}, *rows(0, 10))
    send(journal, "a")
    journal.append({"start": "b"}, *rows(6, 15, begin=1000))
    send(journal, "b")
    assert store.steps == losses(0, 15)
    assert [one.milliseconds for one in store.points if one.step == 9] == [9]


def test_an_unsent_row_of_an_earlier_start_goes_before_its_repetition(store, journal):
    journal.append({"start": "a"}, *rows(0, 10), {"start": "b"}, *rows(5, 12, begin=1000))
    send(journal)
    assert store.steps == losses(0, 12)


def test_a_disk_that_is_lost_does_not_double_what_had_arrived(store, journal, tmp_path):
    journal.append({"start": "a"}, *rows(0, 10))
    send(journal, "a")
    other = Journal(tmp_path / "other", "key")  # of a checkpoint that did not know of 6 and 7
    other.append({"about": journal.about}, *rows(6, 8), {"start": "b"}, *rows(8, 12, begin=1000))
    send(other, "b")
    assert store.steps == losses(0, 12)
    assert len(store.runs) == 1


def test_what_arrived_without_an_answer_is_not_sent_again(store, journal):
    journal.append({"start": "a"}, *rows(0, 4))
    delivery = Delivery(journal, "a")
    store.forgets_to_answer = True
    with pytest.raises(TimeoutError):
        delivery.send()
    delivery.failed(TimeoutError("no answer"))
    assert journal.progress().error == "TimeoutError: no answer"
    journal.append(*rows(4, 6))
    assert delivery.send()
    assert store.steps == losses(0, 6)
    assert journal.progress().error is None


def test_a_sender_that_was_killed_before_it_wrote_down_what_it_sent(store, journal):
    journal.append({"start": "a"}, *rows(0, 4))
    before = journal.progress()
    first = send(journal, "a")
    journal.note(type(before)(run_id=first.progress.run_id))
    journal.append(*rows(4, 6))
    send(journal, "a")
    assert store.steps == losses(0, 6)


def test_one_start_may_log_a_step_twice(store, journal):
    test = {"t": 50, "step": 4, "metrics": {"test_loss": 1.0}}
    journal.append({"start": "a"}, *rows(0, 4), test, {"status": "FINISHED"})
    send(journal, "a").end()
    journal.append({"status": "RUNNING"}, test | {"t": 60}, {"status": "FINISHED"})
    send(journal, "a")
    assert [one.milliseconds for one in store.points if one.name == "test_loss"] == [50, 60]
    assert store.statuses == ["RUNNING", "FINISHED", "RUNNING", "FINISHED"]


def test_a_training_that_ends_without_a_word_was_killed(store, journal):
    journal.append({"start": "a"}, *rows(0, 4))
    send(journal, "a").end()
    assert store.statuses == ["RUNNING", "KILLED"]


def test_a_sender_leaves_the_next_start_alone(store, journal):
    journal.append({"start": "a"}, *rows(0, 4), {"start": "b"}, *rows(3, 6))
    send(journal, "a").end()
    assert store.steps == losses(0, 4)
    assert store.statuses == ["RUNNING"]  # not KILLED: it goes on


def test_what_was_left_is_sent_when_the_server_is_back(store, journal):
    journal.append({"start": "a"}, *rows(0, 4), {"status": "FINISHED"})
    store.is_down = True
    ((_, error),) = send_all(journal.folder)
    assert error == "ConnectionError: refused"
    store.is_down = False
    assert [error for _, error in send_all(journal.folder)] == [None]
    assert (store.steps, store.statuses[-1]) == (losses(0, 4), "FINISHED")
    assert send_all(journal.folder) == []


def test_a_row_that_was_cut_short_is_left_out(store, journal):
    journal.append({"start": "a"}, *rows(0, 2))
    with journal.path.open("a") as file:
        file.write('{"t":5,"step":2,"metr')
    again = Journal(journal.folder, "key")
    assert len(list(again.rows())) == 4
    again.append(*rows(3, 4))
    send(again)
    assert store.steps == [*losses(0, 2), ("loss", 3)]
    assert [one.key for one in journals(journal.folder)] == ["key"]


def test_a_lost_answer_before_a_later_start(store, journal):
    journal.append({"start": "a"}, *rows(0, 4), {"start": "b"}, *rows(2, 6, begin=1000))
    delivery = Delivery(journal)
    store.forgets_to_answer = True
    with pytest.raises(TimeoutError):
        delivery.send()
    delivery.failed(TimeoutError())
    while delivery.send():
        pass
    assert store.steps == losses(0, 6)


def test_names_that_mlflow_takes():
    assert [metric_name(name) for name in ("val/f1", "a b@c", "/x//../y", "..", "n" * 300)] == [
        *("val/f1", "a b_c", "x/y", "_", "n" * 250),
    ]


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(address, "_needs", lambda *_: None)
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "")


ARN = "arn:aws:sagemaker:eu-west-1:123456789012:mlflow-tracking-server/team"


@pytest.mark.parametrize("given", ["http://host:5000", "https://host/mlflow", "sqlite:///runs.db", ARN])
def test_addresses(given, installed):
    assert tracking_address(given) == given


def test_a_folder(installed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert tracking_address("runs here") == (tmp_path / "runs here").as_uri()


@pytest.mark.parametrize(
    "given", ["ftp://host", "http://", "http://host:port", "arn:aws:s3:::bucket", ARN.replace("sagemaker:", "iam:")]
)
def test_wrong_addresses_are_refused(given, installed):
    with pytest.raises(TrackingError, match="HINT"):
        tracking_address(given)


def test_passwords_go_where_mlflow_looks_and_nowhere_else(installed):
    assert keep_password("https://me:p%40ss@host:5000/x?token=secret") == "https://host:5000/x"
    assert os.environ["MLFLOW_TRACKING_USERNAME"] == "me"
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == "p@ss"
    assert without_password("http://me:secret@host") == "http://host"
    with pytest.raises(TrackingError) as error:
        tracking_address("ftp://me:secret@host")
    assert "secret" not in str(error.value)


def test_a_missing_client_is_one_sentence(monkeypatch):
    monkeypatch.setattr(address.importlib.util, "find_spec", lambda name: None if name == "sagemaker_mlflow" else name)
    with pytest.raises(TrackingError, match="needs the package sagemaker-mlflow.*HINT: pip install sagemaker-mlflow"):
        tracking_address(ARN)
