# SPDX-License-Identifier: Apache-2.0
"""Serves the model on SageMaker: the four functions that its PyTorch inference toolkit looks for.

The request's ``parameters`` are those of transformers' pipeline, and two of the last validation's findings, which are
in the model's configuration: ``"calibrated": true`` divides the model's outputs by the fitted temperature, and
``"best_threshold": true`` decides between two classes where F1 was best.
"""

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
    parameters = dict(request.get("parameters") or {})
    calibrated, decided = (bool(parameters.pop(name, False)) for name in ("calibrated", "best_threshold"))
    if not calibrated and not decided:
        return model(request["inputs"], **parameters)
    inputs, top_k = request["inputs"], parameters.pop("top_k", 1)
    is_one = not isinstance(inputs, list)
    rows = model([inputs] if is_one else inputs, **parameters, top_k=None, function_to_apply="none")
    answers = [_answer(row, model.model.config, calibrated, decided)[:top_k] for row in rows]
    # As the pipeline answers: without top_k one class for each input.
    if "top_k" not in (request.get("parameters") or {}):
        return [answer[0] for answer in answers]
    return answers[0] if is_one else answers


def output_fn(prediction: Any, accept: str = "application/json", context: Any = None) -> str:
    """Encode the answer."""
    return json.dumps(prediction)


def _answer(row: list[dict[str, Any]], config: Any, calibrated: bool, decided: bool) -> list[dict[str, Any]]:
    """Classes with their probabilities, the chosen one first."""
    found = getattr(config, "calibration", None)
    if found is None:
        raise ValueError("calibrated or best_threshold was requested, but the model was exported without a validation")
    outputs = {entry["label"]: entry["score"] for entry in row}
    shown = _probabilities(outputs, config, found["temperature"] if calibrated else 1.0)
    best_first = sorted(shown.items(), key=lambda entry: -entry[1])
    ranked = [{"label": name, "score": score} for name, score in best_first]
    if decided:
        if "threshold" not in found or len(outputs) != 2:
            raise ValueError("best_threshold was requested, but only models with two classes have one")
        second = config.id2label[1]
        is_second = _probabilities(outputs, config, 1.0)[second] >= found["threshold"]
        ranked.sort(key=lambda entry: (entry["label"] == second) != is_second)
    return ranked


def _probabilities(outputs: dict[str, float], config: Any, temperature: float) -> dict[str, float]:
    scaled = torch.tensor(list(outputs.values()), dtype=torch.float64) / temperature
    is_multi = config.problem_type == "multi_label_classification"
    chances = scaled.sigmoid() if is_multi else scaled.softmax(dim=0)
    return dict(zip(outputs, chances.tolist(), strict=True))
