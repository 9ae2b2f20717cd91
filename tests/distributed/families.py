# SPDX-License-Identifier: Apache-2.0
"""Every family of language models that transformers has, small, in each way of model parallelism; one process decides.

``python -m tests.distributed.families [--ways pipeline tensor sharded] [TYPE ...]`` prints, for each, whether losses, metric
and weights after three steps equal those of one process, and fails if any differs or hangs. An error is an answer.
``families.py OUT TYPE TASK WAY`` is what each rank runs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers.models.auto import modeling_auto

import lightning_sagemaker  # noqa: F401 - registers the strategies
from lightning_sagemaker.strategies.model_parallel import SMPStrategy
from lightning_sagemaker.strategies.sharded import SMPShardedStrategy

WAYS = {
    "pipeline": lambda: SMPStrategy(parameters={"partitions": 2, "microbatches": 2, "ddp": True}),
    "tensor": lambda: SMPShardedStrategy(parameters={"tensor_parallel_degree": 2, "ddp": True}),
    "sharded": lambda: SMPShardedStrategy(parameters={"sharded_data_parallel_degree": 2, "ddp": True}),
}
TASKS = {
    "sequences": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "pairs": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "answers": modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
}
DIFFER = {
    "ibert": "it keeps the range of the activations that it has seen",
}
"""Model type -> why parts of a batch are not the batch: it is only seen to run."""
SIZES = {
    32: "hidden_size d_model n_embd dim emb_dim embed_dim encoder_hidden_size pooler_hidden_size embedding_size",
    4096: "expert_capacity",
    4: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers num_local_experts"
    " num_experts n_routed_experts",
    2: "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads num_key_value_heads"
    " num_experts_per_tok top_k moe_topk eos_token_id",
    64: "intermediate_size d_ff ffn_dim encoder_ffn_dim decoder_ffn_dim n_inner hidden_dim d_inner moe_intermediate_size"
    " max_position_embeddings n_positions n_ctx max_seq_len",
    100: "vocab_size",
    16: "d_kv d_head",
    8: "rotary_dim",
    1: "n_group topk_group",
}
LENGTH, BATCH, STEPS = 16, 8, 3
TOLERANCE = 0.01
"""Largest error of a parameter's change in float32; what is summed over half of the ranks is wrong by 0.5."""


def shrink(config) -> None:
    """Give a configuration, and those in it, small sizes, no dropout or noise, and experts for all tokens of a batch."""
    for size, names in SIZES.items():
        for name in names.split():
            if type(getattr(config, name, None)) is int:
                setattr(config, name, size)
    for name, value in dict(vars(config)).items():
        if isinstance(value, float) and ("drop" in name or "jitter" in name):
            setattr(config, name, 0.0)
        elif isinstance(value, transformers.PretrainedConfig):
            shrink(value)
        elif name.endswith("_token_id") and type(value) is int and value >= 100:
            setattr(config, name, 0)
        elif name == "layer_types" and isinstance(value, list):
            config.layer_types = value[:4]
    config.use_cache = False
    for name in ("pad_token_id", "decoder_start_token_id"):
        if getattr(config, name, None) is None:
            setattr(config, name, 0)


class Model(LightningModule):
    def __init__(self, kind: str, task: str) -> None:
        super().__init__()
        config = transformers.CONFIG_MAPPING[kind]()
        shrink(config)
        name = TASKS[task][kind]
        seed_everything(0, verbose=False)
        self.model = getattr(transformers, name if isinstance(name, str) else name[0])(config)
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        self.losses: list[float] = []

    def training_step(self, batch, _):
        return self.model(**batch).loss

    def on_train_batch_end(self, outputs, *_):
        self.losses.append(float(outputs["loss"]))

    def validation_step(self, batch, _):
        self.log("val_loss", self.model(**batch).loss)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def samples(task: str) -> list[dict[str, Tensor]]:
    random = torch.Generator().manual_seed(3)
    rows = []
    for number in range(BATCH * STEPS):
        ids = torch.randint(5, 95, (LENGTH,), generator=random)
        ids[-1] = 2  # the end of a sequence
        row = {"input_ids": ids, "attention_mask": torch.ones(LENGTH, dtype=torch.long)}
        labels = torch.tensor(number % 2) if task == "sequences" else ids.clone()
        places = {"start_positions": torch.tensor(number % 8), "end_positions": torch.tensor(number % 8 + 2)}
        rows.append(row | (places if task == "answers" else {"labels": labels}))
    return rows


def run(out: Path, kind: str, task: str, way: str) -> None:
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    module, rows, batch = Model(kind, task), samples(task), BATCH
    if way == "sharded":  # each rank has a half of each batch
        batch = BATCH // world
        rows = [row for number, row in enumerate(rows) if number % BATCH // batch == rank]
    trainer = Trainer(
        strategy=WAYS[way]() if world > 1 else "auto",
        accelerator="cpu",
        devices=world,
        max_steps=STEPS,
        gradient_clip_val=0.5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        default_root_dir=out,
    )
    trainer.fit(module, DataLoader(rows, batch), DataLoader(rows[:batch], batch))
    state = trainer.strategy.lightning_module_state_dict() if world > 1 else module.state_dict()
    if rank == 0:
        numbers = [*module.losses, float(trainer.callback_metrics["val_loss"])]
        first = Model(kind, task).state_dict() if world == 1 else {}
        torch.save((numbers, state, first), out / "found.pt")


def launched(kind: str, task: str, way: str, processes: int) -> tuple[str, object]:
    """What came of a run: ``ran``, ``hung`` or ``refused``, and its results or the last line of what it printed."""
    from tests.forked import run_forked

    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile("r") as output:
        command = [__file__, folder, kind, task, way]
        code = run_forked(command, processes, {**os.environ, "OMP_NUM_THREADS": "1"}, Path(output.name), 120)
        if code == 0:
            return "ran", torch.load(Path(folder) / "found.pt")
        errors = [line.rpartition("] ")[2] for line in output.read().splitlines() if "Error: " in line]
        return ("hung" if code is None else "refused"), errors[0] if errors else ""


def verdict(kind: str, way: str, alone: tuple, found: tuple) -> str:
    """Compare relative to what training changes: three steps move weights by less than a wrong gradient would be noticed."""
    (expected, weights, first), (numbers, others, _) = alone, found
    is_noisy = kind in DIFFER and way != "tensor"
    compared = [] if is_noisy or way == "sharded" else list(zip(expected, numbers, strict=True))
    furthest = max((abs(one - other) for one, other in compared), default=0.0)
    if weights.keys() != others.keys() or len(expected) != len(numbers):
        return "differs: other names or steps"
    changes = {name: float((weights[name].double() - first[name].double()).norm()) for name in weights}
    total = sum(change**2 for change in changes.values()) ** 0.5
    errors = {  # a gradient that is zero in exact arithmetic, as that of the keys' bias, has no other measure than all
        name: float((weights[name].double() - others[name].double()).norm()) / max(change, 1e-4 * total, 1e-12)
        for name, change in changes.items()
    }
    worst = max(errors, key=errors.__getitem__)
    if furthest > 2e-4 or (errors[worst] > TOLERANCE and not is_noisy):
        return f"differs: losses by {furthest:.1e}, {worst} by {errors[worst]:.1e} of its change"
    return f"not compared: {DIFFER[kind]}" if is_noisy else "equal"


def chosen(kinds: list[str]) -> Iterator[tuple[str, str]]:
    """Each model type, and the first of the tasks that it has a class for."""
    seen = set()
    for task, types in TASKS.items():
        for kind in types:
            if kind not in seen and (not kinds or kind in kinds):
                seen.add(kind)
                yield kind, task


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    for kind, task in chosen(arguments.types):
        outcome, alone = launched(kind, task, "pipeline", 0)
        if outcome != "ran":
            counts["not small enough, or not of text alone"] += 1
            continue
        for way in arguments.ways:
            outcome, found = launched(kind, task, way, 2)
            answer = verdict(kind, way, alone, found) if outcome == "ran" else f"{outcome}: {found}"
            counts[f"{way} {answer.partition(':')[0].partition(',')[0]}"] += 1
            print(f"{kind} ({task}), {way}: {answer[:200]}", flush=True)
    print(", ".join(f"{number} {name}" for name, number in sorted(counts.items())))
    return int(any(name.endswith(("differs", "hung")) for name in counts))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    if len(sys.argv) == 5 and Path(sys.argv[1]).is_dir():
        run(Path(sys.argv[1]), *sys.argv[2:])
    else:
        sys.exit(main())
