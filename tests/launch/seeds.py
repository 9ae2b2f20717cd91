# SPDX-License-Identifier: Apache-2.0
"""Calls as people have written them for the estimators of SDK 2, and every recipe in every way: what is launched in tests.

In the first three only the import has changed. The scripts that they name are of transformers 4.6: a stand-in is written.
"""

from pathlib import Path

from lightning_sagemaker.launch import Estimator, FileSystemInput, HuggingFace
from lightning_sagemaker.recipe_table import RECIPES

ROLE = "arn:aws:iam::123456789012:role/training"


def squad_data_parallel(role, source_dir):
    """Question answering with SMDDP on two hosts."""
    hyperparameters = {
        "model_name_or_path": "bert-large-uncased-whole-word-masking",
        "dataset_name": "squad",
        "do_train": True,
        "do_eval": True,
        "fp16": True,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "num_train_epochs": 2,
        "max_seq_length": 384,
        "max_steps": 100,
        "pad_to_max_length": True,
        "doc_stride": 128,
        "output_dir": "/opt/ml/model",
    }

    # configuration for running training on smdistributed Data Parallel
    distribution = {"smdistributed": {"dataparallel": {"enabled": True}}}

    # instance configurations
    instance_type = "ml.p3dn.24xlarge"
    instance_count = 2
    volume_size = 200

    # metric definition to extract the results
    metric_definitions = [
        {"Name": "train_runtime", "Regex": r"train_runtime.*=\D*(.*?)$"},
        {"Name": "train_samples_per_second", "Regex": r"train_samples_per_second.*=\D*(.*?)$"},
        {"Name": "epoch", "Regex": r"epoch.*=\D*(.*?)$"},
        {"Name": "f1", "Regex": r"f1.*=\D*(.*?)$"},
        {"Name": "exact_match", "Regex": r"exact_match.*=\D*(.*?)$"},
    ]

    huggingface_estimator = HuggingFace(
        entry_point="run_qa.py",
        source_dir=source_dir,
        metric_definitions=metric_definitions,
        instance_type=instance_type,
        instance_count=instance_count,
        volume_size=volume_size,
        role=role,
        transformers_version="4.6",
        pytorch_version="1.7",
        py_version="py36",
        distribution=distribution,
        hyperparameters=hyperparameters,
    )
    return huggingface_estimator, None


def mnli_model_parallel(role, source_dir):
    """GLUE with model parallelism, four partitions on one host."""
    hyperparameters = {
        "model_name_or_path": "roberta-large",
        "task_name": "mnli",
        "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 16,
        "do_train": True,
        "do_eval": True,
        "do_predict": True,
        "num_train_epochs": 2,
        "output_dir": "/opt/ml/model",
        "max_steps": 500,
    }

    # configuration for running training on smdistributed Model Parallel
    mpi_options = {
        "enabled": True,
        "processes_per_host": 8,
    }
    smp_options = {
        "enabled": True,
        "parameters": {
            "microbatches": 4,
            "placement_strategy": "spread",
            "pipeline": "interleaved",
            "optimize": "speed",
            "partitions": 4,
            "ddp": True,
        },
    }

    distribution = {"smdistributed": {"modelparallel": smp_options}, "mpi": mpi_options}

    huggingface_estimator = HuggingFace(
        entry_point="run_glue.py",
        source_dir=source_dir,
        instance_type="ml.p3.16xlarge",
        instance_count=1,
        volume_size=200,
        role=role,
        transformers_version="4.6",
        pytorch_version="1.7",
        py_version="py36",
        distribution=distribution,
        hyperparameters=hyperparameters,
    )
    return huggingface_estimator, None


def spot_distilbert(role, source_dir):
    """Classification on a spot instance, with checkpoints."""
    bucket = "sagemaker-us-east-1-123456789012"
    training_input_path = f"s3://{bucket}/samples/datasets/imdb/train"
    test_input_path = f"s3://{bucket}/samples/datasets/imdb/test"

    # hyperparameters, which are passed into the training job
    hyperparameters = {
        "epochs": 1,
        "train_batch_size": 32,
        "model_name": "distilbert-base-uncased",
        "output_dir": "/opt/ml/checkpoints",
    }

    # s3 uri where our checkpoints will be uploaded during training
    job_name = "using-spot"
    checkpoint_s3_uri = f"s3://{bucket}/{job_name}/checkpoints"

    huggingface_estimator = HuggingFace(
        entry_point="train.py",
        source_dir=source_dir,
        instance_type="ml.p3.2xlarge",
        instance_count=1,
        base_job_name=job_name,
        checkpoint_s3_uri=checkpoint_s3_uri,
        use_spot_instances=True,
        max_wait=3600,  # This should be equal to or greater than max_run in seconds'
        max_run=1000,
        role=role,
        transformers_version="4.6",
        pytorch_version="1.7",
        py_version="py36",
        hyperparameters=hyperparameters,
    )
    return huggingface_estimator, {"train": training_input_path, "test": test_input_path}


SEEDS = {one.__name__: one for one in (squad_data_parallel, mnli_model_parallel, spot_distilbert)}

VPC = {"subnets": ["subnet-0123456789abcdef0"], "security_group_ids": ["sg-0123456789abcdef0"]}
LUSTRE = FileSystemInput("fs-0123456789abcdef0", "FSxLustre", "/fsx/data")
SMP = {
    "smdistributed": {
        "modelparallel": {"enabled": True, "parameters": {"partitions": 2, "microbatches": 4, "ddp": True}}
    },
    "torch_distributed": {"enabled": True},
}
WAYS = {
    "smddp": {"distribution": {"smdistributed": {"dataparallel": {"enabled": True}}}},
    "ddp": {"distribution": {"pytorchddp": {"enabled": True}}},
    "smp": {"distribution": SMP},
    "spot": {"distribution": "torch_distributed", "use_spot_instances": True},
    "fsx": {"distribution": "smddp", **VPC},
}
SHARED_MATRICES = {
    "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"tensor_parallel_degree": 2, "ddp": True}}},
    "torch_distributed": {"enabled": True},
}


def ways(recipe: str) -> dict[str, dict]:
    """Every way to run a recipe. ALBERT's layers are one, which cannot be cut into stages: its matrices are shared."""
    return WAYS | ({"smp": {"distribution": SHARED_MATRICES}} if recipe == "albert-mlm" else {})


CASES = [*SEEDS, *(f"{recipe} {way}" for recipe in RECIPES for way in WAYS)]


def make(case: str, folder: Path) -> tuple[Estimator, object]:
    """The estimator and the inputs of a case."""
    if case in SEEDS:
        for name in ("run_qa.py", "run_glue.py", "train.py"):
            (folder / name).write_text("print('trains')\n")
        return SEEDS[case](ROLE, str(folder))
    recipe, way = case.split()
    common = {
        "role": ROLE,
        "instance_type": "ml.p4d.24xlarge",
        "instance_count": 2,
        "hyperparameters": {"max_steps": 100},
    }
    inputs = {"train": LUSTRE} if way == "fsx" else {"train": "s3://bucket/data/"}
    return Estimator(recipe=recipe, **{**common, **ways(recipe)[way]}), inputs
