# SPDX-License-Identifier: Apache-2.0
"""Storage of distributed checkpoints: folders, and S3 by s3torchconnector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.torch_sagemaker.distributed.checkpoint.s3_filesystem import is_s3_uri

if TYPE_CHECKING:
    from types import ModuleType

    from torch.distributed.checkpoint import StorageReader, StorageWriter

    from lightning_sagemaker._types import PathLike


def writer_for(place: PathLike | None, region: str | None, given: StorageWriter | None) -> StorageWriter | None:
    """Writer to ``place``: ``given``, else one for S3, else None for torch's default."""
    return given if given is not None or not is_s3_uri(str(place)) else _s3().S3StorageWriter(region, str(place))


def reader_for(place: PathLike | None, region: str | None, given: StorageReader | None) -> StorageReader | None:
    """Reader of ``place``, as :func:`writer_for`."""
    return given if given is not None or not is_s3_uri(str(place)) else _s3().S3StorageReader(region, str(place))


def _s3() -> ModuleType:
    try:
        from s3torchconnector import dcp
    except ImportError as error:
        raise ParallelConfigError(
            "a checkpoint on s3:// was requested, but s3torchconnector[dcp] is not installed. HINT: pip install"
            " 's3torchconnector[dcp]', or use a folder."
        ) from error
    return dcp
