# SPDX-License-Identifier: Apache-2.0
"""Base class of the recipes' data modules: batches per process, loaders, a check that all hosts have the same data."""

from __future__ import annotations

import logging
import os
from abc import abstractmethod
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import Dataset, Sampler

from lightning_sagemaker import SageMakerJob
from lightning_sagemaker._compat.trainer import datamodule_of
from lightning_sagemaker.data.batches import EvaluationBatches, Integers, TrainingBatches
from lightning_sagemaker.data.handover import hand_over
from lightning_sagemaker.data.loader import batches_done
from lightning_sagemaker.data.order import Blocks
from lightning_sagemaker.recipes._common.data.cache import (
    all_files,
    damages,
    default_cache,
    load_manifest,
    read_manifest,
)
from lightning_sagemaker.recipes._common.data.checked import CheckedFiles
from lightning_sagemaker.recipes._common.data.checksums import checksum_kind
from lightning_sagemaker.recipes._common.data.loaders import RecipeLoader
from lightning_sagemaker.recipes._common.data.preparation import TOKENIZER_FOLDER, Preparation
from lightning_sagemaker.recipes._common.data.ranges import check_range
from lightning_sagemaker.recipes._common.data.tables import DataError
from lightning_sagemaker.recipes._common.modules.pretrained import load_tokenizer
from lightning_sagemaker.recipes._common.modules.speed import num_workers as choose_num_workers

_EVALUATION_BATCH = 64

_log = logging.getLogger(__name__)


class SharedError(RuntimeError):
    """The data of a host cannot be used; raised on all ranks.

    Args:
        message: Message, the same on all ranks.
        rank: Rank of this process.

    """

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


class RecipeData(LightningDataModule):
    """Batches of one recipe; the samples of a step do not depend on the number of processes.

    A subclass returns from :meth:`preparation` what is prepared once per host, opens it in :meth:`open`, and makes
    loaders.

    Args:
        name: Name of the recipe.
        global_batch_size: Samples per optimizer step over all processes and accumulated micro-batches.
        per_process_batch_size: Samples per process and forward pass; instead of the global batch, which then grows with
            the number of processes.
        eval_batch_size: Samples per process and forward pass in evaluation. Default: the global batch, at most 64.
        num_workers: Loader processes for each training process. auto: on a GPU host the CPU cores per training process,
            otherwise 0; then adjusted in the first steps if they wait for data.
        cache_dir: Folder for prepared data. Default: the user's cache folder, in a training job a temporary one.
        seed: Seed of everything random about the data, such as its order. Default: the run's (``seed_everything``).

    """

    def __init__(
        self,
        name: str,
        global_batch_size: int = 32,
        per_process_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        num_workers: int | Literal["auto"] | None = "auto",
        cache_dir: str | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        check_range("global_batch_size", global_batch_size, 1, 1 << 40)
        check_range("per_process_batch_size", per_process_batch_size, 1, 1 << 20)
        check_range("eval_batch_size", eval_batch_size, 1, 1 << 20)
        self.job = SageMakerJob.from_environment()
        self.cache = Path(cache_dir) if cache_dir else default_cache(self.job, name)
        self._global_batch_size = global_batch_size
        self._per_process_batch_size = per_process_batch_size
        self.eval_batch_size = eval_batch_size or min(per_process_batch_size or global_batch_size, _EVALUATION_BATCH)
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", "0")) if seed is None else seed
        self._num_workers = num_workers if isinstance(num_workers, int) else None
        self.measures_workers = self._num_workers is None
        self._training: RecipeLoader | None = None
        self._manifest: dict[str, Any] | None = None
        self._failure: str | None = None

    @abstractmethod
    def preparation(self) -> Preparation:
        """Settings of the preparation; needs the trainer, as the tokenizer is by default the model's."""

    @abstractmethod
    def sources(self) -> dict[str, str]:
        """Split or input -> source of its data."""

    def report(self) -> dict[str, Any] | None:
        """The data report, ``None`` without one; after :meth:`setup`."""
        return None

    def facts(self) -> dict[str, Any]:
        """Facts for the model card; after :meth:`setup`."""
        return {}

    def can_test(self) -> bool:
        """Whether there is a test split; after :meth:`setup`."""
        return any(count for split, count in self.manifest["counts"].items() if split.split("_")[0] == "test")

    @abstractmethod
    def open(self, folder: Path, manifest: dict[str, Any]) -> None:
        """Open the prepared data."""

    @property
    def pretrained(self) -> str | None:
        """The model's ``pretrained``: the weights it starts from."""
        module = None if self.trainer is None else self.trainer.lightning_module
        name: str | None = None if module is None else module.hparams.get("pretrained")
        return name

    @property
    def folder(self) -> Path:
        """Folder of the prepared data."""
        return self.preparation().folder(self.cache)

    @property
    def manifest(self) -> dict[str, Any]:
        """Manifest of the prepared data; after :meth:`setup`."""
        if self._manifest is None:
            raise RuntimeError("the data module was not set up: call prepare_data() and setup() first")
        return self._manifest

    @property
    def vocab_size(self) -> int:
        """Number of tokens; after :meth:`setup`."""
        return int(self.manifest["vocab_size"])

    def load_tokenizer(self) -> Any:
        """The tokenizer with which the data was prepared."""
        CheckedFiles.of(self.folder).check_folder(TOKENIZER_FOLDER)
        return load_tokenizer(str(self.folder / TOKENIZER_FOLDER))

    def prepare_data(self) -> None:
        """Prepare the data, once per host; with several ranks, an error is raised on all of them, in :meth:`setup`."""
        try:
            manifest, made = self.preparation().run(self.cache)
        except (DataError, MisconfigurationException) as error:
            if self.trainer is None or self.trainer.world_size == 1:
                raise
            self._failure = str(error)
            return
        counts = ", ".join(f"{split} {count}" for split, count in manifest["counts"].items())
        for line in manifest.get("read", []):
            self.say("%s", line)
        self.say("%s %s in %s", "prepared" if made else "found", counts, self.folder)

    def setup(self, stage: str) -> None:
        """Open the prepared data, and check that all processes have the same.

        Raises:
            SharedError: On all ranks, if the data of a host cannot be used.
            RuntimeError: If the data is incomplete or differs from rank 0's.

        """
        self._share_failure()
        manifest = self.read_manifest()
        self.check_equal_everywhere(manifest["digest"])
        self._manifest = manifest
        if not all(map(checksum_kind, all_files(manifest).values())):
            self.say("%s was prepared without checksums: damage to its files would not be noticed", self.folder)
        self.open(self.folder, manifest)

    def _share_failure(self) -> None:
        if self.trainer is None or self.trainer.world_size == 1:
            return
        failures: list[str | None] = [None] * self.trainer.world_size
        torch.distributed.all_gather_object(failures, self._failure)
        if message := next((failure for failure in failures if failure is not None), None):
            raise SharedError(message, self.trainer.global_rank)

    def read_manifest(self) -> dict[str, Any]:
        """The manifest of the prepared data.

        Raises:
            RuntimeError: If the prepared data is incomplete.

        """
        manifest = read_manifest(self.folder, self.preparation().settings())
        if manifest is None:
            found = "; ".join(damages(self.folder, load_manifest(self.folder) or {"files": {}})) or "no manifest"
            raise RuntimeError(
                f"{self.folder} holds no complete cache, although prepare_data() has run: {found}."
                " HINT: check that nothing deletes files there, and that all hosts have the same data.cache_dir."
            )
        return manifest

    @property
    def global_batch_size(self) -> int:
        """Samples per optimizer step over all processes and accumulated micro-batches."""
        if self._per_process_batch_size is None:
            return self._global_batch_size
        return self._per_process_batch_size * self.replica()["num_replicas"] * self._accumulate()

    def micro_batch_size(self) -> int:
        """Samples per process and forward pass in training: the global batch divided by processes and accumulation.

        Raises:
            MisconfigurationException: If they do not divide it.

        """
        processes = self.replica()["num_replicas"]
        accumulate = self._accumulate()
        if self.global_batch_size % (processes * accumulate):
            raise MisconfigurationException(
                f"data.global_batch_size={self.global_batch_size} was set, but {processes} processes train with"
                f" trainer.accumulate_grad_batches={accumulate}."
                f" HINT: make it a multiple of {processes * accumulate}."
            )
        return self.global_batch_size // (processes * accumulate)

    def training_loader(
        self, dataset: Dataset[Any], size: int, lengths: Integers | None = None, blocks: Blocks | None = None
    ) -> RecipeLoader:
        """Shuffled micro-batches of this process; a resumed run continues where it stopped.

        Args:
            dataset: Returns a batch for a list of draws.
            size: Number of samples.
            lengths: Lengths of the samples, ``[size]``, to batch samples of similar length.
            blocks: Blocks of samples that are read together, where single reads are slow.

        Raises:
            MisconfigurationException: If there are fewer samples than a global batch, or processes do not divide it.

        """
        self.micro_batch_size()
        if size < self.global_batch_size:
            raise MisconfigurationException(
                f"data.global_batch_size={self.global_batch_size} was set, but there are {size} training samples."
                " HINT: lower it, or give more data."
            )
        numbers = {**self.replica(), "accumulate": self._accumulate(), "seed": self.seed}
        batches = TrainingBatches(size, self.global_batch_size, **numbers, lengths=lengths, blocks=blocks)
        loader = self._loader(dataset, batches)
        batches.batches_done = batches_done(loader, self.trainer)
        if self.measures_workers:
            loader.workers_wanted = loader.num_workers
        self._training = loader
        return loader

    def evaluation_loader(self, dataset: Dataset[Any], size: int, lengths: Integers | None = None) -> RecipeLoader:
        """Each sample once over all processes; the arguments are those of :meth:`training_loader`."""
        return self._loader(dataset, EvaluationBatches(size, self.eval_batch_size, **self.replica(), lengths=lengths))

    def replica(self) -> dict[str, int]:
        """Number of data-parallel replicas (``num_replicas``) and this process's ``rank`` among them."""
        strategy = None if self.trainer is None else self.trainer.strategy
        alone = {"num_replicas": 1, "rank": 0}
        replica: dict[str, int] = dict(getattr(strategy, "distributed_sampler_kwargs", alone))
        return replica

    def say(self, message: str, *values: object) -> None:
        """Log on rank zero."""
        if self.trainer is None or self.trainer.is_global_zero:
            _log.info(message, *values)

    def check_equal_everywhere(self, digest: str) -> None:
        """Check that this process's data is rank 0's; collective.

        Raises:
            RuntimeError: If the digests differ.

        """
        if self.trainer is None or self.trainer.world_size == 1:
            return
        if digest != (expected := self.trainer.strategy.broadcast(digest)):
            raise RuntimeError(
                f"this process read different data from rank 0 (digest {digest} instead of {expected})."
                " HINT: give all hosts the same files and the same tokenizer, or a common data.cache_dir; channels must be"
                " FullyReplicated, as each process reads its own share (ShardedByS3Key would split twice)."
            )

    def _accumulate(self) -> int:
        return 1 if self.trainer is None else self.trainer.accumulate_grad_batches

    def _loader(self, dataset: Dataset[Any], batches: Sampler[Any]) -> RecipeLoader:
        workers = self.num_workers
        return RecipeLoader(
            dataset,
            batch_size=None,
            sampler=batches,
            num_workers=workers,
            collate_fn=hand_over,
            pin_memory=torch.cuda.is_available(),
            persistent_workers=workers > 0,
        )

    @property
    def num_workers(self) -> int:
        """Loader processes of each training process; a new value applies from the next batch on."""
        if self._num_workers is None:
            on_host = 1 if self.trainer is None else self.trainer.num_devices
            self._num_workers, reason = choose_num_workers(on_host, torch.cuda.is_available())
            self.say("num_workers %d: %s", self._num_workers, reason)
        return self._num_workers

    @num_workers.setter
    def num_workers(self, number: int) -> None:
        self._num_workers = number
        if self._training is not None:
            self._training.workers_wanted = number


def data_of(trainer: Trainer) -> RecipeData | None:
    """The recipe's data; None if the trainer was given loaders instead."""
    data = datamodule_of(trainer)
    return data if isinstance(data, RecipeData) else None
