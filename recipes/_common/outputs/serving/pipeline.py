# SPDX-License-Identifier: Apache-2.0
"""Serves the model on SageMaker: the four functions that its PyTorch inference toolkit looks for."""

from __future__ import annotations

import json
from typing import Any

import torch
from transformers import pipeline

TASK: Any = "text-classification"


def model_fn(model_dir: str, context: Any = None) -> Any:
    """Load the model from the unpacked archive."""
    model = pipeline(TASK, model=model_dir, tokenizer=model_dir, device=0 if torch.cuda.is_available() else -1)
    if getattr(model.model.config, "pre_layer_norm", False):
        raise ValueError("the model was trained with pre_layer_norm, which transformers' own classes do not support")
    return model


def input_fn(body: str, content_type: str = "application/json", context: Any = None) -> dict[str, Any]:
    """Decode a request: {"inputs": ..., "parameters": {...}}."""
    if content_type.split(";")[0].strip() != "application/json":
        raise ValueError(f"content type {content_type!r} was sent, but only application/json is served")
    request = json.loads(body)
    if not isinstance(request, dict) or "inputs" not in request:
        raise ValueError('the request must be {"inputs": ..., "parameters": {...}}')
    return request


def predict_fn(request: dict[str, Any], model: Any, context: Any = None) -> Any:
    """Compute the answer."""
    return model(request["inputs"], **(request.get("parameters") or {}))


def output_fn(prediction: Any, accept: str = "application/json", context: Any = None) -> str:
    """Encode the answer."""
    return json.dumps(prediction)
