# SPDX-License-Identifier: Apache-2.0
"""What a replacement gets of another rank's callbacks."""

from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from lightning_sagemaker.recovery.held import _flags


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
