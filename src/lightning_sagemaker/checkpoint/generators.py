# SPDX-License-Identifier: Apache-2.0
"""Random number generators that a script has made: their states, as a checkpoint can hold them."""

from __future__ import annotations

import random
from typing import TypeGuard, cast

import numpy as np
import torch

from lightning_sagemaker.checkpoint.random_state import (
    NumPyState,
    PythonState,
    numpy_state,
    python_state,
    restore_numpy_state,
    restore_python_state,
)

RandomNumbers = torch.Generator | np.random.Generator | np.random.RandomState | random.Random


def is_generator(value: object) -> TypeGuard[RandomNumbers]:
    """Whether it is one."""
    return isinstance(value, (torch.Generator, np.random.Generator, np.random.RandomState, random.Random))


def generator_state(generator: RandomNumbers) -> object:
    """Its state, as plain containers and tensors."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().cpu()
    if isinstance(generator, np.random.Generator):
        return _plain(generator.bit_generator.state)
    return python_state(generator) if isinstance(generator, random.Random) else numpy_state(generator)


def restore_generator(generator: RandomNumbers, state: object) -> None:
    """Restore :func:`generator_state`."""
    if isinstance(generator, torch.Generator):
        generator.set_state(cast(torch.Tensor, state))
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _unplain(state)  # type: ignore[assignment]
    elif isinstance(generator, random.Random):
        restore_python_state(generator, cast(PythonState, state))
    else:
        restore_numpy_state(generator, cast(NumPyState, state))


def _plain(state: object) -> object:
    """NumPy's description of a generator without arrays, which a checkpoint of plain data cannot hold."""
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
