# SPDX-License-Identifier: Apache-2.0
"""The names of ``torch.sagemaker`` that AWS's public training scripts use; those that cannot be here say so."""

import importlib
import subprocess
import sys
import threading

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from lightning_sagemaker._compat.dcp import read_full
from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.torch_sagemaker.checkpoint.utils import limit_num_subdirs
from lightning_sagemaker.torch_sagemaker.distributed.checkpoint import s3_filesystem, state_dict_saver
from lightning_sagemaker.torch_sagemaker.nn.attn import FlashSelfAttention
from lightning_sagemaker.torch_sagemaker.state_handler import State

NAMES = [
    "checkpoint.constants.SMP_IS_LOAD_INFO_KEY",
    "checkpoint.constants.SMP_IS_PARTIAL_KEY",
    "checkpoint.utils.SORT_BY_LAST_INT",
    "checkpoint.utils.limit_num_subdirs",
    "delayed_param.DelayedParamIniter",
    "context_parallel.utils.setup_transformer_engine_cp_groups",
    "distributed.checkpoint.async_utils.AsyncCallsQueue",
    "distributed.checkpoint.filesystem.DistributedFileSystemReader",
    "distributed.checkpoint.filesystem.DistributedFileSystemWriter",
    "distributed.checkpoint.s3_filesystem.format_s3_path",
    "distributed.checkpoint.s3_filesystem.is_s3_uri",
    "distributed.checkpoint.s3_filesystem.parse_s3_uri",
    "distributed.checkpoint.state_dict_loader.load",
    "distributed.checkpoint.state_dict_saver.PyTorchDistSaveShardedStrategy",
    "distributed.checkpoint.state_dict_saver.async_save",
    "distributed.checkpoint.state_dict_saver.maybe_finalize_async_calls",
    "distributed.checkpoint.state_dict_utils.SMStateDictType",
    "distributed.checkpoint.state_dict_utils.init_optim_state",
    "distributed.checkpoint.state_dict_utils.sm_state_dict_type",
    "distributed.fsdp.checkpoint.load_model_checkpoint",
    "distributed.fsdp.checkpoint.save_model_checkpoint",
    "grad_norm.clip_grad_norm_",
    "logger.get_logger",
    "moe.moe_config.MoEConfig",
    "moe.moe_layer.MoELayer",
    "nn.attn.FlashSelfAttention",
    "nn.huggingface.llama_flashattn.LlamaFlashAttention",
    "state_handler.state",
    "tensor_parallel.transformer.TETransformerLayer",
    "tensor_parallel.transformer.TransformerLayer",
    "utils.process_group_utils.get_global_ranks",
    "utils.utils.timeit",
]
REFUSED = (
    "moe.moe_layer.MoELayer",
    "nn.huggingface.llama_flashattn.LlamaFlashAttention",
    "tensor_parallel.transformer.TETransformerLayer",
)


def find(name: str):
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(f"lightning_sagemaker.torch_sagemaker.{module}"), attribute)


@pytest.mark.parametrize("name", NAMES)
def test_names_exist(name):
    assert find(name) is not None


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_here_says_what_to_use(name):
    with pytest.raises(ParallelConfigError, match="HINT: use"):
        find(name)()


def test_state_before_init():
    state = State()
    assert (state.tensor_parallel_degree, state.cp_size, state.sm_activation_offloading) == (1, 1, True)
    state.tensor_parallel_degree = 1  # AWS's samples set it where the library is off
    with pytest.raises(RuntimeError, match=r"HINT: call torch.sagemaker.init\(\)"):
        _ = state.tp_rank


def test_attention_equals_the_formula():
    torch.manual_seed(0)
    qkv = torch.randn(2, 5, 3, 4, 8)
    query, key, value = qkv.unbind(2)
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / 8**0.5
    scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    expected = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), value)
    assert torch.allclose(FlashSelfAttention()(qkv, causal=True), expected, atol=1e-6)
    with pytest.raises(ParallelConfigError):
        FlashSelfAttention(use_alibi=True)


def test_last_folders_stay(tmp_path):
    for number in (2, 10, 9):
        (tmp_path / f"step-{number}").mkdir()
    (tmp_path / "other").mkdir()
    limit_num_subdirs(tmp_path, 2, regex="step", log=False)
    assert sorted(place.name for place in tmp_path.iterdir()) == ["other", "step-10", "step-9"]
    limit_num_subdirs(tmp_path / "absent", 2)


def test_addresses():
    assert s3_filesystem.parse_s3_uri("s3://bucket/a/b") == ("bucket", "a/b")
    assert s3_filesystem.format_s3_path("bucket", "a/b") == "s3://bucket/a/b"
    with pytest.raises(ParallelConfigError, match="HINT"):
        s3_filesystem.parse_s3_uri("/a/b")


class _Waits(dcp.FileSystemWriter):
    """Writes when it is told to."""

    def __init__(self, folder):
        super().__init__(folder)
        self.may = threading.Event()

    def write_data(self, *arguments, **options):
        assert self.may.wait(60)
        return super().write_data(*arguments, **options)


@pytest.mark.parametrize("kind", ["plain", "sharded"])
def test_what_is_written_beside_the_training_is_not_what_it_makes_of_it(group_of_one, tmp_path, kind):
    mesh = init_device_mesh("cpu", (1,))
    tensor = torch.arange(6.0).reshape(3, 2)
    if kind == "sharded":
        tensor = distribute_tensor(tensor, mesh, [Shard(0)])
    state, writer = {"model": {"a": tensor}, "optimizer": {"state": [tensor], "step": 3}}, _Waits(tmp_path / "saved")
    state_dict_saver.async_save(state, storage_writer=writer)
    with torch.no_grad():
        tensor.mul_(0)
    writer.may.set()
    state_dict_saver.maybe_finalize_async_calls(blocking=True)
    found = read_full(tmp_path / "saved")
    for saved in (found["model"]["a"], found["optimizer"]["state"][0]):
        assert torch.equal(saved, torch.arange(6.0).reshape(3, 2))


OFFLOADS = """
import sys, torch.sagemaker as tsm
tsm.init(eval(sys.argv[1]))
print(tsm.state.sm_activation_offloading)
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, True), ({"sm_activation_offloading": False}, False), ({"hybrid_shard_degree": 1}, True)],
)
def test_scripts_read_whether_activations_are_offloaded(tmp_path, given, expected):
    """AWS's script wraps its model in ``offload_wrapper`` if so."""
    (tmp_path / "script.py").write_text(OFFLOADS)
    command = [sys.executable, "-m", "lightning_sagemaker", str(tmp_path / "script.py"), repr(given)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == [str(expected)], done.stderr
