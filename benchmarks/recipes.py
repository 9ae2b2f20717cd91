# SPDX-License-Identifier: Apache-2.0
"""The recipes against ``transformers.Trainer``: the same model, data, batch size, precision and threads, in turn.

    python benchmarks/recipes.py mlm-small
    python benchmarks/recipes.py qa --squad train-v1.1.json --peer padded
    python benchmarks/recipes.py classification --table train.csv --peer best --precision bf16-mixed
    python benchmarks/recipes.py mlm-base --as-started

Each round starts one process of ours, through the recipe's command line, and one of the peer's, written as its users
write it, one after the other. Printed are samples/s over the timed steps, peak memory, the time from the start of the
process to the end of its first step, and the ratios with their spread over the rounds. The data is prepared before.

Without ``--as-started``, both sides have the same precision and the same allocator settings. With it, ours has what its
command line chooses by itself and the peer has its defaults.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SIZES = {
    "mlm-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "mlm-small": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024},
    "qa": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "qa-small": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024},
    "classification": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536},
}
BATCH = {"mlm-base": 16, "mlm-small": 16, "qa": 4, "qa-small": 4, "classification": 16}
LENGTH = {"mlm-base": 128, "mlm-small": 128, "qa": 384, "qa-small": 384, "classification": 128}
PEERS = {"mlm": ("default",), "qa": ("padded", "best"), "classification": ("padded", "dynamic", "best")}
PEAKS = {"H100 PCIe": 756.0, "H100": 989.5, "H200": 989.5, "A100": 312.0, "A10G": 70.0, "L4": 121.0}
"""Dense bf16 TFLOP/s by the name of a GPU, from NVIDIA's data sheets."""
UNTIMED = 2
"""Steps at the beginning that are not timed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=sorted(SIZES))
    parser.add_argument("--peer", choices=("default", "padded", "dynamic", "best"), help="flags of the peer")
    parser.add_argument("--precision", default="32-true", choices=("32-true", "bf16-mixed"))
    parser.add_argument("--compile", action="store_true", help="torch.compile on both sides")
    parser.add_argument("--as-started", action="store_true", help="precision and allocator as each side chooses them")
    parser.add_argument("--batch", type=int, help="samples of a step")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12, help="timed steps of ours")
    parser.add_argument("--peer-steps", type=int, help="timed steps of the peer (as many)")
    parser.add_argument("--squad", help="file in SQuAD's form; default: made from Python's documentation")
    parser.add_argument("--table", help="CSV file with text and category; default: the embedded transactions")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "lightning-sagemaker-benchmark")
    parser.add_argument("--prepared", action="store_true", help="the data is there from a run before")
    parser.add_argument("--side", choices=("prepare", "ours", "theirs"), help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    BATCH[args.job] = args.batch or BATCH[args.job]
    args.peer = args.peer or PEERS[args.job.split("-")[0]][0]
    args.peer_steps = args.peer_steps or args.steps
    if args.side:
        _run_side(args)
    else:
        compare(args)


def _run_side(args: argparse.Namespace) -> None:
    if args.side == "ours":
        run_ours(args)
        return
    import trainer_peer  # beside this file

    {"prepare": trainer_peer.prepare, "theirs": trainer_peer.run_theirs}[args.side](args)


def compare(args: argparse.Namespace) -> None:
    size = _prepared(args)
    results: dict[str, list[dict[str, float]]] = {"ours": [], "theirs": []}
    for number in range(args.rounds):
        for side in ("ours", "theirs"):
            results[side].append(_start(args, side, number))
    names = (("samples_per_second", "samples/s"), ("peak_mib", "peak MiB"), ("first_step_s", "first step s"))
    print(
        f"{args.job}, peer {args.peer}, {'as started' if args.as_started else args.precision}, "
        f"{'compiled, ' if args.compile else ''}{args.rounds} rounds, {os.environ.get('OMP_NUM_THREADS', '?')} threads"
    )
    for key, name in names:
        ours, theirs = ([result[key] for result in results[side]] for side in ("ours", "theirs"))
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        print(
            f"  {name:<13} ours {statistics.median(ours):9.2f}   theirs {statistics.median(theirs):9.2f}"
            f"   ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    work = model_flops(args.job, **size) / 1e12
    ours, theirs = (work * statistics.median(row["samples_per_second"] for row in results[side]) for side in results)
    print(
        f"  {'TFLOP/s':<13} ours {ours:9.2f}   theirs {theirs:9.2f}   ({size['tokens']:.0f} tokens a sample, no padding)"
    )
    device = results["ours"][0]["device"]
    peak = next((peak for name, peak in PEAKS.items() if name in device), None)
    if peak and not args.as_started and args.precision == "bf16-mixed":
        print(f"  {'MFU':<13} ours {ours / peak:9.1%}   theirs {theirs / peak:9.1%}   of {peak} TFLOP/s ({device})")


def model_flops(job: str, tokens: float, vocabulary: int) -> float:
    """Operations of the model for one sample, both passes: the numerator of MFU (PaLM, arXiv 2204.02311, appendix B).

    Twice the weights of every multiplication for each token, and attention's scores and sums; three times for both passes.
    Padding is not counted, nor is any operation that an implementation adds. Lookups, norms and activations are left out.

    Args:
        job: Whose sizes.
        tokens: Mean number of a sample's tokens that are no padding.
        vocabulary: Tokens that a masked one may be.

    """
    size = SIZES[job]
    hidden, layers = size["hidden_size"], size["num_hidden_layers"]
    layer = 2 * (4 * hidden**2 + 2 * hidden * size["intermediate_size"]) + 4 * tokens * hidden
    head = 0.0
    if job.startswith("mlm"):  # ALBERT's embedding of 128, and the vocabulary for the masked 15%
        head = 2 * 128 * hidden + 0.15 * 2 * 128 * (hidden + vocabulary)
    return 3 * tokens * (layers * layer + head)


def _prepared(args: argparse.Namespace) -> dict[str, float]:
    """Tokens of a sample and of the vocabulary. A run before with the same data has left them."""
    kept = args.work / args.job / f"{args.peer}.json"
    if not (args.prepared and kept.is_file()):
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(_start(args, "prepare", 0)))
    size: dict[str, float] = json.loads(kept.read_text())
    return size


def _start(args: argparse.Namespace, side: str, seed: int) -> dict[str, float]:
    report = args.work / "report.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    environment = {
        "OMP_NUM_THREADS": str(_cores()),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        **os.environ,
    }
    os.environ["OMP_NUM_THREADS"] = environment["OMP_NUM_THREADS"]
    command = [sys.executable, __file__, *sys.argv[1:], "--side", side, "--seed", str(seed)]
    begin = time.time()
    result = subprocess.run(command, env={**environment, "BENCHMARK_BEGIN": str(begin)}, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{side} failed:\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}")
    return json.loads(report.read_text()) if report.is_file() else {}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpu() -> Any:
    """``torch.cuda`` where there is a GPU; torch has been imported by then."""
    import torch

    return torch.cuda if torch.cuda.is_available() else None


class Clock:
    """When each step ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def tick(self) -> None:
        if len(self.ends) < UNTIMED and (gpu := _gpu()):
            gpu.synchronize()
        self.ends.append(time.time())

    def report(self, args: argparse.Namespace) -> None:
        if gpu := _gpu():
            gpu.synchronize()
            self.ends[-1] = time.time()
        timed = self.ends[UNTIMED - 1 :]
        samples = (len(timed) - 1) * BATCH[args.job]
        content = {
            "samples_per_second": samples / (timed[-1] - timed[0]),
            "peak_mib": (
                gpu.max_memory_allocated() if gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            )
            / 2**20,
            "device": gpu.get_device_name() if gpu else "",
            "first_step_s": self.ends[0] - float(os.environ["BENCHMARK_BEGIN"]),
        }
        (args.work / "report.json").write_text(json.dumps(content))


def _arguments(args: argparse.Namespace, steps: int) -> tuple[Any, list[str]]:
    """The recipe, and its command line."""
    common = ["--trainer.max_steps", steps, "--trainer.limit_val_batches", 0, "--trainer.log_every_n_steps", 1000]
    common += ["--run_dir", args.work / "run", "--cache_dir", args.work / "cache", "--seed_everything", args.seed]
    common += ["--trainer.enable_checkpointing", "false", "--trainer.logger", "false", "--model.compile", args.compile]
    common += ["--data.global_batch_size", BATCH[args.job], "--strategy", "auto", "--data.seed", 0]
    if not args.as_started:
        common += ["--precision", args.precision]
    kind = args.job.split("-")[0]
    if kind == "mlm":
        from lightning_sagemaker.recipes.albert_mlm.recipe import RECIPE as mlm

        data = ["--data.text", "builtin", "--data.vocab_size", 30000, "--data.sequence_length", LENGTH[args.job]]
        common[common.index("--data.seed") + 1] = args.seed
        return mlm, [str(word) for word in [*common, *data]]
    if kind == "qa":
        from lightning_sagemaker.recipes.bert_qa.recipe import RECIPE as qa

        data = ["--data.train", squad_file(args), "--data.vocab_size", 20000, "--model.pretrained", "null"]
        data += ["--data.max_seq_length", LENGTH[args.job], "--data.misplaced_answers", "skip"]
        common[common.index("--data.seed") + 1] = args.seed
        return qa, [str(word) for word in [*common, *data]]
    from lightning_sagemaker.recipes.sequence_classification.recipe import RECIPE as classification

    data = ["--data.train", args.table or "transactions", "--data.vocab_size", 20000, "--model.pretrained", "null"]
    data += ["--data.max_length", LENGTH[args.job]]
    return classification, [str(word) for word in [*common, *data]]


def squad_file(args: argparse.Namespace) -> Path:
    """A file in SQuAD's form: the given one, or questions about prose of the lengths that SQuAD has."""
    path: Path = args.work / "questions.json"
    if args.squad or path.is_file():
        return Path(args.squad or path)
    from lightning_sagemaker.recipes.albert_mlm.builtin_text import builtin_documents

    chance = random.Random(0)
    words = [word for document in builtin_documents() for word in document.split()]
    articles = []
    for number in range(800):
        begin, length = chance.randrange(len(words) - 400), max(20, min(330, round(chance.gauss(100, 40))))
        context = " ".join(words[begin : begin + length])
        answer = " ".join(words[begin + length // 2 : begin + length // 2 + 3])
        qa = {"id": str(number), "question": " ".join(chance.sample(words, 10)) + "?"}
        qa["answers"] = [{"text": answer, "answer_start": context.index(answer)}]
        articles.append({"title": str(number), "paragraphs": [{"context": context, "qas": [qa]}]})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"data": articles}))
    return path


def _set_size(args: argparse.Namespace) -> None:
    """Give the recipes the sizes of this benchmark."""
    wanted = SIZES[args.job]
    if args.job.startswith("mlm"):
        from lightning_sagemaker.recipes.albert_mlm import module

        module.SIZES["base"] = {**wanted, "embedding_size": 128}
    else:  # importing another recipe's module would count in the time to the first step
        from lightning_sagemaker.recipes._common.modules import sizes

        sizes.BERT_SIZES["tiny"] = wanted


def run_ours(args: argparse.Namespace, prepare_only: bool = False) -> None:
    from lightning.pytorch import Callback

    from lightning_sagemaker.recipes._common.cli.recipe_cli import RecipeCLI

    _set_size(args)
    clock = Clock()

    class Ticks(Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            clock.tick()

    class TimedCLI(RecipeCLI):
        def _callbacks(self, folders: Any, config: Any) -> list[Callback]:
            return [Ticks()]

        def after_fit(self) -> None:
            """No test and no summary: the peer makes none, and their callbacks are not here."""

    recipe, arguments = _arguments(args, args.steps + UNTIMED)
    cli = TimedCLI(recipe, arguments, run=not prepare_only)
    if prepare_only:
        cli.datamodule.prepare_data()
        cli.datamodule.setup("fit")
        cli.datamodule.load_tokenizer().save_pretrained(args.work / args.job / "tokenizer")
    else:
        clock.report(args)


if __name__ == "__main__":
    main()
