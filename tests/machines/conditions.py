# SPDX-License-Identifier: Apache-2.0
"""The machines that users have. docs/machines.md has the same table."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.conftest import ROOT
from tests.machines.runs import SENTENCE, Condition

_SIMULATED = Path(__file__).with_name("simulated")
_PYTHONPATH = os.pathsep.join([str(_SIMULATED), str(ROOT / "src")])

_IGNORES_CASE = " ".join((sys.executable, str(Path(__file__).with_name("ignores_case.py"))))
_ALONE = ("--net",)
_LOOPBACK = "ip link set lo up"


def _hosts(*lines: str) -> str:
    text = "\\n".join(lines)
    return f'printf "{text}\\n" > "$FOLDER/hosts"; mount --bind "$FOLDER/hosts" /etc/hosts'


def _cgroup(controller: str, name: str, value: int) -> str:
    group = f"/sys/fs/cgroup/{controller}/lightning-sagemaker-$PPID"
    return f"mkdir -p {group}; echo {value} > {group}/{name}; echo $$ > {group}/cgroup.procs"


def _reachable(python: Path) -> str:
    """Let others than root use a Python in root's home, which is closed to them."""
    if Path("/root") not in python.parents:
        return ":"
    return (
        f'mkdir "$FOLDER/python"; mount --bind {python} "$FOLDER/python"; mount -t tmpfs -o mode=755 none /root;'
        f' mkdir -p {python}; mount --bind "$FOLDER/python" {python}'
    )


# What Docker leaves of root's capabilities.
_DOCKER = (
    *(
        "chown",
        "dac_override",
        "fowner",
        "fsetid",
        "kill",
        "setgid",
        "setuid",
        "setpcap",
        "net_bind_service",
        "net_raw",
    ),
    *("sys_chroot", "mknod", "audit_write", "setfcap"),
)
_DOCKER_SET = ",".join(("-all", *(f"+{name}" for name in _DOCKER)))

CONDITIONS = (
    Condition("as it is"),
    Condition("no network", _LOOPBACK, unshare=_ALONE),
    Condition("a host name that does not resolve", "hostname nowhere-at-all", unshare=("--uts",)),
    Condition(
        "a host name that is another machine's",
        f"hostname elsewhere; {_hosts('127.0.0.1 localhost', '192.0.2.7 elsewhere')}",
        unshare=("--uts",),
    ),
    Condition("no /etc/hosts", "mount --bind /dev/null /etc/hosts"),
    Condition("POSIX locale", variables={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    Condition("256 open files", inside="prlimit --nofile=256"),
    Condition("umask 077", "umask 077"),
    Condition("spaces and accents in paths", folder="mein Ordner é 数据"),
    Condition("no HOME", variables={"HOME": None, "XDG_CACHE_HOME": None}),
    Condition("a HOME that cannot be written to", variables={"HOME": "/proc/nothing"}),
    Condition("one core", inside="taskset -c 0"),
    Condition("64 MB of /dev/shm", "mount -t tmpfs -o size=64m,mode=1777 none /dev/shm"),
    Condition("/dev/shm without rights", "mount -t tmpfs -o ro none /dev/shm", outcomes={"all": SENTENCE}),
    Condition("no /proc", "mount -t tmpfs none /proc"),
    Condition("closed output", "exec >&- 2>&-"),
    Condition("closed input", "exec <&-"),
    Condition(
        "output that nobody reads", "exec 3>&1; mkfifo $FOLDER/p; sh -c 'exec < $FOLDER/p' & exec > $FOLDER/p 2>&1"
    ),
    Condition(
        "a TMPDIR of 120 characters",
        'mkdir -p "$TMPDIR"',
        variables={"TMPDIR": "/tmp/" + "t" * 115},
        after='rm -rf "$TMPDIR"',
    ),
    Condition(
        "a disk that fills in the middle",
        'mount -t tmpfs -o size=5m none "$FOLDER/result"',
        outcomes={"all": SENTENCE},
    ),
    Condition(
        "a clock that is set back",
        variables={"LIGHTNING_SAGEMAKER_TEST_SYSTEM": "clock", "PYTHONPATH": _PYTHONPATH},
        simulated="`time.time()` of Python goes back by a day after five seconds",
    ),
    Condition(
        "a source folder that is read-only", 'mount --bind "$SOURCE" "$SOURCE"; mount -o remount,ro,bind "$SOURCE"'
    ),
    Condition(
        "an installation that is read-only",
        f'for folder in {ROOT} {sys.prefix}; do mount --bind "$folder" "$folder"; mount -o remount,ro,bind "$folder"; done;'
        f' ! touch {ROOT / "src" / "x"} 2>&-; cd "$SOURCE"',
    ),
    Condition(
        "a file system that ignores case",
        f'for folder in "$FOLDER" {ROOT / "src"}; do {_IGNORES_CASE} "$folder" & until mountpoint -q "$folder"; do'
        ' sleep 0.1; done; done; [ -e "$FOLDER/SOURCE/Program.py" ]; mkdir "$FOLDER/tmp"; export TMPDIR="$FOLDER/TMP"',
        simulated="names are as they were first written and found in any case, below the run's folder, its temporary"
        " files and this package",
    ),
    Condition(
        "a proxy in the environment",
        variables=dict.fromkeys(
            ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://192.0.2.1:9"
        ),
    ),
    Condition(
        "IPv6 only, but for the loopback",
        f"{_LOOPBACK}; ip link add eth0 type veth peer name eth1; ip link set eth0 up;"
        " ip -6 addr add fd00::7/64 dev eth0 nodad; hostname six;"
        f" {_hosts('127.0.0.1 localhost', '::1 localhost', 'fd00::7 six')}",
        unshare=("--net", "--uts"),
    ),
    Condition(
        "conda's library paths",
        "mkdir -p /tmp/conda; mount -t tmpfs none /tmp/conda; for name in stdc++.so.6 gcc_s.so.1 gomp.so.1 z.so.1; do"
        ' cp -L "$(ldconfig -p | sed -n "s/.*lib$name .*x86-64.* => //p" | head -1)" /tmp/conda 2>&- || :; done',
        variables={"LD_LIBRARY_PATH": "/tmp/conda", "CONDA_PREFIX": "/tmp/conda"},
        after="umount /tmp/conda; rmdir /tmp/conda",
        simulated="this system's C++ and OpenMP libraries go before those that torch brings, not conda's own",
    ),
    Condition("2 GiB of memory (cgroup)", _cgroup("memory", "memory.limit_in_bytes", 2**31)),
    Condition("half a processor (cgroup)", _cgroup("cpu", "cpu.cfs_quota_us", 50_000)),
    Condition(
        "a container with Docker's defaults",
        "mount -t tmpfs -o size=64m,mode=1777 none /dev/shm",
        inside=f"setpriv --no-new-privs --bounding-set={_DOCKER_SET} --inh-caps=-all",
        simulated="capabilities and 64 MB of /dev/shm; not Docker's seccomp filter",
    ),
    Condition("mpi4py without an MPI library", variables={"MPI4PY_LIBMPI": "/nowhere/libmpi.so"}),
    Condition(
        "an ordinary user",
        'chown -R 65534:65534 "$FOLDER"; ' + _reachable(Path(sys.executable).resolve().parent.parent),
        inside="setpriv --reuid=65534 --regid=65534 --clear-groups",
        variables={"HOME": "/nonexistent"},
    ),
)

SYSTEMS = (
    Condition(
        "a Mac",
        "ip link set lo down; ip link set lo name lo0; ip link set lo0 up; mount -t tmpfs none /sys;"
        " mount -t tmpfs none /proc; mkdir -p $TMPDIR",
        unshare=_ALONE,
        variables={
            "LIGHTNING_SAGEMAKER_TEST_SYSTEM": "mac",
            "PYTHONPATH": _PYTHONPATH,
            "TMPDIR": "/tmp/var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T/",
        },
        after="rm -rf /tmp/var/folders/zz",
    ),
    Condition(
        "Windows",
        variables={"LIGHTNING_SAGEMAKER_TEST_SYSTEM": "windows", "PYTHONPATH": _PYTHONPATH},
        outcomes={"local": SENTENCE},
    ),
)
"""Other systems: names, modules and functions that are not there are taken away in each process, see simulated/."""
