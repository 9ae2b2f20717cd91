# SPDX-License-Identifier: Apache-2.0
"""What is pinned can be installed on every Python that the metadata names."""

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, metadata

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.conftest import ROOT

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [found[1] for line in PROJECT["classifiers"] if (found := re.search(r":: Python :: (3\.\d+)$", line))]
LINES = [line.partition(" #")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
PINNED = [
    one
    for text in (*LINES, *(text for extra in PROJECT["optional-dependencies"].values() for text in extra))
    if text and not text.startswith("#")
    if "==" in str((one := Requirement(text)).specifier)
]


@pytest.mark.parametrize("python", PYTHONS)
def test_pins_fit_each_python(python):
    """As the pinned version says itself; one that another Python has is looked at there."""
    assert len(PINNED) > 10
    for one in PINNED:
        try:
            about = metadata(one.name)
        except PackageNotFoundError:
            continue
        applies = one.marker is None or one.marker.evaluate({"python_version": python})
        if applies and one.specifier.contains(about["Version"], prereleases=True):
            assert SpecifierSet(about.get("Requires-Python") or "").contains(f"{python}.0"), f"{one} on Python {python}"


@pytest.mark.slow  # asks the package index; a minute
@pytest.mark.timeout(600)
def test_all_extras_install_together():
    """With the constraints, in one resolve, as pip itself does it; and nothing brings torchvision."""
    extras = ",".join(PROJECT["optional-dependencies"])
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    command += ["-c", str(ROOT / "constraints.txt"), f"{ROOT}[{extras}]"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=580)
    assert found.returncode == 0, found.stderr[-3000:]
    names = {one["metadata"]["name"].lower() for one in json.loads(found.stdout)["install"]}
    assert {"torch", "lightning", "sagemaker", "transformers", "peft", "pyarrow", "s3torchconnector"} <= names
    assert not names & {"torchvision", "litdata", "timm"}
