# SPDX-License-Identifier: Apache-2.0
"""What may differ between SDK 2's request and ours, in one table, each with its reason; all else must be equal.

``python -m tests.launch.sdk2.compare`` prints what each call comes to.
"""

import json
import re
import sys
from pathlib import Path

FILE = Path(__file__).parents[2] / "data" / "sdk2.json"

IMAGES = ("pytorch-training", "huggingface-pytorch-training", "smdistributed-modelparallel", "own", "image")
"""Names of images, after which SDK 2 names jobs."""

BUCKET = "s3://sagemaker-us-east-1-123456789012"


def drop(request, *beginnings):
    for name in [name for name in request if name.startswith(beginnings)]:
        del request[name]


def source_channels(theirs, ours):
    """SDK 3 brings the source and its start script as channels, SDK 2 by hyperparameters."""
    for request in (theirs, ours):  # SDK 2 has the first where the container has no network
        drop(request, "InputDataConfig.code.", "InputDataConfig.sm_drivers.", "AlgorithmSpecification.Container")


def debugger(theirs, ours):
    """SDK 2 attaches a hook and a profiler to every job, we where one is asked for."""
    for part in ("DebugHookConfig", "ProfilerConfig"):
        if not any(name.startswith(part) for name in ours) and not asks_for_more(theirs, part):
            drop(theirs, part)


def asks_for_more(request, part):
    """Whether a part of SDK 2's request is more than it sends by default."""
    default = {"CollectionConfigurations": [], "DisableProfiler": False}
    output = request["OutputDataConfig.S3OutputPath"].rstrip("/")
    found = {name.removeprefix(f"{part}."): value for name, value in request.items() if name.startswith(part)}
    place = found.pop("S3OutputPath", output).rstrip("/")
    return place not in (output, BUCKET) or any(default.get(name, ...) != value for name, value in found.items())


def names(theirs, ours):
    """SDK 2 names a job after its image, we after its program; one that was given, or begins with what was given, is kept.

    We write dashes for what the service refuses, cut earlier, and add four hexadecimal digits.
    """
    name, own = theirs["TrainingJobName"], ours["TrainingJobName"]
    if not name.endswith("-TIME"):
        return
    base = re.sub(r"[^A-Za-z0-9-]+", "-", name.removesuffix("-TIME")).strip("-")
    ours_base = re.fullmatch(r"(.*?)(-[0-9a-f]{4})?-TIME", own)
    if ours_base and (base.startswith(IMAGES) or ours_base[1][: len(base)] == base):
        del theirs["TrainingJobName"], ours["TrainingJobName"]


def default_output(theirs, ours):
    """By default SDK 3 puts artefacts below the job's base name in the bucket, SDK 2 at its top."""
    path = "OutputDataConfig.S3OutputPath"
    if theirs[path].rstrip("/") != BUCKET or not ours[path].startswith(BUCKET):
        return
    output = ours[path]
    for name in (path, "DebugHookConfig.S3OutputPath", "ProfilerConfig.S3OutputPath"):
        if theirs.get(name, "").rstrip("/") == BUCKET and ours.get(name) == output:
            del theirs[name], ours[name]


def slashes(theirs, ours):
    """Checkpoints' places end in a slash with us: a bare prefix also matches its neighbors."""
    for request in (theirs, ours):
        if "CheckpointConfig.S3Uri" in request:
            request["CheckpointConfig.S3Uri"] = request["CheckpointConfig.S3Uri"].rstrip("/")


def service_defaults(theirs, ours):
    """We say what SDK 2 leaves to the service, whose default it is."""
    for name, value in {
        "OutputDataConfig.CompressionType": "GZIP",
        "CheckpointConfig.LocalPath": "/opt/ml/checkpoints",
        "TensorBoardOutputConfig.LocalPath": "/opt/ml/output/tensorboard",
    }.items():
        if ours.get(name) == value:
            theirs.setdefault(name, value)
    for name, value in {
        "EnableManagedSpotTraining": False,
        "EnableNetworkIsolation": False,
        "EnableInterContainerTrafficEncryption": False,
        "OutputDataConfig.KmsKeyId": "",
        "ResourceConfig.KeepAlivePeriodInSeconds": 0,
    }.items():
        for request in (theirs, ours):
            if request.get(name) == value:
                del request[name]


def metrics_as_time_series(theirs, ours):
    """SDK 2 switches on by default what the service does anyway where there are metric definitions."""
    name = "AlgorithmSpecification.EnableSageMakerMetricsTimeSeries"
    if theirs.get(name) is True and name not in ours:
        del theirs[name]


def input_modes(theirs, ours):
    """We say for each channel what SDK 2 says once for all."""
    for request in (theirs, ours):
        for name in [name for name in request if name.endswith(".ChannelName")]:
            mode = name.replace(".ChannelName", ".InputMode")
            request.setdefault(mode, request["AlgorithmSpecification.TrainingInputMode"])
        if any(name.endswith(".ChannelName") for name in request):
            del request["AlgorithmSpecification.TrainingInputMode"]
    for name in [name for name in theirs if name.endswith("FileSystemDataSource.FileSystemId")]:
        drop(theirs, name.partition(".DataSource")[0] + ".InputMode")
        drop(ours, name.partition(".DataSource")[0] + ".InputMode")


def spot_checkpoints(theirs, ours):
    """A spot job keeps its checkpoints below its output where nothing else was said: it will be interrupted."""
    if "CheckpointConfig.S3Uri" not in theirs and "EnableManagedSpotTraining" in ours:
        drop(ours, "CheckpointConfig")


def spot_patience(theirs, ours):
    """A spot job without max_wait waits an hour at most for its instances beside max_run."""
    name = "StoppingCondition.MaxWaitTimeInSeconds"
    if name not in theirs and ours.get(name) == ours["StoppingCondition.MaxRuntimeInSeconds"] + 3600:
        del ours[name]


def own_metrics(theirs, ours):
    """Without metric_definitions, we ask for those of the lines that this package's callbacks print."""
    definitions = "AlgorithmSpecification.MetricDefinitions."
    if not any(name.startswith(definitions) for name in theirs):
        drop(ours, definitions)


def log_level(theirs, ours):
    """SDK 3's container reads the level from a variable, SDK 2's from a hyperparameter."""
    level = theirs.pop("Flags.sagemaker_container_log_level", 20)
    if str(level) == ours.get("Environment.SM_LOG_LEVEL", "20"):
        ours.pop("Environment.SM_LOG_LEVEL", None)


def words(theirs, ours):
    """A distribution that is enabled by a word is sent as enabled, which the word is not."""
    for name, value in theirs.items():
        if name.startswith("Flags") and value in ("true", "True") and ours.get(name) is True:
            theirs[name] = True


def switched_off(theirs, ours):
    """Flags that are off say nothing; the driver knows the instance type in the container."""
    for request in (theirs, ours):
        for name in [name for name in request if name.startswith("Flags")]:
            if not request[name] or name == "Flags.sagemaker_instance_type":
                del request[name]


def nothing(theirs, ours):
    """Empty lists and dictionaries are left out, or not."""
    for request in (theirs, ours):
        for name in [
            name for name, value in request.items() if value in ({}, [], None) and not name.startswith("Values.")
        ]:
            del request[name]


BY_DESIGN = (
    source_channels, spot_checkpoints, spot_patience, debugger, names, slashes, default_output, service_defaults,
    metrics_as_time_series, input_modes, own_metrics, log_level, words, switched_off, nothing,
)  # fmt: skip
"""The differences that are meant; their docstrings are the reasons."""

OTHERWISE = {
    "hyperparameters_are_set_later": "SDK 2 encodes these twice, so that texts arrive in quotes; we send the values",
    "ddp": "SDK 2 turns pytorchddp into SMDDP; here it is torch's DDP, as the word says, with options of mpirun unused",
    "ddp_with_mpi_options": "as ddp",
}
"""Call -> why it is taken by both, and differs."""

REFUSED = {
    "container_entry_point": "the container's first process is this package's, which forwards signals",
    "container_arguments": "as container_entry_point",
    "use_spot_instances 1": "the service refuses max_wait of a job on demand: said before anything is uploaded",
}
"""Part of a call's name -> why we refuse it although SDK 2 does not."""


def differences(theirs, ours):
    """Name -> (SDK 2's value, ours) of what is left after :data:`BY_DESIGN`."""
    theirs, ours = dict(theirs), json.loads(json.dumps(ours))
    for rule in BY_DESIGN:
        rule(theirs, ours)
    return {
        name: (theirs.get(name), ours.get(name))
        for name in {*theirs, *ours}
        if theirs.get(name, ...) != ours.get(name, ...)
    }


def golden():
    """What SDK 2 sends: call -> its requests and what it returns, or its error."""
    content = json.loads(FILE.read_text())
    for one in content["calls"].values():
        for index, changed in enumerate(one.get("requests", [])):
            full = {**content["base"], **changed["set"]}
            one["requests"][index] = {name: value for name, value in full.items() if name not in changed["without"]}
    return content


def verdict(name, theirs, ours):
    """One word for how a call fares, and the details."""
    if "error" in theirs:
        return ("refused by both", "") if "error" in ours else ("taken by us alone", theirs["error"])
    if "error" in ours:
        return ("refused by design" if any(part in name for part in REFUSED) else "refused"), ours["error"]
    if name in OTHERWISE:
        return "other by design", OTHERWISE[name]
    if len(theirs["requests"]) != len(ours["requests"]):
        return "different", f"{len(theirs['requests'])} requests, ours {len(ours['requests'])}"
    for one, other in zip(theirs["requests"], ours["requests"], strict=True):
        found = differences(one, other)
        if found:
            return "different", found
    if theirs["returned"] != json.loads(json.dumps(ours["returned"])):
        return "different", (theirs["returned"], ours["returned"])
    return "equal", ""


def wrong_images(path):
    """Number of images that differ from SDK 2's."""
    from tests.launch.sdk2 import images

    found = json.loads(path.read_text())
    wrong = {key: (uri, images.ours(key)) for key, uri in found.items() if images.ours(key) != uri}
    print(f"{len(found)} images, {len(wrong)} differ", *list(wrong.items())[:10], sep="\n")
    return len(wrong)


def main():
    import collections
    import os
    import tempfile

    from tests.launch.sdk2 import arguments, calls, ours, sources

    print(len(arguments.ARGUMENTS), "signatures")
    wrong = wrong_images(Path(".venv-oracle", "images.json"))
    content, count = golden(), collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sources.make()
        for name, function in calls.CALLS.items():
            word, detail = verdict(name, content["calls"][name], ours.run(function))
            count[word] += 1
            if word != "equal":
                print(f"{word:18} {name:45} {detail}")
        os.chdir("/")
    print(dict(count))
    return 1 if wrong or count["different"] or count["refused"] else 0


if __name__ == "__main__":
    sys.exit(main())
