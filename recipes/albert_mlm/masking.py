# SPDX-License-Identifier: Apache-2.0
"""Dynamic masking as a pure function of (seed, draw): equal on any number of processes and workers.

A *draw* is one visit to one sequence: ``epoch * number_of_sequences + index``. Random numbers are not taken from a
generator, whose state would depend on what else was drawn in this process, but are the SplitMix64 hash (Steele, Lea
and Flood, "Fast splittable pseudorandom number generators", 2014) of seed, draw and position.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from lightning_sagemaker.recipes._common.modules.losses import IGNORED

_KEPT, _RANDOM = 0.1, 0.1
"""Shares of the chosen tokens that stay, or become any other token; the rest become the mask token (BERT, 2018)."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_LAST = np.uint64(0xFFFFFFFFFFFFFFFF)

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_Hashes = npt.NDArray[np.uint64]

UNITS = ("token", "word", "span")
"""What is hidden together."""

_LONGEST_SPAN = 3
"""Maximum words of a span; n words have a probability proportional to 1/n, as in ALBERT (Lan et al., 2019)."""


@dataclass(frozen=True)
class Vocabulary:
    """Properties of the tokenizer that masking needs.

    Args:
        size: Number of tokens.
        special: Ids that are never masked and never replace a token.
        mask: Id of the mask token.
        begins: ``[size]``, whether each token begins a word; needed to mask whole words.

    """

    size: int
    special: tuple[int, ...]
    mask: int
    begins: Flags | None = None

    @cached_property  # for each batch again, it would take five times as long as the rest of masking
    def ordinary(self) -> Integers:
        """The ids that are not special, ascending."""
        return np.setdiff1d(np.arange(self.size, dtype=np.int64), np.asarray(self.special, dtype=np.int64))


@dataclass(frozen=True)
class Masking:
    """Chooses the same number of tokens in every sequence and hides them.

    With the same number in every sequence, shapes are static, and the mean over equal micro-batches is that over the
    full batch: gradients on W processes equal those of one without exchanging counts.

    Args:
        vocabulary: Vocabulary of the tokenizer.
        num_masked: Tokens to predict in each sequence.
        seed: Seed of the run.
        unit: What is hidden together: one ``token``, all tokens of a ``word``, or those of a ``span`` of one to three
            words. To keep the number constant, the last word or span chosen may be hidden in part.

    """

    vocabulary: Vocabulary
    num_masked: int
    seed: int = 0
    unit: str = "token"

    def __call__(self, tokens: Integers, draws: Integers) -> tuple[Integers, Integers, Integers]:
        """Mask a batch.

        Args:
            tokens: ``[sequences, length]``, unmasked.
            draws: ``[sequences]``; see the module's description. Negative: padding of the batch, labels are ignored.

        Returns:
            Masked tokens ``[sequences, length]``, positions ``[sequences, num_masked]`` ascending, labels of the same
            shape.

        """
        masked = tokens.astype(np.int64)
        positions = self._choose(masked, draws)
        labels = np.take_along_axis(masked, positions, axis=1)
        chance = _unit(_hash(self.seed, draws, positions, stream=1))
        ordinary = self.vocabulary.ordinary
        any_token = ordinary[_hash(self.seed, draws, positions, stream=2) % np.uint64(len(ordinary))]
        hidden = np.where(chance < _RANDOM, any_token, self.vocabulary.mask)
        hidden = np.where(chance >= 1 - _KEPT, labels, hidden)
        np.put_along_axis(masked, positions, hidden, axis=1)
        labels[draws < 0] = IGNORED
        return masked, positions, labels

    def _choose(self, tokens: Integers, draws: Integers) -> Integers:
        keys = _hash(self.seed, draws, self._units(tokens, draws), stream=0)
        keys[np.isin(tokens, self.vocabulary.special)] = _LAST
        if self.unit != "token":
            # The tokens of a unit have the same key: sorting must keep them in order, so that a cut falls at its end.
            return np.sort(np.argsort(keys, axis=1, kind="stable")[:, : self.num_masked], axis=1)
        chosen = np.argpartition(keys, self.num_masked - 1, axis=1)[:, : self.num_masked]
        return np.sort(chosen, axis=1).astype(np.int64)

    def _units(self, tokens: Integers, draws: Integers) -> Integers:
        """The number of the unit that each token belongs to, of the shape of ``tokens``."""
        places = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
        if self.unit == "token":
            return places
        assert self.vocabulary.begins is not None
        special = np.isin(tokens, self.vocabulary.special)
        after_special = np.concatenate([np.ones_like(special[:, :1]), special[:, :-1]], axis=1)
        words = np.cumsum(self.vocabulary.begins[tokens] | special | after_special, axis=1) - 1
        return words if self.unit == "word" else np.take_along_axis(self._spans(words.shape, draws), words, axis=1)

    def _spans(self, shape: tuple[int, ...], draws: Integers) -> Integers:
        """For each word of a sequence the number of its span: spans of random lengths follow one another."""
        places = np.broadcast_to(np.arange(shape[1]), shape)
        chances = np.cumsum(1 / np.arange(1, _LONGEST_SPAN + 1))
        lengths = 1 + np.searchsorted(
            chances / chances[-1], _unit(_hash(self.seed, draws, places, stream=3)), side="right"
        )
        begins = np.zeros((shape[0], shape[1] + 1), dtype=np.int64)
        np.put_along_axis(begins, np.minimum(np.cumsum(lengths, axis=1), shape[1]), 1, axis=1)
        spans: Integers = np.cumsum(begins[:, :-1], axis=1)
        return spans


def chance_of(seed: int, draws: Integers) -> npt.NDArray[np.float64]:
    """A uniform number in [0, 1) for each draw, independent of those that masking uses."""
    return _unit(_hash(seed, draws, np.full((len(draws), 1), -1), stream=3))[:, 0]


def _hash(seed: int, draws: Integers, positions: Integers, stream: int) -> _Hashes:
    """Uniform 64-bit numbers of the shape of ``positions``; ``draws`` is its first axis."""
    key = _mix(np.array([seed], dtype=np.int64).astype(np.uint64) * np.uint64(4) + np.uint64(stream))
    per_draw = _mix(key + draws.astype(np.uint64) * _GOLDEN)
    return _mix(per_draw[:, None] + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN)


def _mix(x: _Hashes) -> _Hashes:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    mixed: _Hashes = x ^ (x >> np.uint64(31))
    return mixed


def _unit(x: _Hashes) -> npt.NDArray[np.float64]:
    """From 64 random bits to [0, 1): the top 53 fit a float64."""
    unit: npt.NDArray[np.float64] = (x >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return unit
