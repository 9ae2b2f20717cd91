# SPDX-License-Identifier: Apache-2.0
"""Parse ``distribution=``: a dictionary as for SDK 2's estimators, a name, or an object of SDK 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lightning_sagemaker.errors import LaunchError, suggestion
from lightning_sagemaker.launch.spec.groups import named_groups
from lightning_sagemaker.simulator.contract import DISTRIBUTIONS

_Section = Mapping[str, object]
_TOP = ("smdistributed", "pytorchddp", "torch_distributed", "mpi")

_CLASSIC = """{"smdistributed": {"dataparallel": {"enabled": True}}}"""


@dataclass(frozen=True)
class DistributionRequest:
    """A parsed distribution.

    Attributes:
        kind: One of :data:`~lightning_sagemaker.simulator.contract.DISTRIBUTIONS`.
        processes_per_host: Number of ranks on each host; None for one per GPU.
        mpi_options: Further options of mpirun, as one string.
        parameters: ``mp_parameters`` of model parallelism.
        uses_torchrun: Whether torchrun starts the ranks of model parallelism (version 2), not mpirun (version 1).
        uses_mpi: Whether AWS's ``smddprun`` may start the ranks of SMDDP; False with ``torch_distributed``.
        groups: Name of the instance group whose hosts train; empty if the job has no groups.
        recovers: Whether ``lightning-sagemaker supervise`` starts the ranks, and replaces those that die.

    """

    kind: str = "none"
    processes_per_host: int | None = None
    mpi_options: str = ""
    parameters: Mapping[str, object] = field(default_factory=dict)
    uses_torchrun: bool = True
    uses_mpi: bool = True
    groups: tuple[str, ...] = ()
    recovers: bool = False

    @property
    def flags(self) -> dict[str, object]:
        """``SM_FRAMEWORK_PARAMS`` without the instance type: what SDK 2's estimators sent, and scripts read."""
        flags: dict[str, object] = {}
        if self.kind == "smddp":
            flags["sagemaker_distributed_dataparallel_enabled"] = True
            flags["sagemaker_distributed_dataparallel_custom_mpi_options"] = self.mpi_options
            if not self.uses_mpi:
                flags["sagemaker_torch_distributed_enabled"] = True
        elif self.kind == "ddp":
            flags["sagemaker_pytorch_ddp_enabled"] = True
        elif self.kind == "torch_distributed" or (self.kind == "smp" and self.uses_torchrun):
            flags["sagemaker_torch_distributed_enabled"] = True
        elif self.kind in ("mpi", "smp"):
            flags["sagemaker_mpi_enabled"] = True
            if self.mpi_options:
                flags["sagemaker_mpi_custom_mpi_options"] = self.mpi_options
        if self.kind == "smp":
            flags["sagemaker_distributed_dataparallel_enabled"] = False
        if flags and self.processes_per_host is not None:
            flags["sagemaker_mpi_num_of_processes_per_host"] = self.processes_per_host
        if self.groups and self.kind in ("smddp", "mpi", "smp"):  # SDK 2 leaves it out for the others
            flags["sagemaker_distribution_instance_groups"] = list(self.groups)
        return flags

    def to_json(self) -> dict[str, object]:
        """Content of ``distributed.json`` in SDK 3's containers, for this package's driver."""
        return {
            "process_count_per_node": self.processes_per_host,
            "distribution": self.kind,
            "flags": self.flags,
            "torchrun": self.uses_torchrun if self.kind != "smddp" else not self.uses_mpi,
            "smp": dict(self.parameters) or None,
            **({"groups": list(self.groups)} if self.groups else {}),
            **({"recovery": "in_job"} if self.recovers else {}),
        }


def parse_distribution(value: object) -> DistributionRequest:
    """Parse a ``distribution=`` argument.

    Args:
        value: None; the kind of a :class:`DistributionRequest`; a dictionary as the estimators of SDK 2 take it; or
            ``Torchrun``, ``MPI`` of SDK 3, ``SMDDP``, ``ModelParallel`` of this package.

    Raises:
        LaunchError: If it is none of these, or enables what excludes each other.

    """
    if value is None:
        return DistributionRequest()
    if isinstance(value, DistributionRequest):
        return value
    if isinstance(value, str):
        if value not in DISTRIBUTIONS:
            raise LaunchError(f"distribution={value!r} is not known. HINT: {suggestion(value, DISTRIBUTIONS)}")
        return DistributionRequest(value, uses_torchrun=value != "mpi")
    if isinstance(value, Mapping):
        return _of_dictionary(value)
    return _of_object(value)


def _of_dictionary(value: Mapping[str, object]) -> DistributionRequest:
    groups = named_groups(value.get("instance_groups"))
    request = _of_sections({key: section for key, section in value.items() if key != "instance_groups"})
    if groups and request.kind == "none":
        raise LaunchError(
            f"distribution names the instance group {groups[0]!r}, but enables no launcher. HINT:"
            ' add "torch_distributed": {"enabled": True}, or leave instance_groups out.'
        )
    return replace(request, groups=groups)


def _of_sections(value: Mapping[str, object]) -> DistributionRequest:
    data, model, mpi, torchrun, ddp = _enabled_sections(value)
    if data is not None and model is not None:
        raise LaunchError(
            "distribution enables both dataparallel and modelparallel. HINT: enable one; for data parallelism with"
            ' modelparallel, set `"ddp": True` in its parameters.'
        )
    launched = {"mpi": mpi, "torch_distributed": torchrun, "pytorchddp": ddp}
    enabled = [key for key, section in launched.items() if section is not None]
    if data is not None and enabled == ["torch_distributed"]:
        return DistributionRequest("smddp", _number(torchrun, "processes_per_host"), uses_mpi=False)
    if data is not None and enabled:
        raise LaunchError(
            f"distribution enables dataparallel and {enabled[0]}, but SMDDP brings its own launcher. HINT: leave"
            f" {enabled[0]} out; pass mpirun options as custom_mpi_options of dataparallel."
        )
    if len(enabled) > 1:
        raise LaunchError(f"distribution enables {' and '.join(enabled)}. HINT: enable one of them.")
    if model is not None:
        return _model_parallel(model, mpi, torchrun)
    if mpi is not None:
        return DistributionRequest("mpi", _number(mpi, "processes_per_host"), _mpi_options(mpi), uses_torchrun=False)
    if data is not None:
        return DistributionRequest("smddp", None, _mpi_options(data))
    if ddp is not None:
        return DistributionRequest("ddp", None, _mpi_options(ddp))
    return DistributionRequest(
        "none" if torchrun is None else "torch_distributed", _number(torchrun, "processes_per_host")
    )


def _model_parallel(model: _Section, mpi: _Section | None, torchrun: _Section | None) -> DistributionRequest:
    parameters = model.get("parameters") or {}
    if not isinstance(parameters, Mapping) or not parameters:
        raise LaunchError(
            f'modelparallel has the parameters {parameters!r}. HINT: give {{"partitions": 2, "microbatches": 4}}.'
        )
    if mpi is None and torchrun is None:
        raise LaunchError(
            "modelparallel is enabled, but neither of its launchers, mpi and torch_distributed, is. HINT: add"
            ' "mpi": {"enabled": True, "processes_per_host": 8} next to smdistributed.'
        )
    count = _number(mpi, "processes_per_host")
    return DistributionRequest("smp", count, _mpi_options(mpi), dict(parameters), uses_torchrun=mpi is None)


def _enabled_sections(value: Mapping[str, object]) -> tuple[_Section | None, ...]:
    """Of data and model parallelism, mpi, torchrun and DDP those that are switched on."""
    for key in value:
        if key not in _TOP:
            raise LaunchError(
                f"distribution has the unknown key {key!r}. HINT: {suggestion(str(key), _TOP)} For SMDDP: {_CLASSIC}."
            )
    options = {key: _section(value, key) for key in _TOP}
    library = options["smdistributed"] or {}
    for key in library:
        if key not in ("dataparallel", "modelparallel"):
            raise LaunchError(f"smdistributed has the unknown key {key!r}. HINT: write dataparallel or modelparallel.")
    sections = (library.get("dataparallel"), library.get("modelparallel"))
    return tuple(map(_enabled, (*sections, options["mpi"], options["torch_distributed"], options["pytorchddp"])))


def _mpi_options(section: _Section | None) -> str:
    return str((section or {}).get("custom_mpi_options") or "")


def _of_object(value: object) -> DistributionRequest:
    """Parse an object by its fields, since the package of its class need not be installed."""
    count = getattr(value, "process_count_per_node", None)
    name = type(value).__name__
    if hasattr(value, "to_distribution"):
        request = value.to_distribution()
        assert isinstance(request, DistributionRequest)
        return request
    if name == "MPI" and hasattr(value, "mpi_additional_options"):
        return DistributionRequest("mpi", count, " ".join(value.mpi_additional_options or ()), uses_torchrun=False)
    if name == "Torchrun" and hasattr(value, "smp"):
        if value.smp is None:
            return DistributionRequest("torch_distributed", count)
        return DistributionRequest("smp", count, "", value.smp.model_dump(exclude_none=True))
    raise LaunchError(
        f"distribution is an object of {name}. HINT: write one of {', '.join(DISTRIBUTIONS)}, or a dictionary such as"
        f" {_CLASSIC}."
    )


def _section(value: Mapping[str, object], key: str) -> _Section | None:
    section = value.get(key)
    if section is not None and not isinstance(section, Mapping):
        raise LaunchError(f'distribution[{key!r}] is {section!r}. HINT: write {{"enabled": True}}.')
    return section


def _enabled(section: object) -> _Section | None:
    """The section, if it is switched on."""
    if section is None:
        return None
    is_on = section.get("enabled", False) if isinstance(section, Mapping) else None
    if isinstance(is_on, str):  # SDK 2 accepted strings too
        is_on = {"true": True, "false": False}.get(is_on.lower())
    if not isinstance(is_on, bool):
        raise LaunchError(f'distribution has {section!r} instead of a section. HINT: write {{"enabled": True}}.')
    assert isinstance(section, Mapping)
    return section if is_on else None


def _number(section: _Section | None, key: str) -> int | None:
    value = (section or {}).get(key)
    if value is None:
        return None
    if isinstance(value, str) and value.isdecimal():  # SDK 2 accepted strings too
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise LaunchError(f"{key}={value!r} was set in distribution. HINT: it must be an integer >= 1.")
    return value
