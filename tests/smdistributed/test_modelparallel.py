# SPDX-License-Identifier: Apache-2.0
"""Every name of AWS's library that its public samples, its container tests or transformers use is there."""

import importlib
import subprocess
import sys

import pytest
import torch

from lightning_sagemaker.smdistributed import importer

USED = [
    "allgather",
    "amp.GradScaler",
    "barrier",
    "broadcast",
    "CommGroup.DP_GROUP",
    "delay_param_initialization",
    "DistributedModel",
    "DistributedOptimizer",
    "DP_GROUP",
    "dp_rank",
    "dp_size",
    "get_dp_process_group",
    "get_mp_process_group",
    "get_tp_group",
    "get_world_process_group",
    "init",
    "is_initialized",
    "load",
    "local_rank",
    "model.DistributedModel",
    "model_creation",
    "mp_rank",
    "nn.FusedLayerNorm",
    "nn.huggingface.gpt2.translate_hf_state_dict_to_smdistributed",
    "nn.huggingface.gpt2.translate_hf_state_dict_to_smdistributed_gpt2",
    "nn.huggingface.gpt2.translate_state_dict_to_hf_gpt2",
    "nn.huggingface.gptj.translate_hf_gptj_state_dict_to_smdistributed",
    "nn.huggingface.gptj.translate_hf_state_dict_to_smdistributed_gptj",
    "nn.huggingface.gptj.translate_state_dict_to_hf_gptj",
    "optimizers.FusedLAMB",
    "PP_GROUP",
    "pp_rank",
    "pp_size",
    "rank",
    "RankType.PP_RANK",
    "RankType.RDP_RANK",
    "RankType.TP_RANK",
    "rdp_rank",
    "rdp_size",
    "recv_from",
    "resume_from_checkpoint",
    "save",
    "save_checkpoint",
    "send",
    "set_activation_checkpointing",
    "set_partition",
    "size",
    "state.cfg",
    "state.module_manager.translate_functions",
    "state.patch_manager.get_original_method",
    "state_mod.state.param_index_to_name_tp_group",
    "state_mod.state.param_name_to_index_tp_group",
    "step",
    "tensor_parallelism",
    "TP_GROUP",
    "tp_rank",
    "tp_size",
    "utils.get_distribution_axis",
    "utils.rmsg",
]
FIELDS = ("fp16", "prescaled_batch", "shard_optimizer_state")
MEMBERS = [
    "backward",
    "state_dict",
    "load_state_dict",
    "local_state_dict",
    "local_parameters",
    "get_module",
    "register_post_partition_hook",
    "register_post_step_hook",
    "is_distributed_parameter",
    "virtual_named_parameters",
]


@pytest.fixture(scope="module")
def smp():
    importer.install()
    yield importlib.import_module("smdistributed.modelparallel.torch")
    importer.uninstall()


@pytest.mark.parametrize("name", USED)
def test_used_names_are_there(smp, name):
    found = smp
    for part in name.split("."):
        assert hasattr(found, part), name
        found = getattr(found, part)


def test_members_and_version(smp):
    assert importlib.import_module("smdistributed.modelparallel").__version__ == "1.15.0"
    assert all(callable(getattr(smp.DistributedModel, name)) for name in MEMBERS)
    assert set(FIELDS) <= set(smp.state_mod.Config.__dataclass_fields__)
    helpers = importlib.import_module("smdistributed.modelparallel.test.torch.utils")
    for name in ("verify", "dump_model"):
        with pytest.raises(Exception, match="HINT"):
            getattr(helpers, name)()


def test_what_a_step_returns_is_averaged_whatever_its_type(smp):
    """Counts of correct answers and indices, as AWS's samples return them; the real ones keep their type."""
    counts = smp.StepOutput([torch.tensor([1, 2]), torch.tensor([2, 2])]).reduce_mean()
    assert torch.equal(counts, torch.tensor([1.5, 2.0]))
    assert torch.equal(smp.StepOutput([torch.tensor(True), torch.tensor(False)]).reduce_mean(), torch.tensor(0.5))
    assert smp.StepOutput([torch.ones(1, dtype=torch.float64)]).reduce_mean().dtype == torch.float64


def test_methods_of_classes_are_as_they_were(smp):
    assert smp.state.patch_manager.get_original_method("forward", torch.nn.Linear) is torch.nn.Linear.forward


HOOKS = """
import torch, smdistributed.modelparallel.torch as smp
smp.init({"partitions": 1, "microbatches": 2, "ddp": True})
model = smp.DistributedModel(torch.nn.Linear(2, 1))
events = []
model.register_post_partition_hook(lambda model, optimizer: events.append("partitioned"))
model.register_post_step_hook(lambda model, optimizer: events.append("stepped"))
@smp.step
def step(model, x):
    events.append("forward")
    model.backward(model(x).sum())
for _ in range(2):
    step(model, torch.ones(4, 2))
print(*events)
smp.DistributedModel(torch.nn.Linear(2, 1))
"""


def test_hooks_are_called_where_each_process_has_the_full_model(tmp_path):
    (tmp_path / "script.py").write_text(HOOKS)
    command = [sys.executable, "-m", "lightning_sagemaker", str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    events, said = done.stdout.splitlines()
    assert events.split() == ["partitioned", "forward", "forward", "stepped", "forward", "forward"], done.stderr
    assert said.startswith("A second DistributedModel takes the place of the first")


CONTENT = """
import sys
from pathlib import Path
import numpy as np, torch, smdistributed.modelparallel.torch as smp
class Settings:
    def __init__(self, width):
        self.width = width
class Net(torch.nn.Linear):
    def __init__(self, config):
        super().__init__(config.width, 1)
        self.config = config
smp.init({"partitions": 1, "ddp": True})
model = smp.DistributedModel(Net(Settings(2)))
content = {"config": Settings(2), "numbers": [np.int64(3), np.float32(0.5), np.prod((2, 3))], "arguments": {"lr": 0.1}}
smp.save_checkpoint("out", "part", partial=True, model=model, user_content=content)
smp.save_checkpoint("out", "whole", partial=False, model=model, user_content=content)
for found in (smp.resume_from_checkpoint("out", "part"), smp.resume_from_checkpoint("out", "whole", partial=False)):
    assert (found["config"].width, found["numbers"], found["arguments"]) == (2, [3, 0.5, 6], {"lr": 0.1})
    assert type(found["config"]) is Settings
class Other:
    pass
smp.save_checkpoint("out", "other", partial=True, model=model, user_content={"other": Other()})
try:
    smp.resume_from_checkpoint("out", "other")
except Exception as error:
    print(error)
torch.serialization.add_safe_globals([Other])
assert type(smp.resume_from_checkpoint("out", "other")["other"]) is Other
"""


def test_content_beside_the_model_may_hold_numpys_numbers_and_its_configuration(tmp_path):
    """As that of AWS's samples; the model's own class of configuration is the one that may be read."""
    (tmp_path / "script.py").write_text(CONTENT)
    command = [sys.executable, "-m", "lightning_sagemaker", str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert "other_partial/user_content.pt holds __main__.Other, and is not loaded" in done.stdout
    assert "HINT: save plain values" in done.stdout


KEPT = """
import os, shutil, torch, smdistributed.modelparallel.torch as smp
from pathlib import Path
smp.init({"partitions": 1, "ddp": True})
def error_of(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
def build():
    model = smp.DistributedModel(torch.nn.Linear(2, 1))
    return {"model": model, "optimizer": smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))}
early = error_of(lambda: smp.resume_from_checkpoint("none", "tag", partial=False))
parts = build()
for tag in ("step1", "step2", "best", "step3"):
    smp.save_checkpoint("out", tag, **parts, num_kept_partial_checkpoints=2)
    print(*sorted(path.name for path in Path("out").glob("*_partial")))
print(error_of(lambda: smp.save_checkpoint("out", "step4", **parts, num_kept_partial_checkpoints=-1)))
print(early)
smp.state.model = smp.state.optimizer = None
print(error_of(lambda: smp.resume_from_checkpoint("out")))
smp.DistributedModel(torch.nn.Linear(2, 1))
print(error_of(lambda: smp.resume_from_checkpoint("out")))
print(error_of(lambda: smp.resume_from_checkpoint("out", load_optimizer=False)))
parts = build()
smp.save_checkpoint("out", "alone", model=parts["model"])
print(error_of(lambda: smp.resume_from_checkpoint("out")))
shutil.copy("out/step3_partial/model_0_0.pt", "out/step3_partial/model_1_0.pt")
print(error_of(lambda: smp.resume_from_checkpoint("out", "step3")))
smp.save_checkpoint("out", "step3", **parts)
print(error_of(lambda: smp.resume_from_checkpoint("out", "step3")))
"""
KEPT_SAYS = [
    "step1_partial",
    "step1_partial step2_partial",
    "best_partial step2_partial",
    "step2_partial step3_partial",
    "ValueError: num_kept_partial_checkpoints=-1 was set. HINT",
    "RuntimeError: none/tag was to be resumed, but there is no smp.DistributedModel yet. HINT",
    "RuntimeError: rank 0: RuntimeError: out/step3_partial holds the state of a model, but there is no smp.DistributedModel",
    "RuntimeError: rank 0: RuntimeError: out/step3_partial holds the state of an optimizer, but there is no",
    "None",
    "RuntimeError: rank 0: FileNotFoundError: out/alone_partial has no state of the optimizer. HINT",
    "RuntimeError: rank 0: FileNotFoundError: out/step3_partial was saved in another layout: it has model_0_0.pt,",
    "None",
]


def test_checkpoints_are_kept_and_resumed_as_asked(tmp_path):
    """The newest one stays, whatever its tag; one is resumed in full, or one error says why not."""
    (tmp_path / "script.py").write_text(KEPT)
    command = [sys.executable, "-m", "lightning_sagemaker", str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if "second DistributedModel" not in line]
    assert len(said) == len(KEPT_SAYS), said
    for line, expected in zip(said, KEPT_SAYS, strict=True):
        assert line.startswith(expected)


RECOMPUTED = """
import torch, smdistributed.modelparallel.torch as smp
smp.init({"partitions": 1, "ddp": True})
calls = []
class Block(torch.nn.Linear):
    def __init__(self, number):
        super().__init__(2, 2)
        self.number = number
    def forward(self, value):
        calls.append(self.number)
        return super().forward(value).tanh()
blocks = torch.nn.ModuleList(Block(number) for number in range(3))
smp.set_activation_checkpointing(blocks, strategy="contiguous")
value = torch.ones(1, 2)
for block in blocks:
    value = block(value)
value.sum().backward()
print(*calls)
"""


def test_activation_checkpointing_of_a_list_is_that_of_its_blocks(tmp_path):
    """A list is not called: to wrap it as a module would have no effect."""
    (tmp_path / "script.py").write_text(RECOMPUTED)
    command = [sys.executable, "-m", "lightning_sagemaker", str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["0", "1", "2", "2", "1", "0"], done.stderr


NAMED = """
import copy, torch, smdistributed.modelparallel.torch as smp
from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig
small = {"vocab_size": 11, "n_embd": 8, "n_head": 2, "n_layer": 2}
neox = {"vocab_size": 11, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 8}
smp.init({"partitions": 1, "ddp": True})
for config in (GPT2Config(**small), GPTNeoXConfig(**neox)):
    for enabled in (True, False):
        with smp.model_creation(tensor_parallelism=enabled):
            model = AutoModelForCausalLM.from_config(config)
        names, blocks = list(model.state_dict()), getattr(model, "gpt_neox", model.base_model)
        blocks = blocks.layers if hasattr(blocks, "layers") else blocks.h
        module = smp.DistributedModel(model).get_module()
        owner = getattr(module, "transformer", None)
        assert list(module.state_dict()) == names
        assert (getattr(owner, "seq_layers", None) is blocks) == enabled
        assert copy.deepcopy(module).state_dict().keys() == module.state_dict().keys()
        smp.state.model = None
"""


def test_blocks_have_the_names_of_awss_distributed_transformers(tmp_path):
    """Its samples ask for ``transformer.seq_layers``, whatever the model, where tensor parallelism is enabled."""
    (tmp_path / "script.py").write_text(NAMED)
    command = [sys.executable, "-m", "lightning_sagemaker", str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
