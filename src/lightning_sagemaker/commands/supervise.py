# SPDX-License-Identifier: Apache-2.0
"""Start a script's ranks on this host and replace those that die, while the others go on (``recovery="in_job"``).

On each host of a job, in the place of torchrun. ``"sagemaker"`` and ``"smddp"`` recover in the job under it.

Examples::

    lightning-sagemaker supervise --processes 4 train.py --epochs 3
    lightning-sagemaker supervise --processes 8 --rejoin-timeout 60 -m lightning_sagemaker.cli run albert-mlm
    lightning-sagemaker supervise --processes 8 --hosts 2 --host-rank 1 --coordinator 10.0.0.1:29400 train.py
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import secrets
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.supervisor.events import FILE, Events, no_notes

HELP = "start ranks on this host and replace those that die, while the others go on"
_PORT = 29400
_SIOCGIFADDR = 0x8915  # linux/sockios.h: an interface's address


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker supervise``."""
    add = parser.add_argument
    add("--processes", type=int, metavar="N", help="ranks of this host (default: its GPUs, or 1)")
    add("--hosts", type=int, metavar="N", help="hosts of the job (default: the job's, or 1)")
    add("--host-rank", type=int, metavar="K", help="number of this host, from 0 (default: the job's, or 0)")
    add("--coordinator", metavar="HOST:PORT", help=f"of the first host (default: the job's first host, port {_PORT})")
    add("--address", metavar="HOST", help="by which the others reach this host (default: found by the coordinator's)")
    add("--minimum", type=int, default=1, metavar="N", help="ranks without which the job ends (default: 1)")
    add(
        "--rejoin-timeout",
        type=float,
        default=0.0,
        metavar="S",
        help="wait so long for a replacement before going on without it (default: 0)",
    )
    add("--silence", type=float, default=5.0, metavar="S", help="a rank is frozen after so many seconds (default: 5)")
    add("--attempts", type=int, default=3, metavar="N", help="times that one step may fail (default: 3)")
    add("--max-restarts", type=int, default=100, metavar="N", help="replacements of each rank (default: 100)")
    add(
        "--reconnect-timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="a host whose network is cut ends after so many seconds (default: 60)",
    )
    add("--events", metavar="FILE", help=f"notes for 'doctor --goodput' (default: {FILE} in a job's output folder)")
    add("--no-preload", action="store_true", help="each rank imports torch and Lightning for itself")
    add("-m", dest="module", action="store_true", help="SCRIPT is a module")
    add("script", metavar="SCRIPT", help="what each rank runs")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")


def main(args: argparse.Namespace) -> int:
    """Run ``lightning-sagemaker supervise``; the exit code is 2 for wrong options."""
    try:
        return _main(args)
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _main(args: argparse.Namespace) -> int:
    from lightning_sagemaker.recovery import wire
    from lightning_sagemaker.supervisor.agent import Agent, Rank
    from lightning_sagemaker.supervisor.coordinator import Coordinator
    from lightning_sagemaker.supervisor.link import Link
    from lightning_sagemaker.supervisor.ranks import Settings

    hosts, host_rank, first = _place(args)
    processes = args.processes or _gpus() or 1
    _check(args, hosts, host_rank, processes)
    world_size = hosts * processes
    host, _, port = first.rpartition(":")
    token = os.environ.get(wire.TOKEN) or (secrets.token_hex(16) if hosts == 1 else _shared_token(first, world_size))
    settings = Settings(world_size, args.minimum, args.rejoin_timeout, args.silence, args.attempts)
    agents: list[Agent] = []

    def kill(rank: int) -> None:
        for agent in agents:
            agent.kill(rank)

    training: Coordinator | Link
    if host_rank == 0:
        training = Coordinator(
            settings,
            token,
            on_silent=kill,
            say=lambda sentence: print(f"lightning-sagemaker: {sentence}", file=sys.stderr, flush=True),
            host="127.0.0.1" if hosts == 1 else "",
            port=0 if hosts == 1 else int(port),
            note=_notes(args.events),
        )
        own = "127.0.0.1" if hosts == 1 else _own_address(host, int(port))
        address = f"127.0.0.1:{training.port}"
    else:
        numbers = range(host_rank * processes, (host_rank + 1) * processes)
        training = Link(first, token, host_rank, numbers, kill, args.reconnect_timeout)
        own, address = training.own_address, first
    own = args.address or own
    command = [sys.executable, *(["-m"] if args.module else []), args.script, *args.arguments]
    ranks = []
    for local_rank in range(processes):
        rank = host_rank * processes + local_rank
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(processes),
            "GROUP_RANK": str(host_rank),
            "GROUP_WORLD_SIZE": str(hosts),
            "MASTER_ADDR": host,
            "MASTER_PORT": address.rpartition(":")[2],
            "TORCHELASTIC_RUN_ID": "lightning-sagemaker",
            wire.ADDRESS: address,
            wire.TOKEN: token,
            wire.MODE: "in_job",
            wire.HOST: own,
        }
        environment.setdefault("OMP_NUM_THREADS", "1")
        if hosts > 1 and (interface := _interface_of(own)) is not None:
            environment.setdefault("GLOO_SOCKET_IFNAME", interface)  # gloo asks for the host's name, which may be any
        ranks.append(Rank(rank, environment))
    try:
        agents.append(Agent(command, ranks, training, args.max_restarts, not args.no_preload and hasattr(os, "fork")))
        return agents[0].run()
    finally:
        training.close()


def _place(args: argparse.Namespace) -> tuple[int, int, str]:
    from lightning_sagemaker.job import SageMakerJob

    job = SageMakerJob.from_environment()
    hosts = args.hosts or (job.num_nodes if job.in_container else 1)
    host_rank = args.host_rank if args.host_rank is not None else (job.node_rank if job.in_container else 0)
    default = f"{job.main_address}:{_PORT}" if job.in_container and hosts > 1 else f"127.0.0.1:{_PORT}"
    if args.coordinator is None and hosts > 1 and not job.in_container:
        raise LaunchError(
            f"--hosts {hosts} was set without --coordinator: the hosts could not find each other."
            f" HINT: set --coordinator HOST:{_PORT} on all of them, with the first host's address."
        )
    return hosts, host_rank, args.coordinator or default


def _check(args: argparse.Namespace, hosts: int, host_rank: int, processes: int) -> None:
    if not 0 <= host_rank < hosts:
        raise LaunchError(f"--host-rank {host_rank} was set, with {hosts} host(s). HINT: count from 0.")
    if not 1 <= args.minimum <= hosts * processes:
        raise LaunchError(
            f"--minimum {args.minimum} was set, with {hosts * processes} rank(s). HINT: set 1 to {hosts * processes}."
        )
    if args.coordinator is not None and not args.coordinator.rpartition(":")[2].isdigit():
        raise LaunchError(f"--coordinator {args.coordinator} has no port. HINT: set HOST:{_PORT}.")
    if not args.module and not os.path.exists(args.script):
        raise LaunchError(f"{args.script} does not exist. HINT: name the script that each rank runs, or use -m MODULE.")


def _own_address(host: str, port: int) -> str:
    """The address of this host on the way to the first one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def _interface_of(address: str) -> str | None:
    """Name of the network interface that has an address; None where it cannot be told."""
    if sys.platform != "linux":
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name.encode())
                found = fcntl.ioctl(probe, _SIOCGIFADDR, request)
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None


def _notes(path: str | None) -> Callable[..., None]:
    """What the coordinator calls with its events.

    Raises:
        LaunchError: If there can be no such file.

    """
    from lightning_sagemaker.job import SageMakerJob

    job = SageMakerJob.from_environment()
    if path is None and not job.in_container:
        return no_notes
    place = Path(path) if path is not None else job.output_dir / FILE
    try:
        return Events(place).note
    except OSError as error:
        raise LaunchError(f"{place} cannot be written: {error}. HINT: set --events to a file that can.") from error


def _shared_token(first: str, world_size: int) -> str:
    """What all hosts of a job can tell without asking each other; it keeps jobs apart, and is no secret."""
    job = os.environ.get("TRAINING_JOB_NAME", "")
    return hashlib.sha256(f"{job} {first} {world_size}".encode()).hexdigest()


def _gpus() -> int:
    """GPUs of this host, as the container says, or torch."""
    if (number := os.environ.get("SM_NUM_GPUS")) is not None and number.isdigit():
        return int(number)
    import torch

    return torch.cuda.device_count()
