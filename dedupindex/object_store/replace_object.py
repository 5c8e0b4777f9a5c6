"""Replace objects that are still those that are meant, and lock prefixes of a store.

An object is replaced under the condition that it has a known ETag (``If-Match``), so one that
somebody else has written meanwhile is never replaced. A store that ignores such conditions is
refused when a prefix is locked, or before the first object is created below it.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import blake3

from dedupindex.errors import SOURCE_ERRORS, BadSource, IndexBusy
from dedupindex.object_store.copied_parts import (
    NOT_THERE,
    TRIED,
    CopyRefused,
    CopySource,
    is_refused,
    put_with_copies,
    s3_request,
    status_of,
    try_writing,
)
from dedupindex.object_store.create_object import LARGE
from dedupindex.object_store.store_address import redacted
from dedupindex.object_store.stores import facts, store_of, with_retries
from dedupindex.object_store.write_object import remove_object
from dedupindex.runtime.atomic_replace import CopiedRange

_NOT_IMPLEMENTED = 501  # status
_NO_CONDITION = (400, 501)  # statuses of a store that deletes under no condition
_NO_ETAG = '"00000000000000000000000000000000"'  # that no object has
_TRIES = 3  # to get a lock, or to see a condition refused
_held = set[str]()  # the tokens of the locks of this process


def replace_object(file: BinaryIO, address: str, etag: str, candidate: str) -> bool:
    """Put the content of a local file in place of an object, if that has an ETag.

    The store copies a large one from `candidate`, an object of the same content. Returns False
    if the object has another ETag: somebody else has replaced it, or a try of this call whose
    reply was lost. What was written is to be read back. Raises `BadSource`.
    """
    size = os.fstat(file.fileno()).st_size
    if size < LARGE:
        return _put(address, os.pread(file.fileno(), size, 0), IfMatch=etag)
    whole = [CopiedRange(0, 0, size)]
    source = CopySource(candidate, facts(candidate).stamp, whole)
    with suppress(CopyRefused):
        return put_with_copies(file, size, address, source, etag)
    return put_with_copies(file, size, address, source._replace(ranges=()), etag)


def _put(address: str, data: bytes, **condition: str) -> bool:
    """Write an object of some bytes; return False if the condition does not hold."""
    request, target = s3_request(address)

    def put() -> bool:
        try:
            request("put_object", **target, Body=data, **condition)
        except Exception as error:
            if is_refused(error, condition):
                return False
            if status_of(error) == _NOT_IMPLEMENTED:
                raise _unconditional(address) from error
            raise
        return True

    return with_retries(address, put, "written")


def _unconditional(address: str) -> BadSource:
    return BadSource(
        f"{redacted(address)}: the store does not write under conditions (If-Match, "
        "If-None-Match), so an object that somebody else writes could be lost: write the results "
        "to a directory, and upload that"
    )


def check_conditions(address: str) -> None:
    """Raise `BadSource` unless objects can be created below an address, and only where none are.

    A small object is created there and removed. If this is killed meanwhile, the object stays until
    the next call on this machine, as its name has that of the machine.
    """
    in_parts = try_writing(address)
    machine = blake3.blake3(socket.gethostname().encode()).hexdigest(8)
    tried, data = f"{address.rstrip('/')}/{TRIED}-{machine}", b"\n"
    try:
        for _ in range(_TRIES):  # another run of this machine may remove the object meanwhile
            _put(tried, data, IfNoneMatch="*")
            if not _ignores(tried, data, ("",), in_parts=in_parts):
                return
        raise _unconditional(address)
    finally:
        with suppress(*SOURCE_ERRORS):
            remove_object(tried)


def _ignores(address: str, data: bytes, etags: Sequence[str], *, in_parts: bool = True) -> bool:
    """Return whether a store replaces an object under a condition that does not hold.

    `etags` are those that the object does not have; an empty one stands for `If-None-Match: *`.
    With `in_parts` the conditions are tried as well when an object of parts is completed.
    """
    if any(_put(address, data, **_condition(etag)) for etag in etags):
        return True
    if not in_parts:
        return False
    source = CopySource(address, "", ())
    with TemporaryFile() as file:
        file.write(data)
        file.flush()
        return any(put_with_copies(file, len(data), address, source, etag) for etag in etags)


def _condition(etag: str) -> dict[str, str]:
    return {"IfMatch": etag} if etag else {"IfNoneMatch": "*"}


# --- locks ---


@contextmanager
def locked_prefix(address: str) -> Iterator[None]:
    """Hold a lock, the object at `address`, in the block.

    The lock of a process of this machine that has ended is taken over. Raises `IndexBusy` if
    another process holds it, and `BadSource` if the store ignores conditions.
    """
    token = os.urandom(8).hex()
    data = json.dumps({**_holder(os.getpid()), "token": token}).encode("ascii")
    _acquire(address, data)
    _held.add(token)
    try:
        if _ignores(address, data, ("", _NO_ETAG)):
            raise _unconditional(address)
        yield
    finally:
        _held.discard(token)
        with suppress(*SOURCE_ERRORS):  # the next run takes it over
            _release(address, data)


def _release(address: str, data: bytes) -> None:
    """Delete our lock, and not one that somebody else has taken meanwhile."""
    held, etag = _read(address)
    if held != data:
        return
    request, target = s3_request(address)
    condition = {"IfMatch": etag}

    def delete() -> bool:
        try:
            request("delete_object", **target, **condition)
        except Exception as error:
            if status_of(error) in _NO_CONDITION:
                return False
            if not (is_refused(error, condition) or isinstance(error, FileNotFoundError)):
                raise
        return True

    if not with_retries(address, delete, "deleted"):
        remove_object(address)


def _acquire(address: str, data: bytes) -> None:
    for _ in range(_TRIES):
        if _put(address, data, IfNoneMatch="*"):
            return
        held, etag = _read(address)
        if held == data:  # the reply was lost
            return
        # Wrong bytes must not make a holder another process: it is read twice.
        is_left = held and not _is_alive(held) and (held, etag) == _read(address)
        if is_left and _put(address, data, IfMatch=etag):
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
    store, _ = store_of(address)
    request, target = s3_request(address)

    def read() -> tuple[bytes, str]:
        from fsspec.asyn import sync  # an extra

        try:
            answer = request("get_object", **target)
        except Exception as error:
            if status_of(error) == NOT_THERE or isinstance(error, FileNotFoundError):
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
        token = fields.pop("token")
        here, process = _holder(os.getpid()), int(fields["process"])
        if any(fields[name] != here[name] for name in ("host", "boot")):
            return True
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except (ValueError, TypeError, LookupError, AttributeError):
        return True
    except PermissionError:  # it is somebody else's
        pass
    try:
        return bool(fields == _holder(process)) and (process != os.getpid() or token in _held)
    except OSError:  # whose times this user may not see
        return True
