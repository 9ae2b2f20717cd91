# SPDX-License-Identifier: Apache-2.0
"""The instance groups of a job, and which hosts train together: for the driver, next to it in a container."""

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_sagemaker.container.lightning_supervisor import write_failure
else:
    from lightning_supervisor import write_failure

_GROUP = "homogeneousCluster"
"""Name of the only instance group of an ordinary job."""


def hosts() -> "list[str]":
    """Names of all hosts, in the order of their ranks."""
    return json.loads(os.environ.get("SM_HOSTS") or "[]") or ["localhost"]


def group_variables(config: "dict[str, Any]") -> "dict[str, str]":
    """The variables of instance groups, as the training toolkit sets them."""
    resources, groups = resource_config(), instance_groups()
    current = resources.get("current_group_name", _GROUP)
    found = {
        "CURRENT_INSTANCE_GROUP_HOSTS": groups.get(current, {}).get("hosts", []),
        "INSTANCE_GROUPS": list(groups),
        "INSTANCE_GROUPS_DICT": groups,
        "DISTRIBUTION_INSTANCE_GROUPS": distribution_groups(config),
        "IS_HETERO": len(groups) > 1,
    }
    texts = {"SM_" + name: json.dumps(value, sort_keys=True, separators=(",", ":")) for name, value in found.items()}
    return dict(texts, SM_CURRENT_INSTANCE_GROUP=current)


def resource_config() -> "dict[str, Any]":
    """SageMaker's description of the hosts."""
    return dict(json.loads(os.environ.get("SM_RESOURCE_CONFIG") or "{}"))


def instance_groups() -> "dict[str, dict[str, Any]]":
    """Name of an instance group -> its type and hosts; an ordinary job has one."""
    return {one["instance_group_name"]: one for one in resource_config().get("instance_groups") or []}


def distribution_groups(config: "dict[str, Any]") -> "list[str]":
    """Names of the groups whose hosts train together: those of the job's distribution, or the only group."""
    is_distributed = any(value is True for value in (config.get("flags") or {}).values())
    return config.get("groups") or ([resource_config().get("current_group_name", _GROUP)] if is_distributed else [])


def training_hosts(config: "dict[str, Any]") -> "list[str]":
    """Names of the hosts that train together, in the order of their ranks, which is that of their group."""
    groups = instance_groups()
    for one in config.get("groups") or []:
        if not groups.get(one, {}).get("hosts"):
            message = "resourceconfig.json does not say which hosts are in the instance group " + repr(one)
            write_failure(message, [])
            raise SystemExit("lightning-sagemaker: error: " + message)
    return [name for one in distribution_groups(config) for name in groups.get(one, {}).get("hosts", [])] or hosts()
