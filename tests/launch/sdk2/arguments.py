# SPDX-License-Identifier: Apache-2.0
"""Every argument of SDK 2's estimators and input classes with plausible values: one call for each value.

``capture.py`` asks SDK 2 for the arguments by ``inspect.signature`` and fails where one has no values here.
"""

from tests.launch.sdk2 import notebooks as notebooks
from tests.launch.sdk2 import sources
from tests.launch.sdk2.calls import CALLS, FACE, OLD, ONE, ROLE, TORCH, TRAIN

ESTIMATOR = {
    "entry_point": ["train.py", "run.sh"],
    "source_dir": ["src", "./src", "src/", "s3://bucket/code/sourcedir.tar.gz"],
    "hyperparameters": [{}, {"epochs": 1}, {"lr": 5e-5, "name": "x", "flag": True}, {"": ""}, {"per-device-batch": 8}],
    "image_uri": ["123456789012.dkr.ecr.us-east-1.amazonaws.com/own:1", "own/image"],
    "distribution": [{}, {"torch_distributed": {"enabled": True}}, {"mpi": {"enabled": True, "processes_per_host": 1}}],
    "compiler_config": [None],
    "container_log_level": [10, 20, 30, 40],
    "code_location": ["s3://other/code", "s3://other"],
    "dependencies": [[], ["libraries"], ["libraries/helper.py"], ["libraries", "src/requirements.txt"]],
    "enable_network_isolation": [False, True],
    "git_config": [
        None,
        {"repo": sources.REPOSITORY},
        {"repo": sources.REPOSITORY, "branch": "second"},
        lambda s: {"repo": sources.REPOSITORY, "branch": "main", "commit": sources.first_commit()},
        {"repo": sources.REPOSITORY, "2FA_enabled": False},
        {"repo": sources.REPOSITORY, "branch": "missing"},
    ],
    "checkpoint_s3_uri": ["s3://bucket/checkpoints", "s3://bucket/checkpoints/"],
    "checkpoint_local_path": ["/opt/ml/mine", "/tmp/checkpoints"],
    "enable_sagemaker_metrics": [True, False],
    "role": [
        ROLE,
        "training",
        "arn:aws:iam::123456789012:role/service-role/one",
        "arn:aws-cn:iam::123456789012:role/one",
    ],
    "instance_count": [1, 2, 16],
    "instance_type": ["ml.g5.12xlarge", "ml.p5.48xlarge", "ml.m5.large", "ml.g6e.xlarge", "ml.c7i.2xlarge"],
    "keep_alive_period_in_seconds": [0, 60, 3600],
    "volume_size": [1, 30, 500],
    "volume_kms_key": ["alias/key", "1234abcd-12ab-34cd-56ef-1234567890ab"],
    "max_run": [60, 86400, 432000],
    "input_mode": ["File", "FastFile", "Pipe"],
    "output_path": ["s3://bucket", "s3://bucket/", "s3://bucket/some/prefix", "s3://bucket/some/prefix/"],
    "output_kms_key": ["alias/key", "arn:aws:kms:us-east-1:123456789012:key/1"],
    "base_job_name": ["bert", "BERT-2", "my_job", "a.b", "x" * 60, "ends-with-dash-", "naïve"],
    "sagemaker_session": [None],
    "tags": [[], [{"Key": "a", "Value": "b"}], [{"Key": "a", "Value": "b"}, {"Key": "c", "Value": ""}], {"a": "b"}],
    "subnets": [["subnet-1"], ["subnet-0123456789abcdef0", "subnet-2"]],
    "security_group_ids": [["sg-1"], ["sg-0123456789abcdef0", "sg-2"]],
    "model_uri": ["s3://bucket/model.tar.gz", "s3://bucket/model/"],
    "model_channel_name": ["weights"],
    "metric_definitions": [
        [],
        [{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
        [{"Name": "val:f1", "Regex": "f1 (.*?);"}],
    ],
    "encrypt_inter_container_traffic": [True, False],
    "use_spot_instances": [True, False],
    "max_wait": [86400, 100000],
    "rules": [None, []],
    "debugger_hook_config": [None, False],
    "tensorboard_output_config": [
        None,
        lambda s: s.TensorBoardOutputConfig("s3://bucket/events"),
        lambda s: s.TensorBoardOutputConfig("s3://bucket/events/", container_local_output_path="/opt/ml/mine"),
    ],
    "profiler_config": [None],
    "disable_profiler": [True, False],
    "environment": [{}, {"A": "1"}, {"A": "it's", "LONG_NAME": "x" * 500}],
    "max_retry_attempts": [1, 30],
    "instance_groups": [None, lambda s: [s.InstanceGroup("one", "ml.g5.12xlarge", 2)]],
    "training_repository_access_mode": ["Platform", "Vpc"],
    "training_repository_credentials_provider_arn": ["arn:aws:lambda:us-east-1:123456789012:function:login"],
    "enable_infra_check": [True, False],
    "container_entry_point": [["/bin/sh", "-c"], ["python", "x.py"]],
    "container_arguments": [["--a", "1"]],
    "disable_output_compression": [True, False],
    "enable_remote_debug": [True, False],
    "enable_session_tag_chaining": [True, False],
    "training_plan": ["arn:aws:sagemaker:us-east-1:123456789012:training-plan/a"],
    "instance_placement_config": [
        {"EnableMultipleJobs": True, "PlacementSpecifications": [{"UltraServerId": "us-1", "InstanceCount": 1}]}
    ],
}
PYTORCH = {
    "framework_version": ["1.13.1", "2.0.0", "2.3.0", "2.5.1", "2.6.0", "2.8.0", "2.6"],
    "py_version": ["py311"],
    "training_recipe": [None],
    "recipe_overrides": [None],
}
HUGGING_FACE = {
    "py_version": ["py311"],
    "transformers_version": ["4.49.0", "4.49"],
    "pytorch_version": ["2.5.1", "2.5"],
    "tensorflow_version": [None],
}
TRAINING_INPUT = {
    "s3_data": ["s3://bucket/a", "s3://bucket/a/", "s3://bucket"],
    "distribution": ["FullyReplicated", "ShardedByS3Key"],
    "compression": ["Gzip", "None"],
    "content_type": ["text/csv", "application/x-recordio; split=1"],
    "record_wrapping": ["None", "RecordIO"],
    "s3_data_type": ["S3Prefix", "ManifestFile"],
    "instance_groups": [["gpu"]],
    "input_mode": ["File", "FastFile", "Pipe"],
    "attribute_names": [["source-ref", "label"]],
    "target_attribute_name": ["label"],
    "shuffle_config": [lambda s: s.ShuffleConfig(7), lambda s: s.ShuffleConfig(0)],
    "hub_access_config": [
        None,
        {"HubContentArn": "arn:aws:sagemaker:us-east-1:123456789012:hub-content/hub/Model/m/1.0.0"},
    ],
    "model_access_config": [None, {"AcceptEula": True}, {"AcceptEula": False}],
}
FILE_SYSTEM_INPUT = {
    "file_system_id": ["fs-01234567", "fs-0123456789abcdef0"],
    "file_system_type": ["FSxLustre", "EFS"],
    "directory_path": ["/fsx/data", "/"],
    "file_system_access_mode": ["ro", "rw"],
    "content_type": ["text/csv"],
}
BESIDE = {
    "max_wait": {"use_spot_instances": True},
    "use_spot_instances": {"max_wait": 90000},
    "model_channel_name": {"model_uri": "s3://bucket/m/"},
    "subnets": {"security_group_ids": ["sg-1"]},
    "security_group_ids": {"subnets": ["subnet-1"]},
    "checkpoint_local_path": {"checkpoint_s3_uri": "s3://bucket/c"},
    "training_repository_credentials_provider_arn": {"training_repository_access_mode": "Vpc"},
    "training_repository_access_mode": {"subnets": ["subnet-1"], "security_group_ids": ["sg-1"]},
    "instance_placement_config": {"training_plan": "arn:aws:sagemaker:us-east-1:123456789012:training-plan/a"},
}
"""What an argument needs beside it."""

PYTHON = {"1.13.1": "py39", "2.0.0": "py310", "2.6.0": "py312", "2.8.0": "py312", "2.6": "py312"}
VPC = {"subnets": ["subnet-1"], "security_group_ids": ["sg-1"]}


def estimator_call(kind, argument, value):
    def run(s):
        values = {"entry_point": "train.py", "source_dir": "src", **ONE, **(TORCH if kind == "PyTorch" else FACE)}
        if argument == "framework_version":
            values["py_version"] = PYTHON.get(value, "py311")
        given = BESIDE.get(argument, {})
        values.update({**given, argument: value(s) if callable(value) else value})
        if argument == "instance_groups" and value is not None:
            del values["instance_type"], values["instance_count"]
        if kind == "HuggingFace" and argument == "instance_type":  # it has no image for processors
            values["instance_type"] = value if value.startswith(("ml.g", "ml.p")) else "ml.g4dn.xlarge"
        if argument == "distribution":
            values.update(OLD if kind == "PyTorch" else {})
        getattr(s, kind)(**values).fit(TRAIN)

    return run


def input_call(kind, argument, value):
    def run(s):
        if kind == "TrainingInput":
            values = {"s3_data": TRAIN, argument: value(s) if callable(value) else value}
            if argument == "attribute_names":
                values["s3_data_type"] = "AugmentedManifestFile"
        else:
            values = {
                "file_system_id": "fs-01234567",
                "file_system_type": "EFS",
                "directory_path": "/data",
                argument: value,
            }
        groups = {**ONE, **TORCH}
        if argument == "instance_groups":
            groups = {"role": ROLE, "instance_groups": [s.InstanceGroup("gpu", "ml.g5.xlarge", 1)], **TORCH}
        s.PyTorch("train.py", source_dir="src", **groups, **VPC).fit({"train": getattr(s, kind)(**values)})

    return run


def add(kind, table, make):
    for argument, values in table.items():
        for index, value in enumerate(values):
            CALLS[f"{kind} {argument} {index}"] = make(kind, argument, value)


add("PyTorch", {**ESTIMATOR, **PYTORCH}, estimator_call)
add("HuggingFace", {**ESTIMATOR, **HUGGING_FACE}, estimator_call)
add("TrainingInput", TRAINING_INPUT, input_call)
add("FileSystemInput", FILE_SYSTEM_INPUT, input_call)
ARGUMENTS = {
    "PyTorch": {*ESTIMATOR, *PYTORCH},
    "HuggingFace": {*ESTIMATOR, *HUGGING_FACE},
    "TrainingInput": set(TRAINING_INPUT),
    "FileSystemInput": set(FILE_SYSTEM_INPUT),
}
