"""Addresses of objects: recognised, checked, and shown without credentials."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dedupindex.errors import BadSource

WEB = ("http", "https")
S3 = ("s3", "s3a")
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_OTHERS = ("file", "local", "redis", "rediss", "unix")  # files here; Redis: see `browsertrix`
_SERVICE = "+"  # in the scheme of a service that is a source, see `sources.service_address`
_TAKEN_FOR_PATH = re.compile(r"([a-z][a-z0-9+.-]+):/", re.IGNORECASE)
_LOCAL = re.compile(r"(?:file|local)://(?:localhost(?=/))?")
_PASSWORD = re.compile(r"[^/@:]*:[^/@]*@")
_SIGNED = re.compile(  # query parameters of a signed URL
    r"x-(amz|goog)-.*|expires|s[eprtv]|spr|sk(oid|tid|t|e|s|v)|"
    r"(.*[-_.])?(sig|signature|token|key|secret|password|credentials?|auth|authorization)|"
    r".*(accesskeyid|accessid|accesstoken|apikey)",
    re.IGNORECASE,
)


def is_remote(path: str) -> bool:
    """Return whether this is an address of an object, not a local path."""
    match = _ADDRESS.match(path)
    return match is not None and match[1].lower() not in _OTHERS and _SERVICE not in match[1]


def local(source: str) -> str:
    """Return the path of a ``file:///…`` URL; everything else unchanged."""
    return _LOCAL.sub("", source, count=1) if _LOCAL.match(source) else source


def scheme_of(address: str) -> str:
    """Return the scheme of an address, in lower case."""
    return address.partition("://")[0].lower()


def redacted(address: str) -> str:
    """Return an address without credentials and signatures, to be printed and stored.

    So an object has the same name whenever its URL was signed.
    """
    scheme, mark, rest = address.partition("://")
    if not mark:
        return address
    rest = _PASSWORD.sub("", rest, count=1) if _PASSWORD.match(rest) else rest
    plain, question, query = rest.partition("?")
    if question and scheme.lower() in WEB:
        parts = [part for part in query.split("&") if not _SIGNED.fullmatch(part.split("=")[0])]
        rest = plain + (question + "&".join(parts) if parts else "")
    return f"{scheme}://{rest}"


def check_path(path: Path) -> None:
    """Raise `BadSource` for an address that was parsed as a path, which removed a slash."""
    match = _TAKEN_FOR_PATH.match(str(path))
    if match is not None and match[1].lower() not in _OTHERS and not os.path.lexists(match[0]):
        address = redacted(f"{match[1]}://{str(path)[match.end() :]}").partition("?")[0]
        raise BadSource(
            f"{address} is an address, and here a path is wanted: only a SOURCE that is read may "
            "be elsewhere (docs/batch.md); download it first, or write to a disk and upload that"
        )


def meant_address(path: str) -> str:
    """Return the address that was meant by a path such as ``s3:/bucket/x``, "" if it is a path."""
    match = _TAKEN_FOR_PATH.match(path)
    known = match is not None and match[1].lower() in (*S3, *WEB) and "://" not in path
    if match is None or not known or os.path.lexists(match[0]):
        return ""
    return f"{match[1].lower()}://{path[match.end() :]}"


def check_address(address: str) -> None:
    """Raise `BadSource` for an address with a password: command lines are visible to all users.

    Also for one whose scheme is not in lower case, which no file system has.
    """
    scheme, mark, rest = address.partition("://")
    if scheme != scheme.lower():
        raise BadSource(
            f"{redacted(address)}: did you mean {redacted(scheme.lower() + mark + rest)}?"
        )
    if _PASSWORD.match(address.partition("://")[2]):
        raise BadSource(
            f"{redacted(address)} was given with a password: fsspec takes it from its settings or "
            "the environment (docs/batch.md)"
        )
