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
SUMMED, SUMMED_TAIL = "summed", "summed tail"
"""Styles of modules that every rank has all of, but uses for its own heads only, so that gradients are summed: those of the
parameters (the norm of each head's queries), or of the output's end (the rotary part of a key that all heads share)."""
BY_INPUTS, BY_DIMENSION = "by inputs", "by dimension"
"""Styles of a single linear layer, which splits its input and all-reduces, and of an embedding, which gathers dimensions."""

_ENCODER = {
    r"encoder\.layer\.\d+\.attention\.self\.(query|key|value)": COLUMNS,
    r"encoder\.layer\.\d+\.attention\.self\.distance_embedding": SUMMED,
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
    """Name of a module -> ``colwise``, ``rowwise``, ``summed`` or ``summed tail``.

    Each transformers model within ``root`` follows its own plan; those without one, such as the vision half of a model of
    images and text, stay complete on each rank, if another one is sharded.

    Args:
        root: Module that contains a transformers model of a type in :data:`PLANS`, or one with its own plan
            (``base_model_tp_plan``, the decoder families).
        degree: Number of ranks that each matrix is sharded across.

    Raises:
        ParallelConfigError: If there is no plan, heads or hidden units are not divisible, or a matrix is within an adapter
            that cannot be sharded.

    """
    found: dict[str, str] = {}
    kinds: list[str] = []
    _plan_models(root, "", degree, found, kinds)
    if not kinds:
        raise ParallelConfigError(
            f"tensor_parallel_degree={degree} was set, but {type(root).__name__} contains no transformers model. HINT: use"
            " sharded_data_parallel_degree or partitions."
        )
    if not found:
        raise ParallelConfigError(
            f"tensor_parallel_degree={degree} was set, but there is no plan for {kinds[0]}. HINT: supported are"
            f" {', '.join(PLANS)} and the decoders that transformers has plans for; use"
            " sharded_data_parallel_degree or partitions for others."
        )
    return found


def _plan_models(module: nn.Module, path: str, degree: int, found: dict[str, str], kinds: list[str]) -> None:
    """Add the plan of a transformers model with its own plan, or else of those within ``module``, to ``found``."""
    config: Any = getattr(module, "config", None)
    if hasattr(config, "model_type"):
        kinds.append(config.model_type)
        patterns = PLANS.get(config.model_type) or _patterns(getattr(config, "base_model_tp_plan", None))
        plan = _matching(module, f"{path}." if path else "", patterns) if patterns else {}
        if plan:
            _add_shared_by_heads(module, path, config, plan)
            _check_sizes(config, degree)
            found.update(plan)
            return
    for name, child in module.named_children():
        _plan_models(child, f"{path}.{name}" if path else name, degree, found, kinds)


def _matching(model: nn.Module, prefix: str, patterns: Mapping[str, str]) -> dict[str, str]:
    plan: dict[str, str] = {}
    for path, module in model.named_modules():
        for pattern, style in patterns.items():
            if re.search(rf"(^|\.){pattern}$", path):
                plan |= _placed(module, prefix + path, style)
    split = {_owner(path) for path, style in plan.items() if style == COLUMNS}
    return {path: style for path, style in plan.items() if style in (COLUMNS, ROWS) or _owner(path) in split}


_NORMS, _LATENT = ("q_norm", "k_norm", "v_norm"), "kv_a_proj_with_mqa"
"""Modules that the plans of many models, and of all before transformers 5, do not name."""


def _add_shared_by_heads(model: nn.Module, path: str, config: Any, plan: dict[str, str]) -> None:
    """Add what the heads of an attention share to a plan that shards them, and does not name it."""
    heads = getattr(config, "num_attention_heads", 1)
    size = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 0) // heads
    for owner in dict.fromkeys([_owner(name) for name, style in plan.items() if style == COLUMNS]):
        attention = model.get_submodule(owner[len(path) :].removeprefix("."))
        for name, module in attention.named_children():
            place, shapes = f"{owner}.{name}", {tuple(one.shape) for one in module.parameters()}
            if name in _NORMS and shapes == {(size,)}:
                plan.setdefault(place, SUMMED)
            elif name == _LATENT:
                plan.setdefault(place, SUMMED_TAIL)
        if f"{owner}.q_b_proj" in plan:
            plan.pop(f"{owner}.q_a_proj", None)  # its whole output is normalized


def _owner(path: str) -> str:
    """Name of the module that a matrix, with or without an adapter, is part of."""
    return re.sub(r"\.(base_layer|lora_[AB]\.[^.]+)$", "", path).rpartition(".")[0]


def _placed(module: nn.Module, path: str, style: str) -> dict[str, str]:
    """The plan of one matrix, also where low-rank adapters (LoRA, by peft) are added to it.

    The adapter's second matrix computes columns as the matrix does, and its first one takes rows as the matrix does; the
    other one of the two is small, and complete on each rank.
    """
    if style in (SUMMED, SUMMED_TAIL) or isinstance(module, nn.Linear):
        return {path: style}
    linears = {name: found for name, found in module.named_modules() if isinstance(found, nn.Linear)}
    if not linears:
        return {}  # experts, whose matrices are not linear layers
    own = "lora_B" if style == COLUMNS else "lora_A"
    parts = {name.partition(".")[0] for name, _ in module.named_parameters()}
    held = {f"{name}.{kind}" for name in linears for kind in ("weight", "bias")}
    if not parts <= {"base_layer", "lora_A", "lora_B"} or not {name for name, _ in module.named_parameters()} <= held:
        raise ParallelConfigError(
            f"tensor_parallel_degree was set, but {path} is a {type(module).__module__}.{type(module).__name__}, which"
            " cannot be sharded. HINT: use plain LoRA (peft's LoraConfig, without DoRA or modules_to_save for it), or"
            " sharded_data_parallel_degree instead."
        )
    return {f"{path}.{name}": style for name in linears if name.partition(".")[0] in ("base_layer", own)}


def _check_sizes(config: Any, degree: int) -> None:
    for what in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        number = getattr(config, what, None)
        if number is not None and number % degree:
            raise ParallelConfigError(
                f"tensor_parallel_degree={degree} was set, but the model has {what}={number}. HINT: set a divisor of it."
            )


_STYLES = {
    "colwise": COLUMNS,
    "rowwise": ROWS,
    "replicated_with_grad_allreduce": SUMMED,
    "mla_kv_a_proj": SUMMED_TAIL,
}
"""transformers' names of styles -> ours."""


def _patterns(plan: Mapping[str, str] | None) -> dict[str, str]:
    """Transformers' own plan as patterns, in which ``*`` stands for a number."""
    return {
        re.escape(path).replace(r"\*", r"\d+"): _STYLES[style]
        for path, style in (plan or {}).items()
        if style in _STYLES
    }


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
    for owner in {_owner(path) for path in shared}:
        module = root.get_submodule(owner)
        for name in _COUNTS:
            number = getattr(module, name, None)
            if isinstance(number, int):
                before.append((module, name, number))
                setattr(module, name, number // degree)

    def undo() -> None:
        for module, name, number in before:
            setattr(module, name, number)

    return undo
