"""URL to urlkey, the canonical SURT form that CDX files sort by: ``org,example)/path?query``.

`surt` 0.3.1 is the reference: pywb and cdxj-indexer use it, so our keys equal those of the CDX
files around us. It takes 14 microseconds a URL, more than all else that indexing a line costs;
the plain majority of URLs is canonicalised here in one, to the same key (a property test holds
the two together), and everything else is left to `surt`.

A urlkey only finds: it maps http and https, ``www`` and none, upper and lower case to one key and
can map different pages together. It is never proof that two URLs are the same.
"""

from __future__ import annotations

import re
import socket

from dedupindex.cache import MEGABYTE, Cache

CANONICALISER = "surt-0.3.1"
"""Name and version of the rules; an index remembers it and refuses to be mixed."""

_CHAR = rb"-a-z0-9_~!$'()*+,:;=@&%"  # and the dot, where it does not begin a segment
_PLAIN = re.compile(  # scheme and host, path without its last slash, query
    rb"(https?://[a-z0-9.-]++)((?:/[%b][%b.]*+)*+)/?+(?:\?([%b./]++))?+" % (_CHAR, _CHAR, _CHAR)
)
_ESCAPE = re.compile(rb"%([0-9a-f]{2})")
_UNESCAPED = {  # two hex digits -> what surt makes of them, but for "%" and "?", which nest
    b"%02x" % code: bytes([code]).lower()
    if 0x20 < code < 0x7F and code != 0x23
    else b"%%%02x" % code
    for code in range(0x20, 0x100)
    if code not in b"%?\x7f"
}
_SITE = re.compile(rb"https?://(?:www\d*\.)?+((?:[a-z0-9-]+\.)+[a-z][a-z0-9-]*)")
_SESSION = re.compile(rb"sid=|sessionid|cfid=")  # what surt strips from queries contains one
_DIGITS_ONLY = re.compile(rb"[0-9.]+")
_AUTHORITY = re.compile(rb"[^:]*://([^/?#]*)")
_sites = Cache[bytes, bytes](8 * MEGABYTE)  # scheme and host -> the host's part of the key


def urlkey(url: bytes) -> bytes:
    """The canonical SURT key of `url`; of a URL that has none, the URL itself.

    Never fails and never touches the network: what `surt` cannot take keeps its own spelling.
    What is decided here has nothing to be resolved or stripped: a host name without port, user
    or escape, no fragment, no empty or dot segment, nothing like a session id.
    """
    lower = url.lower()
    match = _PLAIN.fullmatch(lower if lower.find(b"%") < 0 else _unescaped(lower))
    if match is None:
        return _by_surt(url)
    site, path, query = match.groups()
    key = _sites.get(site) or _surt_site(site)
    if key is None:
        return _by_surt(url)
    if path.find(b"(") >= 0 and path.find(b".aspx") >= 0:  # may hold a session id of ASP.NET
        return _by_surt(url)
    if query is None:
        return key + (path or b"/")
    if query.find(b"id") >= 0 and _SESSION.search(query):
        return _by_surt(url)
    if query.find(b"&") >= 0:
        query = _ordered(query)
    return key + (path or b"/") + b"?" + query


def _unescaped(lower: bytes) -> bytes:
    """A URL as surt unescapes it and escapes it again; empty if that is not told by a table."""
    path = lower.find(b"/", 8)
    if path < 0 or b"%" in lower[:path] or lower.count(b"%") != len(_ESCAPE.findall(lower)):
        return b""
    try:
        return _ESCAPE.sub(lambda escape: _UNESCAPED[escape[1]], lower)
    except KeyError:
        return b""


def _surt_site(site: bytes) -> bytes | None:
    match = _SITE.fullmatch(site)
    if match is None:
        return None
    parts = match[1].split(b".")
    parts.reverse()
    return _sites.keep(site, b",".join(parts) + b")")


def _ordered(query: bytes) -> bytes:
    """Arguments sorted by name, then value, as surt does."""
    arguments = [tuple(argument.split(b"=", 1)) for argument in query.split(b"&")]
    arguments.sort()
    return b"&".join([b"=".join(argument) for argument in arguments])


def _by_surt(url: bytes) -> bytes:
    from surt import surt  # here, because it loads an HTTP client that plain URLs never need

    if _needs_resolver(url):
        return url
    try:
        return bytes(surt(url))
    except Exception:  # surt raises whatever its helpers raise, on URLs that no rule covers
        return url


def _needs_resolver(url: bytes) -> bool:
    """Whether surt would ask the system's resolver: a numeric host that is no IPv4 address."""
    authority = _AUTHORITY.match(url)
    host = authority[1].rpartition(b"@")[2].partition(b":")[0] if authority else b""
    host = host.replace(b"..", b".").strip(b".")  # as surt does before it asks
    if _DIGITS_ONLY.fullmatch(host) is None or b"." not in host:
        return False
    try:
        socket.inet_aton(host.decode("ascii"))
    except OSError:
        return True
    return False


# What is needed of a URL: whether it is of the web, its host, and what it is without brackets.

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
