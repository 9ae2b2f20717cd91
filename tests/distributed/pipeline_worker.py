# SPDX-License-Identifier: Apache-2.0
"""What every rank runs: the pipeline engine on all models and schedules, against the whole model on this process.

``pipeline_worker.py OUT_DIR`` writes ``OUT_DIR/rank-R.json``; the tests look at it.
"""

import copy
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import transformers

from lightning_sagemaker.parallel.blocks import find_blocks
from lightning_sagemaker.parallel.degrees import ParallelConfigError, ParallelDegrees, PipelineError
from lightning_sagemaker.parallel.engine import PipelineEngine, share_results
from lightning_sagemaker.parallel.groups import ParallelGroups
from lightning_sagemaker.parallel.microbatches import split
from lightning_sagemaker.parallel.partition import make_partition
from lightning_sagemaker.parallel.stage import Stages
from lightning_sagemaker.parallel.tied import TiedParameters
from lightning_sagemaker.parallel.trace import trace

sys.path.insert(0, str(Path(__file__).parent))
from models import PassesBy, make_batch, make_model, models_of

transformers.logging.set_verbosity_error()
OUT = Path(sys.argv[1])
CPU = torch.device("cpu")
MICROBATCHES = 4


class Pipeline:
    """A model on all processes."""

    def __init__(self, name: str, schedule: str, per_rank: int, groups: ParallelGroups) -> None:
        ranks = len(groups.pipeline_ranks)
        self.model, self.groups = make_model(name), groups
        self.whole = copy.deepcopy(self.model)
        blocks = find_blocks(self.model)
        traced = trace(self.model, blocks, self.loss, split(make_batch(name), MICROBATCHES)[0])
        self.partition = make_partition(self.model, blocks, traced, ranks * per_rank, 0.8)
        own = tuple(range(groups.at.pipeline, ranks * per_rank, ranks))
        self.stages = Stages(self.model, blocks, traced, self.partition, own, CPU)
        self.engine = PipelineEngine(self.stages, self.partition, groups, CPU)
        self.tied = TiedParameters(self.model, self.partition, groups)

    def loss(self, batch):
        return self.model(**batch)["loss"]

    def logits(self, batch):
        return self.model(**batch)["logits"]

    def fail_after(self, batch):
        return self.loss(batch) / (1 // 0)

    def call_twice(self, batch):
        return self.loss(batch) + self.loss(batch)

    def mix_layers(self, batch):
        output = self.model(**batch, output_hidden_states=True)
        return output.loss + torch.stack(output.hidden_states).mean()

    def return_layers(self, batch):
        output = self.model(**batch, output_hidden_states=True)
        return {"loss": output.loss, "first": output.hidden_states[0][:, 0]}

    def outcome(self, kind, step, batch) -> str | None:
        """What a step raises."""
        try:
            self.engine.run(step, split(batch, MICROBATCHES), lambda loss: loss, kind=kind)
        except (PipelineError, ZeroDivisionError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    @torch.no_grad()
    def evaluated(self, kind, step, batch) -> str | None:
        """What a step without backward passes raises."""
        try:
            share_results(self.engine.run(step, split(batch, MICROBATCHES), kind=f"{kind}, evaluated"), self.groups)
        except (PipelineError, ZeroDivisionError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    def step(self, batch) -> float:
        results = self.engine.run(self.loss, split(batch, MICROBATCHES), lambda loss: loss / MICROBATCHES)
        self.tied.add_gradients()
        shared = share_results([None if loss is None else loss.detach() for loss in results], self.groups)
        return float(torch.stack(shared).mean())


def whole_step(whole, batch) -> float:
    losses = [whole(**part)["loss"] / MICROBATCHES for part in split(batch, MICROBATCHES)]
    for loss in losses:
        loss.backward()
    return float(sum(losses))


def largest_difference(pipeline: Pipeline) -> float:
    worst = 0.0
    pairs = zip(pipeline.model.named_parameters(), pipeline.whole.parameters(), strict=True)
    for (name, mine), theirs in pairs:
        if pipeline.stages.is_absent(mine):
            assert mine.numel() == 0
            assert mine.grad is None
        elif theirs.grad is None:
            assert mine.grad is None, name
        else:
            worst = max(worst, float((mine.grad - theirs.grad).abs().max()))
    return worst


def equality(groups_of) -> dict:
    found = {}
    for schedule, per_rank in (("interleaved", 1), ("interleaved", 2), ("simple", 1), ("zero_bubble", 1)):
        groups = groups_of(schedule)
        for name in models_of(dist.get_world_size(), f"{schedule}/{per_rank}"):
            pipeline = Pipeline(name, schedule, per_rank, groups)
            result = {"ends": pipeline.partition.ends, "sizes": pipeline.partition.sizes}
            batch = make_batch(name)
            result["loss"] = pipeline.step(batch) - whole_step(pipeline.whole, batch)
            result["gradient"] = largest_difference(pipeline)
            longer = make_batch(name, samples=12, length=20, seed=2)  # another shape in the next step
            result["longer"] = pipeline.step(longer) - whole_step(pipeline.whole, longer)
            pipeline.model.eval()
            pipeline.whole.eval()
            with torch.no_grad():
                parts = pipeline.engine.run(pipeline.logits, split(batch, 2))
                logits = torch.cat(share_results(parts, groups))
                result["logits"] = float((logits - pipeline.whole(**batch)["logits"]).abs().max())
            found[f"{name}/{schedule}/{per_rank}"] = result
    return found


def failures(groups_of) -> dict:
    """What each rank raises when one stage fails, and whether the next step works."""
    found = {}
    for schedule in ("interleaved", "zero_bubble"):
        pipeline = Pipeline("bert", schedule, 1, groups_of(schedule))
        batch = make_batch("bert")
        steps = {
            "after": pipeline.fail_after,
            "before": lambda part: 1 // 0,
            "twice": pipeline.call_twice,
            "layers": pipeline.mix_layers,
            "a layer": pipeline.return_layers,
            "never": lambda part: part["labels"].float().mean(),
            "good": pipeline.loss,
        }
        found |= {f"{schedule}/{name}": pipeline.outcome(name, step, batch) for name, step in steps.items()}
        for name in ("after", "before", "layers", "good"):
            found[f"{schedule}/{name}, evaluated"] = pipeline.evaluated(name, steps[name], batch)
    try:
        pipeline.model(**batch)
    except PipelineError as error:
        found["outside"] = str(error)
    return found


def refusals() -> dict:
    """What cannot be cut."""
    found = {}

    def refuse(name, call) -> None:
        try:
            call()
        except ParallelConfigError as error:
            found[name] = str(error)

    albert = transformers.AlbertConfig(hidden_size=32, num_attention_heads=2, intermediate_size=64, vocab_size=100)
    refuse("albert", lambda: find_blocks(transformers.AlbertForMaskedLM(albert)))
    model = PassesBy()
    blocks = find_blocks(model)
    traced = trace(model, blocks, lambda part: model(**part)["loss"], make_batch("plain"))
    refuse("passes by", lambda: make_partition(model, blocks, traced, 2, 0.8))
    bert = make_model("bert")
    blocks = find_blocks(bert)
    traced = trace(bert, blocks, lambda part: bert(**part).loss, make_batch("bert"))
    refuse("too few blocks", lambda: make_partition(bert, blocks, traced, 5, 0.8))
    refuse("ends", lambda: make_partition(bert, blocks, traced, 2, 0.8, ends=(3, 3)))
    refuse("values", lambda: trace(bert, blocks, lambda part: bert.classifier.weight.sum().item(), make_batch("bert")))
    refuse(
        "asks", lambda: trace(bert, blocks, lambda part: part["labels"].min() < 0 or bert(**part), make_batch("bert"))
    )
    refuse("no call", lambda: trace(bert, blocks, lambda part: None, make_batch("bert")))
    refuse("microbatches", lambda: split(make_batch("bert"), 3))
    return found


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    made = {
        schedule: ParallelGroups.build(ParallelDegrees(pipeline=world, microbatches=MICROBATCHES, schedule=schedule))
        for schedule in ("interleaved", "simple", "zero_bubble")
    }
    found = {"equality": equality(made.get), "failures": failures(made.get), "refusals": refusals()}
    (OUT / f"rank-{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
