"""Payload digests: one value, many spellings.

A SHA-1 is written as ``sha1:`` + base32 (Heritrix, wget), ``sha1:`` + hex (warcprox), or bare
base32 (CDX). All are parsed to the same `Digest`. Replay tools compare the text, so the `Spelling`
of an original's digest is kept and written exactly (WARC 1.1 section 5.9; the annotated
specification for labels and case).
"""

from __future__ import annotations

import hashlib
from base64 import b32decode, b32encode, b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

import blake3

from dedupindex.errors import BadDigest

SIZES = {"md5": 16, "sha1": 20, "sha256": 32, "sha512": 64, "blake3": 32}  # algorithm -> bytes

_UNPADDED = {name: -(-8 * size // 5) for name, size in SIZES.items()}
_FROM, _TO = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", b"0123456789ABCDEFGHIJKLMNOPQRSTUV"
# Base32 to what `int` reads in base 32. All other bytes become one that it refuses, so that
# decoding 32 characters checks them as well.
FROM_BASE32 = bytes(_TO[_FROM.index(byte)] if byte in _FROM else 0x7E for byte in range(256))


class Hash(Protocol):
    """A hash object of `hashlib` or `blake3`."""

    def update(self, data: bytes | memoryview, /) -> object: ...
    def digest(self) -> bytes: ...


class Digest(NamedTuple):
    """A payload digest: an algorithm ("md5", "sha1", "sha256", "sha512", "blake3") and raw bytes.

    As text it is the label, a colon and base32.

    >>> str(Digest.parse("SHA-1:2aae6c35c94fcfb415dbe95f408b9ce91ee846ed"))
    'sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN'
    """

    algorithm: str
    raw: bytes

    @classmethod
    def parse(cls, text: str, *, unlabelled: str = "") -> Digest:
        """Parse a digest in hex, base32 or base64, with or without a label.

        `unlabelled` is the algorithm of text without a label. The length decides which encoding it
        is, as hex may be valid base32. Raises `BadDigest`.

        >>> Digest.parse("FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN", unlabelled="sha1").raw.hex()
        '2aae6c35c94fcfb415dbe95f408b9ce91ee846ed'
        """
        return parse_spelled(text, unlabelled=unlabelled)[0]

    def spelled(self, spelling: Spelling) -> str:
        """Return the digest as text in a spelling, such as that of a `Capture`.

        >>> with dedupindex.open("my-index") as index:
        ...     (capture,) = index.captures("http://example.com/")
        >>> capture.digest.spelled(capture.spelling)
        'sha1:G7HRM7BGOKSKMSXZAHMUQTTV53QOFSMK'
        """
        value = _ENCODERS[spelling.encoding](self.raw)
        if not spelling.label:
            return value
        return f"{_LABELS[spelling.label](self.algorithm)}:{value}"

    def __str__(self) -> str:
        return self.spelled(CANONICAL)


class Spelling(NamedTuple):
    """How a digest is written: its form of label and its encoding."""

    label: int  # 0 none, 1 "sha1:", 2 "SHA1:", 3 "sha-1:", 4 "SHA-1:"
    encoding: int  # 0 base32, 1 base32 lower case, 2 hex, 3 HEX, 4 base64, 5 base32 with padding

    @property
    def code(self) -> int:
        """The spelling as one byte."""
        return self.label << 4 | self.encoding

    @classmethod
    def from_code(cls, code: int) -> Spelling:
        return cls(code >> 4, code & 15)


CANONICAL = Spelling(1, 0)

_ENCODERS: tuple[Callable[[bytes], str], ...] = (
    lambda raw: b32encode(raw).decode().rstrip("="),
    lambda raw: b32encode(raw).decode().rstrip("=").lower(),
    lambda raw: raw.hex(),
    lambda raw: raw.hex().upper(),
    lambda raw: b64encode(raw).decode(),
    lambda raw: b32encode(raw).decode(),
)


def _hyphenated(algorithm: str) -> str:
    return algorithm.replace("sha", "sha-", 1)


_LABELS: tuple[Callable[[str], str], ...] = (
    lambda algorithm: "",
    lambda algorithm: algorithm,
    lambda algorithm: algorithm.upper(),
    _hyphenated,
    lambda algorithm: _hyphenated(algorithm).upper(),
)


def parse_spelled(text: str, *, unlabelled: str = "") -> tuple[Digest, Spelling]:
    """Return the digest of a text, and its spelling; see `Digest.parse`."""
    if len(text) == 37 and text.startswith("sha1:"):  # as crawlers write it
        with suppress(ValueError):
            return Digest("sha1", sha1_of_base32(text[5:].encode("ascii"))), CANONICAL
    label, _, value = text.rpartition(":")
    algorithm = label.replace("-", "").lower() if label else unlabelled
    size = SIZES.get(algorithm)
    if size is None and label:
        raise BadDigest(f"no known algorithm in digest {text!r}; known are {', '.join(SIZES)}")
    if size is None:
        raise BadDigest(no_label(text))
    try:
        raw, encoding = _decode(value, algorithm, size)
    except ValueError as error:
        raise BadDigest(f"cannot decode digest {text!r}: {error}") from error
    return Digest(algorithm, raw), Spelling(_label_form(label, algorithm), encoding)


def no_label(text: str) -> str:
    """Return the error for a digest without a label, with those that it may have."""
    fitting = []
    for name, size in SIZES.items():
        with suppress(ValueError):
            _decode(text, name, size)
            fitting.append(f"{name}:{text}")
    return f"no label in digest {text!r}: write {' or '.join(fitting) or 'sha1:…'}"


def _decode(value: str, algorithm: str, size: int) -> tuple[bytes, int]:
    if not value.isascii() or not value.replace("+", "").replace("/", "").rstrip("=").isalnum():
        raise ValueError("not hex, base32 or base64")
    if size == 20 and len(value) == 32:
        with suppress(ValueError):  # it is in lower case, or no base32
            return sha1_of_base32(value.encode("ascii")), 0
    bare = value.rstrip("=")
    if len(bare) == 2 * size and bare == value:
        return bytes.fromhex(value), 3 if value != value.lower() else 2
    if len(bare) == _UNPADDED[algorithm]:
        raw = b32decode(bare + "=" * (-len(bare) % 8), casefold=True)
        if bare != value:
            return raw, 5
        return raw, 1 if bare != bare.upper() else 0
    if len(bare) == -(-4 * size // 3):
        return b64decode(bare + "=" * (-len(bare) % 4), validate=True), 4
    raise ValueError(
        f"{algorithm} takes {2 * size} hex, {_UNPADDED[algorithm]} base32 or "
        f"{-(-4 * size // 3)} base64 characters, this has {len(bare)}"
    )


def _label_form(label: str, algorithm: str) -> int:
    for form, write in enumerate(_LABELS):
        if label == write(algorithm):
            return form
    return 1


def sha1_of_base32(value: bytes) -> bytes:
    """Decode 32 upper-case base32 characters, ten times as fast as `base64`; or `ValueError`."""
    if len(value) != 32:
        raise ValueError("not 32 base32 characters")
    return int(value.translate(FROM_BASE32), 32).to_bytes(20, "big")


CUT = bytes(4)
"""The end of digests that are refused.

Some writers copy digests as C strings, cut at the first zero byte and filled with zeros: wget-AT of
2023 writes one payload in 256 as ``sha1:AAAA…``. Two payloads with the same such digest may differ,
so a digest that ends with four zero bytes is refused. One valid digest in four billion ends so; its
payload is then stored again.
"""
CUT_DIGEST = "cut-digest"
"""The reason in refusals and answers for such a digest."""


def is_cut(raw: bytes) -> bool:
    """Return whether the raw bytes of a digest may have been cut at a zero byte."""
    return raw.endswith(CUT)


def cut_at_zero(raw: bytes) -> bytes:
    """Return what a writer that copies digests as C strings makes of `raw`."""
    return raw.partition(b"\0")[0].ljust(len(raw), b"\0")


def new_hash(algorithm: str) -> Hash:
    """A running hash with ``update`` and ``digest``; `BadDigest` for an unknown algorithm."""
    if algorithm == "sha1":  # nearly always; in half the time
        return hashlib.sha1(usedforsecurity=False)
    if algorithm == "blake3":
        return blake3.blake3()
    if algorithm not in SIZES:
        raise BadDigest(f"no known digest algorithm {algorithm!r}")
    return hashlib.new(algorithm, usedforsecurity=False)


EMPTY = frozenset(Digest(name, new_hash(name).digest()) for name in SIZES)
"""The digest of no bytes, in every algorithm; an empty payload is never an original."""
