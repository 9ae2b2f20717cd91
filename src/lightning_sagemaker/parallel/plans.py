# SPDX-License-Identifier: Apache-2.0
"""Tensor parallel plans: which matrices of a transformer are sharded by columns, and which by rows.

The plan of Megatron-LM (Shoeybi et al., 2019): query, key, value and the first matrix of the feed-forward network by
columns, so that each process has some heads and some hidden units; the matrices after them by rows, whose partial sums
are all-reduced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from lightning_sagemaker.parallel.degrees import ParallelConfigError

COLUMNS, ROWS = "colwise", "rowwise"
BY_INPUTS, BY_DIMENSION = "by inputs", "by dimension"
"""Styles of a single linear layer, which splits its input and all-reduces, and of an embedding, which gathers dimensions."""

_ENCODER = {
    r"encoder\.layer\.\d+\.attention\.self\.(query|key|value)": COLUMNS,
    r"encoder\.layer\.\d+\.attention\.output\.dense": ROWS,
    r"encoder\.layer\.\d+\.intermediate\.dense": COLUMNS,
    r"encoder\.layer\.\d+\.output\.dense": ROWS,
}
_LIKE_BERT = (
    *(
        "bert",
        "bert-generation",
        "camembert",
        "data2vec-text",
        "electra",
        "ernie",
        "layoutlm",
        "markuplm",
        "megatron-bert",
    ),
    *("rembert", "roberta", "roberta-prelayernorm", "roformer", "xlm-roberta", "xlm-roberta-xl"),
)
PLANS: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(_LIKE_BERT, _ENCODER),
    "albert": {
        r"albert_layer_groups\.\d+\.albert_layers\.\d+\.attention\.(query|key|value)": COLUMNS,
        r"albert_layer_groups\.\d+\.albert_layers\.\d+\.attention\.dense": ROWS,
        r"albert_layer_groups\.\d+\.albert_layers\.\d+\.ffn": COLUMNS,
        r"albert_layer_groups\.\d+\.albert_layers\.\d+\.ffn_output": ROWS,
    },
    "distilbert": {
        r"transformer\.layer\.\d+\.attention\.(q_lin|k_lin|v_lin)": COLUMNS,
        r"transformer\.layer\.\d+\.attention\.out_lin": ROWS,
        r"transformer\.layer\.\d+\.ffn\.lin1": COLUMNS,
        r"transformer\.layer\.\d+\.ffn\.lin2": ROWS,
    },
}
"""transformers' ``model_type`` -> suffixes of module names, and how those matrices are sharded."""


def tensor_plan(root: nn.Module, degree: int) -> dict[str, str]:
    """Name of a linear module -> ``colwise`` or ``rowwise``.

    Args:
        root: Module that contains a transformers model of a type in :data:`PLANS`, or one with its own plan
            (``base_model_tp_plan``, the decoder families).
        degree: Number of ranks that each matrix is sharded across.

    Raises:
        ParallelConfigError: If there is no plan, or heads or hidden units are not divisible.

    """
    configured = (module for module in root.modules() if hasattr(getattr(module, "config", None), "model_type"))
    model: Any = next(configured, None)
    if model is None:
        raise ParallelConfigError(
            f"tensor_parallel_degree={degree} was set, but {type(root).__name__} contains no transformers model. HINT: use"
            " sharded_data_parallel_degree or partitions."
        )
    config: Any = model.config
    own = getattr(config, "base_model_tp_plan", None)
    patterns = PLANS.get(config.model_type) or _patterns(own)
    if not patterns:
        raise ParallelConfigError(
            f"tensor_parallel_degree={degree} was set, but there is no plan for {config.model_type}. HINT: supported are"
            f" {', '.join(PLANS)} and the decoders that transformers has plans for; use"
            " sharded_data_parallel_degree or partitions for others."
        )
    for what in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        number = getattr(config, what, None)
        if number is not None and number % degree:
            raise ParallelConfigError(
                f"tensor_parallel_degree={degree} was set, but the model has {what}={number}. HINT: set a divisor of it."
            )
    plan = {}
    for path, module in root.named_modules():
        for pattern, style in patterns.items():
            if isinstance(module, nn.Linear) and re.search(rf"(^|\.){pattern}$", path):
                plan[path] = style
    return plan


def _patterns(plan: Mapping[str, str] | None) -> dict[str, str]:
    """Transformers' own plan as patterns, in which ``*`` stands for a number."""
    styles = (COLUMNS, ROWS)
    return {re.escape(path).replace(r"\*", r"\d+"): style for path, style in (plan or {}).items() if style in styles}


_COUNTS = ("num_attention_heads", "num_heads", "n_heads", "num_key_value_heads", "all_head_size")
"""Attributes of transformers' attention modules: number of heads, or number of elements of all heads."""


def count_own_heads(root: nn.Module, shared: Iterable[str], degree: int) -> Callable[[], None]:
    """Set the number of heads of attention modules to those on this process.

    Most code uses only the size of a head; code that uses the number of heads would regroup elements across heads, and
    silently compute something else.

    Args:
        root: The module.
        shared: Names of the sharded linear layers.
        degree: Number of ranks that each layer is sharded across.

    Returns:
        A function that restores the attributes.

    """
    before: list[tuple[nn.Module, str, int]] = []
    for path in {path.rpartition(".")[0] for path in shared}:
        module = root.get_submodule(path)
        for name in _COUNTS:
            number = getattr(module, name, None)
            if isinstance(number, int):
                before.append((module, name, number))
                setattr(module, name, number // degree)

    def undo() -> None:
        for module, name, number in before:
            setattr(module, name, number)

    return undo
