# SPDX-License-Identifier: Apache-2.0
"""Every private name of torch that this package uses: the table to check for a new version.

A test compares the table with the source.
"""

from __future__ import annotations

NAMES: dict[str, tuple[str, ...]] = {
    "torch": ("_foreach_norm",),
    "torch._C._distributed_c10d": ("_DistributedBackendOptions", "_create_work_from_future"),
    "torch._C._distributed_c10d:Backend": ("_get_sequence_number_for_group", "_set_sequence_number_for_group"),
    "torch._dynamo": ("OptimizedModule",),
    "torch._ops:OpOverload": ("_schema",),
    "torch._subclasses.fake_tensor": ("FakeTensor", "FakeTensorMode", "unset_fake_temporarily"),
    "torch._utils": ("ExceptionWrapper", "_flatten_dense_tensors", "_unflatten_dense_tensors"),
    "torch._weights_only_unpickler": ("_get_allowed_globals",),
    "torch.amp:GradScaler": ("_per_optimizer_states",),
    "torch.distributed:Backend": ("_plugins",),
    "torch.distributed:ProcessGroup": ("_end_coalescing", "_get_backend", "_register_backend", "_start_coalescing"),
    "torch.distributed:Reducer": ("_autograd_hook", "_rebuild_buckets"),
    "torch.distributed.checkpoint.default_planner": ("_EmptyStateDictLoadPlanner",),
    "torch.distributed.checkpoint.state_dict": ("_init_optim_state",),
    "torch.distributed.checkpoint.state_dict_loader": ("_load_state_dict",),
    "torch.distributed:PrefixStore": ("_underlying_non_prefix_store",),
    "torch.distributed.distributed_c10d": (
        "_get_default_group",
        "_get_default_store",
        "_set_pg_timeout",
        "_world",
    ),
    "torch.distributed.tensor:DTensor": ("_spec",),
    "torch.distributed.fsdp:ShardingStrategy": ("_HYBRID_SHARD_ZERO2",),
    "torch.distributed.fsdp._common_utils": ("clean_tensor_name",),
    "torch.distributed.pipelining._backward": ("stage_backward_input", "stage_backward_weight"),
    "torch.nn:Embedding": ("_fill_padding_idx_with_zero",),
    "torch.nn:Module": ("_buffers", "_compiled_call_impl", "_modules", "_parameters"),
    "torch.nn.modules.batchnorm": ("_BatchNorm",),
    "torch.nn.parallel:DistributedDataParallel": (
        "_build_params_for_reducer",
        "_comm_hooks",
        "_get_ddp_logging_data",
        "_has_rebuilt_buckets",
    ),
    "torch.optim.lr_scheduler:LRScheduler": ("_last_lr", "_step_count"),
    "torch.utils._python_dispatch": ("TorchDispatchMode",),
    "torch.utils._pytree": ("arg_tree_leaves", "tree_flatten", "tree_leaves", "tree_map", "tree_map_only"),
    "torch.utils.data:DataLoader": ("_get_iterator", "_index_sampler", "_iterator"),
    "torch.utils.data._utils.pin_memory": ("pin_memory",),
    "torch.utils.data._utils.signal_handling": ("_remove_worker_pids",),
    "torch.utils.data.dataloader": ("_SingleProcessDataLoaderIter",),
    "torch.utils.data.dataloader:_BaseDataLoaderIter": ("_collate_fn", "_dataset", "_next_index", "_sampler_iter"),
    "torch.utils.data.dataloader:_MultiProcessingDataLoaderIter": (
        "_get_data",
        "_next_data",
        "_reset",
        "_shutdown_workers",
        "_try_put_index",
        "_worker_pids_set",
        "_worker_queue_idx_cycle",
        "_workers",
    ),
}
"""Module, or module and class -> names that it must have, on itself or on its objects."""

OPTIONAL = {
    "_all_gather_result",
    "_allgather_base",
    "_composable",
    "_delay_all_reduce_all_params",
    "_dim_group_names",
    "_flat_param",
    "_fsdp_param_groups",
    "_get_closed_form_lr",
    "_get_fsdp_state",
    "_in_backward_optimizers",
    "_is_root",
    "_mask",
    "_orig",
    "_pg_registry",
    "_reduce_scatter_base",
    "_register_pre_backward_hook",
    "_register_process_group",
    "_set_default_backend",
    "_timeout",
    "_unsharded_param",
    "_use_python_reducer",
}
"""Names that are tested with ``hasattr`` first, since only some classes or versions have them, and names of NCCL."""
