# SPDX-License-Identifier: Apache-2.0
"""``"smp"`` for the Trainer: an unchanged LightningModule, partitioned into the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torchmetrics import Metric
from typing_extensions import override

from lightning_sagemaker._compat.averages import keep_averages
from lightning_sagemaker._compat.guard import require, shadow
from lightning_sagemaker._compat.trainer import bare_optimizer, callbacks_of
from lightning_sagemaker._lightning import (
    MisconfigurationException,
    Precision,
    TrainerFn,
    rank_zero_info,
)
from lightning_sagemaker.parallel.engine import share_results
from lightning_sagemaker.parallel.gradients import accumulate, swap_gradients, sync_overflow_skips
from lightning_sagemaker.parallel.groups import ParallelGroups
from lightning_sagemaker.parallel.model import PipelinedModel
from lightning_sagemaker.parallel.optimizer_scope import check_scope
from lightning_sagemaker.parallel.overlap import OverlappedReduction
from lightning_sagemaker.strategies.batch_norm import log_microbatch_statistics
from lightning_sagemaker.strategies.ddp import JobDDPStrategy
from lightning_sagemaker.strategies.delayed import DelayedModel
from lightning_sagemaker.strategies.merge import detached, merge, moved_to
from lightning_sagemaker.strategies.microbatch_loss import microbatch_loss
from lightning_sagemaker.strategies.pipeline_checkpoints import PipelineCheckpoints
from lightning_sagemaker.strategies.pipeline_checks import check_module, check_options, uncompiled
from lightning_sagemaker.strategies.pipeline_collectives import PipelineCollectives
from lightning_sagemaker.strategies.replica_batches import ReplicaBatches, recording_reads
from lightning_sagemaker.strategies.script_gradients import ScriptGradients
from lightning_sagemaker.strategies.smp_parameters import ParallelLayout
from lightning_sagemaker.strategies.step_attributes import StepAttributes
from lightning_sagemaker.strategies.step_logs import Record, Records, recorded, replay
from lightning_sagemaker.strategies.stock_callbacks import check_trainer

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lightning_sagemaker._types import StepOutput, Trainer


T = TypeVar("T")


class SMPStrategy(
    ReplicaBatches, DelayedModel, PipelineCollectives, PipelineCheckpoints, ParallelLayout, JobDDPStrategy
):
    """SageMaker's pipeline parallelism: the layers of a model on several processes, with replicas on others.

    The LightningModule stays unchanged, as long as each step calls its model once, and the model's forward pass is a
    sequence of modules, such as a list of blocks with other code before and after it. It is partitioned at the first
    step. Each batch is split into microbatches; the loss is the mean over these, which equals that of the batch if the
    loss is a mean over samples. All processes of a model replica train on the batch of the first one.

    ``self.log`` works as on one process: what the last stage logs is logged on all ranks, as the mean over the
    microbatches. In validation, test and prediction the rest of the step runs on all ranks, with the model's real
    output; in training it runs on the last stage only.

    Args:
        ends: Number of blocks up to the end of each stage. Default: balanced costs.
        save_distributed_checkpoint: Whether each process writes its part into a folder, else rank zero writes one file.
        stages_per_rank: Number of stages per process: more reduce the bubble and increase the traffic.
        whole_batches: Whether each process receives the full batch, and not only the tensors that it read in the first step.
        overlap_reduction: Whether gradients of replicas are averaged during the backward passes, and not after them.
        **kwargs: ``parameters``, ``degrees``, ``job`` and ``activation_checkpointing`` of
            :class:`~lightning_sagemaker.strategies.smp_parameters.ParallelLayout`, and those of
            ``lightning.pytorch.strategies.DDPStrategy`` that are not about its wrapper.

    Raises:
        ParallelConfigError: If the parameters contradict each other or the number of processes, there are none,
            or they request shards.

    """

    def __init__(
        self,
        *args: object,
        ends: Sequence[int] | None = None,
        stages_per_rank: int = 1,
        save_distributed_checkpoint: bool = False,
        whole_batches: bool = False,
        overlap_reduction: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        check_options(self.degrees, ends is not None, self.activation_checkpointing)
        self._ends, self._stages_per_rank, self._whole_batches = ends, stages_per_rank, whole_batches
        self._cuts = {}
        self.saves_parts = save_distributed_checkpoint
        self._found: list[Tensor | None] | None = None
        self._reduces, self._overlaps = True, overlap_reduction
        self._reduction: OverlappedReduction | None = None

    @override
    def setup_environment(self) -> None:
        module = self.lightning_module
        assert module is not None
        check_trainer(module.trainer, partitions=True)  # before any process group is created
        if self.saves_parts and keep_averages(callbacks_of(module.trainer)):
            raise MisconfigurationException(
                "save_distributed_checkpoint=True was set with a callback that averages weights, whose checkpoints are"
                " one file. HINT: leave it out."
            )
        super().setup_environment()

    @override
    def setup_distributed(self) -> None:
        self.set_world_ranks()
        self.degrees.replicas(self.world_size)  # raises before any process group is created
        super().setup_distributed()
        self._groups = ParallelGroups.build(self.degrees)
        if self.degrees.tensor > 1:
            self.sync_seed(self._groups.cpu_groups["TP"])
        self.log_ignored_parameters()

    @override
    def setup(self, trainer: Trainer) -> None:
        module = self.lightning_module
        assert self.accelerator is not None
        assert module is not None
        self._failed = False
        require(self, "_layer_sync")
        check_module(module, trainer.state.fn == TrainerFn.FITTING and self._layer_sync is not None)
        self._uncompiled = uncompiled(module)
        self.accelerator.setup(trainer)
        self.precision_plugin.convert_module(module)
        self.model_to_device()
        if trainer.state.fn == TrainerFn.FITTING:
            self.setup_optimizers(trainer)
            for optimizer in self.optimizers:
                check_scope(bare_optimizer(optimizer), self.degrees.tensor > 1)
            if self.degrees.microbatches > 1:
                log_microbatch_statistics(module)
        self.setup_precision_plugin()
        shadow(self.precision_plugin, "clip_grad_by_norm", self._clip_norm)  # of the complete model, not of this stage
        scaler = getattr(self.precision_plugin, "scaler", None)
        if scaler is not None:
            sync_overflow_skips(scaler, self.root_device, self.groups.groups["MP"])
        for metric in (found for found in module.modules() if isinstance(found, Metric)):
            metric.dist_sync_fn = self.gather_metric

    def _partition(self, step: Callable[[T], object], microbatch: T) -> PipelinedModel:
        """Return the pipeline, which is created at the first step."""
        if self._pipeline is None:
            module = self.lightning_module
            assert module is not None
            with recorded(module, Records()), self.within_step(traced=True):
                self._pipeline = PipelinedModel(
                    module,
                    self.groups,
                    self.root_device,
                    step,
                    microbatch,
                    stages_per_rank=self._stages_per_rank,
                    ends=self._ends,
                    recompute=self.activation_checkpointing,
                )
            rank_zero_info(self._pipeline.summary)
            self._script_gradients = ScriptGradients(self._pipeline, module)
            self._load_own_states(self._pipeline)
            self._partition_averages_and_states(self._pipeline)
        return self._pipeline

    @override
    def training_step(self, batch: object, *args: object, **kwargs: object) -> StepOutput:
        with self._uncompiled():
            return self._train(batch, *args, **kwargs)

    def _train(self, batch: object, *args: object, **kwargs: object) -> StepOutput:
        module = self.lightning_module
        assert module is not None
        weight = 1.0

        def step(part: tuple[object, float]) -> StepOutput:
            nonlocal weight
            content, weight = part
            records.weight = weight
            with self.precision_plugin.train_step_context():
                return module.training_step(content, *args, **kwargs)

        def loss_of(result: object) -> Tensor:
            scaler = getattr(self.precision_plugin, "scaler", None)
            loss = microbatch_loss(result, module.trainer.accumulate_grad_batches, scaler)
            return loss * weight  # the weight of the microbatch whose step has just returned

        use = self._use("training_step", args)
        batch = self._batch(batch, use)
        parts, weights = self._microbatches("training_step", batch, args)
        records = Records()
        pipeline = self._partition(step, (parts[0], weights[0]))
        kept = swap_gradients(pipeline.parameters)  # the Trainer zeroes the old gradients after this step
        attributes = StepAttributes(module)
        self._reduction = pipeline.reduction if self._reduces and self._overlaps else None
        if self._reduction is not None:
            self._reduction.begin(() if self._zeroes_gradients else kept)
        with recorded(module, records), recording_reads(batch, parts, self.groups, use) as reads:
            pairs = list(zip(parts, weights, strict=True))
            with self.within_step():
                results = pipeline.engine.run(step, pairs, loss_of, self._reduction, "training_step")
            reads.record_result([results, list(records)])
        self._found = swap_gradients(pipeline.parameters, kept)
        changed = attributes.changed() if pipeline.engine.has_last_stage else {}
        shared = share_results([[detached(result) for result in results], list(records), changed], self.groups)
        if not pipeline.engine.has_last_stage:
            attributes.take_over(moved_to(shared[2], self.root_device))
        replay(module, [Record(*record) for record in moved_to(shared[1], self.root_device)])
        result: StepOutput = merge(shared[0], None if len(set(weights)) == 1 else weights)
        return moved_to(result, self.root_device)

    @override
    def backward(self, closure_loss: Tensor, optimizer: Optimizer | None, *args: object, **kwargs: object) -> Tensor:
        """Add the gradients of the backward passes, which ran with the forward passes; reduce them if this is a step."""
        pipeline, module = self._pipeline, self.lightning_module
        assert pipeline is not None
        assert module is not None
        assert self._found is not None
        Precision.pre_backward(
            self.precision_plugin, closure_loss, module
        )  # calls the hooks; the loss is already scaled
        found, self._found = self._found, None
        if self._reduction is None:
            accumulate(pipeline.parameters, found)
            if self._reduces:
                pipeline.reduce_gradients()
        else:
            before = swap_gradients(pipeline.parameters, found)
            self._reduction.finish()
            if self._zeroes_gradients:  # otherwise already added
                accumulate(pipeline.parameters, before)
        return self.precision_plugin.post_backward(closure_loss, module)

    @property
    def _zeroes_gradients(self) -> bool:
        """Whether the Trainer sets gradients to zero in this batch, by the rule of its loop."""
        trainer = self.lightning_module.trainer  # type: ignore[union-attr]
        return bool(trainer.fit_loop.epoch_loop.batch_idx % trainer.accumulate_grad_batches == 0)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Context in which gradients are accumulated and not reduced."""
        self._reduces = False
        try:
            yield
        finally:
            self._reduces = True

    def _clip_norm(self, optimizer: Optimizer, clip_val: float) -> None:
        if clip_val > 0:
            assert self._pipeline is not None
            self._pipeline.clip_norm(list(self.precision_plugin.main_params(optimizer)), clip_val)

    @override
    def validation_step(self, batch: object, *args: object, **kwargs: object) -> StepOutput:
        found: StepOutput = self._evaluate(
            "validation_step", self.precision_plugin.val_step_context, batch, *args, **kwargs
        )
        return found

    @override
    def test_step(self, batch: object, *args: object, **kwargs: object) -> StepOutput:
        found: StepOutput = self._evaluate("test_step", self.precision_plugin.test_step_context, batch, *args, **kwargs)
        return found

    @override
    def predict_step(self, batch: object, *args: object, **kwargs: object) -> object:
        return self._evaluate("predict_step", self.precision_plugin.predict_step_context, batch, *args, **kwargs)

    def _evaluate(
        self,
        name: str,
        context: Callable[[], AbstractContextManager[None]],
        batch: object,
        *args: object,
        **kwargs: object,
    ) -> Any:
        module = self.lightning_module

        def step(part: object) -> object:
            with context(), self._uncompiled():
                return getattr(module, name)(part, *args, **kwargs)

        use = self._use(name, args)
        batch = self._batch(batch, use)
        parts = self._even_parts(name, batch, args)  # the last batch of a data set may have any size
        pipeline = self._partition(step, parts[0])
        if pipeline.stages.has_outer:
            with recording_reads(batch, parts, self.groups, use) as reads:
                with self.within_step():
                    results = pipeline.engine.run_everywhere(step, parts, name)
                reads.record_result(results)
            return merge(results)
        records = Records()  # the other stages cannot run the rest of the step
        assert module is not None
        with torch.no_grad(), recorded(module, records), recording_reads(batch, parts, self.groups, use) as reads:
            with self.within_step():
                results = pipeline.engine.run(step, parts, kind=name)
            reads.record_result([results, list(records)])
        shared = share_results([results, list(records)], self.groups)
        replay(module, [Record(*record) for record in moved_to(shared[1], self.root_device)])
        return moved_to(merge(shared[0]), self.root_device)
