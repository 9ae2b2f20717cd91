# SPDX-License-Identifier: Apache-2.0
"""``python -m lightning_sagemaker SCRIPT ARGS``: run an unchanged script with the strategies registered.

``Trainer()`` then defaults to ``strategy="sagemaker"`` and to the job's number of hosts; what the script passes wins.
``python -m lightning_sagemaker -m MODULE ARGS`` runs a module.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType

import lightning_sagemaker
from lightning_sagemaker.job import Launcher, SageMakerJob
from lightning_sagemaker.job.failure import write_failure
from lightning_sagemaker.smdistributed import importer

_COMMAND = "LIGHTNING_SAGEMAKER_MAIN"
"""``PID:TARGET`` for the processes that Lightning starts from this one: it repeats ``sys.argv[1:]`` only."""

_USAGE = "usage: python -m lightning_sagemaker (SCRIPT.py | -m MODULE) [ARGS ...]"


def main(arguments: list[str]) -> None:
    """Run the script or module that ``arguments`` begin with as ``__main__``."""
    inherited = os.environ.get(_COMMAND, "")
    parent, _, target = inherited.partition(":")
    if parent != str(os.getppid()):  # not a child that Lightning started from a script of ours
        if not arguments or arguments[0] in ("-h", "--help"):
            if not arguments:
                sys.exit(_USAGE)
            print(f"{__doc__}\n{_USAGE}")
            return
        if arguments[0] == "-m" and len(arguments) > 1:
            target, arguments = f"-m {arguments[1]}", arguments[2:]
        else:
            target, arguments = os.path.abspath(arguments[0]), arguments[1:]
    os.environ[_COMMAND] = f"{os.getpid()}:{target}"
    lightning_sagemaker._on_import.register_with_lightning()
    importer.install()  # scripts written for AWS's images import smdistributed
    job = SageMakerJob.from_environment()
    _set_trainer_defaults(job)
    try:
        _run(target, arguments)
    except Exception as error:
        if job.in_container:
            write_failure(job.failure_file, error, job.global_rank)
        raise


def _set_trainer_defaults(job: SageMakerJob) -> None:
    """Defaults of every ``Trainer()`` (Lightning reads ``PL_TRAINER_*``); explicit arguments beat them."""
    os.environ.setdefault("PL_TRAINER_STRATEGY", "sagemaker")
    os.environ.setdefault("PL_TRAINER_NUM_NODES", str(job.num_nodes))
    if job.launcher is not Launcher.NONE:
        os.environ.setdefault("PL_TRAINER_DEVICES", str(job.local_world_size))


def _run(target: str, arguments: list[str]) -> None:
    script = ModuleType("__main__")
    if target.startswith("-m "):
        sys.path[0] = os.getcwd()
        script.__file__, script.__package__, code = _find_module(target[3:])
    else:
        sys.path[0] = os.path.dirname(target)
        script.__file__, code = target, _compile_script(target)
    sys.argv = [script.__file__, *arguments]
    # Lightning starts its children by ``python -m SPEC_NAME ARGS``, so they come through here as well.
    script.__spec__ = ModuleSpec("lightning_sagemaker", None)
    sys.modules["__main__"] = script
    exec(code, script.__dict__)


def _compile_script(path: str) -> CodeType:
    if not os.path.isfile(path):
        sys.exit(f"No such script: {path!r}.\n{_USAGE}")
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec")


def _find_module(name: str) -> tuple[str, str, CodeType]:
    """File, package and code of what ``python -m name`` would run."""
    try:
        spec = find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # a package above it imports something that is missing
        spec = None
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find_spec(f"{name}.__main__")
    if spec is None or spec.origin is None or not isinstance(spec.loader, InspectLoader):
        sys.exit(f"No module named {name!r} can be run.\n{_USAGE}")
    code = spec.loader.get_code(spec.name)
    if code is None:
        sys.exit(f"Module {name!r} has no Python code to run.\n{_USAGE}")
    return spec.origin, spec.parent or "", code


if __name__ == "__main__":
    main(sys.argv[1:])
