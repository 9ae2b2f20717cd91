# SPDX-License-Identifier: Apache-2.0
"""Properties and setters of SDK 2's estimators, on top of a job's description."""

from __future__ import annotations

import json

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.aws import boto_session_of
from lightning_sagemaker.launch.planning.plan import choose_image, own_region
from lightning_sagemaker.launch.request.send import sdk_module
from lightning_sagemaker.launch.spec.config import JobConfig
from lightning_sagemaker.launch.spec.groups import InstanceGroup
from lightning_sagemaker.launch.spec.vocabulary import ALIASES, NOT_HERE, SETTABLE, with_value


def in_region_of(session: object, config: JobConfig) -> JobConfig:
    """The job in the region of the user's session, in which it will be started.

    Raises:
        LaunchError: If the job names another region, or the session is of no use here.

    """
    if session is None:
        return config
    region = boto_session_of(session).region_name
    if config.region not in (None, region):
        raise LaunchError(
            f"region={config.region!r} was set, but sagemaker_session is one of {region}. HINT: leave one of them out."
        )
    return config.changed(region=region)


class Settings:
    """The values of a job by SDK 2's names and methods.

    Attributes:
        config: Description of the job.

    """

    config: JobConfig
    _session: object = None

    @property
    def sagemaker_session(self) -> object:
        """The session that was given, of the SDK or of boto3; without one, a new one of the SDK.

        Raises:
            LaunchError: If there is none and the SDK is not installed.

        """
        return self._session or sdk_module().make_session(None, self.config.region or own_region())

    @sagemaker_session.setter
    def sagemaker_session(self, session: object) -> None:
        self._session = session
        self.config = in_region_of(session, self.config)

    def __getattr__(self, name: str) -> object:
        """The job's values by the names of SDK 2, such as ``output_path``."""
        if name != "config" and ALIASES.get(name, name) in JobConfig.__dataclass_fields__:
            return getattr(self.config, ALIASES.get(name, name))
        if name in NOT_HERE:
            raise LaunchError(f"The estimator has no {name}: {NOT_HERE[name]}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        """A value of the job, by SDK 2's name, is that of the next job; all else is an attribute as any other."""
        if name in SETTABLE:
            self.config = with_value(self.config, name, value)
        else:
            super().__setattr__(name, value)

    @property
    def instance_groups(self) -> list[InstanceGroup] | None:
        """The instance groups, the training group first; None if the job has no groups."""
        return list(self.config.groups) or None

    def hyperparameters(self) -> dict[str, str]:
        """Name -> JSON text of each hyperparameter that will be sent, with those that the distribution adds."""
        values = {**self.config.hyperparameters}
        if self.config.distributed.parameters:
            values["mp_parameters"] = dict(self.config.distributed.parameters)
        return {name: json.dumps(value) for name, value in values.items()}

    def set_hyperparameters(self, **values: object) -> None:
        """Add or replace hyperparameters."""
        self.config = self.config.changed(hyperparameters={**self.config.hyperparameters, **values})

    def training_image_uri(self, region: str | None = None) -> str:
        """URI of the job's training image.

        Args:
            region: AWS region; the job's when None.

        """
        return choose_image(self.config, region or self.config.region or own_region()).uri

    def enable_network_isolation(self) -> bool:
        """Whether the container has no network access."""
        return bool(self.config.enable_network_isolation)

    def enable_remote_debug(self) -> None:
        """Open the next job's containers to Session Manager."""
        self.config = self.config.changed(enable_remote_debug=True)

    def disable_remote_debug(self) -> None:
        """Close the next job's containers to Session Manager."""
        self.config = self.config.changed(enable_remote_debug=False)

    def get_remote_debug_config(self) -> dict[str, bool] | None:
        """``RemoteDebugConfig`` of the request; None if it is not set."""
        value = self.config.enable_remote_debug
        return None if value is None else {"EnableRemoteDebug": value}

    def get_session_chaining_config(self) -> dict[str, bool] | None:
        """``SessionChainingConfig`` of the request; None if it is not set."""
        value = self.config.enable_session_tag_chaining
        return None if value is None else {"EnableSessionTagChaining": value}

    def get_vpc_config(self) -> dict[str, list[str]] | None:
        """``VpcConfig`` of the request; None without subnets."""
        config = self.config
        both = {"Subnets": list(config.subnets), "SecurityGroupIds": list(config.security_group_ids)}
        return both if config.subnets else None
