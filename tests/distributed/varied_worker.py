# SPDX-License-Identifier: Apache-2.0
"""What every rank runs: batches of the shapes that people's loaders give, and models that branch on what they compute.

``varied_worker.py OUT_DIR STAGES [CASE ...]`` writes ``OUT_DIR/rank-R.json``: case -> losses, metrics, weights, predictions.
"""

import json
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.utilities import grad_norm
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, default_collate

import lightning_sagemaker  # noqa: F401 - registers the strategies
from lightning_sagemaker.strategies.model_parallel import SMPStrategy

sys.path.insert(0, str(Path(__file__).parent))
from lightning_model import Losses
from place import PLACE

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
OUT, STAGES_PER_RANK = Path(sys.argv[1]), int(sys.argv[2])
WORLD = int(os.environ.get("WORLD_SIZE", 1))
SAMPLES, BATCH, LONGEST = 22, 8, 9


def is_part(rows) -> bool:
    return WORLD == 1 or len(rows) < BATCH


class Layers(nn.Module):
    def __init__(self, make=lambda: nn.Sequential(nn.Linear(16, 16), nn.Tanh())) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 16), nn.Linear(16, 5)
        self.blocks = nn.ModuleList(make() for _ in range(4))

    def forward(self, ids, mask=None):
        hidden = self.embedding(ids)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden if mask is None else hidden * mask[..., None])


class Collated(LightningModule):
    """A dict of tensors; others change what is collated, and how a step takes it."""

    model = Layers

    def __init__(self) -> None:
        super().__init__()
        self.net = self.model()

    def take(self, batch):
        """The tensors of a batch."""
        return batch

    def loss(self, batch):
        taken = self.take(batch)
        logits = self.net(taken["ids"], taken["mask"]).transpose(1, 2)
        return nn.functional.cross_entropy(logits, taken["labels"], reduction="none").mean()

    def training_step(self, batch, _):
        return self.loss(batch)

    def validation_step(self, batch, _):
        self.log("val_loss", self.loss(batch), batch_size=1)

    def predict_step(self, batch, _):
        taken = self.take(batch)
        return self.net(taken["ids"], taken["mask"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.3)

    @staticmethod
    def collate(rows):
        return default_collate(rows)


class Popped(Collated):
    """A tokenizer's batch, of which a step takes things away, adds others, and changes them in place."""

    def take(self, batch):
        labels = batch.pop("labels")
        labels[batch["mask"] == 0] = 1
        batch["ids"].add_(1)
        batch["extra"] = labels
        return {"ids": batch["ids"], "mask": batch.pop("mask"), "labels": labels}

    @staticmethod
    def collate(rows):
        return transformers.BatchEncoding(default_collate(rows))


@dataclass
class Columns:
    ids: Tensor
    mask: Tensor
    labels: Tensor


class Dataclass(Collated):
    def take(self, batch):
        assert is_part(batch.ids)
        return vars(batch)

    @staticmethod
    def collate(rows):
        return Columns(**default_collate(rows))


class Named(Collated):
    """With a name and a number of each sample in lists and arrays, and numbers that are not of the samples."""

    def take(self, batch):
        assert len(batch["name"]) == len(batch["array"]) == len(batch["ids"])
        assert is_part(batch["ids"])
        assert [f"s{row[0]}" for row in batch["ids"].tolist()] == batch["name"]
        assert batch["array"].tolist() == [int(row[0]) for row in batch["ids"]]
        return batch

    @staticmethod
    def collate(rows):
        first = [int(row["ids"][0]) for row in rows]
        own = {"name": [f"s{number}" for number in first], "array": torch.tensor(first).numpy()}
        return {**default_collate(rows), **own, "scale": torch.tensor(0.5), "nothing": None}


class Ragged(Collated):
    """Samples of different lengths, not collated."""

    def rows(self, batch):
        return batch

    def take(self, batch):
        rows = self.rows(batch)
        assert is_part(rows)
        return {name: pad_sequence([row[name] for row in rows], batch_first=True) for name in rows[0]}

    def loss(self, batch):
        taken, rows = self.take(batch), self.rows(batch)
        logits = self.net(taken["ids"], taken["mask"]).transpose(1, 2)
        losses = nn.functional.cross_entropy(logits, taken["labels"], reduction="none")
        return torch.stack([loss[: len(row["ids"])].mean() for loss, row in zip(losses, rows, strict=True)]).mean()

    def predict_step(self, batch, _):
        return super().predict_step(batch, 0)[:, :3]

    @staticmethod
    def collate(rows):
        return [{name: value[: 3 + int(row["ids"][0]) % 6] for name, value in row.items()} for row in rows]


class Equal(Ragged):
    """Samples of one length, not collated: an epoch's last list is split like a full one."""

    @staticmethod
    def collate(rows):
        return rows


class Zipped(Ragged):
    """``tuple(zip(*samples))``, as detection models take them."""

    def rows(self, batch):
        return [{"ids": ids, **target} for ids, target in zip(*batch, strict=True)]

    @staticmethod
    def collate(rows):
        pairs = [(row.pop("ids"), row) for row in Ragged.collate(rows)]
        return tuple(zip(*pairs, strict=True))


class Unsplit(Collated):
    """An object of the script's own class, and a tensor that is not of the samples: one microbatch."""

    def take(self, batch):
        assert len(batch["ids"]) >= SAMPLES % BATCH
        return {**batch, "ids": batch["ids"] + batch["table"].sum()}

    @staticmethod
    def collate(rows):
        return {**default_collate(rows), "table": torch.zeros(5, dtype=torch.long)}


class Routed(nn.Module):
    """Experts that see the tokens which a router sends them, found by the numbers that it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(16, 3), nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, hidden):
        probabilities = self.router(hidden).softmax(-1)
        best, found = probabilities.argmax(-1), torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            places = (best == number).nonzero(as_tuple=True)
            if len(places[0]):
                found[places] = expert(hidden[places]) * probabilities[places][:, number : number + 1]
        return hidden + found


class Experts(Collated):
    def model(self):
        return Layers(Routed)


class Mixtral(Collated):
    """transformers' experts: multiplied in groups, of which torch knows the shapes in bfloat16 only."""

    def model(self):
        sizes = {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 4,
            "vocab_size": 50,
            "pad_token_id": 0,
        }
        heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 4, "use_cache": False}
        return transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **heads))

    def loss(self, batch):
        return self.net(input_ids=batch["ids"], labels=batch["ids"]).loss

    def predict_step(self, batch, _):
        return self.net(input_ids=batch["ids"]).logits


class XLNet(Mixtral):
    """Its attention has parameters that are not used without segments."""

    def model(self):
        sizes = {"d_model": 16, "d_inner": 16, "n_layer": 4, "n_head": 2, "vocab_size": 50, "pad_token_id": 0}
        return transformers.XLNetLMHeadModel(transformers.XLNetConfig(**sizes, dropout=0.0))


class Own(Collated):
    """Parameters of the module itself, used by the step; attributes that it changes; gradients that a hook clips."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.outputs, self.lowest = nn.Parameter(torch.ones(())), [], 99.0

    def forward(self, ids, mask):
        return self.net(ids, mask)

    def loss(self, batch):
        logits = self(batch["ids"], batch["mask"]).transpose(1, 2) * self.scale
        return nn.functional.cross_entropy(logits, batch["labels"], reduction="none").mean()

    def training_step(self, batch, _):
        loss = self.loss(batch)
        self.outputs.append({"loss": loss.detach(), "samples": len(batch["ids"])})
        self.lowest = min(self.lowest, loss.item())
        self.log("samples", float(len(batch["ids"])), on_step=False, on_epoch=True, reduce_fx="sum")
        self.log("largest_id", batch["ids"].max(), on_step=False, on_epoch=True, reduce_fx="max")
        return loss

    def on_train_epoch_end(self):
        assert self.lowest < 99
        samples = sum(output["samples"] for output in self.outputs)
        self.log("mean_loss", sum(output["loss"] * output["samples"] for output in self.outputs) / samples)

    def on_before_optimizer_step(self, _):
        self.log_dict(grad_norm(self, norm_type=2))
        self.log("norm", clip_grad_norm_(self.net.parameters(), 0.1))
        self.log("largest", nn.utils.clip_grad_norm_([*self.net.head.parameters()], 0.02, norm_type=float("inf")))


class Compiled(Collated):
    """Runs as it is: compiled code would not see that blocks are left out."""

    def model(self):
        return torch.compile(Layers(), backend="eager")


def samples() -> list[dict]:
    random = torch.Generator().manual_seed(1)
    return [
        {
            "ids": torch.randint(1, 40, (LONGEST,), generator=random),
            "mask": (torch.rand(LONGEST, generator=random) > 0.3).long(),
            "labels": torch.randint(0, 5, (LONGEST,), generator=random),
        }
        for _ in range(SAMPLES)
    ]


def run(case: type[Collated]) -> dict:
    seed_everything(0, verbose=False)
    losses = Losses()
    parameters = {"partitions": 2, "microbatches": 2, "ddp": True}
    trainer = Trainer(
        strategy="auto" if WORLD == 1 else SMPStrategy(parameters=parameters, stages_per_rank=STAGES_PER_RANK),
        **PLACE,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=1,
        callbacks=[losses],
    )
    module = case()

    def loader() -> DataLoader:
        return DataLoader(samples(), BATCH, collate_fn=case.collate)

    trainer.fit(module, loader(), loader())
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    found = {"losses": losses.values, "metrics": metrics}
    found["weights"] = {name: value.double().sum().item() for name, value in module.state_dict().items()}
    found["predictions"] = torch.cat(trainer.predict(module, loader())).double().sum((1, 2)).tolist()
    return found


def main() -> None:
    torch.set_num_threads(1)
    cases = [Collated, Popped, Dataclass, Named, Ragged, Equal, Zipped, Unsplit, Experts, Mixtral, XLNet, Own, Compiled]
    if not hasattr(torch.compiler, "set_stance"):  # before torch 2.6 compiled modules are refused
        cases.remove(Compiled)
    chosen = sys.argv[3:] or [case.__name__ for case in cases]
    found = {case.__name__: run(case) for case in cases if case.__name__ in chosen}
    (OUT / f"rank-{os.environ.get('RANK', 0)}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
