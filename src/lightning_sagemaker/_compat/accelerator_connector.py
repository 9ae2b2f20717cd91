# SPDX-License-Identifier: Apache-2.0
"""Keeps the Trainer's and Fabric's choice of environment and accelerator from failing a run with our strategies.

Lightning calls ``detect`` of each environment, and one that raises (mpi4py without an MPI library) ends every
run. MPI's ``detect`` initializes MPI, which terminates the process if the library is incomplete. On a Mac Lightning refuses
all DDP strategies, even for one process, which needs no group.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial, wraps
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, TypeVar

from lightning_sagemaker._compat.guard import require

if TYPE_CHECKING:
    from lightning.pytorch.accelerators import Accelerator

    from lightning_sagemaker._lightning import ClusterEnvironment


T = TypeVar("T")


class Connector(Protocol):
    """The part of Lightning's accelerator connector that is used here."""

    _strategy_flag: object
    _accelerator_flag: object


Report = Callable[[type, Exception], None]
"""Called with an environment and what its ``detect`` raised."""

_MODULES = {
    "lightning": ("lightning.pytorch.trainer.connectors.accelerator_connector", "lightning.fabric.connector"),
    "pytorch_lightning": ("pytorch_lightning.trainer.connectors.accelerator_connector", "lightning_fabric.connector"),
}
_CLASSES = ("_AcceleratorConnector", "_Connector")
_ENVIRONMENT = "_choose_and_init_cluster_environment"
_FLAGS = "_check_config_and_set_final_flags"
_DEVICES = "_check_device_config_and_set_final_flags"
_MPI_LAUNCHED = (
    "OMPI_COMM_WORLD_SIZE",
    "PMIX_RANK",
    "PMI_RANK",
    "PMI_FD",
    "MV2_COMM_WORLD_SIZE",
    "MPIRUN_RANK",
    "PALS_RANKID",
)
"""Variables of Open MPI, MPICH and its derivatives, and Cray: without one, MPI would report a single process."""
_ASKED = "_lightning_sagemaker_safe_detect"
_MARK = "_lightning_sagemaker"


def take_over(
    is_ours: Callable[[object], bool],
    not_there: Report,
    leaves_mps: Callable[..., bool],
    knows_ranks: Callable[[object], bool],
) -> None:
    """Change the connectors of the Trainer and of Fabric for our strategies; others are unaffected. Idempotent.

    Args:
        is_ours: Whether a strategy, as the user passed it, is of this package.
        not_there: Called when an environment's ``detect`` fails and it is skipped.
        leaves_mps: Called on a machine with an MPS device, with the strategy, the accelerator, the devices and the
            number of nodes, as the user passed them. Returns whether to use the CPU.
        knows_ranks: Called with a strategy; whether it takes its ranks from the launcher, so that MPI need not be
            initialized.

    """
    for module, class_name in zip(_modules(), _CLASSES, strict=True):
        require(module, class_name, "MPSAccelerator")
        connector = getattr(module, class_name)
        require(connector, _ENVIRONMENT, _FLAGS, _DEVICES)
        if hasattr(getattr(connector, _ENVIRONMENT), _MARK):
            continue
        _replace(connector, _ENVIRONMENT, _environment, module, is_ours, not_there, knows_ranks)
        _replace(connector, _FLAGS, _flags, module.MPSAccelerator, is_ours)
        _replace(connector, _DEVICES, _devices, leaves_mps)


def ask_environments() -> Iterator[tuple[type, Callable[[], Exception | None]]]:
    """The environments, each with a function that calls its ``detect`` and returns the exception, or None. May exit."""
    for kind in _environments(_modules()[0]):
        yield kind, partial(_raised, kind.detect)


def _raised(detect: Callable[[], bool]) -> Exception | None:
    try:
        detect()
    except Exception as error:
        return error
    return None


def _modules() -> list[ModuleType]:
    from lightning_sagemaker._lightning import PACKAGE

    return [import_module(name) for name in _MODULES[PACKAGE]]


def _replace(owner: type, name: str, make: Callable[..., Callable[..., object]], *needed: object) -> None:
    original = getattr(owner, name)
    replacement = wraps(original)(make(original, *needed))
    vars(replacement)[_MARK] = True
    setattr(owner, name, replacement)


def _environment(
    choose: Callable[[Connector], T],
    module: ModuleType,
    is_ours: Callable[[object], bool],
    not_there: Report,
    knows_ranks: Callable[[object], bool],
) -> Callable[[Connector], T]:
    def chosen(connector: Connector) -> T:
        if not is_ours(connector._strategy_flag):
            return choose(connector)
        # MPI_Init busy-waits for every rank of the job, here and when the process ends.
        needs_mpi = any(name in os.environ for name in _MPI_LAUNCHED) and not knows_ranks(connector._strategy_flag)
        with _passing_over(_environments(module), not_there, needs_mpi):
            return choose(connector)

    return chosen


def _environments(module: ModuleType) -> list[type[ClusterEnvironment]]:
    from lightning_sagemaker._lightning import ClusterEnvironment

    kinds = {id(value): value for value in vars(module).values() if isinstance(value, type)}
    return [kind for kind in kinds.values() if issubclass(kind, ClusterEnvironment) and kind is not ClusterEnvironment]


@contextlib.contextmanager
def _passing_over(kinds: list[type[ClusterEnvironment]], not_there: Report, needs_mpi: bool) -> Iterator[None]:
    """Context in which ``detect`` of an environment returns False instead of failing."""
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            stack.callback(setattr, kind, "detect", staticmethod(kind.detect))
            kind.detect = staticmethod(  # type: ignore[method-assign]
                _safe_detect(kind, kind.detect, not_there, needs_mpi)
            )
        yield


def _safe_detect(kind: type, detect: Callable[[], bool], not_there: Report, needs_mpi: bool) -> Callable[[], bool]:
    def detected() -> bool:
        try:
            if _would_start_mpi(detect) and not needs_mpi:
                with contextlib.suppress(ModuleNotFoundError):
                    find_spec("mpi4py.MPI")  # raises without a library, and does not initialize MPI
                return False
            return bool(detect())
        except Exception as error:
            not_there(kind, error)
            return False

    return detected


def _would_start_mpi(detect: Callable[[], bool]) -> bool:
    return getattr(detect, "__module__", "").endswith("plugins.environments.mpi")


def _flags(
    check: Callable[..., None], mps: type[Accelerator], is_ours: Callable[[object], bool]
) -> Callable[..., None]:
    def checked(connector: Connector, strategy: object, accelerator: object, **rest: object) -> None:
        fixed = getattr(strategy, "_accelerator", None) or getattr(strategy, "parallel_devices", None)
        may_be_mps = accelerator in ("auto", "gpu", "mps", None) or isinstance(accelerator, mps)
        if fixed or not may_be_mps or not is_ours(strategy) or not mps.is_available():
            check(connector, strategy=strategy, accelerator=accelerator, **rest)
            return
        # Lightning's check is run as for a CPU; whether CPU or MPS is used is decided once the devices are known.
        check(connector, strategy=strategy, accelerator="cpu", **rest)
        connector._accelerator_flag = accelerator
        vars(connector)[_ASKED] = accelerator

    return checked


def _devices(check: Callable[..., None], leaves_mps: Callable[..., bool]) -> Callable[..., None]:
    def checked(connector: Connector, devices: object, num_nodes: int) -> None:
        check(connector, devices=devices, num_nodes=num_nodes)
        if _ASKED in vars(connector) and leaves_mps(
            connector._strategy_flag, vars(connector).pop(_ASKED), devices, num_nodes
        ):
            connector._accelerator_flag = "cpu"

    return checked
