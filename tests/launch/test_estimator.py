# SPDX-License-Identifier: Apache-2.0
"""The classes that take the SDK 2's names."""

import pytest

from lightning_sagemaker.launch import HuggingFace, LaunchError


def test_the_old_names_are_taken(caplog):
    estimator = HuggingFace(
        entry_point="x.py", transformers_version="4.56", train_instance_type="ml.g5.xlarge", debugger_hook_config=False
    )
    assert estimator.config.instance_type == "ml.g5.xlarge"
    with pytest.raises(LaunchError, match="transformers_version"):
        HuggingFace(entry_point="x.py")
    with pytest.raises(LaunchError, match="trains with PyTorch"):
        HuggingFace(entry_point="x.py", transformers_version="4.6", tensorflow_version="2.4")
