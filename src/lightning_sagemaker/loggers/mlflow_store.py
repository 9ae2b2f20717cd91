# SPDX-License-Identifier: Apache-2.0
"""The MLflow calls in use. The client is imported by the first one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_MOST_METRICS, _MOST_PARAMS = 1000, 100
"""Maximum metrics, parameters of a request (MLflow's documentation of ``log-batch``)."""
_LONGEST = 500
"""Maximum characters of a parameter's value, by the same documentation."""
_LONGEST_NAME = 250
_KEY = "lightning_sagemaker.run"
"""Tag to find a run whose id was never received."""


class Point(NamedTuple):
    """One value of one metric."""

    name: str
    value: float
    milliseconds: int
    step: int


class MLflowStore:
    """A tracking server, or a folder.

    Args:
        address: Tracking URI from :func:`~lightning_sagemaker.loggers.address.tracking_address`.

    """

    def __init__(self, address: str) -> None:
        if address.startswith("file:"):  # MLflow refuses folders, in favor of a database, unless this is set
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(address)

    def find(self, experiment: str, key: str) -> str | None:
        """The id of the existing run for ``key``."""
        place = self._client.get_experiment_by_name(experiment)
        if place is None:
            return None
        found = self._client.search_runs([place.experiment_id], f"tags.`{_KEY}` = '{key}'", max_results=1)
        return str(found[0].info.run_id) if found else None

    def create(self, experiment: str, key: str, name: str | None, tags: Mapping[str, str]) -> str:
        """Create a run, and its experiment if it does not exist; returns its id."""
        place = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if place is None else place.experiment_id
        return str(self._client.create_run(number, tags={**tags, _KEY: key}, run_name=name).info.run_id)

    def history(self, run_id: str, name: str) -> set[tuple[int, int]]:
        """(step, milliseconds) of all logged values of a run's metric."""
        return {(point.step, point.timestamp) for point in self._client.get_metric_history(run_id, metric_name(name))}

    def log(self, run_id: str, points: Iterable[Point]) -> None:
        """Log values of metrics."""
        from mlflow.entities import Metric

        metrics = [Metric(metric_name(one.name), one.value, one.milliseconds, one.step) for one in points]
        for first in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(run_id, metrics=metrics[first : first + _MOST_METRICS])

    def log_params(self, run_id: str, params: Mapping[str, object]) -> None:
        """Log the parameters that a run does not have yet: MLflow keeps the first value of each."""
        from mlflow.entities import Param

        known = self._client.get_run(run_id).data.params
        fresh = {metric_name(name): str(value)[:_LONGEST] for name, value in params.items()}
        new = [Param(name, value) for name, value in fresh.items() if name not in known]
        for first in range(0, len(new), _MOST_PARAMS):
            self._client.log_batch(run_id, params=new[first : first + _MOST_PARAMS])

    def set_status(self, run_id: str, status: str) -> None:
        """Set a run's status to RUNNING or to a final status."""
        if status == "RUNNING":
            self._client.update_run(run_id, status=status)
        else:
            self._client.set_terminated(run_id, status=status)


def metric_name(name: str) -> str:
    """``name`` in MLflow's format: allowed characters only, and a valid relative path."""
    parts = re.sub(r"[^\w/. -]", "_", name).split("/")
    return "/".join(part for part in parts if part not in ("", ".", ".."))[:_LONGEST_NAME] or "_"
