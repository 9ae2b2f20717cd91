# SPDX-License-Identifier: Apache-2.0
"""Ranks of several hosts keep each other's files: ``neighbours_worker.py OUT_DIR``; hosts are folders."""

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist

from lightning_sagemaker.checkpoint import neighbours
from lightning_sagemaker.checkpoint.host_memory import HostMemory, RankFile, newest_complete
from lightning_sagemaker.checkpoint.neighbours import Neighbours
from lightning_sagemaker.collectives.agreement import of_all

LAYOUTS = {"two hosts": "aabb", "three hosts": "abcc", "unequal hosts": "aaab", "one host": "aaaa"}


def content(rank: int, step: int) -> bytes:
    return bytes([rank, step]) * (1000 * (rank + 1))


def run(folder: Path, hosts: str, rank: int) -> dict:
    """Steps 1 to 3 are exchanged, in step 3 a rank could not write; then each host in turn is replaced."""
    memory = HostMemory(folder / hosts[rank])
    found = {}
    kept = Neighbours(memory, rank, list(hosts), None)
    for step in (1, 2, 3):
        file = RankFile(step, rank, len(hosts))
        can = not (step == 3 and rank == 1)
        path = memory.write(file, lambda new, step=step: new.write_bytes(content(rank, step))) if can else None
        kept.exchange(file, path)
    dist.barrier()
    for lost in sorted(set(hosts)):
        if hosts[rank] == lost and hosts.index(lost) == rank:
            memory.keep(())
        dist.barrier()
        seen = of_all(memory.files(), len(hosts))
        dist.barrier()
        step = newest_complete(seen)
        fetched = kept.fetch(step, seen) if step is not None else None
        whole = step is None or memory.path(RankFile(step, rank, len(hosts))).read_bytes() == content(rank, step)
        found[lost] = {"step": step, "fetched": fetched, "whole": all(of_all(whole, len(hosts)))}
        kept.exchange(RankFile(2, rank, len(hosts)), memory.path(RankFile(2, rank, len(hosts))) if step else None)
        dist.barrier()
    return found


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    neighbours._CHUNK = 700  # bytes: several messages for each file
    results = {name: run(folder / name, hosts, rank) for name, hosts in LAYOUTS.items()}
    if rank == 0:
        (folder / "new").write_text(json.dumps(results))
        os.replace(folder / "new", folder / "results.json")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
