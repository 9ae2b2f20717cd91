# SPDX-License-Identifier: Apache-2.0
"""Tokenize text into shards before training: ``lightning-sagemaker prepare albert-mlm INPUT OUTPUT``.

INPUT is a file or a folder (text with one article per line, JSON lines, Parquet and other tables, TFRecords, packed or
not), a Hugging Face dataset, or `builtin`. Train from OUTPUT by --data.text OUTPUT. An OUTPUT in S3 is written shard by
shard, and training streams it. An interrupted run resumes where it stopped when it is restarted.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_sagemaker import SageMakerJob
from lightning_sagemaker.cores import available_cores
from lightning_sagemaker.errors import CommandError
from lightning_sagemaker.option_types import integer
from lightning_sagemaker.recipes._common.data.cache import default_cache, settings_key
from lightning_sagemaker.recipes._common.data.ranges import check_range
from lightning_sagemaker.recipes._common.data.remote import RemoteFolder, Upload, is_remote
from lightning_sagemaker.recipes._common.data.unigram import SPECIAL_TOKENS
from lightning_sagemaker.recipes._common.data.verify import verify
from lightning_sagemaker.recipes.albert_mlm.articles import TextSourceError
from lightning_sagemaker.recipes.albert_mlm.jobs import finished_files
from lightning_sagemaker.recipes.albert_mlm.prepare import Preparation
from lightning_sagemaker.recipes.albert_mlm.text import find_own_text, find_text

_LINE_EVERY = 10.0
"""Seconds between lines of progress where there is no terminal."""


def main(arguments: Sequence[str]) -> int:
    """Prepare, or verify with ``--verify``; returns the exit code, 1 if a file has changed.

    Raises:
        CommandError: If the text or the shards cannot be used.

    """
    args = _parser().parse_args(arguments)
    is_given = args.output and (args.input or args.verify)
    if not is_given:  # an empty text, as of a variable that is not set, would be the current folder
        raise CommandError("INPUT or OUTPUT is an empty text. HINT: give both.")
    try:
        check_range("val_fraction", args.val_fraction, 0.0, 0.5)
        check_range("test_fraction", args.test_fraction, 0.0, 0.5)
        if args.verify:
            return verify(args.output)
        dataset = {"dataset_config": args.dataset_config, "text_column": args.text_column}
        source = find_text(args.input, {}, dataset_split=args.dataset_split, **dataset)
        own = find_own_text({"validation": args.validation, "test": args.test}, {}, **dataset)
        preparation = Preparation(
            source,
            tokenizer=args.tokenizer,
            vocab_size=args.vocab_size,
            lowercase=not args.cased,
            sequence_length=args.sequence_length,
            sentence_order=args.sentence_order,
            val_fraction=args.val_fraction,
            test_fraction=args.test_fraction,
            max_documents=args.max_documents,
            **own,
        )
        if is_remote(args.output):
            staging = staging_folder(args.output, args.staging)
            return prepare_remote(preparation, RemoteFolder(args.output), staging, args.workers)
        return _prepare(preparation, Path(args.output), args.workers)
    except (ValueError, MisconfigurationException) as error:
        raise CommandError(_as_options(str(error))) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightning-sagemaker prepare albert-mlm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cores = available_cores()
    parser.add_argument("input", help="file, folder, Hugging Face dataset, or builtin")
    parser.add_argument("output", help="folder of the shards, or s3://bucket/prefix")
    parser.add_argument(
        "--staging", type=Path, help="build the shards in this local folder before they are uploaded to S3"
    )
    parser.add_argument("--tokenizer", default="train", help="train a new one, or a folder or hub name (%(default)s)")
    parser.add_argument(
        "--vocab-size",
        type=integer(len(SPECIAL_TOKENS) + 1),
        default=30000,
        help="vocabulary size of a new tokenizer (%(default)s)",
    )
    parser.add_argument("--cased", action="store_true", help="keep upper case in a new tokenizer")
    parser.add_argument("--sequence-length", type=integer(16), default=128, help="tokens (%(default)s)")
    parser.add_argument(
        "--sentence-order", action="store_true", help="build two segments, for sentence-order prediction"
    )
    parser.add_argument("--val-fraction", type=float, default=0.05, help="share of the articles (%(default)s)")
    parser.add_argument("--test-fraction", type=float, default=0.01, help="share of the articles (%(default)s)")
    parser.add_argument(
        "--validation", help="validation text, in any form that INPUT may have; then INPUT is not split for it"
    )
    parser.add_argument("--test", help="test text, likewise")
    parser.add_argument("--max-documents", type=integer(1), help="maximum number of articles to read from INPUT")
    parser.add_argument("--dataset-config", help="configuration of a Hugging Face dataset")
    parser.add_argument("--dataset-split", default="train", help="split of a Hugging Face dataset (%(default)s)")
    parser.add_argument("--text-column", default="text", help="column of a dataset or table (%(default)s)")
    parser.add_argument(
        "--workers", type=integer(0), default=cores, help="processes in addition to this one (CPU cores: %(default)s)"
    )
    parser.add_argument("--verify", action="store_true", help="verify the checksums of OUTPUT instead")
    return parser


def _as_options(message: str) -> str:
    """``message`` with this command's option names in place of the recipe's."""
    message = re.sub(r"\bdata\.text\b", "INPUT", message)
    return re.sub(r"\bdata\.(\w+)", lambda found: f"--{found[1].replace('_', '-')}", message)


def staging_folder(address: str, within: Path | None) -> Path:
    """Folder in which the shards of a URI are built: always the same, so that an interrupted run can resume.

    The folder is deleted at the end, so it has no other files.
    """
    place = default_cache(SageMakerJob.from_environment(), "albert-mlm") if within is None else within
    return place / f"to-s3-{settings_key({'address': address})}"


def prepare_remote(preparation: Preparation, remote: RemoteFolder, staging: Path, workers: int) -> int:
    """Make shards in ``staging`` and upload each when it is finished, the manifest last; then delete ``staging``."""
    settings = preparation.settings()
    manifest = remote.manifest()
    if manifest is not None:
        if manifest["key"] != settings_key(settings):
            raise TextSourceError(
                f"{remote.address} holds shards of other text or settings. HINT: give another address."
            )
        shutil.rmtree(staging, ignore_errors=True)  # of a run that was killed after the upload
        return _report("found", manifest, remote.address)
    staging.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    say = partial(print, flush=True)
    with (
        Upload(staging, remote, partial(finished_files, staging), say) as upload,
        _Progress(preparation.size()) as progress,
    ):
        manifest, _ = preparation.run_in(staging, max(0, workers), progress)
        upload.finish(manifest)
    shutil.rmtree(staging)
    return _report("prepared", manifest, remote.address)


def _prepare(preparation: Preparation, output: Path, workers: int) -> int:
    output.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    with _Progress(preparation.size()) as progress:
        manifest, made = preparation.run_in(output, max(0, workers), progress)
    return _report("prepared" if made else "found", manifest, str(output))


def _report(verb: str, manifest: Mapping[str, Any], output: str) -> int:
    rows = sum(entry["rows"] for entry in manifest["files"].values())
    print(
        f"{verb} {manifest['articles']} articles: {rows} sequences of {manifest['sequence_length']} tokens in {output}"
    )
    return 0


class _Progress:
    """A progress bar on a terminal, a line every ten seconds elsewhere.

    Args:
        size: Bytes of the text, or 0 where that is not known.

    """

    def __init__(self, size: int) -> None:
        # Bytes stand for characters: close for most text, and known without reading it.
        self._total = size or None
        self._done = 0
        self._begin = self._said = time.monotonic()

    def __enter__(self) -> _Progress:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TextColumn("{task.fields[rate]}"))
        self._bar = Progress(*columns, TimeRemainingColumn(), disable=not sys.stdout.isatty())
        self._task = self._bar.add_task("", total=self._total, rate="")
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, characters: int) -> None:
        self._done += characters
        now = time.monotonic()
        rate = self._done / 1e6 / max(now - self._begin, 1e-9)
        self._bar.update(self._task, completed=self._done, rate=f"{rate:.1f} MB/s")
        if self._bar.disable and now - self._said >= _LINE_EVERY:
            self._said = now
            print(progress_line(self._done, self._total, rate), flush=True)


def progress_line(done: int, total: int | None, rate: float) -> str:
    """A line with the amount done, the rate, and the estimated time left.

    Args:
        done: Characters done.
        total: Bytes of the text; ``None``: unknown.
        rate: Millions of characters per second.

    """
    if not total:
        return f"{done / 1e6:.0f} MB, {rate:.1f} MB/s"
    left = round(max(0, total - done) / 1e6 / max(rate, 1e-9))
    return f"{done / 1e6:.0f} of {total / 1e6:.0f} MB, {rate:.1f} MB/s, {timedelta(seconds=left)} left"
