"""Urlkeys, the canonical SURT form of URLs that CDX files sort by: ``org,example)/path?query``.

The reference is `surt` 0.3.1, as used by pywb and cdxj-indexer, so the keys equal those of CDX
files. It takes 14 microseconds a URL, more than everything else of a CDX line; so the plain
majority of URLs is canonicalised here in one, to the same key (a property test compares them).

Different pages can have the same urlkey: http and https, ``www`` and none, upper and lower case are
not distinguished. It never proves that two URLs are the same.
"""

from __future__ import annotations

import re
import socket
from urllib.parse import unquote_to_bytes

from dedupindex.cache import MEGABYTE, Cache
from dedupindex.errors import BadInput

CANONICALISER = "surt-0.3.1"
"""Name and version of the rules; an index with other rules is refused."""

_CHAR = rb"""-a-z0-9_~!"$&'()*+,:;<=>@[\\\]^`{|}%"""  # and the dot
_PLAIN = re.compile(  # scheme, host and port; path without segments "." and ".."; query
    rb"(https?://[a-z0-9._-]++(?::[0-9]++)?+)((?:/(?!\.\.?(?:[/?#]|\Z))[%b.]*+)*+)"
    rb"(?:\?([%b./?]*+))?+(?:#[!-~]*+)?+" % (_CHAR, _CHAR)
)
_ESCAPE = re.compile(rb"%([0-9a-f]{2})")
_UNESCAPED = {  # two hex digits -> the result of surt, except for "%" and "?", which nest
    b"%02x" % code: bytes([code]).lower()
    if 0x20 < code < 0x7F and code != 0x23
    else b"%%%02x" % code
    for code in range(0x20, 0x100)
    if code not in b"%?\x7f"
}
_NOT_ASCII = re.compile(rb"[\x80-\xff]")
_SLASHES = re.compile(rb"//+")
_SITE = re.compile(
    rb"http(s?)://(?:www\d*\.)?+((?:[a-z0-9_-]+\.)*[a-z][a-z0-9_-]*)(?::([1-9][0-9]{0,4}))?"
)
_ADDRESS = re.compile(
    rb"http(s?)://([1-9]\d{0,2}(?:\.(?:0|[1-9]\d{0,2})){3})(?::([1-9][0-9]{0,4}))?"
)
_DEFAULT_PORTS = {b"": b"80", b"s": b"443"}
_SESSION = re.compile(rb"sid=|sessionid|cfid=")  # queries from which surt strips a session id
_DIGITS_ONLY = re.compile(rb"[0-9.]+")
_AUTHORITY = re.compile(rb"[^:]*://([^/?#]*)")
_WITHOUT_HOST = ("dns:", "urn:", "whois:", "filedesc:", "data:", "mailto:")  # URLs of records
_sites = Cache[bytes, bytes](8 * MEGABYTE)  # scheme, host and port -> their part of the key


def urlkey(url: bytes) -> bytes:
    """Return the canonical SURT key of `url`; the URL itself if `surt` cannot take it.

    It raises nothing and never uses the network. URLs are canonicalised here if they have no user,
    no escape or other than ASCII characters in the host, no segment "." or "..", no control or
    blank and no session id.
    """
    lower = url.lower()
    if lower.find(b"%") >= 0 or not lower.isascii():
        lower = _unescaped(lower)
    match = _PLAIN.fullmatch(lower)
    if match is None:
        return _by_surt(url)
    site, path, query = match.groups()
    key = _sites.get(site) or _surt_site(site)
    if key is None:
        return _by_surt(url)
    if path.find(b"(") >= 0 and path.find(b".aspx") >= 0:  # may hold a session id of ASP.NET
        return _by_surt(url)
    if path.find(b"//") >= 0:
        path = _SLASHES.sub(b"/", path)
    if path[-1:] == b"/":
        path = path[:-1]
    if not query:
        return key + (path or b"/")
    if query.find(b"id") >= 0 and _SESSION.search(query):
        return _by_surt(url)
    if query.find(b"&") >= 0:
        query = _ordered(query)
    return key + (path or b"/") + b"?" + query


def _unescaped(lower: bytes) -> bytes:
    """Return a URL unescaped and escaped again as surt does; empty if the table lacks an escape."""
    lower = _NOT_ASCII.sub(lambda byte: b"%%%02x" % ord(byte[0]), lower)
    path = lower.find(b"/", 8)
    if path < 0 or b"%" in lower[:path] or lower.count(b"%") != len(_ESCAPE.findall(lower)):
        return b""
    try:
        return _ESCAPE.sub(lambda escape: _UNESCAPED[escape[1]], lower)
    except KeyError:
        return b""


def _surt_site(site: bytes) -> bytes | None:
    """Return the part of a key that is made of scheme, host and port; None if surt takes none."""
    match = _SITE.fullmatch(site) or _ADDRESS.fullmatch(site)
    secure, host, port = match.groups(b"") if match else (b"", b"", b"")
    parts = host.split(b".")
    is_address = match is not None and match.re is _ADDRESS
    if match is None or int(port or 0) > 65535 or (is_address and max(map(int, parts)) > 255):
        key = _by_surt(site + b"/")
        return _sites.keep(site, key[:-1]) if key.endswith(b")/") else None
    parts.reverse()
    ending = b":%b)" % port if port and port != _DEFAULT_PORTS[secure] else b")"
    return _sites.keep(site, b",".join(parts) + ending)


def _ordered(query: bytes) -> bytes:
    """Sort the arguments of a query by name, then value, as surt does."""
    arguments = [tuple(argument.split(b"=", 1)) for argument in query.split(b"&")]
    arguments.sort()
    return b"&".join([b"=".join(argument) for argument in arguments])


def _by_surt(url: bytes) -> bytes:
    from surt import surt  # loads an HTTP client, which plain URLs never need

    if _needs_resolver(url):
        return url
    try:
        return bytes(surt(url))
    except Exception:  # surt raises anything on unusual URLs
        return url


def _needs_resolver(url: bytes) -> bool:
    """Return whether surt would use the resolver: for a numeric host that is no IPv4 address."""
    authority = _AUTHORITY.match(url)
    host = authority[1].rpartition(b"@")[2].partition(b":")[0] if authority else b""
    host = host.replace(b"..", b".").strip(b".")  # as surt does before
    if _DIGITS_ONLY.fullmatch(host) is None or b"." not in host:
        return False
    try:
        socket.inet_aton(host.decode("ascii"))
    except OSError:
        return True
    return False


# A user name may contain "@": the host follows the last one.
_HOST = re.compile(rb"[a-z][a-z0-9+.-]*://(?:[^/?#]*@)?+(\[[^\]/?#]*\]|[^/?#:]+)", re.IGNORECASE)


def host_of(url: bytes) -> bytes:
    """Return the host of a URL in lower case, without port and final dot, or else its scheme."""
    match = _HOST.match(url)
    return match[1].lower().removesuffix(b".") if match else url.partition(b":")[0].lower()[:255]


def counted_host(url: bytes) -> bytes:
    """Return the host of a URL under which reports count it, b"" if it has none.

    >>> counted_host(b"https://www.Example.com:8443/"), counted_host(b"example.com/")
    (b'www.example.com', b'')
    """
    return host_of(url) if _HOST.match(url) else b""


_OTHER_IN_2003 = re.compile("[\u00df\u03c2\u200c\u200d]")


def host_name(typed: str) -> bytes:
    """Return a host that a user named, as `in_idna` has it; raises `BadInput`.

    Four characters mean other names in IDNA 2003, which Python has, than they do today.
    """
    if _OTHER_IN_2003.search(typed):
        raise BadInput(f"give {typed!r} as it is in the DNS, in ASCII letters (xn--…)")
    try:
        name = typed.lower().strip(".").encode("idna")
    except UnicodeError:
        name = b""
    if not name:
        hint = meant_host(typed) or "a name such as example.com"
        raise BadInput(f"{typed!r} is not a host name: give {hint}")
    return name


def in_idna(host: bytes) -> bytes:
    """Return a host as the DNS has it, in ASCII; unchanged if there is no such name.

    >>> in_idna("bücher.example".encode()), in_idna(b"b%C3%BCcher.example")
    (b'xn--bcher-kva.example', b'xn--bcher-kva.example')
    """
    if host.isascii() and b"%" not in host:
        return host
    try:
        return unquote_to_bytes(host).decode().lower().encode("idna")
    except UnicodeError:
        return host


def is_address(host: bytes) -> bool:
    """Return whether a host is an IP address, below which there are no others."""
    return host[:1] == b"[" or _DIGITS_ONLY.fullmatch(host) is not None


_NO_PATH = re.compile(rb"\A(https?://[^/?#]+)(?=[?#]|\Z)", re.IGNORECASE)


def with_path(url: bytes) -> bytes:
    """Return a URL of http or https as clients send it: ``/`` stands for no path.

    >>> with_path(b"http://example.com?q=1")
    b'http://example.com/?q=1'
    """
    return _NO_PATH.sub(rb"\1/", url)


def lacks_scheme(typed: str) -> bool:
    """Return whether a URL that somebody has typed has no scheme; False for those of records.

    >>> lacks_scheme("example.com:8080/"), lacks_scheme("dns:example.com")
    (True, False)
    """
    return "://" not in typed and not typed.startswith(_WITHOUT_HOST)


def meant_url(typed: str) -> str:
    """Return the URL that a user may have meant: with a scheme, and ``/`` for no path.

    >>> meant_url("example.com")
    'http://example.com/'
    """
    url = f"http://{typed}" if lacks_scheme(typed) else typed
    full = with_path(url.encode("utf-8", "surrogateescape"))
    return full.decode("utf-8", "backslashreplace")


def meant_host(typed: str) -> str:
    """Return what was meant with a host that somebody typed as a URL, "" if it is only a name.

    >>> meant_host("http://example.com:8080/a"), meant_host("example.com")
    ('a name without scheme, port and path: example.com', '')
    >>> meant_host("2001:db8::1")
    'an address of IPv6 in brackets: [2001:db8::1]'
    """
    if "*" in typed:
        return "no wildcards: a host means all below it, too"
    host = typed_host(typed)
    if host == typed:
        return ""
    if host == f"[{typed}]":
        return f"an address of IPv6 in brackets: {host}"
    return f"a name without scheme, port and path: {host}"


def typed_host(typed: str) -> str:
    """Return the host of what somebody typed as a host, who may have typed or pasted a URL.

    >>> typed_host("https://www.example.org/x"), typed_host("example.com:8080")
    ('www.example.org', 'example.com')
    """
    if not any(mark in typed for mark in "/:?#@") or typed.startswith("["):
        return typed
    if typed.count(":") > 1 and "/" not in typed:
        return f"[{typed}]"
    url = typed if "://" in typed else f"http://{typed}"
    host = host_of(url.encode("utf-8", "surrogateescape"))
    return typed if host == b"http" else host.decode("utf-8", "backslashreplace")


def is_at(host: bytes, name: bytes) -> bool:
    """Return whether a host has a name, or is below it."""
    return host == name or (host.endswith(b"." + name) and not is_address(host))


def is_http(url: bytes) -> bool:
    """Return whether a URL has the scheme http or https, in upper or lower case."""
    return url[:8].lower().startswith((b"http://", b"https://"))


def unbracket(text: bytes) -> bytes:
    """Return a URL or record id without the pair of angle brackets around it.

    wget writes them around URLs, and all crawlers around record ids. A single one is kept.
    """
    return text[1:-1] if text[:1] == b"<" and text[-1:] == b">" else text
