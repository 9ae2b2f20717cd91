# SPDX-License-Identifier: Apache-2.0
"""Sizes of BERT for models from scratch."""

from __future__ import annotations

from typing import Any

BERT_SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512},
    "small": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
"""Turc et al., 2019, "Well-Read Students Learn Better": BERT-Tiny, BERT-Mini; and BERT-Base (Devlin et al., 2018)."""
