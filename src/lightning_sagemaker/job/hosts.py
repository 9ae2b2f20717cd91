# SPDX-License-Identifier: Apache-2.0
"""The hosts of a job: from the container's ``resourceconfig.json``, else from ``SM_*``, else this machine only.

The file comes first because under mpirun the toolkit exports the first host's ``SM_*`` variables to every rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from lightning_sagemaker.job.process import Ranks
from lightning_sagemaker.job.source import Source, check_names
from lightning_sagemaker.job.types import InstanceGroup, SageMakerJobError

LOCAL_HOST = "localhost"
"""Name of the only host outside a container."""

_GUESSED = "the first host"


@dataclass(frozen=True)
class Hosts:
    """The hosts of a job, as seen by this host.

    Attributes:
        names: Hosts that train together, first the main one.
        current: Name of this host.
        group: Instance group of this host.
        groups: All instance groups.
        instance_type: Instance type of this host.
        network_interface: Network interface between the hosts.

    """

    names: tuple[str, ...]
    current: str
    group: str | None = None
    groups: tuple[InstanceGroup, ...] = ()
    instance_type: str | None = None
    network_interface: str | None = None


def in_container(source: Source) -> bool:
    """Whether this is a training job: detected by variables that only a job has, never by a rank, which leaks."""
    marks = ("TRAINING_JOB_NAME", "TRAINING_JOB_ARN", "SM_TRAINING_ENV")
    return any(source.text(name) is not None for name in marks) or source.file("resourceconfig") is not None


def read_hosts(source: Source) -> Hosts:
    """The hosts of the container that this process runs in.

    Raises:
        SageMakerJobError: If the current host is not among the hosts, or a list of hosts is malformed.

    """
    config = _resource_config(source)
    everybody = _all_hosts(source, config)
    groups = _groups(source, config)
    current = _current_host(source, config, everybody)
    if current not in everybody:
        raise SageMakerJobError(
            f"The current host {current!r} ({source.origins['current_host']}) is not among the job's hosts"
            f" {list(everybody)} ({source.origins['hosts']}). HINT: both come from the same resourceconfig.json in a"
            " SageMaker container; correct the one that was changed."
        )
    _check_groups(groups, everybody, current)
    group = _current_group(source, config, groups, current)
    of_group = next((g.instance_type for g in groups if g.name == group), None)
    if of_group is not None:
        source.origins["instance_type"] = f"instance group {group!r}"
    return Hosts(
        names=_training_hosts(source, everybody, groups, group, current),
        current=current,
        group=group,
        groups=groups,
        instance_type=of_group
        or _fact(source, "instance_type", config, "current_instance_type", "SM_CURRENT_INSTANCE_TYPE"),
        network_interface=_fact(
            source, "network_interface", config, "network_interface_name", "SM_NETWORK_INTERFACE_NAME"
        ),
    )


def check_known(source: Source, hosts: Hosts) -> None:
    """Raise if nothing says which of several hosts this is: all would be the first, and wait for the others."""
    if len(hosts.names) > 1 and source.origins["current_host"] == _GUESSED:
        raise SageMakerJobError(
            f"The job's hosts are {list(hosts.names)} ({source.origins['hosts']}), but nothing says which of them this is."
            " HINT: set SM_CURRENT_HOST to its name, or start the script with torchrun or mpirun."
        )


def fit_to_launch(source: Source, hosts: Hosts, ranks: Ranks) -> Hosts:
    """Restrict ``hosts`` to those with processes, with this host at its node rank.

    Raises:
        SageMakerJobError: If the launcher's world needs more hosts than the job has.

    """
    found = len(hosts.names)
    if ranks.num_nodes > found:
        raise SageMakerJobError(
            f"A world size of {ranks.world_size} with {ranks.local_world_size} process(es) on each host needs"
            f" {ranks.num_nodes} hosts, but the job has {found}: {list(hosts.names)}. HINT: WORLD_SIZE is hosts times"
            f" processes per host; start {found * ranks.local_world_size} processes."
        )
    if ranks.num_nodes < found:
        source.notes.append(
            f"The job has {found} hosts, but {ranks.launcher.value} started {ranks.world_size} process(es) on"
            f" {ranks.num_nodes} of them; the others do not take part in training."
        )
    others = [name for name in hosts.names if name != hosts.current][: ranks.num_nodes - 1]
    names = (*others[: ranks.node_rank], hosts.current, *others[ranks.node_rank :])
    return Hosts(names, hosts.current, hosts.group, hosts.groups, hosts.instance_type, hosts.network_interface)


def synthetic_hosts(ranks: Ranks | None) -> Hosts:
    """Synthetic host names outside a container, where hosts have no names."""
    if ranks is None or ranks.num_nodes == 1:
        return Hosts((LOCAL_HOST,), LOCAL_HOST)
    names = tuple(f"node-{index}" for index in range(ranks.num_nodes))
    return Hosts(names, names[ranks.node_rank])


@dataclass(frozen=True)
class _ResourceConfig:
    content: dict[str, object]
    origin: str

    def text(self, key: str) -> str | None:
        return _text(self.content, key)


def _resource_config(source: Source) -> _ResourceConfig:
    config = source.file("resourceconfig")
    if config is not None:
        return _ResourceConfig(config, "resourceconfig.json")
    return _ResourceConfig(source.json("SM_RESOURCE_CONFIG", dict) or {}, "SM_RESOURCE_CONFIG")


def _all_hosts(source: Source, config: _ResourceConfig) -> tuple[str, ...]:
    """All hosts, in the order of ``SM_HOSTS`` if that lists the same ones: SDK 3 sorts it and assigns ranks by it."""
    listed = source.names("SM_HOSTS")
    in_config = config.content.get("hosts")
    if in_config is not None:
        in_config = check_names(in_config, f"hosts in {config.origin}")
    if listed and (not in_config or set(listed) == set(in_config)):
        return source.found("hosts", "SM_HOSTS", listed)
    if in_config:
        return source.found("hosts", config.origin, in_config)
    alone = config.text("current_host") or source.text("CURRENT_HOST") or source.text("SM_CURRENT_HOST") or LOCAL_HOST
    return source.found("hosts", "the current host alone", (alone,))


def _current_host(source: Source, config: _ResourceConfig, everybody: tuple[str, ...]) -> str:
    in_file = config.text("current_host")
    if in_file is not None and config.origin == "resourceconfig.json":
        return source.found("current_host", config.origin, in_file)
    for name in ("CURRENT_HOST", "PMIX_HOSTNAME", "SM_CURRENT_HOST"):
        value = source.text(name)
        if value is not None and (name != "PMIX_HOSTNAME" or value in everybody):
            return source.found("current_host", name, value)
    return source.found("current_host", config.origin if in_file else _GUESSED, in_file or everybody[0])


def _groups(source: Source, config: _ResourceConfig) -> tuple[InstanceGroup, ...]:
    entries, origin = config.content.get("instance_groups"), config.origin
    if not entries:
        entries, origin = list((source.json("SM_INSTANCE_GROUPS_DICT", dict) or {}).values()), "SM_INSTANCE_GROUPS_DICT"
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise SageMakerJobError(f"instance_groups in {origin} holds {entries!r}. HINT: it must be a list of objects.")
    return tuple(
        InstanceGroup(
            name=_text(entry, "instance_group_name") or f"group-{index}",
            instance_type=_text(entry, "instance_type"),
            hosts=check_names(entry.get("hosts") or [], f"hosts of an instance group in {origin}"),
        )
        for index, entry in enumerate(entries)
    )


def _check_groups(groups: tuple[InstanceGroup, ...], everybody: tuple[str, ...], current: str) -> None:
    """Raise if a host would train in two groups or in none: the others would wait for a rank that does not exist."""
    names, listed = [group.name for group in groups], [name for group in groups for name in group.hosts]
    is_partition = len({*names}) == len(names) and len({*listed}) == len(listed) and {*listed} <= {*everybody}
    if is_partition and (len(groups) < 2 or current in listed):
        return
    found = "; ".join(f"{group.name!r} with {list(group.hosts)}" for group in groups)
    raise SageMakerJobError(
        f"The instance groups are {found}, but the job's hosts are {list(everybody)} and this is {current!r}."
        " HINT: groups have different names, and each host is in one; correct the file or variable that was changed."
    )


def _current_group(
    source: Source, config: _ResourceConfig, groups: tuple[InstanceGroup, ...], current: str
) -> str | None:
    holding = next((group.name for group in groups if current in group.hosts), None)
    if holding is not None:
        return source.found("instance_group", "the group that lists this host", holding)
    return _fact(source, "instance_group", config, "current_group_name", "SM_CURRENT_INSTANCE_GROUP")


def _training_hosts(
    source: Source, everybody: tuple[str, ...], groups: tuple[InstanceGroup, ...], group: str | None, current: str
) -> tuple[str, ...]:
    """The hosts of the distribution's groups in the order listed, which is the launcher's; all hosts without groups."""
    chosen = source.names("SM_DISTRIBUTION_INSTANCE_GROUPS") or ()
    together = tuple(name for g in groups if g.name in chosen for name in g.hosts)
    if not together and len(groups) > 1 and group is not None:  # the groups' programs are independent of each other
        source.notes.append(
            f"The job has {len(groups)} instance groups and the distribution selects none of them: hosts train together"
            f" within their own group, here {group!r}."
        )
        together = next(g.hosts for g in groups if g.name == group)
        return source.found("hosts", f"instance group {group!r}", together)
    if not together:
        return everybody
    if current in together:
        return source.found("hosts", "the instance groups of the distribution", together)
    source.notes.append(
        f"This host is in instance group {group!r}, which is not among the training groups ({', '.join(chosen)}),"
        " so it trains alone."
    )
    return source.found("hosts", "the current host alone", (current,))


def _fact(source: Source, field: str, config: _ResourceConfig, key: str, variable: str) -> str | None:
    """A string from the configuration, else from a variable."""
    value = config.text(key)
    if value is not None:
        return source.found(field, config.origin, value)
    value = source.text(variable)
    return None if value is None else source.found(field, variable, value)


def _text(config: dict[str, object], key: str) -> str | None:
    value = config.get(key)
    return value if isinstance(value, str) and value else None
