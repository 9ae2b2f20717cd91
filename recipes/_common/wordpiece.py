# SPDX-License-Identifier: Apache-2.0
"""Trains BERT's kind of tokenizer, for models from scratch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""BERT's special tokens; their ids are their positions."""


def train_wordpiece(texts: Iterable[str], vocab_size: int, lowercase: bool = True) -> Any:
    """A WordPiece tokenizer with BERT's normalisation and special tokens; the same texts give the same tokenizer.

    Args:
        texts: To learn from.
        vocab_size: Number of tokens with the special ones; fewer if the texts do not have as many.
        lowercase: Lower-case the text and strip accents.

    """
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(
        texts,
        trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), show_progress=False),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, SPECIAL_TOKENS.index(token)) for token in ("[CLS]", "[SEP]")],
    )
    pad, unknown, classify, separate, mask = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=pad,
        unk_token=unknown,
        cls_token=classify,
        sep_token=separate,
        mask_token=mask,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
