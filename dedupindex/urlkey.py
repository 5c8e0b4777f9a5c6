"""URL to urlkey, the canonical SURT form that CDX files sort by: ``org,example)/path?query``.

`surt` 0.3.1 is the reference: pywb and cdxj-indexer use it, so our keys equal those of the CDX
files around us. It takes 14 microseconds a URL, more than all else that indexing a line costs;
the plain majority of URLs is canonicalised here by one match, to the same key (a property test
holds the two together), and everything else is left to `surt`.

A urlkey only finds: it maps http and https, ``www`` and none, upper and lower case to one key and
can map different pages together. It is never proof that two URLs are the same.
"""

from __future__ import annotations

import re
import socket

import surt

CANONICALISER = "surt-0.3.1"
"""Name and version of the rules; an index remembers it and refuses to be mixed."""

# Group 1 the host without www, 2 the path, 3 the query. No %, no //, no dot segment, no port, no
# userinfo, no fragment, and nothing that looks like an IP address or a session id.
_PLAIN = re.compile(
    rb"https?://(?:www\d*\.)?+"
    rb"((?:[a-z0-9-]+\.)+[a-z][a-z0-9-]*)"
    rb"(/(?:[a-z0-9_~!$'()*+,:=@-][a-z0-9._~!$'()*+,:;=@-]*(?:/|$|(?=\?)))*)?"
    rb"(?:\?([a-z0-9._~!$'()*+,:;=@/&-]+))?",
    re.IGNORECASE,
)
_DIGITS_ONLY = re.compile(rb"[0-9.]+")
_AUTHORITY = re.compile(rb"[^:]*://([^/?#]*)")
_SESSIONS = (b"sid=", b"sessionid", b"cfid=")  # what surt strips from queries contains one
_HOSTS_KEPT = 65536
_hosts: dict[bytes, bytes] = {}


def urlkey(url: bytes) -> bytes:
    """The canonical SURT key of `url`; of a URL that has none, the URL itself.

    Never fails and never touches the network: what `surt` cannot take keeps its own spelling.
    """
    match = _PLAIN.fullmatch(url)
    if match is None:
        return _by_surt(url)
    host, path, query = match.groups()
    key = _hosts.get(host) or _surt_host(host)
    if path is None or path == b"/":
        key += b"/"
    else:
        path = path.lower()
        if b"(" in path and b".aspx" in path:  # may hold a session id of ASP.NET
            return _by_surt(url)
        key += path[:-1] if path[-1] == 47 else path
    if query is None:
        return key
    query = query.lower()
    if path is None or any([mark in query for mark in _SESSIONS]):
        return _by_surt(url)
    return key + b"?" + _ordered(query)


def _surt_host(host: bytes) -> bytes:
    if len(_hosts) >= _HOSTS_KEPT:
        _hosts.clear()
    parts = host.lower().split(b".")
    parts.reverse()
    key = _hosts[host] = b",".join(parts) + b")"
    return key


def _ordered(query: bytes) -> bytes:
    """Arguments sorted by name, then value, as surt does."""
    if b"&" not in query:
        return query
    arguments = [tuple(argument.split(b"=", 1)) for argument in query.split(b"&")]
    arguments.sort()
    return b"&".join([b"=".join(argument) for argument in arguments])


def _by_surt(url: bytes) -> bytes:
    if _needs_resolver(url):
        return url
    try:
        return bytes(surt.surt(url))
    except Exception:  # surt raises whatever its helpers raise, on URLs that no rule covers
        return url


def _needs_resolver(url: bytes) -> bool:
    """Whether surt would ask the system's resolver: a numeric host that is no IPv4 address."""
    authority = _AUTHORITY.match(url)
    host = authority[1].rpartition(b"@")[2].partition(b":")[0] if authority else b""
    if _DIGITS_ONLY.fullmatch(host) is None or b"." not in host:
        return False
    try:
        socket.inet_aton(host.decode("ascii"))
    except OSError:
        return True
    return False
