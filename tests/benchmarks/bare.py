"""The yardstick of serving: a bare WSGI application on the same Granian, set up as ours is.

python -m tests.benchmarks.bare PORT FILE    answers every request with the bytes of FILE
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from granian.constants import Interfaces
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server import Server

from server.config import HEADER_TIMEOUT, THREADS

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def application(body: bytes) -> Application:
    """Answers everything with `body`."""
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    answer = [body]

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "POST":
            environ["wsgi.input"].read()
        start_response("200 OK", headers)
        return answer

    return app


def main() -> None:
    port, body = int(sys.argv[1]), Path(sys.argv[2]).read_bytes()
    server = Server(
        "bare",
        address="127.0.0.1",
        port=port,
        interface=Interfaces.WSGI,
        workers=1,
        blocking_threads=THREADS,
        http1_settings=HTTP1Settings(header_read_timeout=HEADER_TIMEOUT * 1000),
        log_level=LogLevels.error,
    )
    server.serve(target_loader=partial(_load, body), wrap_loader=False)


def _load(body: bytes) -> Application:
    return application(body)


if __name__ == "__main__":
    main()
