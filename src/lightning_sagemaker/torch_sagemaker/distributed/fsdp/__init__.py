# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.distributed.fsdp``."""
