# SPDX-License-Identifier: Apache-2.0
"""Rehearse a job on this machine: same bundle, same request, same drivers, a few steps on a sample of the data."""

from __future__ import annotations

import io
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.planning.job_plan import JobPlan
from lightning_sagemaker.launch.request.without_sdk import fetch_from
from lightning_sagemaker.launch.spec.config import JobConfig
from lightning_sagemaker.launch.spec.inputs import FileSystemInput
from lightning_sagemaker.launch.transfer import LINES, fetch, fetch_listed, up_to_last_line
from lightning_sagemaker.simulator.cluster import LocalResult
from lightning_sagemaker.simulator.request_runner import run_request

STEPS = 5
"""Optimizer steps of a rehearsed recipe."""

_STEP_NAMES = ("max_steps", "trainer.max_steps")
"""Names under which a recipe accepts the number of steps."""

SAMPLE_BYTES = 4 * 2**20
"""Bytes of a channel's sample. A longer text is cut at a line; other files are copied complete, as many as fit, and at
least one, or one for each host that gets a share of them."""


@dataclass(frozen=True)
class Rehearsal:
    """Result and measurements of a rehearsal.

    Attributes:
        result: Result of the simulated job.
        seconds: Wall time in seconds, preparation of the hosts included.
        step_seconds: Seconds per optimizer step on this machine; None if the program does not record its throughput.
        memory_mib: Peak memory of the largest process, in MiB.
        strategy: The strategy that Lightning used; None if the program does not record it.
        checkpoint_bytes: Size of ``checkpoints`` on the first host, in bytes.
        model_bytes: Size of what would become ``model.tar.gz`` before compression, in bytes.

    """

    result: LocalResult
    seconds: float
    step_seconds: float | None
    memory_mib: int
    strategy: str | None
    checkpoint_bytes: int
    model_bytes: int

    def lines(self) -> list[tuple[str, str]]:
        """The figures as pairs of a label and a text."""
        step = "not recorded by the program" if self.step_seconds is None else f"{self.step_seconds * 1000:.0f} ms"
        rows = [
            ("rehearsal", "passed" if not self.result.returncode else f"failed, exit code {self.result.returncode}"),
            ("seconds", f"{self.seconds:.0f}"),
            ("step time here", step),
            ("largest process", f"{self.memory_mib} MiB"),
            ("checkpoints", f"{self.checkpoint_bytes / 2**20:.1f} MiB"),
            ("model", f"{self.model_bytes / 2**20:.1f} MiB"),
            ("folders", str(self.result.root)),
        ]
        if self.strategy is not None:
            rows.insert(1, ("strategy", self.strategy))
        return rows


def rehearse(
    plan: JobPlan,
    root: Path,
    *,
    settings: Mapping[str, object] | None = None,
    folders: Mapping[str, str] | None = None,
    hosts: int | None = None,
    timeout: float | None = 600.0,
    output: TextIO | None = None,
) -> Rehearsal:
    """Run the job on simulated hosts; without the SageMaker SDK, with a stand-in for its start script.

    Args:
        plan: The job.
        root: Folder of the hosts' folders and of ``log``; an earlier rehearsal in it is removed first.
        settings: Hyperparameters that override the job's. A recipe trains for 5 steps unless they set ``max_steps``.
        folders: Channel name -> local folder, for file systems and in place of data in S3.
        hosts: Number of hosts, and maximum of each further group; None for the job's numbers.
        timeout: Seconds after which everything is stopped; None for no limit.
        output: Stream for the program's lines; ``sys.stdout`` when None. ``log`` has all that the containers print.

    Raises:
        LaunchError: If a channel's data is not available, or an argument is invalid.

    """
    _check(plan, folders or {}, hosts)
    try:
        from lightning_sagemaker.launch.request.offline import sent_request
    except ImportError:
        from lightning_sagemaker.launch.request.without_sdk import sent_request

        print(
            "lightning-sagemaker: the SageMaker SDK is not installed; using a stand-in for its start script",
            file=output or sys.stdout,
        )
    plan = _shortened(plan, settings or {}, hosts)
    _clear(root)
    with tempfile.TemporaryDirectory(prefix="lightning-sagemaker-") as scratch:
        request = sent_request(plan, Path(scratch, "store"))
        request.setdefault("TrainingJobName", f"{plan.base_name}-rehearsal")
        local = {**_samples(plan, Path(scratch), dict(folders or {})), **(folders or {})}
        begin = time.monotonic()
        root.mkdir(parents=True, exist_ok=True)
        with (root / "log").open("w") as log:
            lines = _ProgramLines(output or sys.stdout, log)
            result = run_request(
                request, fetch_from(Path(scratch, "store")), root, folders=local, timeout=timeout, output=lines
            )
        seconds = time.monotonic() - begin
        if result.failure is not None:
            lines.write_last(result.failure.last_lines)
    first = result.root / "algo-1"
    metrics = _read(first / "output" / "data" / "metrics.json")
    processes = [_read(folder / "driver.json") for folder in sorted(result.root.glob("algo-*"))]
    return Rehearsal(
        result=result,
        seconds=seconds,
        step_seconds=metrics.get("step_seconds"),
        memory_mib=max((one.get("largest_process_mib", 0) for one in processes), default=0),
        strategy=metrics.get("strategy"),
        checkpoint_bytes=_size(first / "checkpoints"),
        model_bytes=_size(first / "model"),
    )


def _check(plan: JobPlan, folders: Mapping[str, str], hosts: int | None) -> None:
    if hosts is not None and hosts < 1:
        raise LaunchError(f"{hosts} hosts were requested for a rehearsal. HINT: use at least 1.")
    for name, folder in folders.items():
        if name not in plan.channels:
            raise LaunchError(f"The job has no channel {name!r}, for which a folder was given. HINT: {_known(plan)}")
        if not Path(folder).is_dir():
            raise LaunchError(
                f"Channel {name!r} was given {folder!r}, which is not a directory. HINT: give an existing one."
            )
    for name, source in plan.channels.items():
        if isinstance(source, FileSystemInput) or source.is_local or name in folders:
            continue
        if (source.input_mode or plan.config.input_mode) == "Pipe":
            raise LaunchError(
                f"Channel {name!r} is read from named pipes (input_mode 'Pipe'), which a rehearsal does not have. HINT:"
                f" rehearse with FastFile, or with a folder that the program can read: --rehearse-channel {name}=DIR."
            )


def _shortened(plan: JobPlan, settings: Mapping[str, object], hosts: int | None) -> JobPlan:
    changed, kept = dict(settings), dict(plan.hyperparameters)
    if plan.config.recipe:
        kept = {name: value for name, value in kept.items() if name not in _STEP_NAMES}  # two values would be an error
        changed = changed if any(name in changed for name in _STEP_NAMES) else {"max_steps": STEPS, **changed}
    config = plan.config if hosts is None else _with_hosts(plan.config, hosts)
    return replace(plan, config=config, hyperparameters={**kept, **changed})


def _known(plan: JobPlan) -> str:
    return f"it has {', '.join(plan.channels)}." if plan.channels else "it has none; add one with --channel NAME=PLACE."


def _with_hosts(config: JobConfig, hosts: int) -> JobConfig:
    others = [{**asdict(one), "instance_count": min(hosts, one.instance_count)} for one in config.groups[1:]]
    return config.changed(instance_count=hosts, other_groups=tuple(others))


def _clear(root: Path) -> None:
    """Remove an earlier rehearsal; raise LaunchError if ``root`` is anything else."""
    if root.exists() and not root.is_dir():
        raise LaunchError(f"{str(root)!r} is not a directory, so it cannot hold a rehearsal. HINT: choose another one.")
    if root.is_dir() and any(root.iterdir()):
        if not (root / "log").is_file() or not (root / "algo-1").is_dir():
            raise LaunchError(f"{str(root)!r} contains something other than a rehearsal. HINT: choose another folder.")
        shutil.rmtree(root)


class _ProgramLines(io.StringIO):
    """Logs everything, and forwards a host's lines once its driver has started: the SDK first prints its environment.

    Args:
        output: Stream for the forwarded lines.
        log: Stream for all lines.

    """

    def __init__(self, output: TextIO, log: TextIO) -> None:
        self._output = output
        self._log = log
        self._begun: set[str] = set()

    def write(self, text: str) -> int:
        self._log.write(text)
        host, _, line = text.partition(" | ")
        if line.startswith("lightning-sagemaker:"):
            self._begun.add(host)
        if host in self._begun or not line:
            self._output.write(text)
        return len(text)

    def flush(self) -> None:
        self._output.flush()
        self._log.flush()

    def write_last(self, lines: Sequence[str]) -> None:
        """Forward the last lines of the job, if no driver has started."""
        if not self._begun:
            self._output.write("\n".join([*lines, ""]))


def _samples(plan: JobPlan, scratch: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Channel name -> local folder with a sample of its data."""
    found = {}
    for name, source in plan.channels.items():
        if name in given or isinstance(source, FileSystemInput):
            continue
        target = scratch / "samples" / name
        hosts = sum(one.instance_count for one in plan.config.groups) or plan.config.instance_count
        least = hosts if source.distribution == "ShardedByS3Key" else 1
        if source.is_local:
            _copy_part(plan.uploads[name].taken, target, least)
        else:
            from lightning_sagemaker.launch.aws import make_client

            is_list = source.s3_data_type == "ManifestFile"
            get = fetch_listed if is_list else partial(fetch, is_channel=True)
            if not get(make_client("s3", plan.region), source.s3_data, target, SAMPLE_BYTES, least):
                raise LaunchError(
                    f"Channel {name!r}: no objects begin with {source.s3_data}, so the job would fail. HINT: list them with"
                    f" `aws s3 ls {source.s3_data}`."
                )
        found[name] = str(target)
    return found


def _copy_part(files: Mapping[str, Path], target: Path, least: int) -> None:
    target.mkdir(parents=True)
    total = 0
    for count, (name, path) in enumerate(sorted(files.items())):
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in LINES and path.stat().st_size > SAMPLE_BYTES:
            with path.open("rb") as file:
                place.write_bytes(up_to_last_line(file.read(SAMPLE_BYTES)))
        elif count >= least and total + path.stat().st_size > SAMPLE_BYTES:
            return
        else:
            shutil.copy(path, place)
        total += place.stat().st_size


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
