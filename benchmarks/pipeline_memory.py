# SPDX-License-Identifier: Apache-2.0
"""Memory of each rank against the number of stages, in fresh processes.

    python benchmarks/pipeline_memory.py
    python benchmarks/pipeline_memory.py --tensor 2

For 1, 2 and 4 processes: bytes of parameters, gradients and AdamW's states of each rank, which should be the whole divided
by the number; the peak of resident memory in later steps above what Python and its libraries take; and that of the first
step, in which the model is still whole.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MEBI = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--tensor", type=int, default=1, help="processes that share each matrix; the rest are stages")
    parser.add_argument("--recompute", action="store_true", help="activation checkpointing")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        measure(args)
        return
    print(
        f"{args.layers} layers of {args.hidden}, batch {args.batch} x 128 in {args.microbatches} microbatches, MiB a rank"
    )
    for processes in (1, 2, 4):
        if processes >= args.tensor or processes == 1:
            tensor = args.tensor if processes >= args.tensor else 1
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
            options = [f"--{name}={getattr(args, name)}" for name in ("hidden", "layers", "batch", "microbatches")]
            options += ["--recompute"] if args.recompute else []
            command = [*launcher, __file__, "--rank", f"--tensor={tensor}", *options]
            subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def measure(args: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist
    import transformers

    from lightning_sagemaker.parallel.degrees import ParallelDegrees
    from lightning_sagemaker.parallel.groups import ParallelGroups
    from lightning_sagemaker.parallel.microbatches import split
    from lightning_sagemaker.parallel.model import PipelinedModel
    from lightning_sagemaker.recipes._common.modules.speed import tune_allocator

    torch.set_num_threads(1)
    tune_allocator()
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    degrees = ParallelDegrees(pipeline=ranks // args.tensor, tensor=args.tensor, microbatches=args.microbatches)
    groups = ParallelGroups.build(degrees)
    torch.manual_seed(0)
    batch = {"input_ids": torch.randint(0, 1000, (args.batch, 128)), "labels": torch.randint(0, 2, (args.batch,))}
    parts = split(batch, args.microbatches)
    before = resident("VmRSS")
    config = transformers.BertConfig(
        vocab_size=1000,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // 64,
        intermediate_size=4 * args.hidden,
    )
    model = transformers.BertForSequenceClassification(config)
    pipeline = PipelinedModel(
        model, groups, torch.device("cpu"), lambda part: model(**part).loss, parts[0], recompute=args.recompute
    )
    optimizer = torch.optim.AdamW(pipeline.parameters, fused=True)

    def step() -> None:
        pipeline.engine.run(lambda part: model(**part).loss, parts, lambda loss: loss / args.microbatches)
        pipeline.reduce_gradients()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    step()
    first = resident("VmHWM") - before
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    step()
    later = resident("VmHWM") - before
    held = sum(parameter.nbytes for parameter in pipeline.parameters) * 4  # with gradients and two moments
    found: list[Any] = [None] * ranks
    dist.all_gather_object(found, (held, later, first))
    if dist.get_rank() == 0:
        print(f"{ranks} ranks ({degrees.pipeline} stages, matrices shared by {degrees.tensor})")
        for name, sizes in zip(
            ("held for parameters", "peak in later steps", "peak of the first"), zip(*found, strict=True), strict=True
        ):
            print(f"  {name:<20} {'  '.join(f'{size / MEBI:6.0f}' for size in sizes)}")
    dist.barrier()
    dist.destroy_process_group()


def resident(kind: str) -> int:
    """Bytes of this process's resident memory: now (``VmRSS``) or at its peak (``VmHWM``)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{kind}:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
