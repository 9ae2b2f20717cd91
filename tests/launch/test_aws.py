# SPDX-License-Identifier: Apache-2.0
"""Sessions: in another region, where there is capacity, the account stays that of the user's session."""

import boto3
import pytest
from botocore.stub import Stubber

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.aws import in_other_region, make_session, translate_aws_errors
from lightning_sagemaker.launch.tracking.jobs import TrainingJobs


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


def test_more_jobs_than_a_page_holds():
    client = boto3.client("sagemaker", region_name="us-east-1")
    about = {"TrainingJobArn": "arn:aws:sagemaker:us-east-1:111122223333:training-job/x", "TrainingJobStatus": "Failed"}
    jobs = [{"TrainingJobName": f"job-{number}", "CreationTime": 0, **about} for number in range(150)]
    order = {"SortBy": "CreationTime", "SortOrder": "Descending", "MaxResults": 100}
    with Stubber(client) as answers:
        answers.add_response("list_training_jobs", {"TrainingJobSummaries": jobs[:100], "NextToken": "t"}, order)
        answers.add_response("list_training_jobs", {"TrainingJobSummaries": jobs[100:]}, {**order, "NextToken": "t"})
        found = TrainingJobs(session=boto3.Session(region_name="us-east-1"), sagemaker=client).list(limit=120)
    assert [name for name, *_ in found] == [f"job-{number}" for number in range(120)]


def test_what_to_do_about_a_profile_a_file_or_a_value(tmp_path, monkeypatch):
    with pytest.raises(LaunchError, match="HINT: correct the value"), translate_aws_errors("Stopping the job"):
        boto3.client("sagemaker", region_name="us-east-1").stop_training_job(TrainingJobName="")
    monkeypatch.setenv("AWS_PROFILE", "absent")
    with pytest.raises(LaunchError, match=r"\(absent\).* HINT: .*AWS_PROFILE"):
        make_session("us-east-1")
    monkeypatch.delenv("AWS_PROFILE")
    (tmp_path / "config").write_text("no section [[")
    with pytest.raises(LaunchError, match=r"parse config file.* HINT: .*AWS_CONFIG_FILE"):
        make_session("us-east-1")
