# SPDX-License-Identifier: Apache-2.0
"""Compressed files of several streams, as parallel programs write them: all of a file is read, or it is refused."""

import bz2
import gzip
import lzma

import pyarrow
import pytest

from lightning_sagemaker.recipes._common.data.unpacked import open_unpacked

LINES = b"".join(b"%d,some words\n" % number for number in range(20_000))
HALF = LINES.index(b"\n", 100_000) + 1


def zstd(data):
    return pyarrow.compress(data, codec="zstd", asbytes=True)


COMPRESS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}
KINDS = pytest.mark.parametrize("kind", COMPRESS)


def unpacked(folder, kind, *parts):
    path = folder / f"a.csv.{kind}"
    path.write_bytes(b"".join(parts))
    with open_unpacked(path) as (name, stream):
        assert name == "a.csv"
        return stream.read()


@KINDS
def test_all_streams_are_read(tmp_path, kind):
    first, second = map(COMPRESS[kind], (LINES[:HALF], LINES[HALF:]))
    assert unpacked(tmp_path, kind, first, second) == LINES
    if kind != "zst":
        assert unpacked(tmp_path, kind, first, bytes(8), second, bytes(100_000)) == LINES


@KINDS
@pytest.mark.parametrize("damage", ["cut", "bytes before", "bytes after"])
def test_damage_after_the_first_stream_is_refused(tmp_path, kind, damage):
    first, second = map(COMPRESS[kind], (LINES[:HALF], LINES[HALF:]))
    parts = {"cut": [second[:-9]], "bytes before": [b"damage", second], "bytes after": [second, b"damage"]}
    with pytest.raises((ValueError, OSError)):
        unpacked(tmp_path, kind, first, *parts[damage])


def test_frames_to_skip_are_skipped(tmp_path):
    skipped = b"\x50*M\x18\x04\x00\x00\x00" + b"size"
    assert unpacked(tmp_path, "zst", skipped, zstd(LINES), skipped) == LINES
