# SPDX-License-Identifier: Apache-2.0
"""A misspelt hyperparameter of a recipe is refused before the job is paid for, as its program would refuse it."""

import pytest

from lightning_sagemaker.launch import Estimator, LaunchError
from tests.launch.jobs import P4D


@pytest.mark.parametrize(
    ("name", "nearest"), [("max_stepz", "max_steps"), ("learning-rate", "learning_rate"), ("monitr", "monitor")]
)
def test_a_misspelt_option_is_refused_with_the_nearest_one(name, nearest):
    with pytest.raises(LaunchError, match=f"--{name} was set.*HINT: the nearest name is --{nearest}"):
        Estimator(**{**P4D, "hyperparameters": {name: 3}}).plan()


def test_what_the_program_takes_is_taken():
    taken = {"max_steps": 3, "trainer.max_epochs": 1, "config": "tiny.yaml", "mp_parameters": "{}", "resume": "always"}
    assert Estimator(**{**P4D, "hyperparameters": taken}).plan().hyperparameters == taken
