# SPDX-License-Identifier: Apache-2.0
"""Two scripts as users of AWS's library wrote them, and the same training without it.

``smp_scripts.py OUT_DIR digits|language`` writes ``OUT_DIR/rank-R.json``. With one process that was started by no
launcher, nothing of ``smdistributed`` is used: that is the reference. ``digits`` is in the style of 2021 (a step with a
scaler, partial and full saves, gathered losses), ``language`` in that of 2023 (manual partition, checkpointing, data on
the first stage only, checkpoints by tag).
"""

import copy
import json
import os
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import torch
import transformers
from torch import nn

from lightning_sagemaker.smdistributed import importer

importer.install()
sys.path.insert(0, str(Path(__file__).parent))
from lightning_model import error_of  # noqa: E402
from models import make_batch, make_model  # noqa: E402

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
OUT = Path(sys.argv[1])
WHOLE = "WORLD_SIZE" not in os.environ
STEPS, BATCH = 8, 8


class Digits(nn.Module):
    """A convolution, blocks, a head: images of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(1, 4, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(144, 144), nn.ReLU()) for _ in range(4))
        self.head = nn.Linear(144, 10)

    def forward(self, images):
        hidden = torch.flatten(torch.relu(self.stem(images)), 1)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return nn.functional.log_softmax(self.head(hidden), dim=1)


class Convolutions(nn.Module):
    """The first of two nets in a row, with layers of different shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3)

    def forward(self, images):
        hidden = torch.relu(self.conv1(images))
        return torch.flatten(nn.functional.max_pool2d(torch.relu(self.conv2(hidden)), 2), 1)


class Layers(nn.Module):
    """The second."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(32, 16), nn.Linear(16, 10)

    def forward(self, hidden):
        return nn.functional.log_softmax(self.fc2(torch.relu(self.fc1(hidden))), dim=1)


class Grouped(nn.Module):
    """Two nets in a row, and no list of blocks; which of them is where is said as modules are made."""

    def __init__(self, assign=lambda index: nullcontext()) -> None:
        super().__init__()
        torch.manual_seed(0)
        with assign(0):
            self.net1 = Convolutions()
        with assign(1):
            self.net2 = Layers()

    def forward(self, images):
        return self.net2(self.net1(images))


def grouped_whole() -> dict:
    model = Grouped()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for step in range(STEPS):
        data, target = images(step)
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return {"losses": losses}


def grouped(smp, assign=lambda index: nullcontext()) -> dict:
    @smp.step
    def train_step(model, data, target):
        loss = nn.functional.nll_loss(model(data), target)
        model.backward(loss)
        return loss

    model = smp.DistributedModel(Grouped(assign))
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    share = slice(smp.dp_rank() * BATCH // smp.dp_size(), (smp.dp_rank() + 1) * BATCH // smp.dp_size())
    losses = []
    for step in range(STEPS):
        data, target = images(step)
        optimizer.zero_grad()
        loss = train_step(model, data[share], target[share]).reduce_mean()
        optimizer.step()
        losses.append(sum(smp.allgather(loss.item(), smp.DP_GROUP)) / smp.dp_size())
    return {"losses": losses, "own": sorted(name for name, _ in model.local_named_parameters())}


def images(step: int):
    random = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, 1, 8, 8, generator=random), torch.randint(0, 10, (BATCH,), generator=random)


def digits_whole() -> dict:
    model = Digits()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
    losses = []
    for step in range(STEPS):
        data, target = images(step)
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss))
    weights = {name: float(value.sum()) for name, value in model.state_dict().items()}
    return {"losses": losses, "weights": weights, "grouped": grouped_whole()}


def digits() -> dict:
    import smdistributed.modelparallel.torch as smp

    @smp.step
    def train_step(model, scaler, data, target):
        output = model(data)
        loss = nn.functional.nll_loss(output, target, reduction="mean")
        model.backward(scaler.scale(loss) if scaler else loss)
        return output, loss

    @smp.step
    def test_step(model, data, target):
        output = model(data)
        loss = nn.functional.nll_loss(output, target, reduction="sum").item()
        correct = output.argmax(1).eq(target).sum().item()
        return loss, correct

    parameters = {
        "partitions": int(os.environ["PARTITIONS"]),
        "microbatches": 4,
        "ddp": True,
        "placement_strategy": "spread",
    }
    smp.init(parameters)
    network = Digits()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)  # before the model is wrapped
    model = smp.DistributedModel(network)
    scaler = smp.amp.GradScaler(enabled=False)
    optimizer = smp.DistributedOptimizer(optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
    share = slice(smp.dp_rank() * BATCH // smp.dp_size(), (smp.dp_rank() + 1) * BATCH // smp.dp_size())
    losses, shapes = [], []
    for step in range(STEPS):
        model.train()
        data, target = images(step)
        optimizer.zero_grad()
        output, loss_mb = train_step(model, scaler, data[share], target[share])
        loss = loss_mb.reduce_mean()
        optimizer.step()
        schedule.step()
        losses.append(sum(smp.allgather(loss.item(), smp.DP_GROUP)) / smp.dp_size())
        shapes.append([list(output.concat().shape), len(loss_mb.outputs), list(loss_mb.stack().shape)])
    model.eval()
    with torch.no_grad():
        sums, correct = test_step(model, *images(99))
    whole = model.state_dict()
    if smp.dp_rank() == 0:
        smp.save({"model": model.local_state_dict(), "optimizer": optimizer.local_state_dict()}, OUT / "partial.pt")
        full = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        if smp.rank() == 0:
            smp.save(full, OUT / "full.pt", partial=False)
    smp.barrier()
    partial = smp.load(OUT / "partial.pt", partial=True)
    model.load_state_dict(partial["model"], same_partition_load=True)
    optimizer.load_state_dict(partial["optimizer"])
    return {
        "losses": losses,
        "shapes": shapes[-1],
        "weights": {name: float(value.sum()) for name, value in whole.items()},
        "tested": [type(sums).__name__, sum(sums), sum(correct)],
        "ranks": [smp.rank(), smp.mp_rank(), smp.pp_rank(), smp.dp_rank(), smp.rdp_rank(), smp.tp_rank()],
        "own": sum(parameter.numel() for parameter in model.local_parameters()),
        "files": sorted(path.name for path in OUT.glob("*.pt*")),
        "partial keys": len(partial["model"]),
        "grouped": grouped(smp),
    }


def language_whole() -> dict:
    model = make_model("gpt2")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(**make_batch("gpt2", BATCH, seed=step)).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss))
    return {"losses": losses, "grouped": grouped_whole()}


def language() -> dict:
    import smdistributed.modelparallel.torch as smp
    from smdistributed.modelparallel import __version__

    class Trainer:
        """The step is an attribute of a class, and is called without ``self``."""

        @smp.step
        def train_step(model, input_ids, attention_mask, labels):
            output = model(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
            model.backward(output["loss"])
            return {"loss": output["loss"]}

        def run(self, model, batch):
            return self.train_step(model, batch["input_ids"], batch["attention_mask"], batch["labels"])

    partitions = int(os.environ["PARTITIONS"])
    smp.init({"pipeline_parallel_degree": partitions, "microbatches": 2, "ddp": True, "auto_partition": False})
    with smp.model_creation(tensor_parallelism=False, dtype=torch.float32):
        network = make_model("gpt2")
    model = smp.DistributedModel(network, trace_device="cpu", backward_passes_per_step=1)
    layers = model.get_module().transformer.h
    for number, layer in enumerate(layers):
        smp.set_partition(layer, number * partitions // len(layers))
        smp.set_activation_checkpointing(layer)
    events = []
    model.register_post_partition_hook(lambda model, optimizer: events.append("partitioned"))
    model.register_post_step_hook(lambda model, optimizer: events.append("stepped"))
    optimizer = smp.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), static_loss_scale=None, dynamic_loss_scale=True
    )
    if smp.pp_rank() == 0:  # only the first stage reads the data
        smp.broadcast(STEPS, smp.PP_GROUP)
        steps = STEPS
    else:
        steps = smp.recv_from(0, smp.RankType.PP_RANK)
    share = slice(smp.dp_rank() * BATCH // smp.dp_size(), (smp.dp_rank() + 1) * BATCH // smp.dp_size())

    def batch_of(step):
        batch = {name: value[share] for name, value in make_batch("gpt2", BATCH, seed=step).items()}
        return batch if smp.pp_rank() == 0 else {name: torch.zeros(len(value), 0) for name, value in batch.items()}

    losses = []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = Trainer().run(model, batch_of(step))["loss"].reduce_mean()
        optimizer.clip_master_grads(1.0)
        optimizer.step()
        mean = loss.clone()
        torch.distributed.all_reduce(mean, group=smp.get_dp_process_group())
        losses.append(float(mean) / smp.dp_size())
        if step == STEPS // 2 - 1:
            smp.save_checkpoint(
                OUT, "half", partial=True, model=model, optimizer=optimizer, user_content={"step": step}
            )
            smp.save_checkpoint(OUT, "whole.pt", partial=False, model=model, user_content={"step": step})
    content = smp.resume_from_checkpoint(OUT, tag="half", partial=True)
    again = []
    for step in range(content["step"] + 1, steps):
        optimizer.zero_grad()
        loss = Trainer().run(model, batch_of(step))["loss"].reduce_mean()
        optimizer.clip_master_grads(1.0)
        optimizer.step()
        again.append(sum(smp.allgather(loss.item(), smp.DP_GROUP)) / smp.dp_size())
    content = smp.resume_from_checkpoint(OUT, tag="whole.pt", partial=False)
    first = Trainer().run(model, batch_of(STEPS // 2))["loss"].reduce_mean()
    smp.send({"from": smp.rank()}, smp.rank() ^ 1, smp.RankType.WORLD_RANK) if smp.rank() % 2 == 0 else None
    heard = smp.recv_from(smp.rank() ^ 1, smp.RankType.WORLD_RANK) if smp.rank() % 2 else None
    return {
        "losses": losses,
        "again": again,
        "first": sum(smp.allgather(first.item(), smp.DP_GROUP)) / smp.dp_size(),
        "events": events,
        "heard": heard,
        "version": __version__,
        "content": content,
        "grouped": grouped(smp, smp.partition if partitions > 1 else lambda index: nullcontext()),
        "files": sorted(
            str(path.relative_to(OUT)) for path in OUT.rglob("*") if path.is_file() and "rank" not in path.name
        ),
    }


def shared_whole() -> dict:
    model = make_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(**make_batch("bert", BATCH, seed=step)).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(float(loss))
    weights = {name: float(value.double().sum()) for name, value in model.state_dict().items()}
    with torch.no_grad():
        logits = model.eval()(**make_batch("bert", BATCH, seed=99)).logits
    return {"losses": losses, "weights": weights, "logits": logits.tolist()}


def shared() -> dict:
    """Matrices of transformers' own layers are shared by two ranks, with samples of their own or the same ones."""
    import smdistributed.modelparallel.torch as smp

    prescaled = bool(os.environ.get("PRESCALED"))
    degrees = {"pipeline_parallel_degree": int(os.environ["PARTITIONS"]), "tensor_parallel_degree": 2}
    smp.init({**degrees, "microbatches": 2, "ddp": True, "prescaled_batch": prescaled})
    unmarked = smp.DistributedModel(make_model("bert"))
    if prescaled:
        with smp.model_creation(tensor_parallelism=True):
            network = make_model("bert")
    else:
        network = make_model("bert")
        smp.set_tensor_parallelism(network)
    rank, size = (smp.rdp_rank(), smp.rdp_size()) if prescaled else (smp.dp_rank(), smp.dp_size())
    share = slice(rank * BATCH // size, (rank + 1) * BATCH // size)

    @smp.step(input_split_axes={"ids": 1})
    def train_step(model, ids, attention_mask, labels):
        out = model(input_ids=ids.T, attention_mask=attention_mask, labels=labels)
        model.backward(out["loss"])
        return out["loss"]

    @smp.step
    def look(model, input_ids, attention_mask, labels):
        return model(input_ids=input_ids, attention_mask=attention_mask, labels=labels)["logits"]

    def batch_of(step):
        return {name: value[share] for name, value in make_batch("bert", BATCH, seed=step).items()}

    def train(model, optimizer, steps):
        losses = []
        for step in steps:
            batch = batch_of(step)
            optimizer.zero_grad()
            loss = train_step(model, batch.pop("input_ids").T, **batch).reduce_mean()
            optimizer.clip_master_grads(0.5)
            optimizer.step()
            losses.append(sum(smp.allgather(loss.item(), smp.DP_GROUP)) / smp.dp_size())
        return losses

    def wrap(network):
        model = smp.DistributedModel(network)
        return model, smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

    refused = error_of(
        lambda: train(unmarked, smp.DistributedOptimizer(torch.optim.SGD(unmarked.parameters(), lr=0.1)), [0])
    )
    whole_matrices = error_of(lambda: smp.DistributedOptimizer(torch.optim.Adafactor(network.parameters())))
    model, optimizer = wrap(network)
    losses = train(model, optimizer, range(STEPS // 2))
    smp.save_checkpoint(OUT, "half", partial=True, model=model, optimizer=optimizer)
    whole = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    losses += train(model, optimizer, range(STEPS // 2, STEPS))
    weights = {name: float(value.double().sum()) for name, value in model.state_dict().items()}
    model.eval()
    with torch.no_grad():
        logits = look(model, **batch_of(99)).concat()
    distributed = sum(map(model.is_distributed_parameter, model.local_parameters()))
    again = {}
    for name in ("partial", "whole", "after"):
        other = make_model("bert")
        smp.set_tensor_parallelism(other)
        model, optimizer = wrap(other)
        if name == "after":  # the model is cut before anything is loaded
            train(model, optimizer, [0])
        if name == "partial":
            smp.resume_from_checkpoint(OUT, tag="half", partial=True)
        else:
            model.load_state_dict(whole["model"])
            optimizer.load_state_dict(copy.deepcopy(whole["optimizer"]))  # torch's optimizers keep what they load
        again[name] = train(model, optimizer, range(STEPS // 2, STEPS))
    files = sorted(path.name for path in (OUT / "half_partial").iterdir())
    return {
        "losses": losses,
        "again": again,
        "weights": weights,
        "logits": logits.tolist(),
        "rows": [share.start, share.stop],
        "distributed": distributed,
        "refused": refused,
        "whole matrices": whole_matrices,
        "files": files,
    }


if __name__ == "__main__":
    script = sys.argv[2]
    run = {"digits": (digits, digits_whole), "language": (language, language_whole), "shared": (shared, shared_whole)}[
        script
    ][WHOLE]
    (OUT / f"rank-{os.environ.get('RANK', 0)}.json").write_text(json.dumps(run()))
