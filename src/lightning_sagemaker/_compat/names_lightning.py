# SPDX-License-Identifier: Apache-2.0
"""Every private name of Lightning and torchmetrics that this package uses: the table to check for a new version.

``{pytorch}`` and ``{fabric}`` stand for the packages that this one builds on. A test compares the table with the source.
"""

from __future__ import annotations

_FLAGS = (
    "_accelerator_flag",
    "_check_config_and_set_final_flags",
    "_check_device_config_and_set_final_flags",
    "_choose_and_init_cluster_environment",
    "_strategy_flag",
)
_DDP = ("_configure_launcher", "_get_process_group_backend", "_process_group_backend", "_start_method")
_MODEL_PARALLEL = ("_get_process_group_backend", "_process_group_backend", "_save_distributed_checkpoint")
_LAYOUT = ("_data_parallel_size", "_tensor_parallel_size", "_setup_distributed", "_configure_launcher")

NAMES: dict[str, tuple[str, ...]] = {
    "{fabric}.connector:_Connector": _FLAGS,
    "{fabric}.loggers.csv_logs:_ExperimentWriter": ("_check_log_dir_exists", "_rewrite_with_new_header"),
    "{fabric}.strategies:DDPStrategy": (*_DDP, "_backward_sync_control", "_set_world_ranks", "_setup_distributed"),
    "{fabric}.strategies:ModelParallelStrategy": (*_MODEL_PARALLEL, *_LAYOUT, "_set_world_ranks"),
    "{fabric}.strategies:Strategy": ("_accelerator", "_checkpoint_io", "_launcher"),
    "{fabric}.strategies.model_parallel": ("_rekey_optimizer_state_if_needed",),
    "{fabric}.wrappers:_FabricDataLoader": ("_dataloader", "_num_iter_calls"),
    "{fabric}.wrappers:_FabricModule": ("_forward_module",),
    "{pytorch}.callbacks:ModelCheckpoint": (
        "_defer_save_until_validation",
        "_enable_version_counter",
        "_every_n_train_steps",
        "_last_checkpoint_saved",
        "_last_global_step_saved",
        "_train_time_interval",
    ),
    "{pytorch}.callbacks:ModelPruning": ("_original_layers", "_parameters_to_prune"),
    "{pytorch}.callbacks:StochasticWeightAveraging": ("_average_model",),
    "{pytorch}.callbacks:WeightAveraging": ("_average_model", "_swap_models"),
    "{pytorch}.core.module:LightningModule": ("_current_fx_name", "_on_before_batch_transfer"),
    "{pytorch}.core.optimizer:LightningOptimizer": ("_optimizer",),
    "{pytorch}.loops.evaluation_loop:_EvaluationLoop": (
        "_combined_loader",
        "_evaluation_step",
        "_on_evaluation_epoch_end",
        "_last_val_dl_reload_epoch",
        "_max_batches",
        "_seen_batches_per_dataloader",
    ),
    "{pytorch}.loggers:CSVLogger": ("_experiment", "_version"),
    "{pytorch}.loops.fetchers:_DataFetcher": ("_start_profiler", "_stop_profiler"),
    "{pytorch}.loops.fit_loop:_FitLoop": (
        "_combined_loader",
        "_data_fetcher",
        "_last_train_dl_reload_epoch",
        "_load_combined_loader_states",
        "_restart_stage",
        "_should_accumulate",
    ),
    "{pytorch}.loops.loop:_Loop": ("_loaded_from_state_dict", "_restarting", "_resuming_from_checkpoint"),
    "{pytorch}.loops.progress:_BaseProgress": (),
    "{pytorch}.loops.progress:_ProcessedTracker": (),
    "{pytorch}.loops.progress:_ReadyCompletedTracker": (),
    "{pytorch}.loops.training_epoch_loop:_TrainingEpochLoop": (
        "_batches_that_stepped",
        "_broadcast_sigterm_tensor",
        "_build_kwargs",
        "_num_ready_batches_reached",
        "_on_after_fetch",
        "_on_before_fetch",
        "_results",
        "_save_loggers_on_train_batch_end",
        "_should_accumulate",
        "_should_check_val_fx",
        "_skip_next_val",
    ),
    "{pytorch}.plugins:Precision": ("_after_closure",),
    "{pytorch}.plugins.io.wrapper:_WrappingCheckpointIO": (),
    "{pytorch}.strategies:DDPStrategy": (*_DDP, "_layer_sync", "_num_nodes", "_setup_model"),
    "{pytorch}.strategies:ModelParallelStrategy": (*_MODEL_PARALLEL, *_LAYOUT),
    "{pytorch}.strategies:ParallelStrategy": ("_accelerator", "_checkpoint_io", "_launcher", "_parallel_devices"),
    "{pytorch}.trainer.call": ("_call_callback_hooks", "_call_lightning_module_hook", "_call_strategy_hook"),
    "{pytorch}.trainer.connectors.accelerator_connector:_AcceleratorConnector": _FLAGS,
    "{pytorch}.trainer.connectors.logger_connector.logger_connector:_LoggerConnector": (
        "_callback_metrics",
        "_current_fx",
        "_first_loop_iter",
        "_logged_metrics",
        "_progress_bar_metrics",
    ),
    "{pytorch}.trainer.connectors.logger_connector.result:_ResultCollection": (),
    "{pytorch}.trainer.connectors.logger_connector.result:_ResultMetric": (),
    "{pytorch}.trainer.connectors.checkpoint_connector:_CheckpointConnector": (
        "_loaded_checkpoint",
        "_restore_modules_and_callbacks",
    ),
    "{pytorch}.trainer.trainer:Trainer": ("_checkpoint_connector", "_logger_connector", "_signal_connector"),
    "{pytorch}.utilities.combined_loader:CombinedLoader": ("_iterator",),
    "{pytorch}.utilities.combined_loader:_ModeIterator": ("_idx",),
    "torchmetrics:Metric": ("_cache", "_computed", "_forward_cache", "_is_synced", "_reductions", "_update_count"),
}
"""Module and class -> names that it must have, on itself or on its objects."""

OPTIONAL = {"_consumed", "_early_exit"}
"""Names that are tested with ``hasattr`` first, since only some classes or versions have them."""
