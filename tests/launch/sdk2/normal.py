# SPDX-License-Identifier: Apache-2.0
"""A CreateTrainingJob request in the words in which SDK 2's and ours are compared: flat, without times and digests."""

import json
import re

PATH = {"sagemaker_program", "sagemaker_submit_directory", "sagemaker_job_name", "sagemaker_region"}
"""How SDK 2 tells its container where the program is; SDK 3 has a channel for it."""


NAMED_BY = ("ChannelName", "Key", "Name", "InstanceGroupName", "CollectionName", "RuleConfigurationName")


def flat(value, prefix=""):
    """``{"A": {"B": 1}}`` as ``{"A.B": 1}``; lists of channels, tags and groups of hosts by their names."""
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        named = {
            str(next((one[name] for name in NAMED_BY if name in one), index)): one for index, one in enumerate(value)
        }
        return flat(named, prefix)
    if isinstance(value, dict) and value:
        found = {}
        for name, item in value.items():
            found.update(flat(item, f"{prefix}.{name}" if prefix else str(name)))
        return found
    return {prefix: re.sub(r"-20\d\d[-\d]{10,24}", "-TIME", value) if isinstance(value, str) else value}


def of_sdk2(request):
    """Hyperparameters as values; SDK 2's own ones apart, as ``Flags``."""
    request = dict(request)
    values = {name: json.loads(text) for name, text in request.pop("HyperParameters", {}).items()}
    flags = {name: value for name, value in values.items() if name.startswith("sagemaker_")}
    program = flags.get("sagemaker_program")
    request["Values"] = {name: value for name, value in values.items() if name not in flags}
    request["Flags"] = {name: value for name, value in flags.items() if name not in PATH}
    found = flat(request)
    found["Program"] = program
    return found
