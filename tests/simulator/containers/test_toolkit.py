# SPDX-License-Identifier: Apache-2.0
"""The arguments that the toolkit makes of hyperparameters; those expected are of ``sagemaker-training`` 5.1.4."""

from lightning_sagemaker.simulator.containers.toolkit import to_arguments


def test_arguments_are_those_of_the_toolkit():
    values = {"names": ["a", None, True], "model": {"b": 1, "a": {"x": [1]}}, "n": None, "on": True, "lr": 1e-5}
    assert to_arguments(values) == [
        "--lr", "1e-05", "--model", "a={'x': [1]},b=1", "-n", "", "--names", "['a', None, True]", "--on", "True",
    ]  # fmt: skip
