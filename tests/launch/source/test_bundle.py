# SPDX-License-Identifier: Apache-2.0
"""What is sent of a source folder, as one archive."""

import hashlib
import io
import subprocess
import tarfile
import time

import pytest

from lightning_sagemaker.launch import Estimator, JobConfig, LaunchError
from tests.launch.seeds import ROLE


def test_a_bundle_over_the_limit_and_requirements_with_torch(tmp_path, monkeypatch):
    from lightning_sagemaker.launch.source import bundle

    (tmp_path / "train.py").write_text("print()\n")
    estimator = Estimator(entry_point="train.py", source_dir=str(tmp_path), role=ROLE, region="us-east-1")
    (tmp_path / "requirements.txt").write_text("pandas\ntorch>=2 # new\n")
    with pytest.raises(LaunchError, match="lists 'torch>=2 # new', which would replace the image's own"):
        estimator.plan()
    (tmp_path / "requirements.txt").write_text("pandas\n--requirement=more/own.txt # ours\n")
    with pytest.raises(LaunchError, match=r"own.txt # ours', which is not among the files"):
        estimator.plan()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "own.txt").write_text("-r ../requirements.txt\ntorch\n")
    with pytest.raises(LaunchError, match=r"more/own.txt lists 'torch', which would replace the image's own"):
        estimator.plan()
    (tmp_path / "more" / "own.txt").write_text("scipy\n")
    (tmp_path / "pins.txt").write_text("torch==2.5.1\n")
    (tmp_path / "requirements.txt").write_text("torchmetrics\n-c pins.txt\n-r more/own.txt\n")
    assert "torchmetrics" in unpacked(estimator.plan().bundle)["requirements.txt"].decode()
    for content in (
        b"\xef\xbb\xbftorch\r\n",
        "numpy\r\ntorch\r\n".encode("utf-16"),
        b"https://download.pytorch.org/whl/cpu/torch-2.5.1%2Bcpu-cp311-cp311-linux_x86_64.whl\n",
        b"git+https://github.com/pytorch/pytorch.git@v2.5.1#egg=torch\n",
    ):
        (tmp_path / "requirements.txt").write_bytes(content)
        with pytest.raises(LaunchError, match="which would replace the image's own"):
            estimator.plan()
    (tmp_path / "requirements.txt").write_bytes("numpy\r\n".encode("utf-16"))  # as Windows' PowerShell writes a file
    assert "numpy" in unpacked(estimator.plan().bundle)["requirements.txt"].decode()
    monkeypatch.setattr(bundle, "MAX_BYTES", 1000)
    (tmp_path / "vectors.bin").write_bytes(b"x" * 2000)
    with pytest.raises(LaunchError, match=r"largest file is vectors.bin. HINT: pass data as an input channel"):
        estimator.plan()


def unpacked(bundle):
    with tarfile.open(fileobj=io.BytesIO(bundle.content)) as archive:
        return {name: archive.extractfile(name).read() for name in archive.getnames()}


def test_the_bundle_is_the_same_for_the_same_files_and_leaves_out_what_is_none(tmp_path):
    for copy in ("one", "two"):
        folder = tmp_path / copy
        (folder / "package").mkdir(parents=True)
        (folder / "train.py").write_text("print()\n")
        (folder / "package" / "model.py").write_text("x = 1\n")
        for name in (".env", "id_rsa", "key.pem", "last.ckpt", "data.parquet", "credentials.json"):
            (folder / name).write_text("secret")
        for name in (".git", "__pycache__", ".venv", "runs", ".aws"):
            (folder / name).mkdir()
            (folder / name / "file").write_text("x")
        (folder / "rehearsal" / "algo-1" / "input" / "config").mkdir(parents=True)  # --rehearse-root in the source
        (folder / "rehearsal" / "algo-1" / "train.py").touch()
        (folder / "way-out").symlink_to("/etc/passwd")
        time.sleep(0.01)
    made = [
        Estimator(entry_point="train.py", source_dir=str(tmp_path / copy), region="us-east-1").plan().bundle
        for copy in ("one", "two")
    ]
    assert made[0].digest == made[1].digest == hashlib.sha256(made[0].content).hexdigest()
    (wheel,) = [name for name in made[0].files if name.endswith(".whl")]
    assert set(made[0].files) == {"train.py", "package/model.py", "requirements.txt", wheel}
    assert {".env", "id_rsa", ".git", "way-out", "last.ckpt", "rehearsal"} <= set(made[0].left_out)
    assert unpacked(made[0])["requirements.txt"].decode() == f"./{wheel}\n"


def test_without_a_folder_the_script_is_sent_alone(tmp_path, monkeypatch):
    """As in SDK 2: it may stand beside whatever else is in one's home."""
    for name in ("train.py", "diary.txt", "requirements.txt"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    for entry, folder in (("train.py", None), (str(tmp_path / "train.py"), None), ("train.py", "")):
        job = {"entry_point": entry, "source_dir": folder, "region": "us-east-1", "include_plugin": False}
        assert Estimator(**job).plan().bundle.files == ("train.py",)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("../lib", {"lib/helper.py"}),
        ("../lib/", {"helper.py"}),
        (".", {"src/train.py", "own.py"}),
        ("../lib/helper.py", {"helper.py"}),
    ],
)
def test_dependencies_are_where_sdk_2_puts_them(given, names, tmp_path, monkeypatch):
    """Its archive has the last part of the path: none of ``lib/``, whose modules are then imported by their own names."""
    for name in ("lib/helper.py", "project/src/train.py", "project/own.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path / "project")
    job = {"entry_point": "train.py", "source_dir": "src", "region": "us-east-1", "include_plugin": False}
    assert set(Estimator(**job, dependencies=[given]).plan().bundle.files) == {"train.py", *names}
    with pytest.raises(LaunchError, match=r"dependencies has '\.\.', whose place .*HINT"):
        Estimator(**job, dependencies=[".."]).plan()


def test_a_token_in_the_address_of_a_repository_is_not_shown(tmp_path):
    config = {"repo": "https://user:" + "h8Gf5tRwZ1" + "@127.0.0.1:9/a.git"}
    with pytest.raises(LaunchError, match=r"'https://127\.0\.0\.1:9/a\.git' cannot be cloned") as error:
        Estimator(entry_point="a.py", git_config=config, region="us-east-1").plan()
    assert "h8Gf5tRwZ1" not in str(error.value)


def test_source_from_git(tmp_path):
    repository = tmp_path / "repository"
    (repository / "examples").mkdir(parents=True)
    (repository / "examples" / "run_qa.py").write_text("print('v1')\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(repository)]
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "one"], ["branch", "v4.6.1"]):
        subprocess.run([*git, *command], check=True)
    (repository / "examples" / "run_qa.py").write_text("print('v2')\n")
    subprocess.run([*git, "commit", "-qam", "two"], check=True)
    config = {"repo": f"file://{repository}", "branch": "v4.6.1"}
    estimator = Estimator(entry_point="run_qa.py", source_dir="./examples", git_config=config, region="us-east-1")
    assert unpacked(estimator.plan().bundle)["run_qa.py"] == b"print('v1')\n"
    with pytest.raises(LaunchError, match="cannot be cloned"):
        Estimator(entry_point="a.py", git_config={**config, "branch": "none"}, region="us-east-1").plan()


def test_dependencies_of_a_source_from_git_are_of_the_repository(tmp_path, monkeypatch):
    """As in SDK 2: a folder of the same name here is another one."""
    repository = tmp_path / "origin"
    for place, text in ((repository, "theirs"), (tmp_path, "mine")):
        (place / "lib").mkdir(parents=True)
        (place / "lib" / "helper.py").write_text(text)
    (tmp_path / "only-here").mkdir()
    (repository / "train.py").touch()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(repository)]
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    monkeypatch.chdir(tmp_path)
    job = {"entry_point": "train.py", "git_config": {"repo": f"file://{repository}"}, "region": "us-east-1"}
    files = unpacked(Estimator(**job, dependencies=["lib"]).plan().bundle)
    assert files["lib/helper.py"] == b"theirs"
    with pytest.raises(LaunchError, match="dependencies has 'only-here', which is not in the repository. HINT"):
        Estimator(**job, dependencies=["only-here"]).plan()


@pytest.mark.parametrize(("options", "extras"), [({}, "recipes"), ({"model.lora.rank": 8}, "recipes,lora")])
def test_a_recipe_asks_for_what_its_options_need(monkeypatch, options, extras):
    from lightning_sagemaker.launch.source import bundle

    monkeypatch.setattr(bundle, "make_wheel", lambda: ("own.whl", b""))
    made = bundle.make_bundle(JobConfig(recipe="bert-qa", hyperparameters=options), include_plugin=True)
    assert unpacked(made)["requirements.txt"].decode().startswith(f"./own.whl[{extras}]\n")
