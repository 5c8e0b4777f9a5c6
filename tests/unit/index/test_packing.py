"""URLs come back byte for byte, and mostly smaller."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dedupindex.index.format.packing import BEGINNINGS, pack, unpack
from tests.support.captures import urls

pieces = st.sampled_from(
    [
        *BEGINNINGS,
        b"a",
        b"Z",
        b"^",
        b"^a",
        b"<",
        b"\0",
        b"\xff",
        b'"',
        b"9",
        b"/",
        b"%C3%A9",
        b"WWW.",
    ]
)
texts = st.one_of(urls, st.lists(pieces, max_size=12).map(b"".join), st.binary(max_size=30))


@given(texts)
@example(b"")
@example(b"http://")
@example(b"http://www.")
@example(b"https://www.a\0")
@example(b"http://a.b/\xff")
def test_any_bytes_come_back(url: bytes) -> None:
    assert unpack(pack(url)) == url


@given(texts, texts)
def test_packed_urls_are_equal_only_if_the_urls_are(one: bytes, other: bytes) -> None:
    assert (pack(one) == pack(other)) == (one == other)


@given(texts)
def test_packing_costs_a_byte_at_most(url: bytes) -> None:
    assert len(pack(url)) <= len(url) + 1


@pytest.mark.parametrize(
    ("url", "length"),
    [
        (b"http://www.example.com/", 1 + 9),
        (b"https://example.org/path/to/page.html?id=123&x=y", 1 + 30),
        (b"http://example.com/ReadMe", 1 + 15),
        (b"urn:x", 1 + 4),
    ],
)
def test_typical_urls_take_six_bits_a_character(url: bytes, length: int) -> None:
    assert len(pack(url)) == length
