"""Listening sockets that let no connection in for a moment."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from server import listeners


def test_what_comes_while_a_socket_is_shut_waits_until_it_is_open_again() -> None:
    with ExitStack() as stack:
        (listener,) = listeners.listen("127.0.0.1", 0, 1)
        stack.enter_context(listener)
        address = listener.getsockname()
        before = stack.enter_context(socket.create_connection(address, 10))
        listeners.shut([listener])
        with pytest.raises(TimeoutError):
            socket.create_connection(address, 0.2)
        waiting = stack.enter_context(socket.socket())
        waiting.setblocking(False)
        assert waiting.connect_ex(address) != 0
        accepted = stack.enter_context(listener.accept()[0])
        assert accepted.getpeername() == before.getsockname()  # what had come before is accepted
        listeners.reopen(listener)
        accepted = stack.enter_context(listener.accept()[0])
        assert accepted.getpeername() == waiting.getsockname()
        waiting.setblocking(True)
        waiting.sendall(b"x")
        assert accepted.recv(1) == b"x"
