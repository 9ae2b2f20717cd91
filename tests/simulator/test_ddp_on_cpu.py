# SPDX-License-Identifier: Apache-2.0
"""Scripts for GPUs that name the device of their rank, and Hugging Face's Trainer, in a rehearsal without a GPU."""

import importlib.util
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lightning_sagemaker.launch import run_local_cluster

PACKAGES = Path(__file__).parents[2] / ".containers" / "accelerate"
NAMES_A_DEVICE = """
import os
import torch, torch.distributed as dist
import smdistributed.dataparallel.torch.torch_smddp
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("smddp")
torch.manual_seed(dist.get_rank())
model = DDP(torch.nn.Linear(2, 1), device_ids=[int(os.environ["LOCAL_RANK"])])
model(torch.full((1, 2), float(dist.get_rank()))).backward()
again = DDP(model.module, [0], 0)
print("gradient", model.module.weight.grad.tolist(), again.device_ids, os.environ["ACCELERATE_USE_CPU"], flush=True)
dist.destroy_process_group()
"""
TRAINER = """
import os, sys
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.manual_seed(0)
sizes = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
model = BertForSequenceClassification(BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
rows = [{"input_ids": torch.arange(row, row + 8), "labels": torch.tensor(row % 2)} for row in range(32)]
options = {"output_dir": sys.argv[1], "num_train_epochs": 1, "per_device_train_batch_size": 4, "logging_steps": 1}
trainer = Trainer(model, TrainingArguments(**options, report_to=[], save_strategy="no"), train_dataset=rows)
trainer.train()
if trainer.is_world_process_zero():
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    print("norms", norms, trainer.args.world_size, sum(p.double().sum().item() for p in model.parameters()), flush=True)
"""

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU it is otherwise")


def run(tmp_path, text: str, *words: str, **arguments) -> str:
    (tmp_path / "script.py").write_text(text)
    output = io.StringIO()
    command = [sys.executable, str(tmp_path / "script.py"), *words]
    result = run_local_cluster(
        command, hosts=1, processes_per_host=2, root=tmp_path / "root", output=output, timeout=120, **arguments
    )
    assert result.returncode == 0, output.getvalue()
    return output.getvalue()


@without_gpu
@pytest.mark.parametrize("preload", [False, True])
def test_a_device_means_nothing_for_a_module_on_the_cpu(tmp_path, preload, monkeypatch):
    if preload:
        (tmp_path / "packages").mkdir()
        (tmp_path / "packages" / "accelerate.py").touch()
        monkeypatch.syspath_prepend(tmp_path / "packages")
    output = run(tmp_path, NAMES_A_DEVICE, distribution="smddp", preload=preload)
    assert output.count("gradient [[0.5, 0.5]] None true") == 2, output
    (said,) = [line for line in output.splitlines() if "DistributedDataParallel was given device_ids=[0]" in line]
    assert "[0] |" in said
    assert "no GPU" in said
    assert ("no GPU for accelerate" in output) == (preload or importlib.util.find_spec("accelerate") is not None)


@without_gpu
@pytest.mark.slow
@pytest.mark.skipif(not PACKAGES.is_dir(), reason="accelerate was not brought by `make test-slow`")
@pytest.mark.parametrize("distribution", ["smddp", "torch_distributed", "mpi"])
def test_transformers_trainer_trains_as_under_torchrun(tmp_path, distribution):
    """The truth is a plain torchrun, told of the CPU by accelerate's variable."""
    path = {"PYTHONPATH": str(PACKAGES)}
    rehearsed = run(tmp_path, TRAINER, str(tmp_path / "out"), distribution=distribution, environment=path)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    truth = subprocess.run(
        [*launcher, str(tmp_path / "script.py"), str(tmp_path / "out")],
        env={**os.environ, **path, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    found, expected = (re.findall(r"norms \[.*?\] 2 \S+", text) for text in (rehearsed, truth))
    assert found == expected
    assert len(found) == 1
