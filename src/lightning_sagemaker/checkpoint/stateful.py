# SPDX-License-Identifier: Apache-2.0
"""The protocol of objects with a state, like torch's in ``torch.distributed.checkpoint``, which takes long to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeGuard, runtime_checkable

if TYPE_CHECKING:
    from lightning_sagemaker._types import StateDict


@runtime_checkable
class Stateful(Protocol):
    """A module, an optimizer, a scheduler, a callback, a loader or another object with a state."""

    def state_dict(self) -> StateDict:
        """The object's state."""

    def load_state_dict(self, state_dict: StateDict, /) -> object:
        """Restore a state."""


def is_stateful(value: object) -> TypeGuard[Stateful]:
    """Whether an object has these methods; not if asking for them fails.

    Before Python 3.12 a protocol calls ``__getattr__``, which of a dictionary whose keys are attributes raises ``KeyError``.
    """
    try:
        return isinstance(value, Stateful)
    except Exception:
        return False
