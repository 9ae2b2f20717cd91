# SPDX-License-Identifier: Apache-2.0
"""How far probabilities can be trusted, decisions by a threshold, and the page that shows both."""

import html.parser
import importlib.util
import json
from pathlib import Path

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.nn import functional
from torchmetrics.functional import classification as classified

from lightning_sagemaker.recipes._common import outputs
from lightning_sagemaker.recipes.sequence_classification.calibration import (
    BINS,
    best_threshold,
    calibrate,
    fit_temperature,
    reliability,
)
from lightning_sagemaker.recipes.sequence_classification.decisions import AS_IS, Decision
from lightning_sagemaker.recipes.sequence_classification.evaluation_page import evaluation_page, findings
from lightning_sagemaker.recipes.sequence_classification.labels import MULTI, SINGLE, LabelScheme
from lightning_sagemaker.recipes.sequence_classification.metrics import evaluate, report
from lightning_sagemaker.recipes.sequence_classification.module import SequenceClassifier

YES_NO = LabelScheme(SINGLE, ("no", "yes"))
SEVEN = LabelScheme(SINGLE, tuple("abcdefg"))


def overconfident(samples=3000, classes=7, factor=2.5):
    """Logits of which ``softmax`` would be right, times a factor; drawn labels."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(samples, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=generator)[:, 0]
    return factor * logits, labels.double()


@pytest.mark.parametrize("classes", [2, 7])
def test_calibration_error_is_torchmetrics(classes):
    logits, labels = overconfident(classes=classes)
    chances = logits.softmax(dim=1)
    found = reliability(SEVEN, chances, labels)
    expected = classified.multiclass_calibration_error(chances, labels.long(), classes, n_bins=BINS)
    assert found["ece"] == pytest.approx(float(expected), abs=1e-6)
    assert sum(one["count"] for one in found["bins"]) == len(labels)
    positive = reliability(LabelScheme(MULTI, ("a",)), chances[:, 1:2], (labels == 1).double()[:, None])
    expected = classified.binary_calibration_error(chances[:, 1].contiguous(), (labels == 1).long(), n_bins=BINS)
    assert positive["ece"] == pytest.approx(float(expected), abs=1e-6)


def test_temperature_is_that_of_a_general_optimizer():
    logits, labels = overconfident()
    log = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([log], max_iter=100, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = functional.cross_entropy(logits / log.exp(), labels.long())
        loss.backward()
        return loss

    optimizer.step(closure)
    found = fit_temperature(logits, labels)
    assert found == pytest.approx(float(log.detach().exp()), rel=1e-4)
    assert found == pytest.approx(2.5, rel=0.1)  # what the logits were multiplied by
    before, after = (reliability(SEVEN, Decision(heat).probabilities(SEVEN, logits), labels) for heat in (1.0, found))
    assert after["ece"] < before["ece"] / 4
    many = functional.one_hot(labels.long()).double()
    fitted = fit_temperature(logits, many)
    losses = [functional.binary_cross_entropy_with_logits(logits / (fitted * off), many) for off in (0.98, 1.0, 1.02)]
    assert losses[1] == min(losses)
    assert fit_temperature(torch.tensor([[5.0, 0.0]]), torch.tensor([0.0])) < 0.5  # the less, the better


def test_threshold_has_the_best_f1_of_all():
    generator = torch.Generator().manual_seed(1)
    chances = (torch.rand(300, generator=generator) * 20).round() / 20  # many are equal
    labels = torch.rand(300, generator=generator) < 0.3 * chances
    threshold, f1 = best_threshold(chances, labels)
    tried = [float(classified.binary_f1_score((chances >= t / 40).long(), labels.long())) for t in range(41)]
    assert f1 == pytest.approx(max(tried), abs=1e-6)
    assert float(classified.binary_f1_score((chances >= threshold).long(), labels.long())) == pytest.approx(
        f1, abs=1e-6
    )
    assert f1 > tried[20]  # not the middle
    assert best_threshold(chances, torch.zeros(300, dtype=torch.bool)) == (0.5, 0.0)


def test_options_decide_and_the_default_changes_nothing():
    logits, labels = overconfident(classes=2)
    found = calibrate(YES_NO, logits + torch.tensor([1.5, 0.0]), labels)
    shifted = logits + torch.tensor([1.5, 0.0])
    assert torch.equal(AS_IS.classes(YES_NO, AS_IS.probabilities(YES_NO, shifted)), shifted.argmax(dim=1))
    plain, tuned = (
        evaluate(YES_NO, shifted, labels, Decision.of(1.0, threshold, found))["f1"] for threshold in (0.5, "auto")
    )
    assert tuned == pytest.approx(found["threshold_f1"], abs=1e-6)
    assert tuned > plain
    # The same samples are chosen where probabilities are shown with a temperature.
    both = Decision.of("auto", "auto", found)
    assert both.temperature == found["temperature"] != 1.0
    one = Decision.of(1.0, "auto", found)
    chosen = [d.classes(YES_NO, d.probabilities(YES_NO, shifted)) for d in (both, one)]
    assert torch.equal(*chosen)
    assert Decision.of("auto", "auto", None) == AS_IS


@pytest.mark.parametrize(
    "option", [{"threshold": "best"}, {"threshold": 1.5}, {"temperature": 0}, {"temperature": "x"}]
)
def test_options_out_of_range_are_refused(option):
    with pytest.raises(MisconfigurationException, match=rf"model\.{next(iter(option))}=.*HINT"):
        SequenceClassifier(**option)


class Tags(html.parser.HTMLParser):
    """Texts by tag; entities resolved."""

    def __init__(self, page):
        super().__init__()
        self.found, self.addresses, self._open = [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self._open = tag
        self.addresses += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.found.append((self._open, data))


def test_page_names_what_is_confused():
    names = ("<b>", *(f"class {number} & more" for number in range(76)))
    scheme = LabelScheme(SINGLE, names)
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(0, 77, (900,), generator=generator).double()
    logits = torch.randn(900, 77, generator=generator) + 6 * functional.one_hot(labels.long(), 77)
    first = labels == 0
    logits[first] = torch.nn.functional.one_hot(torch.tensor(5), 77).float() * 9  # always taken for class 4
    found = calibrate(scheme, logits, labels)
    content = report(scheme, logits, labels, AS_IS, found)
    pair = content["most_confused"][0]
    assert (pair["true"], pair["predicted"], pair["count"]) == ("<b>", "class 4 & more", int(first.sum()))
    assert pair["samples"] == first.nonzero()[:3, 0].tolist()
    assert "<b> as class 4 & more" in dict(findings(content))["most confused"]
    page = evaluation_page("t", json.loads(json.dumps(content)), [(f"text {number} <i>",) for number in range(900)])
    tags = Tags(page)
    assert not tags.addresses
    shown = {text for tag, text in tags.found if tag == "text"}
    assert set(names) <= shown
    assert ("title", f"<b> as class 4 & more: {pair['count']} of {pair['count']} (100%)") in tags.found
    assert any(f"text {pair['samples'][0]} <i>" in text for _, text in tags.found)
    assert any("error 0." in text for tag, text in tags.found if tag == "figcaption")


class Pipeline:
    """As transformers' pipeline answers for texts; what it computes is of no matter here."""

    class model:
        class config:
            calibration = {"temperature": 2.0, "threshold": 0.2}
            problem_type = "single_label_classification"
            id2label = {0: "no", 1: "yes"}

    def __call__(self, inputs, top_k, function_to_apply):
        assert (top_k, function_to_apply) == (None, "none")
        return [[{"label": "no", "score": 1.0}, {"label": "yes", "score": 0.0}] for _ in inputs]


def test_serving_takes_the_threshold_where_asked():
    path = Path(outputs.__file__).with_name("serving") / "text_classification.py"
    spec = importlib.util.spec_from_file_location("inference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    ask = {"inputs": ["a", "b"], "parameters": {"best_threshold": True}}
    assert [one["label"] for one in module.predict_fn(ask, Pipeline())] == ["yes", "yes"]
    ask["parameters"] = {"calibrated": True, "top_k": None}
    answer = module.predict_fn({**ask, "inputs": "a"}, Pipeline())
    expected = torch.tensor([0.5, 0.0]).softmax(dim=0).tolist()
    assert [one["label"] for one in answer] == ["no", "yes"]
    assert [one["score"] for one in answer] == pytest.approx(expected)
