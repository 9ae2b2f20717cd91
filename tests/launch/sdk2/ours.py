# SPDX-License-Identifier: Apache-2.0
"""Runs a call by this package: what it would send, in the words of :mod:`.normal`, and what it returns.

The request is :func:`~lightning_sagemaker.launch.request.create.create_request`'s; that SDK 3 sends the same over HTTP is
what ``test_requests.py`` shows.
"""

import importlib
import json
import sys
import tarfile
import types
import unittest.mock
from pathlib import Path

from lightning_sagemaker.launch import (
    FileSystemInput,
    HuggingFace,
    InstanceGroup,
    LaunchError,
    PyTorch,
    ShuffleConfig,
    TensorBoardOutputConfig,
    TrainingInput,
)
from lightning_sagemaker.launch.request.create import ACCOUNT as STAND_IN
from lightning_sagemaker.launch.request.create import create_request, default_bucket
from lightning_sagemaker.launch.source import bundle
from lightning_sagemaker.launch.spec.carried import carried_config
from lightning_sagemaker.launch.tracking.jobs import JobStatus
from tests.conftest import ROOT
from tests.launch.conftest import has_sdk
from tests.launch.sdk2.normal import flat

sys.path.insert(0, str(ROOT / "src" / "lightning_sagemaker" / "container"))
from lightning_driver import turned_back  # in a container it lies in a folder of its own

has_sdk()  # from now on it can be imported

ACCOUNT = "123456789012"


def names(sent):
    """What a call is given: our classes, whose jobs end as requests in ``sent``."""

    def bound(kind):
        def send(self, plan, job_name):
            name = job_name or f"{plan.base_name}-20260101000000"
            request = create_request(plan, name, default_bucket(plan.region, ACCOUNT))
            sent.append((plan, request))
            return name

        def job(self):
            if self.job_name is None:
                return None
            return JobStatus(self.job_name, "InProgress", "Starting", None, 0.0, None, {}, None)

        def fit(self, inputs=None, **more):
            kind.fit(self, inputs, **{**more, "wait": False})

        def start(self, *given, **arguments):
            kind.__init__(self, *given, **arguments)
            self.config = self.config.changed(region="us-east-1", include_plugin=False)

        return type(
            kind.__name__, (kind,), {"__init__": start, "_send": send, "latest_training_job": property(job), "fit": fit}
        )

    return types.SimpleNamespace(
        PyTorch=bound(PyTorch),
        HuggingFace=bound(HuggingFace),
        TrainingInput=TrainingInput,
        FileSystemInput=FileSystemInput,
        ShuffleConfig=ShuffleConfig,
        InstanceGroup=InstanceGroup,
        TensorBoardOutputConfig=TensorBoardOutputConfig,
        debugger=importlib.import_module("sagemaker.core.debugger"),  # where SDK 3 has SDK 2's classes
    )


def decoded(text):
    """As the SDK's start script reads a hyperparameter; that it does is tested with the script itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def archive_of_sources(client, uri, target):
    """What an ``s3://`` address of a source holds: that it is fetched from S3 is tested in ``test_capacity.py``."""
    with tarfile.open(target, "w:gz") as archive:
        for path in Path("src").iterdir():
            archive.add(path, path.name)
    return True


def run(function):
    """What a call sends and returns, or the error."""
    sent = []
    try:
        with unittest.mock.patch.multiple(bundle, make_client=lambda *_: None, fetch_object=archive_of_sources):
            returned = function(names(sent))
    except LaunchError as error:
        return {"error": str(error)}
    return {"requests": [normal(plan, request) for plan, request in sent], "returned": returned}


def normal(plan, request):
    """With values and channels as the program sees them: turned back by the driver's own function."""
    request = json.loads(json.dumps(request).replace(STAND_IN, ACCOUNT))  # a role's name is resolved when a job is sent
    config = carried_config(plan.hyperparameters, plan.channels)
    sent = {name: decoded(text) for name, text in request.pop("HyperParameters").items()}
    request["Values"], channels = turned_back(config, sent)
    request["InputDataConfig"] = [
        {**one, "ChannelName": channels.get(one["ChannelName"], one["ChannelName"])}
        for one in request["InputDataConfig"]
    ]
    request["Flags"] = plan.config.distributed.flags
    found = flat(request)
    found["Program"] = plan.bundle.entry_script
    return found
