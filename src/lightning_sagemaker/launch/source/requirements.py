# SPDX-License-Identifier: Apache-2.0
"""Check the ``requirements.txt`` of a job's source."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.source.file_kinds import text_of

REQUIREMENTS = "requirements.txt"

_IMAGE_OWN = re.compile(r"^\s*(torch|torchvision|torchaudio)\s*($|[\[=<>!~;#@ ])", re.IGNORECASE)
_IMAGE_OWN_FILE = re.compile(
    r"(?:^|[/=])(?:torch|torchvision|torchaudio)-\d[^/\s]*\.(?:whl|tar\.gz|zip)|[#&]egg=(?:torch|torchvision|torchaudio)\b(?!-)",
    re.IGNORECASE,
)
"""A file or repository of one of them, as a requirement by path or URL."""
_INCLUDED = re.compile(r"^\s*(?P<option>-r|--requirement|-c|--constraint)(?:\s*=\s*|\s*)(?P<file>[^\s#]+)")
_CONSTRAINTS = ("-c", "--constraint")


def check_requirements(contents: Mapping[str, bytes]) -> None:
    """Check that ``requirements.txt``, and what it includes by ``-r``, does not replace the image's torch.

    Args:
        contents: Name -> content of each file of the source.

    Raises:
        LaunchError: If it names torch, torchvision or torchaudio, or includes a file that is not sent.

    """
    waiting, seen = [REQUIREMENTS] if REQUIREMENTS in contents else [], set[str]()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        for line in text_of(contents[name]).replace("\\\n", " ").splitlines():
            if _IMAGE_OWN.match(line) or _IMAGE_OWN_FILE.search(line.partition(" #")[0]):
                raise LaunchError(
                    f"{name} lists {line.strip()!r}, which would replace the image's own build. HINT: remove it;"
                    " pytorch_version chooses the image."
                )
            included = _INCLUDED.match(line)
            if included is None or "://" in included.group("file"):
                continue
            other = posixpath.normpath(posixpath.join(posixpath.dirname(name), included.group("file").strip("'\"")))
            if other not in contents:
                raise LaunchError(
                    f"{name} has {line.strip()!r}, which is not among the files that are sent. HINT: put it into the source"
                    " folder."
                )
            if other not in seen and included.group("option") not in _CONSTRAINTS:
                waiting.append(other)
