# SPDX-License-Identifier: Apache-2.0
"""What to do about errors that a script has here and not in the job it is written for."""

from __future__ import annotations

import importlib.util
import re
from importlib.metadata import PackageNotFoundError, version

_MISSING = re.compile(r"ModuleNotFoundError: No module named '(?P<name>(?P<package>\w+)[\w.]*)'")
_NO_GPU = re.compile(
    r"No supported gpu backend found|Torch not compiled with CUDA enabled|No CUDA GPUs are available"
    r"|Found no NVIDIA driver|CUDAAccelerator` can not run on your system|only supported with GPUs, no GPUs found"
    r"|doesn't have NCCL built in|FSDP needs a non-CPU accelerator|FSDP is only available on GPU"
    r"|has no attribute '_cuda_setDevice'|requires at least one CUDA device"
)
_NO_ADDRESS = re.compile(
    r"gaierror|client socket has timed out .* \(algo-\d+, |name or service not known", re.IGNORECASE
)
_NO_SMDDP = re.compile(r"Unknown backend type smddp|Invalid backend: '?smddp", re.IGNORECASE)
_NO_DEVICE = re.compile(r"UnboundLocalError: .*local variable 'device'")
_NO_FOLDER = re.compile(r"(No such file or directory|Permission denied): '/opt/ml\b")
_IN_IMAGES = {"sagemaker_training": "sagemaker-training", "smdebug": "smdebug"}
"""Modules that AWS's images have, and their names on PyPI."""


def hint_for(message: str) -> str | None:
    """What to do about an error; None if nothing is known.

    Args:
        message: Exception with its type, without its traceback.

    """
    if missing := _MISSING.search(message):
        return _about_module(missing["name"], missing["package"])
    if _NO_GPU.search(message):
        return (
            "HINT: this machine has no GPU. To run both here and on GPUs: Trainer(accelerator='auto') with a strategy that"
            " sets no accelerator; or device 'cuda' and backend 'nccl' only where torch.cuda.is_available()."
        )
    if _NO_ADDRESS.search(message):
        return (
            "HINT: if it is the name of a simulated host, see the first lines: resolving it needs Linux, and root or"
            " user namespaces; --network netns resolves it too."
        )
    if _NO_SMDDP.search(message):
        return (
            "HINT: import smdistributed.dataparallel.torch.torch_smddp before init_process_group, here and in the job."
        )
    if _NO_DEVICE.search(message):
        return (
            "HINT: with SMP and without a GPU, transformers.TrainingArguments selects no device from release 4.29 on: use"
            " transformers 4.28.1 here, or Lightning's Trainer(strategy='smp')."
        )
    if _NO_FOLDER.search(message):
        return (
            "HINT: a host's folder is /opt/ml only where names resolve (see the first lines), and has the channels that"
            " --channel NAME=DIR gives; SM_CHANNEL_NAME, SM_MODEL_DIR and SM_OUTPUT_DATA_DIR always have the path."
        )
    return None


def _about_module(name: str, package: str) -> str:
    if name != package and importlib.util.find_spec(package) is not None:
        try:
            installed = f"{package} {version(package)}"
        except PackageNotFoundError:
            installed = package
        return f"HINT: {installed} is installed and has no such module: the script was written for another version."
    if package in _IN_IMAGES:
        return f"HINT: AWS's images have it; pip install {_IN_IMAGES[package]} here."
    return f"HINT: pip install {package} here; for a job on SageMaker, list it in requirements.txt as well."
