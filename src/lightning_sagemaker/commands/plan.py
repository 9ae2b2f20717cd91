# SPDX-License-Identifier: Apache-2.0
"""Predict throughput, scaling efficiency, hours and cost for a model on SageMaker's instances, before paying for them.

Examples::

    lightning-sagemaker plan albert-mlm --instances ml.p3dn.24xlarge ml.p4d.24xlarge --hosts 1 2 4 8
    lightning-sagemaker plan bert-large --measured ml.p4d.24xlarge=2700 --samples 100M --target-hours 10
    lightning-sagemaker plan llama-2-7b --instances ml.p4d.24xlarge --hosts 2 --layouts
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_sagemaker.errors import LaunchError, suggestion

if TYPE_CHECKING:
    from lightning_sagemaker.bench.offers import Question
    from lightning_sagemaker.bench.scaling import Anchor
    from lightning_sagemaker.bench.workload import Workload

HELP = "predict throughput, scaling, hours and cost before paying"
_PRECISIONS = ("16-mixed", "bf16-mixed", "bf16-true", "16-true", "32-true")
_STRATEGIES = ("ddp", "smddp", "fsdp", "smddp_fsdp", "smp")
_MULTIPLES = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker plan``."""
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="a recipe or a model, such as bert-large; or describe one:")
    add(
        "--parameters",
        type=_number,
        metavar="N",
        help="parameters of your own model, such as 350M; with --layers, --hidden",
    )
    add("--layers", type=_count, metavar="N")
    add("--hidden", type=_count, metavar="N", help="hidden size")
    add("--sequence-length", type=_count, metavar="N", help="tokens per sample (default: the recipe's, else 128)")
    add(
        "--batch-size",
        type=_count,
        metavar="N",
        help="samples per GPU and micro-batch (default: the recipe's, else 16)",
    )
    add("--accumulate", type=_count, metavar="N", help="micro-batches per step (default: the recipe's, else 1)")
    add("--precision", default="bf16-mixed", metavar="|".join(_PRECISIONS), help="default: bf16-mixed")
    add("--recompute", action="store_true", help="recompute activations in the backward pass")
    add("--samples", type=_number, metavar="N", help="total samples to train on, such as 512M, for hours and cost")
    add("--num-workers", type=int, metavar="N", help="loader workers per GPU (default: vCPUs / GPUs)")
    add(
        "--feed-ms",
        type=_number,
        metavar="MS",
        help="one vCPU's time to load a sample (default: fitted on tokenized text)",
    )
    add("--reads-all", action="store_true", help="every GPU reads all samples and keeps its share (IterableDataset)")
    add(
        "--measured",
        metavar="TYPE[*HOSTS]=RATE|FILE",
        help="samples/s of this workload on one instance (or several), or a result of `bench` in a training job",
    )
    add(
        "--instances",
        nargs="+",
        default=[],
        metavar="TYPE",
        help="default: the cheapest and the largest of each family",
    )
    add("--hosts", nargs="+", type=_count, default=[1, 2, 4, 8], metavar="N", help="default: 1 2 4 8")
    add("--strategy", metavar="|".join(_STRATEGIES), help="default: data parallel, or what fits")
    add(
        "--layouts", action="store_true", help="compare parallel layouts of the model, for each instance type and count"
    )
    add("--target-hours", type=_number, metavar="H", help="print the cheapest within H hours")
    add(
        "--budget",
        type=_number,
        metavar="USD",
        help="print the fastest within the budget; with --target-hours, whether any meets both",
    )
    add("--spot", action="store_true", help="use the hours and prices of spot instances")
    add("--checkpoint-minutes", type=_number, default=10.0, metavar="M", help="time between checkpoints (default: 10)")
    add("--region", default="us-east-1", help="region of the prices (default: us-east-1)")
    add("--json", action="store_true", help="everything as JSON")


def main(arguments: argparse.Namespace) -> int:
    """Print the predictions; the exit code is 1 if a goal cannot be met."""
    from lightning_sagemaker.bench import offers, plan_report
    from lightning_sagemaker.bench.scaling import Cluster

    question = _question(arguments)
    instances = offers.candidates(arguments.instances, question.prices)
    hosts = sorted(set(arguments.hosts))
    if arguments.layouts:
        found = [
            (cluster, offers.all_layouts(question, cluster))
            for cluster in (Cluster(one, count) for one in instances for count in hosts)
        ]
        print(plan_report.layouts_json(found) if arguments.json else plan_report.layouts_table(question, found))
        return 0 if any(one.fits for _, judged in found for one in judged) else 1
    made = offers.offers(question, instances, hosts)
    goal = _goal(arguments)
    best = offers.cheapest(made, *goal) if goal else None
    if arguments.json:
        print(plan_report.offers_json(question, made, best))
    else:
        print(plan_report.offers_table(question, made, best, goal))
    return 1 if goal and best is None else 0


def _question(arguments: argparse.Namespace) -> Question:
    from lightning_sagemaker.bench.offers import Question
    from lightning_sagemaker.bench.runs import Policy
    from lightning_sagemaker.bench.tables import constants
    from lightning_sagemaker.launch.planning.images import check_region
    from lightning_sagemaker.launch.planning.pricing import load_prices

    for option, value, known in (
        ("--precision", arguments.precision, _PRECISIONS),
        ("--strategy", arguments.strategy, _STRATEGIES),
    ):
        if value is not None and value not in known:
            raise LaunchError(f"{option} {value!r} was given. HINT: {suggestion(value, known)}")
    if arguments.num_workers is not None and arguments.num_workers < 0:
        raise LaunchError(f"--num-workers {arguments.num_workers} was given. HINT: it must be at least 0.")
    workload = _workload(arguments)
    anchor = None if arguments.measured is None else _anchor(arguments.measured, workload, arguments.strategy)
    policy = Policy(workload.model.parameters, arguments.checkpoint_minutes)
    prices = load_prices(arguments.region)
    if prices.region != arguments.region:  # the package's own, or a misspelled region
        check_region(arguments.region)
    return Question(workload, anchor, arguments.strategy, policy, prices, constants())


def _workload(arguments: argparse.Namespace) -> Workload:
    from lightning_sagemaker.bench.tables import recipe_preset
    from lightning_sagemaker.bench.workload import Model, Workload

    described = (arguments.parameters, arguments.layers, arguments.hidden)
    preset = recipe_preset(arguments.model) if arguments.model else None
    if arguments.model is None:
        if None in described:
            raise LaunchError(
                "no model was given. HINT: pass one (lightning-sagemaker plan bert-large) or describe it:"
                " --parameters 350M --layers 24 --hidden 1024."
            )
        model = Model.described(*described)
    elif described != (None, None, None):
        raise LaunchError(f"{arguments.model!r} and a description were given. HINT: give one of them.")
    else:
        model = Model.named(preset["model"] if preset else arguments.model)
    preset = preset or {"sequence_length": 128, "batch": 16, "accumulation": 1, "samples": None}
    return Workload(
        model,
        length=arguments.sequence_length or preset["sequence_length"],
        batch=arguments.batch_size or preset["batch"],
        accumulation=arguments.accumulate or preset["accumulation"],
        precision=arguments.precision,
        samples=arguments.samples or preset["samples"],
        workers=arguments.num_workers,
        feed_seconds=None if arguments.feed_ms is None else arguments.feed_ms / 1e3,
        reads_all=arguments.reads_all,
        recompute=arguments.recompute,
    )


def _anchor(text: str, workload: Workload, strategy: str | None) -> Anchor:
    from lightning_sagemaker.bench.scaling import REDUCES, Anchor, Cluster
    from lightning_sagemaker.launch.planning.instances import find_instance

    name, equals, value = text.partition("=")
    if not equals:
        name, value = _measured_file(Path(text))
    name, _, count = name.partition("*")
    try:
        rate, hosts = float(value), int(count or 1)
    except ValueError:
        raise LaunchError(f"--measured {text!r} was given. HINT: write --measured ml.g5.xlarge=123.4.") from None
    if not 0 < rate < float("inf") or hosts < 1:
        raise LaunchError(f"--measured {text!r} was given. HINT: samples/s and hosts must be more than 0.")
    return Anchor(Cluster(find_instance(name), hosts), rate, workload, strategy if strategy in REDUCES else "ddp")


def _measured_file(path: Path) -> tuple[str, str]:
    """``TYPE*HOSTS`` and samples/s of the fastest case in a result of ``bench``."""
    try:
        found = json.loads(path.read_text())
        fastest = max(found["cases"], key=lambda case: case["samples_per_second"])
        instance = found["environment"]["instance_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LaunchError(
            f"--measured {str(path)!r} is neither TYPE=SAMPLES_PER_SECOND nor a result of bench ({type(error).__name__})."
            " HINT: write --measured ml.g5.xlarge=123.4, or give its results.json."
        ) from None
    if instance is None:
        raise LaunchError(
            f"{path} was measured outside a training job, so the instance type is unknown. HINT: measure in a job, or write"
            " --measured TYPE=SAMPLES_PER_SECOND."
        )
    return f"{instance}*{fastest['hosts']}", str(fastest["samples_per_second"])


def _goal(arguments: argparse.Namespace) -> tuple[float | None, float | None, bool] | None:
    if arguments.target_hours is None and arguments.budget is None:
        return None
    if arguments.samples is None and (arguments.model is None or _workload(arguments).samples is None):
        raise LaunchError("a target was given without --samples. HINT: add --samples 100M.")
    return arguments.target_hours, arguments.budget, arguments.spot


def _number(text: str) -> float:
    scale = _MULTIPLES.get(text[-1:].lower(), 1.0)
    try:
        found = float(text[:-1] if scale > 1 else text) * scale
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number (350M and 1.5B are)") from None
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be more than 0")
    return found


def _count(text: str) -> int:
    found = _number(text)
    if found != int(found):
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer")
    return int(found)
