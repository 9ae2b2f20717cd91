# SPDX-License-Identifier: Apache-2.0
"""A process ends when the one that started it is killed."""

import multiprocessing
import os
import signal
import time

from lightning_sagemaker.data.parent import end_with_parent


def _child(pipe):
    end_with_parent()
    pipe.send(os.getpid())
    time.sleep(60)


def _parent(pipe):
    multiprocessing.get_context("fork").Process(target=_child, args=(pipe,)).start()
    time.sleep(60)


def test_the_child_of_a_killed_process_ends():
    here, there = multiprocessing.Pipe()
    parent = multiprocessing.get_context("fork").Process(target=_parent, args=(there,))
    parent.start()
    there.close()
    here.recv()
    os.kill(parent.pid, signal.SIGKILL)
    parent.join()
    assert here.poll(20)
    try:
        here.recv()
    except EOFError:  # nobody has the other end any more
        return
    raise AssertionError("the child has said something else")
