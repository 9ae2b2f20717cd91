# SPDX-License-Identifier: Apache-2.0
"""Metrics are found where scripts keep them, each once, and large containers are not searched."""

from types import SimpleNamespace

from lightning.pytorch import Callback, LightningModule
from torchmetrics import MeanMetric, MetricTracker, MinMaxMetric

from lightning_sagemaker.checkpoint.metric_places import metrics_of


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.child = MinMaxMetric(MeanMetric())
        self.held = {"a": [MeanMetric()], "again": self.child}
        self.many = [MeanMetric() for _ in range(101)]


class Own(Callback):
    def __init__(self, module):
        self.module, self.tracker = module, MetricTracker(MeanMetric(), maximize=True)


def test_each_once():
    module = Module()
    found = metrics_of(SimpleNamespace(lightning_module=module, callbacks=[Own(module)]))
    assert [*found.metrics] == [
        "child",
        "child._base_metric",
        "held.a.0",
        "callbacks.0.Own.tracker._base_metric",
    ]
    assert [*found.trackers] == ["callbacks.0.Own.tracker"]
