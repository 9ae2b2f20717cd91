# SPDX-License-Identifier: Apache-2.0
"""This package as a wheel, built from the installed files, so that jobs can use unpublished versions.

The format is that of the packaging specification "Binary distribution format". A checkout and an installation of the
same files give the same wheel, byte for byte.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path

_DISTRIBUTION = "lightning-sagemaker"
_PACKAGE = "lightning_sagemaker"
_LEFT_OUT = ("__pycache__",)
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip file can hold."""


def make_wheel() -> tuple[str, bytes]:
    """File name and content of the wheel."""
    found = ((name, path, path.stat()) for name, path in _package_files())
    return _wheel_of(tuple(sorted((name, path, stat.st_mtime_ns, stat.st_size) for name, path, stat in found)))


@lru_cache(maxsize=1)  # a launch needs it for the plan, and to send it
def _wheel_of(package: tuple[tuple[str, Path, int, int], ...]) -> tuple[str, bytes]:
    """The same of the package's files: names in the wheel, paths, and by what a change is seen."""
    distribution = metadata.distribution(_DISTRIBUTION)
    info = f"{_PACKAGE}-{distribution.version}.dist-info"
    files = {name: path.read_bytes() for name, path, *_ in package}
    files[f"{info}/METADATA"] = _metadata(distribution)
    tags = f"Wheel-Version: 1.0\nGenerator: {_DISTRIBUTION}\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/WHEEL"] = tags.encode()
    files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{_DISTRIBUTION} = {_PACKAGE}.cli:main\n".encode()
    lines = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in sorted(files.items())]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return f"{_PACKAGE}-{distribution.version}-py3-none-any.whl", buffer.getvalue()


def _package_files() -> Iterator[tuple[str, Path]]:
    """Name and path of each file of the package and of the recipes, which are in another folder in a checkout."""
    roots = {_PACKAGE: Path(str(resources.files(_PACKAGE)))}
    recipes = find_spec(f"{_PACKAGE}.recipes")
    assert recipes is not None
    assert recipes.origin is not None
    roots[f"{_PACKAGE}/recipes"] = Path(recipes.origin).parent
    for prefix, root in roots.items():
        for place, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name not in _LEFT_OUT]
            inside = Path(prefix, Path(place).relative_to(root)).as_posix()
            yield from ((f"{inside}/{name}", path) for name in names if (path := Path(place, name)).is_file())


def _metadata(distribution: metadata.Distribution) -> bytes:
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO")  # the latter in an egg-info
    assert text is not None
    return text.encode()


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
