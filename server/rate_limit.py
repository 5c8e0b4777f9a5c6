"""The rate limit of clients; a client is a token or, without one, an address."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Any

from server.auth import Access
from server.config import BURST, CLIENTS
from server.metrics import Metrics
from server.responses import Reply, error_reply

FREE = ("/healthz", "/readyz", "/metrics")  # for monitoring


class RateLimit:
    """`rate` requests a second for each client, and as many as `burst` seconds allow at once.

    For each client it keeps the time up to which its requests are paid for. If there are more
    than `most` clients, the least recent one is forgotten.
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


class ClientLimits:
    """Refuses requests of clients that exceed the limit."""

    def __init__(self, rate: int, access: Access, metrics: Metrics) -> None:
        self._limit, self._access, self._metrics = RateLimit(rate), access, metrics

    def refusal(self, environ: dict[str, Any]) -> Reply | None:
        """Return the reply to a request over the limit, else None."""
        if environ["PATH_INFO"] in FREE:
            return None
        token = self._access.holder(environ)
        client = f"token {token}" if token else network(environ.get("REMOTE_ADDR", ""))
        seconds = self._limit.wait(client)
        if not seconds:
            return None
        self._metrics.error("rate_limited")
        message = f"{client} sends too many requests; wait {seconds:.1f} s"
        return error_reply(
            "rate_limited", message, [("Retry-After", str(max(1, math.ceil(seconds))))]
        )


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
