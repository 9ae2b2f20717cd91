# SPDX-License-Identifier: Apache-2.0
"""Callbacks and loggers for any Lightning script."""

from lightning_sagemaker.callbacks.data_wait import DataWait
from lightning_sagemaker.callbacks.metrics import MetricLogger, metric_definitions
from lightning_sagemaker.callbacks.throughput import Throughput, ThroughputRecord

__all__ = ["DataWait", "MetricLogger", "Throughput", "ThroughputRecord", "metric_definitions"]
