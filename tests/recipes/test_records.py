# SPDX-License-Identifier: Apache-2.0
"""TFRecords as TensorFlow wrote them give the text that was in them, or one sentence."""

import base64
import functools
import itertools
import zlib

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from lightning_sagemaker.checkpoint.export import save_tokenizer
from lightning_sagemaker.recipes._common.data.unigram import train_tokenizer as train_unigram
from lightning_sagemaker.recipes._common.data.unigram import wrap
from lightning_sagemaker.recipes._common.data.wordpiece import SPECIAL_TOKENS, train_wordpiece
from lightning_sagemaker.recipes.albert_mlm.articles import TextSourceError
from lightning_sagemaker.recipes.albert_mlm.builtin_text import builtin_documents
from lightning_sagemaker.recipes.albert_mlm.prepare import Preparation
from lightning_sagemaker.recipes.albert_mlm.records import Decoder, _example_class, _pieces
from lightning_sagemaker.recipes.albert_mlm.text import find_text

WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the bank of england charges a fee for every card payment ##s made abroad . ,"
    " it is shown on statement"
)
VOCABULARY = WORDS.split()
FIRST = "the bank of england charges a fee for every card payment."
SECOND = "it is shown on [UNK] statements, made abroad."

# Written by TensorFlow 2.21's TFRecordWriter with that vocabulary.
BY_TENSORFLOW = {
    # As Google's and AWS's create_pretraining_data: padded to 32, two tokens masked; FIRST, SECOND with
    # next_sentence_labels 0, and SECOND, FIRST with 1.
    "masked.tfrecord": (
        "eNpTZWQAgzdvlq7mWsTEJc8lnJtYnJ2aEp+TG1+QX5xZkpmfVyzEIcXGxcLEysDAZcjFmZlXUFoSn5lSLKQipcSlwMTKws7BwsXNw8vHL8"
        "wsKiYuwSgpICIoJMwMMZpLk0sQYWZ5amZ6RkmxkIiQEJcAA0ODPQRDlRpzcRenpuem5iGZz4ACGJEAVJMsl0heakVJfDFQW2pecmp8TmJS"
        "ak6xEKsUMxcjA5ckFy/CepCpYM+wcQJ1GnFxQTwDUgCxjREngNjG8ufgalUqBJooi7gECzScWNnYOThhAUiDQGMkNdAYcQSaGCN5gRap8N"
        "QGAOd4bnk="
    ),
    # As AWS's preprocess: not masked, a second [CLS] and [SEP] around both segments.
    "plain.tf_record-00000-of-00001": (
        "eNpbxgABBd+1RLkWM3KZcfGV5Gen5sWXVBakxmemFAupSClxKTAQACB9iSUlqXklmfl58bmJxdkQfYx4AFifIRdnZl5BaQnCKiYmVjZ2Dk"
        "4ubh5ePn5hZlExcQlGSQERQSFhZmaQFo+XPrsB4n4ZDg=="
    ),
    # With "text" and "url", packed by its option GZIP.
    "text.tfrecord.gz": (
        "eNqT7+ZgAAPm4vSGhtj2+vPPip4KPUvS0z0l+Ojho0ePTmhoam64dH39g0uPkzQ912oIBj0OehjEddIj1MPrzOmwE/7BHVZ7lmsYWzorWi"
        "pv1LDdGqEYqKhrGup/ykNbiuHt0ju+4UDTAeFVKkI="
    ),
}
PACKED = zlib.decompress(base64.b64decode(BY_TENSORFLOW["masked.tfrecord"]))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """The folder of a tokenizer with that vocabulary."""
    made = Tokenizer(models.WordPiece({token: place for place, token in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(wrap(made, SPECIAL_TOKENS), folder)
    return folder


def written(folder, name):
    path = folder / name
    path.write_bytes(zlib.decompress(base64.b64decode(BY_TENSORFLOW[name])))
    return path


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("masked.tfrecord", [f"{FIRST} {SECOND}", SECOND, FIRST]),
        ("plain.tf_record-00000-of-00001", [f"{FIRST} {SECOND}"]),
        ("text.tfrecord.gz", ["The bank of Zürich charges a fee."]),
    ],
)
def test_what_tensorflow_wrote_is_read(name, texts, tmp_path, tokenizer):
    assert list(find_text(str(written(tmp_path, name)), {}).documents(tokenizer)) == texts


def test_a_folder_of_records_is_read_beside_its_vocabulary(tmp_path, tokenizer, caplog):
    for name in BY_TENSORFLOW:
        written(tmp_path, name)
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY))
    source = find_text("auto", {"train": tmp_path})
    assert sorted(path.name for path in source.files) == sorted(BY_TENSORFLOW)
    assert "reading only its 3 TFRecords" in caplog.text
    assert len(list(source.documents(tokenizer))) == 5
    assert "kinds" in source.fingerprint()


@pytest.mark.parametrize("train", [functools.partial(train_unigram, lowercase=True), train_wordpiece])
def test_tokens_become_text_that_has_the_same_tokens(train, tmp_path):
    articles = list(itertools.islice(builtin_documents(), 400))
    fast = train(articles, 4000).backend_tokenizer
    fast.save(str(tmp_path / "tokenizer.json"))
    ids = [encoding.ids for encoding in fast.encode_batch(articles, add_special_tokens=False)]
    again = fast.encode_batch(Decoder.of(tmp_path)(ids), add_special_tokens=False)
    same = [one == other.ids for one, other in zip(ids, again, strict=True)]
    assert np.mean(same) > 0.99


def test_shards_of_records_hold_their_tokens(tmp_path, tokenizer):
    path = tmp_path / "many.tfrecord"
    path.write_bytes(PACKED * 50)
    source = find_text(str(path), {})
    options = {"sequence_length": 16, "val_fraction": 0.0, "test_fraction": 0.0}
    prepared = Preparation(source, tokenizer=str(tokenizer), **options)
    manifest, _ = prepared.run_in(tmp_path / "shards", 1, lambda _: None)
    rows = np.concatenate([np.load(path) for path in sorted((tmp_path / "shards").glob("train-*.npy"))])
    counted = np.bincount(rows.ravel(), minlength=len(VOCABULARY))
    assert manifest["articles"] == 150
    assert counted[VOCABULARY.index("[MASK]")] == 0
    assert counted[VOCABULARY.index("england")] == pytest.approx(100, abs=2)
    assert counted[VOCABULARY.index("[UNK]")] == pytest.approx(100, abs=2)

    with pytest.raises(TextSourceError, match=r"holds token ids and no text.*HINT: set data\.tokenizer"):
        Preparation(source, **options).run_in(tmp_path / "others", 0, lambda _: None)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (PACKED[:-3], "record 2 is damaged or incomplete. HINT: download the file again"),
        (PACKED[:300] + b"x" + PACKED[301:], "record 1 is damaged or incomplete"),
        (PACKED[: len(PACKED) // 2 + 5], "record 2 is damaged or incomplete"),
    ],
)
def test_damaged_records_are_refused(data, said, tmp_path, tokenizer):
    (tmp_path / "a.tfrecord").write_bytes(data)
    with pytest.raises(TextSourceError, match=said):
        list(find_text(str(tmp_path / "a.tfrecord"), {}).documents(tokenizer))


def test_records_of_another_vocabulary_are_refused(tmp_path, tokenizer):
    small = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    with pytest.raises(
        ValueError, match=r"the token id 40 was found, but the tokenizer has 26 tokens\. HINT: set data\.tokenizer"
    ):
        Decoder(small)([[5, 40]])


def test_examples_without_text_are_refused(tmp_path, tokenizer):
    path = written(tmp_path, "text.tfrecord.gz")
    with pytest.raises(
        TextSourceError, match=r"neither 'input_ids' nor text in 'body', but text, url\. HINT: set data\.text"
    ):
        list(find_text(str(path), {}, text_column="body").documents(tokenizer))


def test_an_example_without_mask_or_segments_is_its_tokens():
    example = _example_class()()
    example.features.feature["input_ids"].int64_list.value.extend([2, 7, 8, 3, 0, 0])
    plain = {name: list(feature.int64_list.value) for name, feature in example.features.feature.items()}
    assert _pieces(plain, {0, 2, 3}) == [[7, 8]]
