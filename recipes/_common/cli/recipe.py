# SPDX-License-Identifier: Apache-2.0
"""Description of a recipe; imports no torch, so that help is instant."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from lightning_sagemaker.recipes._common.cli.arguments import Names

if TYPE_CHECKING:
    from lightning.pytorch import LightningDataModule, LightningModule


_T = TypeVar("_T")


@dataclass(frozen=True)
class Recipe:
    """Description of a recipe.

    Args:
        name: Name in ``lightning-sagemaker run NAME``.
        folder: Folder with the configurations.
        model: LightningModule class or its path; its ``model`` is the transformers model.
        data: DataModule class or its path; has ``load_tokenizer()``.
        names: Option names.

    """

    name: str
    folder: Path
    model: type[LightningModule] | str
    data: type[LightningDataModule] | str
    names: Names

    @property
    def model_class(self) -> type[LightningModule]:
        """The class of the model, imported now if it was given by its path."""
        return _load(self.model)

    @property
    def data_class(self) -> type[LightningDataModule]:
        """The class of the data, imported now if it was given by its path."""
        return _load(self.data)


def _load(given: type[_T] | str) -> type[_T]:
    if not isinstance(given, str):
        return given
    module, _, name = given.rpartition(".")
    found: type[_T] = getattr(import_module(module), name)
    return found
