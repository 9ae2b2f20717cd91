# SPDX-License-Identifier: Apache-2.0
"""Calls of ``smdistributed.modelparallel`` as its documentation allows them, and as scripts get them wrong.

``smp_calls_worker.py OUT_DIR PARTITIONS`` writes ``OUT_DIR/rank-R.json``.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from lightning_sagemaker.smdistributed import importer

importer.install()
sys.path.insert(0, str(Path(__file__).parent))
import smdistributed.modelparallel.torch as smp  # noqa: E402
from lightning_model import error_of  # noqa: E402

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
OUT, PARTITIONS = Path(sys.argv[1]), int(sys.argv[2])
STEPS, BATCH = 3, 16


class Answer(NamedTuple):
    """What a step returns."""

    loss: torch.Tensor
    scores: torch.Tensor


class Network(nn.Module):
    """A linear layer, blocks in a row, a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(8, 12)
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(12, 12), nn.Tanh()) for _ in range(4)))
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        return self.head(self.body(self.stem(x)))


def samples(step: int):
    random = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, 8, generator=random), torch.randint(0, 4, (BATCH,), generator=random)


def own(value):
    """The samples of this replica."""
    rows = BATCH // smp.dp_size()
    return value[smp.dp_rank() * rows :][:rows]


def train(step, prepare=lambda model: None, scaler=None):
    model = smp.DistributedModel(Network())
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    prepare(model)
    for number in range(STEPS):
        optimizer.zero_grad()
        step(model, *(own(value) for value in samples(number)))
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    return model


def plain() -> Network:
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(STEPS):
        x, y = samples(number)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


TRAINED = plain()
EXPECTED = TRAINED.state_dict()


def off(model) -> float:
    """The largest difference of its weights from those of one process."""
    found = model.state_dict()
    return max((found[name] - value).abs().max().item() for name, value in EXPECTED.items())


def loss_of(model, x, y):
    return nn.functional.cross_entropy(model(x), y)


@smp.step
def usual(model, x, y):
    loss = loss_of(model, x, y)
    model.backward(loss)
    return loss


@smp.step
def of_outputs(model, x, y):
    """The gradients of the outputs instead of a loss."""
    scores = model(x)
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(leaf := scores.detach().requires_grad_(), y), leaf)
    model.backward(scores, gradient)


@smp.step
def of_torch(model, x, y):
    loss_of(model, x, y).backward()


def undecorated(model, x, y):
    model.backward(loss_of(model, x, y))


def undecorated_of_torch(model, x, y):
    loss_of(model, x, y).backward()


def with_scaler() -> float:
    scaler = smp.amp.GradScaler()

    @smp.step
    def step(model, x, y):
        model.backward(scaler.scale(loss_of(model, x, y)))

    return off(train(step, scaler=scaler))


def accumulated() -> float:
    """Two passes outside of steps before the gradients are averaged."""
    model = smp.DistributedModel(Network(), backward_passes_per_step=2)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for number in range(STEPS):
        x, y = (own(value) for value in samples(number))
        for half in (slice(None, len(x) // 2), slice(len(x) // 2, None)):
            (loss_of(model, x[half], y[half]) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    return off(model)


def kinds() -> list:
    @smp.step(["weight"], {"x": 1})
    def step(model, x, weight):
        scores = model(x.t())
        loss = scores.mean()
        model.backward(loss)
        return Answer(loss, scores), {"rows": len(weight)}, [loss]

    model = smp.DistributedModel(Network())
    answer, rows, one = step(model, own(samples(0)[0]).t().contiguous(), torch.ones(3))
    return [type(answer).__name__, list(answer.scores.concat().shape), rows, type(one[0]).__name__]


def gathered() -> float:
    model = train(usual).cpu()
    found = dict(model.get_module().named_parameters())
    return max((found[name] - EXPECTED[name]).abs().max().item() for name in found)


def continued() -> float:
    """It is partitioned again by the next step."""
    model = smp.DistributedModel(Network())
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for number in range(STEPS):
        optimizer.zero_grad()
        usual(model, *(own(value) for value in samples(number)))
        optimizer.step()
        model.cpu()
    return off(model)


def clipped(call=None) -> list[float]:
    """The norm that the script gets, and the largest difference of the weights from those of one process."""
    model = Network() if call is None else smp.DistributedModel(Network())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = optimizer if call is None else smp.DistributedOptimizer(optimizer)
    norms = []
    for number in range(STEPS):
        optimizer.zero_grad()
        if call is None:
            loss_of(model, *samples(number)).backward()
        else:
            call(model, *(own(value) for value in samples(number)))
        norms.append(float(clip_grad_norm_(model.parameters(), 0.05 * (1 + number))))
        optimizer.step()
    return [*norms, *(float(one.abs().sum()) for one in model.state_dict().values())]


@smp.step
def clipping(model, x, y):
    loss = loss_of(model, x, y)
    model.backward(loss)
    clip_grad_norm_(model.parameters(), 1.0)


def train_joined(model, call, **options):
    """Replicas with different numbers of batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join(**options):
        for number in range(1 + 2 * smp.rdp_rank()):
            optimizer.zero_grad()
            call(model, *samples(number))
            optimizer.step()
    return model


def joined(call, **options) -> float:
    """torch's wrapper, which AWS's library uses, says what comes of it."""
    wrapped = nn.parallel.DistributedDataParallel(Network(), process_group=smp.get_rdp_process_group())
    theirs = train_joined(wrapped, undecorated_of_torch, **options).module.state_dict()
    found = train_joined(smp.DistributedModel(Network()), call, **options).state_dict()
    return max((found[name] - value).abs().max().item() for name, value in theirs.items())


def nothing_to_join() -> float:
    """One replica: a context without effect."""
    model = smp.DistributedModel(Network())
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    with model.join():
        for number in range(STEPS):
            optimizer.zero_grad()
            usual(model, *samples(number))
            optimizer.step()
    return off(model)


def evaluated_outside() -> float:
    model = train(usual).eval()
    with torch.no_grad():
        return (model(samples(9)[0]) - TRAINED(samples(9)[0])).abs().max().item()


def main() -> None:
    before = {
        name: error_of(call)
        for name, call in {
            "size": smp.size,
            "barrier": smp.barrier,
            "allgather": lambda: smp.allgather(1, smp.WORLD),
            "broadcast": lambda: smp.broadcast(1, smp.DP_GROUP),
            "rank": smp.rank,
        }.items()
    }
    smp.init({"partitions": PARTITIONS, "microbatches": 2, "ddp": True})
    grouped = lambda model: smp.set_activation_checkpointing(model.get_module().body, strategy="group_2")  # noqa: E731
    whole = lambda model: smp.set_activation_checkpointing(model.get_module())  # noqa: E731
    found = {
        "before": before,
        "usual": off(train(usual)),
        "outputs": off(train(of_outputs)),
        "recomputed": off(train(usual, grouped)),
        "scaler": with_scaler(),
        "kinds": kinds(),
        "gathered": gathered(),
        "continued": continued(),
        "clipped": max(abs(one - other) for one, other in zip(clipped(usual), clipped(), strict=True)),
        "groups": {
            "name": error_of(lambda: smp.barrier("WORLD")),
            "ranks": error_of(lambda: smp.allgather(1, smp.get_dp_group())),
            "too_high": error_of(lambda: smp.send(1, 99, smp.RankType.WORLD_RANK)),
            "negative": error_of(lambda: smp.recv_from(-1, smp.RankType.WORLD_RANK)),
        },
    }
    if PARTITIONS == 1:
        found["joined"] = [joined(usual), joined(undecorated), joined(usual, divide_by_initial_world_size=False)]
        model = smp.DistributedModel(Network())
        found["thrown"] = error_of(lambda: train_joined(model, usual, throw_on_early_termination=True))
    else:
        found["joined"] = [nothing_to_join()]
    others = {
        "of_torch": lambda: off(train(of_torch)),
        "undecorated": lambda: off(train(undecorated)),
        "undecorated_of_torch": lambda: off(train(undecorated_of_torch)),
        "accumulated": accumulated,
        "evaluated": evaluated_outside,
        "clipping": lambda: train(clipping) and 0,
        "recomputed_whole": lambda: off(train(usual, whole)),
    }
    for name, call in others.items():
        found[name] = call() if PARTITIONS == 1 else error_of(call)
    (OUT / f"rank-{smp.rank()}.json").write_text(json.dumps(found))
    smp.barrier()


main()
