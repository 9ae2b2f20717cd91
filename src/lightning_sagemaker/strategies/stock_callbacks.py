# SPDX-License-Identifier: Apache-2.0
"""Lightning's own callbacks with pipeline partitions and sharded parameters: which work, and why others are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lightning_sagemaker._compat.trainer import callback_of
from lightning_sagemaker._lightning import MisconfigurationException, TrainerFn, pytorch_callbacks

if TYPE_CHECKING:
    from lightning_sagemaker._types import Trainer


class StockCallback(NamedTuple):
    """A class of ``lightning.pytorch.callbacks``.

    Attributes:
        name: Name of the class.
        partitions: Why it is not supported with pipeline partitions; empty if it is.
        sharded: Why it is not supported with tensor parallelism and sharded parameters; empty if it is.
        note: Remark.

    """

    name: str
    partitions: str = ""
    sharded: str = ""
    note: str = ""


_PRUNES = "it prunes by comparing all weights, and each process has only a shard"
_BATCH = "Lightning supports it in one process only"
_AVERAGES = "its average is a full copy of the module, whose parameters are sharded"
_RESTORES = "it restores an optimizer that has not stepped, which Lightning's ModelParallelStrategy cannot load"
_CUT = "the average is partitioned like the module; checkpoints hold all of it"

STOCK_CALLBACKS = (
    StockCallback("BackboneFinetuning", note="a module that starts frozen may be on any process"),
    StockCallback("BaseFinetuning", note="likewise"),
    StockCallback("BasePredictionWriter", note="called on all processes, with the predictions of their samples"),
    StockCallback("BatchSizeFinder", _BATCH, _BATCH),
    StockCallback("Callback", note="during training, parameters that a process does not hold are empty"),
    StockCallback("Checkpoint"),
    StockCallback("DeviceStatsMonitor", note="of the logging process"),
    StockCallback("EMAWeightAveraging", "", _AVERAGES, _CUT),
    StockCallback("EarlyStopping"),
    StockCallback("GradientAccumulationScheduler"),
    StockCallback("LambdaCallback"),
    StockCallback("LearningRateFinder", "", _RESTORES, "the full model is restored afterwards"),
    StockCallback("LearningRateMonitor"),
    StockCallback("ModelCheckpoint"),
    StockCallback("ModelPruning", _PRUNES, _PRUNES),
    StockCallback("ModelSummary", note="of the full module with partitions; otherwise of this process's shards"),
    StockCallback("OnExceptionCheckpoint", note="for errors that all processes raise, as in a step"),
    StockCallback("ProgressBar"),
    StockCallback("RichModelSummary", note="as ModelSummary"),
    StockCallback("RichProgressBar"),
    StockCallback("SpikeDetection"),
    StockCallback("StochasticWeightAveraging", "", _AVERAGES, _CUT),
    StockCallback("TQDMProgressBar"),
    StockCallback("ThroughputMonitor"),
    StockCallback("Timer"),
    StockCallback("WeightAveraging", "", _AVERAGES, _CUT),
)


def check_trainer(trainer: Trainer, partitions: bool) -> None:
    """Check that a Trainer's callbacks are supported, if it is about to fit.

    Args:
        trainer: Trainer with all its callbacks.
        partitions: Whether the model has pipeline partitions; otherwise its parameters are sharded.

    Raises:
        MisconfigurationException: If a callback is not supported.

    """
    if trainer.state.fn != TrainerFn.FITTING:
        return
    for stock in STOCK_CALLBACKS:
        reason = stock.partitions if partitions else stock.sharded
        kind = getattr(pytorch_callbacks, stock.name, None)  # an older Lightning may lack it
        if not reason or kind is None:
            continue
        found = callback_of(trainer, kind)
        if found is not None:
            raise MisconfigurationException(
                f"{type(found).__name__} was given to a Trainer with {type(trainer.strategy).__name__}, where it cannot"
                f" work: {reason}. HINT: leave it out, or train in one process."
            )
