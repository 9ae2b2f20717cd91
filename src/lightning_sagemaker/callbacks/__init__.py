# SPDX-License-Identifier: Apache-2.0
"""Callbacks and loggers for any Lightning script.

Most modules are parts of three of them: :mod:`.interruption` stops all ranks together; :mod:`.auto_resume` finds the
checkpoint, and :mod:`.fit_state` saves and restores what Lightning leaves out of it (:mod:`.fit_loaders` for loaders);
:mod:`.fabric_loop` is both for custom loops with Fabric, with :mod:`.fabric_state` and the other ``fabric_*``.
"""

from lightning_sagemaker.callbacks.data_wait import DataWait
from lightning_sagemaker.callbacks.metrics import MetricLogger, metric_definitions
from lightning_sagemaker.callbacks.throughput import Throughput, ThroughputRecord

__all__ = ["DataWait", "MetricLogger", "Throughput", "ThroughputRecord", "metric_definitions"]
