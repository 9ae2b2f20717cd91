# SPDX-License-Identifier: Apache-2.0
"""What the recipes that fine-tune share: weights that are given, or a small BERT from scratch."""

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

    A subclass calls ``save_hyperparameters()`` with ``pretrained``, ``size`` and ``dropout`` among its arguments, and
    its data has ``vocab_size`` and what :attr:`length_option` names.

    Args:
        size: Size of the model from scratch.
        optimization: See :class:`~lightning_sagemaker.recipes._common.modules.recipe_module.RecipeModule`.

    Raises:
        MisconfigurationException: If there is no such size.

    """

    auto_model: ClassVar[Any]
    """Auto class of transformers."""
    length_option: ClassVar[str]
    """The data's attribute that says how long inputs may be."""

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
        """The argument for the model, if it has types."""
        return {"token_type_ids": token_type_ids} if getattr(self.model.config, "type_vocab_size", 1) > 1 else {}
