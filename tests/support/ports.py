"""Ports on which no process listens."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager


@contextmanager
def refusing_port() -> Iterator[int]:
    """A port of 127.0.0.1 that refuses connections, and that no other program gets meanwhile."""
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        yield int(bound.getsockname()[1])
