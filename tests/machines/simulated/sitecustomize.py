# SPDX-License-Identifier: Apache-2.0
"""Python on another system, as far as it can be had on Linux: names that are not there, and what they say.

This folder is first on PYTHONPATH of the processes that are to run there, and ``LIGHTNING_SAGEMAKER_TEST_SYSTEM`` says on
which. While packages other than Lightning and this one are imported, they find Linux: they load what was compiled for it. A
Mac has an MPS device, which is the CPU.
"""

import errno
import importlib.abc
import multiprocessing
import os
import platform
import signal
import socket
import sys
import time
import types
from multiprocessing import resource_tracker

SYSTEM = os.environ.get("LIGHTNING_SAGEMAKER_TEST_SYSTEM", "")
NAMES = {"mac": ("darwin", "Darwin", "arm"), "windows": ("win32", "Windows", "AMD64")}
GONE_FROM_OS = {
    "mac": ("sched_getaffinity", "sched_setaffinity", "posix_fallocate", "memfd_create", "pidfd_open"),
    "windows": (
        *(
            "sched_getaffinity",
            "fork",
            "forkpty",
            "setsid",
            "killpg",
            "getpgid",
            "setpgid",
            "mkfifo",
            "getuid",
            "geteuid",
        ),
        *("getgid", "getegid", "uname", "statvfs", "chown", "waitid", "O_NONBLOCK", "register_at_fork"),
    ),
}
GONE_FROM_SIGNAL = {
    "mac": (),
    "windows": (
        *("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGQUIT", "SIGKILL", "SIGALRM", "SIGCHLD", "SIGSTOP", "SIGCONT", "SIGPIPE"),
        *("pthread_sigmask", "SIG_BLOCK", "SIG_UNBLOCK", "SIG_SETMASK", "setitimer", "alarm", "pause", "sigwait"),
    ),
}
WINDOWS_SIGNALS = ("SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM")
GONE_MODULES = {"mac": (), "windows": ("fcntl", "resource", "pwd", "grp", "termios", "pty", "tty")}
ELSEWHERE = ("lightning_sagemaker", "lightning", "pytorch_lightning", "lightning_fabric")
"""What is imported on the other system; all else loads parts that were compiled for this one."""
ACCELERATORS = tuple(
    f"{package}.accelerators.mps"
    for package in ("lightning.fabric", "lightning.pytorch", "lightning_fabric", "pytorch_lightning")
)
SOCKET_PATH = 104
"""Bytes of a socket's path on a Mac; Linux has 108."""

DAY, SECONDS = 86_400, 5.0

_real = (sys.platform, platform.system, platform.processor)
_kept: list = []


def begin() -> None:
    """From here on names are those of the other system."""
    name, system, processor = NAMES[SYSTEM]
    sys.platform, platform.system, platform.processor = name, lambda: system, lambda: processor
    for owner, names in ((os, GONE_FROM_OS[SYSTEM]), (signal, GONE_FROM_SIGNAL[SYSTEM])):
        for attribute in names:
            if hasattr(owner, attribute):
                _kept.append((owner, attribute, getattr(owner, attribute)))
                delattr(owner, attribute)
    for module in GONE_MODULES[SYSTEM]:
        _kept.append((sys.modules, module, sys.modules.get(module)))
        sys.modules[module] = None


def end() -> None:
    """From here on names are this system's."""
    sys.platform, platform.system, platform.processor = _real
    while _kept:
        owner, name, value = _kept.pop()
        if owner is not sys.modules:
            setattr(owner, name, value)
        elif value is None:
            del owner[name]
        else:
            owner[name] = value


class Importer(importlib.abc.MetaPathFinder):
    """Lets packages see Linux while they are imported, and gives a Mac its device."""

    depth = 0

    def find_spec(self, fullname, path, target=None):
        """Those of the other finders, with something done around or after the loading."""
        linux, device = fullname.split(".")[0] not in ELSEWHERE, SYSTEM == "mac" and fullname in ACCELERATORS
        if not (linux or device):
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None and not isinstance(spec.loader, type):
                self.wrap(spec.loader, device)
            if spec is not None:
                return spec
        return None

    def wrap(self, loader, device) -> None:
        """Do it."""
        execute = loader.exec_module

        def executed(module) -> None:
            if device:
                execute(module)
                give_device(module.MPSAccelerator)
                return
            if Importer.depth == 0:
                end()
            Importer.depth += 1
            try:
                execute(module)
            finally:
                Importer.depth -= 1
                if Importer.depth == 0:
                    begin()

        loader.exec_module = executed


def give_device(accelerator) -> None:
    """An MPS device, whose tensors are the CPU's."""
    import torch

    accelerator.is_available = staticmethod(lambda: True)
    accelerator.get_parallel_devices = staticmethod(lambda devices: [torch.device("cpu")] * len(devices))
    accelerator.setup_device = lambda self, device: None


def bind_as_on_a_mac(self, address):
    """Socket paths are shorter there."""
    if self.family == socket.AF_UNIX and isinstance(address, str) and len(os.fsencode(address)) >= SOCKET_PATH:
        raise OSError("AF_UNIX path too long")
    return super(socket.socket, self).bind(address)


def open_as_on_windows(path, flags, mode=0o777, *, open=os.open, **rest):
    """Folders cannot be opened there."""
    if isinstance(path, (str, os.PathLike)) and os.path.isdir(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
    return open(path, flags, mode, **rest)


def set_clock_back() -> None:
    """After some seconds it is yesterday."""
    now, begin = time.time, time.monotonic()
    time.time = lambda: now() - DAY * (time.monotonic() - begin > SECONDS)


if SYSTEM == "clock":
    set_clock_back()
elif SYSTEM:
    multiprocessing.set_start_method("spawn")
    resource_tracker.signal = types.SimpleNamespace(**vars(signal))  # what starts processes here is Linux's
    if SYSTEM == "mac":
        socket.socket.bind = bind_as_on_a_mac
    else:
        os.open = open_as_on_windows
        signal.valid_signals = lambda: {getattr(signal, name) for name in WINDOWS_SIGNALS}
    sys.meta_path.insert(0, Importer())
    begin()
