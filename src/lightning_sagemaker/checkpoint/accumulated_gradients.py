# SPDX-License-Identifier: Apache-2.0
"""Gradients that a script with manual optimization accumulates: checkpoints have them.

With automatic optimization a checkpoint is that of the last step instead. With manual optimization other optimizers may have
made steps since, and only the script knows which gradients it will use: those that have changed since a step of their
optimizer are saved.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_sagemaker._compat.param_groups import parameters_in
from lightning_sagemaker._lightning import rank_zero_warn
from lightning_sagemaker.checkpoint.rank_buffers import copied, differing

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from lightning_sagemaker._compat.loops import LoopEvents
    from lightning_sagemaker._types import Trainer


class ManualGradients:
    """Gradients of a fit that are yet to be used.

    Args:
        trainer: Whose fit it is.
        events: Events of the fit.

    """

    def __init__(self, trainer: Trainer, events: LoopEvents) -> None:
        self._trainer = trainer
        self._used: dict[Tensor, tuple[weakref.ref[Tensor], int]] = {}
        self._hooks: list[RemovableHandle] = []
        self._said = False
        events.after_optimizers_load.append(self._watch)

    @property
    def _is_manual(self) -> bool:
        return not self._trainer.lightning_module.automatic_optimization

    def _watch(self) -> None:
        if self._is_manual:
            self._hooks += [one.register_step_post_hook(self._note_step) for one in self._trainer.optimizers]

    def _note_step(self, optimizer: Optimizer, *_: object) -> None:
        for parameter in parameters_in(optimizer.param_groups):
            if (gradient := parameter.grad) is not None:
                self._used[parameter] = weakref.ref(gradient), gradient._version

    def _is_pending(self, parameter: Tensor) -> bool:
        gradient = parameter.grad
        if gradient is None:
            return False
        of, version = self._used.get(parameter, (None, 0))
        unchanged = of is not None and of() is gradient and version == gradient._version
        return not unchanged

    def take(self) -> dict[str, Tensor | None]:
        """Copies of them, by name."""
        if not self._is_manual:
            return {}
        parameters = self._trainer.lightning_module.named_parameters()
        found = {name: one.grad for name, one in parameters if one.grad is not None and self._is_pending(one)}
        whole = {name: one for name, one in found.items() if type(one) is Tensor and one.layout is torch.strided}
        if len(whole) < len(found) and not self._said:
            self._said = True
            rank_zero_warn(
                "Sharded or sparse gradients are not in checkpoints. If the script accumulates them over several batches, a"
                " run that is resumed within these lacks them. HINT: save and stop after steps, as every_n_train_steps does."
            )
        return {name: one for name, one in copied(whole).items() if one.any()}

    def shared(self, own: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
        """For each of :meth:`take` None, if it is the same on rank zero. Collective."""
        if not self._is_manual:
            return {}
        tensors = {name: one for name, one in own.items() if one is not None}
        different = differing(tensors, tensors, self._trainer.world_size)
        return {name: different.get(name) for name in own}

    def put(self, own: Mapping[str, Tensor | None], first: Mapping[str, Tensor | None]) -> None:
        """Restore this rank's, of which those that are None are rank zero's."""
        for name, parameter in self._trainer.lightning_module.named_parameters():
            gradient = first.get(name) if own.get(name) is None else own[name]
            if name in own and gradient is not None and gradient.shape == parameter.shape:
                parameter.grad = gradient.to(parameter, copy=True)

    def put_mean(self, ranks: Sequence[Mapping[str, Tensor | None]], first: Mapping[str, Tensor | None]) -> None:
        """Restore those of other ranks: the next reduction would have averaged them."""
        found: dict[str, Tensor | None] = {}
        for name, of_first in first.items():
            each = [of_first if (one := own.get(name)) is None else one for own in ranks]
            tensors = [one for one in each if one is not None]
            found[name] = torch.stack(tensors).mean(0) if any(one is not of_first for one in tensors) else of_first
        self.put(found, found)

    def release(self) -> None:
        """The fit has ended."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._used.clear()
