# SPDX-License-Identifier: Apache-2.0
"""Lightning's own callbacks with pipeline partitions and sharded parameters: which work, and why others are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lightning_sagemaker._compat.trainer import callbacks_of
from lightning_sagemaker._lightning import MisconfigurationException, TrainerFn, pytorch_callbacks

if TYPE_CHECKING:
    from lightning_sagemaker._types import Trainer


class StockCallback(NamedTuple):
    """A class of ``lightning.pytorch.callbacks``.

    Attributes:
        name: Name of the class.
        partitions: Why it cannot work with pipeline partitions; empty: it works.
        sharded: Why it cannot work with tensor parallelism and sharded parameters; empty: it works.
        note: What to know of it.

    """

    name: str
    partitions: str = ""
    sharded: str = ""
    note: str = ""


_PRUNES = "it compares all weights and puts masks in their place, and each process has a part of them"
_BATCH = "Lightning has it for one process only"
_AVERAGES = "its average is a whole copy of the module, whose parameters are sharded"
_RESTORES = "it goes back to an optimizer that has made no step, which Lightning's ModelParallelStrategy cannot load"
_CUT = "the average is cut as the module is; checkpoints hold it whole"

STOCK_CALLBACKS = (
    StockCallback("BackboneFinetuning", note="a module that is frozen at first may be on any process"),
    StockCallback("BaseFinetuning", note="likewise"),
    StockCallback("BasePredictionWriter", note="called on all processes, with the predictions of their samples"),
    StockCallback("BatchSizeFinder", _BATCH, _BATCH),
    StockCallback("Callback", note="in training, parameters that a process has no part of are empty"),
    StockCallback("Checkpoint"),
    StockCallback("DeviceStatsMonitor", note="of the process that logs"),
    StockCallback("EMAWeightAveraging", "", _AVERAGES, _CUT),
    StockCallback("EarlyStopping"),
    StockCallback("GradientAccumulationScheduler"),
    StockCallback("LambdaCallback"),
    StockCallback("LearningRateFinder", "", _RESTORES, "the model is made whole again afterwards"),
    StockCallback("LearningRateMonitor"),
    StockCallback("ModelCheckpoint"),
    StockCallback("ModelPruning", _PRUNES, _PRUNES),
    StockCallback("ModelSummary", note="of the whole module, with partitions; of this process's shards otherwise"),
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
    """See that each callback of a Trainer can work, if it is about to fit.

    Args:
        trainer: With all its callbacks.
        partitions: Whether the model is cut into pipeline partitions, or else its parameters are sharded.

    Raises:
        MisconfigurationException: If one cannot.

    """
    if trainer.state.fn != TrainerFn.FITTING:
        return
    for stock in STOCK_CALLBACKS:
        reason = stock.partitions if partitions else stock.sharded
        kind = getattr(pytorch_callbacks, stock.name, None)  # an older Lightning may lack it
        if not reason or kind is None:
            continue
        found = next((callback for callback in callbacks_of(trainer) if isinstance(callback, kind)), None)
        if found is not None:
            raise MisconfigurationException(
                f"{type(found).__name__} was given to a Trainer with {type(trainer.strategy).__name__}, where it cannot"
                f" work: {reason}. HINT: leave it out, or train in one process."
            )
