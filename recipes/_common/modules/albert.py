# SPDX-License-Identifier: Apache-2.0
"""ALBERT's layers computed at the needed positions only, and optionally with pre-layer normalization."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.albert.modeling_albert import AlbertTransformer

PRE_LAYER_NORM = "pre_layer_norm"
"""Entry of a model's configuration: whether it uses pre-layer normalization."""


def encode(albert: Any, input_ids: Tensor, token_type_ids: Tensor | None, positions: Tensor) -> Tensor:
    """The last hidden states at some positions: those of transformers' ``AlbertModel``, in fewer operations.

    The last layer is computed at these positions only: with 20 of 128 tokens, at a third of the cost.

    Args:
        albert: An ``AlbertModel``.
        input_ids: Token ids, ``[batch, length]``, without padding.
        token_type_ids: Segment numbers of the same shape; ``None``: all 0.
        positions: Positions to compute, ``[batch, chosen]``.

    Returns:
        Hidden states, ``[batch, chosen, hidden]``.

    """
    hidden = albert.embeddings(input_ids, token_type_ids=token_type_ids)
    return _run_layers(albert.encoder, hidden, None, positions)


def place_norms(model: nn.Module) -> None:
    """Switch the encoder of ``model`` to pre-layer normalization if its configuration has :data:`PRE_LAYER_NORM`.

    As Xiong et al., 2020, "On Layer Normalization in the Transformer Architecture", which AWS used to pretrain ALBERT
    with large batches. transformers' classes do not support it: a model that was trained so needs this function.
    """
    if getattr(getattr(model, "config", None), PRE_LAYER_NORM, False):
        for module in model.modules():
            if type(module) is AlbertTransformer:
                module.__class__ = _PreNormTransformer


class _PreNormTransformer(AlbertTransformer):
    """ALBERT's encoder with pre-layer normalization; the parameters are the same."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any) -> Any:
        output: Any = _run_layers(self, hidden_states, attention_mask, None)  # transformers' types change
        return BaseModelOutput(last_hidden_state=output)


def _run_layers(encoder: Any, hidden: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor:
    config = encoder.config
    before = getattr(config, PRE_LAYER_NORM, False)
    hidden = encoder.embedding_hidden_mapping_in(hidden)
    per_group = config.num_hidden_layers / config.num_hidden_groups
    groups = [encoder.albert_layer_groups[int(number / per_group)] for number in range(config.num_hidden_layers)]
    layers = [layer for group in groups for layer in group.albert_layers]
    for layer in layers[:-1]:
        hidden = _run_layer(layer, hidden, mask, None, before)
    hidden = _run_layer(layers[-1], hidden, mask, positions, before)
    # The residual stream is normalized nowhere else; without weights, so that the parameters stay those of ALBERT.
    return functional.layer_norm(hidden, hidden.shape[-1:]) if before else hidden


def _run_layer(layer: Any, hidden: Tensor, mask: Tensor | None, positions: Tensor | None, before: bool) -> Tensor:
    attention = layer.attention
    source = attention.LayerNorm(hidden) if before else hidden
    chosen, asking = (hidden, source) if positions is None else (_take(hidden, positions), _take(source, positions))
    heads = (-1, attention.attention_head_size)  # -1: the heads of this rank, as tensor parallelism shards them
    query, key, value = (
        projection(states).unflatten(-1, heads).transpose(1, 2)
        for projection, states in ((attention.query, asking), (attention.key, source), (attention.value, source))
    )
    dropout = attention.attention_dropout.p if layer.training else 0.0
    context = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    attended: Tensor = chosen + attention.output_dropout(attention.dense(context.transpose(1, 2).flatten(2)))
    if before:
        return attended + _feed_forward(layer, layer.full_layer_layer_norm(attended))
    attended = attention.LayerNorm(attended)
    normalized: Tensor = layer.full_layer_layer_norm(_feed_forward(layer, attended) + attended)
    return normalized


def _feed_forward(layer: Any, states: Tensor) -> Tensor:
    result: Tensor = layer.ffn_output(layer.activation(layer.ffn(states)))
    return result


def _take(states: Tensor, positions: Tensor) -> Tensor:
    batch, length, size = states.shape
    starts = torch.arange(0, batch * length, length, device=positions.device)[:, None]
    chosen: Tensor = states.flatten(0, 1)[(positions + starts).flatten()].view(batch, -1, size)
    return chosen
