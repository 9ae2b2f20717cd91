# SPDX-License-Identifier: Apache-2.0
"""Events of objects that are sent to other processes, as Lightning's ``start_method="spawn"`` sends callbacks."""

from __future__ import annotations

import threading


class Event(threading.Event):
    """An event of one process: in another one there is a new one, which is not set."""

    def __reduce__(self) -> tuple[type[Event], tuple[()]]:
        return Event, ()
