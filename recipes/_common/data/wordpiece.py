# SPDX-License-Identifier: Apache-2.0
"""Trains BERT's kind of tokenizer, for models from scratch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from lightning_sagemaker.recipes._common.data.unigram import wrap

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""BERT's special tokens; their ids are their positions."""

_LONGEST = 16
"""Maximum characters of a token."""


def train_wordpiece(texts: Iterable[str], vocab_size: int) -> Any:
    """A WordPiece tokenizer with the normalization and special tokens of uncased BERT; equal texts give equal tokenizers.

    Its tokens are all characters, and those words, prefixes and suffixes of words that save the most characters. (The
    library's own trainer breaks ties by the order of a hash table, so hosts would get different tokenizers.)

    Args:
        texts: Texts to train on.
        vocab_size: Number of tokens including the special ones; fewer if the texts do not have as many.

    """
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    vocabulary = _vocabulary(_count_words(tokenizer, texts), vocab_size)
    tokenizer.model = models.WordPiece({token: i for i, token in enumerate(vocabulary)}, unk_token="[UNK]")
    tokenizer.decoder = decoders.WordPiece()
    return wrap(tokenizer, SPECIAL_TOKENS)


def _count_words(tokenizer: Tokenizer, texts: Iterable[str]) -> Counter[str]:
    words: Counter[str] = Counter()
    for text in texts:
        normal = tokenizer.normalizer.normalize_str(text)
        words.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal))
    return words


def _vocabulary(words: Counter[str], size: int) -> list[str]:
    characters = sorted({character for word in words for character in word})
    pieces: Counter[str] = Counter()
    for word, count in words.items():
        for length in range(2, min(len(word), _LONGEST) + 1):
            pieces[word[:length]] += count * (length - 1)
            if length < len(word):
                pieces[f"##{word[-length:]}"] += count * (length - 1)
    singles = [*characters, *(f"##{character}" for character in characters)]
    room = max(0, size - len(SPECIAL_TOKENS) - len(singles))
    best = sorted(pieces, key=lambda piece: (-pieces[piece], piece))[:room]
    return [*SPECIAL_TOKENS, *singles, *best]
