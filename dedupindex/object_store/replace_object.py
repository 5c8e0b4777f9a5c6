"""Replace objects that are still those that are meant, and lock prefixes of a store.

An object is replaced under the condition that it has a known ETag (``If-Match``), so one that
somebody else has written meanwhile is never replaced. A store that ignores such conditions is
refused when a prefix is locked.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from dedupindex.errors import BadSource, IndexBusy
from dedupindex.object_store.store_address import redacted
from dedupindex.object_store.stores import facts, store_of, with_retries
from dedupindex.object_store.write_object import remove_object

_LARGE = 16 << 20  # bytes; a smaller object is written by one request
_MOST_PARTS = 9_000  # S3 takes 10,000
_NOT_THERE, _CHANGED, _NOT_IMPLEMENTED = 404, 412, 501  # statuses
_NO_ETAG = '"00000000000000000000000000000000"'  # that no object has
_TRIES = 3  # to get a lock


def replace_object(file: BinaryIO, address: str, etag: str, candidate: str) -> bool:
    """Put the content of a local file in place of an object, if that has an ETag.

    The store copies a large one from `candidate`, an object of the same content. Returns False
    if the object has another ETag: somebody else has replaced it, or a try of this call whose
    reply was lost. What was written is to be read back. Raises `BadSource`.
    """
    size = os.fstat(file.fileno()).st_size
    if size < _LARGE:
        return _put(address, os.pread(file.fileno(), size, 0), IfMatch=etag)
    store, name = store_of(address)
    bucket, key, _ = store.split_path(name)
    target = {"Bucket": bucket, "Key": key}
    source_bucket, source_key, _ = store.split_path(store_of(candidate)[1])
    source = {
        "CopySource": {"Bucket": source_bucket, "Key": source_key},
        "CopySourceIfMatch": facts(candidate).stamp,
    }

    def put() -> bool:
        upload = {"UploadId": store.call_s3("create_multipart_upload", **target)["UploadId"]}
        try:
            parts = []
            for number, begin, end in _parts(size):
                copied = store.call_s3(
                    "upload_part_copy", **target, **upload, **source, PartNumber=number,
                    CopySourceRange=f"bytes={begin}-{end - 1}",
                )  # fmt: skip
                parts.append({"PartNumber": number, "ETag": copied["CopyPartResult"]["ETag"]})
            condition = {"MultipartUpload": {"Parts": parts}, "IfMatch": etag}
            store.call_s3("complete_multipart_upload", **target, **upload, **condition)
        except BaseException as error:
            with suppress(Exception):  # its parts are charged until they expire
                store.call_s3("abort_multipart_upload", **target, **upload)
            if _status_of(error) == _CHANGED:
                return False
            raise
        return True

    return with_retries(address, put, "replaced")


def _parts(size: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, begin and end of the parts of a large object."""
    length = max(_LARGE, -(-size // _MOST_PARTS))
    count = size // length  # the last one is longer
    for number in range(1, count + 1):
        yield number, (number - 1) * length, number * length if number < count else size


def _put(address: str, data: bytes, **condition: str) -> bool:
    """Write an object of some bytes; return False if the condition does not hold."""
    store, name = store_of(address)
    bucket, key, _ = store.split_path(name)

    def put() -> bool:
        try:
            store.call_s3("put_object", Bucket=bucket, Key=key, Body=data, **condition)
        except Exception as error:
            status = _status_of(error)
            if status == _CHANGED or (status == _NOT_THERE and "IfMatch" in condition):
                return False
            if status == _NOT_IMPLEMENTED:
                raise _unconditional(address) from error
            raise
        return True

    return with_retries(address, put, "written")


def _unconditional(address: str) -> BadSource:
    return BadSource(
        f"{redacted(address)}: the store does not write under conditions (If-Match, "
        "If-None-Match), so an object that somebody else writes could be lost: write the results "
        "to another prefix with --out"
    )


# --- locks ---


@contextmanager
def locked_prefix(address: str) -> Iterator[None]:
    """Hold a lock, the object at `address`, in the block.

    The lock of a process of this machine that has ended is taken over. Raises `IndexBusy` if
    another process holds it, and `BadSource` if the store ignores conditions.
    """
    holder = _holder(os.getpid())
    data = json.dumps({**holder, "token": os.urandom(8).hex()}).encode("ascii")
    _acquire(address, data)
    try:
        if _put(address, data, IfNoneMatch="*") or _put(address, data, IfMatch=_NO_ETAG):
            raise _unconditional(address)
        yield
    finally:
        with suppress(BadSource):  # the next run takes it over
            remove_object(address)


def _acquire(address: str, data: bytes) -> None:
    for _ in range(_TRIES):
        if _put(address, data, IfNoneMatch="*"):
            return
        held, etag = _read(address)
        if held == data:  # the reply was lost
            return
        if held and not _is_alive(held) and _put(address, data, IfMatch=etag):
            return
    held, _ = _read(address)
    if held == data:
        return
    raise IndexBusy(
        f"another run holds {redacted(address)} ({held.decode('ascii', 'replace')[:200]}): try "
        "again later; if that run has ended, remove this object"
    )


def _read(address: str) -> tuple[bytes, str]:
    """Return content and ETag of a small object; empty if there is none."""
    store, name = store_of(address)
    bucket, key, _ = store.split_path(name)

    def read() -> tuple[bytes, str]:
        from fsspec.asyn import sync  # an extra

        try:
            answer = store.call_s3("get_object", Bucket=bucket, Key=key)
        except Exception as error:
            if _status_of(error) == _NOT_THERE or isinstance(error, FileNotFoundError):
                return b"", ""
            raise
        return bytes(sync(store.loop, answer["Body"].read)), str(answer["ETag"])

    return with_retries(address, read)


def _holder(process: int) -> dict[str, Any]:
    """Return what identifies a process of this machine."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    started = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    spaces = os.readlink("/proc/self/ns/pid")
    return {"host": socket.gethostname(), "boot": f"{boot} {spaces}", "process": process,
            "started": started}  # fmt: skip


def _is_alive(held: bytes) -> bool:
    """Return whether the holder of a lock may be running: one of another machine may."""
    try:
        fields = json.loads(held)
        del fields["token"]
        here, process = _holder(os.getpid()), int(fields["process"])
        if any(fields[name] != here[name] for name in ("host", "boot")):
            return True
    except (ValueError, TypeError, LookupError):
        return True
    try:
        return bool(fields == _holder(process))
    except OSError:
        return False


def _status_of(error: BaseException | None) -> int:
    """Return the HTTP status that an error of a store comes from; 0 if there is none."""
    while error is not None:
        answer = getattr(error, "response", None)
        if isinstance(answer, dict):
            return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        error = error.__cause__ or error.__context__
    return 0
