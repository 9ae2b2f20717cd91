# SPDX-License-Identifier: Apache-2.0
"""Chooses how the processes of this host are started: by a launcher, by Lightning (``start_method``), or manually."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from lightning_utilities.core.apply_func import apply_to_collection

from lightning_sagemaker._compat.guard import shadow
from lightning_sagemaker._lightning import (
    ClusterEnvironment,
    FabricDDPStrategy,
    LightningEnvironment,
    MisconfigurationException,
)
from lightning_sagemaker.job import Launcher, SageMakerJob, by_hand
from lightning_sagemaker.job.process import begin_start, end_start
from lightning_sagemaker.strategies.machine import log_once

_POPEN = "popen"
"""Lightning's default: the script is re-run for each other process."""
_FORKSERVER = "forkserver"


class _Launcher(Protocol):
    def launch(self, function: Callable[..., object], *args: object, **kwargs: object) -> object: ...


class _Startable(Protocol):
    """A strategy with its environment and devices."""

    job: SageMakerJob
    _launcher: _Launcher
    _start_method: str

    @property
    def cluster_environment(self) -> ClusterEnvironment | None: ...
    @property
    def world_size(self) -> int: ...
    @property
    def global_rank(self) -> int: ...
    @property
    def num_processes(self) -> int: ...


def _is_interactive() -> bool:
    """Whether this is a notebook or an interactive interpreter, without a script to re-run; as Lightning checks it."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def choose(strategy: _Startable) -> bool:
    """Choose the start method of a strategy, before its launcher is created.

    Args:
        strategy: Strategy with its environment and devices.

    Returns:
        Whether the strategy needs a launcher: a single process in a notebook does not.

    Raises:
        MisconfigurationException: If the script would have to be re-run in a notebook. In Fabric, ``RuntimeError``.

    """
    job, environment = strategy.job, strategy.cluster_environment
    if job.by_hand:
        log_once(job.notes[-1])
    method = getattr(strategy, "_start_method", _POPEN)
    if job.launcher is not Launcher.NONE:
        if method != _POPEN:
            log_once(f"start_method={method!r} is ignored: {job.launcher.value} has already started the processes.")
            strategy._start_method = _POPEN
        return True
    assert environment is not None
    if environment.creates_processes_externally:
        return True
    if method == _POPEN:
        # The launcher calls this method before it starts processes.
        shadow(environment, "validate_settings", partial(_begin, environment))
    if method != _POPEN or not _is_interactive():
        return True
    if strategy.world_size > 1 and getattr(strategy, "forks_in_notebooks", False):
        log_once("Starting the processes by start_method='fork': this is a notebook or an interactive interpreter.")
        strategy._start_method = "fork"
        return True
    if strategy.world_size > 1:
        kind = RuntimeError if isinstance(strategy, FabricDDPStrategy) else MisconfigurationException
        raise kind(
            f"{type(strategy).__name__} was made in a notebook or an interactive interpreter, whose program cannot be run"
            f" again in the other {strategy.world_size - 1} process(es). HINT: set strategy='smddp_notebook',"
            " 'sagemaker' or start_method='fork', or run the code as a script."
        )
    return False


def unshare(strategy: _Startable) -> None:
    """Give each process that the fork server starts its own copy of the weights; called once the launcher is created.

    Tensors that are sent to another process are in shared memory, so on CPUs all processes would train the same weights.
    Lightning (2.6.6) copies them for ``spawn`` only.
    """
    if getattr(strategy, "_start_method", _POPEN) == _FORKSERVER:
        shadow(strategy._launcher, "launch", partial(_launch, strategy._launcher))


def _launch(launcher: _Launcher, function: Callable[..., object], *args: object, **kwargs: object) -> object:
    return type(launcher).launch(launcher, _Unshared(function), *args, **kwargs)


class _Unshared:
    """A function that is sent to another process, with modules among its arguments."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def __call__(self, *args: object, **kwargs: object) -> object:
        args, kwargs = apply_to_collection((args, kwargs), torch.nn.Module, _with_own_memory)
        return self._function(*args, **kwargs)


def _with_own_memory(module: torch.nn.Module) -> torch.nn.Module:
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        tensor.data = tensor.data.clone()
    return module


def _begin(environment: ClusterEnvironment, num_devices: int, num_nodes: int) -> None:
    # The class's method, as the environment may be from another Trainer, which has replaced the instance's.
    type(environment).validate_settings(environment, num_devices, num_nodes)
    begin_start()


def check(strategy: _Startable) -> None:
    """Check, in each process, that manually started processes match the strategy; Lightning has started its own by now.

    Raises:
        SageMakerJobError: If they do not match.

    """
    end_start()
    by_hand.check(
        strategy.job.by_hand,
        global_rank=strategy.global_rank,
        world_size=strategy.world_size,
        num_devices=strategy.num_processes,
        is_lightnings=isinstance(strategy.cluster_environment, LightningEnvironment),
    )
