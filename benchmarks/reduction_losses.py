# SPDX-License-Identifier: Apache-2.0
"""Loss at the end of a training, by way of reducing gradients and seed: what a way costs beside its speed.

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 4 benchmarks/reduction_losses.py --seeds 3

A language model of two transformer blocks learns sequences of a random automaton with 64 letters, on four processes that
stand for two hosts. The loss is the mean over the last tenth of the steps and all processes; the data's own entropy is the
least that is possible. Each seed has its own weights and batches, the same for all ways.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lightning_sagemaker.collectives.reduction.engine import Engine
from lightning_sagemaker.collectives.reduction.hook import attach
from lightning_sagemaker.collectives.reduction.options import ReductionOptions
from lightning_sagemaker.collectives.reduction.topology import Groups, Topology

LETTERS, LENGTH, BATCH, WIDTH = 64, 32, 8, 96
WAYS = [
    ("flat", None),
    ("hierarchical", None),
    ("hierarchical", "bf16"),
    ("hierarchical", "fp16"),
    ("flat", "powersgd"),
]


class Model(torch.nn.Module):
    """Predicts the next letter."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = torch.nn.Embedding(LETTERS, WIDTH)
        self.places = torch.nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        block = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.blocks = torch.nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.out = torch.nn.Linear(WIDTH, LETTERS)
        self.mask = torch.nn.Transformer.generate_square_subsequent_mask(LENGTH)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        hidden = self.blocks(self.letters(text[:, :-1]) + self.places, mask=self.mask, is_causal=True)
        return torch.nn.functional.cross_entropy(self.out(hidden).flatten(0, 1), text[:, 1:].flatten())


def sequences(draw: torch.Generator, table: torch.Tensor) -> torch.Tensor:
    """A batch: each letter depends on the one before."""
    text = [torch.randint(LETTERS, (BATCH,), generator=draw)]
    for _ in range(LENGTH):
        text.append(torch.multinomial(table[text[-1]], 1, generator=draw)[:, 0])
    return torch.stack(text, 1)


def train(seed: int, steps: int, reducer: object) -> float:
    """The loss at the end."""
    torch.manual_seed(seed)
    ddp = DistributedDataParallel(Model(), bucket_cap_mb=0.2)
    if reducer is not None:
        attach(ddp, reducer)
    optimizer = torch.optim.AdamW(ddp.parameters(), 2e-3)
    table = torch.softmax(3 * torch.randn(LETTERS, LETTERS, generator=torch.Generator().manual_seed(0)), 1)
    draw = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ddp(sequences(draw, table))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    last = torch.tensor(statistics.fmean(losses[-steps // 10 :]))
    dist.all_reduce(last)
    return last.item() / dist.get_world_size()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    logging.disable()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = Groups(Topology.of([rank // 2 for rank in range(dist.get_world_size())]), "gloo")
    first = None
    for reduction, compression in WAYS:
        low_rank = {"powersgd_start": arguments.steps // 10} if compression == "powersgd" else {}
        found = []
        for seed in range(arguments.seeds):
            options = ReductionOptions(reduction, compression, **low_rank)
            found.append(train(seed, arguments.steps, Engine(options, groups, torch.device("cpu"), 2**20).reducer))
        first = first or found
        if dist.get_rank() == 0:
            each = ", ".join(f"{loss:.4f}" for loss in found)
            differences = [loss - plain for loss, plain in zip(found, first, strict=True)]
            print(
                f"{reduction + ', ' + str(compression):<24} {statistics.fmean(found):.4f} +- {statistics.stdev(found):.4f}"
                f"  ({each})  against plain {statistics.fmean(differences):+.4f}, load {os.getloadavg()[0]:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
