# SPDX-License-Identifier: Apache-2.0
"""What the documents say is so: commands parse, links lead somewhere, YAML and Python examples are well-formed."""

import ast
import os
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from lightning_sagemaker import cli
from lightning_sagemaker.launch.planning.plan import make_plan
from lightning_sagemaker.launch.spec.command_line import read_config
from tests.conftest import ROOT

TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=30).stdout.split()
DOCUMENTS = sorted(Path(ROOT, name) for name in TRACKED if name.endswith(".md")) or sorted(ROOT.glob("**/*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (path.name, code) for path in DOCUMENTS for kind, code in FENCE.findall(path.read_text()) if kind == language
    ]


def commands() -> list[str]:
    lines = [line for kind in ("", "bash") for _, code in blocks(kind) for line in code.splitlines()]
    named = [line.removeprefix("$ ").removeprefix("sudo ").partition(" #")[0].strip() for line in lines]
    return sorted({line for line in named if line.startswith(("lightning-sagemaker ", "make "))})


@pytest.mark.parametrize("line", commands())
def test_every_command_exists(line):
    """Each is parsed by the program's own parser; recipes' arguments are tested with the recipes."""
    program, *arguments = shlex.split(line)
    if program == "make":
        targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(arguments) <= set(targets)
    else:
        if ">" in arguments:
            arguments = arguments[: arguments.index(">")]
        parsed, rest = cli.build_parser().parse_known_args(arguments)
        assert not rest or hasattr(parsed, "script_arguments"), rest  # as cli.main has it
        assert callable(parsed.run_command)
        if arguments[0] == "launch" and read_config(parsed).recipe:
            make_plan(read_config(parsed))  # checks all that needs no AWS


def test_the_readme_has_exactly_two_set_up_commands():
    first = FENCE.search((ROOT / "README.md").read_text())
    assert [line.split()[:2] for line in first[2].splitlines()] == [["make", "demo"], ["make", "test"]]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" not in target and not target.startswith("#"):
            assert (path.parent / target.partition("#")[0]).exists(), target


def test_the_page_for_pypi_is_the_readme_without_links_to_files():
    page = metadata.metadata("lightning-sagemaker")["Description"]  # setuptools' importlib_metadata has no payload
    assert "# lightning-sagemaker" in page
    assert "## More" in page
    assert all("://" in target for target in re.findall(r"\]\(([^)]+)\)", page)), page


@pytest.mark.parametrize(("name", "code"), blocks("python"))
def test_python_examples_parse(name, code):
    ast.parse(code)


@pytest.mark.parametrize(("name", "code"), blocks("yaml"))
def test_yaml_examples_parse(name, code):
    assert yaml.safe_load(code)


@pytest.mark.parametrize("name", [name for name in TRACKED if name.endswith((".yaml", ".yml"))])
def test_every_yaml_file_parses(name):
    assert yaml.load((ROOT / name).read_text(), Loader=_WithTags)


class _WithTags(yaml.SafeLoader):
    """Takes CloudFormation's tags, such as ``!Ref``; what they mean is checked by cfn-lint elsewhere."""


_WithTags.add_multi_constructor("!", lambda loader, suffix, node: f"{suffix} {node.value}")


def test_files_stay_short():
    """One idea per file: about 300 lines at most in what is shipped."""
    long = {name: len((ROOT / name).read_text().splitlines()) for name in TRACKED if name.endswith(".py")}
    assert {name: lines for name, lines in long.items() if lines > 330 and not name.startswith("tests/")} == {}


def test_the_make_target_of_a_fresh_machine_is_understood_by_its_program():
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    made = subprocess.check_output(["make", "-n", "test-fresh", "RELEASE=trixie"], cwd=ROOT, text=True, env=environment)
    arguments = shlex.split(made.splitlines()[-1])[1:]
    subprocess.run([sys.executable, *arguments, "--help"], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
