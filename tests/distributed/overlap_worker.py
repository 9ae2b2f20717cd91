# SPDX-License-Identifier: Apache-2.0
"""What every rank runs: gradients of replicas averaged during the backward passes, against after them.

``overlap_worker.py OUT_DIR`` writes ``OUT_DIR/rank-R.json``; two stages, and as many replicas as there are pairs of ranks.
"""

import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from lightning.pytorch import Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import lightning_sagemaker  # noqa: F401 - registers the strategies
from lightning_sagemaker.parallel.degrees import ParallelDegrees, PipelineError
from lightning_sagemaker.parallel.groups import ParallelGroups
from lightning_sagemaker.parallel.microbatches import split
from lightning_sagemaker.parallel.model import PipelinedModel
from lightning_sagemaker.strategies.model_parallel import SMPStrategy

sys.path.insert(0, str(Path(__file__).parent))
from lightning_model import Losses, Model, samples
from models import Blocks, make_batch, make_model
from place import BACKEND, DEVICE, PLACE

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
OUT = Path(sys.argv[1])
MICROBATCHES = 4
SCHEDULES = (("interleaved", 1), ("interleaved", 2), ("simple", 1), ("zero_bubble", 1))


class Optional(Blocks):
    """Some parameters take part in some steps, on some replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.never, self.one_replica, self.later = (nn.Linear(32, 32) for _ in range(3))
        self.uses = ()

    def forward(self, input_ids, attention_mask, labels):
        hidden = self.blocks(self.embedding(input_ids))
        for name in self.uses:
            hidden = getattr(self, name)(hidden)
        logits = self.head((hidden * attention_mask[..., None]).mean(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Replicated:
    """A model on all processes, whose gradients are reduced in one of the two ways."""

    def __init__(self, make, batch, groups: ParallelGroups, per_rank: int, overlaps: bool) -> None:
        torch.manual_seed(0)
        self.model, self.overlaps, self.groups = make(), overlaps, groups
        first = split(batch, MICROBATCHES)[0]
        self.pipeline = PipelinedModel(self.model, groups, DEVICE, self.loss, first, stages_per_rank=per_rank)

    def loss(self, batch):
        return self.model(**batch)["loss"]

    def fail_last(self, batch):
        return self.loss(batch) / (1 // 0)

    def step(self, batch, kept: bool = False, step=None) -> None:
        """Gradients of the batch, added to those that there are if ``kept``."""
        pipeline, before = self.pipeline, [one.grad if kept else None for one in self.pipeline.parameters]
        for parameter in pipeline.parameters:
            parameter.grad = None
        reduction = pipeline.reduction if self.overlaps else None
        if reduction is not None:
            reduction.begin(before)
        parts = split(batch, MICROBATCHES)
        pipeline.engine.run(step or self.loss, parts, lambda loss: loss / MICROBATCHES, reduction)
        if reduction is not None:
            reduction.finish()
            return
        for parameter, gradient in zip(pipeline.parameters, before, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)
        pipeline.reduce_gradients()

    def local_step(self, batch) -> None:
        """Gradients that are not reduced, as of a batch that is accumulated."""
        for parameter in self.pipeline.parameters:
            parameter.grad = None
        self.pipeline.engine.run(self.loss, split(batch, MICROBATCHES), lambda loss: loss / MICROBATCHES)


def differences(one: Replicated, other: Replicated) -> dict:
    """Largest difference of gradients, and parameters that have one on one side only."""
    worst, missing, size = 0.0, [], 0
    for (name, mine), theirs in zip(one.model.named_parameters(), other.model.parameters(), strict=True):
        if (mine.grad is None) != (theirs.grad is None):
            missing.append(name)
        elif mine.grad is not None:
            worst, size = max(worst, float((mine.grad - theirs.grad).abs().max())), size + mine.grad.numel()
    return {"worst": worst, "missing": missing, "size": size}


class Watched:
    """Counts the all-reduces of replicas that begin during the passes of the engine."""

    def __init__(self, groups: ParallelGroups) -> None:
        self._group, self._reduce, self.asynchronous = groups.groups["RDP"], dist.all_reduce, 0

    def __call__(self, tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        self.asynchronous += async_op and group is self._group
        return self._reduce(tensor, op, group, async_op)


def equality(groups_of) -> dict:
    found = {}
    for schedule, per_rank in SCHEDULES:
        groups = groups_of[schedule]
        for name in ("bert-mlm", "plain", "gpt2") if per_rank == 2 else ("bert-mlm",):
            batch = make_batch(name, seed=groups.at.replica)
            pair = [
                Replicated(lambda name=name: make_model(name), batch, groups, per_rank, how) for how in (True, False)
            ]
            watched = dist.all_reduce = Watched(groups)
            for one in pair:
                one.step(batch)
            dist.all_reduce = watched._reduce
            result = {"first": differences(*pair), "asynchronous": watched.asynchronous}
            other = make_batch(name, seed=10 + groups.at.replica)
            for one in pair:  # two batches, of which the second is reduced with the first
                one.local_step(batch)
                one.step(other, kept=True)
            result["accumulated"] = differences(*pair)
            found[f"{name}/{schedule}/{per_rank}"] = result
    return found


def optional(groups) -> dict:
    """Parameters that are unused on some replicas, used later, frozen for a while."""
    batch = make_batch("plain", seed=groups.at.replica)
    pair = [Replicated(Optional, batch, groups, 1, how) for how in (True, False)]
    found = {}
    uses = {
        "none": (),
        "one replica": ("one_replica",) if groups.at.replica == 0 else (),
        "later": ("later",),
        "all": ("never", "one_replica", "later"),
        "none again": (),
    }
    for name, used in uses.items():
        for one in pair:
            one.model.uses = used
            one.step(batch)
        found[name] = differences(*pair)
        found[name]["with"] = [key for key, value in pair[0].model.named_parameters() if value.grad is not None]
    for frozen in (True, False):
        for one in pair:
            one.model.blocks[0].requires_grad_(not frozen)
            one.model.blocks[4].requires_grad_(not frozen)
            one.step(batch)
        found[f"frozen {frozen}"] = differences(*pair)
    return found


def failure(groups) -> dict:
    """A step that fails on all replicas, and the next one."""
    batch = make_batch("plain", seed=groups.at.replica)
    pair = [Replicated(lambda: make_model("plain"), batch, groups, 1, how) for how in (True, False)]
    try:
        pair[0].step(batch, step=pair[0].fail_last)
        raised = None
    except (PipelineError, ZeroDivisionError) as error:
        raised = type(error).__name__
    for one in pair:
        one.step(batch)
    return {"raised": raised, **differences(*pair)}


def trained(overlaps: bool, precision: str) -> dict:
    """Weights after accumulated, clipped steps under the Trainer."""
    seed_everything(0, verbose=False)
    strategy = SMPStrategy(parameters={"partitions": 2, "microbatches": 2, "ddp": True}, overlap_reduction=overlaps)
    losses = Losses()
    trainer = Trainer(
        strategy=strategy,
        **PLACE,
        max_steps=6,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        precision=precision,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[losses],
        default_root_dir=OUT,
    )
    data = samples("bert-mlm")
    module = Model("bert-mlm")
    place = DistributedSampler(data, **strategy.distributed_sampler_kwargs, shuffle=False)
    trainer.fit(module, DataLoader(data, 4, sampler=place))
    weights = {key: value.double().flatten().tolist()[:8] for key, value in module.state_dict().items()}
    return {"losses": losses.values, "weights": weights}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group(BACKEND)
    degrees = {
        name: ParallelDegrees(pipeline=2, microbatches=MICROBATCHES, schedule=name, ddp=True) for name, _ in SCHEDULES
    }
    groups = {name: ParallelGroups.build(one) for name, one in degrees.items()}
    found = {
        "equality": equality(groups),
        "optional": optional(groups["interleaved"]),
        "failure": failure(groups["interleaved"]),
        "trainer": [
            [trained(overlaps, precision) for overlaps in (True, False)] for precision in ("32-true", "16-mixed")
        ],
    }
    (OUT / f"rank-{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
