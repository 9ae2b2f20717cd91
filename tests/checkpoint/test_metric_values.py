# SPDX-License-Identifier: Apache-2.0
"""What a metric keeps beside its states."""

import torch
from torchmetrics import MeanMetric, MeanSquaredError, Metric, MetricTracker, MinMaxMetric
from torchmetrics.wrappers import Running

from lightning_sagemaker.checkpoint.metric_values import own_values, set_values, track


class Counts(Metric):
    """A script's own, which does not declare all of its states."""

    def __init__(self, threshold=0.5):
        super().__init__()
        self.threshold, self.calls = threshold, 0
        self.add_state("total", torch.zeros(()), "sum")

    def update(self, value):
        self.calls += 1
        self.total += value > self.threshold

    def compute(self):
        return self.total / self.calls


def test_settings_and_states_are_not_among_it():
    metric = Counts()
    metric.update(torch.ones(()))
    values = own_values(metric)
    assert values == {"calls": 1}
    other = Counts(threshold=0.9)
    set_values(other, values)
    assert (other.calls, other.threshold) == (1, 0.9)
    assert own_values(MeanSquaredError()) == {}


def test_wrappers_go_on():
    extrema, window = MinMaxMetric(MeanMetric()), Running(MeanMetric(), window=2)
    for one in (extrema, window):
        one.update(torch.tensor(3.0))
    extrema.compute()
    other, its_window = MinMaxMetric(MeanMetric()), Running(MeanMetric(), window=3)
    set_values(other, own_values(extrema))
    set_values(its_window, own_values(window))
    assert (float(other.min_val), float(other.max_val)) == (3, 3)
    assert its_window.window == 3
    assert own_values(its_window) == own_values(window) != {}


def test_a_tracker_has_the_steps_of_then():
    tracker = MetricTracker(MeanSquaredError(), maximize=False)
    for steps in (2, 1, 0, 3):
        track(tracker, steps)
        assert tracker.n_steps == steps
        assert len([*tracker.children()]) == steps + 1
