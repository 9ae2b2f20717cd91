# SPDX-License-Identifier: Apache-2.0
"""Mirrors the part of ``torch.sagemaker.distributed.checkpoint.s3_filesystem`` that takes addresses apart."""

from __future__ import annotations

from lightning_sagemaker.parallel.degrees import ParallelConfigError


def is_s3_uri(uri: str) -> bool:
    """Whether it is an address in S3."""
    return str(uri).startswith("s3://")


def parse_s3_uri(uri: str) -> tuple[str, str]:
    """Bucket and key.

    Raises:
        ParallelConfigError: If it is not an S3 URI.

    """
    if not is_s3_uri(uri):
        raise ParallelConfigError(f"{uri!r} is not an S3 address. HINT: write s3://bucket/key.")
    bucket, _, key = str(uri)[len("s3://") :].partition("/")
    return bucket, key


def format_s3_path(bucket: str, key: str) -> str:
    """The address."""
    return f"s3://{bucket}/{key}"
