# SPDX-License-Identifier: Apache-2.0
r"""Training throughput by way of reducing gradients, between simulated hosts with links of a given rate; needs root.

    make bench-reduction             # or, one case:
    python benchmarks/reduction.py --model albert --hosts 2x2 --rate 500mbit

Hosts are network namespaces of this machine. Processes train a stand-in through torch's DDP: it has the parameters of
ALBERT-base (11.7 million, gradients ready at the end of the backward pass, as its layers share their weights) or BERT-base
(109 million, ready layer by layer), and sleeps where a GPU would compute, since several hosts cannot compute on one
machine's cores. The seconds of a step's compute are set so that plain DDP reaches the wanted efficiency, T(no
communication) / T, and then all ways are measured in turn, in one run, round by round. The first lines are all-reduces
alone, beside their bounds 2 (N - 1) / N * bytes / rate: N processes for a ring of all, N hosts for the hierarchy.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from stand_in import MODELS, stand_in

from lightning_sagemaker.simulator.network import network

WHOLE = 2**30
MEGABYTE = 2**20
TRIED = 64 * MEGABYTE
"""The largest all-reduce that is measured alone."""
WAYS = {
    "flat": None,
    "hierarchical, buckets whole": ("hierarchical", None, WHOLE),
    "hierarchical": ("hierarchical", None, 2 * MEGABYTE),
    "flat, bf16": ("flat", "bf16", 2 * MEGABYTE),
    "hierarchical, bf16": ("hierarchical", "bf16", 2 * MEGABYTE),
    "hierarchical, bf16, after the backward pass": ("hierarchical", "bf16", 2 * MEGABYTE),
    "powersgd": ("flat", "powersgd", 2 * MEGABYTE),
    "auto": ("auto", None, 0),
    "auto, bf16": ("auto", "bf16", 0),
    "auto, powersgd": ("auto", "powersgd", 0),
}
"""Name -> algorithm, compression and bytes of a piece."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="albert")
    parser.add_argument("--hosts", default="2x2", help="hosts x processes on each")
    parser.add_argument("--rate", default="500mbit", help="of each host's link, as tc writes it; 'none' is unlimited")
    parser.add_argument("--efficiency", type=float, default=0.6, help="of plain DDP")
    parser.add_argument(
        "--compute", type=float, help="seconds of a step without communication, instead of --efficiency"
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1, help="of a way in a round")
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="only these, beside flat")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments)
    else:
        figures = launch(arguments)
        report(arguments, figures)
        if arguments.json:
            arguments.json.write_text(json.dumps({"arguments": vars(arguments), **figures}, default=str, indent=2))


def launch(arguments: argparse.Namespace) -> dict:
    """Run the processes in their namespaces; what the first one found."""
    hosts, processes = map(int, arguments.hosts.split("x"))
    names = [f"algo-{number + 1}" for number in range(hosts)]
    with (
        tempfile.TemporaryDirectory() as folder,
        network(names, None if arguments.rate == "none" else arguments.rate) as net,
    ):
        out, started = Path(folder) / "figures.json", []
        for rank in range(hosts * processes):
            host, local = divmod(rank, processes)
            variables = {"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": hosts * processes, "NODE_RANK": host}
            variables |= {"MASTER_ADDR": names[0], "MASTER_PORT": 29500, "GLOO_SOCKET_IFNAME": net.interface}
            environment = (
                os.environ | {name: str(value) for name, value in variables.items()} | {"OMP_NUM_THREADS": "1"}
            )
            command = [sys.executable, "-W", "ignore", __file__, *sys.argv[1:], "--worker", str(out)]
            started.append(subprocess.Popen(net.enter(names[host], command), env=environment))
        try:
            codes = [process.wait(3600) for process in started]
        finally:
            for process in started:
                process.kill()
        if any(codes):
            sys.exit(f"error: processes ended with {codes}.")
        return json.loads(out.read_text())


def report(arguments: argparse.Namespace, figures: dict) -> None:
    """Print the tables."""
    load = ", ".join(f"{value:.1f}" for value in figures["load"])
    size = figures["bytes"]
    print(
        f"\n{arguments.model}, {size / 4e6:.1f} million float32 gradients, {arguments.hosts}, {arguments.rate}; load {load}"
    )
    print(f"\n{'all-reduce alone':<46}{'seconds':>9}{'bound':>9}{'of it':>7}")
    for name, (taken, bound) in figures["alone"].items():
        print(f"{name:<46}{taken:>9.3f}" + (f"{bound:>9.3f}{bound / taken:>7.0%}" if bound else f"{'-':>9}{'-':>7}"))
    nothing, plain = figures["compute"], figures["ways"]["flat"]["seconds"]
    print(f"\na step without communication {nothing:.3f} s; plain DDP reaches {nothing / plain:.0%}")
    print(f"\n{'way':<46}{'step s':>8}{'least':>8}{'most':>8}{'efficiency':>12}{'x plain DDP':>13}  rounds")
    for name, found in figures["ways"].items():
        each = ", ".join(f"{ratio:.2f}" for ratio in found["ratios"])
        print(
            f"{name:<46}{found['seconds']:>8.3f}{found['least']:>8.3f}{found['most']:>8.3f}"
            f"{nothing / found['seconds']:>12.0%}{plain / found['seconds']:>13.3f}  {each}"
        )
    for name, words in figures["chosen"].items():
        print(f"{name}: {words}")


def work(arguments: argparse.Namespace) -> None:
    """One process."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    bench = Bench(arguments)
    alone = bench.alone()
    bench.calibrate(alone["flat"][0] * bench.size / min(bench.size, TRIED))
    ways = bench.measure()
    if dist.get_rank() == 0:
        found = {"alone": alone, "ways": ways, "compute": bench.compute(), "bytes": bench.size, "load": os.getloadavg()}
        arguments.worker.write_text(json.dumps(found | {"chosen": bench.chosen}))
    dist.barrier()


class Bench:
    """All that one process has: two stand-ins, plain and with a hook that changes, and the ways."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel as DDP

        from lightning_sagemaker.collectives.agreement import of_all
        from lightning_sagemaker.collectives.reduction.hook import attach
        from lightning_sagemaker.collectives.reduction.topology import Groups, Topology

        self.arguments, self.world = arguments, dist.get_world_size()
        self.groups = Groups(Topology.of(of_all(int(os.environ["NODE_RANK"]), self.world)), "gloo")
        self.seconds = 0.0
        self.now: Any = None  # the way that is measured
        shapes = MODELS[arguments.model]
        self.models = {True: DDP(stand_in(shapes, lambda: self.seconds), gradient_as_bucket_view=True, init_sync=False)}
        self.models[False] = DDP(stand_in(shapes, lambda: self.seconds), gradient_as_bucket_view=True, init_sync=False)
        attach(self.models[False], self)
        self.optimizers = {key: torch.optim.SGD(model.parameters(), 1e-6) for key, model in self.models.items()}
        self.size = sum(parameter.nbytes for parameter in self.models[True].parameters())
        self.chosen: dict[str, str] = {}
        wanted = ("flat", *(arguments.ways or WAYS))
        within = not self.groups.topology.obstacle
        self.reducers = {
            name: self.make(name) for name in WAYS if name in wanted and (within or not name.startswith("hierarchical"))
        }

    def make(self, name: str):
        """What reduces by a way; None for plain DDP."""
        import torch

        from lightning_sagemaker.collectives.reduction.engine import Engine
        from lightning_sagemaker.collectives.reduction.hook import Reducer
        from lightning_sagemaker.collectives.reduction.options import ReductionOptions
        from lightning_sagemaker.collectives.reduction.plan import Plan

        if WAYS[name] is None:
            return None
        algorithm, compression, piece = WAYS[name]
        cpu = torch.device("cpu")
        if algorithm != "auto" and compression != "powersgd":
            return Reducer(Plan(algorithm, compression, piece), self.groups, cpu)
        start = {"powersgd_start": 2} if compression == "powersgd" else {}
        engine = Engine(ReductionOptions(algorithm, compression, **start), self.groups, cpu, self.size)
        if algorithm == "auto":
            self.chosen[name] = f"{engine.plan.description}. {engine.reason}"
        return engine.reducer

    def reduce_bucket(self, bucket):
        """The hook, in the way that is measured now."""
        future = self.reducers[self.now].reduce_bucket(bucket)
        if self.now.endswith("after the backward pass"):
            future.wait()
        return future

    def step(self, way: str | None) -> float:
        """Seconds of one step; None: without communication."""
        self.now = way
        model = self.models[way is None or self.reducers[way] is None]
        optimizer = self.optimizers[model is self.models[True]]
        model.require_backward_grad_sync = way is not None
        begin = time.perf_counter()
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
        return time.perf_counter() - begin

    def timed(self, way: str | None, steps: int) -> list[float]:
        """The slowest rank's seconds of steps."""
        import torch
        import torch.distributed as dist

        dist.barrier()
        found = torch.tensor([self.step(way) for _ in range(steps)])
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return found.tolist()

    def compute(self) -> float:
        """Seconds of a step without communication."""
        return statistics.median(self.nothing)

    def calibrate(self, alone: float) -> None:
        """Let the stand-in sleep so long that plain DDP has the wanted efficiency.

        Args:
            alone: Seconds of plain DDP's all-reduces of all gradients, to begin with.

        """
        wanted = self.arguments.efficiency
        odds = wanted / (1 - wanted)
        self.seconds = self.arguments.compute or odds * alone
        for way in dict.fromkeys(("flat", next(iter(self.hooked), "flat"))):
            self.timed(way, 2)  # DDP makes its buckets anew
        for name in self.hooked:
            self.timed(name, 3 if "powersgd" in name else 1)
        self.nothing = self.timed(None, 2)
        for _ in range(0 if self.arguments.compute else 5):
            reached = self.compute() / statistics.median(self.timed("flat", 2))
            if abs(reached - wanted) < 0.015:
                break
            self.seconds *= odds / (reached / (1 - reached))
            self.nothing = self.timed(None, 2)

    @property
    def hooked(self) -> list[str]:
        """The ways that are not plain DDP's."""
        return [name for name, reducer in self.reducers.items() if reducer is not None]

    def measure(self) -> dict:
        """Steps of each way, round by round."""
        times: dict[str, list[float]] = {name: [] for name in self.reducers}
        ratios: dict[str, list[float]] = {name: [] for name in self.reducers}
        for number in range(self.arguments.rounds):
            order = list(self.reducers) if number % 2 == 0 else list(reversed(self.reducers))
            taken = {name: self.timed(name, self.arguments.steps) for name in order}
            self.nothing += self.timed(None, 1)
            for name, seconds in taken.items():
                times[name] += seconds
                ratios[name].append(statistics.median(taken["flat"]) / statistics.median(seconds))
        found = {}
        for name, seconds in times.items():
            found[name] = {"seconds": statistics.median(seconds), "least": min(seconds), "most": max(seconds)}
            found[name]["ratios"] = ratios[name]
        return found

    def alone(self) -> dict:
        """Seconds of an all-reduce of all gradients at once, and its bound by the links' rate."""
        import torch
        import torch.distributed as dist

        vector = torch.ones(min(self.size, TRIED) // 4)
        hosts, rate = len(self.groups.topology.hosts), bytes_per_second(self.arguments.rate)
        found = {}
        for name, reducer in self.reducers.items():
            if "auto" in name or "powersgd" in name or "after" in name:
                continue
            taken = []
            for _ in range(4):
                dist.barrier()
                begin = time.perf_counter()
                if reducer is None:
                    for work in [dist.all_reduce(part, async_op=True) for part in vector.split(25 * MEGABYTE // 4)]:
                        work.wait()
                else:
                    reducer.reduce(vector).wait()
                seconds = torch.tensor(time.perf_counter() - begin)
                dist.all_reduce(seconds, dist.ReduceOp.MAX)
                taken.append(seconds.item())
            members = hosts if name.startswith("hierarchical") else self.world
            sent = vector.nbytes / (2 if "bf16" in name else 1)
            bound = 2 * (members - 1) / members * sent / rate if rate else None
            found[name] = (statistics.median(taken[1:]), bound)
        return found


def bytes_per_second(rate: str) -> float | None:
    """Of a link."""
    units = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
    return None if rate == "none" else float(rate[:-4]) * units[rate[-4:]] / 8


if __name__ == "__main__":
    main()
