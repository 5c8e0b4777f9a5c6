"""`dedupindex.urlkey`: the fast path makes the keys that surt makes."""

from __future__ import annotations

import re
import warnings
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from dedupindex import urlkey as module
from dedupindex.cache import Cache
from dedupindex.urlkey import host_of, urlkey
from tests.support.budgets import examples
from tests.support.paths import DATA, ROOT

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from surt import surt

MATRIX = DATA / "url-canonicalisation-matrix.txt"
PIECES = [
    *(
        "http://",
        "https://",
        "HTTP://",
        "www.",
        "WWW2.",
        "example",
        ".",
        "com",
        "a",
        "B",
        "/",
        "//",
    ),
    *(
        "..",
        "./",
        "?",
        "&",
        "=",
        "sid=",
        "jsessionid=",
        "x",
        ";",
        "%41",
        "(",
        ")",
        "~",
        "1",
        "12.5",
    ),
    *(":80", ":", "#f", "-", "_", "+", "@", "cfid=1&cftoken=2", ".aspx", "!", ",", "*", "'", "$"),
    *("é", "%C3%A9", "a" * 32, "S(" + "a" * 24 + ")"),
    *("[", "]", "{", "}", "|", "\\", "^", "`", '"', "<", ">", " ", "\t", "%", "%4", "%2F", "%3f"),
    *("%23", "%2e", "#", "#%41?/", "/.", "/.x", "/..", "/...", "/./", "/../", "?", "ü", "%25"),
]
HOSTS = ["e.com", "www.e.com", "w.e", "www1.com", "a.b.c1", "E.Com", "1.2.3.4", "x-y.example.org"]
HOSTS += ["e.com:8080", "www.e.com:80", "1.2.3.4:1", "localhost:99", "localhost", "e.:1", "1.2:3"]
HOSTS += [
    "a_b.e.com",
    "_e._com",
    "www.www2.com",
    "www.1.2.3.4",
    "e.com:0080",
    "e.com:0",
    "e.com:443",
]
HOSTS += ["e.com:65536", "255.0.9.10:80", "0.1.2.3", "1.02.3.4", "e.1b", "-e-", "e..com"]
HOSTS += ["bücher.example", "user@e.com", "e%2Ecom", "www.", "xn--bcher-kva.example", "e.com:", "."]

composed = st.builds(
    lambda scheme, host, slash, pieces: f"{scheme}://{host}{slash}{''.join(pieces)}".encode(),
    st.sampled_from(["http", "https", "HTTP"]),
    st.sampled_from(HOSTS),
    st.sampled_from(["/", "?", "", "#", "//"]),
    st.lists(st.sampled_from(PIECES), max_size=9),
)
plain = st.from_regex(
    rb"https?://(www\d?\.)?([a-z0-9-]{1,6}\.){1,2}[a-z]{2,3}"
    rb"(/([A-Za-z0-9._~!$'()*+,:;=@-]|%[0-9A-Fa-f]{2}){0,6}){0,3}"
    rb"(\?([A-Za-z0-9=&._/-]|%[0-9A-Fa-f]{2}){1,12})?",
    fullmatch=True,
)


def by_surt(url: bytes) -> bytes:
    """The key of surt, but for numbers that are no address: it would ask the resolver for them."""
    if module._needs_resolver(url):
        return url
    try:
        return bytes(surt(url))
    except Exception:
        return url


def matrix() -> list[tuple[bytes, bytes]]:
    """URLs of the matrix with the key of surt.py, as measured by others than us."""
    rows, url = [], b""
    for line in MATRIX.read_bytes().splitlines():
        if not line.startswith(b" "):
            url = line.strip()
        elif line.strip().startswith(b"surt.py") and url:
            rows.append((url, line.strip()[len(b"surt.py") :].strip()))
    return rows


def test_the_urlkey_matrix_is_complete() -> None:
    assert len(matrix()) > 60


@pytest.mark.parametrize(("url", "key"), matrix())
def test_the_matrix(url: bytes, key: bytes) -> None:
    if not key.startswith((b"ERROR", b"!", b"throws")) and b" " not in url:
        assert urlkey(url) in (key, by_surt(url))
    assert urlkey(url) == by_surt(url)


with_port = st.from_regex(
    rb"https?://(www\d?\.)?[a-z0-9.-]{1,9}(:[0-9]{1,6})?(/[A-Za-z0-9.=-]{0,6}){0,3}(\?[a-z0-9=&]{1,9})?",
    fullmatch=True,
)


printable = st.builds(
    lambda host, rest: b"http://%b/%b" % (host.encode(), rest),
    st.sampled_from(HOSTS),
    st.one_of(
        st.from_regex(rb"[!-~]{0,20}", fullmatch=True),
        st.from_regex(rb"[!-~\x80-\xff]{0,9}(\?[!-~\x80-\xff]{0,9})?", fullmatch=True),
        st.from_regex(rb"([./a#?%&=]|%[2-7][0-9a-fA-F]){0,20}", fullmatch=True),
    ),
)


@limits(max_examples=examples(2000))
@given(st.one_of(composed, plain, with_port, printable))
def test_the_fast_path_equals_surt(url: bytes) -> None:
    assert urlkey(url) == by_surt(url)


def test_the_plain_majority_takes_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(url: bytes) -> bytes:
        raise AssertionError(f"{url!r} went to surt")

    monkeypatch.setattr(module, "_by_surt", never)
    for url in (
        b"http://127.0.0.1:8080/static/1.html?x=1",
        b"http://www.example.com:81/a",
        b"http://localhost/a/",
        b"http://www.example.com/",
        b"https://example.org",
        b"http://a.example.co.uk/News/Item-12_3.html",
        b"https://example.com/a/b/?id=12&Page=2",
        b"http://example.com/static/app.min.js?v=1.2.3",
        b"http://example.com/a%20b/caf%C3%A9?q=%41%26b",
        b"http://a_b.example.com:8443/a//b/?",
        b"http://example.com/.well-known/x#a",
        b"http://example.com/?a[]=1&b={c}|d?e",
        "http://example.com/café".encode(),
    ):
        urlkey(url)


@pytest.mark.parametrize(
    "url",
    [
        b"http://e.com%2Fa",
        b"http://e.com%2Fa/b",
        b"http://e.com/%2e%2e/a",
        b"http://e.com/a%2F%2Fb",
        b"http://e.com/a%3Fb?c",
        b"http://e.com/a?b%3Fc%23d",
        b"http://e.com/%2541",
        b"http://e.com/%%341",
        b"http://e.com/a?s%69d=" + b"a" * 32,
    ],
)
def test_escapes_that_mean_something(url: bytes) -> None:
    assert urlkey(url) == by_surt(url)


@given(st.binary(max_size=80))
def test_nothing_fails(url: bytes) -> None:
    assert isinstance(urlkey(url), bytes)


@pytest.mark.parametrize("url", [b"http://999.1.2.3/", b"http://1.2.3.4.5/", b"http://1234.5/"])
def test_the_resolver_is_never_asked(url: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(host: str) -> None:
        raise AssertionError(f"asked the resolver for {host}")

    monkeypatch.setattr("socket.gethostbyname_ex", never)
    assert urlkey(url) == url


def test_case_79_and_80_different_urls_share_a_key() -> None:
    assert urlkey(b"http://www.Example.com/A/") == urlkey(b"https://example.com/a")
    assert urlkey("http://bücher.example/".encode()) == urlkey(b"http://xn--bcher-kva.example/")


class UrlPair(NamedTuple):
    """A row of the table of docs/formats.md: whether two URLs have one canonical URL."""

    one: str
    other: str
    openwayback: bool
    here: bool


def url_pairs() -> list[UrlPair]:
    text = (ROOT / "docs" / "formats.md").read_text()
    rows = re.findall(r"^\| `(http.*)` \| `(http.*)` \| (\w+) \| (\w+) \|$", text, re.MULTILINE)
    return [UrlPair(one, other, a == "same", b == "same") for one, other, a, b in rows]


def test_the_docs_say_which_urls_have_one_key() -> None:
    pairs = url_pairs()
    assert len(pairs) > 20
    for pair in pairs:
        assert (urlkey(pair.one.encode()) == urlkey(pair.other.encode())) is pair.here, pair


@pytest.mark.parametrize(
    ("url", "host"),
    [
        (b"http://[::1]:8080/a", b"[::1]"), (b"https://u:p@[2001:DB8::1]/", b"[2001:db8::1]"),
        (b"http://EXAMPLE.com.:80/", b"example.com"), (b"dns:example.com", b"dns"),
    ],
)  # fmt: skip
def test_hosts(url: bytes, host: bytes) -> None:
    assert host_of(url) == host


def test_the_host_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_sites", Cache[bytes, bytes](3000))  # others may have asked, too
    for number in range(100):
        assert urlkey(b"http://h%d.example/" % number) == b"example,h%d)/" % number
        long = b"h%d." % number + b"a." * 4000
        reverse = b",".join(reversed(long.split(b".")[:-1]))
        assert urlkey(b"http://%bexample/" % long) == b"example,%b)/" % reverse
    assert 0 < module._sites.held <= 3000 and max(map(len, module._sites)) < 30
