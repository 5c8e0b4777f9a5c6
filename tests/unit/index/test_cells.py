"""Keys and entries: round trips, and the documented bytes do not change unnoticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupindex.capture import Capture, Covers, Evidence
from dedupindex.digest import CANONICAL, SIZES, Digest, Spelling
from dedupindex.index.format.cells import (
    ALGORITHMS,
    ContainerRef,
    Keys,
    canonical_prefix,
    cell_of,
    decode,
    digest_of_key,
    digest_prefix,
    encode,
    encode_revisit,
    entries_of,
    packed_url,
    url_of,
)
from dedupindex.urlkey import urlkey
from tests.support.captures import capture, digests, urls
from tests.support.captures import captures as any_captures

KEYS = [Keys(), Keys(canonical=False), Keys(url=False, canonical=False)]
PLACES = [
    ContainerRef(container, crawl)
    for crawl in ("", "weekly", "daily")
    for container in ("", "a.warc.gz", "b.warc.gz")
]

captures = any_captures.map(lambda item: item._replace(etag=b"", last_modified=b"", also=()))


def number_of(item: Capture) -> int:
    return PLACES.index(ContainerRef(item.container, item.crawl))


validators = st.tuples(st.binary(max_size=50), st.binary(max_size=50))


@given(captures, validators, st.sampled_from(KEYS))
def test_every_capture_comes_back(item: Capture, kept: tuple[bytes, bytes], keys: Keys) -> None:
    item = item._replace(etag=kept[0], last_modified=kept[1])
    entry = encode(item, number_of(item), etag=True)
    key = keys.key_of(item.digest, item.url)
    assert decode(key, entry, PLACES.__getitem__) == item
    assert url_of(entry) == item.url
    assert list(entries_of(entry)) == [entry]


@given(captures, validators)
def test_validators_are_left_out_unless_asked_for(item: Capture, kept: tuple[bytes, bytes]) -> None:
    entry = encode(item._replace(etag=kept[0], last_modified=kept[1]), number_of(item))
    assert decode(Keys().key_of(item.digest, item.url), entry, PLACES.__getitem__) == item


@given(captures, digests())
def test_a_further_digest_finds_the_capture_with_its_own(item: Capture, other: Digest) -> None:
    entry = encode(item, number_of(item), also=True)
    key = Keys().key_of(other, item.url)
    assert digest_of_key(key) == other
    assert decode(key, entry, PLACES.__getitem__) == item


@given(st.lists(captures, min_size=1, max_size=4))
def test_cells_hold_their_entries_in_order(items: list[Capture]) -> None:
    entries = [encode(item, 0) for item in items] + [encode_revisit(items[0])]
    assert list(entries_of(cell_of(entries))) == entries
    assert cell_of(entries[:1]) == entries[0]


@given(urls, urls, captures)
def test_packed_urls_differ_if_the_urls_differ(one: bytes, other: bytes, item: Capture) -> None:
    packed = [packed_url(encode(item._replace(url=url), 1)) for url in (one, other)]
    assert (packed[0] == packed[1]) == (one == other)


@pytest.mark.parametrize("keys", KEYS)
@given(digest=digests(), url=urls)
def test_keys_have_the_documented_prefixes(keys: Keys, digest: Digest, url: bytes) -> None:
    key = keys.key_of(digest, url)
    assert len(key) == keys.lengths()[key[0]]
    assert key.startswith(digest_prefix(digest))
    assert digest_of_key(key) == digest
    if keys.canonical:
        assert key.startswith(canonical_prefix(digest, urlkey(url)))


def test_codes_of_algorithms_do_not_change() -> None:
    assert ALGORITHMS == ("", "md5", "sha1", "sha256", "sha512", "blake3")
    assert set(ALGORITHMS[1:]) == set(SIZES)


@pytest.mark.parametrize("size", [0, 0xFFFFFFFD, 0xFFFFFFFE, 0xFFFFFFFF, 1 << 32, -1])
@pytest.mark.parametrize("offset", [-1, 0, (1 << 40) - 2])
def test_sizes_and_offsets_at_the_edges(size: int, offset: int) -> None:
    item = capture(size=size, offset=offset, container="a.warc.gz")
    entry = encode(item, 1)
    assert decode(Keys().key_of(item.digest, item.url), entry, PLACES.__getitem__) == item


def test_an_offset_too_far_to_store_is_not_known() -> None:
    item = capture(offset=(1 << 40) - 1, container="a.warc.gz")
    key = Keys().key_of(item.digest, item.url)
    assert decode(key, encode(item, 1), PLACES.__getitem__).offset == -1


@pytest.mark.parametrize("number", [1 << 48, 1 << 64, 10**30])
def test_numbers_too_large_to_store_are_not_known(number: int) -> None:
    item = capture(size=number, offset=number, status=number, container="a.warc.gz")
    key = Keys().key_of(item.digest, item.url)
    found = decode(key, encode(item, 1), PLACES.__getitem__)
    assert found == item._replace(size=-1, offset=-1, status=0)


def test_values_that_are_too_long_are_left_out_whole() -> None:
    item = capture(record_id=b"x" * 4097, mime=b"y" * 4097, container="a.warc.gz")
    key = Keys().key_of(item.digest, item.url)
    assert decode(key, encode(item, 1), PLACES.__getitem__) == item._replace(
        record_id=b"", mime=b""
    )


def test_entries_have_the_documented_bytes() -> None:
    """If this fails the format has changed: raise `identity.FORMAT`, or put it back."""
    item = Capture(
        Digest("sha1", bytes(range(20))),
        Spelling(4, 3),
        b"http://www.example.com/A?q=1",
        b"2026-11-20T09:14:17.5Z",
        evidence=Evidence.ROW,
        covers=Covers.BOTH,
        status=404,
        mime=b"text/html",
        size=4096,
        record_id=b"urn:uuid:12345678-1234-1234-1234-123456789012",
        container="b.warc.gz",
        offset=1 << 33,
    )
    assert Keys().key_of(item.digest, item.url).hex() == (
        "02000102030405060708090a0b0c0d0e0f10111213ed58032c078f53b726"
    )
    assert encode(item, 2).hex() == (
        "5d" "43" "126d68dda519" "00001000" "0200000000" "00000002" "01"
        "12345678123412341234123456789012"
        "0009" "01" "0002" "0194" "02" "0001" "35"
        "0b" "11700c3cb12508e324f00a10a5bf"
    )  # fmt: skip
    mark = item._replace(evidence=Evidence.REVISIT, spelling=CANONICAL)
    assert encode_revisit(mark).hex() == "0310126d68dda519"
