# SPDX-License-Identifier: Apache-2.0
"""A script in the style of those for version 2 of SageMaker's model parallel library: FSDP, and ``torch.sagemaker``.

``python -m lightning_sagemaker version2_worker.py OUT_DIR`` writes ``OUT_DIR/rank-R.json`` and a checkpoint after half of
the steps. ``LAYOUTS`` is JSON: name -> ``mp_parameters``; ``OTHER`` is a folder with another layout's checkpoint, to go
on from.
"""

import functools
import json
import os
import sys
import warnings
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
import torch.sagemaker as tsm
import transformers
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy, StateDictType
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.sagemaker.checkpoint.utils import SORT_BY_LAST_INT, limit_num_subdirs
from torch.sagemaker.delayed_param import DelayedParamIniter
from torch.sagemaker.distributed.checkpoint.state_dict_loader import load
from torch.sagemaker.distributed.checkpoint.state_dict_saver import async_save, maybe_finalize_async_calls
from torch.sagemaker.distributed.checkpoint.state_dict_utils import (
    SMStateDictType,
    init_optim_state,
    sm_state_dict_type,
)
from torch.sagemaker.distributed.fsdp import checkpoint as fsdp_checkpoint
from torch.sagemaker.grad_norm import clip_grad_norm_
from torch.sagemaker.tensor_parallel.transformer import TransformerLayer
from torch.sagemaker.utils.process_group_utils import get_global_ranks
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

sys.path.insert(0, str(Path(__file__).parent))
from place import BACKEND, DEVICE

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
OUT, OTHER = Path(sys.argv[1]), os.environ.get("OTHER")
CONFIG = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    attention_dropout=0.0,
)
STEPS, HALF = 8, 4


def tokens(step: int) -> torch.Tensor:
    return torch.randint(0, 64, (8, 12), generator=torch.Generator().manual_seed(step)).to(DEVICE)


def optimizer_of(model) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def by_name(model):
    """Gives a module's parameters and buffers values that are a function of their names, whatever seed a process has."""
    names = {id(module): name for name, module in model.named_modules()}

    @torch.no_grad()
    def init(module) -> None:
        if isinstance(module, LlamaRotaryEmbedding):
            own = LlamaRotaryEmbedding(CONFIG)
            for name, buffer in module.named_buffers(recurse=False):
                buffer.copy_(own.get_buffer(name))
        for name, parameter in module.named_parameters(recurse=False):
            seed = zlib.crc32(f"{names[id(module)]}.{name}".encode())
            drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
            parameter.copy_(1 + 0.1 * drawn if parameter.dim() == 1 else 0.1 * drawn)

    return init


def whole(delayed: bool = False) -> list[float]:
    """Without the library, in one process."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).to(DEVICE)
    if delayed:
        for module in model.modules():
            by_name(model)(module)
    optimizer, losses = optimizer_of(model), []
    for step in range(STEPS):
        loss = model(input_ids=tokens(step), labels=tokens(step)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    return losses


def wrapped():
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG)
    model = tsm.transform(model, load_state_dict_from_rank0=True)
    layer = TransformerLayer if tsm.state.tensor_parallel_degree > 1 else LlamaDecoderLayer
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={layer})
    return FSDP(
        model,
        auto_wrap_policy=policy,
        use_orig_params=True,
        sharding_strategy=sharding(),
        device_id=DEVICE,
    )


def sharding() -> ShardingStrategy:
    native = tsm.state.hybrid_shard_degree == 0 and tsm.state.tensor_parallel_degree == 1
    return ShardingStrategy.FULL_SHARD if native else ShardingStrategy.HYBRID_SHARD


def delayed() -> list[float]:
    """Built on the meta device, shared, and filled by FSDP layer by layer; processes have seeds of their own."""
    with torch.device("meta"):
        model = LlamaForCausalLM(CONFIG)
    model = tsm.transform(model)
    initer = DelayedParamIniter(model, by_name(model))
    layer = TransformerLayer if tsm.state.tensor_parallel_degree > 1 else LlamaDecoderLayer
    torch.manual_seed(dist.get_rank())
    with initer.validate_params_and_buffers_inited():
        model = FSDP(
            model,
            auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={layer}),
            use_orig_params=True,
            sharding_strategy=sharding(),
            device_id=DEVICE,
            param_init_fn=initer.get_param_init_fn(),
            post_param_init_fn=initer.get_post_param_init_fn(),
        )
    return steps(model, optimizer_of(model), range(HALF))


def equal_when_drawn() -> float:
    """How much what is drawn for the embedding and for the first shared matrix differs among processes that share it."""
    with torch.device("meta"):
        model = tsm.transform(LlamaForCausalLM(CONFIG))
    torch.manual_seed(dist.get_rank())
    fill = DelayedParamIniter(model).get_param_init_fn()
    fill(model)
    shared = model.model.layers[0].self_attn.q_proj.weight
    found = [model.model.embed_tokens.weight.detach().sum(), shared.full_tensor().detach().sum()]
    first = [value.clone() for value in found]
    for value in first:
        group = tsm.state.tp_process_group
        dist.broadcast(value, dist.get_global_rank(group, 0), group)
    halves = shared.full_tensor().detach().chunk(2)
    assert not torch.equal(*halves)
    return float(sum(abs(one - other) for one, other in zip(found, first, strict=True)))


def steps(model, optimizer, numbers) -> list[float]:
    size = dist.get_world_size() // tsm.state.tensor_parallel_degree
    losses = []
    for step in numbers:
        mine = tokens(step).chunk(size)[dist.get_rank() // tsm.state.tensor_parallel_degree]
        loss = model(input_ids=mine, labels=mine).loss
        loss.backward()
        clip_grad_norm_(model, 0.5)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(float(total) / dist.get_world_size())
    return losses


def content_of(model, optimizer) -> dict:
    with sm_state_dict_type(model, SMStateDictType.SM_LOCAL_STATE_DICT):
        return {"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}


def go_on(folder: Path) -> list[float]:
    model = wrapped()
    optimizer = optimizer_of(model)
    init_optim_state(optimizer)
    content = content_of(model, optimizer)
    load(content, checkpoint_id=str(folder))
    with sm_state_dict_type(model, SMStateDictType.SM_LOCAL_STATE_DICT):
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, content["optimizer"]))
    return steps(model, optimizer, range(HALF, STEPS))


def scheduler_of(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=1.0)


def save_by_module(model, optimizer, folder: Path) -> None:
    """As scripts for releases before 2.7 do."""
    scheduler = scheduler_of(optimizer)
    for _ in range(HALF):
        scheduler.step()
    fsdp_checkpoint.save_model_checkpoint(
        model,
        StateDictType.SHARDED_STATE_DICT,
        str(folder),
        sharding(),
        (model.process_group, 0, True),
        log=dist.get_rank() == 0,
        optimizer=optimizer,
        scheduler=scheduler,
        extra_exports={"total_steps": HALF, "resume_from": 7},
    )


def go_on_by_module(folder: Path) -> dict:
    model = wrapped()
    optimizer = optimizer_of(model)
    loaded = fsdp_checkpoint.load_model_checkpoint(
        model,
        StateDictType.SHARDED_STATE_DICT,
        str(folder),
        sharding(),
        (model.process_group, 0, True),
        log=dist.get_rank() == 0,
        optimizer=optimizer,
        scheduler=scheduler_of(optimizer),
        extra_imports={"total_steps": 0, "resume_from": 0},
    )
    model, optimizer = loaded[fsdp_checkpoint.EXPORT_KEY_MODEL], loaded[fsdp_checkpoint.EXPORT_KEY_OPTIMIZER]
    return {
        "scheduler": loaded[fsdp_checkpoint.EXPORT_KEY_SCHEDULER].last_epoch,
        "own": loaded[fsdp_checkpoint.EXPORT_KEY_IDENTITY],
        "losses": steps(model, optimizer, range(HALF, STEPS)),
    }


def from_meta() -> dict:
    """Filled by FSDP, layer by layer; and with an initialization that forgets something."""
    with torch.device("meta"):
        model, other = LlamaForCausalLM(CONFIG), LlamaForCausalLM(CONFIG)
    found = {}
    for name, initer in (("good", DelayedParamIniter(model)), ("bad", DelayedParamIniter(other, lambda module: None))):
        error = None
        try:
            with initer.validate_params_and_buffers_inited():
                FSDP(
                    initer._model,
                    param_init_fn=initer.get_param_init_fn(),
                    post_param_init_fn=initer.get_post_param_init_fn(),
                    device_id=DEVICE,
                )
        except RuntimeError as caught:
            error = str(caught)
        found[name] = error
    found["count"] = initer.count_num_params() > 0
    return found


def layout(name: str, parameters: dict) -> dict:
    tsm.state.reset()
    os.environ["SM_HP_MP_PARAMETERS"] = json.dumps(parameters)
    tsm.init()
    model = wrapped()
    optimizer = optimizer_of(model)
    losses = steps(model, optimizer, range(HALF))
    folder = OUT / f"{name}-{HALF}"
    async_save(content_of(model, optimizer), checkpoint_id=str(folder), s3_region="none")
    save_by_module(model, optimizer, OUT / "by module" / name)
    losses += steps(model, optimizer, range(HALF, STEPS))  # beside the writing
    maybe_finalize_async_calls(blocking=True)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        names = list(model.state_dict())
    return {
        "losses": losses,
        "own": sum(parameter.numel() for parameter in model.parameters()),
        "units": sum(isinstance(module, FSDP) for module in model.modules()),
        "names": sorted(names),
        "rest": go_on(folder),
        "rest of other": go_on(Path(OTHER)) if OTHER else None,
        "by module": go_on_by_module(OUT / "by module" / name),
        "state": [tsm.state.tp_size, tsm.state.tp_rank, get_global_ranks(tsm.state.tp_process_group)],
        "copies": tsm.state.ranker.get_rep_groups(),
        "delayed": delayed(),
        "drawn": equal_when_drawn() if tsm.state.tensor_parallel_degree > 1 else 0.0,
        "meta": from_meta() if tsm.state.tensor_parallel_degree == 1 else None,
    }


def refusals() -> dict:
    found = {}
    for name, parameters in (
        ("context", {"context_parallel_degree": 2}),
        ("degree", {"hybrid_shard_degree": 3}),
        ("pipeline", {"partitions": 2}),
        ("unsharded", {"tensor_parallel_degree": 2, "hybrid_shard_degree": 1}),
    ):
        tsm.state.reset()
        try:
            os.environ["SM_HP_MP_PARAMETERS"] = "{}"
            tsm.init(parameters)
            FSDP(torch.nn.Linear(2, 2), device_id=DEVICE)
            found[name] = None
        except ValueError as error:
            found[name] = str(error)
    return found


def main() -> None:
    if "LAYOUTS" not in os.environ:
        (OUT / "rank-0.json").write_text(json.dumps({"losses": whole(), "delayed": whole(delayed=True)[:HALF]}))
        return
    dist.init_process_group(BACKEND)
    found = {name: layout(name, parameters) for name, parameters in json.loads(os.environ["LAYOUTS"]).items()}
    dist.barrier()
    found["by module"] = go_on_by_module(OUT / "by module" / next(iter(found)))  # with the last layout
    found["refusals"] = refusals()
    if dist.get_rank() == 0:
        limit_num_subdirs(OUT, 1, regex=r".*-\d", sort_fn=SORT_BY_LAST_INT, log=False)
        found["left"] = len([place for place in OUT.iterdir() if place.is_dir() and place.name != "by module"])
    (OUT / f"rank-{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()


if __name__ == "__main__":
    main()
