# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.context_parallel``: names only."""
