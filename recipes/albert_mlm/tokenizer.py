# SPDX-License-Identifier: Apache-2.0
"""Loads a tokenizer for masked-language modeling."""

from __future__ import annotations

from typing import Any

TRAIN = "train"
"""Stands for a tokenizer that is trained on the text."""


def load_tokenizer(name: str) -> Any:
    """A fast tokenizer from a folder, the Hugging Face hub or a checkpoint of these recipes.

    Raises:
        ValueError: If it has no CLS, SEP or mask token.

    """
    from lightning_sagemaker.recipes._common.modules.pretrained import load_tokenizer as load_any

    tokenizer = load_any(name)
    missing = [kind for kind in ("cls", "sep", "mask") if getattr(tokenizer, f"{kind}_token_id") is None]
    if missing:
        raise ValueError(
            f"data.tokenizer={name!r} was set, but that tokenizer has no {', '.join(missing)} token."
            " HINT: use a fast BERT- or ALBERT-like tokenizer, or data.tokenizer=train."
        )
    return tokenizer
