# SPDX-License-Identifier: Apache-2.0
"""The plan of a job: the result of planning, from which the request is built."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from lightning_sagemaker.launch.planning.images import Image
from lightning_sagemaker.launch.source.bundle import Bundle
from lightning_sagemaker.launch.source.channel_files import ChannelFiles
from lightning_sagemaker.launch.spec.config import JobConfig
from lightning_sagemaker.launch.spec.inputs import Input, TrainingInput

SPOT_PATIENCE = 3600
"""Seconds that are added to ``max_run`` for the default ``max_wait`` of a spot job."""

MAX_BASE_NAME = 43
"""Maximum characters: a job's name has at most 63, and a suffix of 5 and the time are appended."""


@dataclass(frozen=True)
class JobPlan:
    """A fully resolved job.

    Attributes:
        config: The job as described.
        region: AWS region.
        image: Training image.
        bundle: Source archive.
        base_name: The job's name without the time.
        hyperparameters: Hyperparameters, including those that the distribution adds.
        environment: Environment variables, including those that this package adds.
        channels: Channel name -> input.
        metric_definitions: ``Name`` and ``Regex`` of each metric to collect.
        max_wait: Maximum seconds of a spot job, waiting included; None on demand.
        uploads: Channel name -> files of its local folder that are uploaded.
        checkpoint_uri: S3 prefix of the checkpoints. It ends with a slash: a bare prefix also matches its siblings.

    """

    config: JobConfig
    region: str
    image: Image
    bundle: Bundle
    base_name: str
    hyperparameters: Mapping[str, object]
    environment: Mapping[str, str]
    channels: Mapping[str, Input]
    metric_definitions: tuple[Mapping[str, str], ...]
    max_wait: int | None
    checkpoint_uri: str | None
    uploads: Mapping[str, ChannelFiles] = field(default_factory=dict)

    @property
    def bytes_to_send(self) -> int:
        """Total size of the source archive and the local channels."""
        return len(self.bundle.content) + sum(files.size for files in self.uploads.values())

    def changed(self, **values: object) -> JobPlan:
        """The same plan with other values of configuration keys that no other part of it depends on."""
        return replace(self, config=self.config.changed(**values))

    def staged(self, folder: Path) -> JobPlan:
        """The same plan with each local folder replaced by a folder of symlinks to the files that are sent.

        Args:
            folder: Parent of the new folders, which does not exist yet.

        """
        channels = dict(self.channels)
        for name, files in self.uploads.items():
            source = channels[name]
            assert isinstance(source, TrainingInput)
            if Path(source.s3_data).is_dir():
                files.stage(folder / name)
                channels[name] = replace(source, s3_data=str(folder / name))
        return replace(self, channels=channels)

    def with_bucket(self, bucket: str) -> JobPlan:
        """The same plan, with output and checkpoint locations that were not set placed in the bucket.

        Args:
            bucket: Name of the bucket, and of a folder in it.

        """
        config, base = self.config, f"s3://{bucket}/{self.base_name}"
        uri = self.checkpoint_uri
        if config.output_path is None:
            config = config.changed(output_path=base)
        if config.use_spot_instances and uri is None:
            uri = f"{str(config.output_path).rstrip('/')}/checkpoints/"
        return replace(self, config=config, checkpoint_uri=uri)


def base_name(config: JobConfig) -> str:
    """Prefix of the job's name, from ``base_job_name``, recipe or script; invalid characters become dashes."""
    name = config.base_job_name or config.recipe or (config.entry_point or "job").rpartition("/")[2].rpartition(".")[0]
    return re.sub(r"[^A-Za-z0-9-]+", "-", name).strip("-")[:MAX_BASE_NAME].strip("-") or "job"
