# SPDX-License-Identifier: Apache-2.0
"""Sources of articles: files, a Hugging Face dataset, or Python's own documentation."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_sagemaker.rank import is_rank_zero
from lightning_sagemaker.recipes._common.data.cache import MANIFEST
from lightning_sagemaker.recipes._common.data.remote import is_remote
from lightning_sagemaker.recipes._common.data.split_folders import files_of_split
from lightning_sagemaker.recipes._common.data.table_streams import UNPACKED
from lightning_sagemaker.recipes._common.data.tables import is_table_name
from lightning_sagemaker.recipes._common.data.unpacked import SUFFIXES as PACKED
from lightning_sagemaker.recipes._common.data.unpacked import is_hidden
from lightning_sagemaker.recipes.albert_mlm.articles import (
    LINES,
    EmptyTableError,
    TextSourceError,
    is_text_name,
    kind_of,
    read_articles,
    report_layout,
)
from lightning_sagemaker.recipes.albert_mlm.builtin_text import builtin_documents
from lightning_sagemaker.recipes.albert_mlm.records import is_record_name

BUILTIN = "builtin"
_CHANNELS = ("train", "training")
"""Names of SageMaker input channels that ``text: auto`` looks for, in this order."""

_ABOUT = re.compile(r"(readme|licen[cs]e|copying|notice|changelog|vocab|requirements|urls(_\w+)?)\.txt", re.IGNORECASE)
"""Files that are about a corpus."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextSource:
    """A source of articles.

    Args:
        files: Files for :func:`read_articles`; empty for other sources.
        dataset: Name of a Hugging Face dataset; ``None`` without files: the built-in text.
        dataset_config: Configuration of the dataset, if it has several.
        dataset_split: Split of the dataset.
        text_column: Column with the article, of a dataset or of a file with records.

    """

    files: tuple[Path, ...] = ()
    dataset: str | None = None
    dataset_config: str | None = None
    dataset_split: str = "train"
    text_column: str = "text"

    def fingerprint(self) -> dict[str, Any]:
        """Changes whenever files or Python's version may have changed; of a dataset, its name and options."""
        if self.files:
            stats = [(str(path), path.stat()) for path in self.files]
            files = {"files": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]}
            kinds = {kind_of(path) for path in self.files}
            return files if kinds == {LINES} else {**files, "kinds": sorted(kinds), "text_column": self.text_column}
        if self.dataset:
            return {"dataset": [self.dataset, self.dataset_config, self.dataset_split, self.text_column]}
        return {"builtin": sys.version}

    def size(self) -> int:
        """Bytes of all text files; 0 for other kinds, whose size is not known without reading them."""
        plain = all(not _is_packed(path) and kind_of(path) == LINES for path in self.files)
        return self.characters() if plain else 0

    def characters(self) -> int:
        """Approximate number of characters of all files; 0 for other kinds."""
        return sum(path.stat().st_size * (UNPACKED if _is_packed(path) else 1) for path in self.files)

    def describe(self) -> str:
        """The source in words, for messages."""
        if self.files:
            return ", ".join(str(path) for path in self.files)
        return self.dataset or "the documentation of Python's standard library"

    def documents(self, tokenizer: Path | None = None) -> Iterator[str]:
        """The articles in order; empty ones are left out.

        Args:
            tokenizer: As for :func:`read_articles`.

        """
        if self.files:
            texts = self._file_articles(tokenizer)
        else:
            texts = self._dataset_rows() if self.dataset else builtin_documents()
        return (text for text in (text.strip() for text in texts) if text)

    def _file_articles(self, tokenizer: Path | None) -> Iterator[str]:
        for path in self.files:
            try:
                yield from read_articles(path, self.text_column, tokenizer)
            except EmptyTableError:  # a part without records, as parallel programs write them
                if len(self.files) == 1:
                    raise

    def _dataset_rows(self) -> Iterator[str]:
        try:
            from datasets import load_dataset
        except ImportError as error:
            raise TextSourceError(
                f"data.text={self.dataset!r} is not a local file, so it names a Hugging Face dataset, but the package"
                " `datasets` is not installed. HINT: pip install datasets, or give the path of a text file."
            ) from error
        try:
            rows = load_dataset(self.dataset, self.dataset_config, split=self.dataset_split)
        except Exception as error:  # whatever the hub's client raises
            raise TextSourceError(
                f"data.text={self.dataset!r} is not a local file, and no Hugging Face dataset could be loaded"
                f" ({str(error).strip().splitlines()[0]}). HINT: check the path, or the name, configuration and split of the"
                " dataset, and the network."
            ) from error
        if self.text_column not in rows.column_names:
            raise TextSourceError(
                f"data.text_column={self.text_column!r} is not a column of {self.dataset!r}."
                f" HINT: its columns are {', '.join(rows.column_names)}."
            )
        return (row[self.text_column] for row in rows)


def find_text(
    text: str | Sequence[str], channels: Mapping[str, Path], option: str = "data.text", **dataset: Any
) -> TextSource:
    """The source that ``text`` names.

    Args:
        text: ``"builtin"``; ``"auto"`` (the job's ``train`` or ``training`` channel, else builtin); files or folders;
            or the name of a Hugging Face dataset.
        channels: Channels of the job.
        option: Name of the option, for messages.
        dataset: The ``dataset_*`` and ``text_column`` fields of :class:`TextSource`.

    Raises:
        TextSourceError: If a path does not exist or holds no text.

    """
    if text == "auto":
        channel = _channel(channels)
        text = BUILTIN if channel is None else str(channel)
    if text == BUILTIN:
        return TextSource()
    names = [text] if isinstance(text, str) else list(text)
    if any(map(is_remote, names)):
        raise TextSourceError(
            f"{option}={text!r} was set, but text is read from files, and from S3 only what was prepared. HINT: pass the"
            " text as an input channel of the job, or prepare it: `lightning-sagemaker prepare albert-mlm INPUT s3://...`."
        )
    if len(names) == 1 and not Path(names[0]).exists() and not _looks_like_path(names[0]):
        return TextSource(dataset=names[0], **dataset)
    files = tuple(path for name in names for path in _text_files(Path(name), option))
    if not any(path.stat().st_size for path in files):
        raise TextSourceError(
            f"{option}={text!r} contains no text: {len(files)} files, all empty."
            " HINT: give UTF-8 files with one article per line; in a folder they must end in .txt, or be tables."
        )
    if is_rank_zero():
        report_layout(files[0])
    return TextSource(files, text_column=dataset.get("text_column", "text"))


def find_own_text(
    given: Mapping[str, str | Sequence[str] | None], channels: Mapping[str, Path], **dataset: Any
) -> dict[str, TextSource]:
    """Separate sources for validation and testing: what is set, or the job's channel of that name.

    Args:
        given: ``validation`` and ``test`` -> as for :func:`find_text`, but not ``auto``. Of a Hugging Face dataset the
            split of that name is used.
        channels: Channels of the job.
        dataset: As for :func:`find_text`.

    """
    named = {name: value or (str(channels[name]) if name in channels else None) for name, value in given.items()}
    return {
        name: find_text(value, {}, f"data.{name}", **{**dataset, "dataset_split": name})
        for name, value in named.items()
        if value
    }


def prepared_folder(text: str | Sequence[str], channels: Mapping[str, Path]) -> Path | None:
    """The folder of shards that ``text`` names, if it names one; ``auto``: the job's channel, if that holds shards.

    Raises:
        TextSourceError: If it has shards without their manifest.

    """
    if not isinstance(text, str) or is_remote(text):
        return None
    folder = _channel(channels) if text == "auto" else Path(text)
    if folder is None or (folder / MANIFEST).is_file():
        return folder
    if folder.is_dir() and any(folder.glob("*-?????.npy")):
        raise TextSourceError(
            f"{folder} holds shards, but no {MANIFEST}. HINT: give everything that `lightning-sagemaker prepare` wrote; a"
            " channel with S3DataDistributionType ShardedByS3Key gives each host only a part: make it FullyReplicated,"
            " or stream it by data.text=s3://bucket/prefix. Each process reads its own share in any case."
        )
    return None


def _channel(channels: Mapping[str, Path]) -> Path | None:
    return next((channels[name] for name in _CHANNELS if name in channels), None)


def _is_packed(path: Path) -> bool:
    return path.suffix.lower() in (*PACKED, ".parquet")


def _looks_like_path(name: str) -> bool:
    named = is_text_name(name) or is_table_name(name) or is_record_name(name)
    return named or name.startswith((".", "/", "~")) or name.count("/") > 1


def _text_files(path: Path, option: str) -> list[Path]:
    path = path.expanduser()
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if file.is_file() and not is_hidden(file.relative_to(path))]
        kinds = {
            kind: [file for file in files if fits(file.name)]
            for kind, fits in (("text files", is_text_name), ("tables", is_table_name), ("TFRecords", is_record_name))
        }
        # Next to a corpus there may be a vocab.txt, a README.txt or a table of sources: the corpus is the largest kind.
        kind = max(kinds, key=lambda name: sum(file.stat().st_size for file in kinds[name]))
        kinds[kind] = [file for file in kinds[kind] if not _ABOUT.fullmatch(file.name)] or kinds[kind]
        chosen = set(kinds[kind])
        others = [str(file) for file in files if file not in chosen]
        if others and is_rank_zero():
            _log.warning("%s: reading only its %d %s, not %s", path, len(kinds[kind]), kind, ", ".join(others[:3]))
        try:
            return files_of_split(kinds[kind], lambda file: file.relative_to(path), str(path), option)
        except ValueError as error:
            raise TextSourceError(str(error)) from error
    if not path.is_file():
        raise TextSourceError(
            f"{option}={str(path)!r} was set, but there is no such file or folder in {Path.cwd()}."
            " HINT: give UTF-8 text with one article per line, a Hugging Face dataset name, or `builtin`."
        )
    return [path]
