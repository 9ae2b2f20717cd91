# SPDX-License-Identifier: Apache-2.0
"""A pipeline against its ideal: time lost to the bubble and to messages, and bytes of each rank.

    torchrun --nproc-per-node 2 benchmarks/pipeline.py
    torchrun --nproc-per-node 2 benchmarks/pipeline.py --schedule zero_bubble --microbatches 4

Each rank first trains the whole model by itself, all at the same time, so that they share the machine as the stages do; then
they train it together, in turn with the former. Of P ranks and M microbatches, a pipeline can at best be
P * (1 - bubble) times as fast as one rank, with bubble = (P - 1) / (M + P - 1) for ``interleaved`` and ``simple``.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import transformers

from lightning_sagemaker.parallel.degrees import ParallelDegrees
from lightning_sagemaker.parallel.groups import ParallelGroups
from lightning_sagemaker.parallel.microbatches import split
from lightning_sagemaker.parallel.model import PipelinedModel
from lightning_sagemaker.recipes._common.modules.speed import tune_allocator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedule", default="interleaved", choices=("interleaved", "simple", "zero_bubble"))
    parser.add_argument("--stages-per-rank", type=int, default=1)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tune_allocator()
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    degrees = ParallelDegrees(
        pipeline=ranks, microbatches=args.microbatches, schedule=args.schedule, optimize="speed", memory_weight=0.0
    )
    groups = ParallelGroups.build(degrees)
    config = transformers.BertConfig(
        vocab_size=1000,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=8,
        intermediate_size=4 * args.hidden,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config)
    whole = copy.deepcopy(model)
    batch = {"input_ids": torch.randint(0, 1000, (args.batch, 128)), "labels": torch.randint(0, 2, (args.batch,))}
    parts = split(batch, args.microbatches)
    size = sum(parameter.numel() for parameter in whole.parameters())

    def step(part: Any) -> Any:
        return model(**part).loss

    def train_whole() -> None:
        for part in parts:
            (whole(**part).loss / args.microbatches).backward()

    def train_pipeline() -> None:
        pipeline.engine.run(step, parts, lambda loss: loss / args.microbatches)

    pipeline = PipelinedModel(model, groups, torch.device("cpu"), step, parts[0], stages_per_rank=args.stages_per_rank)
    times: dict[Callable[[], None], list[float]] = {train_whole: [], train_pipeline: []}
    for round_number in range(args.rounds + 1):
        for train, found in times.items():
            dist.barrier()
            begin = time.perf_counter()
            train()
            dist.barrier()
            if round_number:
                found.append(time.perf_counter() - begin)
    plan = pipeline.engine.plan(args.schedule, args.microbatches)
    sizes: list[Any] = [None] * ranks
    dist.all_gather_object(sizes, sum(parameter.nbytes for parameter in pipeline.parameters))
    if dist.get_rank() == 0:
        alone, together = (statistics.median(found) for found in times.values())
        formula = (ranks - 1) / (args.microbatches + ranks - 1)
        measured = 1 - alone / (ranks * together)
        ideal = alone / (ranks * (1 - plan.bubble))
        print(f"{ranks} ranks, {args.microbatches} microbatches, {args.schedule}, {size / 1e6:.1f} M parameters")
        print(
            f"  whole model on each rank {alone:.3f} s, pipeline {together:.3f} s: {alone / together:.2f} times as fast"
        )
        print(f"  bubble: formula {formula:.3f}, schedule {plan.bubble:.3f}, measured with all else {measured:.3f}")
        print(f"  share of the ideal throughput: {ideal / together:.3f}")
        print(
            f"  parameters: {size * 4 / 2**20:.0f} MiB whole, {', '.join(f'{one / 2**20:.0f}' for one in sizes)} MiB a rank"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
