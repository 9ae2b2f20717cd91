# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``smdistributed.modelparallel.torch.nn.huggingface.gpt2``."""

from lightning_sagemaker.smdistributed.modelparallel.torch.nn.huggingface._unchanged import unchanged

translate_state_dict_to_hf_gpt2 = unchanged
translate_hf_state_dict_to_smdistributed_gpt2 = unchanged
translate_hf_state_dict_to_smdistributed = unchanged
