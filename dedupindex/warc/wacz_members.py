"""The WARC files in a WACZ: their names, and where their bytes are (WACZ 1.1.1).

Each is a container of its own, ``<wacz>/archive/<name>``, with offsets in that inner file. It must
be stored without compression, so that its records can be read in place.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import orjson

from dedupindex.object_store import RemoteFile, is_remote

BROKEN = (BadZipFile, OSError, ValueError, EOFError, zlib.error, NotImplementedError, RuntimeError)
"""Exceptions of reading a broken zip file."""

_ARCHIVED = re.compile(r"archive/.+\.(?:w?arc)(?:\.gz|\.zst)?", re.IGNORECASE)
_INDEXES = re.compile(r"indexes/[^/]+\.cdxj?(?:\.gz)?", re.IGNORECASE)
_WITHIN = re.compile("/(?=archive/.)")
_ENDING = ".wacz"
_MAX_JSON = 16 << 20  # bytes of a datapackage.json that is read
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # mark, lengths of name and extra field
_ENCRYPTED = 1

Read = Callable[[int, int], bytes]
"""``read(offset, count)``"""


class Place(NamedTuple):
    """Where an inner file is, in bytes."""

    begin: int
    size: int


def archived(container: ZipFile) -> list[ZipInfo]:
    """Return the WARC and ARC files, in the order of their bytes."""
    found = [info for info in container.infolist() if _ARCHIVED.fullmatch(info.filename)]
    return sorted(found, key=lambda info: info.header_offset)


def is_stored(info: ZipInfo) -> bool:
    """Return whether a file is stored, not deflated; raises `BadZipFile` for an encrypted one."""
    if info.flag_bits & _ENCRYPTED:
        raise BadZipFile("it is encrypted")
    return info.compress_type == ZIP_STORED


def place_of(info: ZipInfo, read: Read, size: int) -> Place:
    """Return where the bytes of a stored file are; raises `BadZipFile`.

    `size` is that of the zip file.
    """
    header = read(info.header_offset, _LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size:
        raise BadZipFile("it is not where the zip's directory says")
    mark, name, extra = _LOCAL_HEADER.unpack(header)
    begin = info.header_offset + _LOCAL_HEADER.size + int(name) + int(extra)
    if mark != b"PK\x03\x04" or begin + info.file_size > size:
        raise BadZipFile("it is not where the zip's directory says")
    return Place(begin, info.file_size)


def why_nothing(container: ZipFile) -> str:
    """Return what is wrong with a WACZ without a WARC file."""
    names = container.namelist()
    nested = [name for name in names if name.lower().endswith(_ENDING)]
    if not nested and "datapackage.json" in names:
        with container.open("datapackage.json") as stream:
            package = orjson.loads(stream.read(_MAX_JSON))
        resources = package.get("resources") if isinstance(package, dict) else None
        resources = resources if isinstance(resources, list) else []
        named = [str(part.get("path", "")) for part in resources if isinstance(part, dict)]
        nested = [path for path in named if path.lower().endswith(_ENDING)]
    if nested:
        return f"only names other WACZ files ({nested[0]}, …): give those instead"
    return "holds no WARC file below archive/"


def is_wacz(name: str) -> bool:
    """Return whether a file is named like a WACZ."""
    return name.lower().endswith(_ENDING)


def within(name: str) -> tuple[str, str] | None:
    """Return the WACZ, by path or address, and the name in it, of a container in a WACZ.

    Returns None for other containers, as in a directory called ``archive``.
    """
    for match in _WITHIN.finditer(name):
        outer = name[: match.start()]
        if is_wacz(outer) if is_remote(outer) else os.path.isfile(outer):
            return outer, name[match.end() :]
    return None


def containers(path: str, file: BinaryIO | RemoteFile) -> list[str]:
    """Return the names of the containers in a WACZ; raises one of `BROKEN` if there is none."""
    with ZipFile(file) as container:
        found = [f"{path}/{info.filename}" for info in archived(container)]
        if not found:
            raise ValueError(why_nothing(container))
        return list(dict.fromkeys(found))


def unpack_indexes(file: BinaryIO | RemoteFile, home: Path) -> list[tuple[str, Path]]:
    """Extract the CDX and CDXJ files of a WACZ to a directory; raises one of `BROKEN`."""
    unpacked: list[tuple[str, Path]] = []
    with ZipFile(file) as container:
        for info in container.infolist():
            if _INDEXES.fullmatch(info.filename):
                path = home / f"{len(unpacked)}.lines"
                with container.open(info) as source, open(path, "wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
                unpacked.append((info.filename, path))
    return unpacked


def find(name: str, file: BinaryIO | RemoteFile) -> Place:
    """Return where an inner file is; raises one of `BROKEN`."""
    with ZipFile(file) as container:
        info = next((one for one in container.infolist() if one.filename == name), None)
    if info is None:
        raise ValueError(f"there is no {name} in it")
    if not is_stored(info):
        raise ValueError(f"{name} is deflated in it, and must be stored: unpack it")

    def read(offset: int, count: int) -> bytes:
        file.seek(offset)
        return file.read(count)

    return place_of(info, read, file.seek(0, os.SEEK_END))
