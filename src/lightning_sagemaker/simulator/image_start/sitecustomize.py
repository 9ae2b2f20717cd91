# SPDX-License-Identifier: Apache-2.0
"""What Python runs first in each process of a simulated job.

It makes ``import torch.sagemaker`` load the shim, as AWS's images have the library. The name is within torch, so no folder
on PYTHONPATH can provide it; the shim is loaded only when a program imports the name and AWS's library is not installed.

Groups are over gloo here, and over nccl there: a script that leaves its group to the end of the process exits cleanly all
the same (``collectives/clean_exit.py``), and may give ``DistributedDataParallel`` the device of its rank
(``ddp_on_cpu.py``).

Nothing here imports this package before a program does: what it registers with Lightning depends on what was imported
first. In the end this file removes its folder from ``sys.path``, and runs the ``sitecustomize`` that the job would have had
without it.
"""

import atexit
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing these would double the cost of this file
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
else:
    Loader = object

_HERE = os.path.dirname(os.path.abspath(__file__))


class _TorchSageMaker:
    """The last finder of ``sys.meta_path``: called if no other has found a module."""

    @classmethod
    def find_spec(
        cls, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name != "torch.sagemaker":
            return None
        from lightning_sagemaker.smdistributed import importer

        importer.install()
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not cls)
        return next((spec for spec in specs if spec is not None), None)


class _AfterDDP:
    """The first finder, until torch's module of ``DistributedDataParallel`` is imported."""

    @classmethod
    def find_spec(
        cls, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name != "torch.nn.parallel.distributed":
            return None
        sys.meta_path.remove(cls)
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Another loader, and what follows it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def exec_module(self, module: "ModuleType") -> None:
        self._loader.exec_module(module)
        from importlib.util import module_from_spec, spec_from_file_location

        spec = spec_from_file_location("ddp_on_cpu", os.path.join(os.path.dirname(_HERE), "ddp_on_cpu.py"))
        assert spec is not None
        assert spec.loader is not None
        ddp_on_cpu = module_from_spec(spec)
        spec.loader.exec_module(ddp_on_cpu)
        ddp_on_cpu.accept_devices(module)


def _end() -> None:
    """As ``collectives/clean_exit.py``, which cannot be imported here."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available():  # also after the group: a module in DDP still has it
        time.sleep(0.05)  # seconds, as there


def _run_the_next() -> None:
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    mine = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")  # another file of this name
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = mine


sys.meta_path.insert(0, _AfterDDP)
sys.meta_path.append(_TorchSageMaker)
atexit.register(_end)  # the first to be registered is the last to run
_run_the_next()
