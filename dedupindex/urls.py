"""What is needed of a URL: whether it is of the web, its host, and what it is without brackets."""

from __future__ import annotations

import re

# The name of a user may hold "@" itself, unescaped: the host follows the last one.
_HOST = re.compile(rb"[a-z][a-z0-9+.-]*://(?:[^/?#]*@)?+([^/?#:]+|\[[^\]/?#]*\])", re.IGNORECASE)


def host_of(url: bytes) -> bytes:
    """The host of a URL in lower case, without port; of a URL without host, its scheme.

    Without the dot at its end, which says only that a name is whole.
    """
    match = _HOST.match(url)
    return match[1].lower().removesuffix(b".") if match else url.partition(b":")[0].lower()[:255]


def is_http(url: bytes) -> bool:
    """Whether a URL is of the web; the scheme in any case of letters."""
    return url[:8].lower().startswith((b"http://", b"https://"))


def unbracket(text: bytes) -> bytes:
    """Return a URL or record id without the pair of angle brackets around it.

    wget writes them around URLs and everybody around record ids. One alone belongs to the value.
    """
    return text[1:-1] if text[:1] == b"<" and text[-1:] == b">" else text
