# SPDX-License-Identifier: Apache-2.0
"""Reads TFRecords of TensorFlow's pretraining scripts: sequences of token ids, which are decoded, or text.

A record is eight bytes of length, their checksum, the content and its checksum: CRC-32C, masked, as in TensorFlow's
``lib/io/record_writer.h``. The content is a ``tf.train.Example`` (its ``example.proto``), a map from names to lists.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import IO, Any

from lightning_sagemaker.recipes._common.data.unpacked import inner_name

IDS = "input_ids"
"""Feature with the token ids of an example, in all such scripts."""

_MASKS = ("input_mask", "attention_mask")
"""Features that are 0 where there is padding: as in Google's BERT and ALBERT, and as in transformers."""
_ANOTHER_ORDER = ("next_sentence_labels", "sentence_order_labels", "sentence_order_label")
"""1 where the second segment does not follow the first: it comes from elsewhere, or precedes it."""
_UNKNOWN = ("[UNK]", "<unk>")

_HEAD = 12
"""Bytes of a length and its checksum."""
_AT_ONCE = 1000
"""Examples that are decoded together."""

_NAME = re.compile(r"\.(tf_?records?|tfrec)(-\d+-of-\d+)?$")

_EXAMPLE = """
name: "example.proto" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
message_type { name: "FloatList" field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED } }
message_type { name: "Int64List" field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
message_type { name: "Feature"
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".BytesList" label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".FloatList" label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".Int64List" label: LABEL_OPTIONAL oneof_index: 0 }
  oneof_decl { name: "kind" } }
message_type { name: "Features"
  field { name: "feature" number: 1 type: TYPE_MESSAGE type_name: ".Features.FeatureEntry" label: LABEL_REPEATED }
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".Feature" label: LABEL_OPTIONAL } } }
message_type { name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".Features" label: LABEL_OPTIONAL } }
"""
"""The part of TensorFlow's ``example.proto`` that is needed, as a descriptor."""

Example = Mapping[str, list[Any]]


@dataclass(frozen=True)
class Decoder:
    """Turns tokens into text.

    Args:
        tokenizer: A ``tokenizers.Tokenizer``.

    """

    tokenizer: Any

    @classmethod
    def of(cls, folder: Path) -> Decoder:
        """The decoder of a saved tokenizer."""
        from tokenizers import Tokenizer

        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")))

    @cached_property
    def separators(self) -> frozenset[int]:
        """Ids of the special tokens, except the unknown token, which stays in the text."""
        added = self.tokenizer.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special and token.content not in _UNKNOWN)

    def __call__(self, pieces: list[list[int]]) -> list[str]:
        """The text of each list of tokens.

        Raises:
            ValueError: If a token is not in the vocabulary.

        """
        largest = max(itertools.chain.from_iterable(pieces), default=0)
        size = self.tokenizer.get_vocab_size(with_added_tokens=True)
        if largest >= size:
            raise ValueError(
                f"the token id {largest} was found, but the tokenizer has {size} tokens."
                " HINT: set data.tokenizer to the one with which the file was made"
            )
        texts: list[str] = self.tokenizer.decode_batch(pieces, skip_special_tokens=False)
        return texts


def is_record_name(name: str) -> bool:
    """Whether a name is that of TFRecords, packed or not: ``wiki.tfrecord``, ``wiki.tf_record-00000-of-00064``."""
    return _NAME.search(inner_name(name.lower())) is not None


def begins_with_record(start: bytes) -> bool:
    """Whether a file that starts with ``start`` has TFRecords: the checksum of its first eight bytes follows them."""
    # The upper half of a length is zero, which hardly anything else has there and which is known at once.
    return len(start) >= _HEAD and start[4:8] == bytes(4) and _is_intact(start[:8], start[8:_HEAD])


def read_examples(stream: IO[bytes]) -> Iterator[Example]:
    """The examples of a file, in order.

    Raises:
        ValueError: If a record is damaged or incomplete.

    """
    parse = _example_class().FromString
    for number in itertools.count(1):
        head = stream.read(_HEAD)
        if not head:
            return
        body = b""
        if len(head) == _HEAD and _is_intact(head[:8], head[8:]):
            body = stream.read(int.from_bytes(head[:8], "little") + 4)
        if not _is_intact(body[:-4], body[-4:]):
            raise ValueError(f"record {number} is damaged or incomplete. HINT: download the file again")
        try:
            found = parse(body[:-4])
        except Exception as error:  # protobuf's implementations have different ones
            raise ValueError(f"record {number} is not a tf.train.Example. HINT: convert the file to text") from error
        yield {name: _values(feature) for name, feature in found.features.feature.items()}


def read_texts(examples: Iterable[Example], decoder: Callable[[], Decoder], column: str) -> Iterator[str]:
    """The text of each example, or of each of its segments if the second does not follow the first.

    Args:
        examples: Examples with token ids, or with text in ``column``.
        decoder: Returns the decoder; called only if there are token ids.
        column: Name of the feature with text.

    Raises:
        ValueError: If an example has neither token ids nor text.

    """
    examples, decode = iter(examples), None
    while batch := list(itertools.islice(examples, _AT_ONCE)):
        if all(IDS in example for example in batch):
            decode = decode or decoder()
            yield from decode([piece for example in batch for piece in _pieces(example, decode.separators)])
        else:
            yield from (_text(example, column) for example in batch)


def _pieces(example: Example, separators: Collection[int]) -> list[list[int]]:
    """The tokens without padding, masks and special tokens: one piece, or several that do not belong together."""
    ids = list(example[IDS])
    for place, token, weight in _masked(example):
        if weight:
            ids[place] = token
    mask = next((example[name] for name in _MASKS if name in example), [1] * len(ids))
    apart = any(example.get(name) == [1] for name in _ANOTHER_ORDER)
    pieces: list[list[int]] = [[]]
    for token in itertools.compress(ids, mask):
        if token not in separators:
            pieces[-1].append(token)
        elif apart:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _masked(example: Example) -> Iterator[tuple[int, int, float]]:
    """Position, original token and weight of each masked token; none if masks are drawn in training."""
    places, tokens = example.get("masked_lm_positions", []), example.get("masked_lm_ids", [])
    return zip(places, tokens, example.get("masked_lm_weights") or [1.0] * len(places), strict=True)


def _text(example: Example, column: str) -> str:
    texts = {name: values[0] for name, values in example.items() if len(values) == 1 and isinstance(values[0], bytes)}
    if column not in texts and len(texts) != 1:
        raise ValueError(
            f"an example has neither {IDS!r} nor text in {column!r}, but {', '.join(sorted(example)) or 'nothing'}."
            " HINT: set data.text_column to the one with the text"
        )
    return str(texts.get(column, next(iter(texts.values()))).decode())


def _values(feature: Any) -> list[Any]:
    kind = feature.WhichOneof("kind")
    return [] if kind is None else list(getattr(feature, kind).value)


def _is_intact(content: bytes, checksum: bytes) -> bool:
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    return bool(masked_crc32c(content) == int.from_bytes(checksum, "little"))


@cache
def _example_class() -> Any:
    """``tf.train.Example``, as far as it is needed to read one."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    file = text_format.Parse(_EXAMPLE, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Example"))
