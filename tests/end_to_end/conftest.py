# SPDX-License-Identifier: Apache-2.0
"""The service on loopback, as for the tests of launching."""

from tests.launch.conftest import aws as aws
from tests.launch.conftest import sdk as sdk
