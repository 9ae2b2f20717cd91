# SPDX-License-Identifier: Apache-2.0
"""Serves the model on SageMaker: the four functions that its PyTorch inference toolkit looks for.

Without a pipeline: transformers 5 has none for this task. The answer has the form of transformers 4's.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

MAX_LENGTH, STRIDE, MAX_ANSWER_TOKENS = 384, 128, 30


def model_fn(model_dir: str, context: Any = None) -> Any:
    """Load model and tokenizer from the unpacked archive."""
    model = AutoModelForQuestionAnswering.from_pretrained(model_dir).eval()
    if getattr(model.config, "pre_layer_norm", False):
        raise ValueError("the model was trained with pre_layer_norm, which transformers' own classes do not support")
    return model.to("cuda" if torch.cuda.is_available() else "cpu"), AutoTokenizer.from_pretrained(model_dir)


def input_fn(body: str, content_type: str = "application/json", context: Any = None) -> dict[str, Any]:
    """Decode a request: {"inputs": {"question": ..., "context": ...}, "parameters": {...}}, or a list of inputs."""
    if content_type.split(";")[0].strip() != "application/json":
        raise ValueError(f"content type {content_type!r} was sent, but only application/json is served")
    request = json.loads(body)
    inputs = request.get("inputs") if isinstance(request, dict) else None
    entries = inputs if isinstance(inputs, list) else [inputs]
    if not all(isinstance(entry, dict) and {"question", "context"} <= entry.keys() for entry in entries):
        raise ValueError('the request must be {"inputs": {"question": ..., "context": ...}}')
    return dict(request)


def predict_fn(request: dict[str, Any], loaded: Any, context: Any = None) -> Any:
    """Find the answers; ``parameters`` may have ``handle_impossible_answer`` and ``max_answer_len``."""
    inputs, parameters = request["inputs"], request.get("parameters") or {}
    if isinstance(inputs, list):
        return [_answer(entry["question"], entry["context"], *loaded, **parameters) for entry in inputs]
    return _answer(inputs["question"], inputs["context"], *loaded, **parameters)


def output_fn(prediction: Any, accept: str = "application/json", context: Any = None) -> str:
    """Encode the answer."""
    return json.dumps(prediction)


@torch.inference_mode()
def _answer(
    question: str,
    context: str,
    model: Any,
    tokenizer: Any,
    handle_impossible_answer: bool = False,
    max_answer_len: int = MAX_ANSWER_TOKENS,
) -> dict[str, Any]:
    encoded = tokenizer(
        question.strip(),
        context,
        truncation="only_second",
        max_length=min(MAX_LENGTH, getattr(model.config, "max_position_embeddings", MAX_LENGTH)),
        stride=STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding=True,
        return_tensors="pt",
    )
    tensors = {name: encoded[name].to(model.device) for name in tokenizer.model_input_names if name in encoded}
    output = model(**tensors)
    inside = torch.tensor([[part == 1 for part in encoded.sequence_ids(i)] for i in range(len(encoded["input_ids"]))])
    start, end = (scores.float().cpu() for scores in (output.start_logits, output.end_logits))
    null = (start[:, 0] + end[:, 0]).min()
    start, end = (scores.masked_fill(~inside, float("-inf")) for scores in (start, end))
    length = start.shape[1]
    allowed = torch.ones(length, length, dtype=torch.bool).triu().tril(max_answer_len - 1)
    scores = (start[:, :, None] + end[:, None, :]).masked_fill(~allowed, float("-inf"))
    best = int(scores.argmax())
    window, first, last = best // length**2, best // length % length, best % length
    score = scores.flatten()[best]
    chances = torch.cat([scores.flatten(), null[None]]).softmax(dim=0)
    if handle_impossible_answer and null > score:
        return {"score": float(chances[-1]), "start": 0, "end": 0, "answer": ""}
    begin, stop = int(encoded["offset_mapping"][window, first, 0]), int(encoded["offset_mapping"][window, last, 1])
    return {"score": float(chances[best]), "start": begin, "end": stop, "answer": context[begin:stop]}
