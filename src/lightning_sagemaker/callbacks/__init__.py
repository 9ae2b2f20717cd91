# SPDX-License-Identifier: Apache-2.0
"""Callbacks and loggers for any Lightning script."""

from lightning_sagemaker.callbacks.metrics import MetricLogger, metric_definitions
from lightning_sagemaker.callbacks.throughput import Throughput, ThroughputRecord

__all__ = ["MetricLogger", "Throughput", "ThroughputRecord", "metric_definitions"]
