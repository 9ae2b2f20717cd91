# SPDX-License-Identifier: Apache-2.0
"""Host names for simulated hosts that share this machine's network: each has its own, and all of them resolve.

Scripts that set up their ranks by hand connect to ``json.loads(os.environ["SM_HOSTS"])[0]``; Lightning's
``MPIEnvironment`` and torchrun's rendezvous tell hosts apart by ``socket.gethostname()``. In the containers both work. A
host here gets a UTS namespace, and a mount namespace in which ``/etc/hosts`` has the names too, as root or where the
kernel lets a user create user namespaces.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from ipaddress import IPv4Address
from pathlib import Path

from lightning_sagemaker.simulator.host_init import NAMES_FILE
from lightning_sagemaker.simulator.launchers import host_shim

_FIRST = IPv4Address("127.0.1.1")
"""Loopback's addresses of hosts; different ones, as torchrun takes two names of one address for one host."""
_SYSTEM = Path("/etc/hosts")


def make_names(hosts: Sequence[str], folder: Path) -> str | None:
    """Write the file that ``host_init.py`` gives to each host, if it can.

    Args:
        hosts: Names of the hosts.
        folder: The simulator's own folder.

    Returns:
        Why hosts cannot have names here; None if they can.

    """
    if sys.platform != "linux":
        return "namespaces are Linux's"
    names = "".join(f"{_FIRST + number} {host}\n" for number, host in enumerate(hosts))
    file = folder / NAMES_FILE
    try:
        file.write_bytes(_SYSTEM.read_bytes() + names.encode())
    except OSError as error:
        return str(error)
    probe = host_shim(("true",), hosts[0], None, folder)
    tried = subprocess.run(probe, check=False, capture_output=True, text=True, timeout=60)
    if not tried.returncode:
        return None
    file.unlink()
    why = tried.stderr.strip().rpartition("\n")[2] or f"exit code {tried.returncode}"
    return f"the kernel permits no namespaces ({why.rpartition(': ')[2]})"
