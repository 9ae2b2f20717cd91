# SPDX-License-Identifier: Apache-2.0
"""Names of options that all recipes have."""

from __future__ import annotations

OWN_OPTIONS = frozenset(
    {"run_dir", "baseline", "precision", "checkpoint_every", "checkpoint_minutes", "mlflow", "wandb", "resume"}
    | {"total_examples", "monitor", "monitor_mode", "patience", "gradient_reduction", "gradient_compression"}
)
"""Options that every recipe has in addition to LightningCLI's."""

COMMON_SHORT_NAMES = {
    "accumulate_grad_batches": "trainer.accumulate_grad_batches",
    "cache_dir": "data.cache_dir",
    "dataloader_num_workers": "data.num_workers",
    "devices": "trainer.devices",
    "early_stopping_patience": "patience",
    "epochs": "trainer.max_epochs",
    "eval_batch_size": "data.eval_batch_size",
    "global_batch_size": "data.global_batch_size",
    "gradient_accumulation_steps": "trainer.accumulate_grad_batches",
    "learning_rate": "model.learning_rate",
    "log_every_n_steps": "trainer.log_every_n_steps",
    "logging_steps": "trainer.log_every_n_steps",
    "lr_scheduler_type": "model.schedule",
    "max_epochs": "trainer.max_epochs",
    "max_grad_norm": "trainer.gradient_clip_val",
    "max_steps": "trainer.max_steps",
    "metric_for_best_model": "monitor",  # torchrun takes --monitor for the beginning of an option of its own
    "model_name_or_path": "model.pretrained",
    "num_nodes": "trainer.num_nodes",
    "num_train_epochs": "trainer.max_epochs",
    "num_workers": "data.num_workers",
    "optimizer": "model.optimizer",
    "per_device_train_batch_size": "data.per_process_batch_size",
    "pretrained": "model.pretrained",
    "schedule": "model.schedule",
    "seed": "seed_everything",
    "size": "model.size",
    "strategy": "trainer.strategy",
    "tokenizer": "data.tokenizer",
    "tokenizer_name": "data.tokenizer",
    "val_check_interval": "trainer.val_check_interval",
    "vocab_size": "data.vocab_size",
    "warmup_steps": "model.warmup_steps",
    "weight_decay": "model.weight_decay",
}
"""Short names that mean the same in every recipe; several are those of transformers' ``TrainingArguments``."""

FINE_TUNING_SHORT_NAMES = COMMON_SHORT_NAMES | {
    "dataset_config_name": "data.dataset_config",
    "dataset_name": "data.train",
    "dropout": "model.dropout",
    "max_eval_samples": "data.max_eval_samples",
    "max_predict_samples": "data.max_predict_samples",
    "max_train_samples": "data.max_train_samples",
    "pad_to_max_length": "data.pad_to_max_length",
    "predict_file": "data.predict",
    "test_file": "data.test",
    "train_file": "data.train",
    "validation_file": "data.validation",
}
"""Short names of the recipes that fine-tune on tables, as in transformers' example scripts."""

HELP_GROUPS: dict[str, tuple[str, ...]] = {
    "data": (
        "text", "train_file", "validation_file", "test_file", "predict_file", "task_name", "text_columns", "label_column",
        "data.delimiter", "data.encoding", "data.clean", "version_2_with_negative", "tokenizer", "max_length",
        "sequence_length", "max_seq_length", "doc_stride", "mlm_probability", "max_train_samples", "max_eval_samples",
        "num_workers",
    ),
    "model": ("pretrained", "size", "dropout", "label_smoothing", "null_score_threshold"),
    "training": (
        "epochs", "max_steps", "global_batch_size", "accumulate_grad_batches", "optimizer", "learning_rate", "schedule",
        "warmup_steps", "weight_decay", "max_grad_norm", "val_check_interval", "precision", "seed",
    ),
    "run": (
        "config", "run_dir", "resume", "ckpt_path", "monitor", "patience", "checkpoint_every", "checkpoint_minutes",
        "log_every_n_steps", "mlflow", "strategy", "devices", "num_nodes", "debug", "help-all",
    ),
}  # fmt: skip
"""Options that ``--help`` lists by group, if the recipe has them; one name for each key."""
