# SPDX-License-Identifier: Apache-2.0
"""Parts of a request for SageMaker Debugger and its profiler, completed with S3 locations, images and names."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from lightning_sagemaker.launch.planning.images import evaluator_image
from lightning_sagemaker.launch.planning.job_plan import JobPlan
from lightning_sagemaker.launch.spec.debugger import DETAILED, JOB_NAME


def debugger_parts(plan: JobPlan, job_name: str) -> dict[str, object]:
    """The request's keys for what the job sets, as the API names them.

    Args:
        plan: The plan with its output path set, which is also the default location of Debugger's output.
        job_name: Name of the job.

    """
    config = plan.config
    found: dict[str, object] = {}
    if config.debugger_hook_config is not None:
        found["DebugHookConfig"] = {"S3OutputPath": config.output_path, **config.debugger_hook_config}
    if config.profiler_config is not None:
        is_on = not config.profiler_config.get("DisableProfiler")
        place = {"S3OutputPath": config.output_path} if is_on else {}
        found["ProfilerConfig"] = {**place, **config.profiler_config}
    for name, rules in (
        ("DebugRuleConfigurations", config.debugger_rules),
        ("ProfilerRuleConfigurations", config.profiler_rules),
    ):
        if rules:
            found[name] = [_rule(one, plan.region, job_name) for one in rules]
    return found


def _rule(rule: Mapping[str, object], region: str, job_name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(json.dumps(dict(rule)).replace(JOB_NAME, job_name))
    name = str(found["RuleConfigurationName"])
    found["RuleEvaluatorImage"] = evaluator_image(str(found["RuleEvaluatorImage"]), name, region)
    if name == DETAILED:
        found["RuleConfigurationName"] = f"{name}-{time.strftime('%Y%m%d%H%M%S')}"
    return found
