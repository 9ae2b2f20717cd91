# SPDX-License-Identifier: Apache-2.0
"""Calls in the manner of public notebooks: AWS's examples, Hugging Face's, and those of blogs about both."""

import logging
import os

from tests.launch.sdk2 import sources
from tests.launch.sdk2.calls import ROLE, TRAIN, call

DATA = {"train": "s3://bucket/samples/imdb/train", "test": "s3://bucket/samples/imdb/test"}


@call
def notebook_getting_started_with_hugging_face(s):
    hyperparameters = {"epochs": 1, "train_batch_size": 32, "model_name": "distilbert-base-uncased"}
    s.HuggingFace(
        entry_point="train.py",
        source_dir="./src",
        instance_type="ml.p3.2xlarge",
        instance_count=1,
        role=ROLE,
        transformers_version="4.26",
        pytorch_version="1.13",
        py_version="py39",
        hyperparameters=hyperparameters,
    ).fit(DATA)


@call
def notebook_question_answering_from_git(s):
    s.HuggingFace(
        entry_point="run_qa.py",
        source_dir="./src",
        git_config={"repo": sources.REPOSITORY, "branch": "main"},
        instance_type="ml.p3.16xlarge",
        instance_count=2,
        volume_size=200,
        role=ROLE,
        transformers_version="4.26.0",
        pytorch_version="1.13.1",
        py_version="py39",
        distribution={"smdistributed": {"dataparallel": {"enabled": True}}},
        hyperparameters={
            "model_name_or_path": "bert-large-uncased-whole-word-masking",
            "dataset_name": "squad",
            "do_train": True,
            "do_eval": True,
            "fp16": True,
            "per_device_train_batch_size": 4,
            "num_train_epochs": 2,
            "max_seq_length": 384,
            "max_steps": 100,
            "pad_to_max_length": True,
            "doc_stride": 128,
            "output_dir": "/opt/ml/model",
        },
    ).fit()


@call
def notebook_model_parallel_glue(s):
    mpi = {
        "enabled": True,
        "processes_per_host": 8,
        "custom_mpi_options": "--mca btl_vader_single_copy_mechanism none ",
    }
    parameters = {
        "microbatches": 4,
        "placement_strategy": "spread",
        "pipeline": "interleaved",
        "optimize": "speed",
        "partitions": 4,
        "ddp": True,
    }
    s.HuggingFace(
        entry_point="run_glue.py",
        source_dir="./src",
        instance_type="ml.p3.16xlarge",
        instance_count=1,
        volume_size=200,
        role=ROLE,
        transformers_version="4.6.1",
        pytorch_version="1.7.1",
        py_version="py36",
        metric_definitions=[
            {"Name": "train_runtime", "Regex": r"train_runtime.*=\D*(.*?)$"},
            {"Name": "eval_accuracy", "Regex": r"eval_accuracy.*=\D*(.*?)$"},
        ],
        distribution={"smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}}, "mpi": mpi},
        hyperparameters={"task_name": "mnli", "learning_rate": 5e-5, "model_name_or_path": "roberta-large"},
    ).fit()


@call
def notebook_fine_tuning_with_fsdp(s):
    s.HuggingFace(
        entry_point="train.py",
        source_dir="src",
        instance_type="ml.p4d.24xlarge",
        instance_count=2,
        volume_size=300,
        role=ROLE,
        base_job_name="huggingface-fsdp-gpt-neox-20b-2023-01-01-00-00-00",
        max_run=2 * 24 * 60 * 60,
        transformers_version="4.36",
        pytorch_version="2.1",
        py_version="py310",
        disable_output_compression=True,
        environment={"HUGGINGFACE_HUB_CACHE": "/tmp/.cache"},
        keep_alive_period_in_seconds=1800,
        distribution={"torch_distributed": {"enabled": True}},
        hyperparameters={
            "model_id": "EleutherAI/gpt-neox-20b",
            "dataset_path": "/opt/ml/input/data/training",
            "lr": 2e-5,
            "bf16": True,
            "fsdp": '"full_shard auto_wrap"',
            "fsdp_transformer_layer_cls_to_wrap": "GPTNeoXLayer",
            "epochs": 3,
        },
    ).fit({"training": TRAIN}, wait=True)


@call
def notebook_lora_with_an_s3_model_folder(s):
    data = {
        "training": s.TrainingInput("s3://bucket/processed/train", input_mode="FastFile"),
        "model": s.TrainingInput("s3://bucket/llama/", s3_data_type="S3Prefix", input_mode="File"),
    }
    s.HuggingFace(
        entry_point="train.py",
        source_dir="src",
        instance_type="ml.g5.2xlarge",
        instance_count=1,
        role=ROLE,
        transformers_version="4.49.0",
        pytorch_version="2.5.1",
        py_version="py311",
        volume_size=300,
        hyperparameters={"merge_weights": True, "lr": 2e-4, "gradient_checkpointing": "true", "load_in_4bit": "True"},
        environment={"HF_HUB_ENABLE_HF_TRANSFER": "1", "TOKENIZERS_PARALLELISM": "false"},
    ).fit(data, wait=True)


@call
def notebook_mnist_on_two_processors(s):
    s.PyTorch(
        entry_point="train.py",
        source_dir="src",
        role=ROLE,
        py_version="py38",
        framework_version="1.11.0",
        instance_count=2,
        instance_type="ml.c5.2xlarge",
        hyperparameters={"epochs": 1, "backend": "gloo"},
    ).fit({"training": TRAIN})


@call
def notebook_mnist_of_the_first_years(s):
    s.PyTorch(
        entry_point="train.py",
        source_dir="src",
        role=ROLE,
        framework_version="1.6.0",
        py_version="py3",
        instance_count=1,
        instance_type="ml.m4.xlarge",
        hyperparameters={"epochs": "6", "backend": "gloo"},
    ).fit({"training": TRAIN})


@call
def notebook_mask_rcnn_with_smddp(s):
    s.PyTorch(
        entry_point="train.py",
        source_dir="src",
        role=ROLE,
        instance_count=2,
        instance_type="ml.p4d.24xlarge",
        framework_version="1.12.0",
        py_version="py38",
        volume_size=200,
        output_path="s3://bucket/output",
        max_run=86400,
        base_job_name="smddp-mask",
        debugger_hook_config=False,
        disable_profiler=True,
        distribution={
            "smdistributed": {"dataparallel": {"enabled": True, "custom_mpi_options": "-verbose -x NCCL_DEBUG=VERSION"}}
        },
    ).fit(inputs={"training": TRAIN}, wait=False)


@call
def notebook_horovod(s):
    s.PyTorch(
        entry_point="train.py",
        source_dir="src",
        role=ROLE,
        framework_version="1.10",
        py_version="py38",
        instance_count=2,
        instance_type="ml.g4dn.12xlarge",
        distribution={"mpi": {"enabled": True, "processes_per_host": 4, "custom_mpi_options": "--NCCL_DEBUG INFO"}},
    ).fit()


@call
def notebook_llama_with_smp_2(s):
    parameters = {
        "activation_loading_horizon": 4,
        "hybrid_shard_degree": 2,
        "sm_activation_offloading": False,
        "tensor_parallel_degree": 1,
    }
    s.PyTorch(
        entry_point="train.py",
        source_dir=os.path.abspath("src"),
        role=ROLE,
        base_job_name="llama-2-7b",
        framework_version="2.2.0",
        py_version="py310",
        instance_type="ml.p4d.24xlarge",
        instance_count=2,
        volume_size=30,
        checkpoint_s3_uri="s3://bucket/checkpoints",
        checkpoint_local_path="/opt/ml/checkpoints",
        max_retry_attempts=30,
        keep_alive_period_in_seconds=600,
        debugger_hook_config=False,
        output_path="s3://bucket/out/",
        distribution={
            "torch_distributed": {"enabled": True},
            "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
        },
    ).fit({"train": TRAIN, "test": "s3://bucket/test"}, logs=True)


@call
def notebook_spot_training(s):
    s.PyTorch(
        entry_point="train.py",
        source_dir="src",
        role=ROLE,
        framework_version="1.12",
        py_version="py38",
        instance_count=1,
        instance_type="ml.p3.2xlarge",
        use_spot_instances=True,
        max_run=3600,
        max_wait=7200,
        checkpoint_s3_uri="s3://bucket/checkpoint-abc",
        checkpoint_local_path="/opt/ml/local_checkpoints/",
        hyperparameters={"epochs": "1", "train-batch-size": "32"},
    ).fit({"training": TRAIN})


@call
def notebook_spot_without_max_wait(s):
    s.PyTorch(
        entry_point="train.py",
        source_dir="src",
        role=ROLE,
        framework_version="1.12",
        py_version="py38",
        instance_count=1,
        instance_type="ml.p3.2xlarge",
        use_spot_instances=True,
        max_run=3600,
    ).fit({"training": TRAIN})


@call
def notebook_fsx_in_a_vpc(s):
    data = s.FileSystemInput(
        file_system_id="fs-0123456789abcdef0",
        file_system_type="FSxLustre",
        directory_path="/fsx/train",
        file_system_access_mode="ro",
    )
    s.PyTorch(
        entry_point="train.py",
        source_dir="src",
        role=ROLE,
        framework_version="2.0.0",
        py_version="py310",
        instance_count=2,
        instance_type="ml.p4d.24xlarge",
        subnets=["subnet-0abc1234"],
        security_group_ids=["sg-0abc1234"],
        encrypt_inter_container_traffic=True,
        distribution={"torch_distributed": {"enabled": True}},
    ).fit({"train": data, "test": data})


@call
def notebook_with_experiments_and_metrics(s):
    s.PyTorch(
        entry_point="train.py",
        source_dir="src",
        role=ROLE,
        framework_version="1.13.1",
        py_version="py39",
        instance_count=1,
        instance_type="ml.m5.xlarge",
        enable_sagemaker_metrics=True,
        metric_definitions=[
            {"Name": "train:loss", "Regex": "Train Loss: (.*?);"},
            {"Name": "test:loss", "Regex": "Test Average loss: (.*?),"},
            {"Name": "test:accuracy", "Regex": "Test Accuracy: (.*?)%;"},
        ],
    ).fit(
        inputs={"training": TRAIN},
        job_name="cnn-training-job-1600000000",
        experiment_config={"TrialName": "trial-1", "TrialComponentDisplayName": "Training"},
        wait=True,
    )


@call
def notebook_with_everything_none(s):
    names = [
        "hyperparameters", "distribution", "image_uri", "metric_definitions", "tags", "subnets",
        "security_group_ids", "model_uri", "output_path", "output_kms_key", "volume_kms_key", "base_job_name",
        "sagemaker_session", "checkpoint_s3_uri", "checkpoint_local_path", "rules", "environment",
        "debugger_hook_config", "tensorboard_output_config", "profiler_config", "max_retry_attempts", "dependencies",
        "git_config", "code_location", "enable_sagemaker_metrics", "keep_alive_period_in_seconds", "instance_groups",
        "training_plan", "compiler_config",
    ]  # fmt: skip
    s.PyTorch(
        entry_point="train.py",
        source_dir="src",
        role=ROLE,
        framework_version="2.0.0",
        py_version="py310",
        instance_count=1,
        instance_type="ml.g5.xlarge",
        **dict.fromkeys(names),
    ).fit(TRAIN)


@call
def notebook_with_an_image_and_versions(s):
    s.HuggingFace(
        entry_point="train.py",
        source_dir="src",
        role=ROLE,
        instance_count=1,
        instance_type="ml.g5.xlarge",
        image_uri="763104351884.dkr.ecr.us-east-1.amazonaws.com/huggingface-pytorch-training:2.1.0-transformers4.36.0-gpu-py310-cu121-ubuntu20.04",
        py_version="py310",
        container_log_level=logging.DEBUG,
    ).fit(DATA)


@call
def notebook_script_in_a_folder_of_the_source(s):
    os.makedirs("src/jobs", exist_ok=True)
    open("src/jobs/fit.py", "w").close()
    s.PyTorch(
        entry_point="jobs/fit.py",
        source_dir="src",
        role=ROLE,
        framework_version="2.0.0",
        py_version="py310",
        instance_count=1,
        instance_type="ml.g5.xlarge",
    ).fit(TRAIN)


@call
def notebook_output_and_code_in_one_prefix(s):
    prefix = "s3://bucket/sagemaker/DEMO-pytorch"
    s.PyTorch(
        entry_point="train.py",
        source_dir="src",
        role=ROLE,
        framework_version="1.13.1",
        py_version="py39",
        instance_count=1,
        instance_type="ml.c5.xlarge",
        output_path=f"{prefix}/output",
        code_location=prefix,
        tags=[{"Key": "Project", "Value": "demo"}, {"Key": "cost-center", "Value": "1 2:3/4"}],
        hyperparameters={"seed": 42, "lr": 0.01, "dropout": None, "layers": [64, 32], "opts": {"a": 1}, "on": False},
    ).fit({"train": f"{prefix}/train", "validation": f"{prefix}/validation"}, logs="All")


@call
def notebook_shares_of_a_manifest(s):
    data = s.TrainingInput(
        s3_data="s3://bucket/train.manifest",
        distribution="ShardedByS3Key",
        s3_data_type="ManifestFile",
        content_type="text/csv",
        input_mode="File",
        shuffle_config=s.ShuffleConfig(1234),
    )
    s.PyTorch(
        entry_point="train.py",
        source_dir="src",
        role=ROLE,
        framework_version="1.13.1",
        py_version="py39",
        instance_count=4,
        instance_type="ml.m5.4xlarge",
    ).fit(inputs=data)


@call
def notebook_debugger_with_rules(s):
    d = s.debugger
    s.PyTorch(
        entry_point="train.py",
        source_dir="src",
        role=ROLE,
        framework_version="1.12.0",
        py_version="py38",
        instance_count=1,
        instance_type="ml.p3.2xlarge",
        base_job_name="pytorch-debugger",
        hyperparameters={"random_seed": True, "num_steps": 50, "epochs": 5},
        rules=[
            d.Rule.sagemaker(d.rule_configs.vanishing_gradient()),
            d.Rule.sagemaker(d.rule_configs.overfit()),
            d.Rule.sagemaker(d.rule_configs.overtraining()),
            d.Rule.sagemaker(d.rule_configs.poor_weight_initialization()),
            d.ProfilerRule.sagemaker(d.rule_configs.ProfilerReport()),
        ],
        profiler_config=d.ProfilerConfig(
            system_monitor_interval_millis=500, framework_profile_params=d.FrameworkProfile(num_steps=10)
        ),
        debugger_hook_config=d.DebuggerHookConfig(
            hook_parameters={"train.save_interval": "100"}, collection_configs=[d.CollectionConfig(name="gradients")]
        ),
    ).fit({"training": TRAIN}, wait=False)


@call
def notebook_data_service_beside_the_training(s):
    data = s.InstanceGroup("data_group", "ml.c5.18xlarge", 2)
    dnn = s.InstanceGroup("dnn_group", "ml.p4d.24xlarge", 1)
    s.PyTorch(
        entry_point="train.py",
        source_dir="src",
        role=ROLE,
        framework_version="1.11.0",
        py_version="py38",
        instance_groups=[data, dnn],
        volume_size=10,
        max_run=1800,
        disable_profiler=True,
        hyperparameters={"iterations": 10, "grpc_workers": 12, "batch_size": 256},
        distribution={
            "mpi": {"enabled": True, "processes_per_host": 8, "custom_mpi_options": "--NCCL_DEBUG WARN"},
            "instance_groups": [dnn],
        },
    ).fit({"training": TRAIN}, wait=True)


def one_host(name, inputs=TRAIN, kind="PyTorch", **arguments):
    """A call whose estimator has only these arguments besides the usual ones."""

    def run(s):
        values = {"entry_point": "train.py", "source_dir": "src", "role": ROLE, "instance_type": "ml.g5.xlarge"}
        versions = {"framework_version": "2.0.0", "py_version": "py310"}
        if kind == "HuggingFace":
            versions = {"transformers_version": "4.28", "pytorch_version": "2.0", "py_version": "py310"}
        getattr(s, kind)(**{"instance_count": 1, **values, **versions, **arguments}).fit(inputs)

    run.__name__ = f"notebook_{name}"
    call(run)


one_host("enabled_in_words", distribution={"torch_distributed": {"enabled": "true"}})
one_host("smddp_enabled_in_words", instance_type="ml.p4d.24xlarge", instance_count=2, framework_version="2.0.1",
         distribution={"smdistributed": {"dataparallel": {"enabled": "True"}}})  # fmt: skip
one_host("local_mode", instance_type="local")
one_host("local_mode_with_gpus", instance_type="local_gpu")
one_host("files_of_this_machine", inputs="file://src")
one_host("trainium", instance_type="ml.trn1.2xlarge")
one_host("hyperparameters_as_texts", hyperparameters={"epochs": "1", "flag": "True", "lr": "5e-5", "n": "007"})
one_host(
    "a_token_in_hyperparameters", hyperparameters={"hf_token": "hf_" + "a" * 34, "model_id": "meta-llama/Llama-2-7b"}
)
one_host("a_token_in_the_environment", environment={"HF_TOKEN": "hf_" + "a" * 34}, kind="HuggingFace")
one_host("count_as_a_float", max_run=5 * 3600, volume_size=int(1e3))
one_host("log_level_by_logging", container_log_level=logging.INFO)
one_host("ninety_nine_hyperparameters", hyperparameters={f"p{index}": index for index in range(99)})
one_host("names_with_dots_and_dashes", hyperparameters={"optimizer.lr": 1, "batch-size": 2, "_x": 3, "A": "b c"})
one_host("texts_of_other_scripts", hyperparameters={"prompt": "naïve 日本語 ✓"})
one_host("five_days", max_run=432000, tags=[{"Key": "k", "Value": ""}])
one_host("inputs_as_a_list_of_channels", inputs={"a": TRAIN, "b": TRAIN, "c": TRAIN, "d": TRAIN, "e": TRAIN})
one_host("hugging_face_p5", kind="HuggingFace", instance_type="ml.p5.48xlarge", instance_count=2)
one_host("compiled_images", framework_version="1.13.1", py_version="py39", instance_type="ml.p3.2xlarge")
one_host("deep_learning_ami_type", instance_type="ml.g6e.12xlarge", framework_version="2.5.1", py_version="py311")


@call
def notebook_attributes_set_after_the_constructor(s):
    estimator = s.PyTorch(
        entry_point="train.py",
        source_dir="src",
        role=ROLE,
        framework_version="1.13.1",
        py_version="py39",
        instance_count=1,
        instance_type="ml.p3.2xlarge",
        max_run=60,
    )
    estimator.output_path = "s3://bucket/out"
    estimator.output_kms_key = "alias/out"
    estimator.volume_kms_key = "alias/disk"
    estimator.max_run = 3600
    estimator.instance_type = "ml.p3.8xlarge"
    estimator.framework_version = "1.12.1"
    estimator.py_version = "py38"
    estimator.tags = [{"Key": "team", "Value": "text"}]
    estimator.environment = {"NCCL_DEBUG": "WARN"}
    estimator.subnets, estimator.security_group_ids = ["subnet-1"], ["sg-1"]
    estimator.rules = [s.debugger.Rule.sagemaker(s.debugger.rule_configs.overfit())]
    estimator.fit(TRAIN)
    return [estimator.output_path, estimator.framework_version, estimator.max_run]


one_host("smddp_of_the_first_version", framework_version="1.6.0", py_version="py36", instance_type="ml.p3.16xlarge",
         instance_count=2, distribution={"smdistributed": {"dataparallel": {"enabled": True}}})  # fmt: skip
one_host("a_key_of_the_library_in_the_image", framework_version="1.13.1", py_version="py39", instance_type="ml.p3.16xlarge",
         distribution={"mpi": {"enabled": True, "processes_per_host": 8}, "smdistributed": {"modelparallel": {
             "enabled": True, "parameters": {"pipeline_parallel_degree": 2, "tensor_parallel_degree": 2, "ddp": True,
                                             "shard_optimizer_state": True}}}})  # fmt: skip
