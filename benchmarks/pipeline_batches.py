# SPDX-License-Identifier: Apache-2.0
"""A batch from the first stage of a pipeline to the others: as tensors, against a pickled object.

    torchrun --nproc-per-node 2 benchmarks/pipeline_batches.py

In turn in one run, by ``StructureChannel`` and by torch's ``broadcast_object_list``; milliseconds until all have it, and of
the first stage's processor.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from lightning_sagemaker.parallel.structure import StructureChannel

ROUNDS = 60


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    channel = StructureChannel(dist.new_group(), list(range(world)), 0, rank)
    tokens = {name: torch.randint(0, 1000, (32, 128)) for name in ("input_ids", "attention_mask", "token_type_ids")}
    batches: dict[str, dict[str, torch.Tensor]] = {
        "32 texts of 128 tokens": {**tokens, "labels": torch.randint(0, 2, (32,))},
        "32 images of 224 x 224": {"images": torch.rand(32, 3, 224, 224), "labels": torch.randint(0, 1000, (32,))},
    }
    for name, batch in batches.items():

        def as_tensors(batch: object = batch) -> None:
            channel.share(batch)

        def as_object(batch: object = batch) -> None:
            dist.broadcast_object_list([batch if rank == 0 else None], 0)

        ways: dict[str, Callable[[], None]] = {"tensors": as_tensors, "object": as_object}
        taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for number in range(ROUNDS + 5):
            for way, share in ways.items():
                dist.barrier()
                begin, processor = time.perf_counter(), time.process_time()
                share()
                processor = time.process_time() - processor
                dist.barrier()
                if number >= 5:
                    taken[way].append((time.perf_counter() - begin, processor))
        if rank == 0:
            size = sum(tensor.nbytes for tensor in batch.values()) / 2**20
            print(f"{name}, {size:.2f} MiB, {world} processes")
            for way, found in taken.items():
                whole, own = (1e3 * statistics.median(column) for column in zip(*found, strict=True))
                print(f"  {way:<8} {whole:7.2f} ms, processor {own:7.2f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
