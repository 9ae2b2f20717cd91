# SPDX-License-Identifier: Apache-2.0
"""Compare transformers' Trainer on two pipeline stages, and on two copies of them, with itself on one process.

``python tests/compat/run.py``, in an environment with the transformers to be tried. Needs several minutes and is not part of
the tests: ``make compat`` makes the environment.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).with_name("trainer_smp.py")
JOB = {
    "SM_HP_MP_PARAMETERS": json.dumps({"partitions": 2, "microbatches": 2, "ddp": True}),
    "SM_FRAMEWORK_PARAMS": json.dumps({"sagemaker_mpi_enabled": True}),
}
ALWAYS = {
    "OMP_NUM_THREADS": "1",
    # transformers 4.28 reads its own random-number file with torch.load, which has read tensors only since torch 2.6.
    "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",
}


def run(processes: int, **environment: str) -> dict:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    with tempfile.TemporaryDirectory() as folder:
        command = [*(launcher if processes > 1 else [sys.executable]), str(SCRIPT), folder]
        variables = {**os.environ, **ALWAYS, **environment}
        result = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
    for line in result.stdout.splitlines():
        if line.startswith("RESULT"):
            return json.loads(line.removeprefix("RESULT"))
    sys.exit(f"no result of {processes} process(es):\n{result.stdout[-2000:]}\n{result.stderr[-6000:]}")


def main() -> None:
    for accumulate in ("1", "2"):
        one = run(1, ACCUMULATE=accumulate)
        two = run(2, ACCUMULATE=accumulate, **JOB)
        assert (one["smp"], two["smp"]) == (False, True)
        for name in ("whole", "resumed"):
            pairs = zip(one[name]["losses"], two[name]["losses"], strict=True)
            assert max(abs(a - b) for a, b in pairs) < 2e-4, (one, two)  # the Trainer rounds to four digits
            assert abs(one[name]["eval_loss"] - two[name]["eval_loss"]) < 1e-5, (one, two)
            assert abs(one[name]["predicted"] - two[name]["predicted"]) < 1e-4, (one, two)
            assert one[name]["rows"] == two[name]["rows"] == 32
        assert abs(one["weights"] - two["weights"]) < 1e-3, (one, two)
        print(f"transformers {one['version']}, accumulate {accumulate}: equal; losses {two['whole']['losses']}")


if __name__ == "__main__":
    main()
