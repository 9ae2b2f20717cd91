# SPDX-License-Identifier: Apache-2.0
"""Errors without a response of S3 are tried again, those that a retry cannot fix are not."""

import pytest

exceptions = pytest.importorskip("botocore.exceptions")

from lightning_sagemaker.data.damage import DataReadError  # noqa: E402
from lightning_sagemaker.data.s3_errors import raise_if_final  # noqa: E402

URL = {"endpoint_url": "http://s3", "error": "closed"}
PASSING = [
    exceptions.ReadTimeoutError(**URL),
    exceptions.ConnectTimeoutError(**URL),
    exceptions.EndpointConnectionError(**URL),
    exceptions.ConnectionClosedError(**URL),
    exceptions.ResponseStreamingError(**URL),
    exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2),
    exceptions.ClientError({"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503}}, "GetObject"),
    ConnectionResetError("reset"),
]


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_what_may_pass_is_tried_again(error):
    raise_if_final(error, "s3://bucket/key", is_read=True)


@pytest.mark.parametrize("error", [exceptions.NoCredentialsError(), exceptions.NoRegionError()])
def test_what_stays_is_an_error_at_once(error):
    with pytest.raises(DataReadError, match=r"cannot be read.*HINT: the role needs s3:GetObject"):
        raise_if_final(error, "s3://bucket/key", is_read=True)
