# SPDX-License-Identifier: Apache-2.0
r"""Replicas of a pipeline: how much of the reduction of their gradients the backward passes hide.

    lightning-sagemaker local --hosts 2 --processes-per-host 2 --distribution torch_distributed --network netns:500mbit \
        -- python benchmarks/pipeline_replicas.py   # as root; each host has a replica of two stages

Three ways in turn, in one run: gradients are not reduced, reduced after the backward passes, and during them. The hidden
share is what the third saves of what the second costs more than the first.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import transformers

from lightning_sagemaker.parallel.degrees import ParallelDegrees
from lightning_sagemaker.parallel.groups import ParallelGroups
from lightning_sagemaker.parallel.microbatches import split
from lightning_sagemaker.parallel.model import PipelinedModel
from lightning_sagemaker.recipes._common.modules.speed import tune_allocator

WAYS = ("not reduced", "after", "during")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedule", default="interleaved", choices=("interleaved", "simple", "zero_bubble"))
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tune_allocator()
    dist.init_process_group("gloo")
    degrees = ParallelDegrees(
        pipeline=2,
        microbatches=args.microbatches,
        schedule=args.schedule,
        optimize="speed",
        memory_weight=0.0,
        ddp=True,
    )
    groups = ParallelGroups.build(degrees)
    config = transformers.BertConfig(
        vocab_size=1000,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // 64,
        intermediate_size=4 * args.hidden,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config)
    batch = {"input_ids": torch.randint(0, 1000, (args.batch, 128)), "labels": torch.randint(0, 2, (args.batch,))}
    parts = split(batch, args.microbatches)

    def step(part: dict[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = model(**part).loss
        return loss

    def train(way: str) -> None:
        for parameter in pipeline.parameters:
            parameter.grad = None
        reduction = pipeline.reduction if way == "during" else None
        if reduction is not None:
            reduction.begin()
        pipeline.engine.run(step, parts, lambda loss: loss / args.microbatches, reduction)
        if reduction is not None:
            reduction.finish()
        elif way == "after":
            pipeline.reduce_gradients()

    pipeline = PipelinedModel(model, groups, torch.device("cpu"), step, parts[0])
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(args.rounds + 1):
        for way, found in times.items():
            dist.barrier()
            begin = time.perf_counter()
            train(way)
            dist.barrier()
            if number:
                found.append(time.perf_counter() - begin)
    sizes: list[int | None] = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, sum(parameter.nbytes for parameter in pipeline.parameters))
    if dist.get_rank() == 0:
        alone, after, during = (statistics.median(times[way]) for way in WAYS)
        listed = ", ".join(f"{(one or 0) / 2**20:.0f}" for one in sizes)
        print(f"{args.schedule}, {args.microbatches} microbatches, MiB a rank: {listed}")
        for way, found in times.items():
            print(f"  {way:<12} {statistics.median(found):.3f} s ({min(found):.3f} to {max(found):.3f})")
        print(f"  hidden: {(after - during) / (after - alone):.0%} of {after - alone:.3f} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
