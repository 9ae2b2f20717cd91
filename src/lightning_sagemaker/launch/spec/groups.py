# SPDX-License-Identifier: Apache-2.0
"""Instance groups of a cluster whose hosts are of several types: one group trains, the others do not.

Ranks are started on all hosts of the training group, as SageMaker does too. On each host of the other groups the program
runs once, as a single process, for example to prepare data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from lightning_sagemaker.errors import LaunchError, suggestion

MAX_GROUPS = 5
"""Maximum number of groups of a job in the CreateTrainingJob API (botocore 1.44.5)."""

MAX_GROUP_NAME = 64


@dataclass(frozen=True)
class InstanceGroup:
    """Hosts of one type in a cluster. The order of the arguments is SDK 2's.

    Args:
        instance_group_name: Name of the group, which channels and distributions refer to.
        instance_type: Instance type of each host.
        instance_count: Number of hosts.

    """

    instance_group_name: str
    instance_type: str
    instance_count: int


_FIELDS = tuple(one.name for one in fields(InstanceGroup))
_OF_API = ("InstanceGroupName", "InstanceType", "InstanceCount")


def grouped(values: Mapping[str, object]) -> dict[str, object]:
    """Replace ``instance_groups`` by the keys of the training group, and ``other_groups``.

    The training group is that of the distribution or ``instance_group``; else the first with GPUs, or the first.

    Args:
        values: Arguments of a job, by SDK 2's names.

    Raises:
        LaunchError: If the groups are invalid, conflict with another argument, or lack the one that the distribution names.

    """
    if values.get("instance_groups") is None:
        return {name: value for name, value in values.items() if name != "instance_groups"}
    rest = {name: value for name, value in values.items() if name != "instance_groups"}
    groups = parse_groups(values["instance_groups"])
    for name in ("instance_type", "instance_count", "other_groups"):
        if rest.get(name) is not None:
            raise LaunchError(
                f"{name} was set with instance_groups, which set it for each group. HINT: leave {name} out."
            )
    distribution = rest.get("distribution")
    named = named_groups(distribution.get("instance_groups")) if isinstance(distribution, Mapping) else ()
    if named and rest.get("instance_group") not in (None, *named):
        raise LaunchError(
            f"distribution names the instance group {named[0]!r}, and instance_group {rest['instance_group']!r}. HINT: leave"
            " one out."
        )
    given = rest.get("instance_group")
    named = named or ((str(given),) if given else ())
    if len(groups) > 1 and not named and distribution not in (None, "none", {}):
        raise LaunchError(
            f"instance_groups has {len(groups)} groups, but a distribution covers one. HINT: add"
            f' "instance_groups": ["{groups[0].instance_group_name}"] to the distribution, or set instance_group.'
        )
    training = _training_group(groups, named)
    return {
        **rest,
        "instance_group": training.instance_group_name,
        "instance_type": training.instance_type,
        "instance_count": training.instance_count,
        "other_groups": [asdict(one) for one in groups if one is not training],
    }


def parse_groups(value: object) -> tuple[InstanceGroup, ...]:
    """Parse a list of :class:`InstanceGroup`, of an SDK's class of that name, or of mappings of its arguments.

    Raises:
        LaunchError: If an item is none of these, there are too many groups, or two have the same name.

    """
    if not isinstance(value, (list, tuple)) or not value or len(value) > MAX_GROUPS:
        raise LaunchError(
            f"instance_groups={value!r} was set. HINT: give a list of 1 to {MAX_GROUPS}, such as"
            ' [InstanceGroup("gpu", "ml.p4d.24xlarge", 2), InstanceGroup("data", "ml.c5.18xlarge", 1)].'
        )
    groups = tuple(_group(one) for one in value)
    names = [one.instance_group_name for one in groups]
    for name in names:
        if names.count(name) > 1:
            raise LaunchError(f"Two instance groups are named {name!r}. HINT: use unique names.")
    return groups


def named_groups(value: object) -> tuple[str, ...]:
    """Name in ``instance_groups`` of a distribution, which has a group or its name; empty without one.

    Raises:
        LaunchError: If an item is neither a name nor a group, or there are several.

    """
    if value is None:
        return ()
    listed = value if isinstance(value, (list, tuple)) else [value]
    names = tuple(one if isinstance(one, str) else _group(one).instance_group_name for one in listed)
    if len(names) > 1:
        raise LaunchError(
            f"distribution names the instance groups {', '.join(names)}, but ranks are started on the hosts of one group"
            " only. HINT: use one; the others run the program once on each host."
        )
    return names


def _group(value: object) -> InstanceGroup:
    if isinstance(value, InstanceGroup):
        found = [getattr(value, name) for name in _FIELDS]
    elif isinstance(value, Mapping):
        words = {**dict(zip(_OF_API, _FIELDS, strict=True)), **{name: name for name in _FIELDS}}
        for name in value:
            if name not in words:
                raise LaunchError(
                    f"An instance group has the unknown key {name!r}. HINT: {suggestion(str(name), _FIELDS)}"
                )
        found = [{words[name]: one for name, one in value.items()}.get(name) for name in _FIELDS]
    else:
        found = [getattr(value, name, None) for name in _FIELDS]
    name, kind, count = found
    is_name = isinstance(name, str) and 0 < len(name) <= MAX_GROUP_NAME
    if not is_name or not isinstance(kind, str) or not isinstance(count, int) or isinstance(count, bool):
        raise LaunchError(
            f"instance_groups has {value!r}. HINT: a group needs a name of at most {MAX_GROUP_NAME} characters, a type and a"
            ' number of hosts: InstanceGroup("gpu", "ml.p4d.24xlarge", 2).'
        )
    return InstanceGroup(str(name), kind, count)


def _training_group(groups: tuple[InstanceGroup, ...], named: tuple[str, ...]) -> InstanceGroup:
    if not named:
        return next((one for one in groups if one.instance_type.startswith(("ml.g", "ml.p"))), groups[0])
    for one in groups:
        if one.instance_group_name == named[0]:
            return one
    known = [one.instance_group_name for one in groups]
    raise LaunchError(
        f"The training group is {named[0]!r}, but instance_groups has {', '.join(known)}. HINT:"
        f" {suggestion(named[0], known)}"
    )
