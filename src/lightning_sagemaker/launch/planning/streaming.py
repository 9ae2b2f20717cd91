# SPDX-License-Identifier: Apache-2.0
"""S3 requests of a job that streams prepared text, and their cost, before anything is paid for."""

from __future__ import annotations

from lightning_sagemaker.data.read_costs import USD_PER_1000_READS, reading_cost
from lightning_sagemaker.launch.planning.job_plan import JobPlan
from lightning_sagemaker.launch.transfer import split_uri

_SCHEME = "s3://"
_SECONDS = 10.0
"""Time limit in seconds for reading the index of the text; a plan is not worth a longer wait."""


def streamed_text(plan: JobPlan) -> str | None:
    """``s3://`` URI of the text that the recipe streams; None if it streams none."""
    given = {name.rpartition(".")[2]: value for name, value in plan.hyperparameters.items()}
    text = given.get("text")
    return text.rstrip("/") if plan.config.recipe and isinstance(text, str) and text.startswith(_SCHEME) else None


def describe_streaming(plan: JobPlan, asks_s3: bool) -> list[tuple[str, str]]:
    """Rows as of :func:`~lightning_sagemaker.launch.planning.report.describe`; empty if the job streams no text.

    Args:
        plan: Plan of the job.
        asks_s3: Whether to read the text's index from S3 and count the requests; otherwise the row has a general estimate.

    """
    address = streamed_text(plan)
    if address is None:
        return []
    estimate = f"{address}: requests of up to 4 MiB, about ${USD_PER_1000_READS / 4} per GB of an epoch"
    if not asks_s3:
        return [("streams", estimate)]
    try:
        requests, size = _requests(address)
    except _Unreadable as error:
        return [("streams", f"{estimate}; they could not be counted: {error}")]
    return [
        ("streams", f"{address}: {requests:,} requests for {size / 1e9:.3g} GB in each epoch, {reading_cost(requests)}")
    ]


class _Unreadable(Exception):
    """The index of a text cannot be read from this machine."""


def _requests(address: str) -> tuple[int, int]:
    """Requests and bytes of an epoch over all hosts."""
    from lightning_sagemaker.data.block_index import INDEX, read_index
    from lightning_sagemaker.data.damage import DataReadError
    from lightning_sagemaker.data.s3_objects import S3Objects

    bucket, prefix = split_uri(address)
    try:
        content = S3Objects(deadline=_SECONDS, timeout=_SECONDS / 2).read(bucket, f"{prefix}/{INDEX}".lstrip("/"))
        train = read_index(content.decode())["train"]
    except (DataReadError, ValueError, KeyError) as error:
        raise _Unreadable(str(error).partition(" HINT: ")[0].rstrip(".")) from error
    return train.reads, train.rows * sum(column.row_bytes for column in train.columns)
