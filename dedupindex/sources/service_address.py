"""Sources that are services, by their addresses, which differ each time they are read.

    redis://…  rediss://…  unix://…     the keys of Browsertrix
    KIND+ADDRESS                        any other, such as outbackcdx+http://host:port/collection

No address of an object store has a plus sign in its scheme (`object_store.is_remote`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dedupindex.object_store import redacted
from dedupindex.sources.browsertrix import is_redis_address, without_password

_WITH_KIND = re.compile(r"([a-z][a-z0-9-]*)\+([a-z][a-z0-9+.-]*://.*)", re.DOTALL)


class ServiceAddress(NamedTuple):
    """The kind that reads a service, and the address that it opens."""

    kind: str
    address: str

    @property
    def name(self) -> str:
        """The source without credentials, as an index and messages have it."""
        if is_redis_address(self.address):
            return without_password(self.address)
        return f"{self.kind}+{redacted(self.address)}"


def service_of(source: str) -> ServiceAddress | None:
    """Return the service that a source names, None for a file, an object or ``-``."""
    if is_redis_address(source):
        return ServiceAddress("browsertrix", source)
    match = _WITH_KIND.fullmatch(source)
    return ServiceAddress(match[1], match[2]) if match else None
