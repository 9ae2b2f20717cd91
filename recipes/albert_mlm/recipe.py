# SPDX-License-Identifier: Apache-2.0
"""Puts the parts together for the command line."""

from __future__ import annotations

from pathlib import Path

from lightning_sagemaker.recipes._common import Names, Recipe
from lightning_sagemaker.recipes._common.cli import OWN_OPTIONS
from lightning_sagemaker.recipes.albert_mlm.data import MLMDataModule
from lightning_sagemaker.recipes.albert_mlm.module import AlbertMLM

SHORT_NAMES = {
    "accumulate_grad_batches": "trainer.accumulate_grad_batches",
    "cache_dir": "data.cache_dir",
    "dataloader_num_workers": "data.num_workers",
    "devices": "trainer.devices",
    "dropout": "model.dropout",
    "epochs": "trainer.max_epochs",
    "global_batch_size": "data.global_batch_size",
    "gradient_accumulation_steps": "trainer.accumulate_grad_batches",
    "learning_rate": "model.learning_rate",
    "log_every_n_steps": "trainer.log_every_n_steps",
    "logging_steps": "trainer.log_every_n_steps",
    "max_epochs": "trainer.max_epochs",
    "max_grad_norm": "trainer.gradient_clip_val",
    "max_seq_length": "data.sequence_length",
    "max_steps": "trainer.max_steps",
    "mlm_probability": "data.mask_probability",
    "model_name_or_path": "model.pretrained",
    "model_size": "model.size",
    "num_nodes": "trainer.num_nodes",
    "num_workers": "data.num_workers",
    "pretrained": "model.pretrained",
    "schedule": "model.schedule",
    "seed": "seed_everything",
    "sequence_length": "data.sequence_length",
    "size": "model.size",
    "strategy": "trainer.strategy",
    "text": "data.text",
    "tokenizer": "data.tokenizer",
    "tokenizer_name": "data.tokenizer",
    "train_file": "data.text",
    "val_check_interval": "trainer.val_check_interval",
    "vocab_size": "data.vocab_size",
    "warmup_steps": "model.warmup_steps",
    "weight_decay": "model.weight_decay",
}
"""Hyperparameter names that people use with SageMaker and with transformers' ``run_mlm.py``."""

RECIPE = Recipe("albert-mlm", Path(__file__).parent, AlbertMLM, MLMDataModule, Names(SHORT_NAMES, own=OWN_OPTIONS))
