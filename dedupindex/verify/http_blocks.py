"""Digests as records state them, and what they are of."""

from __future__ import annotations

import base64
import binascii
import hashlib
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

_BASE32 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
# To the digits of `int`; what is none becomes one that it refuses.
_DIGITS = bytes(
    b"0123456789ABCDEFGHIJKLMNOPQRSTUV"[_BASE32.index(byte)] if byte in _BASE32 else 0x7E
    for byte in range(256)
)
_SIZES = {"md5": 16, "sha1": 20, "sha256": 32, "sha384": 48, "sha512": 64}


_LONGEST_KEPT = 300  # bytes of a field that is remembered


class Stated(NamedTuple):
    """A digest that can be recomputed."""

    algorithm: str
    raw: bytes


def read(text: bytes) -> Stated | None:
    """What a digest field says; None for an algorithm or spelling that is not known here."""
    return _read(text) if len(text) <= _LONGEST_KEPT else _read.__wrapped__(text)


@lru_cache(4096)
def _read(text: bytes) -> Stated | None:
    if len(text) == 37 and text.startswith(b"sha1:"):  # as nearly all are written
        with suppress(ValueError):
            return Stated("sha1", int(text[5:].translate(_DIGITS), 32).to_bytes(20, "big"))
    label, colon, value = text.decode("ascii", "replace").partition(":")
    algorithm = label.lower().replace("-", "")
    size = _SIZES.get(algorithm)
    bare = value.rstrip("=")
    if not colon or size is None:
        return None
    try:
        if len(value) == 2 * size:
            return Stated(algorithm, bytes.fromhex(value))
        if len(bare) == -(-8 * size // 5):
            raw = base64.b32decode(bare + "=" * (-len(bare) % 8), casefold=True)
        elif len(bare) == -(-4 * size // 3):
            usual = bare.replace("-", "+").replace("_", "/")
            raw = base64.b64decode(usual + "=" * (-len(bare) % 4), validate=True)
        else:
            return None
    except (ValueError, binascii.Error):
        return None
    return Stated(algorithm, raw)


def is_usual(text: bytes) -> bool:
    """Whether a digest is spelled as the standard's examples are: base32, or hex in small."""
    label, _, value = text.partition(b":")
    stated = read(text)
    if stated is None or label != stated.algorithm.encode():
        return False
    if len(value) == 32 and stated.algorithm == "sha1":
        return value == value.upper()
    return value in (base64.b32encode(stated.raw), stated.raw.hex().encode())


class Sum:
    """A running digest of one algorithm."""

    def __init__(self, algorithm: str) -> None:
        self._hash = hashlib.new(algorithm, usedforsecurity=False)

    def add(self, data: bytes) -> None:
        self._hash.update(data)

    @property
    def raw(self) -> bytes:
        return self._hash.digest()


def is_cut(stated: Stated) -> bool:
    """Whether a digest ends as one that was copied as a C string: cut at its first zero byte.

    Some writers fill what they cut with zeros. With three zeros at most, 17 bytes are left of a
    SHA-1: enough to tell payloads apart.
    """
    return stated.raw.endswith(bytes(4))


def cut_of(raw: bytes) -> bytes:
    """What such a writer makes of a digest."""
    return raw.split(b"\0", 1)[0].ljust(len(raw), b"\0")


def is_empty(stated: Stated) -> bool:
    """Whether this is the digest of nothing at all."""
    return stated.raw == Sum(stated.algorithm).raw
