# SPDX-License-Identifier: Apache-2.0
"""`import smdistributed...` finds the shim where AWS's package is absent, and AWS's where it is not."""

import importlib
import importlib.util
import subprocess
import sys

import pytest

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
