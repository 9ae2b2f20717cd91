# SPDX-License-Identifier: Apache-2.0
"""The package as people get it: built from the sdist, installed where nothing may be written, without a compiler."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from tests.conftest import ROOT, run_bounded

pytestmark = pytest.mark.slow

NEEDED = ("sh", "env", "false", "uname")
STEPS = ["--max_steps", "2"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment with the wheel and this one's other packages; its ``python``."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "source" / name)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, timeout=120)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "build", "twine"], check=True, timeout=120)
    build = [python, "-m", "build", "--outdir", folder / "dist", folder / "source"]  # the wheel is made from the sdist
    subprocess.run(build, check=True, timeout=240, stdout=subprocess.DEVNULL)
    check = [python, "-m", "twine", "check", "--strict", *(folder / "dist").iterdir()]  # as PyPI renders the page
    subprocess.run(check, check=True, timeout=60)
    (wheel,) = (folder / "dist").glob("*.whl")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert set(filter(None, listed.split("\0"))) <= packed, "not in the sdist"
    subprocess.run([*pip, "--no-deps", wheel], check=True, timeout=120)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
    (site / "others.pth").write_text(
        sysconfig.get_path("purelib") + "\n"
    )  # behind it; an editable install is not followed
    (folder / "bin").mkdir()
    for name in NEEDED:
        (folder / "bin" / name).symlink_to(shutil.which(name))
    return python, site / "lightning_sagemaker", folder / "bin"


def state(package: Path) -> set[tuple[str, int]]:
    return {(str(path), path.stat().st_mtime_ns) for path in package.rglob("*")}


def run(installed, tmp_path, *command: str) -> str:
    """Run a module of the wheel in an empty folder; it must succeed and not touch the package."""
    python, package, programs = installed
    before = state(package)
    os.chdir(tmp_path)
    done = run_bounded(
        [str(python), "-m", *command],
        timeout=200,
        PATH=f"{python.parent}:{programs}",
        PYTHONPATH="",
        PYTHONSAFEPATH="1",
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert state(package) == before
    return done.stdout


@pytest.fixture(autouse=True)
def back_again():
    before = Path.cwd()
    yield
    os.chdir(before)


@pytest.mark.parametrize("recipe", ["albert-mlm", "bert-qa", "sequence-classification"])
def test_recipes(installed, tmp_path, recipe):
    run(installed, tmp_path, "lightning_sagemaker.cli", "run", recipe, "fit", "--config", "tiny.yaml", *STEPS)
    assert list((tmp_path / "runs" / recipe).rglob("*.safetensors"))


def test_a_rehearsal(installed, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import lightning_sagemaker\n"
        "from lightning.pytorch import Trainer\n"
        "from lightning.pytorch.demos.boring_classes import BoringModel\n"
        "Trainer(strategy='sagemaker', max_steps=2, logger=False).fit(BoringModel())\n"
        "print(lightning_sagemaker.__file__)\n"
    )
    shown = run(installed, tmp_path, "lightning_sagemaker.cli", "local", "--timeout", "120", "--", "train.py")
    assert shown.count(str(installed[1] / "__init__.py")) == 2, shown
    assert "because mpirun is not installed" in shown
