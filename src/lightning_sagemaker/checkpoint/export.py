# SPDX-License-Identifier: Apache-2.0
"""Export of a trained model as a Hugging Face folder."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

_COMPLETE = "config.json"
"""File that is moved last, so that a folder with it contains a complete model."""

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")


class Saveable(Protocol):
    """A transformers model or tokenizer."""

    def save_pretrained(self, save_directory: str, **kwargs: Any) -> object:
        """Write everything that ``from_pretrained`` needs."""


def export_huggingface(
    model: Saveable,
    folder: str | Path,
    tokenizer: Saveable | None = None,
    state_dict: Mapping[str, object] | None = None,
) -> Path:
    """Write ``model`` and ``tokenizer`` to ``folder``, from where ``AutoModel`` and ``AutoTokenizer`` load them.

    An interrupted export never looks like a model: everything is written to a temporary directory inside ``folder``
    (which may be a mount point, as ``/opt/ml/model``), then moved, ``config.json`` last. Other files there are kept.

    Args:
        model: The model.
        folder: Output folder; created if missing.
        tokenizer: Tokenizer to write next to the model.
        state_dict: The weights, if the model is not complete on this process. Default: the model's.

    Returns:
        ``folder``.

    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".export-", dir=folder))
    try:
        with _system_errors(staging):
            model.save_pretrained(str(staging), **({} if state_dict is None else {"state_dict": dict(state_dict)}))
        if tokenizer is not None:
            save_tokenizer(tokenizer, staging)
        _replace_files(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


def save_tokenizer(tokenizer: Saveable, folder: Path) -> None:
    """Write ``tokenizer`` so that transformers 4, as in AWS's images, can load it even if transformers 5 wrote it.

    ``TokenizersBackend`` is the name of ``PreTrainedTokenizerFast`` in 5, which accepts both; 4 accepts only the latter.
    """
    with _system_errors(folder):
        tokenizer.save_pretrained(str(folder))
    config = folder / "tokenizer_config.json"
    if not config.is_file():
        return
    settings = json.loads(config.read_text())
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        config.write_text(json.dumps(settings, indent=2) + "\n")


@contextlib.contextmanager
def _system_errors(folder: Path) -> Iterator[None]:
    """Raise an ``OSError`` for a full disk, for which libraries written in Rust have errors of their own."""
    try:
        yield
    except Exception as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None or isinstance(error, OSError):
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(folder)) from error


def _replace_files(staging: Path, folder: Path) -> None:
    (folder / _COMPLETE).unlink(missing_ok=True)
    for pattern in _WEIGHTS:
        for old in folder.glob(pattern):
            old.unlink()
    files = sorted(path for path in staging.rglob("*") if path.is_file())
    for path in sorted(files, key=lambda path: path.name == _COMPLETE):
        target = folder / path.relative_to(staging)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
