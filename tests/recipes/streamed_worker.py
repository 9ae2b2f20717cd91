# SPDX-License-Identifier: Apache-2.0
"""Two ranks of ALBERT on text in S3: one run left alone, and one that a rank is asked to stop, started again.

``streamed_worker.py FOLDER ADDRESS``
"""

import os
import signal
import sys
from pathlib import Path

from lightning_sagemaker.data import streamed
from lightning_sagemaker.recipes._common.cli.recipe_cli import RecipeCLI
from lightning_sagemaker.recipes.albert_mlm.module import AlbertMLM
from lightning_sagemaker.recipes.albert_mlm.recipe import RECIPE

STEPS, STOP_AT = 14, 5


def run(folder: Path, address: str, *more: str) -> object:
    options = ["--config", "tiny.yaml", "--precision", "32-true", "--global_batch_size", "16", "--max_seq_length", "32"]
    options += ["--log_every_n_steps", "1", "--trainer.num_sanity_val_steps", "0", "--val_check_interval", "6"]
    options += ["--trainer.max_epochs", "-1", "--max_steps", str(STEPS), "--data.num_workers", "1"]
    try:
        RecipeCLI(RECIPE, [*options, "--text", address, "--run_dir", str(folder), *more])
    except SystemExit as error:
        return error.code
    return 0


def main(base: Path, address: str) -> None:
    streamed.WINDOW = 4
    codes = [run(base / "calm", address, "--cache_dir", str(base / "cache"))]
    begin = AlbertMLM.on_train_batch_start

    def stop(self, *arguments):
        if self.trainer.global_step == STOP_AT and self.trainer.global_rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return begin(self, *arguments)

    AlbertMLM.on_train_batch_start = stop
    codes.append(run(base / "stopped", address, "--cache_dir", str(base / "cache")))
    AlbertMLM.on_train_batch_start = begin
    # On another host: nothing of the text is there.
    codes.append(run(base / "stopped", address, "--cache_dir", str(base / "other"), "--resume", "always"))
    (base / f"codes-{os.environ['RANK']}").write_text(repr(codes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
