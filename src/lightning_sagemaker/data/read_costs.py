# SPDX-License-Identifier: Apache-2.0
"""The cost of reading from S3: requests are charged, transfer within a region is free."""

from __future__ import annotations

USD_PER_1000_READS = 0.0004
"""S3 Standard in us-east-1 (https://aws.amazon.com/s3/pricing: GET, SELECT and all other requests)."""


def reading_cost(requests: float) -> str:
    """The dollars for a number of read requests, as a phrase with the price."""
    return f"some ${requests / 1000 * USD_PER_1000_READS:.2g} at ${USD_PER_1000_READS} for 1,000"
