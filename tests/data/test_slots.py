# SPDX-License-Identifier: Apache-2.0
"""Messages through memory that workers share with the training process: what is read is what was written."""

import multiprocessing
import pickle

import numpy as np
import pytest

from lightning_sagemaker.data.slots import Slots

CONTENTS = [
    [np.arange(5), np.arange(3, dtype=np.int8), "text"],
    [np.empty((0, 3)), np.array(7), np.asfortranarray(np.arange(6).reshape(2, 3))],
    [np.full(8, np.nan), {"deep": np.array([True, False])}],
    ["no array"],
]


class Copied:
    """Copies its arrays when it arrives, as a message does."""

    def __init__(self, parts):
        self.parts = parts

    def __reduce__(self):
        return _copied, (self.parts,)


def _copied(parts):
    return [part.copy() if isinstance(part, np.ndarray) else part for part in parts]


def sent(what):
    return pickle.dumps(what)


def received(message):
    return pickle.loads(message)


@pytest.mark.parametrize("content", CONTENTS)
def test_what_is_read_is_what_was_written(content):
    slots = Slots(2, 2, 1 << 10)
    for worker in (1, 0, 1, 0, 1):
        np.testing.assert_equal(received(sent(slots.put(Copied(content), worker))), content)


def test_a_message_does_not_hold_its_arrays_and_outlives_later_ones():
    slots = Slots(1, 2, 1 << 16)
    messages = [sent(slots.put(Copied([np.full(1 << 13, number)]), 0)) for number in range(2)]
    assert max(map(len, messages)) < 1 << 10
    first = received(messages[0])
    sent(slots.put(Copied([np.zeros(1 << 13)]), 0))  # in the first one's slot
    assert [first[0][0], received(messages[1])[0][-1]] == [0, 1]


def test_slots_that_are_not_read_yet_are_not_written_over():
    slots = Slots(1, 2, 1 << 16)
    messages = [slots.put(Copied([np.full(1 << 10, number)]), 0) for number in range(4)]
    assert [type(message) is Copied for message in messages] == [False, False, True, True]
    assert [received(sent(message))[0][0] for message in messages] == [0, 1, 2, 3]
    assert type(slots.put(Copied([np.zeros(8)]), 0)) is not Copied  # free again


def test_what_does_not_fit_goes_in_the_message():
    slots = Slots(1, 1, 80)
    assert type(slots.put(Copied([np.zeros(11)]), 0)) is Copied
    assert type(slots.put(Copied([np.zeros(10)]), 0)) is not Copied


def test_a_process_that_was_not_forked_has_none():
    assert pickle.loads(pickle.dumps({"slots": Slots(1, 1, 8)})) == {"slots": None}


def test_a_message_that_nobody_waits_for_is_dropped():
    slots = Slots(1, 1, 8)
    message = sent(slots.put(Copied([np.zeros(1)]), 0))
    del slots
    assert received(message) == []


def test_a_forked_process_writes_what_its_parent_reads():
    context = multiprocessing.get_context("fork")
    slots, queue = Slots(2, 2, 1 << 10), context.SimpleQueue()

    def work(worker):
        for number in range(2):
            queue.put(slots.put(Copied([np.full(9, 10 * worker + number)]), worker))

    processes = [context.Process(target=work, args=(worker,)) for worker in range(2)]
    for process in processes:
        process.start()
    found = sorted(int(queue.get()[0][0]) for _ in range(4))
    for process in processes:
        process.join()
    assert found == [0, 1, 10, 11]
