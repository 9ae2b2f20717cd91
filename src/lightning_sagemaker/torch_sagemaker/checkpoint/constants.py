# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.checkpoint.constants``."""

SMP_IS_LOAD_INFO_KEY = "_smp_is_load_info"
SMP_IS_PARTIAL_KEY = "_smp_is_partial"
