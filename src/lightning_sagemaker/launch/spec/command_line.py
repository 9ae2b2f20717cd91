# SPDX-License-Identifier: Apache-2.0
"""The job that the command line of ``launch`` and its file describe."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from lightning_sagemaker.errors import LaunchError, pairs, suggestion
from lightning_sagemaker.launch.spec.config import LISTS, JobConfig, listed
from lightning_sagemaker.launch.spec.groups import grouped
from lightning_sagemaker.launch.spec.inputs import named_inputs
from lightning_sagemaker.launch.spec.script_arguments import script_hyperparameters
from lightning_sagemaker.recipe_table import RECIPES

_OPTIONS = (
    "instance_type", "instance_count", "max_cost", "distribution", "role", "region", "source_dir", "output_path", "max_run",
)  # fmt: skip
"""Options with the name of the job key that they set."""


def read_config(arguments: argparse.Namespace) -> JobConfig:
    """The job that the command line and its file describe.

    Raises:
        LaunchError: If an option, key or value is unknown or invalid.

    """
    config = JobConfig() if arguments.config is None else JobConfig.from_yaml(arguments.config)
    changes: dict[str, object] = {}
    if arguments.program is not None:
        if arguments.program.endswith((".py", ".sh")):
            changes |= {"entry_point": arguments.program, "recipe": None}
        elif arguments.program in RECIPES:
            changes |= {"recipe": arguments.program, "entry_point": None}
        else:
            raise LaunchError(
                f"Unknown recipe {arguments.program!r}. HINT: {suggestion(arguments.program, RECIPES)} A"
                " script's name ends in .py or .sh."
            )
    for name in _OPTIONS:
        if getattr(arguments, name) is not None:
            changes[name] = getattr(arguments, name)
    if arguments.spot:
        changes["use_spot_instances"] = True
    if arguments.channel:
        changes["inputs"] = {**named_inputs(config.inputs), **pairs("--channel", arguments.channel)}
    own = script_hyperparameters(arguments.script_arguments)
    if own:
        changes["hyperparameters"] = {**config.hyperparameters, **own}
    for key, text in pairs("--set", arguments.settings).items():
        name, dot, below = key.partition(".")
        if dot:
            changes[name] = {
                **_mapping(name, changes.get(name, getattr(config, name, None))),
                below: yaml_value(text, name),
            }
        else:
            changes[name] = yaml_value(text, name)
    changes = listed(changes)
    if "instance_groups" in changes:
        changes = grouped({"distribution": config.distribution, **changes})
    for name, others in LISTS.items():
        if name in changes:
            changes.setdefault(others, ())  # replaces the file's other types and regions
    checked = JobConfig.from_mapping(changes)
    return config.changed(**{name: getattr(checked, name) for name in changes})


def _mapping(name: str, value: object) -> Mapping[str, object]:
    """The mapping ``name`` as it is, to which ``--set NAME.KEY=VALUE`` adds a key."""
    if name == "inputs":
        return named_inputs(value)
    if value is None or isinstance(value, Mapping):
        return value or {}
    raise LaunchError(f"--set {name}.KEY=VALUE was given, but {name} is {value!r}. HINT: write --set {name}=VALUE.")


def yaml_value(text: str, name: str = "") -> object:
    """Parse a value as YAML; environment variables and tags stay strings."""
    import yaml

    if name in ("environment", "tags"):
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text
