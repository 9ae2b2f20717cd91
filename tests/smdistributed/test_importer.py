# SPDX-License-Identifier: Apache-2.0
"""`import smdistributed...` finds the shim where AWS's package is absent, and AWS's where it is not."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys

import pytest

from lightning_sagemaker.simulator import hosts
from lightning_sagemaker.simulator.contract import Folders
from lightning_sagemaker.smdistributed import importer

SHIM = "lightning_sagemaker.smdistributed.dataparallel.torch"


@pytest.fixture(autouse=True)
def uninstalled():
    importer.uninstall()
    yield
    importer.uninstall()


def test_absent_until_installed():
    assert importlib.util.find_spec("smdistributed") is None
    assert not importer.aws_installed()
    assert importer.install()
    assert importlib.util.find_spec("smdistributed") is not None
    importer.uninstall()
    assert importlib.util.find_spec("smdistributed") is None


def test_each_mirrored_module_is_the_shims_own():
    """One module object under two names: state that a script sets is the state that the strategy sees."""
    importer.install()
    importer.install()  # twice does no harm
    for name in ("distributed", "parallel", "parallel.distributed", "torch_smddp"):
        mirrored = importlib.import_module(f"smdistributed.dataparallel.torch.{name}")
        assert mirrored is importlib.import_module(f"{SHIM}.{name}")
        assert mirrored.__spec__.name == f"{SHIM}.{name}"


def test_both_documented_imports_of_ddp():
    importer.install()
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel as A
    from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as B

    assert A is B


def test_what_does_not_exist_is_not_found():
    importer.install()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("smdistributed.dataparallel.tensorflow")


def test_aws_package_wins(tmp_path, monkeypatch):
    package = tmp_path / "smdistributed" / "dataparallel"
    package.mkdir(parents=True)
    (tmp_path / "smdistributed" / "__init__.py").touch()
    (package / "__init__.py").write_text("ORIGIN = 'AWS'")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importer.aws_installed()
    assert not importer.install()
    assert importlib.import_module("smdistributed.dataparallel").ORIGIN == "AWS"
    assert importer.aws_installed()
    for name in ("smdistributed", "smdistributed.dataparallel"):
        del sys.modules[name]


def test_beside_another_library_of_the_family(tmp_path, monkeypatch):
    """`smdistributed` is a folder that several libraries share; only the missing one is stood in for."""
    package = tmp_path / "smdistributed" / "modelparallel"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("ORIGIN = 'AWS'")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importer.install()
    assert importlib.import_module("smdistributed.modelparallel").ORIGIN == "AWS"
    assert importlib.import_module("smdistributed.dataparallel").__name__ == f"{SHIM.rpartition('.')[0]}"
    for name in ("smdistributed", "smdistributed.modelparallel"):
        del sys.modules[name]


def test_installing_does_not_import_torch():
    code = "from lightning_sagemaker.smdistributed import importer; importer.install(); import sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout.split()
    assert "lightning_sagemaker.smdistributed.importer" in loaded
    assert "torch" not in loaded


LOOK = """
import json, importlib.util, os, sys
before = [name for name in sys.modules if name.startswith("lightning_sagemaker")]
found = importlib.util.find_spec("torch.sagemaker")
said = {"before": before, "found": found and type(found.loader).__name__, "path": sys.path}
said["absent"] = importlib.util.find_spec("absent") is None
print(json.dumps(said | {"marks": [name for name in os.environ if name.startswith("MARK_")]}))
"""


def simulated_path(folder):
    """PYTHONPATH of a simulated host, for a job that sets it to a folder."""
    return hosts.simulation_variables(Folders(folder), str(folder))["PYTHONPATH"]


@pytest.mark.parametrize("installed", [None, "sagemaker", "own"])
def test_processes_of_a_simulated_job_find_version_2_when_they_start(tmp_path, installed):
    """By a folder on PYTHONPATH, which gives way to AWS's library and to another ``sitecustomize``; torch is empty here."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    if installed == "sagemaker":
        (tmp_path / "torch" / "sagemaker.py").touch()
    if installed == "own":
        (tmp_path / "sitecustomize.py").write_text("import os; os.environ['MARK_' + __name__] = '1'")
    seen = {}
    for name, path in (("with", simulated_path(tmp_path)), ("without", f"{tmp_path}{os.pathsep}{hosts.IMAGE}")):
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=60, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        seen[name] = json.loads(done.stdout)
    assert seen["with"]["before"] == []
    assert seen["with"]["path"] == seen["without"]["path"]
    assert seen["with"]["marks"] == seen["without"]["marks"] == (["MARK_sitecustomize"] if installed == "own" else [])
    assert seen["with"]["absent"]
    expected = ("SourceFileLoader",) * 2 if installed == "sagemaker" else ("_Alias", None)
    assert (seen["with"]["found"], seen["without"]["found"]) == expected


def test_an_error_in_another_sitecustomize_is_told(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import absent_module")
    environment = {**os.environ, "PYTHONPATH": simulated_path(tmp_path)}
    done = subprocess.run([sys.executable, "-c", ""], capture_output=True, text=True, timeout=60, env=environment)
    assert "absent_module" in done.stderr


def test_model_parallelism_beside_an_installed_smddp(tmp_path, monkeypatch):
    package = tmp_path / "smdistributed" / "dataparallel"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("ORIGIN = 'AWS'")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not importer.install()
    assert importlib.import_module("smdistributed.dataparallel").ORIGIN == "AWS"
    found = importlib.import_module("smdistributed.modelparallel")
    assert found.__name__ == "lightning_sagemaker.smdistributed.modelparallel"
    for name in ("smdistributed", "smdistributed.dataparallel"):
        del sys.modules[name]


def test_version_2_steps_aside_for_aws(tmp_path, monkeypatch):
    import torch

    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("torch.sagemaker")
    importer.install()
    assert importlib.import_module("torch.sagemaker").__name__ == "lightning_sagemaker.torch_sagemaker"
    importer.uninstall()
    (tmp_path / "sagemaker").mkdir()
    (tmp_path / "sagemaker" / "__init__.py").write_text("ORIGIN = 'AWS'")
    monkeypatch.setattr(torch, "__path__", [*torch.__path__, str(tmp_path)])
    importer.install()
    assert importlib.import_module("torch.sagemaker").ORIGIN == "AWS"
    del sys.modules["torch.sagemaker"], torch.sagemaker
