# SPDX-License-Identifier: Apache-2.0
"""Instance groups of a cluster whose hosts are of several types: which of them trains, and which are the others.

Ranks are started alike on all hosts of one group, as SageMaker does it too; on each host of the others the program runs
once, by itself, to prepare data for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from lightning_sagemaker.errors import LaunchError, suggestion

MAX_GROUPS = 5
"""Of a job, in the CreateTrainingJob API (botocore 1.44.5)."""

MAX_GROUP_NAME = 64


@dataclass(frozen=True)
class InstanceGroup:
    """Hosts of one type in a cluster. The order of the arguments is SDK 2's.

    Args:
        instance_group_name: By which channels and distributions name it.
        instance_type: Instance type of each host.
        instance_count: Hosts.

    """

    instance_group_name: str
    instance_type: str
    instance_count: int


_FIELDS = tuple(one.name for one in fields(InstanceGroup))
_OF_API = ("InstanceGroupName", "InstanceType", "InstanceCount")


def grouped(values: Mapping[str, object]) -> dict[str, object]:
    """The same values with ``instance_groups`` as the group that trains, and ``other_groups``.

    The group that trains is that of the distribution; without one the first with GPUs, whose image SDK 2 takes for all.

    Args:
        values: Arguments of a job, in the words of SDK 2.

    Raises:
        LaunchError: If the groups are none, contradict each other, or the distribution names another.

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
    """Groups as they are given: objects of this class or of an SDK's of the same name, or mappings of its arguments.

    Raises:
        LaunchError: If they are none of these, are too many, or two have one name.

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
    """Names in ``instance_groups`` of a distribution, which has the groups themselves or their names.

    Raises:
        LaunchError: If they are not names, or several.

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
