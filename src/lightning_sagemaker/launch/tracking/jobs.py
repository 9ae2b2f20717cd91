# SPDX-License-Identifier: Apache-2.0
"""List, describe, follow and stop training jobs, and download their output."""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from lightning_sagemaker.aws_types import Client, Session
from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.aws import lacks_capacity, make_session, translate_aws_errors
from lightning_sagemaker.launch.transfer import check_replaceable, fetch, fetch_packed, put_in_place
from lightning_sagemaker.metric_lines import printed_values

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
ENDED = ("Completed", "Failed", "Stopped")

_LAST_LINES = 5.0
"""Seconds after the end of a job in which CloudWatch may still deliver lines."""


@dataclass(frozen=True)
class JobStatus:
    """Status of a job.

    Attributes:
        name: Name of the job.
        status: ``InProgress``, ``Completed``, ``Failed``, ``Stopping`` or ``Stopped``.
        phase: Secondary status, such as ``Downloading``.
        reason: Reason of the failure; None without one.
        seconds: Training time so far, in seconds.
        model_data: ``s3://`` URI of the model artifact; None if SageMaker has none yet.
        description: Answer of DescribeTrainingJob.
        jobs: The account's jobs, of which this is one.

    """

    name: str
    status: str
    phase: str
    reason: str | None
    seconds: float
    model_data: str | None
    description: dict[str, Any] = field(repr=False)
    jobs: TrainingJobs = field(repr=False, compare=False)

    @property
    def lacks_capacity(self) -> bool:
        """Whether the job failed for lack of capacity."""
        return self.status == "Failed" and lacks_capacity(self.reason)

    @property
    def job_name(self) -> str:
        """The name, by SDK 2's attribute."""
        return self.name

    def describe(self) -> dict[str, Any]:
        """What SageMaker says of the job now, which ``description`` said when this object was made."""
        return self.jobs.describe(self.name).description

    def wait(self, logs: bool | str | Sequence[str] | None = True, poll: float = 10.0) -> JobStatus:
        """Follow the job until it has ended, by SDK 2's method; return its final status.

        Args:
            logs: As in :meth:`~lightning_sagemaker.launch.Estimator.fit`.
            poll: Polling interval in seconds.

        Raises:
            LaunchError: If the job fails, with SageMaker's reason.

        """
        return self.jobs.follow(self.name, logs=wants_logs(logs), poll=poll).checked()

    def stop(self) -> None:
        """Ask the job to stop, by SDK 2's method."""
        self.jobs.stop(self.name)

    def rule_job_summary(self) -> list[dict[str, object]]:
        """State of each rule of SageMaker Debugger and its profiler, by SDK 2's method."""
        found = self.describe()
        names = ("DebugRuleEvaluationStatuses", "ProfilerRuleEvaluationStatuses")
        return [dict(one) for name in names for one in found.get(name, [])]

    def checked(self) -> JobStatus:
        """The same status, unless the job has failed.

        Raises:
            LaunchError: If it has, with SageMaker's reason.

        """
        if self.status == "Failed":
            raise LaunchError(
                f"The job {self.name} failed: {self.reason}. HINT: `lightning-sagemaker logs {self.name}`."
            )
        return self


def wants_logs(logs: bool | str | Sequence[str] | None) -> bool:
    """Whether to show the log; SDK 2 also accepts strings, one or several, of which only ``All`` shows it."""
    words = [logs] if isinstance(logs, str) else logs
    return "All" in words if isinstance(words, Sequence) else bool(words)


class TrainingJobs:
    """The jobs of an account in one region.

    Args:
        region: AWS region; the configured one when None.
        session: A boto3 session, which overrides ``region``; created when None.
        sagemaker: A client of SageMaker, as the user's session has; that of ``session`` when None.

    """

    def __init__(
        self, region: str | None = None, session: Session | None = None, sagemaker: Client | None = None
    ) -> None:
        self.session = make_session(region) if session is None else session
        self.sagemaker = self.session.client("sagemaker") if sagemaker is None else sagemaker
        self._logs = self.session.client("logs")

    def list(self, contains: str = "", limit: int = 20) -> list[tuple[str, str, object]]:
        """Name, status and time of creation of the newest jobs.

        Args:
            contains: Part of the name.
            limit: Maximum number of jobs.

        """
        wanted = {"NameContains": contains} if contains else {}
        with translate_aws_errors("Listing the jobs"):
            pages = self.sagemaker.get_paginator("list_training_jobs").paginate(
                SortBy="CreationTime",
                SortOrder="Descending",
                PaginationConfig={"MaxItems": limit, "PageSize": min(limit, 100)},  # SageMaker refuses larger pages
                **wanted,
            )
            found = [job for page in pages for job in page["TrainingJobSummaries"]]
        return [(job["TrainingJobName"], job["TrainingJobStatus"], job["CreationTime"]) for job in found]

    def describe(self, name: str) -> JobStatus:
        """Ask SageMaker for the status of a job.

        Raises:
            LaunchError: If there is no job of that name.

        """
        with translate_aws_errors(f"Describing the job {name!r}"):
            job = self.sagemaker.describe_training_job(TrainingJobName=name)
        begin, end = job.get("TrainingStartTime"), job.get("TrainingEndTime")
        seconds = 0.0 if begin is None else (end.timestamp() if end else time.time()) - begin.timestamp()
        return JobStatus(
            name=name,
            status=job["TrainingJobStatus"],
            phase=job.get("SecondaryStatus", job["TrainingJobStatus"]),
            reason=job.get("FailureReason"),
            seconds=max(0.0, seconds),
            model_data=job.get("ModelArtifacts", {}).get("S3ModelArtifacts"),
            description=job,
            jobs=self,
        )

    def stop(self, name: str) -> None:
        """Ask a job to stop: it gets SIGTERM, and has 120 seconds to write a checkpoint."""
        with translate_aws_errors(f"Stopping the job {name!r}"):
            self.sagemaker.stop_training_job(TrainingJobName=name)

    def new_lines(self, name: str, seen: dict[str, str]) -> Iterator[tuple[str, str]]:
        """Host and text of the log lines that have arrived since the last call.

        Args:
            name: Name of the job.
            seen: Log stream -> token of the next page; empty before the first call, updated in place.

        """
        missing = self._logs.exceptions.ResourceNotFoundException
        with translate_aws_errors(f"Reading the log of {name!r}"):
            with contextlib.suppress(missing):
                pages = self._logs.get_paginator("describe_log_streams")
                for page in pages.paginate(logGroupName=LOG_GROUP, logStreamNamePrefix=f"{name}/"):
                    for stream in page["logStreams"]:
                        seen.setdefault(stream["logStreamName"], "")
            for stream in sorted(seen):
                yield from self._lines_of(stream, seen)

    def _lines_of(self, stream: str, seen: dict[str, str]) -> Iterator[tuple[str, str]]:
        host = stream.rpartition("/")[2]
        host = re.sub(r"-\d{10,}$", "", host)  # algo-1-1700000000: the service appends a time
        while True:
            token = {"nextToken": seen[stream]} if seen[stream] else {}
            page = self._logs.get_log_events(logGroupName=LOG_GROUP, logStreamName=stream, startFromHead=True, **token)
            for event in page["events"]:
                yield host, event["message"]
            if page["nextForwardToken"] == seen[stream] or not page["events"]:
                seen[stream] = page["nextForwardToken"]
                return
            seen[stream] = page["nextForwardToken"]

    def follow(
        self,
        name: str,
        output: TextIO | None = None,
        logs: bool = True,
        poll: float = 10.0,
        per_hour: float | None = None,
    ) -> JobStatus:
        """Show a job's phases and log until it has ended; return its final status.

        Args:
            name: Name of the job.
            output: Stream to write to; ``sys.stdout`` when None.
            logs: Whether to show the hosts' output.
            poll: Polling interval in seconds.
            per_hour: Price per hour in US dollars, to show the cost so far; None shows none.

        """
        view = _View(output or sys.stdout, per_hour)
        seen: dict[str, str] = {}
        while True:
            status = self.describe(name)
            ended = status.status in ENDED
            if ended and logs:
                time.sleep(min(poll, _LAST_LINES))
            view.phase(status)
            if logs:
                for host, line in self.new_lines(name, seen):
                    view.line(host, line)
            if ended:
                view.end()
                return status
            view.progress(status)
            time.sleep(poll)

    def download(self, name: str, folder: Path, checkpoints: bool = False) -> tuple[Path, ...]:
        """Download the output of a job: ``model`` and ``output``, unpacked, and optionally ``checkpoints``.

        Args:
            name: Name of the job.
            folder: Parent of the folders of these names; those of an earlier download are replaced, no others.
            checkpoints: Whether to download the checkpoints too.

        Returns:
            Paths of the folders that were downloaded.

        Raises:
            LaunchError: If the job has no output yet, something else is at the place of a folder, or an archive has
                names that lead out of it.

        """
        status, s3 = self.describe(name), self.session.client("s3")
        for what in ("model", "output", *(["checkpoints"] if checkpoints else [])):
            check_replaceable(folder / what)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LaunchError(
                f"{str(folder)!r} cannot be created: {error.strerror}. HINT: give another folder."
            ) from error
        made = []
        base = f"{status.description['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{name}/output"
        is_packed = status.description["OutputDataConfig"].get("CompressionType") != "NONE"
        suffix = ".tar.gz" if is_packed else ""
        places = {"model": status.model_data or f"{base}/model{suffix}", "output": f"{base}/output{suffix}"}
        for what, uri in places.items():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                target = Path(scratch, what)
                if fetch_packed(s3, uri, target) if is_packed else fetch(s3, uri, target):
                    made.append(put_in_place(target, folder / what))
        place = status.description.get("CheckpointConfig", {}).get("S3Uri")
        if checkpoints and place:
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                fetch(s3, place, Path(scratch, "checkpoints"))
                made.append(put_in_place(Path(scratch, "checkpoints"), folder / "checkpoints"))
        if not made:
            raise LaunchError(f"The job {name!r} ({status.status}) has no output at {base}. HINT: wait until it ends.")
        return tuple(made)


class _View:
    """Shows a job's phases and lines, and on a terminal a progress line that is redrawn."""

    def __init__(self, output: TextIO, per_hour: float | None) -> None:
        self._output = output
        self._per_hour = per_hour
        self._phase = ""
        self._last: dict[str, str] = {}
        self._drawn = False

    def phase(self, status: JobStatus) -> None:
        if status.phase != self._phase:
            self._phase = status.phase
            self._write(f"lightning-sagemaker: {status.phase}")

    def line(self, host: str, text: str) -> None:
        self._last |= printed_values(text)
        self._write(f"{host} | {text.rstrip()}")

    def progress(self, status: JobStatus) -> None:
        if not self._output.isatty():
            return
        parts = [status.phase, f"{status.seconds / 60:.0f} min"]
        parts += [f"{name} {self._last[name]}" for name in ("step", "loss", "samples_per_second") if name in self._last]
        if self._per_hour is not None:
            parts.append(f"about ${self._per_hour * status.seconds / 3600:.2f}")
        self.end()
        self._output.write(" · ".join(parts))
        self._output.flush()
        self._drawn = True

    def end(self) -> None:
        if self._drawn:
            self._output.write("\r\x1b[K")
            self._drawn = False

    def _write(self, text: str) -> None:
        self.end()
        self._output.write(f"{text}\n")
        self._output.flush()
