# SPDX-License-Identifier: Apache-2.0
"""Models and tokenizers from a Hugging Face folder, from the hub, or from a checkpoint of these recipes."""

from __future__ import annotations

import contextlib
import functools
import logging
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig, PreTrainedTokenizerFast

from lightning_sagemaker.checkpoint.export import save_tokenizer
from lightning_sagemaker.checkpoint.integrity import first_line

CHECKPOINT_SUFFIX = ".ckpt"
CONFIG_KEY, TOKENIZER_KEY = "model_config", "tokenizer_files"
"""What a checkpoint of these recipes holds in addition to Lightning's entries: everything needed to build its model."""
LORA_KEY = "lora"
"""Entry of a checkpoint that holds adapters instead of a full model: their settings, and a hash of the base weights."""

_NEW = "_lightning_sagemaker_new"
"""Attribute of a model: names of its weights that were not loaded."""

_log = logging.getLogger(__name__)


def is_checkpoint(name: str) -> bool:
    """Whether ``name`` is a Lightning checkpoint rather than a Hugging Face folder or hub name."""
    return name.endswith(CHECKPOINT_SUFFIX)


def load_config(name: str, **overrides: Any) -> PretrainedConfig:
    """The model configuration in ``name``, with some values replaced.

    Raises:
        MisconfigurationException: If there is no such folder, hub name or checkpoint.

    """
    if is_checkpoint(name):
        made: PretrainedConfig = AutoConfig.for_model(**{**_checkpoint(name)[CONFIG_KEY], **overrides})
        return made
    with _loading(name):
        found: PretrainedConfig = AutoConfig.from_pretrained(name, **overrides)
    return found


def load_model(kind: Any, name: str, config: PretrainedConfig) -> Any:
    """A model with the weights in ``name``.

    Args:
        kind: Auto class, such as ``AutoModelForQuestionAnswering``.
        name: Hugging Face folder, hub name, or ``*.ckpt``.
        config: From :func:`load_config`.

    Returns:
        The model; :func:`new_weights` are those that are not in ``name``.

    Raises:
        MisconfigurationException: If the weights cannot be loaded, or are of another kind of model.

    """
    wanted = getattr(kind, "config_class", None)
    if wanted is not None and not isinstance(config, wanted):
        raise MisconfigurationException(
            f"model.pretrained={name!r} is a model of type {config.model_type}, but this recipe trains {kind.__name__}."
            f" HINT: give one of type {wanted.model_type}."
        )
    if is_checkpoint(name):
        return _take_body(getattr(kind, "from_config", kind)(config), name)
    with _loading(name):
        options = {"config": config, "ignore_mismatched_sizes": True, "output_loading_info": True}
        model, found = kind.from_pretrained(name, **options)
    other = {key if isinstance(key, str) else key[0] for key in (*found["missing_keys"], *found["mismatched_keys"])}
    _keep_new(model, sorted(other), name)
    return model


def new_weights(model: Any) -> list[str]:
    """Names of the weights that :func:`load_model` has not found, which are random."""
    found: list[str] = getattr(model, _NEW, [])
    return found


def _keep_new(model: Any, new: list[str], name: str) -> None:
    body = [key for key in new if key.startswith(model.base_model_prefix + ".") and ".pooler" not in key]
    if body:
        raise MisconfigurationException(
            f"model.pretrained={name!r} lacks {len(body)} weights of {type(model).__name__}, such as {body[0]}."
            " HINT: give a model of the same kind and size; a folder's config.json must be that of its weights."
        )
    setattr(model, _NEW, new)
    if new:
        _log.info("not in %s, newly initialized: %s", name, ", ".join(new))


def fill_weights(model: Any, name: str) -> None:
    """Load the weights in ``name`` into ``model``; a head that they lack is newly initialized.

    Raises:
        MisconfigurationException: As :func:`load_model`.

    """
    if is_checkpoint(name):
        _take_body(model, name)
    else:
        model.load_state_dict(load_model(type(model), name, model.config).state_dict())


def _take_body(model: Any, name: str) -> Any:
    """Load the weights that a checkpoint and ``model`` share; the body must be complete, the heads may be new."""
    checkpoint, prefix = _checkpoint(name), "model."
    if LORA_KEY in checkpoint:
        raise MisconfigurationException(
            f"model.pretrained={name!r} holds LoRA adapters and no full model."
            " HINT: give the model folder of its run, in which they are merged."
        )
    weights = {key[len(prefix) :]: value for key, value in checkpoint["state_dict"].items() if key.startswith(prefix)}
    own: dict[str, torch.Tensor] = model.state_dict()
    fitting = {key: value for key, value in weights.items() if key in own and own[key].shape == value.shape}
    _keep_new(model, sorted(own.keys() - fitting.keys()), name)
    model.load_state_dict(fitting, strict=False)
    return model


def load_tokenizer(name: str) -> Any:
    """The fast tokenizer in ``name``: a folder, hub name or checkpoint.

    Raises:
        MisconfigurationException: If there is none, or it is not a fast tokenizer.

    """
    if is_checkpoint(name):
        return tokenizer_from_files(_checkpoint(name)[TOKENIZER_KEY])
    with _loading(name):
        tokenizer = _auto_tokenizer(name)
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):  # transformers 5 makes one up for a folder without
        raise MisconfigurationException(
            f"the tokenizer of {name!r} has no vocabulary: all words would be unknown. HINT: add the files of the model's"
            " tokenizer to the folder, or set data.tokenizer."
        )
    if not tokenizer.is_fast:
        raise MisconfigurationException(
            f"the tokenizer of {name!r} is not a fast tokenizer, so it cannot map tokens to characters."
            " HINT: install `tokenizers` and `sentencepiece`, or convert it with AutoTokenizer(..., use_fast=True)."
        )
    return tokenizer


def _auto_tokenizer(name: str) -> Any:
    """As ``AutoTokenizer``; transformers 4 also loads a tokenizer that 5 saved under a class name of its own."""
    try:
        return AutoTokenizer.from_pretrained(name)
    except ValueError as error:
        if "TokenizersBackend" not in str(error):
            raise
        return PreTrainedTokenizerFast.from_pretrained(name)


def tokenizer_files(tokenizer: Any) -> dict[str, str]:
    """File name -> text of the tokenizer's files, for a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(tokenizer, Path(folder))
        paths = sorted(path for path in Path(folder).iterdir() if path.suffix in (".json", ".txt"))
        return {path.name: path.read_text(encoding="utf-8") for path in paths}


def tokenizer_from_files(files: Mapping[str, str]) -> Any:
    """The tokenizer of :func:`tokenizer_files`."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        return _auto_tokenizer(folder)


def check_length(config: PretrainedConfig, length: int, option: str) -> None:
    """Refuse sequences that are longer than the model's position embeddings.

    Raises:
        MisconfigurationException: If ``length``, in tokens, exceeds them.

    """
    # RoBERTa counts positions from its padding token's id on, so two of them are never used.
    offset = config.pad_token_id + 1 if config.model_type in ("roberta", "xlm-roberta", "camembert") else 0
    limit = getattr(config, "max_position_embeddings", length + offset) - offset
    if length > limit:
        raise MisconfigurationException(
            f"{option}={length} was set, but the model has {limit} position embeddings. HINT: set at most {limit}."
        )


def _checkpoint(name: str) -> dict[str, Any]:
    path = Path(name)
    if not path.is_file():
        raise MisconfigurationException(
            f"model.pretrained={name!r} was set, but there is no such file in {Path.cwd()}."
            " HINT: give a recipe's .ckpt, a Hugging Face folder, or a hub name."
        )
    return _read_checkpoint(name, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=1)
def _read_checkpoint(name: str, _: int) -> dict[str, Any]:
    """Read a checkpoint once for configuration, tokenizer and weights; again if its modification time changes."""
    with _loading(name):
        checkpoint: dict[str, Any] = torch.load(name, map_location="cpu", weights_only=True, mmap=True)
    missing = [key for key in (CONFIG_KEY, TOKENIZER_KEY, "state_dict") if key not in checkpoint]
    if missing:
        raise MisconfigurationException(
            f"model.pretrained={name!r} was set, but that checkpoint has no {', '.join(missing)}."
            " HINT: only checkpoints that a recipe of this package wrote can be loaded this way; export others"
            " with save_pretrained."
        )
    return checkpoint


@contextlib.contextmanager
def _loading(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of a damaged file, whatever its library raises
        raise MisconfigurationException(
            f"{name!r} was given, but no model or tokenizer can be loaded from it ({first_line(error)})."
            " HINT: give a Hugging Face folder, a hub name (with network access), or the .ckpt of a recipe; --pretrained"
            " null trains a small model from scratch."
        ) from error


def seeded(seed: int, build: Any) -> nn.Module:
    """The module that ``build()`` returns, with random numbers that do not depend on those drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module: nn.Module = build()
        return module


def plain(value: Any) -> Any:
    """``value`` converted to plain containers and values, which load with ``weights_only=True``."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(entry) for entry in value]
    return str(value) if isinstance(value, torch.dtype) else value
