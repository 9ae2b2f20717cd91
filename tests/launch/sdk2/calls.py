# SPDX-License-Identifier: Apache-2.0
"""Calls as people write them. ``s`` is SDK 2's names, or ours; what a call returns is compared as well as what it sends."""

import json

from tests.launch.sdk2 import sources

CALLS = {}
ROLE = "arn:aws:iam::123456789012:role/training"
GPU = {"role": ROLE, "instance_type": "ml.p4d.24xlarge", "instance_count": 2}
ONE = {"role": ROLE, "instance_type": "ml.g5.xlarge", "instance_count": 1}
TORCH = {"framework_version": "2.5.1", "py_version": "py311"}
OLD = {"framework_version": "1.13.1", "py_version": "py39"}
FACE = {"transformers_version": "4.49.0", "pytorch_version": "2.5.1", "py_version": "py311"}
OLD_FACE = {"transformers_version": "4.6", "pytorch_version": "1.7", "py_version": "py36"}
TRAIN = "s3://bucket/train"


def call(function):
    CALLS[function.__name__] = function
    return function


def simple(name, distribution=None, inputs=TRAIN, kind="PyTorch", **arguments):
    """A call that only makes an estimator and fits it."""

    def run(s):
        values = {"entry_point": "train.py", "source_dir": "src", **ONE, **(TORCH if kind == "PyTorch" else FACE)}
        values.update(arguments)
        if distribution is not None:
            values["distribution"] = distribution
        getattr(s, kind)(**values).fit(inputs)

    CALLS[name] = run


@call
def entry_point_by_position(s):
    s.PyTorch("train.py", source_dir="src", **ONE, **TORCH).fit(TRAIN)


@call
def all_of_pytorch_by_position(s):
    s.PyTorch("train.py", "2.5.1", "py311", "src", {"epochs": 3}, **ONE).fit(TRAIN)


@call
def all_of_hugging_face_by_position(s):
    s.HuggingFace("py311", "train.py", "4.49.0", None, "2.5.1", "src", {"epochs": 1}, **ONE).fit(TRAIN)


@call
def with_a_job_name(s):
    s.PyTorch("train.py", source_dir="src", **ONE, **TORCH).fit(TRAIN, job_name="my-own-name")


@call
def with_an_experiment(s):
    config = {"ExperimentName": "albert", "TrialName": "one", "TrialComponentDisplayName": "training"}
    s.PyTorch("train.py", source_dir="src", **ONE, **TORCH).fit(TRAIN, experiment_config=config)


@call
def logs_by_word(s):
    s.PyTorch("train.py", source_dir="src", **ONE, **TORCH).fit(TRAIN, wait=False, logs="None")


@call
def hyperparameters_are_set_later(s):
    estimator = s.PyTorch("train.py", source_dir="src", hyperparameters={"epochs": 1}, **ONE, **TORCH)
    estimator.set_hyperparameters(epochs=2, learning_rate=5e-5, model="bert")
    estimator.fit(TRAIN)
    return {name: json.loads(text) for name, text in estimator.hyperparameters().items() if "sagemaker" not in name}


@call
def hyperparameters_without_any(s):
    estimator = s.PyTorch("train.py", source_dir="src", **ONE, **TORCH)
    return [name for name in estimator.hyperparameters() if "sagemaker" not in name]


@call
def attributes_are_read(s):
    estimator = s.HuggingFace(
        entry_point="train.py", source_dir="src", output_path="s3://bucket/out", base_job_name="bert", **ONE, **FACE
    )
    names = ["role", "instance_type", "instance_count", "output_path", "base_job_name", "entry_point", "source_dir"]
    names += ["max_run", "volume_size", "use_spot_instances", "pytorch_version", "py_version", "image_uri"]
    return {name: getattr(estimator, name) for name in names}


@call
def the_image_is_asked_for(s):
    return s.PyTorch("train.py", source_dir="src", **ONE, **TORCH).training_image_uri()


@call
def the_job_is_asked_for_its_name(s):
    estimator = s.PyTorch("train.py", source_dir="src", base_job_name="asked", **ONE, **TORCH)
    estimator.fit(TRAIN)
    return [estimator.latest_training_job.name[:6], estimator.latest_training_job.job_name[:6]]


@call
def before_fit_there_is_no_job(s):
    return s.PyTorch("train.py", source_dir="src", **ONE, **TORCH).latest_training_job


@call
def vpc_and_network_are_asked_for(s):
    estimator = s.PyTorch(
        "train.py", source_dir="src", subnets=["subnet-1"], security_group_ids=["sg-1"], **ONE, **TORCH
    )
    return [estimator.get_vpc_config(), estimator.enable_network_isolation(), estimator.get_remote_debug_config()]


@call
def remote_debugging_is_switched(s):
    estimator = s.PyTorch("train.py", source_dir="src", enable_remote_debug=True, **ONE, **TORCH)
    before = estimator.get_remote_debug_config()
    estimator.fit(TRAIN)
    return before


@call
def two_fits_of_one_estimator(s):
    estimator = s.PyTorch("train.py", source_dir="src", **ONE, **TORCH)
    estimator.fit(TRAIN)
    estimator.fit({"train": TRAIN})


@call
def squad_with_smddp(s):
    s.HuggingFace(
        entry_point="run_qa.py",
        source_dir="./src",
        metric_definitions=[{"Name": "f1", "Regex": r"f1.*=\D*(.*?)$"}],
        instance_type="ml.p3dn.24xlarge",
        instance_count=2,
        volume_size=200,
        role=ROLE,
        distribution={"smdistributed": {"dataparallel": {"enabled": True}}},
        hyperparameters={
            "model_name_or_path": "bert-large",
            "do_train": True,
            "fp16": True,
            "output_dir": "/opt/ml/model",
        },
        **OLD_FACE,
    ).fit()


@call
def glue_with_model_parallelism(s):
    parameters = {
        "microbatches": 4,
        "placement_strategy": "spread",
        "pipeline": "interleaved",
        "partitions": 4,
        "ddp": True,
    }
    s.HuggingFace(
        entry_point="run_glue.py",
        source_dir="src",
        instance_type="ml.p3.16xlarge",
        instance_count=1,
        volume_size=200,
        role=ROLE,
        distribution={
            "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
            "mpi": {"enabled": True, "processes_per_host": 8},
        },
        hyperparameters={"task_name": "mnli", "max_steps": 500},
        **OLD_FACE,
    ).fit()


@call
def spot_with_checkpoints(s):
    s.HuggingFace(
        "py36",
        entry_point="train.py",
        source_dir="src",
        instance_type="ml.p3.2xlarge",
        instance_count=1,
        base_job_name="using-spot",
        checkpoint_s3_uri="s3://bucket/using-spot/checkpoints",
        use_spot_instances=True,
        max_wait=3600,
        max_run=1000,
        role=ROLE,
        transformers_version="4.6",
        pytorch_version="1.7",
        hyperparameters={"epochs": 1, "train_batch_size": 32},
    ).fit({"train": "s3://bucket/imdb/train", "test": "s3://bucket/imdb/test"})


@call
def training_input_with_a_share_on_each_host(s):
    data = s.TrainingInput(TRAIN, distribution="ShardedByS3Key", content_type="application/x-parquet")
    s.PyTorch("train.py", source_dir="src", **GPU, **TORCH).fit({"train": data})


@call
def training_input_that_streams(s):
    s.PyTorch("train.py", source_dir="src", **ONE, **TORCH).fit(s.TrainingInput(TRAIN, input_mode="FastFile"))


@call
def training_input_by_position(s):
    data = s.TrainingInput(TRAIN, "FullyReplicated", "Gzip", "text/csv", "RecordIO")
    s.PyTorch("train.py", source_dir="src", input_mode="Pipe", **ONE, **TORCH).fit({"train": data})


@call
def training_input_of_an_augmented_manifest(s):
    data = s.TrainingInput(
        "s3://bucket/labels.manifest",
        s3_data_type="AugmentedManifestFile",
        attribute_names=["source-ref", "label"],
        record_wrapping="RecordIO",
        input_mode="Pipe",
    )
    s.PyTorch("train.py", source_dir="src", **ONE, **TORCH).fit({"train": data})


@call
def training_input_that_is_shuffled(s):
    data = s.TrainingInput(TRAIN, shuffle_config=s.ShuffleConfig(123))
    s.PyTorch("train.py", source_dir="src", **ONE, **TORCH).fit({"train": data})


@call
def training_input_of_a_manifest(s):
    data = s.TrainingInput("s3://bucket/list.manifest", s3_data_type="ManifestFile")
    s.PyTorch("train.py", source_dir="src", **ONE, **TORCH).fit({"train": data})


@call
def file_system_of_lustre(s):
    data = s.FileSystemInput("fs-0123456789abcdef0", "FSxLustre", "/fsx/data")
    s.PyTorch("train.py", source_dir="src", subnets=["subnet-1"], security_group_ids=["sg-1"], **GPU, **TORCH).fit(
        {"train": data}
    )


@call
def file_system_of_efs(s):
    data = s.FileSystemInput(
        file_system_id="fs-01234567", file_system_type="EFS", directory_path="/data", file_system_access_mode="rw"
    )
    s.PyTorch("train.py", source_dir="src", subnets=["subnet-1"], security_group_ids=["sg-1"], **ONE, **TORCH).fit(data)


@call
def channels_with_dashes(s):
    inputs = {"train-data": "s3://bucket/a", "validation-data": "s3://bucket/b"}
    s.PyTorch("train.py", source_dir="src", **ONE, **TORCH).fit(inputs)


@call
def tensorboard(s):
    config = s.TensorBoardOutputConfig("s3://bucket/events", "/opt/ml/output/tensorboard/mine")
    s.PyTorch("train.py", source_dir="src", tensorboard_output_config=config, **ONE, **TORCH).fit(TRAIN)


@call
def tensorboard_without_a_folder(s):
    config = s.TensorBoardOutputConfig(s3_output_path="s3://bucket/events")
    s.PyTorch("train.py", source_dir="src", tensorboard_output_config=config, **ONE, **TORCH).fit(TRAIN)


@call
def a_cluster_of_one_group(s):
    groups = [s.InstanceGroup("gpu", "ml.p4d.24xlarge", 2)]
    s.PyTorch("train.py", source_dir="src", role=ROLE, instance_groups=groups, **TORCH).fit(TRAIN)


def groups_of(s):
    return s.InstanceGroup("dnn", "ml.p4d.24xlarge", 2), s.InstanceGroup("data", "ml.c5.18xlarge", 3)


def several_groups(name, distribution=None, inputs=TRAIN, **arguments):
    """A cluster of two groups, of which ``distribution``, a function of the first, names one."""

    def run(s):
        dnn, data = groups_of(s)
        given = {} if distribution is None else {"distribution": distribution(dnn)}
        values = {"source_dir": "src", "role": ROLE, "instance_groups": [data, dnn], **OLD, **given, **arguments}
        s.PyTorch("train.py", **values).fit(inputs)

    CALLS[name] = run


several_groups(
    "groups_with_mpi", lambda dnn: {"mpi": {"enabled": True, "processes_per_host": 8}, "instance_groups": [dnn]}
)
several_groups(
    "groups_with_smddp",
    lambda dnn: {"smdistributed": {"dataparallel": {"enabled": True}}, "instance_groups": [dnn]},
)
several_groups(
    "groups_with_model_parallelism",
    lambda dnn: {
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 2, "ddp": True}}},
        "mpi": {"enabled": True, "processes_per_host": 8},
        "instance_groups": [dnn],
    },
)
several_groups("groups_with_torchrun", lambda dnn: {"torch_distributed": {"enabled": True}, "instance_groups": [dnn]})
several_groups("groups_without_a_distribution")
several_groups("groups_of_which_none_is_named", lambda dnn: {"mpi": {"enabled": True}})
several_groups("groups_and_nothing_enabled", lambda dnn: {"mpi": {"enabled": False}, "instance_groups": [dnn]})
several_groups("groups_and_an_instance_type", None, instance_type="ml.p4d.24xlarge", instance_count=1)
several_groups("groups_on_spot_instances", None, use_spot_instances=True, max_wait=90000, volume_size=100)
several_groups("groups_of_a_newer_image", None, framework_version="2.5.1", py_version="py311")


@call
def two_groups_are_to_train(s):
    dnn, data = groups_of(s)
    both = {"mpi": {"enabled": True}, "instance_groups": [dnn, data]}
    s.PyTorch("train.py", source_dir="src", role=ROLE, instance_groups=[dnn, data], distribution=both, **OLD).fit(TRAIN)


@call
def a_group_that_the_cluster_lacks(s):
    dnn, data = groups_of(s)
    other = {"mpi": {"enabled": True}, "instance_groups": [s.InstanceGroup("other", "ml.p4d.24xlarge", 1)]}
    s.PyTorch("train.py", source_dir="src", role=ROLE, instance_groups=[dnn, data], distribution=other, **OLD).fit(
        TRAIN
    )


@call
def channels_for_groups(s):
    dnn, data = groups_of(s)
    inputs = {
        "train": s.TrainingInput(TRAIN, instance_groups=["data"], distribution="ShardedByS3Key"),
        "both": s.TrainingInput("s3://bucket/both", instance_groups=["data", "dnn"]),
        "all": "s3://bucket/all",
    }
    distribution = {"mpi": {"enabled": True, "processes_per_host": 8}, "instance_groups": [dnn]}
    s.PyTorch(
        "train.py", source_dir="src", role=ROLE, instance_groups=[dnn, data], distribution=distribution, **OLD
    ).fit(inputs)


@call
def one_group_with_a_distribution(s):
    groups = [s.InstanceGroup("gpu", "ml.p4d.24xlarge", 2)]
    smddp = {"smdistributed": {"dataparallel": {"enabled": True}}}
    s.PyTorch("train.py", source_dir="src", role=ROLE, instance_groups=groups, distribution=smddp, **OLD).fit(TRAIN)


@call
def groups_are_asked_for(s):
    dnn, data = groups_of(s)
    estimator = s.HuggingFace(entry_point="train.py", source_dir="src", role=ROLE, instance_groups=[dnn, data], **FACE)
    return sorted([one.instance_group_name, one.instance_type, one.instance_count] for one in estimator.instance_groups)


def debugged(name, make, **more):
    """A call with what ``make`` gives for the module of SageMaker Debugger."""

    def run(s):
        values = {"source_dir": "src", **ONE, **TORCH, **more, **make(s.debugger)}
        s.PyTorch("train.py", **values).fit(TRAIN)

    CALLS[name] = run


debugged("profiler_config", lambda d: {"profiler_config": d.ProfilerConfig(system_monitor_interval_millis=500)})
debugged(
    "profiler_of_the_framework",
    lambda d: {
        "profiler_config": d.ProfilerConfig(
            s3_output_path="s3://bucket/profile",
            system_monitor_interval_millis=1000,
            framework_profile_params=d.FrameworkProfile(start_step=5, num_steps=10),
        )
    },
)
debugged("profiler_config_that_is_off", lambda d: {"profiler_config": d.ProfilerConfig(disable_profiler=True)})
debugged("profiler_off_and_configured", lambda d: {"profiler_config": d.ProfilerConfig(), "disable_profiler": True})
debugged(
    "profiler_report",
    lambda d: {"rules": [d.ProfilerRule.sagemaker(d.rule_configs.ProfilerReport())]},
)
debugged(
    "profiler_with_several_rules",
    lambda d: {
        "profiler_config": d.ProfilerConfig(system_monitor_interval_millis=500),
        "rules": [
            d.ProfilerRule.sagemaker(d.rule_configs.LowGPUUtilization()),
            d.ProfilerRule.sagemaker(d.rule_configs.OverallSystemUsage(), name="usage"),
        ],
    },
)
debugged(
    "hook_in_a_place", lambda d: {"debugger_hook_config": d.DebuggerHookConfig(s3_output_path="s3://bucket/tensors")}
)
debugged(
    "hook_with_collections",
    lambda d: {
        "debugger_hook_config": d.DebuggerHookConfig(
            hook_parameters={"train.save_interval": "100", "eval.save_interval": "10"},
            collection_configs=[
                d.CollectionConfig(name="losses", parameters={"save_interval": "500"}),
                d.CollectionConfig(name="gradients"),
            ],
        )
    },
)
debugged("hook_by_a_word", lambda d: {"debugger_hook_config": True})
debugged(
    "rules_built_in",
    lambda d: {
        "rules": [
            d.Rule.sagemaker(d.rule_configs.loss_not_decreasing()),
            d.Rule.sagemaker(
                d.rule_configs.vanishing_gradient(),
                rule_parameters={"threshold": "0.001"},
                collections_to_save=[d.CollectionConfig(name="gradients", parameters={"save_interval": "50"})],
            ),
            d.ProfilerRule.sagemaker(d.rule_configs.ProfilerReport()),
        ],
        "debugger_hook_config": d.DebuggerHookConfig(s3_output_path="s3://bucket/tensors"),
    },
)
debugged(
    "rule_that_stops_the_job",
    lambda d: {
        "rules": [
            d.Rule.sagemaker(
                d.rule_configs.overfit(), actions=d.rule_configs.ActionList(d.rule_configs.StopTraining("my-prefix"))
            )
        ]
    },
)
debugged(
    "rule_of_ones_own",
    lambda d: {
        "rules": [
            d.Rule.custom(
                name="own",
                image_uri="123456789012.dkr.ecr.us-east-1.amazonaws.com/rules:1",
                instance_type="ml.t3.medium",
                source="s3://bucket/rules/own.py",
                rule_to_invoke="Own",
                volume_size_in_gb=30,
                rule_parameters={"threshold": "20.0"},
            )
        ]
    },
)
debugged("rules_without_a_hook", lambda d: {
    "rules": [d.Rule.sagemaker(d.rule_configs.exploding_tensor())], "debugger_hook_config": False,
})  # fmt: skip
debugged("rules_that_are_none", lambda d: {"rules": ["VanishingGradient"]})


@call
def texts_that_look_like_json(s):
    values = {
        "version": "1.10",
        "flag": "true",
        "nothing": "null",
        "list": "[1, 2]",
        "object": '{"a": 1}',
        "word": "bert",
    }
    estimator = s.PyTorch("train.py", source_dir="src", hyperparameters=values, **ONE, **TORCH)
    estimator.fit(TRAIN)


@call
def texts_with_quotes(s):
    values = {
        "prompt": "it's",
        "other": 'say "yes"',
        "both": "'\"",
        "dollar": "$HOME `id`",
        "slash": "a\\b",
        "line": "a\nb",
    }
    s.PyTorch("train.py", source_dir="src", hyperparameters=values, **ONE, **TORCH).fit(TRAIN)


@call
def values_that_are_no_scalars(s):
    values = {
        "layers": [1, 2],
        "names": ["a", "it's"],
        "model": {"width": 4, "name": "x"},
        "nothing": None,
        "deep": [[1], {}],
    }
    s.PyTorch("train.py", source_dir="src", hyperparameters=values, **ONE, **TORCH).fit(TRAIN)


@call
def names_of_a_lightning_command_line(s):
    values = {"trainer.max_epochs": 3, "model.learning-rate": 1e-4, "data.batch_size": 8}
    s.PyTorch("train.py", source_dir="src", hyperparameters=values, **ONE, **TORCH).fit(TRAIN)


@call
def an_image_of_ones_own(s):
    uri = "123456789012.dkr.ecr.us-east-1.amazonaws.com/own:1"
    s.PyTorch("train.py", source_dir="src", image_uri=uri, **ONE).fit(TRAIN)


@call
def a_script_alone(s):
    s.PyTorch(entry_point="src/train.py", **ONE, **TORCH).fit(TRAIN)


@call
def tags_as_a_dictionary(s):
    s.PyTorch("train.py", source_dir="src", tags={"team": "text"}, **ONE, **TORCH).fit(TRAIN)


SMDDP = {"smdistributed": {"dataparallel": {"enabled": True}}}
P4 = {"instance_type": "ml.p4d.24xlarge", "instance_count": 2, **OLD}
MPI = {"enabled": True, "processes_per_host": 8}
SMP1 = {"enabled": True, "parameters": {"partitions": 2, "microbatches": 4, "ddp": True}}
SMP2 = {"enabled": True, "parameters": {"hybrid_shard_degree": 8, "sm_activation_offloading": True}}

simple("smddp_on_two_hosts", SMDDP, **P4)
simple("smddp_on_one_host", SMDDP, **{**P4, "instance_count": 1})
simple(
    "smddp_with_options",
    {"smdistributed": {"dataparallel": {"enabled": True, "custom_mpi_options": "-x A=1"}}},
    **P4,
)
simple("smddp_switched_off", {"smdistributed": {"dataparallel": {"enabled": False}}}, **P4)
simple("smddp_with_torch_distributed", {**SMDDP, "torch_distributed": {"enabled": True}}, **P4)
simple("ddp", {"pytorchddp": {"enabled": True}}, **P4)
simple(
    "ddp_with_mpi_options", {"pytorchddp": {"enabled": True, "custom_mpi_options": "-verbose -x NCCL_DEBUG=INFO"}}, **P4
)
simple("ddp_switched_off", {"pytorchddp": {"enabled": False}}, **P4)
simple("torchrun", {"torch_distributed": {"enabled": True}}, **P4)
simple(
    "torchrun_on_processors", {"torch_distributed": {"enabled": True}}, instance_type="ml.c5.4xlarge", instance_count=4
)
simple("torchrun_switched_off", {"torch_distributed": {"enabled": False}}, **P4)
simple("mpi", {"mpi": {"enabled": True}}, **P4)
simple("mpi_with_a_count", {"mpi": MPI}, **P4)
simple("mpi_with_options", {"mpi": {**MPI, "custom_mpi_options": "--mca btl_vader_single_copy_mechanism none"}}, **P4)
simple("mpi_switched_off", {"mpi": {"enabled": False}}, **P4)
simple("model_parallelism_1", {"smdistributed": {"modelparallel": SMP1}, "mpi": MPI}, **P4)
simple(
    "model_parallelism_2",
    {"smdistributed": {"modelparallel": SMP2}, "torch_distributed": {"enabled": True}},
    instance_type="ml.p4d.24xlarge",
    instance_count=2,
    framework_version="2.3.1",
)
simple("no_distribution", {}, **P4)

simple("every_place", output_path="s3://bucket/out", checkpoint_s3_uri="s3://bucket/c", code_location="s3://other/code")
simple("every_key", output_kms_key="alias/a", volume_kms_key="alias/b")
simple("spot_without_max_wait_in_days", use_spot_instances=True, max_run=86400, max_wait=172800)
simple("warm_pool", keep_alive_period_in_seconds=1800)
simple("names_with_underscores", base_job_name="my_training_job")
simple("a_name_that_is_too_long", base_job_name="a-name-that-is-much-too-long-for-a-job-of-the-service-by-far")
simple("a_plan", training_plan="arn:aws:sagemaker:us-east-1:123456789012:training-plan/mine")
simple("role_by_name", role="training")
simple("role_below_a_path", role="arn:aws:iam::123456789012:role/service-role/AmazonSageMaker-ExecutionRole")
simple("pretrained_weights", model_uri="s3://bucket/bert/", model_channel_name="weights")
simple("nothing_compressed", disable_output_compression=True)
simple("subnets_alone", subnets=["subnet-1"])
simple("debugger_off", debugger_hook_config=False, disable_profiler=True)
simple(
    "everything_of_the_network", subnets=["subnet-a"], security_group_ids=["sg-a"], encrypt_inter_container_traffic=True
)
simple("log_level", container_log_level=10)
simple("environment", environment={"NCCL_DEBUG": "INFO", "TOKENIZERS_PARALLELISM": "false"})
simple("hugging_face_pytorch", kind="HuggingFace", instance_type="ml.p4d.24xlarge")
simple("version_in_short", framework_version="2.5")
simple("no_inputs", inputs=None)
simple("one_channel", inputs={"training": TRAIN})
simple("three_channels", inputs={"train": TRAIN, "validation": "s3://bucket/v", "test": "s3://bucket/t/"})
simple("shell_script", entry_point="run.sh")
simple("dependencies", dependencies=["libraries"])
simple("a_source_dir_that_is_empty", source_dir="", entry_point="src/train.py")
simple("hyperparameters_named_by_numbers", hyperparameters={1: 2, "a": 3})
simple("tags_with_numbers", tags={"run": 7})
simple("buckets_with_capitals", inputs="s3://My_Bucket/Data", output_path="s3://My_Bucket/out")
simple("weights_and_a_channel_of_their_name", inputs={"model": TRAIN}, model_uri="s3://bucket/weights/")
simple("options_of_mpirun_that_are_none", {"mpi": {"enabled": True, "custom_mpi_options": None}}, **P4)


@call
def hyperparameters_change_before_the_fit(s):
    values = {"epochs": 1}
    estimator = s.PyTorch("train.py", source_dir="src", hyperparameters=values, **ONE, **TORCH)
    values["epochs"] = 2
    estimator.fit(TRAIN)


@call
def training_input_without_a_distribution(s):
    data = s.TrainingInput(TRAIN, distribution=None)
    s.PyTorch("train.py", source_dir="src", **ONE, **TORCH).fit({"train": data})


@call
def dependencies_that_the_repository_lacks(s):
    git = {"repo": sources.REPOSITORY}
    s.PyTorch("train.py", source_dir="src", git_config=git, dependencies=["libraries"], **ONE, **TORCH).fit(TRAIN)
