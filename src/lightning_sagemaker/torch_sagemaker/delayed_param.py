# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.delayed_param``: models that are built on the meta device and filled by FSDP, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from lightning_sagemaker.torch_sagemaker.state_handler import state


class DelayedParamIniter:
    """Initializes the modules that FSDP wraps.

    Args:
        model: Model that was built on the meta device.
        init_method_using_config: Takes a module and initializes its own parameters and buffers. Default:
            transformers' ``model._init_weights``, or each module's ``reset_parameters``.
        verbose: Print the name of each module.

    """

    def __init__(
        self,
        model: nn.Module,
        init_method_using_config: Callable[[nn.Module], object] | None = None,
        verbose: bool = False,
    ) -> None:
        self._model, self._verbose = model, verbose
        self._names = {id(module): name for name, module in model.named_modules()}
        self._missing: list[str] = []
        default = _as_transformers(model) if hasattr(model, "_init_weights") else _reset
        self._init = init_method_using_config or default

    def count_num_params(self) -> int:
        """Number of elements of all parameters."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    def get_param_init_fn(self) -> Callable[[nn.Module], None]:
        """Function for FSDP's ``param_init_fn``."""
        return self._fill

    def get_post_param_init_fn(self) -> Callable[[nn.Module], None]:
        """Function for ``post_param_init_fn``, which FSDP accepts after ``tsm.init()``; it does nothing."""
        return lambda module: None

    @torch.no_grad()
    def _fill(self, wrapped: nn.Module) -> None:
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        for module in wrapped.modules():
            own = _own_tensors(module)
            if not any(tensor.is_meta for tensor in own.values()):
                continue
            for key, tensor in own.items():  # sharded matrices get full values, as the script's function expects
                empty = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
                _put(module, key, empty.fill_(torch.nan if tensor.is_floating_point() else _nothing(tensor)))
            self._init(module)
            name = self._names.get(id(module), type(module).__name__)
            if self._verbose:
                print(f"initialized {name}")
            self._missing += [f"{name}.{key}" for key, tensor in _own_tensors(module).items() if _is_empty(tensor)]
            if state.tensor_parallel_degree > 1:
                _make_equal(module, own)

    @contextmanager
    def validate_params_and_buffers_inited(self, enabled: bool = True) -> Iterator[None]:
        """On exit, check that all parameters and buffers were initialized.

        Raises:
            RuntimeError: If not; the message has their names.

        """
        yield
        left = [name for name, tensor in self._model.named_parameters() if tensor.is_meta]
        missing = self._missing + left
        if enabled and missing:
            raise RuntimeError(
                f"not initialized: {', '.join(missing[:8])}{' ...' if len(missing) > 8 else ''}. HINT: pass"
                " init_method_using_config, which sets them."
            )


def _as_transformers(model: nn.Module) -> Callable[[nn.Module], object]:
    def init(module: nn.Module) -> None:
        model._init_weights(module)  # type: ignore[operator]
        frequencies = getattr(module, "inv_freq", None)
        if hasattr(module, "rope_init_fn") and frequencies is not None and _is_empty(frequencies):
            # transformers 4 computes rotary frequencies only in the module's constructor
            module.inv_freq, module.attention_scaling = cast(Any, module).rope_init_fn(
                module.config, frequencies.device
            )
            module.original_inv_freq = module.inv_freq

    return init


def _put(module: nn.Module, name: str, value: Tensor) -> None:
    before = module._parameters.get(name)
    if before is None:
        module._buffers[name] = value
    else:
        module._parameters[name] = nn.Parameter(value, before.requires_grad)


def _make_equal(module: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Send the values of a tensor parallel group's first rank to all, to each its shard. Collective over the group."""
    group = state.tp_process_group
    for name, value in _own_tensors(module).items():
        original = before[name]
        if isinstance(original, DTensor):
            _put(module, name, distribute_tensor(value.detach(), original.device_mesh, original.placements))
        else:
            dist.broadcast(value.data, dist.get_global_rank(group, 0), group)


def _own_tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}


def _nothing(tensor: Tensor) -> int:
    return 0 if tensor.dtype is torch.bool else torch.iinfo(tensor.dtype).min


def _is_empty(tensor: Tensor) -> bool:
    if tensor.is_floating_point():
        return bool(tensor.isnan().any())
    return tensor.dtype is not torch.bool and bool((tensor == _nothing(tensor)).any())


def _reset(module: nn.Module) -> None:
    reset = getattr(module, "reset_parameters", None)
    if reset is not None:
        reset()
