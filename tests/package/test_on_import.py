# SPDX-License-Identifier: Apache-2.0
"""Whatever is imported first: the names are registered, with the Lightning that the script uses, and nothing is slow."""

import subprocess
import sys

import pytest

CHECK = """
import importlib, sys
name = "lightning.pytorch" if "lightning" in sys.modules or "pytorch_lightning" not in sys.modules else "pytorch_lightning"
package = importlib.import_module(name)
strategy = package.Trainer(strategy="smddp", accelerator="cpu", logger=False).strategy
assert isinstance(strategy, package.strategies.DDPStrategy), type(strategy).__mro__
assert type(strategy).__name__ == "SMDDPStrategy"
fabric = importlib.import_module("lightning.fabric" if name == "lightning.pytorch" else "lightning_fabric")
assert type(fabric.Fabric(strategy="smddp", accelerator="cpu").strategy).__name__ == "FabricSMDDPStrategy"
print(name)
"""
ORDERS = {
    "from lightning_sagemaker import SMDDPStrategy": "lightning.pytorch",
    "import lightning_sagemaker.environment": "lightning.pytorch",
    "import lightning_sagemaker; import lightning.fabric": "lightning.pytorch",
    "import lightning.pytorch; import lightning_sagemaker": "lightning.pytorch",
    "import pytorch_lightning; import lightning_sagemaker": "pytorch_lightning",
    "import lightning_sagemaker; import pytorch_lightning": "pytorch_lightning",
}


NAMES = "import lightning_sagemaker as p; print(len([getattr(p, n) for n in p.__all__]), set(dir(p)) >= set(p.__all__))"
FORK = """
import os, sys
import torch._dynamo, torch.distributed.fsdp, torchmetrics.functional  # most of the time that Lightning's import takes
assert not {"lightning", "pytorch_lightning", "lightning_sagemaker"} & set(sys.modules)
for number, code in enumerate(sys.argv[2:]):
    if os.fork() == 0:
        output = os.open(f"{sys.argv[1]}/{number}", os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1), os.dup2(output, 2)
        exec(code, {"__name__": "__main__"})
        sys.exit()
    os.wait()
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> dict[str, str]:
    """What each order of imports, and the public names, print; in processes that have imported what Lightning imports."""
    folder = tmp_path_factory.mktemp("outputs")
    codes = {first: f"{first}\n{CHECK}" for first in ORDERS} | {NAMES: NAMES}
    done = python(FORK, str(folder), *codes.values())
    assert done.returncode == 0, done.stderr
    return {name: (folder / str(number)).read_text() for number, name in enumerate(codes)}


@pytest.mark.parametrize("first", ORDERS)
def test_any_order_of_imports(outputs, first):
    assert outputs[first].split()[-1:] == [ORDERS[first]], outputs[first][-2000:]


def test_in_a_process_that_has_imported_nothing():
    first = "import lightning_sagemaker; import lightning.fabric"
    done = python(f"{first}\n{CHECK}")
    assert done.stdout.split()[-1:] == [ORDERS[first]], done.stderr[-2000:]


@pytest.mark.parametrize(
    "code",
    [
        "import lightning_sagemaker",
        "import lightning_sagemaker.launch",
        "from lightning_sagemaker import SageMakerJob, select_strategy; select_strategy(SageMakerJob.from_environment())",
        "from lightning_sagemaker import cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass",
        "from lightning_sagemaker import cli\ntry: cli.main(['local', '--help'])\nexcept SystemExit: pass",
    ],
)
def test_what_needs_neither_torch_nor_lightning_loads_neither(code):
    # Seconds of the processor, which other tests beside this one do not take.
    timed = f"import time; begin = time.process_time()\n{code}\nimport sys; print(time.process_time() - begin, *sys.modules)"
    done = python(timed)
    seconds, *loaded = done.stdout.splitlines()[-1].split()
    assert not {"torch", "lightning", "pytorch_lightning", "transformers", "sagemaker"} & set(loaded), done.stderr
    assert float(seconds) < 0.5


def test_every_public_name_resolves(outputs):
    assert outputs[NAMES].split()[-2:] == ["33", "True"], outputs[NAMES]


def test_an_unknown_name():
    done = python("import lightning_sagemaker; lightning_sagemaker.nothing")
    assert "has no attribute 'nothing'" in done.stderr
