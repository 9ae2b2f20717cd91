# SPDX-License-Identifier: Apache-2.0
"""How the benchmarks of strategies start their processes."""

from __future__ import annotations

import argparse
import sys

PROCESSES = {"cpu": 2, "gpu": 1}
"""By accelerator: nccl takes a GPU once."""


def add_accelerator(parser: argparse.ArgumentParser) -> None:
    """Add the option that says where the processes run."""
    parser.add_argument(
        "--accelerator", default="cpu", choices=PROCESSES, help="two processes on CPUs, or one on a GPU"
    )


def torchrun(accelerator: str) -> list[str]:
    """The command that starts a script on all processes."""
    processes = f"--nproc-per-node={PROCESSES[accelerator]}"
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", processes]
