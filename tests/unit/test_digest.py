"""`dedupindex.digest`: all spellings are one value, and each is written back as it was."""

from __future__ import annotations

from base64 import b32encode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupindex.digest import (
    CANONICAL,
    EMPTY,
    SIZES,
    Digest,
    Spelling,
    new_hash,
    parse_spelled,
    sha1_of_base32,
)
from dedupindex.errors import BadDigest
from tests.support.captures import digests


@given(digests())
def test_every_spelling_is_the_same_digest(digest: Digest) -> None:
    b32, b64 = b32encode(digest.raw).decode(), b64encode(digest.raw).decode()
    for value in (
        digest.raw.hex(),
        digest.raw.hex().upper(),
        b32,
        b32.lower(),
        b32.rstrip("="),
        b64,
        b64.rstrip("="),
    ):
        for label in (digest.algorithm, digest.algorithm.upper()):
            assert Digest.parse(f"{label}:{value}") == digest
        assert Digest.parse(value, unlabelled=digest.algorithm) == digest


@given(digests(), st.integers(0, 4), st.integers(0, 5))
def test_a_spelling_is_written_back_to_the_letter(
    digest: Digest, label: int, encoding: int
) -> None:
    text = digest.spelled(Spelling(label, encoding))
    again, spelling = parse_spelled(text, unlabelled=digest.algorithm)
    assert again == digest
    assert digest.spelled(spelling) == text
    assert Spelling.from_code(spelling.code) == spelling


@given(st.text())
def test_any_text_parses_or_is_refused_by_name(text: str) -> None:
    try:
        Digest.parse(text, unlabelled="sha1")
    except BadDigest as error:
        assert repr(text) in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "sha1:",
        "crc32:AAAA",
        "sha1:FKXGYNOJ",
        "FKXGYNOJ",
        "sha1:ERROR",
        "sha256:" + "a" * 63,
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(BadDigest):
        Digest.parse(text)


def test_no_label_is_no_algorithm() -> None:
    with pytest.raises(BadDigest):
        Digest.parse("FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN")


def test_a_hex_digest_that_is_valid_base32_is_read_as_hex() -> None:
    value = "a2" * 20
    assert Digest.parse(f"sha1:{value}").raw == bytes.fromhex(value)


@pytest.mark.parametrize("text", ["sha-1:", "SHA-1:", "SHA1:", "sha1:"])
def test_label_variants(text: str) -> None:
    value = "FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN"
    digest, spelling = parse_spelled(text + value)
    assert str(digest) == "sha1:" + value
    assert digest.spelled(spelling) == text + value


@given(st.binary(min_size=20, max_size=20))
def test_the_fast_decoder_equals_the_plain_one(raw: bytes) -> None:
    text = b32encode(raw)
    assert sha1_of_base32(text) == raw
    with pytest.raises(ValueError):
        sha1_of_base32(text[:-1] + b"1")


@given(st.binary(min_size=30, max_size=34))
def test_the_fast_decoder_refuses_everything_else(text: bytes) -> None:
    alphabet = set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")
    if len(text) == 32 and set(text) <= alphabet:
        return
    with pytest.raises(ValueError):
        sha1_of_base32(text)


def test_the_empty_payload_is_known_in_every_algorithm() -> None:
    assert {digest.algorithm for digest in EMPTY} == set(SIZES)
    assert Digest.parse("sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ") in EMPTY
    assert Digest("blake3", new_hash("blake3").digest()).spelled(CANONICAL).startswith("blake3:")
