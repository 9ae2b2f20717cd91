# SPDX-License-Identifier: Apache-2.0
"""Writes down what a run does, to the last bit.

``Recorder(FOLDER)`` appends to ``FOLDER/rank-R.jsonl``. It knows nothing of this package, so stock Lightning is recorded
in the same way. compare.py says what two records differ in.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from torch.distributed.tensor import DTensor

STATES = ("parameters", "buffers", "optimizers", "averages")
"""Of which a step's line has hashes."""
_DIGITS = 16
"""Of a hash; enough to tell two states apart."""


class Recorder(Callback):
    """A line per batch, optimizer step, validation, epoch and end.

    Put it last among the callbacks, so that it sees what the others have done, and call :meth:`attach` before ``fit``.

    Args:
        folder: Where ``rank-R.jsonl`` is written.
        start: The how many-th of this run, from 0.

    """

    def __init__(self, folder: str | Path, start: int = 0) -> None:
        self._folder, self._start = Path(folder), start
        self._file: Any = None
        self._before = 0
        self._evaluated: list[Any] = []

    def attach(self, trainer: Any) -> None:
        """Record after a validation and after an epoch: no hook comes behind all that belongs to them."""
        fit, validation = trainer.fit_loop, trainer.fit_loop.epoch_loop.val_loop
        vars(validation)["run"] = self._after(validation.run, lambda: None, lambda _: self._validation(trainer))
        # The inner one of all that wrap it: what stops a run behind an epoch comes after this.
        begin: Callable[[], int] = lambda: fit.epoch_progress.current.processed  # noqa: E731
        vars(fit)["on_advance_end"] = self._after(fit.on_advance_end, begin, lambda epoch: self._epoch(trainer, epoch))

    @staticmethod
    def _after(run: Callable[[], Any], begin: Callable[[], Any], record: Callable[[Any], None]) -> Callable[[], Any]:
        def wrapped() -> Any:
            begun = begin()
            result = run()
            record(begun)
            return result

        return wrapped

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.open(trainer)
        self.write("setup", stage=stage, start=self._start, ranks=trainer.world_size)

    def open(self, trainer: Any) -> None:
        """For callbacks that write before it is this one's turn."""
        if self._file is None:
            path = self._folder / f"rank-{trainer.global_rank}.jsonl"
            was_cut = path.exists() and not path.read_bytes().endswith(b"\n")
            self._file = path.open("a")
            if was_cut:
                self._file.write("\n")

    def write(self, kind: str, **values: Any) -> None:
        """One line; only the last can be cut short, as each is flushed."""
        self._file.write(json.dumps({"kind": kind, **values, "time": time.monotonic()}) + "\n")
        self._file.flush()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.write("start", step=trainer.global_step, epoch=trainer.current_epoch)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._before = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        line = {"epoch": trainer.current_epoch, "batch": batch_idx, "before": self._before, "ids": identifiers(batch)}
        line |= {"step": trainer.global_step, "loss": loss.item().hex(), "rates": _rates(trainer)}
        if trainer.global_step != self._before:
            line |= states(trainer, pl_module)
        self.write("batch", **line)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._evaluated = []

    on_test_start = on_predict_start = on_validation_start

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *_: Any) -> None:
        self._evaluated.append(identifiers(batch))

    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    def _validation(self, trainer: Any) -> None:
        if trainer.sanity_checking:
            self.write("sanity", ids=self._evaluated)
            return
        progress = trainer.fit_loop.epoch_loop.batch_progress.current
        metrics = {name: value for name, value in _metrics(trainer).items() if name.startswith("val")}
        place = {"epoch": trainer.current_epoch, "batch": progress.ready - 1, "step": trainer.global_step}
        self.write("validation", **place, ids=self._evaluated, metrics=metrics, callbacks=_callbacks(trainer))

    def _epoch(self, trainer: Any, epoch: int) -> None:
        line = {"step": trainer.global_step, "metrics": _metrics(trainer), "callbacks": _callbacks(trainer)}
        self.write("epoch", epoch=epoch, **line, schedules=_schedules(trainer), rates=_rates(trainer))

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        line = {"step": trainer.global_step, "epoch": trainer.current_epoch, "stopped": bool(trainer.should_stop)}
        self.write("end", **line, **states(trainer, pl_module), callbacks=_callbacks(trainer))

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        metrics = {name: value for name, value in _metrics(trainer).items() if name.startswith("test")}
        self.write("test", ids=self._evaluated, metrics=metrics)

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        self.write("predict", ids=self._evaluated)


def identifiers(batch: Any) -> Any:
    """The ``index`` of each sample; of a batch of several loaders, by loader."""
    if batch is None:
        return None
    if "index" in batch:
        return batch["index"].tolist()
    return {name: identifiers(part) for name, part in batch.items()}


def states(trainer: Any, pl_module: Any) -> dict[str, str]:
    """Hashes of all that training changes."""
    averages = [vars(callback).get("_average_model") for callback in trainer.callbacks]
    return {
        "parameters": _hash(dict(pl_module.named_parameters())),
        "buffers": _hash(dict(pl_module.named_buffers())),
        "optimizers": _hash([optimizer.state_dict() for optimizer in trainer.optimizers]),
        "averages": _hash([[*average.parameters(), *average.buffers()] for average in averages if average is not None]),
    }


def _hash(tree: Any) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(tree):
        digest.update(piece)
    return digest.hexdigest()[:_DIGITS]


def _pieces(tree: Any) -> Iterator[bytes]:
    if isinstance(tree, DTensor):  # this rank's shard
        yield from _pieces(tree.to_local())
    elif isinstance(tree, torch.Tensor):
        yield f"{tree.dtype}{tuple(tree.shape)}".encode()
        yield tree.detach().cpu().contiguous().numpy().tobytes()
    elif isinstance(tree, dict):
        for key in sorted(tree, key=str):
            yield str(key).encode()
            yield from _pieces(tree[key])
    elif isinstance(tree, (list, tuple)):
        yield b"["
        for item in tree:
            yield from _pieces(item)
        yield b"]"
    else:
        yield repr(tree).encode()


def _rates(trainer: Any) -> list[str]:
    return [float(group["lr"]).hex() for optimizer in trainer.optimizers for group in optimizer.param_groups]


def _metrics(trainer: Any) -> dict[str, str]:
    return {name: float(value).hex() for name, value in sorted(trainer.callback_metrics.items())}


def _schedules(trainer: Any) -> list[dict[str, Any]]:
    found = []
    for config in trainer.lr_scheduler_configs:
        state = vars(config.scheduler)
        found.append({name: _plain(state[name]) for name in ("last_epoch", "num_bad_epochs", "best") if name in state})
    return found


def _callbacks(trainer: Any) -> dict[str, dict[str, Any]]:
    """What the callbacks that watch a metric remember; of files, their names."""
    found = {}
    for callback in trainer.callbacks:
        state = vars(callback)
        kept = {name: _plain(state[name]) for name in _WATCHED if name in state}
        if "best_k_models" in state and callback._train_time_interval is None:  # by the clock, no two runs are alike
            kept["files"] = {_name(path): _plain(score) for path, score in callback.best_k_models.items()}
            kept |= {name: _name(state[name]) for name in ("best_model_path", "kth_best_model_path", "last_model_path")}
        elif "best_k_models" in state:
            kept = {}
        if kept:
            found[f"{type(callback).__name__} {state.get('monitor')}"] = kept
    return found


_WATCHED = ("wait_count", "stopped_epoch", "best_score", "best_model_score", "current_score")


def _name(path: str) -> str:
    """Without folders, and without the version that a file gets when one of its name is there from a start before."""
    return re.sub(r"-v\d+(?=\.ckpt$)", "", Path(path).name)


def _plain(value: Any) -> Any:
    return float(value).hex() if isinstance(value, (float, torch.Tensor)) else value
