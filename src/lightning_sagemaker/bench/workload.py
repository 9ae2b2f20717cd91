# SPDX-License-Identifier: Apache-2.0
"""The workload: a transformer's size, operations and memory, from its configuration alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lightning_sagemaker.bench.tables import model_facts


@dataclass(frozen=True)
class Model:
    """Properties of a transformer on which its speed depends.

    Attributes:
        name: Display name.
        parameters: Number of trained parameters.
        layers: Number of layers that are computed.
        hidden: Hidden size.
        heads: Number of attention heads.
        feed_forward: Width of the feed-forward part; if it is gated, a width such that it has 2 x hidden x width
            parameters.
        vocabulary: Vocabulary size.
        shared: Whether all layers share one set of weights, as ALBERT's: their gradients are complete only when the
            backward pass ends, so that their reduction cannot overlap with it.
        head_share: Share of the positions whose vocabulary logits are computed.

    """

    name: str
    parameters: float
    layers: int
    hidden: int
    heads: int
    feed_forward: int
    vocabulary: int
    shared: bool = False
    head_share: float = 1.0

    @classmethod
    def named(cls, name: str) -> Model:
        """A model of the table.

        Raises:
            LaunchError: If the table has no model of that name.

        """
        millions, *rest = model_facts(name)
        return cls(name, millions * 1e6, *rest)

    @classmethod
    def described(cls, parameters: float, layers: int, hidden: int, vocabulary: int = 30522) -> Model:
        """A transformer of the usual shape: head size 64, a feed-forward part four times the hidden size."""
        return cls("model", parameters, layers, hidden, max(1, hidden // 64), 4 * hidden, vocabulary)

    @property
    def layer_parameters(self) -> float:
        """Parameters of one layer: query, key, value and output, and the feed-forward part."""
        return 4 * self.hidden**2 + 2 * self.hidden * self.feed_forward

    def flops(self, length: int) -> float:
        """Floating-point operations of training on one sample of ``length`` tokens: forward, and twice that backward.

        Two for each weight and token, the attention scores and their products with the values (4 x length x hidden for
        each token and layer), and the vocabulary's logits where they are computed.
        """
        layer = 2 * self.layer_parameters + 4 * length * self.hidden
        head = 2 * self.hidden * self.vocabulary * self.head_share
        return 3 * length * (self.layers * layer + head)

    def activation_bytes(self, length: int, precision: str, recompute: bool) -> float:
        """Bytes kept for the backward pass per sample and layer (Korthikanti et al. 2022, without attention scores)."""
        per_token = 2 * self.hidden if recompute else 34 * self.hidden
        return per_token * length * (1.0 if "16" in precision else 2.0)


@dataclass(frozen=True)
class Workload:
    """A training run.

    Attributes:
        model: The model.
        length: Tokens per sample.
        batch: Samples per micro-batch on one replica.
        accumulation: Micro-batches per optimizer step.
        precision: Value of ``Trainer(precision=...)``.
        samples: Number of samples to train on; None to predict the speed only.
        workers: Loader workers per rank; None for the vCPUs of a host divided by its ranks.
        feed_seconds: Seconds one vCPU takes to load a sample; None for the fitted default.
        reads_all: Whether each rank reads all ranks' samples and keeps its own, as a sharded ``IterableDataset`` does.
        gradient_bytes: Bytes of gradients per parameter.
        overlaps: Whether gradients are reduced during the backward pass, as DDP does; never for shared layers.
        recompute: Whether activations are recomputed in the backward pass (activation checkpointing).

    """

    model: Model
    length: int = 128
    batch: int = 16
    accumulation: int = 1
    precision: str = "bf16-mixed"
    samples: float | None = None
    workers: int | None = None
    feed_seconds: float | None = None
    reads_all: bool = False
    gradient_bytes: int = 4
    overlaps: bool = True
    recompute: bool = False

    @property
    def all_reduced(self) -> float:
        """Bytes of gradients that are all-reduced in each step."""
        return self.model.parameters * self.gradient_bytes

    @property
    def buckets(self) -> int:
        """Number of DDP's buckets, of 25 MiB each."""
        return math.ceil(self.all_reduced / (25 * 2**20))
