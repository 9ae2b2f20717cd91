# SPDX-License-Identifier: Apache-2.0
"""States of random number generators that a script has created, in a form that a checkpoint can hold."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TypeGuard, cast

import numpy as np
import torch

from lightning_sagemaker.checkpoint.random_state import (
    numpy_state,
    python_state,
    restore_numpy_state,
    restore_python_state,
)

RandomNumbers = torch.Generator | np.random.Generator | np.random.RandomState | random.Random


def is_generator(value: object) -> TypeGuard[RandomNumbers]:
    """Whether a value is a generator that has a state."""
    found = isinstance(value, (torch.Generator, np.random.Generator, np.random.RandomState, random.Random))
    return found and not isinstance(value, random.SystemRandom)


def is_global(value: object) -> bool:
    """Whether ``value`` is a library's global generator, which :mod:`.random_state` saves; scripts may refer to it."""
    shared = (torch.default_generator, getattr(np.random.random, "__self__", None))
    return any(value is one for one in (*shared, getattr(random.random, "__self__", None)))


def generator_state(generator: RandomNumbers) -> object:
    """A generator's state."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().cpu()
    if isinstance(generator, np.random.Generator):
        return _plain(generator.bit_generator.state)
    return python_state(generator) if isinstance(generator, random.Random) else numpy_state(generator)


def restore_generator(generator: RandomNumbers, state: object) -> None:
    """Restore :func:`generator_state`, unless the script now has another kind of generator."""
    if isinstance(generator, torch.Generator):
        if isinstance(state, torch.Tensor) and state.shape == generator.get_state().shape:
            generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        if isinstance(state, dict) and state["bit_generator"] == generator.bit_generator.state["bit_generator"]:
            generator.bit_generator.state = cast("Mapping[str, object]", _unplain(state))
    elif isinstance(state, list):
        if isinstance(generator, random.Random) and len(state) == len(python_state(generator)):
            restore_python_state(generator, state)
        elif isinstance(generator, np.random.RandomState) and len(state) == len(numpy_state(generator)):
            restore_numpy_state(generator, state)


def _plain(state: object) -> object:
    """NumPy's state of a generator, with arrays converted, as a checkpoint of plain data cannot hold them."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    if isinstance(state, np.ndarray):
        return {"words": [int(word) for word in state], "dtype": str(state.dtype)}
    return int(state) if isinstance(state, np.integer) else state


def _unplain(state: object) -> object:
    if not isinstance(state, dict):
        return state
    if state.keys() == {"words", "dtype"}:
        return np.array(state["words"], dtype=state["dtype"])
    return {name: _unplain(value) for name, value in state.items()}
