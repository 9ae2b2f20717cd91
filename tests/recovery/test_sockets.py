# SPDX-License-Identifier: Apache-2.0
"""Connections that are new are shut down, whatever numbers they have."""

import socket
import sys

import pytest

from lightning_sagemaker.recovery.sockets import open_sockets, shut_down

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


def test_a_connection_with_the_number_of_one_that_was_closed_is_new():
    """gloo closes the connections of a group that was left in a thread of its own, while the next group is formed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        old, (other, _) = socket.create_connection(address), server.accept()
        number, before = old.fileno(), open_sockets()
        old.close()
        new = socket.create_connection(address)
        accepted, _ = server.accept()
        with other, new, accepted:
            assert new.fileno() == number
            own = {one for one in open_sockets() - before if one[0] == number}
            assert own
            shut_down(own, but_at=-1)
            accepted.settimeout(5)
            assert accepted.recv(1) == b""
