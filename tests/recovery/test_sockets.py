# SPDX-License-Identifier: Apache-2.0
"""Connections that are new are shut down, whatever numbers they have."""

import socket
import sys

import pytest

from lightning_sagemaker.recovery.sockets import ShutDown, open_sockets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@pytest.fixture
def shut():
    one = ShutDown()
    yield one
    one.close()


def test_a_connection_with_the_number_of_one_that_was_closed_is_new(shut):
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
            shut.add(own, but_at=-1)
            new.settimeout(5)
            assert new.recv(1) == b""


def test_a_peer_that_has_not_noticed_can_write_until_the_connections_are_closed(shut):
    """What gloo's own thread cannot write is lost, and who waits for it waits for ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = open_sockets()
        own, (peer, _) = socket.create_connection(server.getsockname()), server.accept()
        with peer:
            number = own.fileno()
            for _ in range(2):  # the second time it has been shut down
                shut.add({one for one in open_sockets() - before if one[0] == number}, but_at=-1)
            own.send(b"a")
            own.close()  # as gloo does once it has read the end
            for _ in range(3):
                peer.send(b"b")
            peer.settimeout(5)
            assert peer.recv(1) == b"a"
            peer.settimeout(0.2)
            with pytest.raises(TimeoutError):
                peer.recv(1)
            shut.close()
            peer.settimeout(5)
            with pytest.raises(ConnectionResetError):  # what it has sent was not read
                peer.recv(1)
