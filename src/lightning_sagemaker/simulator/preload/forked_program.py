# SPDX-License-Identifier: Apache-2.0
"""Run ``train.py`` or ``-m module`` in a forked process as a new Python would.

The steps of Python's start and end are done here in the same order: ``__main__``, ``sys.argv``, ``sys.path``, and at the
end threads, ``atexit``, files, exit code. Only the destruction of modules is omitted: with Lightning it takes longer
than all other steps.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib.machinery
import io
import os
import runpy
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn


def show_as(command: Sequence[str]) -> None:
    """Make ``ps`` show ``command``, if it is not longer than this process's arguments, which it overwrites."""
    with contextlib.suppress(OSError, ValueError):
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end in proc(5)
        text = b"\0".join(os.fsencode(word) for word in command) + b"\0"
        if len(text) <= end - start:
            ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def settle(command: Sequence[str], cwd: str, environment: dict[str, str]) -> None:
    """Set the working directory, environment and command of a new process, and reset inherited state."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    show_as(command)
    sys.orig_argv[:] = command
    tempfile.tempdir = None
    if process := sys.modules.get("multiprocessing.process"):
        vars(process)["ORIGINAL_DIR"] = cwd
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()  # Python's own generator reseeds itself after a fork


def run(arguments: Sequence[str]) -> NoReturn:
    """Run ``[script, ...]`` or ``["-m", module, ...]`` as ``__main__``, and exit as Python would.

    Args:
        arguments: Arguments of the interpreter.

    """
    is_module = arguments[0] == "-m"
    sys.argv[:] = ["-m", *arguments[2:]] if is_module else arguments
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.getcwd() if is_module else os.path.dirname(os.path.realpath(arguments[0])))
    code, interrupted = 0, False
    try:
        if is_module:
            runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]  # what Python's own start calls
        else:
            _run_script(os.path.join(os.getcwd(), arguments[0].removeprefix("./")))
    except SystemExit as error:
        code = _code_of(error)
    except BaseException as error:
        code, interrupted = 1, isinstance(error, KeyboardInterrupt)
        _report(error)
    _end(code, interrupted)


def _run_script(path: str) -> None:
    main = vars(sys.modules["__main__"])
    main.update(__file__=path, __cached__=None, __loader__=importlib.machinery.SourceFileLoader("__main__", path))
    with io.open_code(path) as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), main)


def _code_of(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def _report(error: BaseException) -> None:
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, traceback
    sys.last_exc = error  # type: ignore[attr-defined,unused-ignore]  # from Python 3.12 on
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)


def _end(code: int, interrupted: bool) -> NoReturn:
    """Wait for threads, run ``atexit`` functions, flush files, and exit.

    The objects of the imported packages were frozen before the fork, so a pass over all other objects is quick.
    """
    steps = (threading._shutdown, atexit._run_exitfuncs, _write_out_files)  # type: ignore[attr-defined]
    for step in (*steps, lambda: _end_mpi(128 + signal.SIGINT if interrupted else code)):
        try:
            step()
        except BaseException:
            sys.excepthook(*sys.exc_info())
    ctypes.CDLL(None).fflush(None)
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def _write_out_files() -> None:
    """Flush every file, then free what the program holds.

    In this order: a file that is freed as part of a cycle may be closed before its buffer is written.
    """
    for thing in (*gc.get_objects(), sys.stdout, sys.stderr):
        # Not isinstance: it reads __class__, for which some objects run code.
        if issubclass(type(thing), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            with contextlib.suppress(Exception):
                thing.flush()
    vars(sys.modules["__main__"]).clear()
    gc.collect()


def _end_mpi(code: int) -> None:
    """End MPI as mpi4py does at the exit of Python; otherwise mpirun reports that the process failed.

    ``python -m mpi4py`` aborts all ranks after an error: the others may wait for this one, and it would for them.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    finalize = getattr(sys.modules.get("mpi4py.rc"), "finalize", None)
    if mpi is None or finalize is False or not mpi.Is_initialized() or mpi.Is_finalized():
        return
    ctypes.CDLL(None).fflush(None)
    if code and "mpi4py.run" in sys.modules:
        mpi.COMM_WORLD.Abort(code)
    mpi.Finalize()
