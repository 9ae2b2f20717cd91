# SPDX-License-Identifier: Apache-2.0
import pytest

from lightning_sagemaker.job import SageMakerJob, SageMakerJobError


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1"])
def test_a_port_that_is_none_is_named_with_its_variable(port):
    """torch's own error says the number, but not where it is from."""
    with pytest.raises(SageMakerJobError, match=f"MASTER_PORT='{port}' is not an integer from 1 to 65535. HINT: "):
        SageMakerJob.from_environment({"MASTER_PORT": port}, "/nonexistent")
    assert SageMakerJob.from_environment({"MASTER_PORT": "65535"}, "/nonexistent").main_port == 65535
