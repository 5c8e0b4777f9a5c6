"""HTTP headers and the chunked coding, by themselves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dedupindex.warc import http
from dedupindex.warc.http import Dechunker
from tests.support.warc_cases import chunked


def entity(body: memoryview) -> list[memoryview] | None:
    """Return the pieces of a whole chunked body; None if it is not properly chunked."""
    dechunker = Dechunker()
    pieces = dechunker.feed(body)
    return pieces if dechunker.complete else None


def test_header_end() -> None:
    for head in (b"a\r\n\r\n", b"a\n\n", b"a\r\n\n", b"a\n\r\n", b"\r\n\r\n"):
        for tail in (b"", b"\n\nx", b"\r\n\r\nx", b"x\r\n\r\n"):
            assert http.header_end(head + tail, 0, len(head + tail)) == len(head)
    assert http.header_end(b"a\r\nb\r\n\r", 0, 7) == -1


@given(st.lists(st.sampled_from([b"a", b"\r", b"\n", b":"])))
def test_header_end_against_the_definition(parts: list[bytes]) -> None:
    """The first line feed that follows another with nothing but a CR in between."""
    data = b"".join(parts)
    ends = [
        at + 1
        for at in range(1, len(data))
        if data[at] == 10 and data[:at].removesuffix(b"\r").endswith(b"\n")
    ]
    assert http.header_end(data, 0, len(data)) == (ends[0] if ends else -1)
    parsed = http.parse(data, 0, len(data))
    assert (parsed.body if parsed else -1) == (ends[0] if ends else -1)


def test_fields() -> None:
    head = b"HTTP/1.1 200 OK\r\nA: 1\r\nETag: \t x \r\na: 2\r\nEmpty:\r\n\r\n"
    assert http.field(head, b"etag") == b"x"
    assert http.field(head, b"a") == b"1"
    assert http.field(head, b"empty") == b""
    assert http.field(head, b"none") == b""
    assert http.field(head, b"tag") == b""


def test_media_types() -> None:
    for line, mime in (
        (b"text/html", b"text/html"),
        (b" Text/HTML;charset=x", b"text/html"),
        (b"text/html, text/plain", b"text/html"),
        (b"", b""),
        (b";", b""),
        (b'"x', b""),
    ):
        data = b"HTTP/1.1 200 OK\r\nContent-Type:" + line + b"\r\n\r\n"
        response = http.parse(data, 0, len(data))
        assert response is not None
        assert response.mime == mime


def test_any_number_of_statuses() -> None:
    for number in range(9000):
        data = b"HTTP/%d 200 OK\r\n\r\n" % number
        response = http.parse(data, 0, len(data))
        assert response is not None
        assert response.status == 200


# The chunked coding


def reference(body: bytes) -> bytes | None:
    """RFC 9112 section 7.1.3, as plainly as it can be written."""
    data, at = b"", 0
    while True:
        end = body.find(b"\n", at)
        if end < 0:
            return None
        size = body[at:end].removesuffix(b"\r").partition(b";")[0].strip(b" \t")
        if not size or len(size) > 15 or size.lower().strip(b"0123456789abcdef"):
            return None
        at = end + 1
        if int(size, 16) == 0:
            break
        data += body[at : at + int(size, 16)]
        at += int(size, 16)
        end = body.find(b"\n", at)
        if end < 0 or body[at:end].removesuffix(b"\r"):
            return None
        at = end + 1
    while True:  # trailers
        end = body.find(b"\n", at)
        if end < 0:
            return None
        line, at = body[at:end].removesuffix(b"\r"), end + 1
        if not line:
            return data if at == len(body) else None


pieces = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


@given(pieces, st.sampled_from([b"0\r\n\r\n", b"00;x\r\nA: b\r\nC: d\r\n\r\n", b"0\n\n"]))
def test_chunks_round_trip(data: list[bytes], end: bytes) -> None:
    got = entity(memoryview(chunked(*data, end=end)))
    assert got is not None
    assert b"".join(got) == b"".join(data)


@given(
    st.lists(
        st.one_of(
            st.sampled_from([b"\r\n", b"\n", b"0\r\n", b"3\r\n", b"abc", b";x", b"\r", b"A", b" "]),
            st.binary(max_size=4),
        )
    ),
    st.lists(st.integers(0, 60)),
)
def test_any_bytes_in_any_pieces(parts: list[bytes], cuts: list[int]) -> None:
    body = b"".join(parts)
    expected = reference(body)
    whole = entity(memoryview(body))
    assert (None if whole is None else b"".join(whole)) == expected
    dechunker = Dechunker()
    got = []
    places = sorted({min(cut, len(body)) for cut in cuts} | {0, len(body)})
    for start, stop in zip(places, places[1:], strict=False):
        got += [bytes(piece) for piece in dechunker.feed(body[start:stop])]
    assert (b"".join(got) if dechunker.complete else None) == expected


def test_length_of_a_chunk_header_is_limited() -> None:
    dechunker = Dechunker()
    for _ in range(100):
        dechunker.feed(b"1;" + b"x" * 1000)
    assert dechunker.bad
