# SPDX-License-Identifier: Apache-2.0
"""Seconds and memory of a rehearsal with many processes, forked from one that has imported and each by itself.

``python benchmarks/rehearsal.py`` times 4 hosts of 8 processes in both ways, one after the other;
``--hosts 16 --forked-only`` asks for the memory of 128. Memory is the sum of the processes' proportional shares (PSS).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

PROGRAM = """
print("started", flush=True)
import lightning_sagemaker, torch
from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


print("imported", flush=True)
quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
trainer = Trainer(strategy="sagemaker", accelerator="cpu", max_steps=4, **quiet)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(1024, 4)))
print("done", flush=True)
"""


def memory(mark: str) -> float:
    """GiB of all processes that carry ``mark`` among their variables."""
    total = 0
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if mark.encode() in Path("/proc", entry, "environ").read_bytes():
                    text = Path("/proc", entry, "smaps_rollup").read_text()
                    total += int(text.partition("\nPss:")[2].split()[0])
            except (OSError, IndexError):
                pass
    return total / 2**20


def rehearse(option: str, hosts: int, processes: int, distribution: str, weigh: bool) -> dict[str, float]:
    """Run once; seconds from the start to the first and last of each line, and to the end."""
    times: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(PROGRAM)
        mark = f"REHEARSAL={time.time_ns()}"
        command = [sys.executable, "-m", "lightning_sagemaker.cli", "local", option, "--root", f"{folder}/root"]
        command += ["--hosts", str(hosts), "--processes-per-host", str(processes), "--distribution", distribution]
        begin = time.monotonic()
        job = subprocess.Popen(
            [*command, "--", "python", f"{folder}/train.py"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, mark.partition("=")[0]: mark.partition("=")[2]},
        )

        def watch() -> None:
            while job.poll() is None:
                times["GiB"] = max(times.get("GiB", 0.0), memory(mark))
                time.sleep(2)

        if weigh:
            threading.Thread(target=watch).start()
        assert job.stdout is not None
        lines = []
        for line in job.stdout:
            lines.append(line)
            for name in ("started", "imported", "done"):
                if line.endswith(f"| {name}\n"):
                    times.setdefault(f"first {name}", time.monotonic() - begin)
                    times[f"last {name}"] = time.monotonic() - begin
        if job.wait():
            sys.exit("".join(lines[-40:]))
        times["end"] = time.monotonic() - begin
    return times


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--processes-per-host", type=int, default=8)
    parser.add_argument("--distribution", default="smddp")
    parser.add_argument("--forked-only", action="store_true")
    parser.add_argument("--memory", action="store_true", help="measured while it runs, which takes time from it")
    options = parser.parse_args()
    columns = ("first started", "last imported", "last done", "end", *(("GiB",) if options.memory else ()))
    print("", *columns, sep=" | ", flush=True)
    for option in ("--preload",) if options.forked_only else ("--no-preload", "--preload"):
        count = options.processes_per_host
        found = rehearse(option, options.hosts, count, options.distribution, options.memory)
        load = os.getloadavg()[0]
        print(option, *(f"{found[name]:.1f}" for name in columns), f"load {load:.0f}", sep=" | ", flush=True)


if __name__ == "__main__":
    main()
