# SPDX-License-Identifier: Apache-2.0
"""Lightning's ``CheckpointIO`` plugins that wrap another one, such as ``AsyncCheckpointIO``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from lightning_sagemaker._compat.guard import require

if TYPE_CHECKING:
    from lightning_sagemaker._types import CheckpointIO


_MODULES = {
    "lightning": "lightning.pytorch.plugins.io.wrapper",
    "pytorch_lightning": "pytorch_lightning.plugins.io.wrapper",
}
_CLASS = "_WrappingCheckpointIO"


def complete(plugin: object, inner: CheckpointIO) -> None:
    """Set ``inner`` as the wrapped plugin of a wrapper that has none; other plugins are not changed."""
    from lightning_sagemaker._lightning import PACKAGE

    module = import_module(_MODULES[PACKAGE])
    require(module, _CLASS)
    kind = getattr(module, _CLASS)
    if isinstance(plugin, kind):
        require(kind, "checkpoint_io")
        plugin.checkpoint_io = inner  # the setter sets it on the innermost wrapper, if that has none
