# SPDX-License-Identifier: Apache-2.0
"""The option ``ckpt_path``: a checkpoint of the recipe, whose settings of the model options override."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lightning_sagemaker.checkpoint.integrity import META, first_line

_LIGHTNINGS = ("last", "hpc")
"""Names that Lightning resolves itself, in the folder of the run."""


def check_checkpoint(name: str, recipe: str, known: Iterable[str]) -> None:
    """Refuse what is no checkpoint of the recipe, before the data is prepared.

    Args:
        name: Value of the option.
        recipe: Name of the recipe.
        known: Names of the options.

    Raises:
        MisconfigurationException: If it cannot be used.

    """
    path = Path(name)
    if name in _LIGHTNINGS or (":" in name and not path.exists()):
        return
    hint = f"HINT: a run's checkpoints are in runs/{recipe}/latest/checkpoints."
    if not path.exists():
        where = f"there is no such file in {Path.cwd()}"
        raise MisconfigurationException(f"ckpt_path={name!r} was set, but {where}. {hint}")
    if path.is_dir():
        if not (path / META).is_file():
            raise MisconfigurationException(
                f"ckpt_path={name!r} was set, which is a folder, and no sharded checkpoint. {hint}"
            )
        return
    try:
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # of a damaged file, whatever torch raises
        raise MisconfigurationException(
            f"ckpt_path={name!r} was set, which cannot be read as a checkpoint ({first_line(error)}). HINT: it is damaged,"
            " or holds objects other than tensors and plain containers; give another one."
        ) from error
    if not isinstance(content, Mapping) or "state_dict" not in content:
        raise MisconfigurationException(f"ckpt_path={name!r} was set, which holds no state_dict. {hint}")
    own = {".".join(option.split(".")[:2]) for option in known}
    settings = content.get("hyper_parameters", {})
    if other := sorted(key for key in settings if key[0] != "_" and f"model.{key}" not in own):
        raise MisconfigurationException(
            f"ckpt_path={name!r} was set, which is of another recipe than {recipe}: it has model.{other[0]}. HINT: give"
            " a checkpoint of this recipe; --pretrained takes the weights of others."
        )


def model_options(words: Iterable[str], options: Any) -> dict[str, Any]:
    """Options of the model in the words of a command line: name -> value, of nested ones the outermost.

    Args:
        words: Command line, as ``normalize`` returns it.
        options: The parsed options.

    """
    names = (word.partition("=")[0] for word in words if word.startswith("--model."))
    return {name: options[name] for name in (".".join(one[2:].split(".")[:2]).rstrip("+") for one in names)}
