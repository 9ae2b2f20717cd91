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

COLUMNS, ROWS, PACKED = "colwise", "rowwise", "packed colwise"
"""Styles of matrices; the last one is of query, key and value in one matrix, one after the other."""
OF_HEADS = (COLUMNS, ROWS, PACKED)
"""Styles after which a rank has some of the heads, or of the hidden units, of the module that the matrix is part of."""
SUMMED, SUMMED_TAIL, PER_HEAD = "summed", "summed tail", "per head"
"""Styles of modules that every rank has all of, but uses for its own heads only, so that gradients are summed: those of the
parameters (the norm of each head's queries), of the output's end (the rotary part of a key that all heads share), or of
parameters with a value for each head, of which a rank uses its own."""
BY_INPUTS, BY_DIMENSION = "by inputs", "by dimension"
"""Styles of a single linear layer, which splits its input and all-reduces, and of an embedding, which gathers dimensions."""

_RULE: Mapping[str, str] = {
    r"(q|k|v|query|key|value)(_proj|_lin)?": COLUMNS,
    r"(global_)?relative_attention_bias": COLUMNS,
    r"distance_embedding": SUMMED,
    r"(o|o_proj|out_proj|out_lin)": ROWS,
    r"attention\.dense": ROWS,
    r"attn\.q_attn": COLUMNS,
    r"attn\.c_attn": PACKED,
    r"attn\.c_proj": ROWS,
    r"(fc1|lin1|c_fc|fc_in|wi|wi_[01]|up_proj|gate_proj|dense_h_to_4h|intermediate\.dense)": COLUMNS,
    r"albert_layers\.\d+\.ffn": COLUMNS,
    r"(fc2|lin2|mlp\.c_proj|fc_out|wo|down_proj|dense_4h_to_h|output\.dense|ffn_output)": ROWS,
}
"""Suffixes of the names of modules in an attention and in a feed-forward network -> how those are sharded."""

FAMILIES = frozenset(
    (
        *("albert", "bart", "bert", "bert-generation", "biogpt", "blenderbot", "blenderbot-small", "bloom"),
        *("camembert", "data2vec-text", "deberta-v2", "deit", "dinov2", "distilbert", "electra", "ernie"),
        *("flaubert", "gpt-sw3", "gpt2", "gpt_neo", "gptj", "gte", "ijepa", "jina_embeddings_v3", "layoutlm"),
        *("longt5", "m2m_100", "marian", "markuplm", "mbart", "megatron-bert", "mpnet", "mt5", "nllb-moe"),
        *("nomic_bert", "openai-gpt", "opt", "pegasus", "persimmon", "plbart", "rembert", "roberta"),
        *("roberta-prelayernorm", "roc_bert", "roformer", "switch_transformers", "t5", "tapas", "umt5", "vit"),
        *("vit_msn", "whisper", "xglm", "xlm", "xlm-roberta", "xlm-roberta-xl", "yoso"),
    )
)
"""transformers' ``model_type`` of the families that are sharded by these names.

A name does not say what the code between the two matrices does; for these, ``tests.distributed.families`` compares the
gradient of each parameter with that of one process. The decoders that transformers has plans for follow those.
"""


def tensor_plan(root: nn.Module, degree: int) -> dict[str, str]:
    """Name of a module -> ``colwise``, ``rowwise``, ``summed`` or ``summed tail``.

    Each transformers model within ``root`` follows its own plan; those without one, such as the vision half of a model of
    images and text, stay complete on each rank, if another one is sharded.

    Args:
        root: Module that contains a transformers model of one of the :data:`FAMILIES`, or one with its own plan
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
            f"tensor_parallel_degree={degree} was set, but there is no plan for {kinds[0]}. HINT: use"
            " sharded_data_parallel_degree or partitions instead; docs/model-parallel.md lists the families that have one."
        )
    return found


def _plan_models(module: nn.Module, path: str, degree: int, found: dict[str, str], kinds: list[str]) -> None:
    """Add the plan of a transformers model with its own plan, or else of those within ``module``, to ``found``."""
    config: Any = getattr(module, "config", None)
    if hasattr(config, "model_type"):
        kinds.append(config.model_type)
        own = _patterns(getattr(config, "base_model_tp_plan", None))
        patterns = _RULE if config.model_type in FAMILIES else own
        prefix = f"{path}." if path else ""
        plan = _matching(module, prefix, patterns) if patterns else {}
        if plan:
            _add_shared_by_heads(module, path, config, plan)
            _check_sizes(module, prefix, config, plan, degree)
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
    split = {_owner(path) for path, style in plan.items() if style in (COLUMNS, PACKED)}
    beside = split | set(map(_owner, split))  # as BERT's ``attention.output.dense`` is of ``attention.self.query``
    return {
        path: style
        for path, style in plan.items()
        if style in (COLUMNS, PACKED) or _owner(path) in split or (style == ROWS and _owner(_owner(path)) in beside)
    }


_NORMS, _LATENT, _ACTIVATION = ("q_norm", "k_norm", "v_norm"), "kv_a_proj_with_mqa", "act_fn"
"""Modules that the plans of many models, and of all before transformers 5, do not name."""


def _add_shared_by_heads(model: nn.Module, path: str, config: Any, plan: dict[str, str]) -> None:
    """Add what heads or hidden units share, or each of them has, to a plan that shards them, and does not name it."""
    heads = getattr(config, "num_attention_heads", 1)
    for owner in dict.fromkeys([_owner(name) for name, style in plan.items() if style == COLUMNS]):
        module = model.get_submodule(owner[len(path) :].removeprefix("."))
        size = getattr(module, "head_dim", None) or getattr(config, "hidden_size", 0) // heads
        for name, child in module.named_children():
            place, shapes = f"{owner}.{name}", {tuple(one.shape) for one in child.parameters()}
            if (name in _NORMS and shapes == {(size,)}) or (name == _ACTIVATION and shapes):
                plan.setdefault(place, SUMMED)
            elif name == _LATENT:
                plan.setdefault(place, SUMMED_TAIL)
            elif config.model_type in FAMILIES and isinstance(child, nn.Linear) and place not in plan:
                raise ParallelConfigError(
                    f"tensor_parallel_degree was set, but the plan for {config.model_type} does not know {place}. HINT: use"
                    " sharded_data_parallel_degree or partitions instead, or a configuration of the model without it."
                )
        if {len(one) for one in module.parameters(recurse=False)} == {heads}:
            plan[owner] = PER_HEAD
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
    if style in (SUMMED, SUMMED_TAIL) or isinstance(module, (nn.Linear, nn.Embedding)) or hasattr(module, "nf"):
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
            " cannot be sharded. HINT: use plain LoRA of an nn.Linear (peft's LoraConfig, without DoRA or modules_to_save"
            " for it), or sharded_data_parallel_degree instead."
        )
    return {f"{path}.{name}": style for name in linears if name.partition(".")[0] in ("base_layer", own)}


def _check_sizes(model: nn.Module, prefix: str, config: Any, plan: Mapping[str, str], degree: int) -> None:
    places = [(config, what) for what in ("num_attention_heads", "num_key_value_heads", "intermediate_size")]
    for path, style in plan.items():
        if style in OF_HEADS:
            places += [(model.get_submodule(_owner(path)[len(prefix) :]), what) for what in _COUNTS]
            places += [(model.get_submodule(path[len(prefix) :]), "out_features")] if style == COLUMNS else []
    for place, what in places:
        number = getattr(place, what, None)
        if isinstance(number, int) and number % degree:
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


_COUNTS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "num_key_value_heads")
_TOTALS = ("all_head_size", "split_size", "inner_dim", "embed_dim")
"""Attributes of transformers' attention modules: numbers of heads, and numbers of elements of all heads."""


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
        is_attention = any(isinstance(getattr(module, name, None), int) for name in _COUNTS)
        for name in (*_COUNTS, *_TOTALS) if is_attention else ():
            number = getattr(module, name, None)
            if isinstance(number, int):
                before.append((module, name, number))
                setattr(module, name, number // degree)

    def undo() -> None:
        for module, name, number in before:
            setattr(module, name, number)

    return undo
