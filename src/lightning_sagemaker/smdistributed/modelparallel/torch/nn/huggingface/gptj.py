# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``smdistributed.modelparallel.torch.nn.huggingface.gptj``."""

from lightning_sagemaker.smdistributed.modelparallel.torch.nn.huggingface._unchanged import unchanged

translate_state_dict_to_hf_gptj = unchanged
translate_hf_state_dict_to_smdistributed_gptj = unchanged
translate_hf_gptj_state_dict_to_smdistributed = unchanged
translate_hf_gptj_state_dict_to_smdistributed_gptj = unchanged
