"""What reports need of a URL: its host."""

from __future__ import annotations

import re

_HOST = re.compile(rb"[a-z][a-z0-9+.-]*://(?:[^/?#@]*@)?([^/?#:]+|\[[^\]/?#]*\])", re.IGNORECASE)


def host_of(url: bytes) -> bytes:
    """The host of a URL in lower case, without port; of a URL without host, its scheme."""
    match = _HOST.match(url)
    return match[1].lower() if match else url.partition(b":")[0].lower()[:255]
