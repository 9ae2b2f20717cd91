# SPDX-License-Identifier: Apache-2.0
"""A job with everything decided: what planning makes and a request is made of."""

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
"""Seconds that a spot job may wait for its instances, beyond ``max_run``, where ``max_wait`` is not set."""

MAX_BASE_NAME = 43
"""A job's name has at most 63 characters; a suffix of 5 and the time are appended."""


@dataclass(frozen=True)
class JobPlan:
    """A job with everything decided.

    Attributes:
        config: As described.
        region: Where it runs.
        image: What it runs in.
        bundle: Its source.
        base_name: The job's name without the time.
        hyperparameters: With those that the distribution adds.
        environment: With those that this package adds.
        channels: The inputs.
        metric_definitions: The metrics to collect.
        max_wait: Longest time of a spot job with its waiting, in seconds.
        uploads: Name of a channel -> what of its local folder is uploaded.
        checkpoint_uri: Ends with a slash: a bare prefix also matches its neighbours.

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
        """Of the source and of local channels."""
        return len(self.bundle.content) + sum(files.size for files in self.uploads.values())

    def changed(self, **values: object) -> JobPlan:
        """The same plan with other values of its configuration that nothing else was decided by."""
        return replace(self, config=self.config.changed(**values))

    def staged(self, folder: Path) -> JobPlan:
        """The same plan with folders in place of the local ones that hold links to what is sent, and nothing else.

        Args:
            folder: Does not exist yet.

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
        """The same plan with the places that are in the default bucket filled in."""
        config, base = self.config, f"s3://{bucket}/{self.base_name}"
        uri = self.checkpoint_uri
        if config.output_path is None:
            config = config.changed(output_path=base)
        if config.use_spot_instances and uri is None:
            uri = f"{str(config.output_path).rstrip('/')}/checkpoints/"
        return replace(self, config=config, checkpoint_uri=uri)


def base_name(config: JobConfig) -> str:
    """The beginning of the job's name: the user's, else from what is run; mended where SageMaker would not take it."""
    name = config.base_job_name or config.recipe or (config.entry_point or "job").rpartition("/")[2].rpartition(".")[0]
    return re.sub(r"[^A-Za-z0-9-]+", "-", name).strip("-")[:MAX_BASE_NAME].strip("-") or "job"
