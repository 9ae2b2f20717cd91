# SPDX-License-Identifier: Apache-2.0
"""Run a CreateTrainingJob request on simulated hosts: its objects, its channels, its drivers.

Processes replace containers, and a folder replaces each host's /opt/ml. So the paths in the SDK's drivers are changed to
that folder; nothing else in the drivers is changed.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.job.job import DEFAULT_ROOT
from lightning_sagemaker.simulator import checks
from lightning_sagemaker.simulator.channels import clear, link_channel
from lightning_sagemaker.simulator.cluster import LocalResult
from lightning_sagemaker.simulator.contract import GROUP, Folders, begin_host
from lightning_sagemaker.simulator.display import Lines
from lightning_sagemaker.simulator.hosts import (
    DEFAULT_REGION,
    free_port,
    gpu_variables,
    gpus_per_host,
    job_variables,
    own_environment,
    simulation_variables,
    threads_per_process,
    visible_gpus,
    without_gpus,
)
from lightning_sagemaker.simulator.launchers import host_shim
from lightning_sagemaker.simulator.names import make_names
from lightning_sagemaker.simulator.processes import Job

Fetch = Callable[[str, Path], None]
"""Called with an ``s3://`` URI and a folder; copies the object or prefix into the folder."""


_DRIVERS = "sm_drivers"
_TEXTS = (".sh", ".py", ".json")


def run_request(
    request: Mapping[str, Any],
    fetch: Fetch,
    root: str | os.PathLike[str],
    *,
    folders: Mapping[str, str | os.PathLike[str]] | None = None,
    timeout: float | None = None,
    output: TextIO | None = None,
) -> LocalResult:
    """Run the job that ``request`` describes.

    Args:
        request: The request, as it is sent to SageMaker.
        fetch: Called with the ``s3://`` URI and the folder of each channel in S3; copies the objects.
        root: Folder for one folder per host. In a folder that was used before, the content of ``checkpoints`` is kept,
            as when SageMaker restarts a job.
        folders: Channel name -> local folder, which overrides the request's data source.
        timeout: Seconds after which everything is stopped; None for no limit.
        output: Stream for the prefixed lines; ``sys.stdout`` when None.

    Raises:
        LaunchError: If the request cannot be simulated, such as with a file system for which no local folder is set.

    """
    groups = _groups(request)
    hosts = [name for group in groups for name in group["hosts"]]
    place = checks.make_root(Path(root))
    simulated = _RequestHosts(request, groups, place)
    commands = [simulated.command(host) for host in hosts]
    simulated.prepare(fetch, {name: Path(path) for name, path in (folders or {}).items()})
    with checks.scratch_folder(checks.temporary_folder()) as scratch:
        lines = Lines(sys.stdout if output is None else output)
        job = Job(Path(scratch), lines)
        if (reason := make_names(hosts, job.folder)) is not None:
            lines.say(f"the hosts have this machine's name, and algo-1 does not resolve: {reason}")
        try:
            for index, host in enumerate(hosts):
                job.start(
                    host,
                    host_shim(commands[index], host, None, job.folder),
                    simulated.variables(index),
                    simulated.folders(host).base,
                )
        finally:
            failure = job.wait(timeout)
    code = 0 if failure is None else failure.returncode
    return LocalResult(code, place, "request", failure)


class _RequestHosts:
    """The hosts of one request.

    Args:
        request: The request, as it is sent to SageMaker.
        groups: Instance groups, as in ``resourceconfig.json``.
        root: Folder for the hosts' folders.

    """

    def __init__(self, request: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], root: Path) -> None:
        self._request = request
        self._groups = groups
        self._hosts = hosts = [name for group in groups for name in group["hosts"]]
        self._root = root
        self._visible = visible_gpus()
        self._gpus = gpus_per_host(len(self._visible), len(hosts), 1)
        self._port = free_port()

    def folders(self, host: str) -> Folders:
        return Folders(self._root / host)

    def prepare(self, fetch: Fetch, local: Mapping[str, Path]) -> None:
        """Create each host's folders, with the three files of ``input/config`` and every channel."""
        for host in self._hosts:
            channels = [one for one in self._request.get("InputDataConfig", []) if host in self._hosts_of(one)]
            folders = self.folders(host)
            inputs = {channel["ChannelName"]: _input_config(channel) for channel in channels}
            begin_host(folders, self._resource_config(host), self._request.get("HyperParameters", {}), inputs)
            for channel in channels:
                self._fill(channel, folders.data / channel["ChannelName"], host, fetch, local)
            self._relocate(folders)

    def command(self, host: str) -> list[str]:
        specification = self._request["AlgorithmSpecification"]
        parts = [*specification.get("ContainerEntrypoint", []), *specification.get("ContainerArguments", [])]
        if not parts:
            raise LaunchError(
                "The request has no ContainerEntrypoint, so only its image determines what to run. HINT: run the image"
                " itself; or build the request with `lightning-sagemaker launch` or the SDK's ModelTrainer, which set an"
                " entry point."
            )
        return [part.replace(DEFAULT_ROOT, str(self.folders(host).base)) for part in parts]

    def variables(self, index: int) -> dict[str, str]:
        """Variables that SageMaker sets in a container, and those of the simulation."""
        own, folders = own_environment(), self.folders(self._hosts[index])
        own.setdefault("OMP_NUM_THREADS", threads_per_process(len(self._hosts)))
        given = {
            key: value.replace(DEFAULT_ROOT, str(folders.base))
            for key, value in self._request.get("Environment", {}).items()
        }
        return {
            **without_gpus(self._gpus, {**own, **given}, self._request.get("HyperParameters", {})),
            **own,
            **given,
            **job_variables(self._request["TrainingJobName"], own.get("AWS_REGION", DEFAULT_REGION)),
            "LIGHTNING_SAGEMAKER_MAIN_ADDRESS": "127.0.0.1",
            "LIGHTNING_SAGEMAKER_MAIN_PORT": str(self._port),
            "PATH": own["PATH"],
            **simulation_variables(folders, given.get("PYTHONPATH")),
            **gpu_variables(self._visible, index, self._gpus),
        }

    def _resource_config(self, host: str) -> dict[str, object]:
        group = next(one for one in self._groups if host in one["hosts"])
        return {
            "current_host": host,
            "current_instance_type": group["instance_type"],
            "current_group_name": group["instance_group_name"],
            "hosts": list(self._hosts),
            "instance_groups": list(self._groups),
            "network_interface_name": "lo",
        }

    def _hosts_of(self, channel: Mapping[str, Any]) -> list[str]:
        """Names of the hosts that get a channel: all, or those of its instance groups."""
        names = channel["DataSource"].get("S3DataSource", {}).get("InstanceGroupNames")
        chosen = [one for one in self._groups if not names or one["instance_group_name"] in names]
        return [name for group in chosen for name in group["hosts"]]

    def _fill(
        self, channel: Mapping[str, Any], target: Path, host: str, fetch: Fetch, local: Mapping[str, Path]
    ) -> None:
        name, source = channel["ChannelName"], channel["DataSource"]
        if name in local:
            link_channel(local[name], target)
        elif "S3DataSource" in source:
            clear(target)
            target.mkdir(parents=True)
            fetch(source["S3DataSource"]["S3Uri"], target)
        else:
            raise LaunchError(
                f"Channel {name!r} is a file system, which does not exist here. HINT: give a folder with a sample of it:"
                f" --rehearse-channel {name}=DIR."
            )
        if source.get("S3DataSource", {}).get("S3DataDistributionType") == "ShardedByS3Key":
            files = sorted(path for path in target.rglob("*") if path.is_file())
            sharing = self._hosts_of(channel)
            for number, path in enumerate(files):
                if sharing[number % len(sharing)] != host:
                    path.unlink()

    def _relocate(self, folders: Folders) -> None:
        """Replace /opt/ml in the SDK's drivers by the host's folder; this package's driver gets it from a variable."""
        for path in (folders.data / _DRIVERS).rglob("*"):
            if path.suffix in _TEXTS and path.is_file() and not path.name.startswith("lightning_"):
                path.write_text(path.read_text().replace(DEFAULT_ROOT, str(folders.base)))
        for path in (folders.data / _DRIVERS).rglob("__pycache__"):
            shutil.rmtree(path)


def _groups(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The instance groups as in ``resourceconfig.json``; a single one for a job without groups."""
    resources = request["ResourceConfig"]
    found: list[dict[str, Any]] = []
    number = 0
    for group in resources.get("InstanceGroups") or [{"InstanceGroupName": GROUP, **resources}]:
        count = int(group["InstanceCount"])
        hosts = [f"algo-{index}" for index in range(number + 1, number + count + 1)]
        found.append(
            {"instance_group_name": group["InstanceGroupName"], "instance_type": group["InstanceType"], "hosts": hosts}
        )
        number += count
    return found


def _input_config(channel: Mapping[str, Any]) -> dict[str, str]:
    source = channel["DataSource"].get("S3DataSource", {})
    known = {
        "TrainingInputMode": channel.get("InputMode", "File"),
        "S3DistributionType": source.get("S3DataDistributionType", "FullyReplicated"),
        "RecordWrapperType": channel.get("RecordWrapperType", "None"),
        "ContentType": channel.get("ContentType"),
    }
    return {name: value for name, value in known.items() if value is not None}
