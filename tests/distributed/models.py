# SPDX-License-Identifier: Apache-2.0
"""Small models of the kinds that are cut into stages, without dropout, and a batch for each."""

import torch
import transformers
from torch import nn

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
GPT2 = {
    "n_embd": 32,
    "n_layer": 4,
    "n_head": 2,
    "vocab_size": 100,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "use_cache": False,
}
GPT2_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
DISTILBERT = {"dim": 32, "n_layers": 4, "n_heads": 2, "hidden_dim": 64, "vocab_size": 100}
DISTILBERT_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
T5 = {
    "d_model": 32,
    "num_layers": 2,
    "num_decoder_layers": 4,
    "num_heads": 2,
    "d_ff": 64,
    "d_kv": 16,
    "vocab_size": 100,
}
LLAMA = {name: SIZES[name] for name in list(SIZES)[:5]}


class Blocks(nn.Module):
    """A plain module: embedding, blocks in a Sequential, head."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.Tanh()) for _ in range(5)))
        self.head = nn.Linear(32, 100, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, input_ids, attention_mask, labels):
        hidden = self.blocks(self.embedding(input_ids)) * attention_mask[..., None]
        logits = self.head(hidden.mean(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Residual(nn.Module):
    """Blocks in a ModuleList with the residual around them, not in them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.Tanh()) for _ in range(4))
        self.head = nn.Linear(32, 100)

    def forward(self, input_ids, attention_mask, labels):
        hidden = self.embedding(input_ids)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        logits = self.head((hidden * attention_mask[..., None]).mean(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class PassesBy(Blocks):
    """Uses the embedding's output after every block, not through the blocks."""

    def forward(self, input_ids, attention_mask, labels):
        first = hidden = self.embedding(input_ids)
        for block in self.blocks:
            hidden = block(hidden) + first
        return {"loss": nn.functional.cross_entropy(self.head(hidden.mean(1)), labels)}


MODELS = {
    "bert": lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES)),
    "bert-mlm": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)),  # its head is tied
    "roberta": lambda: transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**SIZES)),
    "distilbert": lambda: transformers.DistilBertForSequenceClassification(
        transformers.DistilBertConfig(**DISTILBERT, **DISTILBERT_DROPOUT)
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2, **GPT2_DROPOUT)),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)),
    "t5": lambda: transformers.T5ForConditionalGeneration(  # each decoder block reads the encoder's output
        transformers.T5Config(**T5, dropout_rate=0.0, decoder_start_token_id=0)
    ),
    "plain": Blocks,
    "residual": Residual,
    "plain-tied": lambda: Blocks(tied=True),
}
SHARED = {
    "albert": lambda: transformers.AlbertForMaskedLM(transformers.AlbertConfig(**SIZES, embedding_size=16)),
}
"""Models whose layers are one block: their matrices can be shared, but not cut into stages."""
TOKEN_LABELS = ("albert", "bert-mlm", "gpt2", "llama", "t5")


def make_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    return {**MODELS, **SHARED}[name]()


LAYOUTS = {
    2: ("interleaved/1", "interleaved/2", "simple/1", "zero_bubble/1"),
    4: ("interleaved/1", "simple/1", "zero_bubble/1"),
}
"""Processes -> schedules and stages per process."""


def models_of(processes: int, layout: str) -> tuple[str, ...]:
    """The models of a layout: all in the first; a schedule does not know them, so the others have a kind of each."""
    if layout not in LAYOUTS[processes]:
        return ()
    kinds = ("bert-mlm", "gpt2", "t5", "plain") if processes == 2 else ("bert", "t5", "plain")
    return tuple(MODELS) if layout == LAYOUTS[processes][0] else kinds


def make_batch(name: str, samples: int = 8, length: int = 12, seed: int = 1) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 100, (samples, length), generator=random)
    mask = torch.ones_like(ids)
    mask[:, length - 3 :] = 0
    labels = ids.clone() if name in TOKEN_LABELS else torch.randint(0, 2, (samples,), generator=random)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}
