# SPDX-License-Identifier: Apache-2.0
"""Wheels for a container without network access: those that ``requirements.txt`` needs in its image, fetched here.

pip resolves the requirements as it would in the container: for the image's Python on Linux, with the image's torch.
Packages that only torch needs are left out, since the image has them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_sagemaker.errors import LaunchError

FOLDER = "vendored_wheels"
"""Folder in the source archive, from which alone the driver in the container installs."""

_IMAGE_HAS = ("torch", "torchvision", "torchaudio")

_PLATFORMS = (*(f"manylinux_2_{minor}" for minor in range(31, 4, -1)), "manylinux2014", "manylinux2010", "manylinux1")
"""Tags that AWS's images support: those of PyTorch 2 have Ubuntu 20.04 (glibc 2.31) or newer. pip needs each tag."""

_ROUNDS = 5
"""Limit of resolutions: pip evaluates markers for this machine; requirements of the target are added for the next."""

_SECONDS = 900

_HINT = (
    "HINT: put the wheel into the source folder and list it in requirements.txt, or use an image_uri that has it all."
)


@dataclass(frozen=True)
class Target:
    """Platform of the wheels.

    Attributes:
        python: Version of Python in the image.
        torch: Version of torch in the image; None if unknown.
        machine: Architecture, as ``uname -m`` prints it.

    """

    python: tuple[int, ...]
    torch: str | None
    machine: str = "x86_64"

    @property
    def environment(self) -> dict[str, str]:
        """Values of the environment markers of requirements (PEP 508)."""
        short, full = ".".join(map(str, self.python[:2])), ".".join(map(str, (*self.python, 0)[:3]))
        return {
            "implementation_name": "cpython", "implementation_version": full, "os_name": "posix",
            "platform_machine": self.machine, "platform_python_implementation": "CPython", "platform_release": "",
            "platform_system": "Linux", "platform_version": "", "python_full_version": full, "python_version": short,
            "sys_platform": "linux",
        }  # fmt: skip

    @property
    def options(self) -> list[str]:
        """Options with which pip selects wheels of this platform."""
        named = [option for name in _PLATFORMS for option in ("--platform", f"{name}_{self.machine}")]
        return [
            *named,
            "--python-version",
            ".".join(map(str, self.python)),
            "--implementation",
            "cp",
            "--only-binary",
            ":all:",
        ]


def vendored_wheels(contents: Mapping[str, bytes], target: Target) -> dict[str, bytes]:
    """File name -> content of every wheel that ``requirements.txt`` needs beyond the image's torch.

    Args:
        contents: Name -> content of each file of the source, ``requirements.txt`` included.
        target: Platform of the image.

    Raises:
        LaunchError: If pip cannot resolve the requirements, or finds no wheel for the image.

    """
    with tempfile.TemporaryDirectory() as folder:
        source, wheels = Path(folder, "source"), Path(folder, "wheels")
        for name, content in contents.items():
            if name.endswith((".txt", ".whl", ".in")):  # requirements may include others, and list wheels next to them
                path = source / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        names = _needed(source, target)
        wheels.mkdir()
        if names:
            _pip(["download", "--quiet", "--no-deps", "--dest", str(wheels), *target.options, *names], source)
        return {path.name: path.read_bytes() for path in sorted(wheels.iterdir())}


def _needed(source: Path, target: Target) -> list[str]:
    """Pinned requirements that pip would install in the image in addition to its torch."""
    added: set[str] = set()
    for _ in range(_ROUNDS):
        report = _resolved(source, target, added)
        packages = {_name(one["metadata"]["name"]): one for one in report["install"]}
        wanted, missing = _walked(packages, target)
        if not missing:
            return sorted(_pinned(one) for name, one in packages.items() if name in wanted and not _is_in_source(one))
        added |= missing
    raise LaunchError(
        f"requirements.txt is still unresolved after {_ROUNDS} rounds: {', '.join(sorted(missing))}. {_HINT}"
    )


def _pinned(package: Mapping[str, Any]) -> str:
    return f"{package['metadata']['name']}=={package['metadata']['version']}"


def _is_in_source(package: Mapping[str, Any]) -> bool:
    """Whether a package is a wheel in the source; raise LaunchError for any other direct URL."""
    if not package["is_direct"]:
        return False
    place = str(package["download_info"]["url"])
    if not place.startswith("file:"):
        raise LaunchError(f"requirements.txt has {place!r}, which a container without network cannot reach. {_HINT}")
    return True


def _resolved(source: Path, target: Target, added: set[str]) -> dict[str, Any]:
    """Pip's report of what it would install."""
    constraints = source / "constraints-of-the-image.in"
    constraints.write_text("" if target.torch is None else f"torch=={target.torch}\n")
    report = source / "report.json"
    options = ["--dry-run", "--ignore-installed", "--quiet", "--target", str(source / "none"), "--report", str(report)]
    chosen = ["-c", constraints.name, "-r", "requirements.txt", *sorted(added)]
    _pip(["install", *options, *target.options, *chosen], source)
    found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return found


def _walked(packages: Mapping[str, Mapping[str, Any]], target: Target) -> tuple[set[str], set[str]]:
    """Names of needed packages, and requirements that pip left out because of this machine's markers."""
    from packaging.requirements import Requirement

    waiting = [(name, "") for name, one in packages.items() if one["requested"]]
    waiting += [(name, extra) for name, one in packages.items() for extra in one.get("requested_extras", ())]
    seen: set[tuple[str, str]] = set()
    missing = set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen or name in _IMAGE_HAS:
            continue
        seen.add((name, extra))
        for text in packages[name]["metadata"].get("requires_dist", ()):
            one = Requirement(text)
            below = _name(one.name)
            if one.marker is not None and not one.marker.evaluate({**target.environment, "extra": extra}):
                continue
            if below not in packages and below not in _IMAGE_HAS:
                one.marker = None
                missing.add(str(one))
            elif below in packages:
                waiting += [(below, ""), *((below, more) for more in one.extras)]
    return {name for name, _ in seen}, missing


def _name(text: str) -> str:
    """Canonical name of a package, as indexes compare names."""
    from packaging.utils import canonicalize_name

    return str(canonicalize_name(text))


def _pip(arguments: list[str], folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, timeout=_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"pip did not end in {_SECONDS} s. {_HINT}") from error
    if done.returncode:
        lines = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        why = " ".join((lines or done.stderr.splitlines())[-3:]).rstrip(".") or f"pip exited with {done.returncode}"
        raise LaunchError(f"The container has no network, and the wheels for it cannot be fetched here: {why}. {_HINT}")
