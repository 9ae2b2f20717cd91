# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters (Hu et al., 2021, "LoRA") by peft: checkpoints hold trained weights only, exports are merged."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn

from lightning_sagemaker.recipes._common.modules.freezing import count_weights, matching, split_names

_BASE, _DOWN, _UP = ".base_layer.weight", ".lora_A.default.weight", ".lora_B.default.weight"
"""Ends of peft's names of a layer's own weights and of the two matrices of its adapter."""


@dataclass(frozen=True)
class LoRA:
    """Adapters on the linear layers below a model's head; they and the head are trained.

    Args:
        rank: Rank of the adapters' matrices.
        alpha: Adapters' outputs are multiplied by ``alpha / rank``. Default: twice the rank.
        dropout: Dropout of the adapters' inputs.
        target_modules: Names of linear layers, such as ``query,value``. Default: all below the head.

    Raises:
        MisconfigurationException: If a value is out of range.

    """

    rank: int = 8
    alpha: float | None = None
    dropout: float = 0.0
    target_modules: list[str] | str | None = None

    def __post_init__(self) -> None:
        if self.rank < 1 or not 0 <= self.dropout < 1 or (self.alpha is not None and self.alpha <= 0):
            raise MisconfigurationException(
                f"model.lora.rank={self.rank}, .alpha={self.alpha}, .dropout={self.dropout} were set."
                " HINT: rank must be at least 1, alpha positive, and dropout in [0, 1)."
            )

    @property
    def scale(self) -> float:
        """Factor of an adapter's output: ``alpha / rank``."""
        return (2.0 * self.rank if self.alpha is None else self.alpha) / self.rank


def require_peft() -> None:
    """Check that peft is installed.

    Raises:
        ModuleNotFoundError: If not; the message says what to install.

    """
    if importlib.util.find_spec("peft") is None:
        raise ModuleNotFoundError(
            "model.lora was set, which needs peft, not installed here. HINT: pip install 'lightning-sagemaker[lora]'."
        )


def add_adapters(model: Any, lora: LoRA) -> str:
    """Put adapters into a transformers model, in place, and freeze all other weights except its head.

    ALBERT's layers share their weights, and so their adapters.

    Returns:
        A line that says how many weights are trained.

    Raises:
        MisconfigurationException: If a name matches no linear layer.

    """
    from peft import LoraConfig, inject_adapter_in_model  # seconds to import

    body = f"{model.base_model_prefix}."
    linear = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and name.startswith(body)]
    wanted = linear
    if lora.target_modules is not None:
        words = split_names(lora.target_modules)
        wanted = [name for word in words for name in matching(word, linear, "model.lora.target_modules")]
    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.scale * lora.rank,  # type: ignore[arg-type] # any number
        lora_dropout=lora.dropout,
        target_modules=sorted(set(wanted)),
    )
    inject_adapter_in_model(settings, model)
    for name, parameter in model.named_parameters():
        if not name.startswith(body):
            parameter.requires_grad_(True)
    trained, total = count_weights(model)
    return (
        f"LoRA of rank {lora.rank}: {trained:,} of {total:,} weights are trained, the head and the adapters of"
        f" {len(set(wanted))} linear layers"
    )


def fingerprint(model: nn.Module) -> str:
    """Hash of the frozen weights."""
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            digest.update(name.encode())
            digest.update(parameter.detach().cpu().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def without_frozen(state: Mapping[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """A state dictionary without the frozen parameters; buffers stay."""
    parameters = module.named_parameters(remove_duplicate=False)  # tied weights have several entries
    frozen = {name for name, parameter in parameters if not parameter.requires_grad}
    return {name: value for name, value in state.items() if name not in frozen}


def merged(state: Mapping[str, Tensor], lora: LoRA) -> dict[str, Tensor]:
    """The state dictionary of an equivalent model without adapters."""
    result: dict[str, Tensor] = {}
    for name, value in state.items():
        if name.endswith((_DOWN, _UP)):
            continue
        if name.endswith(_BASE):
            stem = name.removesuffix(_BASE)
            added = lora.scale * (state[stem + _UP].float() @ state[stem + _DOWN].float())
            value = (value.float() + added).to(value.dtype)
        result[name.replace(".base_layer.", ".")] = value
    return result


def checkpoint_entry(lora: LoRA, base: str) -> dict[str, Any]:
    """Settings of the adapters, and ``base``, the :func:`fingerprint` of their base weights."""
    return {**asdict(lora), "base": base}


def check_entry(found: Mapping[str, Any] | None, expected: Mapping[str, Any] | None) -> None:
    """Check that a checkpoint's adapters are those of this run.

    Args:
        found: Entry of the checkpoint; ``None``: it holds a full model.
        expected: Entry of this run; ``None``: it has no adapters.

    Raises:
        MisconfigurationException: If the entries differ.

    """
    if found == expected:
        return
    if found is None:
        raise MisconfigurationException(
            "model.lora was set, but that checkpoint holds a full model without adapters."
            " HINT: start from it with --model.pretrained instead."
        )
    if expected is None:
        raise MisconfigurationException(
            f"that checkpoint holds adapters of rank {found['rank']} and no full model, and model.lora is not set."
            " HINT: give the output/config.yaml of its run with --config."
        )
    changed = {name: (found.get(name), expected[name]) for name in expected if found.get(name) != expected[name]}
    if changed.keys() == {"base"}:
        raise MisconfigurationException(
            "that checkpoint's adapters were trained on other base weights than model.pretrained (or, without it, the seed)"
            " gives now. HINT: use the settings of its run; they are in its output/config.yaml."
        )
    said = ", ".join(f"{name} {old} (now {new})" for name, (old, new) in changed.items() if name != "base")
    raise MisconfigurationException(
        f"that checkpoint's adapters have other settings: {said}. HINT: give the output/config.yaml of its run with"
        " --config."
    )
