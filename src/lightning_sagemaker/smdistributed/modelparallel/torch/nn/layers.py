# SPDX-License-Identifier: Apache-2.0
"""AWS's layers that are defined as torch's are: each rank of ``TP_GROUP`` has a shard of their matrix.

They are sharded wherever the script has built them, if ``tensor_parallel_degree`` is more than 1.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn

from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.parallel.plans import BY_DIMENSION, BY_INPUTS
from lightning_sagemaker.smdistributed.modelparallel.torch.state_mod import state


class DistributedModule(nn.Module):
    """Base class of the distributed modules."""


class DistributedLinear(nn.Linear, DistributedModule):
    """``nn.Linear``, of which each rank has the columns of some input features.

    Args:
        in_features: Number of input features, a multiple of ``tensor_parallel_degree``.
        out_features: Number of output features.
        bias: Whether there is a bias; each rank has the full one.

    Raises:
        ParallelConfigError: If ``in_features`` is not divisible by ``tensor_parallel_degree``.

    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, **options: Any) -> None:
        _check("in_features", in_features)
        super().__init__(in_features, out_features, bias, **options)


class DistributedEmbedding(nn.Embedding, DistributedModule):
    """``nn.Embedding``, of which each rank has some dimensions of all vectors.

    Args:
        num_embeddings: Number of vectors.
        embedding_dim: Size of a vector, a multiple of ``tensor_parallel_degree``.
        padding_idx: As in ``nn.Embedding``.
        max_norm: Refused: no rank has full vectors.
        norm_type: Type of the norm that ``max_norm`` limits.
        scale_grad_by_freq: As in ``nn.Embedding``.
        sparse: Refused with ``tensor_parallel_degree``.
        initializer_range: Standard deviation of the normal distribution that weights are drawn from.
        **options: AWS's ``_weight`` is not taken, ``_skip_allgather`` and ``_skip_scatter_and_merge`` are refused.

    Raises:
        ParallelConfigError: If ``embedding_dim`` is not divisible, or a refused option is set.

    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: torch.Tensor | None = None,
        initializer_range: float = 0.02,
        **options: Any,
    ) -> None:
        refused = {"max_norm": max_norm, "sparse": sparse, **options}
        for name, value in refused.items():
            if value:
                raise ParallelConfigError(
                    f"smp.nn.DistributedEmbedding({name}={value!r}) was built, which this stand-in for AWS's library"
                    f" does not support. HINT: leave {name} out, or use torch's nn.Embedding."
                )
        _check("embedding_dim", embedding_dim)
        self.initializer_range = initializer_range
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, None, norm_type, scale_grad_by_freq, _weight=_weight
        )

    def reset_parameters(self) -> None:
        """Draw the weights from the normal distribution."""
        nn.init.normal_(self.weight, std=self.initializer_range)
        self._fill_padding_idx_with_zero()


def own_plan(root: nn.Module) -> dict[str, str]:
    """Path of each of AWS's layers in a model -> how it is sharded."""
    styles = {DistributedLinear: BY_INPUTS, DistributedEmbedding: BY_DIMENSION}
    return {path: styles[type(module)] for path, module in root.named_modules() if type(module) in styles}


def plain_plan(root: nn.Module, degree: int) -> dict[str, str]:
    """The same for torch's linear layers and embeddings that the script enables tensor parallelism for.

    As AWS documents, those whose size is not divisible, or whose weight another layer has too, stay whole.
    """
    uses = Counter(id(one) for module in root.modules() for one in module.parameters(recurse=False))
    enabled, found = state.module_manager.shared, {}
    for path, module in root.named_modules():
        if not enabled.get(module, False) or any(uses[id(one)] > 1 for one in module.parameters(recurse=False)):
            continue
        if type(module) is nn.Linear and module.in_features % degree == 0:
            found[path] = BY_INPUTS
        is_usual = type(module) is nn.Embedding and module.max_norm is None and not module.sparse
        if is_usual and module.embedding_dim % degree == 0:
            found[path] = BY_DIMENSION
    return found


def _check(name: str, size: int) -> None:
    degree = state.groups.degrees.tensor if state.initialized else 1
    if size % degree:
        raise ParallelConfigError(
            f"{name}={size} was given to a layer of smp.nn, which is not divisible by tensor_parallel_degree={degree}. HINT:"
            " choose a multiple of it."
        )
