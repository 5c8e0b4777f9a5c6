"""Write an object in parts, of which some are copied from another object within the store.

What a result shares with its source is not sent again: ``UploadPartCopy`` takes it from there, if
the source still has the ETag that it was read with. Whoever writes an object so reads it back,
since nothing else proves what a store has copied.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple

from dedupindex.object_store.stores import store_of, with_retries
from dedupindex.runtime.atomic_replace import LONG_RANGE, CopiedRange

PART = LONG_RANGE  # bytes; S3 takes parts from 5 MiB on, but for the last
_COPIED = 256 << 20  # bytes of one part that is copied; S3 takes 5 GiB
_MOST_PARTS = 3_000  # of each kind; S3 takes 10,000 in all
_AT_ONCE = 2  # parts; those that are sent are in memory
TRIED = ".dedupindex-tried-to-write"  # a name that no result has
_UNKNOWN = (400, 405, 501)  # statuses of a store that knows no uploads in parts
_TAKEN = 412  # status: the name is not free, or the source of a copy has changed
NOT_THERE = 404  # status: there is no object to replace
_REFUSED = frozenset((400, 403, 404, 405, 412, 501))  # statuses of a copy that is not possible


class CopySource(NamedTuple):
    """An object that ranges are copied from."""

    address: str
    etag: str  # of the content that is meant
    ranges: Sequence[CopiedRange]


class CopyRefused(Exception):
    """The store does not copy from this source: send the object instead."""


class ObjectPart(NamedTuple):
    """A part of a new object; `offset` is that in the source, or -1 for bytes that are sent."""

    start: int
    length: int
    offset: int = -1


def in_same_store(address: str, other: str) -> bool:
    """Return whether ranges of one object can be copied to another."""
    return store_of(address)[0] is store_of(other)[0]


def parts_of(size: int, ranges: Iterable[CopiedRange]) -> list[ObjectPart]:
    """Cut a new object of `size` bytes into parts, as large as a store takes them.

    `ranges` are in order and do not overlap. A short piece between two of them is sent together
    with the beginning of the second one.
    """
    least, most = max(PART, -(-size // _MOST_PARTS)), max(_COPIED, -(-size // _MOST_PARTS))
    parts, at = list[ObjectPart](), 0
    for begin, offset, length in ranges:
        end = begin + length
        start = max(begin, at + least) if at < begin else begin
        if end - start < least:
            continue
        parts += _cut(at, start, least)
        moved = offset - begin
        parts += (part._replace(offset=part.start + moved) for part in _cut(start, end, most))
        at = end
    parts += _cut(at, size, least)
    return parts


def _cut(start: int, end: int, length: int) -> Iterator[ObjectPart]:
    """Yield parts of at least `length` bytes, and less than twice as many, if there are enough."""
    while end - start >= 2 * length:
        yield ObjectPart(start, length)
        start += length
    if start < end:
        yield ObjectPart(start, end - start)


def put_with_copies(
    file: BinaryIO | None, size: int, address: str, source: CopySource, replaced: str = ""
) -> bool:
    """Write a new object of `size` bytes; return False if the name is not free.

    `source` names the ranges of `file` that are in another object; all are if `file` is None.
    With `replaced`, an ETag, it takes the place of an object; return False if that has another.
    Raises `CopyRefused` and `BadSource`.
    """
    parts = parts_of(size, source.ranges)

    def put() -> bool | None:
        try:
            return _Upload(file, address, source, replaced).put(parts)
        except CopyRefused:
            return None  # it is of no use to try again

    if (written := with_retries(address, put, "written")) is None:
        raise CopyRefused
    return written


def try_writing(address: str) -> bool:
    """Return whether the store takes objects of parts below an address; leaves nothing there.

    Raises `BadSource` if it lets nobody write there. An upload in parts is begun and given up: no
    object is there meanwhile.
    """
    request, target = s3_request(f"{address.rstrip('/')}/{TRIED}")

    def begin() -> Any:
        try:
            return request("create_multipart_upload", **target)
        except Exception as error:
            if status_of(error) in _UNKNOWN:
                return None  # it may take objects that are written at once
            raise

    if (started := with_retries(address, begin, "written")) is None:
        return False
    with suppress(Exception):  # without parts it costs nothing, and expires with others
        request("abort_multipart_upload", **target, UploadId=started["UploadId"])
    return True


class _Upload:
    """One object that is written in parts."""

    def __init__(
        self, file: BinaryIO | None, address: str, source: CopySource, replaced: str
    ) -> None:
        self._condition = {"IfMatch": replaced} if replaced else {"IfNoneMatch": "*"}
        self._request, self._target = s3_request(address)
        self._file, self._etag = file, source.etag
        _, self._source = s3_request(source.address)

    def put(self, parts: Sequence[ObjectPart]) -> bool:
        started = self._request("create_multipart_upload", **self._target)
        self._target["UploadId"] = started["UploadId"]
        try:
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                etags = list(threads.map(self._part, range(1, len(parts) + 1), parts))
            done = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
            upload = {"MultipartUpload": {"Parts": done}, **self._condition}
            self._request("complete_multipart_upload", **self._target, **upload)
        except BaseException as error:
            with suppress(Exception):  # its parts are charged until they expire
                self._request("abort_multipart_upload", **self._target)
            if not isinstance(error, CopyRefused) and is_refused(error, self._condition):
                return False
            raise
        return True

    def _part(self, number: int, part: ObjectPart) -> str:
        """Copy or send a part; return its ETag."""
        if part.offset >= 0:
            try:
                return self._copied(number, part)
            except Exception as error:
                if status_of(error) in _REFUSED:
                    raise CopyRefused from error
                raise
        assert self._file is not None
        body = os.pread(self._file.fileno(), part.length, part.start)
        etag: str = self._request(
            "upload_part", **self._target, PartNumber=number, Body=body
        )["ETag"]  # fmt: skip
        return etag

    def _copied(self, number: int, part: ObjectPart) -> str:
        last = part.offset + part.length - 1
        etag: str = self._request(
            "upload_part_copy", **self._target, PartNumber=number, CopySource=self._source,
            CopySourceRange=f"bytes={part.offset}-{last}", CopySourceIfMatch=self._etag,
        )["CopyPartResult"]["ETag"]  # fmt: skip
        return etag


def s3_request(address: str) -> tuple[Callable[..., Any], dict[str, str]]:
    """Return what sends a request of S3 about an object, and the parameters that name this."""
    store, name = store_of(address)
    bucket, key, version = store.split_path(name)
    return store.call_s3, {
        "Bucket": bucket,
        "Key": key,
        **({"VersionId": version} if version else {}),
    }


def is_refused(error: BaseException, condition: Mapping[str, str]) -> bool:
    """Return whether a store has not written because a condition does not hold."""
    status = status_of(error)
    return status == _TAKEN or (status == NOT_THERE and "IfMatch" in condition)


def status_of(error: BaseException | None) -> int:
    """Return the HTTP status that an error of a store comes from; 0 if there is none."""
    while error is not None:
        answer = getattr(error, "response", None)
        if isinstance(answer, dict):
            return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        error = error.__cause__ or error.__context__
    return 0
