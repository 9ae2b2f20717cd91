# SPDX-License-Identifier: Apache-2.0
"""Hosts as Linux network namespaces with addresses and host names, joined by a bridge, with limited bandwidth.

Hosts and bridge are in separate namespaces: this machine's interfaces and routes do not change. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_sagemaker.simulator.contract import LocalClusterError

_PREFIX = "lsm"
_SUBNET = "10.133.0"
_INTERFACE = "eth0"
_RATE = re.compile(r"\d+(\.\d+)?[kmg]?bit")
_BURST, _LATENCY = "512kb", "50ms"
"""Burst size and maximum delay of tc's token bucket, enough for 10 Gbit/s with 250 Hz timers."""

_ETC = Path("/etc/netns")  # `ip netns exec` mounts the files in /etc/netns/NAME over those in /etc


@dataclass(frozen=True)
class Network:
    """The namespaces of one simulated job.

    Attributes:
        spaces: Host name -> name of its namespace.
        rate: Bandwidth of each host's outgoing link, as ``tc`` writes it; None for no limit.

    """

    spaces: dict[str, str]
    rate: str | None

    @property
    def interface(self) -> str:
        """Name of the interface in every host."""
        return _INTERFACE

    def enter(self, host: str, command: Sequence[str]) -> list[str]:
        """``command`` in the network namespace of ``host``, and in a new UTS namespace for the host name.

        Args:
            host: Name of a host.
            command: Command that sets the host name, as ``host_init.py`` does.

        """
        return ["ip", "netns", "exec", self.spaces[host], "unshare", "--uts", "--", *command]


def parse(text: str) -> str | None:
    """The rate in ``netns[:RATE]``.

    Raises:
        LocalClusterError: If ``text`` is something else.

    """
    kind, colon, rate = text.partition(":")
    if kind != "netns" or (colon and not _RATE.fullmatch(rate)):
        raise LocalClusterError(f"--network {text!r} was given. HINT: write netns, or netns:RATE such as netns:1gbit.")
    return rate or None


def obstacle() -> str | None:
    """Why network namespaces cannot be created here; None if they can."""
    if sys.platform != "linux":
        return "network namespaces exist only on Linux"
    missing = [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} (of iproute2 and util-linux) not found"
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = f"{_PREFIX}-{os.getpid()}-probe"
    try:
        _run("ip", "netns", "add", probe)
        _run("ip", "netns", "del", probe)
    except LocalClusterError as error:
        return str(error)
    return None


@contextlib.contextmanager
def network(hosts: Sequence[str], rate: str | None) -> Iterator[Network]:
    """Create one namespace for each host and one for the bridge; remove them at the end.

    Args:
        hosts: Names of the hosts, which resolve in every host's namespace.
        rate: Bandwidth of each host's outgoing link, as ``tc`` writes it; None for no limit.

    Raises:
        LocalClusterError: If a command of ``ip`` or ``tc`` fails.

    """
    _remove_left_overs()
    base = f"{_PREFIX}-{os.getpid()}"
    switch = f"{base}-switch"
    spaces = {host: f"{base}-{index}" for index, host in enumerate(hosts, start=1)}
    try:
        _add(switch)
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        names = "".join(f"{_SUBNET}.{index} {host}\n" for index, host in enumerate(hosts, start=1))
        for index, space in enumerate(spaces.values(), start=1):
            _add(space, f"127.0.0.1 localhost\n{names}")
            _join(space, switch, index, rate)
        yield Network(spaces, rate)
    finally:
        for space in (switch, *spaces.values()):
            _remove(space)


def _add(space: str, hosts_file: str | None = None) -> None:
    if hosts_file is not None:
        (_ETC / space).mkdir(parents=True)
        (_ETC / space / "hosts").write_text(hosts_file)
    _run("ip", "netns", "add", space)


def _join(space: str, switch: str, index: int, rate: str | None) -> None:
    port = f"port{index}"
    _run("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", _INTERFACE, "netns", space)
    _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
    _run("ip", "-n", space, "address", "add", f"{_SUBNET}.{index}/24", "dev", _INTERFACE)
    for link in ("lo", _INTERFACE):
        _run("ip", "-n", space, "link", "set", link, "up")
    if rate is not None:
        shape = ("tbf", "rate", rate, "burst", _BURST, "latency", _LATENCY)
        _run("tc", "-n", space, "qdisc", "add", "dev", _INTERFACE, "root", *shape)


def _remove(space: str) -> None:
    subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True, timeout=30)
    shutil.rmtree(_ETC / space, ignore_errors=True)


def _remove_left_overs() -> None:
    """Remove the namespaces of simulators that were killed."""
    listed = subprocess.run(["ip", "netns", "list"], check=False, capture_output=True, text=True, timeout=30).stdout
    for space in re.findall(rf"^({_PREFIX}-\d+-\w+)", listed, re.MULTILINE):
        if not Path("/proc", space.split("-")[1]).exists():
            _remove(space)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise LocalClusterError(
            f"`{' '.join(command)}` failed: {done.stderr.strip()}. HINT: leave --network out, or run as root."
        )
