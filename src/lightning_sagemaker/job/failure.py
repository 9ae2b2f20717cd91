# SPDX-License-Identifier: Apache-2.0
"""Writes ``output/failure``, from which SageMaker and this package's launcher read why a job failed."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Mapping
from pathlib import Path

from lightning_sagemaker.container.lightning_redaction import TELLING_NAME, redacted


def write_failure(
    path: Path,
    error: BaseException,
    rank: int | None,
    environment: Mapping[str, str] | None = None,
    step: int | None = None,
) -> None:
    """Write why this process failed, unless another process has written first: later failures are often consequences.

    SageMaker shows the first 1,024 characters, so the exception comes before its traceback. Secrets are masked.

    Args:
        path: The job's failure file. Nothing is raised if it cannot be written.
        error: The error of this process.
        rank: Rank of this process.
        environment: Variables whose secrets are masked in the text; this process's if None.
        step: The last step that was completed, if known.

    """
    host = os.environ.get("SM_CURRENT_HOST")
    where = ("The program" if rank is None else f"Rank {rank}") + (f" on {host}" if host else "")
    when = "" if step is None else f" after step {step}"
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    summary = "".join(traceback.format_exception_only(type(error), error)).strip()
    text = f"{where} failed{when}: {summary}\n\n{''.join(lines)}"
    text = redacted(text, os.environ if environment is None else environment)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(text, encoding="utf-8", errors="replace")
        try:
            if path.exists() and not path.stat().st_size:
                temporary.replace(path)
            else:
                os.link(temporary, path)  # atomic; fails if the file exists
        finally:
            temporary.unlink(missing_ok=True)


def is_secret(name: str) -> bool:
    """Whether a variable or hyperparameter of that name is secret, and must not be logged."""
    return bool(TELLING_NAME.search(name))
