# SPDX-License-Identifier: Apache-2.0
"""The recipes' options for gradients reach the strategy, whichever it is, or are refused."""

import pytest
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lightning_sagemaker import SageMakerDDPStrategy, SMDDPStrategy
from lightning_sagemaker.recipes._common.cli.gradients import with_options

WANTED = {"gradient_reduction": "auto", "gradient_compression": "bf16"}


@pytest.mark.parametrize(("name", "kind"), [("sagemaker", SageMakerDDPStrategy), ("smddp", SMDDPStrategy)])
def test_options_reach_the_strategy(name, kind):
    strategy = with_options(name, WANTED.get)
    assert type(strategy) is kind
    assert strategy._reduction.reduction == "auto"
    assert strategy._reduction.compression == "bf16"


def test_without_options_the_strategy_is_left_as_it_was_set():
    assert with_options("ddp", {}.get) == "ddp"


@pytest.mark.parametrize("strategy", ["ddp", "smp"])
def test_a_strategy_without_such_options_is_named(strategy):
    with pytest.raises(
        MisconfigurationException, match=f"gradient_compression='bf16' was set with strategy='{strategy}'"
    ):
        with_options(strategy, WANTED.get)
