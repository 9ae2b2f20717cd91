# SPDX-License-Identifier: Apache-2.0
"""Whether a call comes from the script, and from which of its lines, or from Lightning, torch or this package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import PurePath
from types import FrameType

_LIBRARIES = {
    "contextlib",
    "functools",
    "lightning",
    "lightning_fabric",
    "lightning_sagemaker",
    "pytorch_lightning",
    "threading",
    "torch",
    "torchmetrics",
}
_STAGES = {"fit", "predict", "test", "validate"}


def is_read_by_script(name: str) -> bool:
    """Whether the script itself reads the property ``name``, possibly through properties of the same name."""
    return not _is_library(next((frame for frame in _callers() if frame.f_code.co_name != name), None))


def _callers() -> Iterator[FrameType]:
    """Frames that have called this module, the innermost first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals is not globals():
            yield frame
        frame = frame.f_back


def _is_library(frame: FrameType | None) -> bool:
    module = "" if frame is None else frame.f_globals.get("__name__", "")
    return module.split(".")[0] in _LIBRARIES and not module.startswith("lightning_sagemaker.recipes")


def line_of_script() -> str | None:
    """The calling line of the script or of a package that it uses; None if Lightning or this package is the caller."""
    for frame in _callers():
        code = frame.f_code
        if not _is_library(frame):
            return f"{PurePath(code.co_filename).name}:{frame.f_lineno} ({code.co_name})"
        if code.co_name in _STAGES and frame.f_globals["__name__"].endswith("trainer.trainer"):
            return None
    return None


def library_functions() -> set[str]:
    """Names of all functions of libraries on the stack."""
    return {frame.f_code.co_name for frame in _callers() if _is_library(frame)}
