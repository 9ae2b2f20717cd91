# SPDX-License-Identifier: Apache-2.0
"""Convert SDK 2's objects for SageMaker Debugger and profiler, in SDK 3's ``sagemaker.core.debugger``, to the API's form.

Only what is set is sent; SDK 2 attaches a hook and a profiler, which write to S3, to every job by default.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from lightning_sagemaker.errors import LaunchError

JOB_NAME = "THE-JOBS-OWN-NAME"
"""Placeholder for the job's name in the parameters of a rule that acts on the job."""

DEFAULT_IMAGE = "DEFAULT_RULE_EVALUATOR_IMAGE"
"""SDK 2's placeholder for AWS's own image of rules, whose URI depends on the region."""

DETAILED = "DetailedProfilerProcessingJobConfig"
"""Prefix of the name of the rule that SDK 2 adds for SageMaker Profiler."""

ARGUMENTS = ("rules", "debugger_hook_config", "profiler_config", "disable_profiler")

_HINT = "HINT: give an object of sagemaker.core.debugger, or the API's dictionary."


def debugger_values(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Values of :class:`~lightning_sagemaker.launch.spec.config.JobConfig` from the :data:`ARGUMENTS` that are set.

    Raises:
        LaunchError: If an argument is of the wrong type, or two contradict each other.

    """
    rules = _rules(arguments.get("rules"))
    hook = _hook(arguments.get("debugger_hook_config"), rules)
    profiler = arguments.get("profiler_config")
    found: dict[str, Any] = {
        "debugger_hook_config": hook,
        "debugger_rules": [_rule(one, "to_debugger_rule_config_dict") for one in rules if _is_debugger_rule(one)],
        "profiler_config": None if profiler is None else _of_object("profiler_config", profiler),
        "profiler_rules": [_rule(one, "to_profiler_rule_config_dict") for one in rules if not _is_debugger_rule(one)],
    }
    detailed = getattr(profiler, "profile_params", None)
    if detailed is not None and not found["profiler_rules"]:
        found["profiler_rules"] = [_detailed(detailed)]
    if found["profiler_rules"] and profiler is None:
        found["profiler_config"] = {"DisableProfiler": False}
    if arguments.get("disable_profiler"):
        if found["profiler_rules"] or not (found["profiler_config"] or {"DisableProfiler": True}).get(
            "DisableProfiler"
        ):
            raise LaunchError("disable_profiler was set with a profiler. HINT: leave one of them out.")
        found["profiler_config"] = {"DisableProfiler": True}
    return {name: value for name, value in found.items() if value not in (None, [])}


def _rules(value: Any) -> list[Any]:
    """Copies of the rules; those that act on the job get the placeholder for its name."""
    rules = copy.deepcopy(list(value)) if isinstance(value, (list, tuple)) else [value] if value else []
    for one in rules:
        if not hasattr(one, "to_debugger_rule_config_dict") and not hasattr(one, "to_profiler_rule_config_dict"):
            raise LaunchError(
                f"rules has {one!r}. HINT: give Rule and ProfilerRule of sagemaker.core.debugger; the API's dictionaries are"
                " debugger_rules and profiler_rules."
            )
        if hasattr(one, "prepare_actions"):
            one.prepare_actions(JOB_NAME)
    return rules


def _is_debugger_rule(rule: Any) -> bool:
    return hasattr(rule, "to_debugger_rule_config_dict")


def _rule(rule: Any, method: str) -> dict[str, Any]:
    found: dict[str, Any] = getattr(rule, method)()
    place = found.get("RuleParameters", {}).get("source_s3_uri")
    if place is not None and not str(place).startswith("s3://"):
        raise LaunchError(
            f"The rule {rule.name!r} has the source {place!r}. HINT: upload it, and give s3://bucket/rule.py."
        )
    if found["RuleEvaluatorImage"] == DEFAULT_IMAGE and not str(rule.name).startswith(DETAILED):
        found = {name: one for name, one in found.items() if name not in ("InstanceType", "VolumeSizeInGB")}
    return found


def _detailed(parameters: Any) -> dict[str, Any]:
    """The rule that processes what SageMaker Profiler writes; a timestamp is added to its name when the job is sent."""
    return {
        "RuleConfigurationName": DETAILED,
        "RuleEvaluatorImage": DEFAULT_IMAGE,
        "InstanceType": parameters.instanceType,
        "VolumeSizeInGB": parameters.volumeSizeInGB,
        "RuleParameters": {"rule_to_invoke": "DetailedProfilerProcessing"},
    }


def _hook(value: Any, rules: Iterable[Any]) -> dict[str, Any] | None:
    """The hook, with the collections that rules need; None if it is switched off, or neither set nor needed."""
    wanted = [one for rule in rules if _is_debugger_rule(rule) for one in rule.collection_configs or ()]
    if value is False or (value is None and not any(_is_debugger_rule(rule) for rule in rules)):
        return None
    found = {} if value is None or value is True else _of_object("debugger_hook_config", value)
    given = found.pop("CollectionConfigurations", [])
    if not isinstance(given, (list, tuple)):
        raise LaunchError(f"debugger_hook_config has CollectionConfigurations={given!r}. HINT: it must be a list.")
    collections = [*(one._to_request_dict() for one in wanted), *given]
    unique = [one for index, one in enumerate(collections) if one not in collections[:index]]
    return {**found, **({"CollectionConfigurations": unique} if unique else {})}


def _of_object(name: str, value: Any) -> dict[str, Any]:
    if hasattr(value, "_to_request_dict"):  # SDK 2's and SDK 3's objects have no public method for this
        value = value._to_request_dict()
    if not isinstance(value, Mapping):
        raise LaunchError(f"{name}={value!r} was set. {_HINT}")
    return {key: one for key, one in value.items() if one is not None}
