# SPDX-License-Identifier: Apache-2.0
"""What each of two ranks runs: the gradients of small models under tensor parallelism, relative to those of one process.

``gradients_worker.py OUT`` writes ``OUT/rank-R.json``: engine and model -> error of the loss, the largest of the
gradients' errors, the parameter's name, and the share of all parameters' elements that this process has.
"""

import copy
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from lightning_sagemaker.parallel.plans import tensor_plan
from lightning_sagemaker.parallel.sharding import apply_tensor_parallel
from lightning_sagemaker.parallel.tensor import TensorParallelLinears

GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50}
SEQ2SEQ = {"d_model": 32, "vocab_size": 50, "pad_token_id": 1, "decoder_start_token_id": 2}
BART = {**SEQ2SEQ, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
BART |= {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
T5 = {**SEQ2SEQ, "num_layers": 2, "num_heads": 4, "d_kv": 4, "d_ff": 48, "dropout_rate": 0.0}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
OPT = {**SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32, "vocab_size": 50, "max_position_embeddings": 32}
GPT_NEO = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "vocab_size": 50}
GPT_NEO |= {"attention_types": [[["global", "local"], 1]]}
DECODER = {**SIZES, "vocab_size": 50, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
KINDS = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "openai-gpt": ("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", GPT2),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", {**GPT2, "rotary_dim": 4}),
    "gpt_neo": ("GPTNeoForCausalLM", "GPTNeoConfig", GPT_NEO),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**SIZES, "vocab_size": 50}),
    "opt": ("OPTForCausalLM", "OPTConfig", OPT),
    "bart": ("BartForConditionalGeneration", "BartConfig", BART),
    "t5": ("T5ForConditionalGeneration", "T5Config", {**T5, "feed_forward_proj": "gated-gelu"}),
    "vit": ("ViTForImageClassification", "ViTConfig", {**SIZES, "image_size": 16, "patch_size": 8}),
    "apertus": ("ApertusForCausalLM", "ApertusConfig", DECODER),
    "granite_swa": ("GraniteSwaForCausalLM", "GraniteSwaConfig", DECODER),
}
"""The families that AWS's library shards, beside BERT; and what only some have: parameters of an activation or a head."""


def build(kind: str) -> nn.Module:
    model_class, config_class, sizes = KINDS[kind]
    config = getattr(transformers, config_class)(**sizes)
    for name, value in vars(config).items():
        if isinstance(value, float) and ("drop" in name):
            setattr(config, name, 0.0)
    torch.manual_seed(0)
    model: nn.Module = getattr(transformers, model_class)(config)
    with torch.no_grad():
        for parameter in model.parameters():  # zeros and ones would hide errors
            parameter.add_(0.05 * torch.randn(parameter.shape))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model.double()


def batch(kind: str) -> dict[str, Tensor]:
    torch.manual_seed(1)
    if kind == "vit":
        return {"pixel_values": torch.randn(4, 3, 16, 16, dtype=torch.double), "labels": torch.tensor([0, 1, 1, 0])}
    ids = torch.randint(5, 50, (4, 12))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def run(model: nn.Module, kind: str) -> float:
    loss = model(**batch(kind)).loss
    loss.backward()
    return float(loss.detach())


def compare(loss: float, alone: nn.Module, one: nn.Module, found: float, gradient_of, size_of) -> list:
    """The largest error relative to a gradient; one that is zero in exact arithmetic, to a millionth of all of them."""
    others = dict(one.named_parameters())
    pairs = {name: (whole.grad, gradient_of(others[name])) for name, whole in alone.named_parameters()}
    floor = 1e-6 * float(torch.stack([whole.norm() for whole, _ in pairs.values()]).norm())
    errors = {
        name: float((whole - grad).norm()) / max(float(whole.norm()), floor) for name, (whole, grad) in pairs.items()
    }
    worst = max(errors, key=errors.__getitem__)
    share = sum(map(size_of, others.values())) / sum(one.numel() for one in alone.parameters())
    return [abs(loss - found) / abs(loss), errors[worst], worst, share]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, mesh = dist.get_rank(), DeviceMesh("cpu", [0, 1], mesh_dim_names=("tp",))
    groups = SimpleNamespace(
        at=SimpleNamespace(tensor=rank),
        degrees=SimpleNamespace(tensor=2),
        groups={"TP": mesh.get_group()},
        cpu_groups={"TP": mesh.get_group()},
    )
    stages = SimpleNamespace(is_absent=lambda _: False, compute_by=lambda *_: False)
    found = {}
    for kind, (name, _, _) in KINDS.items():
        if not hasattr(transformers, name):
            continue
        model = build(kind)
        alone, plain = copy.deepcopy(model), copy.deepcopy(model)
        loss = run(alone, kind)
        apply_tensor_parallel(model, mesh)

        def full(parameter: Tensor) -> Tensor:
            return parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad

        def own(parameter: Tensor) -> int:
            return (parameter.to_local() if isinstance(parameter, DTensor) else parameter).numel()

        found[f"DTensor {kind}"] = compare(loss, alone, model, run(model, kind), full, own)
        linears = TensorParallelLinears(plain, tensor_plan(plain, 2), groups, stages)
        sharded = run(plain, kind)
        whole = {id(one): linears.full_tensor(one, one.grad) for one in plain.parameters()}
        found[f"plain {kind}"] = compare(loss, alone, plain, sharded, lambda one, of=whole: of[id(one)], Tensor.numel)
    (Path(sys.argv[1]) / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
