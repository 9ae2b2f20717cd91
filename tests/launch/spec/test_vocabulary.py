# SPDX-License-Identifier: Apache-2.0
"""Every call that SDK 2 takes, by this package: equal to the requests that SDK 2 itself sent, kept in ``data/sdk2.json``.

``make oracle`` asks the newest SDK 2 again.
"""

import collections
import json

import pytest

from lightning_sagemaker.launch import LaunchError, PyTorch
from lightning_sagemaker.launch.spec.vocabulary import _REFUSED as REFUSED_ARGUMENTS
from tests.launch.sdk2 import images, ours, sources
from tests.launch.sdk2.arguments import ARGUMENTS
from tests.launch.sdk2.calls import CALLS
from tests.launch.sdk2.compare import OTHERWISE, REFUSED, golden, verdict

GOLDEN = golden()


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("calls"))
        sources.make()
        yield


@pytest.fixture(scope="module")
def verdicts(folder):
    return {name: verdict(name, GOLDEN["calls"][name], ours.run(call)) for name, call in CALLS.items()}


def test_every_call_is_equal_or_differs_by_design(verdicts):
    wrong = {name: detail for name, (word, detail) in verdicts.items() if word in ("different", "refused")}
    assert not wrong


def test_how_many_calls_are_taken(verdicts):
    count = collections.Counter(word for word, _ in verdicts.values())
    assert count["equal"] >= 430
    assert count["refused by design"] <= 8
    # Each line of the two tables is of use.
    words = collections.defaultdict(set)
    for name, (word, _) in verdicts.items():
        words[word].add(name)
    assert words["other by design"] == set(OTHERWISE)
    assert all(any(part in name for name in words["refused by design"]) for part in REFUSED)


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_every_argument_of_sdk_2_has_calls(kind):
    assert ARGUMENTS[kind] == set(GOLDEN["signatures"][kind])


@pytest.mark.parametrize("name", GOLDEN["methods"])
def test_every_method_of_sdk_2_is_there_or_says_what_to_use(name):
    estimator = PyTorch("train.py", instance_type="ml.g5.xlarge", role="training")
    if not hasattr(PyTorch, name):
        with pytest.raises(LaunchError, match="HINT"):
            getattr(estimator, name)


def test_images_are_those_of_sdk_2():
    """A sample of them; `make oracle` compares all."""
    kept = json.loads(images.SAMPLE.read_text())
    assert len(kept) > 200
    assert {key: images.ours(key) for key in kept} == kept


def test_a_wrong_request_would_be_noticed(verdicts):
    """The comparison itself: one value changed in each place is a difference."""
    name = "vpc_and_network_are_asked_for"
    assert verdicts[name][0] == "equal"
    for name, left_out in {
        "spot_with_checkpoints": ("DebugHook", "Profiler"),
        "profiler_with_several_rules": ("DebugHook",),
        "rules_built_in": (),
        "channels_for_groups": (),
    }.items():
        theirs = GOLDEN["calls"][name]
        mine = ours.run(CALLS[name])
        assert verdict(name, theirs, mine)[0] == "equal"
        for place in theirs["requests"][0]:
            if place.startswith(("TrainingJobName", "Flags.sagemaker_container", "Algorithm", *left_out)):
                continue
            changed = json.loads(json.dumps(theirs))
            changed["requests"][0][place] = "something else"
            assert verdict(name, changed, mine)[0] == "different", (name, place)


@pytest.mark.parametrize("name", REFUSED_ARGUMENTS)
def test_what_cannot_be_taken_says_why(name):
    with pytest.raises(LaunchError, match=f"^{name} was set. .*HINT: leave it out"):
        PyTorch("train.py", role="training", **{name: "something"})
    for nothing in (None, False, [], ""):  # switched off is as good as left out
        PyTorch("train.py", role="training", **{name: nothing})
