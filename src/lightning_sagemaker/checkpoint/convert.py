# SPDX-License-Identifier: Apache-2.0
"""Convert a sharded checkpoint to one file, or any checkpoint to a Hugging Face folder.

Neither needs a process group.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING

import torch
from torch.distributed.checkpoint.api import CheckpointException

from lightning_sagemaker.checkpoint.atomic_write import CheckpointError, atomic_write
from lightning_sagemaker.checkpoint.export import export_huggingface
from lightning_sagemaker.checkpoint.trainer_format import read_checkpoint

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint


def _read(path: Path) -> Checkpoint:
    """Read a checkpoint; raises one sentence for torch's errors about damaged or foreign files."""
    try:
        return read_checkpoint(path)
    except CheckpointError:
        raise
    except (CheckpointException, EOFError, KeyError, RuntimeError, ValueError, UnpicklingError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint ({reason}). HINT: it is damaged, was not written by Lightning, or holds"
            " objects other than tensors and plain containers; use another one."
        ) from error


def to_file(path: Path, target: Path) -> None:
    """Write a sharded checkpoint as one file, atomically.

    Raises:
        CheckpointError: If it cannot be read or written.

    """
    checkpoint = _read(path)
    if target.is_dir():
        raise CheckpointError(f"{target} is a directory. HINT: pass a file, such as {target / 'single.ckpt'}.")
    with atomic_write(target) as file:
        torch.save(checkpoint, file)


def to_huggingface(path: Path, target: Path, like: str, architecture: str | None = None) -> None:
    """Write a checkpoint's transformers model so that ``from_pretrained`` can load it.

    Args:
        path: Checkpoint file, or folder of a sharded checkpoint.
        target: Output folder.
        like: Folder or hub name of the configuration and the tokenizer.
        architecture: Name of a transformers class. Default: the one in the configuration.

    Raises:
        CheckpointError: If the checkpoint holds no such model.

    """
    import transformers

    config = transformers.AutoConfig.from_pretrained(like)
    name = architecture or next(iter(config.architectures or ()), None)
    kind = getattr(transformers, name or "", None)
    if kind is None:
        raise CheckpointError(
            f"{like} does not name a transformers architecture ({name}). HINT: pass --architecture, such as"
            " BertForSequenceClassification."
        )
    with torch.device("meta"):
        model = kind(config)
    state = _of_model(_read(path)["state_dict"], model, path)
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    tokenizer = None
    with contextlib.suppress(OSError, ValueError):  # there is no tokenizer
        tokenizer = transformers.AutoTokenizer.from_pretrained(like)
    export_huggingface(model, target, tokenizer)


def _of_model(state: dict[str, torch.Tensor], model: torch.nn.Module, path: Path) -> dict[str, torch.Tensor]:
    """The entries of ``model`` in a LightningModule's state, by their names in the model."""
    wanted = {name: value.shape for name, value in model.state_dict().items()}
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    needed = wanted.keys() - tied
    prefixes = {""} | {name[: -len(some)] for some in needed for name in state if name.endswith(f".{some}")}
    found = max(prefixes, key=lambda prefix: sum(prefix + name in state for name in needed))
    missing = sorted(name for name in needed if found + name not in state)
    if missing:
        raise CheckpointError(
            f"{path} lacks {len(missing)} of {len(needed)} weights of {type(model).__name__}, such as {missing[0]}. HINT:"
            " give the trained model with --like and --architecture."
        )
    taken = {name: state[found + name] for name in wanted if found + name in state}
    other = [name for name, value in taken.items() if value.shape != wanted[name]]
    if other:
        raise CheckpointError(
            f"{path} has {found}{other[0]} of shape {tuple(taken[other[0]].shape)}, and {type(model).__name__} of"
            f" {tuple(wanted[other[0]])}. HINT: pass the configuration with which it was trained."
        )
    return taken
