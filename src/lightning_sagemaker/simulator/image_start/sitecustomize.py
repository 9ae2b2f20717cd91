# SPDX-License-Identifier: Apache-2.0
"""Makes ``import torch.sagemaker`` load the shim in a simulated job, as AWS's images have the library.

A script whose group is over gloo here, and over nccl there, exits cleanly as well (``collectives/ending.py``).

The name is within torch, so no folder on PYTHONPATH can provide it. Python runs this file when a process starts; the shim
is loaded only when a program imports the name and AWS's library is not installed. This file then removes its folder from
``sys.path``, and runs the ``sitecustomize`` that the job would have had without it.
"""

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would double the cost of this file
    from typing import Any


class _TorchSageMaker:
    """The last finder of ``sys.meta_path``: called if no other has found a module."""

    @classmethod
    def find_spec(cls, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name != "torch.sagemaker":
            return None
        from lightning_sagemaker.smdistributed import importer

        importer.install()
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not cls)
        return next((spec for spec in specs if spec is not None), None)


def _end() -> None:
    if "torch.distributed" in sys.modules:
        from lightning_sagemaker.collectives import ending

        ending.end()


def _run_the_next() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    mine = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")  # another file of this name
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = mine


sys.meta_path.append(_TorchSageMaker)
atexit.register(_end)  # the first to be registered is the last to run
_run_the_next()
