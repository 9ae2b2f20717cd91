# SPDX-License-Identifier: Apache-2.0
"""Which errors come from a lost rank, and how a process ends that others have left before the first step."""

import os
import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch.distributed as dist

from lightning_sagemaker.recovery import wire
from lightning_sagemaker.recovery.rank_loss import RanksChanged, StateLost, is_rank_loss, restart_after_losses


def test_a_store_that_times_out_is_one_of_a_collective():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with pytest.raises(RuntimeError) as caught:
        store.wait(["/quorum-7/1//cpu//0/1"], timedelta(milliseconds=10))
    rank = SimpleNamespace(client=SimpleNamespace(changed=True))
    assert is_rank_loss(caught.value, cast(Any, rank), 3)


@pytest.mark.parametrize(
    ("error", "changed", "code"),
    [
        (StateLost("nobody has the state"), False, wire.RESTART),
        (RanksChanged("a rank was lost"), False, wire.RESTART),  # in a sanity check
        (RuntimeError("Connection closed by peer"), True, wire.RESTART),
        (ValueError("a bug of the script"), True, 1),
    ],
)
def test_a_process_that_others_have_left_is_started_again(error, changed, code):
    rank = SimpleNamespace(follows=False, client=SimpleNamespace(changed=changed))
    child = os.fork()
    if not child:
        restart_after_losses(cast(Any, rank))
        sys.excepthook(type(error), error, None)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
