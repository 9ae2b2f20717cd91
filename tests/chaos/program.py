# SPDX-License-Identifier: Apache-2.0
"""The run that is interrupted: ``program.py FOLDER CASE.json`` trains as a case of covering.py says.

The module, the data and the Trainer are plain Lightning. With ``"ours": true`` there is what this package promises to make
such a run go on: its strategy and two callbacks. ``START`` in the environment says the how many-th start this is.
"""

import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path

if __name__ == "__main__":  # the workers of a forkserver import this file: they need nothing of it
    from tests.chaos import forked_launcher
    from tests.chaos.program_model import run

    multiprocessing.set_forkserver_preload(["tests.chaos.program_data"])  # else each worker imports torch
    # A process that a shell started in the background ignores SIGINT, and so do its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = Path(sys.argv[1])
    with (folder / "sessions").open("a") as file:
        file.write(f"{os.getsid(0)}\n")
    if "FORK_RANKS" in os.environ:
        forked_launcher.install()
    run(folder, json.loads(Path(sys.argv[2]).read_text()), int(os.environ.get("START", "0")))
