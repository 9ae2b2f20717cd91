# SPDX-License-Identifier: Apache-2.0
"""Where the workers of these tests run: on the CPU, or with ``LIGHTNING_SAGEMAKER_TEST_ACCELERATOR=cuda`` on one GPU.

On the GPU each rank is a host of its own (see tests/forked.py): nccl takes a device only once for each host.
"""

import os

import torch

ACCELERATOR = os.environ.get("LIGHTNING_SAGEMAKER_TEST_ACCELERATOR", "cpu")
DEVICE = torch.device(ACCELERATOR)
BACKEND = {"cpu": "gloo", "cuda": "nccl"}[ACCELERATOR]
PLACE = {
    "accelerator": ACCELERATOR,
    "devices": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    "num_nodes": int(os.environ.get("GROUP_WORLD_SIZE", "1")),
}
"""Of a Trainer or Fabric."""
