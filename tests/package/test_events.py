# SPDX-License-Identifier: Apache-2.0
"""Callbacks can be sent to processes that Lightning starts."""

import inspect
import pickle

import pytest
from lightning.pytorch import Callback

import lightning_sagemaker
from lightning_sagemaker.events import Event

PUBLIC = [getattr(lightning_sagemaker, name) for name in lightning_sagemaker.__all__]
CALLBACKS = [kind for kind in PUBLIC if inspect.isclass(kind) and issubclass(kind, Callback)]


@pytest.mark.parametrize("kind", CALLBACKS)
def test_every_callback_is_sent(kind):
    assert type(pickle.loads(pickle.dumps(kind()))) is kind


def test_an_event_is_not_set_elsewhere():
    event = Event()
    event.set()
    assert not pickle.loads(pickle.dumps(event)).is_set()
