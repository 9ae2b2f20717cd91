# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.distributed.checkpoint``: torch's own distributed checkpoint."""
