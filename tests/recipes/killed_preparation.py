# SPDX-License-Identifier: Apache-2.0
"""``prepare`` in many small shards, which kills itself before one of the things that it does to files and in requests.

``killed_preparation.py NUMBER COUNT ARGUMENT...``: before the NUMBERth; with 0 it ends, and writes how many there were
to the file COUNT.
"""

import os
import signal
import sys
from pathlib import Path

from lightning_sagemaker.recipes.albert_mlm import prepare
from lightning_sagemaker.recipes.albert_mlm.prepare_text import main

EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "http.client.send"}


class Killer:
    """An audit hook.

    Args:
        number: Of the event before which the process is killed.

    """

    def __init__(self, number: int) -> None:
        self.number, self.count = number, 0

    def __call__(self, event, arguments) -> None:
        writes = event == "open" and isinstance(arguments[1], str) and arguments[1][:1] in "wax"
        if writes or event in EVENTS:
            self.count += 1
            if self.count == self.number:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    prepare._SHARD_CHARACTERS = (10_000, 10_000)
    killer = Killer(int(sys.argv[1]))
    sys.addaudithook(killer)
    code = main(sys.argv[3:])
    Path(sys.argv[2]).write_text(str(killer.count))
    sys.exit(code)
