# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from lightning_sagemaker.recipes._common.modules.losses import IGNORED
from lightning_sagemaker.recipes.albert_mlm.masking import Masking, Vocabulary

VOCABULARY = Vocabulary(size=1000, special=(0, 1, 2, 3, 4), mask=4)
LENGTH, NUM_MASKED = 64, 9


@pytest.fixture(scope="module")
def tokens():
    rows = np.random.default_rng(0).integers(5, 1000, (4000, LENGTH))
    rows[:, 0], rows[:, -1], rows[:, 20] = 2, 3, 3
    return rows


def masking(seed=0):
    return Masking(VOCABULARY, NUM_MASKED, seed)


def test_labels_are_the_hidden_tokens_and_nothing_else_changes(tokens):
    masked, positions, labels = masking()(tokens, np.arange(len(tokens)))
    assert positions.shape == labels.shape == (4000, NUM_MASKED)
    assert (np.diff(positions, axis=1) > 0).all()
    np.testing.assert_array_equal(labels, np.take_along_axis(tokens, positions, axis=1))
    restored = masked.copy()
    np.put_along_axis(restored, positions, labels, axis=1)
    np.testing.assert_array_equal(restored, tokens)


def test_special_tokens_are_never_chosen(tokens):
    _, positions, labels = masking()(tokens, np.arange(len(tokens)))
    assert not np.isin(labels, VOCABULARY.special).any()
    assert not np.isin(positions, [0, 20, LENGTH - 1]).any()


def test_shares_are_80_10_10(tokens):
    masked, positions, labels = masking()(tokens, np.arange(len(tokens)))
    hidden = np.take_along_axis(masked, positions, axis=1)
    kept, mask = (hidden == labels).mean(), (hidden == VOCABULARY.mask).mean()
    # 36 000 tokens: four standard deviations are 0.0085 (mask) and 0.0064 (the others).
    assert mask == pytest.approx(0.8, abs=0.0085)
    assert kept == pytest.approx(0.1 + 0.1 / 995, abs=0.0064)
    replaced = hidden[(hidden != labels) & (hidden != VOCABULARY.mask)]
    assert not np.isin(replaced, VOCABULARY.special).any()
    assert len(np.unique(replaced)) > 900


def test_all_ordinary_positions_are_equally_likely(tokens):
    _, positions, _ = masking()(tokens, np.arange(len(tokens)))
    counts = np.bincount(positions.ravel(), minlength=LENGTH)[np.setdiff1d(np.arange(LENGTH), [0, 20, LENGTH - 1])]
    expected = 4000 * NUM_MASKED / 61
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 100  # 60 degrees of freedom: 0.1 % of fair samples exceed 99.6


def test_depends_on_seed_and_draw_and_not_on_the_batch(tokens):
    draws = np.arange(100) * 7
    whole = masking()(tokens[:100], draws)
    for part in (slice(0, 1), slice(50, 100), slice(99, None, -3)):
        for one, all_of_them in zip(masking()(tokens[:100][part], draws[part]), whole, strict=True):
            np.testing.assert_array_equal(one, all_of_them[part])
    assert (masking(1)(tokens[:100], draws)[1] != whole[1]).any(axis=1).mean() > 0.99
    assert (masking()(tokens[:100], draws + 4000)[1] != whole[1]).any(axis=1).mean() > 0.99


def test_padding_of_the_batch_is_ignored(tokens):
    _, _, labels = masking()(tokens[:3], np.array([0, -1, 2]))
    assert (labels[1] == IGNORED).all()
    assert (labels[[0, 2]] >= 0).all()


@pytest.fixture(scope="module")
def words(tokens):
    """A vocabulary in which two of five tokens continue a word."""
    begins = np.ones(1000, dtype=bool)
    begins[np.arange(1000) % 5 >= 3] = False
    begins[:5] = True
    return Vocabulary(VOCABULARY.size, VOCABULARY.special, VOCABULARY.mask, begins)


def units_of(tokens, vocabulary):
    special = np.isin(tokens, vocabulary.special)
    after = np.concatenate([np.ones_like(special[:, :1]), special[:, :-1]], axis=1)
    return np.cumsum(vocabulary.begins[tokens] | special | after, axis=1)


def test_whole_words_are_hidden_all_but_the_last_one(tokens, words):
    _, positions, _ = Masking(words, NUM_MASKED, unit="word")(tokens, np.arange(len(tokens)))
    units = units_of(tokens, words)
    cut = 0
    for row, chosen in enumerate(positions):
        hidden = set(chosen.tolist())
        members = [np.flatnonzero(units[row] == unit) for unit in np.unique(units[row][chosen])]
        parts = [set(member.tolist()) for member in members if not set(member.tolist()) <= hidden]
        assert len(parts) <= 1
        for part in parts:  # the beginning of the word that did not fit
            assert sorted(part & hidden) == sorted(part)[: len(part & hidden)]
        cut += len(parts)
    assert cut < len(tokens)
    assert not np.isin(np.take_along_axis(tokens, positions, axis=1), words.special).any()


def test_spans_are_of_one_to_three_words_with_shares_1_to_half_to_a_third(tokens, words):
    masking = Masking(words, NUM_MASKED, unit="span")
    spans = masking._spans((2000, 60), np.arange(2000))
    lengths = np.bincount(
        [len(list(group)) for row in spans for group in np.split(row, np.flatnonzero(np.diff(row)) + 1)]
    )
    shares = lengths[1:4] / lengths[1:4].sum()
    assert len(lengths) == 4
    assert shares == pytest.approx(np.array([6, 3, 2]) / 11, abs=0.01)
    assert run_length(masking, tokens) > 1.8 * run_length(Masking(words, NUM_MASKED), tokens)


def run_length(masking, tokens):
    """Mean number of hidden tokens next to each other."""
    positions = masking(tokens, np.arange(len(tokens)))[1]
    return positions.size / (len(positions) + (np.diff(positions, axis=1) > 1).sum())


@pytest.mark.parametrize("unit", ["word", "span"])
def test_units_do_not_depend_on_the_batch(tokens, words, unit):
    masking, draws = Masking(words, NUM_MASKED, unit=unit), np.arange(50) * 3
    whole = masking(tokens[:50], draws)
    for one, all_of_them in zip(masking(tokens[20:30], draws[20:30]), whole, strict=True):
        np.testing.assert_array_equal(one, all_of_them[20:30])


def test_what_depends_on_the_vocabulary_only_is_not_made_again_for_each_batch():
    assert VOCABULARY.ordinary is VOCABULARY.ordinary
