# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""Writes down everything that a rank can see of itself: what is so at its start, after its imports, and at its end."""

import sys

MODULES_AT_START = sorted(name.partition(".")[0] for name in sys.modules)

import atexit
import importlib.util
import json
import logging
import os
import random
import resource
import signal
import socket
import stat
import tempfile
import threading
import time
import warnings
from pathlib import Path

PACKAGES = (
    "torch",
    "lightning",
    "pytorch_lightning",
    "torchmetrics",
    "transformers",
    "lightning_sagemaker",
    "mpi4py.MPI",
)


def process_tree() -> dict[str, object]:
    """Relations, not numbers: those differ from run to run."""
    pid, session = os.getpid(), os.getsid(0)
    return {
        "parent": Path(f"/proc/{os.getppid()}").exists() and os.getppid() > 1,
        "own group": os.getpgid(0) == pid,
        "leads its session": session == pid,
        "session's leader lives": Path(f"/proc/{session}").exists(),
        "terminal": Path("/proc/self/stat").read_text().rpartition(")")[2].split()[4],
        "threads": len(os.listdir("/proc/self/task")),
        "children": Path(f"/proc/self/task/{pid}/children").read_text(),
        "can lead a session": can(os.setsid),
        "shown as": Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").decode().split("\0"),
        "nice": os.nice(0),
        "cores": sorted(os.sched_getaffinity(0)),
        "limits": {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")},
        "umask": Path("/proc/self/status").read_text().partition("Umask:")[2].split()[0],
        "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in ("net", "pid")},
        "name": socket.gethostname(),
        "names": Path("/etc/hosts").read_text(),
    }


def can(do) -> bool:
    try:
        do()
    except OSError:
        return False
    return True


def files() -> dict[str, object]:
    found = {}
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            status = os.fstat(number)
        except OSError:
            continue  # the listing's own
        found[str(number)] = (stat.S_IFMT(status.st_mode), os.get_inheritable(number))
    return found


def streams() -> dict[str, object]:
    return {
        stream.name: (
            stream.encoding,
            stream.errors,
            stream.isatty(),
            stream.line_buffering,
            stream.write_through,
            stream.mode,
        )
        for stream in (sys.stdin, sys.stdout, sys.stderr)
    }


def signals() -> dict[str, object]:
    status = Path("/proc/self/status").read_text()
    kept = [line for line in status.splitlines() if line.startswith(("SigBlk", "SigIgn", "SigCgt", "NoNewPrivs"))]
    return {
        "kernel": kept,
        "python": {
            n.name: str(signal.getsignal(n)).split(" at ")[0]
            for n in signal.valid_signals()
            if isinstance(n, signal.Signals)
        },
    }


def python() -> dict[str, object]:
    main = {name: value for name, value in vars(sys.modules["__main__"]).items() if name.startswith("__")}
    main["__builtins__"] = type(main["__builtins__"])  # torch 2.5, loaded or not, puts a pointer of its own into it
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        # without the folder for generated modules that torch 2.5 appends
        "path": [one for one in sys.path if not one.startswith(os.path.join(tempfile.gettempdir(), "tmp"))],
        "flags": str(sys.flags),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "main": {name: str(main.get(name)).split(" object at ")[0] for name in sorted(main)},
        "loaded": [name for name in PACKAGES if name in sys.modules],
        "found": {name: importlib.util.find_spec(name).origin for name in PACKAGES if name != "mpi4py.MPI"},
        "loaded by finding": [name for name in PACKAGES if name in sys.modules],
        "warnings": [f"{action} {category.__name__} {module}" for action, _, category, module, _ in warnings.filters],
        "folder for temporary files": tempfile.gettempdir(),
        "working folder": os.getcwd(),
        "log handlers": str(logging.getLogger().handlers),
        "main thread": threading.current_thread() is threading.main_thread(),
    }


def configuration() -> dict[str, object]:
    base = Path(os.environ["SAGEMAKER_BASE_DIR"])
    texts = {str(path.relative_to(base)): path.read_text() for path in sorted(base.glob("input/config/*.json"))}
    return {
        "files": texts,
        "tree": sorted(str(path.relative_to(base)) for path in base.rglob("*") if "output" not in path.parts),
    }


view = {
    "at start": {
        "variables": dict(os.environ),
        "process": process_tree(),
        "open files": files(),
        "streams": streams(),
        "signals": signals(),
        "python": python(),
        "configuration": configuration(),
    },
}

import lightning_sagemaker  # noqa: I001
from lightning.pytorch import LightningModule, Trainer
import lightning.fabric.utilities.rank_zero
import multiprocessing.process
import numpy
import torch
import torchmetrics.utilities.prints

view["after imports"] = {
    "variables": dict(os.environ),
    "rank for Lightning's log": lightning.fabric.utilities.rank_zero.rank_zero_only.rank,
    "rank for torchmetrics' log": torchmetrics.utilities.prints.rank_zero_only.rank,
    "logger": lightning.fabric.utilities.rank_zero.rank_zero_module.log.name,
    "handlers": {
        n: (logging.getLogger(n).level, [type(h).__name__ for h in logging.getLogger(n).handlers])
        for n in ("", "lightning", "lightning.pytorch", "lightning.fabric", "torch")
    },
    "stream of the log": [h.stream is sys.stderr for h in logging.getLogger("lightning.pytorch").handlers],
    "package": lightning_sagemaker._lightning.PACKAGE if "lightning_sagemaker._lightning" in sys.modules else None,
    "names": sorted(n for n in lightning.pytorch.strategies.StrategyRegistry if n in ("sagemaker", "smddp", "smp")),
    "original folder": multiprocessing.process.ORIGINAL_DIR,
    "warnings": sorted(f"{action} {category.__name__} {module}" for action, _, category, module, _ in warnings.filters),
    "torch's threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
    "cuda": (torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()),
    "loaded": [name for name in PACKAGES if name in sys.modules],
    "specs": {
        n: (
            sys.modules[n].__spec__.name,
            type(sys.modules[n].__spec__.loader).__name__,
            sys.modules[n].__spec__._initializing,
        )
        for n in ("torch", "lightning", "lightning.pytorch", "torch.nn", "torchmetrics")
    },
    "incomplete": sorted(
        n
        for n in (
            "torch.nn.functional",
            "torch.distributed",
            "lightning.pytorch.trainer",
            "lightning.fabric.strategies",
        )
        if n not in sys.modules
    ),
    "start method": multiprocessing.get_start_method(),
    "threads": len(os.listdir("/proc/self/task")),
    "limit of recursion": sys.getrecursionlimit(),
}
own = {
    "torch": torch.initial_seed(),
    "random": random.random(),
    "numpy": numpy.random.rand(),
    "session": os.getsid(0),
    "parent": os.getppid(),
}

here = Path(os.environ["SM_OUTPUT_DATA_DIR"])
rank = int(os.environ["RANK"])
before = time.monotonic()


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
torch.manual_seed(0)
loader = torch.utils.data.DataLoader(torch.linspace(-1, 1, 128).reshape(32, 4), batch_size=4, num_workers=1)
trainer, model = Trainer(strategy="sagemaker", accelerator="cpu", max_steps=2, **quiet), Model()
trainer.fit(model, loader)
view["after training"] = {
    "ranks": (trainer.global_rank, trainer.local_rank, trainer.node_rank, trainer.world_size),
    "strategy": type(trainer.strategy).__name__,
    "weights": torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(),
    "loaded": [name for name in PACKAGES if name in sys.modules],
    "version 2": importlib.import_module("torch.sagemaker").__name__,
}
(here / f"view-{rank}.json").write_text(json.dumps({"view": view, "own": own}))


def late() -> None:
    time.sleep(0.3)
    (here / f"thread-{rank}").write_text("waited for")


threading.Thread(target=late).start()
atexit.register(lambda: (here / f"atexit-{rank}").write_text(f"thread {(here / f'thread-{rank}').exists()}"))
unflushed = open(here / f"unflushed-{rank}", "w")  # noqa: SIM115
unflushed.write("at the end")
