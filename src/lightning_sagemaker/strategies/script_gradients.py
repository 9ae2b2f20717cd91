# SPDX-License-Identifier: Apache-2.0
"""Replaces functions that a script calls on all gradients of a partitioned module, so that they cover all stages.

These are ``torch.nn.utils.clip_grad_norm_`` and Lightning's ``grad_norm``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from lightning_sagemaker._lightning import grad_norm
from lightning_sagemaker.parallel.script_clipping import ScriptClipping

if TYPE_CHECKING:
    from lightning_sagemaker.parallel.model import PipelinedModel


class ScriptGradients(ScriptClipping):
    """Replaces both functions, wherever a script refers to them.

    Args:
        pipeline: The partitioned module's stages.
        module: The module.

    """

    def __init__(self, pipeline: PipelinedModel, module: nn.Module) -> None:
        super().__init__(pipeline, module)
        self._pipeline, self._norm_by_lightning = pipeline, grad_norm
        self._replace(self._norm_by_lightning, self._norms)

    def _norms(self, module: nn.Module, norm_type: float | str, group_separator: str = "/") -> object:
        named = dict(module.named_parameters())
        own, kind = self._among_own(named.values()), float(norm_type)
        if len(own) < len(named) or kind <= 0:
            return self._norm_by_lightning(module, norm_type, group_separator)
        found = self._pipeline.grad_norms(own, kind)
        called = "grad_{}_norm{}".format
        norms = {called(kind, group_separator + name): norm for name, norm in zip(named, found, strict=True)}
        present = {name: norm for name, norm in norms.items() if not norm.isnan()}
        total = torch.linalg.vector_norm(torch.stack([*present.values()]), kind) if present else None
        return present if total is None else {**present, called(kind, "_total"): total}
