# SPDX-License-Identifier: Apache-2.0
"""What the tests of launching share: AWS on loopback, and the SageMaker SDK where it is installed."""

import importlib.util
import os
import sys

import pytest

from tests.launch.real_containers import CONTAINERS
from tests.launch.service import ENVIRONMENT, Service


def has_sdk() -> bool:
    """Whether the SDK can be imported: installed, or put aside by ``make test``."""
    folder = str(CONTAINERS / "sdk")
    if importlib.util.find_spec("sagemaker") is None and os.path.isdir(folder) and folder not in sys.path:
        sys.path.append(folder)  # last: this project's own packages go before those beside the SDK
    try:
        return importlib.util.find_spec("sagemaker.train") is not None
    except ModuleNotFoundError:
        return False


@pytest.fixture(scope="module")
def aws():
    """The service, with this process's AWS configuration turned to it."""
    service = Service()
    service.make_role()
    kept = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    for name in kept:
        del os.environ[name]
    os.environ.update({**ENVIRONMENT, "AWS_ENDPOINT_URL": service.url})
    yield service
    for name in (*ENVIRONMENT, "AWS_ENDPOINT_URL"):
        os.environ.pop(name, None)
    os.environ.update(kept)
    service.close()


@pytest.fixture(scope="module")
def sdk(aws):
    """The SDK, talking to ``aws``.

    It asks STS at an address that it makes itself and no configuration can change: that one function is replaced.
    """
    if not has_sdk():
        pytest.fail("the SageMaker SDK is not installed; `make containers` does that")
    import sagemaker.core.helper.session_helper as helper

    kept = helper.sts_regional_endpoint
    helper.sts_regional_endpoint = lambda region: aws.url
    from lightning_sagemaker.launch.request import sdk

    yield sdk
    helper.sts_regional_endpoint = kept
