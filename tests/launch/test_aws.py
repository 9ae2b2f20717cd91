# SPDX-License-Identifier: Apache-2.0
"""Sessions: in another region, where there is capacity, the account stays that of the user's session."""

import boto3
import pytest

from lightning_sagemaker.launch.aws import in_other_region


@pytest.fixture(autouse=True)
def configured(tmp_path, monkeypatch):
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = usual\naws_secret_access_key = a\n"
        "[team]\naws_access_key_id = of-the-team\naws_secret_access_key = b\n"
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({}, "usual"),
        ({"profile_name": "team"}, "of-the-team"),
        ({"aws_access_key_id": "explicit", "aws_secret_access_key": "c", "aws_session_token": "d"}, "explicit"),
    ],
)
def test_another_region_is_of_the_same_account(given, key):
    session = in_other_region(boto3.Session(region_name="us-east-1", **given), "us-west-2")
    found = session.get_credentials()
    assert (session.region_name, found.access_key) == ("us-west-2", key)
    assert found.token == given.get("aws_session_token")


def test_without_a_session_the_configured_credentials_are_used():
    session = in_other_region(None, "us-west-2")
    assert (session.region_name, session.get_credentials().access_key) == ("us-west-2", "usual")
