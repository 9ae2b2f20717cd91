# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from lightning_sagemaker.recipes.albert_mlm.masking import IGNORED, Masking, Vocabulary

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
