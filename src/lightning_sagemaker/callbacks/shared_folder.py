# SPDX-License-Identifier: Apache-2.0
"""Searching and deleting in a folder of checkpoints on one rank, without a failure there making the others wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lightning_sagemaker._lightning import rank_zero_warn
from lightning_sagemaker.checkpoint.atomic_write import CheckpointError

T = TypeVar("T")


def searched(folder: str, search: Callable[[], T]) -> tuple[T | None, str | None]:
    """The result of a search on one rank, or the message of its failure, to be broadcast.

    Args:
        folder: Folder to search.
        search: Finds a checkpoint.

    """
    try:
        return search(), None
    except CheckpointError as error:
        return None, str(error)
    except Exception as error:
        return None, (
            f"{folder} could not be searched for checkpoints ({type(error).__name__}: {error}). HINT: name a folder that"
            " this process may read."
        )


def check_on_all_hosts(path: str, is_on_all: bool) -> None:
    """Raise if some hosts do not have a checkpoint.

    Raises:
        CheckpointError: If the checkpoint is not on all hosts.

    """
    if not is_on_all:
        raise CheckpointError(
            f"{path} is on the first host, but not on all. HINT: give all hosts the same checkpoint_s3_uri or folder."
        )


def delete_or_warn(folder: str, delete: Callable[[], None]) -> None:
    """Delete older checkpoints on one rank, or warn."""
    try:
        delete()
    except (OSError, CheckpointError) as error:
        rank_zero_warn(f"Older checkpoints in {folder} could not be deleted: {error}. HINT: free space there yourself.")
