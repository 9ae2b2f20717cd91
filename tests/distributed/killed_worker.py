# SPDX-License-Identifier: Apache-2.0
"""Kills processes while they write one checkpoint after another beside what they do: ``killed_worker.py OUT_DIR TIMES``.

``OUT_DIR/rank-0.json`` has what was there after each kill: how many checkpoints had been begun, the step of the one that
AutoResume finds, and whether its numbers are of one step.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from lightning_sagemaker.checkpoint.background import BackgroundSave
from lightning_sagemaker.checkpoint.find import find_checkpoint
from lightning_sagemaker.checkpoint.trainer_format import read_checkpoint

OUT, TIMES = Path(sys.argv[1]), int(sys.argv[2])
WORLD = 2
NUMBERS = 200_000


def write(rank: int, place: Path) -> None:
    """Checkpoints of one name: each replaces the one before."""
    store = dist.FileStore(str(place / "store"), WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=30))
    save = BackgroundSave(rank, WORLD, lambda: None)
    for step in range(1, 1000):
        parts = {"state_dict": {f"weight {rank}": torch.full((NUMBERS,), float(step))}}
        (place / f"begun-{rank}").write_text(str(step))
        rest = {"global_step": step, "loops": {}, "callbacks": {}, "param_groups": []}
        save.begin(parts, rest, f"{place}/last.ckpt")
        save.finish()


def wait_for(place: Path, count: int) -> float:
    """When the first process begins a checkpoint."""
    deadline = time.monotonic() + 60
    while not (place / "begun-0").exists() or int((place / "begun-0").read_text() or 0) < count:
        time.sleep(0.001)
        assert time.monotonic() < deadline, f"{place}: no checkpoint {count}"
    return time.monotonic()


def look(place: Path) -> dict:
    found = find_checkpoint(place, report=lambda line: None)
    begun = max(int(path.read_text() or 0) for path in place.glob("begun-*"))
    if found is None:
        return {"begun": begun, "step": 0, "whole": True}
    values = read_checkpoint(found.path)["state_dict"]
    numbers = torch.cat([values[f"weight {rank}"] for rank in range(WORLD)])
    return {"begun": begun, "step": found.step, "whole": bool((numbers == found.step).all())}


def main() -> None:
    torch.set_num_threads(1)
    seeded, found = random.Random(0), []
    for number in range(TIMES):
        place = OUT / str(number)
        place.mkdir()
        children = []
        for rank in range(WORLD):
            child = os.fork()
            if not child:
                try:
                    write(rank, place)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
            children.append(child)
        begin = [wait_for(place, count) for count in (1, 1 + number % 4)]
        time.sleep(seeded.uniform(0.0, 1.0) * max(begin[1] - begin[0], 0.1) / max(number % 4, 1))
        victims = children if number % 3 else [children[number // 3 % WORLD]]
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        time.sleep(0.05)  # what a process that is left over does to the folder
        for child in set(children) - set(victims):
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)
        found.append(look(place))
        shutil.rmtree(place)
    (OUT / "rank-0.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
