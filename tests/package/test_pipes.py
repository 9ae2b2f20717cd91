# SPDX-License-Identifier: Apache-2.0
"""A reader that has seen enough ends a command quietly; other broken pipes stay errors."""

import os
import subprocess
import sys

import pytest

from lightning_sagemaker import cli
from lightning_sagemaker.pipes import EXIT_CODE, quiet_pipe

PRINTS = "import sys; sys.path.insert(0, '.')\nfrom lightning_sagemaker.pipes import quiet_pipe\nwith quiet_pipe():\n"


def shell(command):
    """Exit code of the first command of a pipe, and what all wrote to stderr."""
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1 >/dev/null; exit ${{PIPESTATUS[0]}}"],
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("words", ["--help", "ls", "launch --help", "run bert-qa --help", "metrics bert-qa"])
def test_a_command_is_quiet(words):
    code, error = shell(f"{sys.executable} -m lightning_sagemaker.cli {words}")
    assert error == ""
    assert code in (0, EXIT_CODE)  # short output may be written before the reader has gone


def test_an_endless_command_ends():
    program = PRINTS + "    while True: print('x' * 1000)"
    assert shell(f'{sys.executable} -c "{program}"') == (EXIT_CODE, "")


def test_another_pipe_is_an_error():
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError), quiet_pipe():
        os.write(writer, b"x")
    os.close(writer)


def test_an_output_that_is_full_is_one_sentence():
    for program in (
        f"-m {cli.__name__} metrics",
        f"-m {cli.__name__} run bert-qa --help",
        f'-c "{PRINTS}    print(1)"',
    ):
        said = "error: the output cannot be written: No space left on device. HINT: "
        command = f"unset PYTHONUNBUFFERED; {sys.executable} {program} > /dev/full"
        done = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, text=True, timeout=120)
        assert done.returncode == 2
        assert said in done.stderr
        assert done.stderr.count("\n") == 1


def test_letters_that_the_output_lacks_are_escaped():
    program = PRINTS + "    print('\\xfcber')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    assert subprocess.check_output([sys.executable, "-c", program], env=environment, timeout=120) == b"\\xfcber\n"


def test_what_recipes_log_ends_them_too():
    program = (
        "import logging, sys\n"
        "from lightning_sagemaker.pipes import quiet_pipe\n"
        "from lightning_sagemaker.recipes._common.cli.console import Console\n"
        "log = logging.getLogger('x'); log.addHandler(Console(sys.stdout)); log.setLevel('INFO')\n"
        "with quiet_pipe():\n"
        "    while True: log.info('y' * 1000)"
    )
    assert shell(f'{sys.executable} -c "{program}"') == (EXIT_CODE, "")
