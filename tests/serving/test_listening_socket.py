"""Options of accepted connections."""

import socket

import pytest

from lifesign.serving.listening_socket import TAKE_SECONDS, bound


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="NOT RUN: only Linux has the option")
def test_connection_ends_when_its_client_acknowledges_nothing() -> None:
    with bound("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            timeout_ms = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert timeout_ms == TAKE_SECONDS * 1000
