# SPDX-License-Identifier: Apache-2.0
"""A process that has imported training's modules and is forked for each rank, including replacements.

It reads a line of JSON from its standard input for each rank to start, and writes one for each that has started or ended.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from lightning_sagemaker.simulator import host_init
from lightning_sagemaker.simulator.preload.handover import Group, run_program
from lightning_sagemaker.simulator.preload.server import leave_no_trace, load_groups

_POLL = 0.02


def main(arguments: Sequence[str]) -> None:
    """Serve until the supervisor closes the standard input.

    Args:
        arguments: Names of groups to import, then unused arguments that reserve space for the ranks' title in ``ps``.

    """
    host_init.prctl(host_init.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # the ranks write to the supervisor's standard error
    leave_no_trace()
    loaded = load_groups(arguments[0].split(","))
    gc.collect()
    gc.freeze()
    _respond(answers, {"ready": len(os.listdir("/proc/self/task"))})
    pending, children = b"", set[int]()
    while True:
        ready, _, _ = select.select([requests], [], [], _POLL)
        if ready:
            part = os.read(requests, 1 << 16)
            if not part:
                os._exit(0)
            *lines, pending = (pending + part).split(b"\n")
            for line in lines:
                children.add(_start(json.loads(line), requests, answers, loaded))
        _report_ends(answers, children)


def _start(request: dict[str, Any], requests: int, answers: int, loaded: list[Group]) -> int:
    child = os.fork()
    if not child:
        os.close(requests)
        os.close(answers)
        _be_program(request, loaded)
    _respond(answers, {"started": request["rank"], "pid": child})
    return child


def _be_program(request: dict[str, Any], loaded: list[Group]) -> NoReturn:
    os.setpgid(0, 0)
    host_init.prctl(host_init.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(int(request["stdout"]), 1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    run_program(request, loaded, lambda sentence: print(f"lightning-sagemaker: {sentence}", file=sys.stderr))


def _report_ends(answers: int, children: set[int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] in children:
                children.remove(ended[0])
                _respond(answers, {"ended": ended[0], "code": os.waitstatus_to_exitcode(ended[1])})


def _respond(answers: int, message: dict[str, Any]) -> None:
    os.write(answers, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
