# SPDX-License-Identifier: Apache-2.0
"""States of Lightning's callbacks, kept and set again."""

from types import SimpleNamespace

import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_sagemaker._compat.callback_states import callback_states, restore_callback_states


def test_a_state_that_is_set_again_is_the_one_that_was_kept(tmp_path):
    """`ModelCheckpoint` goes on with the dict that it loads: after a loss its best models were those of a discarded save."""
    saves = ModelCheckpoint(tmp_path, monitor="loss", save_top_k=2)
    saves.best_k_models = {"a.ckpt": torch.tensor(2.0), "b.ckpt": torch.tensor(1.0)}
    trainer = SimpleNamespace(callbacks=[saves])
    kept = callback_states(trainer)
    for _ in range(2):
        restore_callback_states(trainer, kept)
        assert list(saves.best_k_models) == ["a.ckpt", "b.ckpt"]
        saves.best_k_models.pop("a.ckpt")  # as Lightning does before it saves another
