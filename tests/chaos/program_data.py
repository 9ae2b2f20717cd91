# SPDX-License-Identifier: Apache-2.0
"""The data of program.py, as people write it. It imports torch alone: the workers of a forkserver import it anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate, get_worker_info

FEATURES = 4
BATCHES = 10
"""Of a rank, in an epoch."""
BATCH_SIZE = 4


def sample(index: int) -> dict[str, Any]:
    x = torch.sin(torch.arange(1.0, FEATURES + 1) * (index + 1))
    return {"x": x, "y": x.sum().reshape(1), "index": index}


class Samples(Dataset):
    def __init__(self, size: int, noise: float = 0.0) -> None:
        self.size, self.noise = size, noise

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = sample(int(index))
        if self.noise:
            item["x"] = item["x"] + self.noise * torch.rand(FEATURES)
        return item


class Stream(IterableDataset):
    """Each rank's part, in an order drawn when the epoch begins; its workers share it."""

    def __init__(self, size: int, rank: int, ranks: int) -> None:
        self.size, self.rank, self.ranks = size, rank, ranks

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        own = list(range(self.rank, self.size, self.ranks))[number::workers]
        for position in torch.randperm(len(own)).tolist():
            yield sample(own[position])


class EpochSampler(Sampler):
    """A shuffle by epoch of each rank's part."""

    def __init__(self, size: int, rank: int, ranks: int) -> None:
        self.size, self.rank, self.ranks, self.epoch = size, rank, ranks, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.size // self.ranks

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.size, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        yield from order[self.rank :: self.ranks][: len(self)]


class DrawnSampler(Sampler):
    """A shuffle by torch's global generator."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self.size).tolist()


def noisy(items: list[dict[str, Any]]) -> dict[str, Any]:
    batch = default_collate(items)
    batch["x"] = batch["x"] + 0.1 * torch.randn_like(batch["x"])
    return batch


def samples_of(case: dict[str, Any]) -> int:
    """The size of the data set of a case: of the ranks that the run began with."""
    ranks = case["ranks"]
    if (
        case["data"] == "uneven"
    ):  # neither by ranks nor by the batch; no last batch of one sample, on other ranks neither
        return BATCHES * BATCH_SIZE * ranks + 3 * ranks - (ranks > 1)
    if case["data"] == "iterable":  # so that no worker has a single sample in its last batch, which has no variance
        return (BATCHES * BATCH_SIZE + 2) * ranks
    return BATCHES * BATCH_SIZE * ranks


def batches_of(case: dict[str, Any]) -> int:
    """Of a rank, in an epoch."""
    parts = max(1, case["workers"]) if case["data"] == "iterable" else 1
    in_part = -(-case["samples"] // (case["ranks"] * parts))
    batches = parts * -(-in_part // case["batch_size"])
    return min(batches, case["limit_train"]) if isinstance(case["limit_train"], int) else batches


def train_loader(case: dict[str, Any], trainer: Any) -> Any:
    size, rank, ranks = case["samples"], trainer.global_rank, trainer.world_size
    options: dict[str, Any] = {"batch_size": case["batch_size"], "num_workers": case["workers"]}
    if case["workers"]:
        options |= {"persistent_workers": case["persistent"], "multiprocessing_context": case["context"]}
    match case["data"]:
        case "iterable":
            return DataLoader(Stream(size, rank, ranks), **options)
        case "epoch_sampler":
            return DataLoader(Samples(size), sampler=EpochSampler(size, rank, ranks), **options)
        case "random_sampler":
            return DataLoader(Samples(size), sampler=DrawnSampler(size), **options)
        case "augmented":
            return DataLoader(Samples(size, noise=0.1), shuffle=True, **options)
        case "collate":
            return DataLoader(Samples(size), shuffle=True, collate_fn=noisy, **options)
        case "resumable":
            from lightning_sagemaker import ResumableLoader

            return ResumableLoader(Samples(size), trainer, seed=3, **options)
        case "combined_max" | "combined_min":
            from lightning.pytorch.utilities import CombinedLoader

            mode = {"combined_max": "max_size_cycle", "combined_min": "min_size"}[case["data"]]
            shorter = size if mode == "min_size" else size // 2
            longer = size + 8 * ranks if mode == "min_size" else size
            loaders = [DataLoader(Samples(number), shuffle=True, **options) for number in (longer, shorter)]
            return CombinedLoader(dict(zip("ab", loaders, strict=True)), mode)
    return DataLoader(Samples(size), shuffle=True, **options)


def evaluation_loader(case: dict[str, Any]) -> Any:
    """Four batches of each rank."""
    workers = case.get("evaluates", "alone")
    options = {"num_workers": int(workers != "alone"), "persistent_workers": workers == "persistent"}
    return DataLoader(Samples(4 * BATCH_SIZE * case["ranks"]), batch_size=BATCH_SIZE, **options)
