# SPDX-License-Identifier: Apache-2.0
"""What a replacement gets of another rank's callbacks."""

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from lightning_sagemaker.recovery.held import _flags, _of_lost_rank


def test_flags_on_which_ranks_agree_are_handed_over():
    assert "_check_on_train_epoch_end" not in _flags(EarlyStopping("loss"))  # None until it begins
    assert _flags(EarlyStopping("loss", check_on_train_epoch_end=True))["_check_on_train_epoch_end"]


def test_a_replacement_goes_on_counting_versions_of_files():
    """The sender may be saving a file again, without a new version; then only one of them would ask whether it exists."""
    saving = ModelCheckpoint()
    saving._enable_version_counter = False
    found = _flags(saving)
    assert found
    assert "_enable_version_counter" not in found


@pytest.mark.parametrize(("is_synced", "mean"), [(True, None), (False, 3.0)])
def test_a_replacements_mean_is_that_of_the_others_not_of_nothing(is_synced, mean):
    """It may have no batch of the epoch any more, and an early stopping ends at a nan."""
    settings = {"reduce_fx": "mean", "sync_dist": is_synced, "rank_zero_only": False}
    entry = {"values": [torch.tensor(6.0), torch.tensor(2)], "settings": settings, "cache": None}
    value, count = _of_lost_rank(torch.nn.Linear(1, 1), {"metrics": {}, "logged": {"loss": entry}})["logged"]["loss"][
        "values"
    ]
    assert (None if count == 0 else float(value / count)) == mean
