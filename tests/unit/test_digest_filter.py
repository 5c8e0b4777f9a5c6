"""`dedupindex.digest_filter`: no digest that was added is ever denied, and damage is refused."""

from __future__ import annotations

import io
import json
import random
import struct
from base64 import b32encode, b64encode
from collections.abc import Iterable
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.digest import SIZES, Digest
from dedupindex.digest_filter import (
    ALGORITHMS,
    GrowingFilter,
    KnownKey,
    Part,
    PartInfo,
    key_of,
    known_key,
    manifest_json,
    read_manifest,
    write_part,
)
from dedupindex.errors import BadDigest, Damaged
from dedupindex.index.format import cells
from tests.support.budgets import examples
from tests.support.captures import digests


def part_of(found: Iterable[Digest], capacity: int = 0, generation: int = 1) -> bytes:
    """The part of some digests."""
    held = set(found)
    keys, bits = sorted({key_of(digest.raw) for digest in held}), 0
    for digest in held:
        bits |= 1 << ALGORITHMS[digest.algorithm][0]
    stream = io.BytesIO()
    write_part(stream, keys, capacity or len(keys), bits, generation)
    return stream.getvalue()


def of(digest: Digest) -> KnownKey:
    return KnownKey.of(*digest)


def reference(part: bytes, digest: Digest) -> bool:
    """Whether a part has a digest, word by word as docs/digest-filter.md and Parquet describe."""
    salts = (
        *(0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D),
        *(0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31),
    )
    assert part[-32:] == sha256(part[:-32]).digest() and part[:8] == b"dedupflt"
    version, blocks, _, algorithms = struct.unpack_from("<IIQI", part, 8)
    assert version == 1 and len(part) == 64 + 32 * blocks + 32
    code = ["", "md5", "sha1", "sha256", "sha512", "blake3"].index(digest.algorithm)
    if not algorithms >> code & 1:
        return False
    high, low = struct.unpack(">II", digest.raw[:8])
    words = struct.unpack_from("<8I", part, 64 + 32 * (high * blocks // 2**32))
    return all(
        word >> (low * salt % 2**32 // 2**27) & 1 for word, salt in zip(words, salts, strict=True)
    )


@settings(max_examples=examples(200))
@given(st.lists(digests(), max_size=60), st.lists(digests(), max_size=20), st.integers(1, 400))
def test_what_was_added_is_never_denied_and_readers_agree(
    added: list[Digest], others: list[Digest], capacity: int
) -> None:
    data, growing = part_of(added, capacity), GrowingFilter(64)
    part = Part(data)
    assert part.info == PartInfo(
        data[-32:].hex(), len(data), len({key_of(digest.raw) for digest in added}), 1
    )
    for digest in added:
        growing.add(of(digest))
    for digest in added:
        assert (
            part.may_have(of(digest)) and reference(data, digest) and growing.may_have(of(digest))
        )
    for digest in others:
        assert part.may_have(of(digest)) == reference(data, digest)
    assert growing.size == len(added)


def test_the_bytes_of_a_part_are_those_that_are_documented() -> None:
    data = part_of([Digest("sha1", bytes(range(20))), Digest("md5", b"\xff" * 16)], 40, 7)
    assert data[:64] == (
        b"dedupflt" + struct.pack("<IIQIIQ", 1, 2, 2, 1 << 1 | 1 << 2, 0, 7) + bytes(24)
    )
    # low half 0x04050607: the products' top five bits, by hand for the first and the last salt
    first = struct.unpack_from("<8I", data, 64)
    assert first[0] == 1 << (0x04050607 * 0x47B6137B % 2**32 >> 27)
    assert first[7] == 1 << (0x04050607 * 0x5C6BFB31 % 2**32 >> 27)
    assert all(word.bit_count() == 1 for word in struct.unpack_from("<8I", data, 96))


def test_one_new_digest_in_150_is_taken_for_a_known_one_at_most() -> None:
    rng, count = random.Random(7), 40_000
    part = Part(part_of(Digest("sha1", rng.randbytes(20)) for _ in range(count)))
    growing = GrowingFilter()
    for _ in range(count):
        growing.add(of(Digest("sha1", rng.randbytes(20))))
    others = [of(Digest("sha1", rng.randbytes(20))) for _ in range(count)]
    assert part.info.size <= count * 1.5 + 128
    assert sum(map(part.may_have, others)) < count / 150
    assert sum(map(growing.may_have, others)) < count / 30  # of three tables


def test_damage_is_refused_wherever_it_is() -> None:
    data = part_of(Digest("sha1", bytes([n]) * 20) for n in range(30))
    for at in range(len(data)):
        for flipped in (1, 0x80):
            with pytest.raises(Damaged):
                Part(data[:at] + bytes([data[at] ^ flipped]) + data[at + 1 :])
        with pytest.raises(Damaged):
            Part(data[:at])
    with pytest.raises(Damaged):
        Part(data + b"\0")
    with pytest.raises(Damaged):
        Part(data, "0" * 64)  # another part than the manifest names


def test_a_part_of_another_version_or_length_is_refused() -> None:
    data = part_of([Digest("sha1", bytes(range(20)))])
    for at, value in ((8, 2), (12, 0), (12, 3)):
        body = data[:at] + struct.pack("<I", value) + data[at + 4 : -32]
        with pytest.raises(Damaged, match="version or length"):
            Part(body + sha256(body).digest())


def test_an_algorithm_that_no_digest_has_is_not_there() -> None:
    part = Part(part_of([Digest("sha1", bytes(range(20)))]))
    assert part.may_have(of(Digest("sha1", bytes(range(20)))))
    assert not part.may_have(of(Digest("md5", bytes(range(16)))))


def test_algorithms_are_those_of_digests_and_keys() -> None:
    assert {label: size for label, (_, size) in ALGORITHMS.items()} == SIZES
    assert all(cells.ALGORITHMS[code] == label for label, (code, _) in ALGORITHMS.items())


@given(digests())
def test_digests_are_read_in_every_spelling(digest: Digest) -> None:
    expected = None if digest.raw.endswith(bytes(4)) else of(digest)
    b32, b64 = b32encode(digest.raw).decode(), b64encode(digest.raw).decode()
    hexadecimal = digest.raw.hex()
    for value in (
        hexadecimal, hexadecimal.upper(), b32, b32.lower(), b32.rstrip("="), b64, b64.rstrip("="),
    ):  # fmt: skip
        for label in (digest.algorithm, digest.algorithm.upper(), f"{digest.algorithm[:3]}-"):
            assert known_key(f"{label}:{value}") in (expected, None)
        assert known_key(f"{digest.algorithm}:{value}") == expected


@settings(max_examples=examples(300))
@given(
    st.one_of(st.text(max_size=80), st.from_regex(r"(sha1|md5|sha-256):[ -~]{20,70}")),
    st.sampled_from(["", "sha1:", "md5:", "blake3:"]),
)
def test_nothing_is_a_key_that_the_index_reads_otherwise(text: str, label: str) -> None:
    found = known_key(label + text)
    if found is not None:
        assert found == of(Digest.parse(label + text))


@pytest.mark.parametrize(
    "text",
    [
        "FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN",
        "crc32:00",
        "sha1:",
        "sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRX0",
        "sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRX１",
        "sha1:2aae6c35c94fcfb415dbe95f408b9ce91ee846e ",
        "sha1: 2aae6c35c94fcfb415dbe95f408b9ce91ee846",
        "sha1:2aae6c35c94fcfb415dbe95f408b9ce900000000",
    ],
)
def test_what_an_index_does_not_simply_look_up_has_no_key(text: str) -> None:
    assert known_key(text) is None
    if "0000" not in text and ":" in text:
        with pytest.raises(BadDigest):
            Digest.parse(text)


def test_a_manifest_is_read_as_it_is_written_and_else_refused() -> None:
    parts = [Part(part_of([Digest("sha1", bytes(range(n, n + 20)))], n)).info for n in (1, 50)]
    content = manifest_json(parts)
    text = json.dumps(content)
    assert content["digests"] == 2 and read_manifest(text.encode()) == parts
    assert read_manifest(b'{"version": 1, "parts": []}') == []
    for wrong in (
        *("", "[]", "{}"),
        text.replace('"version": 1', '"version": 2'),
        text.replace(parts[0].id, "../x"),
        text.replace(parts[0].id, parts[0].id.upper()),
        text.replace('"digests": 1', '"digests": -1'),
        text.replace('"bytes": ', '"bytes": 0.'),
        text.replace('"parts"', '"part"'),
    ):
        with pytest.raises(Damaged):
            read_manifest(wrong.encode())
