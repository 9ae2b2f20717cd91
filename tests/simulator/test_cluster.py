# SPDX-License-Identifier: Apache-2.0
"""The simulated cluster itself: files, output, failures, stopping. The scripts here use the standard library only."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from lightning_sagemaker import cli
from lightning_sagemaker.launch import LocalClusterError, run_local_cluster
from lightning_sagemaker.simulator import network
from tests.conftest import ROOT, is_contract_variable, run_bounded

REPORT = """
import json, os, sys, pathlib
rank = os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
facts = {"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}
pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], f"rank-{rank}.json").write_text(json.dumps(facts))
print("hello from", rank, flush=True)
print("no end of line", end="")
"""
FAIL = """
import os, sys, time
print("starting", flush=True)
if os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", os.environ["SM_CURRENT_HOST"][-1])) == sys.argv[2]:
    try:
        raise ValueError("first")
    except ValueError as error:
        if sys.argv[4] == "raise":
            raise RuntimeError("boom") from error
        sys.exit(7)
time.sleep(120)
"""


@pytest.fixture
def script(tmp_path):
    def write(text: str) -> list[str]:
        (tmp_path / "code").mkdir(exist_ok=True)
        (tmp_path / "code" / "script.py").write_text(text)
        return [sys.executable, str(tmp_path / "code" / "script.py")]

    return write


def run(command, tmp_path, **arguments):
    output = io.StringIO()
    result = run_local_cluster(command, root=tmp_path / "root", output=output, timeout=60, **arguments)
    return result, output.getvalue()


def facts(root: Path, host: str, rank: int) -> dict:
    return json.loads((root / host / "output" / "data" / f"rank-{rank}.json").read_text())


def test_a_shell_script_finds_the_programs_of_this_environment(tmp_path, monkeypatch):
    """As in an image, also where nobody has activated the environment."""
    monkeypatch.setenv("PATH", os.defpath)
    command = ["sh", "-c", "command -v python; command -v torchrun"]
    _, output = run(command, tmp_path, hosts=1, distribution="none")
    own = Path(sys.executable).parent
    assert f"algo-1 [0] | {own / 'python'}\nalgo-1 [0] | {own / 'torchrun'}\n" in output


def test_files_variables_and_output(tmp_path, script):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").touch()
    result, output = run(
        [*script(REPORT), "--epochs", "2", "--flag"],
        tmp_path,
        hosts=2,
        processes_per_host=2,
        hyperparameters={"mp": {"a": 1}, "none": None},
        channels={"train": tmp_path / "data"},
        environment={"MINE": "yes"},
        instance_type="ml.p4de.24xlarge",
    )
    assert (result.returncode, result.failure) == (0, None)
    for host, rank in (("algo-1", 0), ("algo-1", 1), ("algo-2", 2), ("algo-2", 3)):
        assert f"{host} [{rank}] | hello from {rank}\n" in output
        assert f"{host} [{rank}] | no end of line\n" in output
        seen = facts(result.root, host, rank)
        env, base = seen["env"], result.root / host
        assert seen["argv"] == ["--epochs", "2", "--flag", "--mp", "a=1", "--none", ""]
        assert json.loads(env["SM_HPS"]) == {"epochs": 2, "flag": True, "mp": {"a": 1}, "none": None}
        assert (env["SM_CURRENT_HOST"], env["SM_HOSTS"], env["MINE"]) == (host, '["algo-1","algo-2"]', "yes")
        assert (env["SM_MODEL_DIR"], env["SM_CHANNEL_TRAIN"]) == (f"{base}/model", f"{base}/input/data/train")
        assert (base / "input" / "data" / "train" / "a.csv").resolve() == tmp_path / "data" / "a.csv"
        config = json.loads((base / "input" / "config" / "resourceconfig.json").read_text())
        assert (config["current_host"], config["current_instance_type"]) == (host, "ml.p4de.24xlarge")
        hyperparameters = json.loads((base / "input" / "config" / "hyperparameters.json").read_text())
        assert hyperparameters["sagemaker_distributed_dataparallel_enabled"] == "true"
        assert set(map(type, hyperparameters.values())) == {str}


def test_code_is_copied_to_each_host(tmp_path, script):
    script(REPORT)
    result, _ = run(
        ["script.py"], tmp_path, hosts=1, distribution="none", contract="modeltrainer", source_dir=tmp_path / "code"
    )
    seen = facts(result.root, "algo-1", 0)
    assert seen["cwd"] == seen["env"]["SM_SOURCE_DIR"] == str(result.root / "algo-1" / "input" / "data" / "code")


def test_the_simulators_own_job_does_not_leak_into_it(tmp_path, script, monkeypatch):
    monkeypatch.setenv("SM_HP_LEAK", "1")
    monkeypatch.setenv("RANK", "9")
    result, _ = run(script(REPORT), tmp_path, hosts=1, distribution="none")
    assert not {"SM_HP_LEAK", "RANK"} & set(facts(result.root, "algo-1", 0)["env"])


LOADER = """
import multiprocessing, socket, tempfile
from multiprocessing.connection import Listener
print("made in", tempfile.gettempdir(), len(Listener(family="AF_UNIX").address) > 0, flush=True)
"""


def test_a_folder_for_temporary_files_that_is_too_long_for_sockets(tmp_path, script, monkeypatch):
    """Of loaders' workers above all: they make a socket there, and without it the loader waits for ever."""
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    result, output = run(script(LOADER), tmp_path, hosts=1, distribution="none", preload=sys.platform == "linux")
    assert result.returncode == 0, output
    assert "TMPDIR is /tmp for the job: your path is too long for sockets" in output
    assert "made in /tmp True" in output
    assert not list(folder.iterdir())


@pytest.mark.parametrize("distribution", ["smddp", "torch_distributed", "none"])
def test_the_first_failing_rank_ends_the_job(tmp_path, script, distribution):
    rank = "2" if distribution == "none" else "1"  # by host number without a launcher
    begin = time.monotonic()
    result, output = run(
        [*script(FAIL), "--rank", rank, "--how", "raise"], tmp_path, hosts=2, distribution=distribution
    )
    assert time.monotonic() - begin < 60  # the others sleep for two minutes
    assert result.returncode == 1
    assert (result.failure.host, result.failure.rank) == ("algo-2", 1)
    lines = output.splitlines()
    assert lines[-2] == "algo-2 [1] | RuntimeError: boom"
    assert "algo-2 [1] | ValueError: first" in lines[-40:]
    failure = (result.root / "algo-2" / "output" / "failure").read_text()
    assert failure.startswith("RuntimeError: boom (rank 1 failed with exit code 1 on algo-2)")
    assert not (result.root / "algo-1" / "output" / "failure").exists()


def test_the_exit_code_is_the_failing_ranks(tmp_path, script):
    result, output = run([*script(FAIL), "--rank", "0", "--how", "exit"], tmp_path, distribution="torch_distributed")
    assert result.returncode == 7
    assert "rank 0 failed with exit code 7 on algo-1; all other processes were stopped" in output


def test_torchrun_refuses_the_names_that_it_refuses_in_the_container(tmp_path, script):
    """Up to Python 3.12 it takes a script's --log for the beginning of its own --log-dir or --logs-specs."""
    result, output = run([*script(REPORT), "--log", "1"], tmp_path, hosts=1, distribution="torch_distributed")
    try:
        get_args_parser().parse_args(["train.py", "--log", "1"])
    except SystemExit:
        assert result.returncode == 2
        assert "ambiguous option: --log could match" in output
    else:
        assert result.returncode == 0, output


def test_a_scripts_own_words_stay_in_the_failure_file(tmp_path, script):
    text = "import os, sys; open(os.environ['SM_OUTPUT_DIR'] + '/failure', 'w').write('my words'); sys.exit(3)"
    result, _ = run(script(text), tmp_path, hosts=1, distribution="none")
    assert result.returncode == 3
    assert (result.root / "algo-1" / "output" / "failure").read_text() == "my words"


def test_a_job_that_outlasts_its_time_is_stopped(tmp_path, script):
    output = io.StringIO()
    command = script("import time; time.sleep(300)")
    result = run_local_cluster(command, distribution="none", root=tmp_path / "root", timeout=1, output=output)
    assert result.returncode == 124
    assert output.getvalue().splitlines()[-1].endswith("stopped after 1 s; all processes have exited")


def test_on_windows_it_is_one_sentence():
    """Simulated: names, functions and signals that Windows lacks are taken away in the process."""
    variables = {"LIGHTNING_SAGEMAKER_TEST_SYSTEM": "windows", "PYTHONPATH": str(ROOT / "tests/machines/simulated")}
    command = [sys.executable, "-m", "lightning_sagemaker.cli", "local", "--", "train.py"]
    done = run_bounded(command, timeout=60, **variables)
    assert done.returncode == 2, done.stdout
    assert len(done.stdout.splitlines()) == 1, done.stdout
    assert "HINT: " in done.stdout


def processes_with(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "cmdline").read_bytes().decode(errors="replace"):
                    found.append(entry.name)
            except OSError:
                pass
    return found


@pytest.mark.parametrize("distribution", ["smddp", "torch_distributed"])
def test_ctrl_c_stops_everything(tmp_path, script, distribution):
    text = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(300)"
    )
    command = [sys.executable, "-m", "lightning_sagemaker.cli", "local", "--distribution", distribution]
    environment = {k: v for k, v in os.environ.items() if not is_contract_variable(k)}
    process = subprocess.Popen(
        [*command, "--root", str(tmp_path / "root"), "--", *script(text)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        up = 0
        while up < 2:
            line = process.stdout.readline()
            assert line, "the job ended by itself"
            up += "| up" in line
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "stopped by SIGINT; all processes have exited" in rest
    assert processes_with(str(tmp_path)) == []


RELAY = """
import os, socket, time
if os.environ["SM_CURRENT_HOST"] == "algo-1":
    server = socket.create_server(("0.0.0.0", 9000))
    peer, _ = server.accept()
    begin, received = time.monotonic(), 0
    while data := peer.recv(1 << 16):
        received += len(data)
    print("mbit/s", received * 8 / 1e6 / (time.monotonic() - begin), flush=True)
else:
    for _ in range(100):
        try:
            peer = socket.create_connection(("algo-1", 9000))
            break
        except OSError:
            time.sleep(0.1)
    peer.sendall(bytes(10_000_000))
"""


@pytest.mark.alone
@pytest.mark.skipif(network.obstacle() is not None, reason=str(network.obstacle()))
def test_the_rate_of_a_network(tmp_path, script):
    _, output = run(script(RELAY), tmp_path, distribution="none", network="netns:100mbit")
    (rate,) = [float(line.split()[-1]) for line in output.splitlines() if "mbit/s" in line]
    assert 60 < rate < 110
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=30).stdout
    assert f"lsm-{os.getpid()}" not in left


def test_without_permission_the_hosts_share_a_network(tmp_path, script, monkeypatch):
    monkeypatch.setattr(
        "lightning_sagemaker.simulator.cluster.network_obstacle", lambda: "network namespaces need root"
    )
    result, output = run(script(REPORT), tmp_path, hosts=1, distribution="none", network="netns")
    assert result.returncode == 0
    assert "the hosts share this machine's network, because network namespaces need root" in output


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        ([], {}, "No command was given"),
        (["no-such-program"], {}, "'no-such-program' was not found"),
        (["no-such-script.py"], {}, "'no-such-script.py' was not found"),
        (["python"], {}, "contains no script"),
        (["true"], {"distribution": "horovod"}, "distribution='horovod' is not known"),
        (["true"], {"contract": "studio"}, "contract='studio' is not known"),
        (["true"], {"hosts": 0}, "hosts=0 was set"),
        (["true"], {"hosts": 100_000}, "hosts=100000 was set. HINT: a job has at most 1000"),
        (["true"], {"processes_per_host": -1}, "processes_per_host=-1 was set"),
        (["true"], {"timeout": 0}, "timeout=0 was set"),
        (["true"], {"timeout": -5}, "timeout=-5 was set"),
        (["true"], {"instance_type": "ml.p4d.24xlarg"}, "is not a SageMaker training instance"),
        (["true"], {"network": "bridge"}, "--network 'bridge' was given"),
        (["true"], {"network": "netns:fast"}, "--network 'netns:fast' was given"),
        (["true"], {"environment": {"TMPDIR": "/x" * 60}}, "too long for the sockets of loader workers"),
        (["true"], {"channels": {"a b": "."}}, "Channel 'a b' was set"),
        (["true"], {"channels": {"a": "/nonexistent"}}, "Channel 'a' was set to '/nonexistent'"),
        (["true"], {"source_dir": "/nonexistent"}, "The source directory was set to"),
        (["true"], {"hyperparameters": {"long": "x" * 2501}}, "SageMaker accepts 2500"),
        (["true"], {"hyperparameters": {str(i): i for i in range(101)}}, "SageMaker accepts 100"),
        (["true"], {"contract": "modeltrainer", "hyperparameters": {"a": "it's"}}, "holds a single quote"),
        (["true"], {"contract": "modeltrainer", "channels": {"a-b": "."}}, "does not form a valid variable name"),
        (["true"], {"distribution": "torch_distributed"}, "where AWS's containers run Python scripts only"),
        (["true"], {"contract": "modeltrainer", "distribution": "smddp"}, "where AWS's containers run Python scripts"),
        (["true"], {"root": "/proc/nowhere"}, "The hosts' folders cannot be created"),
    ],
)
def test_bad_requests(tmp_path, command, arguments, words):
    with pytest.raises(LocalClusterError) as caught:
        run_local_cluster(command, **({"root": tmp_path} | arguments))
    assert words in str(caught.value)
    assert "HINT: " in str(caught.value)


def test_the_command_line(tmp_path, script, capsys):
    arguments = ["--hosts", "1", "--distribution", "none", "--root", str(tmp_path / "root"), "--env", "A=b=c"]
    assert cli.main(["local", *arguments, "--channel", f"train={tmp_path}", "--", *script(REPORT), "--x", "1"]) == 0
    seen = facts(tmp_path / "root", "algo-1", 0)
    assert (seen["env"]["A"], seen["argv"]) == ("b=c", ["--x", "1"])
    capsys.readouterr()
    assert cli.main(["local", "--env", "A", "--", "true"]) == 2
    assert "HINT: write --env NAME=VALUE" in capsys.readouterr().err
