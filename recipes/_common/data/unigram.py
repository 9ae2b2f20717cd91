# SPDX-License-Identifier: Apache-2.0
"""Trains ALBERT's kind of tokenizer (SentencePiece's unigram model), for models from scratch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
"""ALBERT's special tokens in ALBERT's order; their ids are their positions."""

_SCORE_DIGITS = 4


def train_tokenizer(documents: Iterable[str], vocab_size: int, lowercase: bool) -> PreTrainedTokenizerFast:
    """A unigram tokenizer with ALBERT's normalization and special tokens.

    The same documents give the same tokenizer: the trainer sums in a different order each time, so scores are rounded
    and the vocabulary is sorted. Hosts that do not share a disk therefore get the same tokenizer.

    Args:
        documents: Texts to train on.
        vocab_size: Number of tokens including the special ones; fewer if the text does not have as many.
        lowercase: Lower-case the text, as ALBERT does.

    Raises:
        ValueError: If the vocabulary cannot hold each character.

    """
    tokenizer = _empty_tokenizer(models.Unigram(), lowercase)
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), unk_token="<unk>", show_progress=False
    )
    try:
        tokenizer.train_from_iterator(documents, trainer)
    except Exception as error:  # its trainer has no class of its own
        if "vocabulary is not large enough" not in str(error):
            raise
        raise ValueError(
            f"data.vocab_size={vocab_size} was set, fewer tokens than the text has characters. HINT: set a larger one."
        ) from error
    learned = json.loads(tokenizer.to_str())["model"]["vocab"][len(SPECIAL_TOKENS) :]
    scores = {token: round(score, _SCORE_DIGITS) for token, score in learned}
    ordinary = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    vocabulary = [*((token, 0.0) for token in SPECIAL_TOKENS), *ordinary]
    model = models.Unigram(vocabulary, unk_id=SPECIAL_TOKENS.index("<unk>"))
    return wrap(_empty_tokenizer(model, lowercase), SPECIAL_TOKENS)


def _empty_tokenizer(model: Any, lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(model)
    steps = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD()]
    steps += [normalizers.StripAccents(), *([normalizers.Lowercase()] if lowercase else [])]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def wrap(tokenizer: Tokenizer, special: Sequence[str]) -> PreTrainedTokenizerFast:
    """Wrap a trained tokenizer for transformers, with BERT's template for one and two texts.

    Args:
        tokenizer: Trained tokenizer, whose first tokens are the special ones.
        special: Padding, unknown, ``[CLS]``, ``[SEP]``, ``[MASK]``; their ids are their positions.

    """
    from transformers import PreTrainedTokenizerFast  # imports torch, which preparing text does without

    pad, unknown, classify, separate, mask = special
    tokenizer.add_special_tokens(list(special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{classify}:0 $A:0 {separate}:0",
        pair=f"{classify}:0 $A:0 {separate}:0 $B:1 {separate}:1",
        special_tokens=[(token, special.index(token)) for token in (classify, separate)],
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=pad,
        unk_token=unknown,
        cls_token=classify,
        sep_token=separate,
        mask_token=mask,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
