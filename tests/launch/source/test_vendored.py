# SPDX-License-Identifier: Apache-2.0
"""Jobs whose container has no network: what ``requirements.txt`` needs goes along as wheels; pip decides, here and there."""

import io
import os
import subprocess
import sys
import tarfile
import zipfile

import pytest

from lightning_sagemaker.launch import Estimator, LaunchError
from lightning_sagemaker.launch.planning.report import describe
from lightning_sagemaker.launch.source.vendored import FOLDER, Target, vendored_wheels
from tests.conftest import ROOT
from tests.launch.seeds import ROLE

LATER = Target((3, 99), "2.8.0")
"""A Python that no machine has: what it needs besides is not what pip's reading of markers here says."""

INDEX = {
    ("torch", "2.8.0", "py3-none-any"): ["onlytorch"],
    ("torch", "2.9.0", "py3-none-any"): ["onlytorch"],
    ("onlytorch", "1.0", "py3-none-any"): [],
    ("first", "1.0", "py3-none-any"): [
        "torch>=2", "second[more]", "windows; sys_platform == 'win32'", "later; python_version >= '3.90'",
        "never; python_version < '3.9'",
    ],
    ("second", "1.0", "py3-none-any"): ["third; extra == 'more'", "fourth; extra == 'other'"],
    ("second", "2.0", "cp31-none-any"): [],  # of another Python
    ("third", "1.0", "py3-none-manylinux_2_28_x86_64"): [],
    ("third", "2.0", "py3-none-manylinux_2_39_x86_64"): [],  # newer than the images
    ("third", "3.0", "py3-none-win_amd64"): [],
    ("fourth", "1.0", "py3-none-any"): [],
    ("later", "1.0", "py3-none-any"): [],
    ("windows", "1.0", "py3-none-any"): [],
    ("own", "1.0", "py3-none-any"): ["first"],
}  # fmt: skip


def wheel(name, version, tag, requires):
    info, buffer = f"{name}-{version}.dist-info", io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(f"{name}.py", f"version = {version!r}\n")
        lines = [
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}",
            *(f"Requires-Dist: {one}" for one in requires),
        ]
        extras = ["Provides-Extra: more\nProvides-Extra: other"] if name == "second" else []
        archive.writestr(f"{info}/METADATA", "\n".join([*lines, *extras, ""]))
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return f"{name}-{version}-{tag}.whl", buffer.getvalue()


@pytest.fixture(scope="module", autouse=True)
def index(tmp_path_factory):
    """The only place that pip knows."""
    folder = tmp_path_factory.mktemp("index")
    for (name, version, tag), requires in INDEX.items():
        file, content = wheel(name, version, tag, requires)
        (folder / file).write_bytes(content)
    (folder / "sources-1.0.tar.gz").write_bytes(b"")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            patch.delenv(name)
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(folder))
        yield folder


def names(wheels):
    return sorted(" ".join(name.split("-")[:2]) for name in wheels)


def test_what_the_image_needs_is_fetched_and_nothing_that_it_has():
    found = vendored_wheels({"requirements.txt": b"first\n"}, LATER)
    assert names(found) == ["first 1.0", "later 1.0", "second 1.0", "third 1.0"]


def test_files_that_are_included_and_wheels_beside_them_count():
    own, content = wheel("own", "1.0", "py3-none-any", ["first"])
    source = {"requirements.txt": f"./{own}\n-r more/more.txt\n".encode(), "more/more.txt": b"fourth\n", own: content}
    found = vendored_wheels(source, LATER)
    assert names(found) == ["first 1.0", "fourth 1.0", "later 1.0", "second 1.0", "third 1.0"]


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ("nothere", "cannot be fetched here: .*nothere"),
        ("sources", "cannot be fetched here: .*sources"),  # no wheel
        ("windows\nthird>=2", "cannot be fetched here: .*third>=2"),
        ("first\ntorch-extension", "torch-extension"),
    ],
)
def test_what_cannot_be_had_is_one_sentence(lines, wanted):
    with pytest.raises(LaunchError, match=wanted) as error:
        vendored_wheels({"requirements.txt": lines.encode()}, LATER)
    assert str(error.value).count("HINT: ") == 1
    assert "\n" not in str(error.value)


def test_an_address_that_the_container_cannot_reach_is_refused(index, monkeypatch):
    from lightning_sagemaker.launch.source import vendored

    place = {"is_direct": True, "download_info": {"url": "https://example.com/a.whl"}, "metadata": {"name": "a"}}
    monkeypatch.setattr(vendored, "_resolved", lambda *_: {"install": [{**place, "requested": True}]})
    with pytest.raises(
        LaunchError, match="'https://example.com/a.whl', which a container without network cannot reach"
    ):
        vendored_wheels({"requirements.txt": b"a @ https://example.com/a.whl"}, LATER)


def isolated(folder, **arguments):
    given = {"include_plugin": False, "pytorch_version": "2.8", "instance_type": "ml.g5.xlarge", **arguments}
    return Estimator(
        "train.py", source_dir=str(folder), role=ROLE, region="us-east-1", enable_network_isolation=True, **given
    )


def test_a_job_without_network_installs_what_was_sent(tmp_path, monkeypatch):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text("import first, second, third\n")
    (tmp_path / "source" / "requirements.txt").write_text("first\n")
    plan = isolated(tmp_path / "source").plan()
    assert dict(describe(plan))["wheels"] == "3 are included, as there is no network: first 1.0, second 1.0, third 1.0"
    assert plan.bundle.files[-3:] == tuple(sorted(plan.bundle.files[-3:]))
    assert all(name.startswith(f"{FOLDER}/") for name in plan.bundle.files[-3:])
    with tarfile.open(fileobj=io.BytesIO(plan.bundle.content)) as archive:
        archive.extractall(tmp_path / "code")
    container, driver = tmp_path / "container", ROOT / "src" / "lightning_sagemaker" / "container"
    subprocess.run([sys.executable, "-m", "venv", str(container)], check=True, timeout=120)
    python = str(container / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "torch==2.8.0"], check=True, timeout=120)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment |= {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PYTHONPATH": str(driver), "PIP_CONFIG_FILE": os.devnull}
    environment |= {"SAGEMAKER_BASE_DIR": str(tmp_path / "ml")}
    run = "import runpy, lightning_driver; lightning_driver.install_requirements(); runpy.run_path('train.py')"
    done = subprocess.run(
        [python, "-c", run], cwd=tmp_path / "code", env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Successfully installed first-1.0 second-1.0 third-1.0" in done.stdout


def test_without_requirements_nothing_is_asked_of_pip(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("print()\n")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    plan = isolated(tmp_path).plan()
    assert dict(describe(plan))["wheels"] == "none"
    assert plan.bundle.files == ("train.py",)


def test_a_python_that_is_not_known_is_asked_for(tmp_path):
    (tmp_path / "train.py").write_text("print()\n")
    image = {"image_uri": "own/image:1", "pytorch_version": None}
    with pytest.raises(LaunchError, match="the Python version of image_uri.*set py_version"):
        isolated(tmp_path, **image).plan()
    (tmp_path / "requirements.txt").write_text("fourth\n")
    found = isolated(tmp_path, **image, py_version="py312").plan().bundle.files
    assert f"{FOLDER}/fourth-1.0-py3-none-any.whl" in found


def test_wheels_that_are_too_large_are_refused(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("print()\n")
    (tmp_path / "requirements.txt").write_text("fourth\n")
    monkeypatch.setattr("lightning_sagemaker.launch.source.bundle.MAX_BYTES", 100)
    with pytest.raises(LaunchError, match="The wheels of requirements.txt .* at most can be sent"):
        isolated(tmp_path).plan()
