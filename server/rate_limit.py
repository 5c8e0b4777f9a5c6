"""How often one client may ask: a client is a token or, without one, an address."""

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

FREE = ("/healthz", "/readyz", "/metrics")  # asked by those who watch the server


class RateLimit:
    """So many requests a second for each client, and `burst` seconds' worth of them at once.

    Of each client the moment is kept up to which its requests are paid for. When there are more
    clients than `most`, the one that was silent for the longest is forgotten.
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
        self._paid: dict[str, float] = {}  # the longest silent first
        self._busy = threading.Lock()

    def wait(self, client: str) -> float:
        """Count a request of a client; 0, or the seconds after which the next may come."""
        with self._busy:
            now = self._clock()
            paid = max(self._paid.pop(client, now), now)
            over = paid - now - self._slack
            refused = over > 1e-9
            self._paid[client] = paid if refused else paid + self._cost
            if len(self._paid) > self._most:
                del self._paid[next(iter(self._paid))]
        return over if refused else 0.0


class Limits:
    """Refuses requests of clients that send too many."""

    def __init__(self, rate: int, access: Access, metrics: Metrics) -> None:
        self._limit, self._access, self._metrics = RateLimit(rate), access, metrics

    def refusal(self, environ: dict[str, Any]) -> Reply | None:
        """The answer to a request that is one too many, else None."""
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
    """What counts as one client: an IPv4 address, or the /64 that one holder of IPv6 has."""
    try:
        read = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(read, IPv6Address):
        return address
    if read.ipv4_mapped:
        return str(read.ipv4_mapped)
    return str(IPv6Address(int(read) >> 64 << 64)) + "/64"
