# SPDX-License-Identifier: Apache-2.0
"""Two ranks, of which the second cannot read checkpoints, as on a host without a common disk."""

import os
import sys
from pathlib import Path

from lightning_sagemaker import SMDDPStrategy
from tests.recipes.test_best import MONITOR, run


def refuse(*_, **__):
    raise FileNotFoundError("the other host's file")


if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        SMDDPStrategy.load_checkpoint = refuse
    run(Path(sys.argv[1]), *MONITOR.split(), strategy="smddp")
