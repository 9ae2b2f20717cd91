# SPDX-License-Identifier: Apache-2.0
"""Ranks of several hosts keep each other's files: ``neighbors_worker.py OUT_DIR``; hosts are folders."""

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist

from lightning_sagemaker.checkpoint import neighbors
from lightning_sagemaker.checkpoint.host_memory import HostMemory, RankFile, newest_complete
from lightning_sagemaker.checkpoint.neighbors import Neighbors
from lightning_sagemaker.collectives import clean_exit
from lightning_sagemaker.collectives.agreement import of_all

LAYOUTS = {
    "two hosts": "aabb",
    "three hosts": "abcc",
    "unequal hosts": "aaab",
    "one host": "aaaa",
    "four hosts": "abcd",
}
LOST_TOGETHER = {"four hosts": ["ac", "bd", "ab"]}  # of the last, a's file was on b only


def content(rank: int, step: int) -> bytes:
    return bytes([rank, step]) * (1000 * (rank + 1))


def run(folder: Path, hosts: str, rank: int) -> dict:
    """Steps 1 to 3 are exchanged, in step 3 a rank could not write; then each host in turn is replaced."""
    memory = HostMemory(folder / hosts[rank])
    found = {}
    kept = Neighbors(memory, rank, list(hosts), None)
    for step in (1, 2, 3):
        file = RankFile(step, rank, len(hosts))
        can = not (step == 3 and rank == 1)
        path = memory.write(file, lambda new, step=step: new.write_bytes(content(rank, step))) if can else None
        kept.exchange(file, path)
    dist.barrier()
    for lost in LOST_TOGETHER.get(folder.name, sorted(set(hosts))):
        if hosts[rank] in lost and hosts.index(hosts[rank]) == rank:
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


def full(folder: Path, rank: int) -> list[str]:
    """Two ranks lack their file, and the memory of one is full, whose host has the other's: what each has in the end."""
    memory = HostMemory(folder / str(rank))
    kept, file = Neighbors(memory, rank, ["a", "b", "c", "d"], None), RankFile(1, rank, 4)
    kept.exchange(file, memory.write(file, lambda new: new.write_bytes(content(rank, 1))))
    dist.barrier()
    if rank in (0, 3):  # the first still has the last one's
        memory.path(file).unlink()
    dist.barrier()
    if rank == 0:
        memory.write = _no_space
    try:
        kept.fetch(1, of_all(memory.files(), 4))
        end = "has it" if memory.path(file).read_bytes() == content(rank, 1) else "has another"
    except OSError as error:
        end = str(error)
    return of_all(end, 4)


def _no_space(*_: object) -> Path:
    raise OSError("no space")


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    neighbors._CHUNK = 700  # bytes: several messages for each file
    results = {name: run(folder / name, hosts, rank) for name, hosts in LAYOUTS.items()}
    results["a full host"] = full(folder / "full", rank)
    if rank == 0:
        (folder / "new").write_text(json.dumps(results))
        os.replace(folder / "new", folder / "results.json")
    dist.barrier()
    clean_exit.let_threads_finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
