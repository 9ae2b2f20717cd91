# SPDX-License-Identifier: Apache-2.0
"""What is refused before anything leaves this machine: one error each."""

import pytest

from lightning_sagemaker.launch import Estimator, FileSystemInput, LaunchError
from lightning_sagemaker.launch.spec.inputs import TrainingInput
from tests.launch.jobs import P4D, SMDDP, partitions

BAD = [
    ({"distribution": SMDDP, "instance_type": "ml.g5.48xlarge"}, "SMDDP does not run on ml.g5.48xlarge"),
    ({"distribution": SMDDP, "instance_type": "ml.p3.16xlarge"}, "SMDDP 2.6.0 would run no collective: The guide of"),
    (
        {
            "distribution": SMDDP,
            "instance_type": "ml.p3dn.24xlarge",
            "environment": {"SMDATAPARALLEL_OPTIMIZE_SDP": "true"},
        },
        "SMDDP 2.6.0 would run no collective: SMDDP's AllGather is for P4 only",
    ),
    (
        {"distribution": "ddp", "pytorch_version": "2.5.1", "environment": {"SMDDP_AG_SORT_BUFFER_SIZE_BYTES": "1"}},
        "SMDDP_AG_SORT_BUFFER_SIZE_BYTES='1' is set, and SMDDP takes multiples of 8192 bytes",
    ),
    (
        {"distribution": SMDDP, "environment": {"SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES": "16MB"}},
        "SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES='16MB' is set, and SMDDP takes multiples of 8192 bytes",
    ),
    ({"distribution": SMDDP, "pytorch_version": "2.8"}, "image of PyTorch 2.8.0 has no SMDDP"),
    ({"distribution": partitions(3)}, r"3.*\(2 x ml.p4d.24xlarge: 16 processes\)"),
    ({"distribution": {"smdistribute": {}}}, "did you mean 'smdistributed'"),
    (
        {"distribution": {"smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 2}}}}},
        "neither of its launchers, mpi",
    ),
    (
        {
            "distribution": {
                **partitions(2),
                "smdistributed": {**SMDDP["smdistributed"], **partitions(2)["smdistributed"]},
            }
        },
        "one",
    ),
    ({"distribution": {"mpi": {"enabled": True, "processes_per_host": 9}}}, "9 processes per host"),
    ({"distribution": {**SMDDP, "mpi": {"enabled": True}}}, "dataparallel and mpi"),
    (
        {"distribution": {"mpi": {"enabled": True}, "torch_distributed": {"enabled": True}}},
        "enables mpi and torch_distributed",
    ),
    ({"distribution": "smdp"}, "did you mean 'smddp'"),
    ({"use_spot_instances": True, "max_run": 7200, "max_wait": 3600}, "max_wait=3600 is less than max_run=7200"),
    ({"max_wait": 3600}, "for an on-demand job"),
    ({"max_run": 29 * 86400}, "max_run"),
    ({"use_spot_instances": True, "keep_alive_period": 60}, "Warm pools"),
    ({"role": None}, "role is required"),
    ({"role": "no role"}, "give the name, or the ARN"),
    ({"recipe": "albert-mln"}, "did you mean 'albert-mlm'"),
    ({"recipe": None}, "Neither recipe nor entry_point"),
    ({"recipe": None, "entry_point": "../outside.py", "source_dir": "."}, "outside source_dir"),
    ({"recipe": None, "entry_point": "none.py", "source_dir": "."}, "is not in"),
    ({"recipe": None, "entry_point": "a.py", "source_dir": "nowhere"}, "is not a directory"),
    ({"hyperparameters": {"layers": {1, 2}}}, "'layers' is set"),
    ({"hyperparameters": {"text": "x" * 2501}}, "2501 characters"),
    ({"hyperparameters": {"sagemaker_mpi_enabled": True}}, "SDK 2's containers take names with sagemaker_"),
    ({"hyperparameters": {f"h{i}": i for i in range(101)}}, "101 hyperparameters"),
    ({"region": "eu-nowhere-9"}, "no image of pytorch-training .* in region 'eu-nowhere-9'"),
    ({"region": "Frankfurt"}, "in region 'Frankfurt'"),
    ({"region": ["us-east-1", "mars"]}, "region='mars' was set"),
    ({"transformers_version": "4.56", "instance_type": "ml.m5.xlarge"}, "need a GPU"),
    ({"pytorch_version": "9.9"}, "pytorch_version='9.9' has no image"),
    ({"py_version": "py27"}, "py_version='py27'"),
    ({"instance_type": "local_gpu"}, "containers are not run on this machine.*--rehearse"),
    ({"distribution": {"mpi": {"enabled": "yes"}}}, "instead of a section"),
    ({"instance_type": "p4d.24xlarge"}, "did you mean 'ml.p4d.24xlarge'"),
    ({"instance_type": "ml.p4d.24xlarg"}, "did you mean 'ml.p4d.24xlarge'"),
    ({"instance_type": "ml.g9.xlarge"}, r"is not a SageMaker training instance \(20.*did you mean"),
    ({"instance_type": "ml.trn1.32xlarge"}, "16 Trainium, for which torch needs AWS's Neuron SDK"),
    ({"instance_count": 0}, "instance_count=0"),
    ({"volume_size": 0}, "volume_size=0"),
    ({"output_path": "bucket/prefix"}, "write s3://"),
    ({"checkpoint_s3_uri": "/opt/ml/checkpoints"}, "write s3://"),
    ({"checkpoint_local_path": "checkpoints"}, "absolute"),
    ({"subnets": ["subnet-1"]}, "go together"),
    ({"inputs": {"train": FileSystemInput("fs-01234567", "FSxLustre", "/x")}}, "needs a VPC"),
    ({"inputs": {"train": FileSystemInput("fs-01234567", "NFS", "/x")}}, "FSxLustre or EFS"),
    ({"inputs": {"train": "data/none"}}, "not on this machine"),
    ({"inputs": {"my data": "s3://bucket/x"}}, "letters, digits, dots, dashes"),
    ({"inputs": {"train": TrainingInput("s3://b-1/x", instance_groups=["gpu"])}}, "the instance group 'gpu'"),
    ({"inputs": {"train": {"s3_data": "s3://b-1/x", "record_wrapping": "Zip"}}}, "record_wrapping='Zip'"),
    ({"input_mode": "Stream"}, "input_mode='Stream'"),
    ({"code_location": "bucket"}, "write s3://"),
    ({"recovery": "injob"}, "choose restart or in_job"),
    ({"recovery": "in_job", "distribution": SMDDP}, "distribution='smddp', whose ranks cannot be replaced"),
    ({"recovery": "in_job"}, "distribution='none'"),
    ({"rules": [1]}, r"rules has 1.*Rule and ProfilerRule"),
    ({"rules": 1}, r"rules has 1.*Rule and ProfilerRule"),
    ({"debugger_hook_config": {"CollectionConfigurations": 5}}, "CollectionConfigurations=5. HINT: it must be a list"),
    ({"debugger_hook_config": "on"}, "debugger_hook_config='on' was set.*the API's dictionary"),
    ({"profiler_config": 1}, "profiler_config=1 was set.*the API's dictionary"),
    ({"disable_profiler": True, "profiler_config": {"DisableProfiler": False}}, "disable_profiler was set with"),
    (
        {
            "debugger_rules": [{"RuleConfigurationName": "a", "RuleEvaluatorImage": "DEFAULT_RULE_EVALUATOR_IMAGE"}],
            "region": "il-central-1",
        },
        "no image of sagemaker-debugger-rules in region 'il-central-1'",
    ),
    ({"container_entry_point": ["sh"]}, "first process is this package's"),
    ({"tensorboard_output_config": "s3://bucket/x"}, "tensorboard_output_config='s3://bucket/x'"),
    ({"inputs": {"code": "s3://bucket/x"}}, "is reserved for the SDK"),
    ({"inputs": {"train": {"s3_data": "s3://bucket/x", "mode": "FastFile"}}}, "has the unknown key 'mode'"),
    ({"inputs": {"train": {"s3_data": "s3://bucket/x", "input_mode": "Stream"}}}, "File, FastFile, Pipe"),
    ({"environment": {"2X": "y"}}, "environment has '2X'"),
    ({"metric_definitions": [{"Name": "loss", "Regex": "loss=(["}]}, "metric_definitions has"),
    ({"metric_definitions": [{"Name": f"m{i}", "Regex": "(x)"} for i in range(41)]}, "41 metric_definitions"),
    ({"enable_network_isolation": True, "image_uri": "own/image:1"}, "the Python version of image_uri.*set py_version"),
    ({"dependencies": ["nowhere"]}, "dependencies has"),
    ({"instance_typ": "ml.p4d.24xlarge"}, "did you mean 'instance_type'"),
    ({"git_config": {"branch": "main"}, "recipe": None, "entry_point": "a.py"}, "git_config"),
]


@pytest.mark.parametrize(("change", "wanted"), BAD, ids=[wanted[:30] for _, wanted in BAD])
def test_bad_input_is_one_sentence_and_nothing_is_sent(change, wanted, aws):
    begin = len(aws.calls)
    with pytest.raises(LaunchError, match=wanted) as error:
        Estimator(**{**P4D, **change}).fit(wait=False)
    assert str(error.value).count("HINT: ") == 1
    assert "\n" not in str(error.value)
    assert len(aws.calls) == begin
