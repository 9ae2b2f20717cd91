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


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("first", ORDERS)
def test_any_order_of_imports(first):
    done = python(f"{first}\n{CHECK}")
    assert done.stdout.split()[-1:] == [ORDERS[first]], done.stderr[-2000:]


VARIABLE = "LIGHTNING_SAGEMAKER_PACKAGE"
ASK_THE_OTHER = """
import importlib
for module, name in {asked}:
    try:
        getattr(importlib.import_module(module), name)(strategy="{strategy}", accelerator="cpu")
    except Exception as error:
        print(f"{{name}}: {{error}}")
"""


@pytest.mark.parametrize(
    ("first", "chosen", "other", "asked"),
    [
        (
            "import lightning.pytorch; import lightning_sagemaker; import pytorch_lightning",
            "lightning",
            "pytorch_lightning",
            (("pytorch_lightning", "Trainer"), ("lightning_fabric", "Fabric")),
        ),
        (
            "import lightning_sagemaker; import pytorch_lightning; import lightning",
            "pytorch_lightning",
            "lightning",
            (("lightning.pytorch", "Trainer"), ("lightning.fabric", "Fabric")),
        ),
        (
            "import lightning.pytorch, pytorch_lightning; import lightning_sagemaker",
            "lightning",
            "pytorch_lightning",
            (("pytorch_lightning", "Trainer"),),
        ),
    ],
    ids=["lightning first", "pytorch_lightning first", "both before"],
)
def test_the_other_package_names_the_one_that_was_first(first, chosen, other, asked):
    done = python(first + ASK_THE_OTHER.format(asked=asked, strategy="smddp"))
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [name for _, name in asked], done.stderr[-2000:]
    assert all(f"was requested from {other}, but lightning_sagemaker is built on {chosen}" in line for line in lines)
    hint = f"HINT: import Trainer, Fabric and LightningModule from {chosen} alone, or set {VARIABLE}={other}."
    assert all(hint in line for line in lines)
    heeded = f"import os; os.environ[{VARIABLE!r}] = {other!r}; {first}"
    done = python(heeded + ASK_THE_OTHER.format(asked=asked, strategy="smddp") + "print('no error')")
    assert done.stdout.split() == ["no", "error"], done.stderr[-2000:]


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


def test_every_public_name_resolves():
    code = (
        "import lightning_sagemaker as p; print(len([getattr(p, n) for n in p.__all__]), set(dir(p)) >= set(p.__all__))"
    )
    assert python(code).stdout.split() == ["34", "True"]


OWN = """
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from lightning.fabric.strategies import STRATEGY_REGISTRY

class Own(DDPStrategy):
    pass

def of_script():
    StrategyRegistry.register(name="smddp", strategy=Own, process_group_backend="smddp", find_unused_parameters=False)
    STRATEGY_REGISTRY.register("smddp", description="x")(Own)
"""


@pytest.mark.parametrize(
    "order", ["of_script(); import lightning_sagemaker", "import lightning_sagemaker; of_script()"]
)
def test_a_script_that_registers_a_strategy_of_the_same_name_keeps_it(order):
    """As NeMo's set-up for SageMaker does, in images where this package is not imported."""
    shown = (
        "print(type(StrategyRegistry.get('smddp')), STRATEGY_REGISTRY['smddp']['strategy'], 'smp' in StrategyRegistry)"
    )
    again = "\ntry: StrategyRegistry.register('smddp', Own)\nexcept ValueError as error: print(error)"
    done = python(f"{OWN}\n{order}\n{shown}{again}")
    first, refused = done.stdout.splitlines()
    assert first == "<class '__main__.Own'> <class '__main__.Own'> True", done.stderr[-1000:]
    assert refused.startswith("'smddp' is already present")  # as Lightning has it


def test_with_the_one_lightning_nothing_loads_the_other():
    """Its classes are others, its messages come twice, and its import takes seconds. Recipes are built on ``lightning``."""
    code = """
import importlib, pkgutil, sys
import pytorch_lightning
import lightning_sagemaker
for module in pkgutil.walk_packages(lightning_sagemaker.__path__, "lightning_sagemaker."):
    # What is run, not imported, and what is for Pythons of its own.
    if not any(part in module.name for part in (".recipes", ".__main__", ".simulator.image", ".container", ".sdk")):
        try:
            importlib.import_module(module.name)
        except ImportError:
            pass  # of a package that is not installed
        assert "lightning" not in sys.modules, module.name
print("none of", len([name for name in sys.modules if name.startswith("lightning_sagemaker")]))
"""
    done = python(code)
    assert done.stdout.startswith("none of"), done.stderr[-1000:]
    assert int(done.stdout.split()[-1]) > 300


def test_an_unknown_name():
    done = python("import lightning_sagemaker; lightning_sagemaker.nothing")
    assert "has no attribute 'nothing'" in done.stderr
