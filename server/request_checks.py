"""Checks of every request before it is answered: Host, Content-Length, and the rate of its client.

Host: a web page can make its own name point to this machine (DNS rebinding) and then read the
answers of a server without tokens. It cannot change the Host that the browser sends, so unknown
names are refused. DNS cannot change an IP address, so every address is accepted.

Content-Length: Granian does not report that a chunked body was cut off. Only a Content-Length
shows that, so every body must have one.

Rate: a client is a token or, without one, an address.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Any

from dedupindex.errors import BadInput
from dedupindex.runtime.tables import printable
from server.auth import Access
from server.config import BURST, CLIENTS, Config
from server.logs import LOGGER
from server.metrics import Metrics
from server.responses import Reply, RequestError, error_reply

FREE = ("/healthz", "/readyz", "/metrics")  # paths without a limit of the rate, for monitoring
LOOPBACK = "localhost"
ANY_NAME = "*"
_KEPT = 100  # spellings of accepted hosts that are remembered
_LOGGED = 20  # refused hosts that are logged, each once
_SHOWN = 100  # characters of a host in a message
_WITHOUT_BODY = ("GET", "HEAD")
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._~-]+))(?::[0-9]*)?")
_NAME = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")


def host_name(text: str) -> str:
    """Return a ``--host-name`` in the form that `RequestChecks` compares; raises `BadInput`."""
    name = text.strip().lower().removesuffix(".")
    if name != ANY_NAME and not _NAME.fullmatch(name):
        raise BadInput(
            f"--host-name: {text!r} is no name of a host: give it without scheme, port and path"
        )
    return name


class RequestChecks:
    """Refuses requests; thread-safe."""

    def __init__(self, config: Config, access: Access, metrics: Metrics) -> None:
        self._names = frozenset((LOOPBACK, config.host.lower(), *config.host_names))
        self._access, self._metrics = access, metrics
        self._limit = RateLimit(config.rate_limit) if config.rate_limit else None
        self._logged: set[str] = set()
        self._accepted: set[str] = set()  # values of Host that were accepted before

    def refusal(self, environ: dict[str, Any]) -> Reply | None:
        """Return the reply to a request that is refused, else None."""
        plain = "CONTENT_LENGTH" not in environ and "HTTP_TRANSFER_ENCODING" not in environ
        if not plain or environ.get("HTTP_HOST", "") not in self._accepted:
            try:
                self._check_host(environ)
                _check_body(environ)
            except RequestError as error:
                return self._metrics.reply_to(error, environ)
        if self._limit is None or environ["PATH_INFO"] in FREE:
            return None
        token = self._access.holder(environ)
        client = f"token {token}" if token else network(environ.get("REMOTE_ADDR", ""))
        seconds = self._limit.wait(client)
        if not seconds:
            return None
        self._metrics.error("rate_limited")
        message = f"{client} sends too many requests; wait {seconds:.1f} s"
        after = ("Retry-After", str(max(1, math.ceil(seconds))))
        return error_reply("rate_limited", message, [after])

    def _check_host(self, environ: dict[str, Any]) -> None:
        host: str = environ.get("HTTP_HOST", "")
        if host in self._accepted:
            return
        if not host and environ.get("SERVER_PROTOCOL") != "HTTP/1.1":
            return  # HTTP/1.0 has no Host, and no browser speaks it
        if not host or "," in host:  # Granian joins several headers with commas
            raise RequestError("bad_request", "a request of HTTP/1.1 has one Host, and no more")
        if not self._accepts(host):
            shown = printable(host[:_SHOWN])
            message = (
                f"{shown!r} is no name of this server: ask it by its IP address, or start it with "
                "--host-name and the name"
            )
            if shown not in self._logged and len(self._logged) < _LOGGED:
                self._logged.add(shown)
                LOGGER.warning("refused: %s", message)
            raise RequestError("wrong_host", message)
        if len(self._accepted) < _KEPT and len(host) <= _SHOWN:
            self._accepted.add(host)

    def _accepts(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        literal, name = match[1], match[2] or ""
        if literal:
            return _is_address(literal, IPv6Address)
        name = name.lower().removesuffix(".")
        return ANY_NAME in self._names or name in self._names or _is_address(name)


def _is_address(text: str, kind: type = object) -> bool:
    try:
        return isinstance(ip_address(text), kind)
    except ValueError:
        return False


def _check_body(environ: dict[str, Any]) -> None:
    if "HTTP_TRANSFER_ENCODING" in environ:
        raise RequestError(
            "length_required",
            "send the body with its Content-Length and without Transfer-Encoding: this server "
            "cannot tell whether a body in chunks is complete. curl sends chunks for -T -; give it "
            "a file or -d @-. Send JSON lines of unknown length in several requests",
        )
    length = environ.get("CONTENT_LENGTH", "0")
    if environ["REQUEST_METHOD"] in _WITHOUT_BODY and length != "0":
        raise RequestError("bad_request", f"{environ['REQUEST_METHOD']} takes no body")


class RateLimit:
    """Allows each client `rate` requests a second, and those of `burst` seconds at once.

    Keeps the time up to which the requests of each client are paid for. If there are more than
    `most` clients, the least recent one is forgotten.
    """

    def __init__(
        self,
        rate: int,
        burst: float = BURST,
        most: int = CLIENTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cost, self._slack = 1 / rate, burst - 1 / rate
        self._most, self._clock = most, clock
        self._paid: dict[str, float] = {}  # the least recent first
        self._busy = threading.Lock()

    def wait(self, client: str) -> float:
        """Count a request; return 0, or the seconds after which the client may send the next."""
        with self._busy:
            now = self._clock()
            paid = max(self._paid.pop(client, now), now)
            over = paid - now - self._slack
            refused = over > 1e-9
            self._paid[client] = paid if refused else paid + self._cost
            if len(self._paid) > self._most:
                del self._paid[next(iter(self._paid))]
        return over if refused else 0.0


def network(address: str) -> str:
    """Return the network that counts as one client: an IPv4 address, or a /64 of IPv6."""
    try:
        read = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(read, IPv6Address):
        return address
    if read.ipv4_mapped:
        return str(read.ipv4_mapped)
    return str(IPv6Address(int(read) >> 64 << 64)) + "/64"
