# SPDX-License-Identifier: Apache-2.0
"""The file that says why a job failed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_sagemaker import container as drivers
from lightning_sagemaker.container.lightning_reasons import reason
from lightning_sagemaker.container.lightning_redaction import redacted
from lightning_sagemaker.job.failure import write_failure
from tests.conftest import is_contract_variable
from tests.launch.secret_kinds import FORMATS, SHAPES, drawn


def fail(text: str) -> Exception:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


def test_the_first_failure_stays_and_its_exception_comes_first(tmp_path):
    path = tmp_path / "output" / "failure"
    write_failure(path, fail("first"), 3, {})
    write_failure(path, fail("second"), 0, {})
    text = path.read_text()
    assert text.startswith("Rank 3 failed: ValueError: first\n")
    assert "test_failure.py" in text
    assert "second" not in text
    assert [one.name for one in path.parent.iterdir()] == ["failure"]


def test_an_empty_file_is_filled(tmp_path):
    (tmp_path / "failure").touch()
    write_failure(tmp_path / "failure", fail("x"), None, {}, step=7)
    assert (tmp_path / "failure").read_text().startswith("The program failed after step 7: ValueError: x\n")


def test_a_folder_that_cannot_be_made_is_no_second_error(tmp_path):
    (tmp_path / "file").touch()
    write_failure(tmp_path / "file" / "failure", fail("x"), 0, {})


def test_secrets_are_not_in_it():
    names = {
        "PWD": "/usr",
        "AWS_SECRET_ACCESS_KEY": "abcdef123",
        "HF_TOKEN": "hf_1234567",
        "PATH": "/usr/bin",
        "DB_PASSWORD": "x",
    }
    assert redacted("got abcdef123 and hf_1234567 in /usr/bin, x", names) == "got *** and *** in /usr/bin, x"


@pytest.mark.parametrize(
    "way", ["{}", "KeyError: '{}'", "401 for token {}: denied", "password={} is wrong", "('{}', 3)"]
)
def test_no_kind_of_secret_is_in_a_reason(way):
    """Of variables that this process knows nothing of."""
    tokens = [drawn(kind) for kind in FORMATS if "password" not in kind]
    left = [token for token in tokens if token in redacted(way.format(token), {})]
    assert left == []
    shapes = [kind for kind, text in SHAPES.items() if redacted(way.format(text), {}) == way.format(text)]
    assert shapes == []


def test_what_is_no_secret_stays_in_a_reason():
    for text in (
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x768 and 512x2)",
        "FileNotFoundError: [Errno 2] No such file or directory: '/opt/ml/input/data/train/part-00017.parquet'",
        'File "/opt/conda/lib/python3.11/site-packages/transformers/modeling_wav2vec2.py", line 1201, in forward',
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB",
        "KeyError: 'transformer.h.0.attn.c_attn.weight'",
    ):
        assert redacted(text, {}) == text


SCRIPT = """
import os, resource, signal, sys, time
rank = int(os.environ.get("RANK", 0))
print("step=12 loss=0.5", flush=True)
if rank == int(os.environ.get("WORLD_SIZE", 1)) - 1:
    time.sleep(float(os.environ.get("LATER", 0)))
    what = os.environ["WHAT"]
    if what == "exception":
        raise ValueError("no such column: amount " + "ghp_" + "a1B2" * 9)
    if what == "exit code":
        sys.exit(3)
    if what == "memory":
        resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
        bytearray(2**33)
    os.kill(os.getpid(), getattr(signal, what))
time.sleep(60)
"""
KINDS = {
    "exception": "failed after step 12: ValueError: no such column: amount ***",
    "exit code": "ended with exit code 3 after step 12",
    "SIGKILL": "was ended by SIGKILL (signal 9) after step 12; probably out of memory",
    "SIGSEGV": "was ended by SIGSEGV (signal 11) after step 12",
    "memory": "failed after step 12: MemoryError",
}


def start_driver(place, what, hosts=1, index=0, port=0, processes=None):
    """The driver as in a container, started from a folder with its files alone."""
    name, base = f"algo-{index + 1}", place / f"algo-{index + 1}"
    (base / "code").mkdir(parents=True)
    (base / "code" / "train.py").write_text(SCRIPT)
    config = "{}" if processes is None else f'{{"distribution": "ddp", "process_count_per_node": {processes}}}'
    names = ", ".join(f'"algo-{number + 1}"' for number in range(hosts))
    clean = {key: value for key, value in os.environ.items() if not is_contract_variable(key)}
    own = {
        "LIGHTNING_SAGEMAKER_SIMULATED": "1", "SAGEMAKER_BASE_DIR": str(base), "SM_ENTRY_SCRIPT": "train.py", "WHAT": what,
        "SM_DISTRIBUTED_CONFIG": config, "SM_HOSTS": f"[{names}]", "SM_CURRENT_HOST": name,
        "SM_MASTER_ADDR": "algo-1", "SM_MASTER_PORT": "7777", "SM_CURRENT_HOST_RANK": str(index),
        "LIGHTNING_SAGEMAKER_MAIN_ADDRESS": "127.0.0.1", "LIGHTNING_SAGEMAKER_MAIN_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    driver = Path(drivers.__file__).with_name("lightning_driver.py")
    return subprocess.Popen(
        [sys.executable, str(driver)], cwd=base / "code", env=clean | own, stdout=(base / "log").open("w")
    )


def reason_of(place, host="algo-1"):
    return (place / host / "output" / "failure").read_text()[:200]


@pytest.mark.parametrize("what", KINDS)
def test_the_reason_of_one_process(what, tmp_path):
    assert start_driver(tmp_path, what).wait(60) != 0
    assert reason_of(tmp_path).startswith(f"The program on algo-1 {KINDS[what]}")


@pytest.mark.parametrize(
    "what", ["SIGKILL", *(pytest.param(one, marks=pytest.mark.slow) for one in KINDS if one != "SIGKILL")]
)
def test_the_reason_under_torchrun(what, tmp_path):
    assert start_driver(tmp_path, what, processes=2).wait(120) != 0
    assert reason_of(tmp_path).startswith(f"Rank 1 on algo-1 {KINDS[what]}"), (tmp_path / "algo-1" / "log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("what", KINDS)
def test_the_reason_on_two_hosts(what, tmp_path):
    from lightning_sagemaker.simulator.hosts import free_port

    port = free_port()
    both = [start_driver(tmp_path, what, 2, index, port, processes=1) for index in range(2)]
    try:
        assert both[1].wait(120) != 0
    finally:
        for process in both:
            process.terminate()
            process.wait(130)
    assert reason_of(tmp_path, "algo-2").startswith(f"Rank 1 on algo-2 {KINDS[what]}")


def test_a_signal_goes_before_what_followed_from_it_and_shells_count_alike():
    lines = [
        "step=3 loss=1", "[rank0]: Traceback (most recent call last):", '[rank0]:   File "a.py", line 1',
        "[rank0]: RuntimeError: x", "Failures:", "[1]:", "  rank      : 1 (local_rank: 1)", "  exitcode  : -11 (pid: 9)",
        "Root Cause (first observed failure):",
        "[0]:", "  rank      : 0 (local_rank: 0)", "  exitcode  : 1 (pid: 8)",
    ]  # fmt: skip
    assert reason(1, lines, 10).startswith("Rank 1 was ended by SIGSEGV (signal 11) after step 3")
    assert reason(137, ["epoch=0"], 10).startswith("The program was ended by SIGKILL (signal 9); probably")
    peer = ["Traceback (most recent call last):", "  File x", "RuntimeError: Connection closed by peer [10.0.0.1]:1234"]
    assert reason(1, peer, 10).endswith("(another rank exited first: see the other hosts' logs)")
    assert reason(2, [], 0) == "The program ended with exit code 2: no output"
