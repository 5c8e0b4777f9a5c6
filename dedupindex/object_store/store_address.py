"""What is an address and no path, and how one is shown and kept."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dedupindex.errors import BadSource

WEB = ("http", "https")
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_OTHERS = ("file", "local", "redis", "rediss", "unix")  # files here; Redis: see `browsertrix`
_TAKEN_FOR_PATH = re.compile(r"([a-z][a-z0-9+.-]+):/", re.IGNORECASE)
_LOCAL = re.compile(r"(?:file|local)://(?:localhost(?=/))?")
_PASSWORD = re.compile(r"[^/@:]*:[^/@]*@")
_SIGNED = re.compile(  # names of what signs a URL, and of when and how that was done
    r"x-(amz|goog)-.*|expires|s[eprtv]|spr|sk(oid|tid|t|e|s|v)|"
    r"(.*[-_.])?(sig|signature|token|key|secret|password|credentials?|auth|authorization)|"
    r".*(accesskeyid|accessid|accesstoken|apikey)",
    re.IGNORECASE,
)


def is_remote(path: str) -> bool:
    """Whether this is an address of something that is not in a file system here."""
    match = _ADDRESS.match(path)
    return match is not None and match[1].lower() not in _OTHERS


def local(source: str) -> str:
    """A path for what names a file here as ``file:///…``; all else as it is."""
    return _LOCAL.sub("", source, count=1) if _LOCAL.match(source) else source


def scheme_of(address: str) -> str:
    """Lower case, without the colon."""
    return address.partition("://")[0].lower()


def kept(address: str) -> str:
    """An address as it is printed, and as the name of a container: without what gives access.

    So an object that is read by a signed URL is the same one whenever that was signed.
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


def check_here(path: str) -> None:
    """Raise `BadSource` for an address, where only files will do."""
    if is_remote(path):
        raise BadSource(
            f"{kept(path)} is no file here, and only those are rewritten, copied and verified: "
            "download it first (bin/index, bin/manifest and bin/report read what is elsewhere)"
        )


def check_path(path: Path) -> None:
    """Raise `BadSource` for an address that was taken for a path, which has cost it a slash."""
    match = _TAKEN_FOR_PATH.match(str(path))
    if match is not None and match[1].lower() not in _OTHERS and not os.path.lexists(match[0]):
        address = kept(f"{match[1]}://{str(path)[match.end() :]}").partition("?")[0]
        raise BadSource(
            f"{address} is an address, and here a path is wanted: only a SOURCE that is read may "
            "be elsewhere (docs/batch.md); download it first, or write to a disk and upload that"
        )


def check(address: str) -> None:
    """Raise `BadSource` for an address with a password in it: commands are seen by all."""
    if _PASSWORD.match(address.partition("://")[2]):
        raise BadSource(
            f"{kept(address)} was given with a password: fsspec takes it from its settings or the "
            "environment (docs/batch.md)"
        )
