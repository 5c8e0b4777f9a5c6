"""Every row of an OutbackCDX is read once, however its answers end."""

from __future__ import annotations

from collections import Counter
from http.server import BaseHTTPRequestHandler

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.capture import Capture, Evidence, Item, Refusal, Revisit
from dedupindex.errors import BadSource
from dedupindex.sources import expand, open_source, outbackcdx
from tests.support.budgets import examples
from tests.support.outbackcdx_model import outbackcdx_model, row
from tests.support.ports import refusing_port
from tests.support.stub_server import replying, stub_server
from tests.support.text_sources import BASE32

KEYS = ["com,a)/", "com,a)/b", "com,a)/b?c", "com,ab)/", "org,z)/~"]
USUAL = {"mime": "text/html", "status": "200", "digest": BASE32, "length": "100"}


def capture_row(urlkey: str, timestamp: int, offset: int = 10, **more: str) -> bytes:
    url = f"http://{'.'.join(reversed(urlkey.split(')')[0].split(',')))}{urlkey.split(')')[1]}"
    columns = {"url": url, **USUAL, "offset": str(offset), "filename": "x.warc.gz", **more}
    return row(urlkey, timestamp, **columns)


def read(address: str) -> list[Item]:
    with open_source(address) as source:
        return list(source.items())


def one(line: bytes) -> Item:
    with outbackcdx_model([line]) as (address, _):
        (item,) = read(address)
        return item


@given(
    st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 4), st.integers(1, 3)), unique=True),
    st.integers(4, 6),
    st.integers(1, 7),
    st.lists(
        st.sampled_from([b"", b"com,a)/ 2020", b"warning: output may be incomplete\n"]), max_size=2
    ),
)
@settings(max_examples=examples(60), deadline=None)
def test_every_row_is_read_once(
    rows: list[tuple[str, int, int]], page: int, cap: int, broken: list[bytes]
) -> None:
    """Pages and the server's cap may end anywhere, also within one second of one key."""
    lines = [capture_row(key, 20200101000000 + second, offset) for key, second, offset in rows]
    seconds = Counter((key, second) for key, second, _ in rows)
    cap = max(cap, *(count + 1 for count in seconds.values()), 2)
    with pytest.MonkeyPatch.context() as patch, outbackcdx_model(lines, cap) as (address, model):
        patch.setattr(outbackcdx, "PAGE", page)
        patch.setattr(outbackcdx, "PAUSE", 0)
        model.broken = list(broken)
        found = read(address)
    urls = Counter(
        (item.url, item.date, item.offset) for item in found if isinstance(item, Capture)
    )
    assert len(found) == len(lines) and set(urls.values()) <= {1}


def test_a_row_is_a_row_of_a_cdx() -> None:
    item = one(capture_row("com,a)/", 20200101000000))
    assert isinstance(item, Capture)
    assert (item.url, item.date) == (b"http://a.com/", b"2020-01-01T00:00:00Z")
    assert (item.size, item.size_of_record, item.offset) == (100, True, 10)
    assert (item.container, item.evidence, item.status) == ("x.warc.gz", Evidence.ROW, 200)


def test_what_it_does_not_know_is_minus_one() -> None:
    item = one(capture_row("com,a)/", 20200101000000, -1, status="-1"))
    assert isinstance(item, Capture)
    assert (item.status, item.offset) == (0, -1)


def test_a_row_without_a_file_is_of_a_revisit() -> None:
    """As in a CDX: tools of old wrote "-" for it, which OutbackCDX leaves out of CDXJ."""
    item = one(row("com,a)/", 20200101000000, url="http://a.com/", **USUAL, offset="0"))
    assert isinstance(item, Revisit)


def test_hex_that_was_decoded_as_base32_is_no_digest() -> None:
    """Answered for 2aae6c35c94fcfb415dbe95f408b9ce91ee846ed by OutbackCDX 1.2.3."""
    mangled = "2AAE6C35C4FCFB45DBE5F4BCEEE46EAA"
    assert one(capture_row("com,a)/", 20200101000000, digest=mangled)) == Refusal("bad-digest")


@pytest.mark.parametrize(
    ("urlkey", "url", "damaged"),
    [  # as OutbackCDX 1.2.3 answers http://a.com/café, http://bücher.de/, …
        ("com,a)/caf%c3%a9", "http://a.com/caf?", True),
        ("de,xn--bcher-kva)/", "http://b?cher.de/", True),
        ("com,a)/p?q=%e6%97%a5%e6%9c%ac", "http://a.com/p?q=??", True),
        ("com,a)/%c3%a9?q=%c3%a9", "http://a.com/%C3%A9?q=?", True),
        ("com,a)/p?q=%c3%a9", "http://a.com/p?q=%C3%A9", False),
        ("com,a)/%c3%a9?q", "http://a.com/\u00e9?q", False),  # of an index of version 5
        ("de,xn--bcher-kva)/?q", "http://xn--bcher-kva.de/?q", False),
        ("com,a)/a%20b?q", "http://a.com/a%20b?q", False),
    ],
)
def test_a_url_that_was_cut_to_ascii_is_refused(urlkey: str, url: str, damaged: bool) -> None:
    for mime in ("text/html", "warc/revisit"):
        item = one(capture_row(urlkey, 20200101000000, url=url, mime=mime))
        assert (item == Refusal("bad-url")) is damaged


def test_requests_state_all_that_is_relied_on() -> None:
    with outbackcdx_model([capture_row("com,a)/", 20200101000000)]) as (address, model):
        read(address)
    first, *_, last = model.queries
    assert first["urlkey"] == "" and last["urlkey"] == "com,a)/\x01"
    for query in model.queries:
        assert (query["output"], query["omitSelfRedirects"]) == ("cdxj", "false")


def test_a_cap_within_one_second_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [capture_row("com,a)/", 20200101000000, offset) for offset in range(4)]
    later = capture_row("com,a)/", 20200101000009)
    with (
        outbackcdx_model([*lines, later], cap=3) as (address, _),
        pytest.raises(BadSource, match="in one second; start it with a larger -r"),
    ):
        read(address)


def test_an_empty_collection_has_no_rows() -> None:
    with outbackcdx_model([]) as (address, _):
        assert read(address) == []


def test_names_of_collections_are_quoted() -> None:
    with stub_server(replying(404)) as url, pytest.raises(BadSource, match="answers 404"):
        read(f"outbackcdx+{url}/k\u00f6ln 1%20")


def test_it_differs_each_time_like_a_pipe() -> None:
    address = "outbackcdx+http://localhost:1/coll"
    assert expand([address]).paths == [address]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("outbackcdx+http://localhost", "not the address of a collection"),
        ("outbackcdx+http://localhost/", "not the address of a collection"),
        ("outbackcdx+http://localhost/coll?url=x", "not the address of a collection"),
        ("outbackcdx+http://localhost:x/coll", "not an address"),
        ("outbackcdx+http://a..example/coll", "not an address"),
        ("outbackcdx+http://me:secret@localhost/coll", "password"),
        ("cdx+http://localhost/x.cdx", "without cdx+"),
        ("nothing+http://localhost/x", "no kind of source 'nothing'"),
    ],
)
def test_addresses_that_name_no_collection(address: str, words: str) -> None:
    with pytest.raises(BadSource, match=words) as caught:
        open_source(address)
    assert "secret" not in str(caught.value)


def test_other_kinds_cannot_be_forced() -> None:
    with pytest.raises(BadSource, match="only be read as outbackcdx, not as cdx"):
        open_source("outbackcdx+http://localhost/coll", "cdx")
    with pytest.raises(BadSource, match="read from an address, outbackcdx"):
        open_source("some.cdx", "outbackcdx")


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (404, b"Collection coll does not exist\n", "404: Collection coll does not exist"),
        (503, b"tired\n", "503: tired"),
        (200, b"com,a)/ 20200101000000 http://a.com/ text/html\n", "does not answer in CDXJ"),
        (200, b"<html>\n", "does not answer in CDXJ"),
        (200, row("b", 1) + row("a", 1), "in order"),
        (200, b"a " + b"9" * 5000 + b" {}\n", "does not answer in CDXJ"),
    ],
)
def test_answers_of_other_servers(
    status: int, body: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbackcdx, "PAUSE", 0)
    with (
        stub_server(replying(status, body)) as url,
        pytest.raises(BadSource, match=words) as caught,
    ):
        read(f"outbackcdx+{url}/coll")
    assert str(caught.value).startswith(f"outbackcdx+{url}/coll ")


def test_a_chunk_of_a_negative_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbackcdx, "PAUSE", 0)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"-5\r\n" + row("a", 1))
        handler.close_connection = True

    with stub_server(answer) as url, pytest.raises(BadSource, match="did not answer to the end"):
        read(f"outbackcdx+{url}/coll")


def test_a_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbackcdx, "PAUSE", 0)
    with refusing_port() as port, pytest.raises(BadSource, match="does not answer"):
        read(f"outbackcdx+http://127.0.0.1:{port}/coll")
