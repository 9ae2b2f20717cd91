# SPDX-License-Identifier: Apache-2.0
"""What earlier checkpoints of an InterruptibleLoop hold is read as it was meant; see test_fabric_carried.py for the rest."""

import pytest

from lightning_sagemaker.callbacks.fabric_state import _iterations_in


@pytest.mark.parametrize(
    ("found", "meant"), [([2, 0], {0: 2, 1: 0}), ([], None), (None, None), ({}, {}), ({3: 1}, {3: 1})]
)
def test_iterations_of_loaders_were_a_list(found, meant):
    assert _iterations_in({"loaders": found}) == meant
