# SPDX-License-Identifier: Apache-2.0
"""Mirrors the part of ``torch.sagemaker.distributed.checkpoint.s3_filesystem`` that parses S3 URIs."""

from __future__ import annotations

from lightning_sagemaker.parallel.degrees import ParallelConfigError


def is_s3_uri(uri: str) -> bool:
    """Whether ``uri`` is an S3 URI."""
    return str(uri).startswith("s3://")


def parse_s3_uri(uri: str) -> tuple[str, str]:
    """Bucket and key of an S3 URI.

    Raises:
        ParallelConfigError: If it is not an S3 URI.

    """
    if not is_s3_uri(uri):
        raise ParallelConfigError(f"{uri!r} is not an S3 address. HINT: write s3://bucket/key.")
    bucket, _, key = str(uri)[len("s3://") :].partition("/")
    return bucket, key


def format_s3_path(bucket: str, key: str) -> str:
    """The S3 URI of a bucket and key."""
    return f"s3://{bucket}/{key}"
