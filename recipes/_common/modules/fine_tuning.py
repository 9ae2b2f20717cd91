# SPDX-License-Identifier: Apache-2.0
"""Base class of the recipes that fine-tune pretrained weights, or train a small BERT from scratch."""

from __future__ import annotations

from typing import Any, ClassVar

from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from transformers import BertConfig, PretrainedConfig

from lightning_sagemaker.recipes._common.modules.pretrained import check_length, load_config, load_model
from lightning_sagemaker.recipes._common.modules.recipe_module import RecipeModule
from lightning_sagemaker.recipes._common.modules.sizes import BERT_SIZES


class FineTunedModule(RecipeModule):
    """A transformer with a new head.

    A subclass calls ``save_hyperparameters()`` with ``pretrained``, ``size`` and ``dropout`` among its arguments; its
    data module has ``vocab_size`` and the attribute that :attr:`length_option` names.

    Args:
        size: Size of a model trained from scratch.
        optimization: See :class:`~lightning_sagemaker.recipes._common.modules.recipe_module.RecipeModule`.

    Raises:
        MisconfigurationException: If the size is unknown.

    """

    auto_model: ClassVar[Any]
    """transformers' auto class of the model with its head."""
    length_option: ClassVar[str]
    """Name of the data module's attribute with the maximum tokens of an input."""

    def __init__(self, size: str, **optimization: Any) -> None:
        super().__init__(**optimization)
        if size not in BERT_SIZES:
            raise MisconfigurationException(
                f"model.size={size!r} was set. HINT: choose one of {', '.join(BERT_SIZES)}."
            )

    def settings(self) -> dict[str, Any]:
        """Entries of the model's configuration that follow from the data."""
        return {}

    def build(self, config: PretrainedConfig | None) -> Any:
        """The model, checked to have a position for every token of an input."""
        if config is not None:
            return self.auto_model.from_config(config)
        settings, dropout = self.settings(), self.hparams["dropout"]
        if dropout is not None:
            names = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
            settings |= dict.fromkeys(names, dropout)
        pretrained: str | None = self.hparams["pretrained"]
        if pretrained is None:
            sizes = BERT_SIZES[self.hparams["size"]]
            made: PretrainedConfig = BertConfig(vocab_size=self.data.vocab_size, **{**sizes, **settings})
        else:
            made = load_config(pretrained, **settings)
        check_length(made, getattr(self.data, self.length_option), f"data.{self.length_option}")
        return (
            self.auto_model.from_config(made) if pretrained is None else load_model(self.auto_model, pretrained, made)
        )

    def token_types(self, token_type_ids: Tensor) -> dict[str, Tensor]:
        """The ``token_type_ids`` argument, if the model has several types."""
        return {"token_type_ids": token_type_ids} if getattr(self.model.config, "type_vocab_size", 1) > 1 else {}
