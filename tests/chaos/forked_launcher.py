# SPDX-License-Identifier: Apache-2.0
"""Lightning's own launcher, with forked ranks: a new process would import for seconds what this one has imported."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import types
from collections.abc import Sequence
from typing import Any


def install() -> None:
    """Let the launcher of this process fork."""
    from lightning.pytorch.strategies.launchers import subprocess_script

    stand_in = types.SimpleNamespace(Popen=_Forked)
    vars(subprocess_script)["subprocess"] = stand_in


class _Forked:
    """As much of ``subprocess.Popen`` as the launcher uses."""

    def __init__(self, command: Sequence[str], env: dict[str, str], cwd: Any = None) -> None:
        self.returncode: int | None = None
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            _become(command, env)

    def poll(self) -> int | None:
        if self.returncode is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _become(command: Sequence[str], env: dict[str, str]) -> None:
    """The script again, from its first line; it does not return."""
    os.environ.clear()
    os.environ.update(env)
    sys.argv[:] = command[1:]
    code = 1
    try:
        runpy.run_path(command[1], run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)
