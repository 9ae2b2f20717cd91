# SPDX-License-Identifier: Apache-2.0
"""A job, and distributions of it, that several tests of launching describe."""

from tests.launch.seeds import ROLE

P4D = {
    "recipe": "albert-mlm",
    "role": ROLE,
    "instance_type": "ml.p4d.24xlarge",
    "instance_count": 2,
    "region": "us-east-1",
}
SMDDP = {"smdistributed": {"dataparallel": {"enabled": True}}}
SMDDP_TORCHRUN = {**SMDDP, "torch_distributed": {"enabled": True}}


def partitions(count):
    parameters = {"partitions": count, "microbatches": 4, "ddp": True}
    return {"smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}}, "mpi": {"enabled": True}}
