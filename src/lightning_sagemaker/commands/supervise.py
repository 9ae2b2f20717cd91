# SPDX-License-Identifier: Apache-2.0
"""Start a script's ranks on this host and replace those that die, while the others keep training (``recovery="in_job"``).

Run it on each host of a job in place of torchrun. The strategies ``"sagemaker"`` and ``"smddp"`` then recover in the job.

Examples::

    lightning-sagemaker supervise --processes 4 train.py --epochs 3
    lightning-sagemaker supervise --processes 8 --rejoin-timeout 60 -m lightning_sagemaker.cli run albert-mlm
    lightning-sagemaker supervise --processes 8 --hosts 2 --host-rank 1 --coordinator 10.0.0.1:29400 train.py

SIGUSR2 asks a host to leave the job: its ranks exit after a step and the others keep training.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.option_types import integer, seconds, seconds_or_none
from lightning_sagemaker.simulator.elastic import host_range
from lightning_sagemaker.supervisor.events import FILE, Events, no_notes

if TYPE_CHECKING:
    from lightning_sagemaker.job import SageMakerJob
    from lightning_sagemaker.supervisor.coordinator import Coordinator
    from lightning_sagemaker.supervisor.link import Link

HELP = "start ranks on this host and replace those that die, while the others keep training"
_PORT = 29400
_SIOCGIFADDR = 0x8915  # linux/sockios.h: an interface's address


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker supervise``."""
    add = parser.add_argument
    add("--processes", type=integer(1), metavar="N", help="ranks on this host (default: its GPUs, or 1)")
    add(
        "--hosts",
        metavar="N|MIN:MAX",
        help="hosts of the job (default: the job's, or 1); MIN:MAX: start with MIN, others join and leave, up to MAX",
    )
    add("--host-rank", type=int, metavar="K", help="index of this host, from 0 (default: the job's, or 0)")
    add(
        "--coordinator", metavar="HOST:PORT", help=f"first host's address (default: the job's first host, port {_PORT})"
    )
    add(
        "--address", metavar="HOST", help="this host's address for the others (default: derived from the coordinator's)"
    )
    add("--minimum", type=int, metavar="N", help="minimum number of ranks (default: 1, or those of MIN hosts)")
    add(
        "--rejoin-timeout",
        type=seconds_or_none,
        default=0.0,
        metavar="S",
        help="time to wait for a replacement before continuing without it (default: 0)",
    )
    add("--silence", type=seconds, default=5.0, metavar="S", help="heartbeat timeout of a rank (default: 5)")
    add("--attempts", type=integer(1), default=3, metavar="N", help="how often one step may fail (default: 3)")
    add(
        "--max-restarts", type=integer(0), default=100, metavar="N", help="maximum replacements per rank (default: 100)"
    )
    add(
        "--reconnect-timeout",
        type=seconds,
        default=60.0,
        metavar="S",
        help="a host exits after being disconnected this long (default: 60)",
    )
    add("--events", metavar="FILE", help=f"event log for 'doctor --goodput' (default: {FILE} in a job's output folder)")
    add("--no-preload", action="store_true", help="every rank imports torch and Lightning itself")
    add("-m", dest="module", action="store_true", help="SCRIPT is a module")
    add("script", metavar="SCRIPT", help="script that each rank runs")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")


def main(args: argparse.Namespace) -> int:
    """Run ``lightning-sagemaker supervise``; return the exit code."""
    from lightning_sagemaker.recovery import wire
    from lightning_sagemaker.supervisor.agent import Agent, Rank

    place = _place(args)
    _check(args, place)
    token = os.environ.get(wire.TOKEN)
    if token is None:
        token = secrets.token_hex(16) if place.hosts == 1 else _shared_token(place.coordinator, place.world_size)
    agents: list[Agent] = []

    def kill(rank: int) -> None:
        for agent in agents:
            agent.kill(rank)

    join = _coordinate if place.host_rank == 0 else _connect
    training, own, address = join(args, place, token, kill)
    own = args.address or own
    variables = {wire.ADDRESS: address, wire.TOKEN: token, wire.HOST: own, "MASTER_PORT": address.rpartition(":")[2]}
    if place.hosts > 1 and "GLOO_SOCKET_IFNAME" not in os.environ and (interface := _interface_of(own)) is not None:
        variables["GLOO_SOCKET_IFNAME"] = interface  # gloo would resolve the host name, perhaps to another address
    command = [sys.executable, *(["-m"] if args.module else []), args.script, *args.arguments]
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # at WARNING a lost connection logs 20 lines of C++ frames
    ranks = [Rank(rank, {**place.environment(rank), **variables}) for rank in place.ranks]
    try:
        agents.append(Agent(command, ranks, training, args.max_restarts, not args.no_preload and hasattr(os, "fork")))
        return agents[0].run()
    finally:
        training.close()


def _coordinate(
    args: argparse.Namespace, place: _Place, token: str, kill: Callable[[int], None]
) -> tuple[Coordinator, str, str]:
    """Start the coordinator on the first host; return it, this host's address, and its own for the ranks here."""
    from lightning_sagemaker.supervisor.coordinator import Coordinator
    from lightning_sagemaker.supervisor.ranks import Settings

    host, _, port = place.coordinator.rpartition(":")
    to_begin = place.fewest * place.processes
    minimum = args.minimum or (to_begin if place.fewest < place.hosts else 1)
    own = "127.0.0.1" if place.hosts == 1 else _own_address(host, int(port))
    note = _notes(args.events)
    try:
        training = Coordinator(
            Settings(place.world_size, minimum, args.rejoin_timeout, args.silence, args.attempts, to_begin=to_begin),
            token,
            on_silent=kill,
            report=lambda sentence: print(f"lightning-sagemaker: {sentence}", file=sys.stderr, flush=True),
            host="127.0.0.1" if place.hosts == 1 else "",
            port=0 if place.hosts == 1 else int(port),
            note=note,
        )
    except OSError as error:
        raise LaunchError(
            f"The coordinator cannot listen at {place.coordinator}: {error.strerror}. HINT: end what uses that port, or set"
            " --coordinator with another one on all hosts."
        ) from error
    return training, own, f"127.0.0.1:{training.port}"


def _connect(args: argparse.Namespace, place: _Place, token: str, kill: Callable[[int], None]) -> tuple[Link, str, str]:
    """Connect another host to the coordinator; return the link, this host's address, and the coordinator's."""
    from lightning_sagemaker.supervisor.link import Link

    training = Link(place.coordinator, token, place.host_rank, place.ranks, kill, args.reconnect_timeout)
    return training, training.own_address, place.coordinator


@dataclass(frozen=True)
class _Place:
    """This host's place in the job.

    Attributes:
        hosts: Maximum number of hosts of the job.
        fewest: Number of hosts with which training starts.
        host_rank: Index of this host, from 0.
        processes: Number of ranks on each host.
        coordinator: ``host:port`` of the first host.

    """

    hosts: int
    fewest: int
    host_rank: int
    processes: int
    coordinator: str

    @property
    def world_size(self) -> int:
        """Number of ranks with the maximum number of hosts."""
        return self.hosts * self.processes

    @property
    def ranks(self) -> range:
        """Ranks of this host."""
        return range(self.host_rank * self.processes, (self.host_rank + 1) * self.processes)

    def environment(self, rank: int) -> dict[str, str]:
        """Environment variables of a rank: those of torchrun, and those of recovery in the job."""
        from lightning_sagemaker.recovery import wire

        values = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank - self.ranks[0]),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.processes),
            "GROUP_RANK": str(self.host_rank),
            "GROUP_WORLD_SIZE": str(self.hosts),
            "MASTER_ADDR": self.coordinator.rpartition(":")[0],
            "TORCHELASTIC_RUN_ID": "lightning-sagemaker",
            wire.MODE: "in_job",
        }
        values.setdefault("OMP_NUM_THREADS", "1")
        return values


def _job() -> SageMakerJob:
    """The job; outside of one the ranks that variables still hold are another launcher's, as for torchrun."""
    from lightning_sagemaker.job.hosts import in_container
    from lightning_sagemaker.job.job import SageMakerJob, source_of

    return SageMakerJob.from_environment() if in_container(source_of(os.environ)) else SageMakerJob.local()


def _place(args: argparse.Namespace) -> _Place:
    job = _job()
    fewest, hosts = host_range(args.hosts) if args.hosts else (0, job.num_nodes if job.in_container else 1)
    host_rank = args.host_rank if args.host_rank is not None else (job.node_rank if job.in_container else 0)
    default = f"{job.main_address}:{_PORT}" if job.in_container and hosts > 1 else f"127.0.0.1:{_PORT}"
    if args.coordinator is None and hosts > 1 and not job.in_container:
        raise LaunchError(
            f"--hosts {args.hosts} was set without --coordinator: the hosts could not find each other."
            f" HINT: set --coordinator HOST:{_PORT} on all of them, with the first host's address."
        )
    return _Place(hosts, fewest or hosts, host_rank, args.processes or _gpus() or 1, args.coordinator or default)


def _check(args: argparse.Namespace, place: _Place) -> None:
    if not 0 <= place.host_rank < place.hosts:
        raise LaunchError(
            f"--host-rank {place.host_rank} was set, with {place.hosts} host(s). HINT: host ranks go from 0 to"
            f" {place.hosts - 1}; --hosts MIN:MAX sets how many there may be."
        )
    if args.minimum is not None and not 1 <= args.minimum <= place.world_size:
        raise LaunchError(
            f"--minimum {args.minimum} was set, with {place.world_size} rank(s). HINT: set 1 to {place.world_size}."
        )
    if args.coordinator is not None:
        host, _, port = args.coordinator.rpartition(":")
        if not (host and port.isdecimal()):
            lacks = "host" if port.isdecimal() else "port"
            raise LaunchError(f"--coordinator {args.coordinator} has no {lacks}. HINT: set HOST:{_PORT}.")
        if not 0 < int(port) < 65536:
            raise LaunchError(f"--coordinator {args.coordinator} has port {port}. HINT: ports go from 1 to 65535.")
    if not args.module and not os.path.isfile(args.script):
        found = "is not a file" if os.path.exists(args.script) else "does not exist"
        raise LaunchError(f"{args.script} {found}. HINT: give the script that each rank runs, or use -m MODULE.")


def _own_address(host: str, port: int) -> str:
    """The IP address of this host on the route to the first host.

    Raises:
        LaunchError: If there is none.

    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError) as error:
        raise LaunchError(
            f"--coordinator {host}:{port} has no IPv4 address that this host reaches ({error}). HINT: give the address"
            " or name of the first host's network interface."
        ) from error


def _interface_of(address: str) -> str | None:
    """Name of the network interface that has an address; None if unknown."""
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
    """The callback that records events of the coordinator.

    Raises:
        LaunchError: If the file cannot be written.

    """
    job = _job()
    if path is None and not job.in_container:
        return no_notes
    place = Path(path) if path is not None else job.output_dir / FILE
    try:
        return Events(place).note
    except OSError as error:
        raise LaunchError(f"{place} cannot be written: {error}. HINT: set --events to a writable file.") from error


def _shared_token(first: str, world_size: int) -> str:
    """A token that each host of a job derives by itself; it distinguishes jobs, and is not a secret."""
    job = os.environ.get("TRAINING_JOB_NAME", "")
    return hashlib.sha256(f"{job} {first} {world_size}".encode()).hexdigest()


def _gpus() -> int:
    """Number of GPUs of this host, from ``SM_NUM_GPUS``, else from torch."""
    if (number := os.environ.get("SM_NUM_GPUS")) is not None and number.isdecimal():
        return int(number)
    import torch

    return torch.cuda.device_count()
