"""The file systems of fsspec, with retries.

Transient failures (a cut connection, a busy server) are retried after a pause that doubles; others
(not found, not allowed) are raised at once. fsspec takes credentials from its settings files and
from ``FSSPEC_…``, ``AWS_…`` and the like; none is read here.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from dedupindex.errors import SOURCE_ERRORS, BadInput, BadSource, StoreUnavailable, to_install
from dedupindex.object_store.count_requests import counting_session
from dedupindex.object_store.store_address import S3, WEB, check_address, redacted, scheme_of

TRIES, TIMEOUT = "DEDUPINDEX_REMOTE_TRIES", "DEDUPINDEX_REMOTE_TIMEOUT"
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 20.0  # seconds before a retry
_MISTAKES = (TypeError, LookupError, AttributeError)
_LASTING = (
    FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ValueError,
    *_MISTAKES, NotImplementedError, ImportError, BadInput,
)  # fmt: skip
_NEEDED = "each machine needs credentials for the store (docs/batch.md)"
_NOT_ALLOWED = (
    "each machine needs credentials that are allowed to write there (docs/batch.md#what-has-to-be-"
    "allowed)"
)
_TOO_MANY = frozenset({"SlowDown", "RequestLimitExceeded", "TooManyRequests", "429", "503"})
"""Codes of S3 that ask for fewer requests; an answer to HEAD has its status only."""
_FEWER = (
    "the store is overloaded or asks for fewer requests: run the same command again, a build of an "
    "index with --resume, and with fewer --jobs or cores"
)
_REFUSED_CREDENTIALS = frozenset(
    {
        "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "RequestTimeTooSkewed",
        "SignatureDoesNotMatch", "TokenRefreshRequired",
    }
)  # fmt: skip
"""Codes of S3 for what is wrong on the machine that asks, and not with the object."""
_NO_BUCKET = "NoSuchBucket"  # a code of S3, perhaps of another store than was meant
_BUCKET = (
    "is the name of the bucket right, and for a store other than AWS the AWS_ENDPOINT_URL of this "
    "machine (docs/batch.md)?"
)
_ARCHIVED = "InvalidObjectState"  # a code of S3
_RESTORE = "restore it first, it is in an archive class (docs/batch.md#remote-sources)"
_INVALID = "ParamValidationError"  # of botocore, which sends nothing then
_REPEATED_HERE = ("GetObject", "HeadObject")
"""Requests of S3 that are a try of ours each; a listing or an upload is a try with many."""
_SILENCES = ("ConnectTimeoutError", "ReadTimeoutError")  # errors of botocore
_CLIENT_TRIES = 3  # of the client of S3, for each request of a try
_GONE = (404, 410)
_PASSING_STATUSES = (408, 425, 429)
_QUERY = re.compile(r"(https?://[^\s'\"?]+)\?[^\s'\")]+")
_ERRNO = re.compile(r"^\[Errno \d+\] ")  # s3fs makes such errors of codes of S3
_STAMPS = ("ETag", "etag", "e_tag", "md5Hash", "content_md5", "generation", "VersionId")
_TIMES = (
    "LastModified", "Last-Modified", "last_modified", "updated", "modificationTime", "mtime",
    "created",
)  # fmt: skip

T = TypeVar("T")


class _Unlisted(Exception):
    """A page of a web server, by its URL, that cannot be read; the cause says why."""


class ObjectFacts(NamedTuple):
    """Size and version of an object."""

    size: int  # bytes
    stamp: str  # ETag or modification time, "" if not known

    @property
    def version(self) -> int:
        """The stamp as a number, in place of the modification time of a file; 0 if not known."""
        if not self.stamp:
            return 0
        return int.from_bytes(hashlib.blake2b(self.stamp.encode(), digest_size=8).digest()) >> 1


class RetryLimits(NamedTuple):
    """When a request is given up."""

    tries: int = 5  # of one request
    timeout: float = 60.0  # seconds without a byte


def limits() -> RetryLimits:
    """Return the limits that the environment sets; raises `BadInput`."""
    default = RetryLimits()
    try:
        chosen = RetryLimits(
            int(os.environ.get(TRIES, default.tries)),
            float(os.environ.get(TIMEOUT, default.timeout)),
        )
    except ValueError as error:
        raise BadInput(f"{TRIES} or {TIMEOUT} is not a number: {error}") from error
    if chosen.tries < 1 or chosen.timeout <= 0:
        raise BadInput(f"{TRIES} is at least 1, and {TIMEOUT} more than 0")
    return chosen


def store_of(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it; raises `BadSource`."""
    check_address(address)
    try:
        from fsspec.core import url_to_fs  # an optional package

        store, path = url_to_fs(address, use_listings_cache=False, **_options(address))
    except ImportError as error:
        raise _needs(address, error) from error
    except Exception as error:
        raise BadSource(f"{redacted(address)} cannot be read: {error_text(error)}") from error
    if hasattr(store, "retries"):
        store.retries = 1  # `with_retries` retries
    if scheme_of(address) in WEB:
        _list_strictly(store)
    return store, path


def check_reader(address: str) -> None:
    """Raise `BadSource` if packages are missing for an address; sends nothing."""
    try:
        from fsspec import get_filesystem_class  # an extra

        get_filesystem_class(scheme_of(address))
    except ImportError as error:
        raise _needs(address, error) from error
    except ValueError:
        pass  # an unknown scheme: reading raises


def _needs(address: str, error: ImportError) -> BadSource:
    return BadSource(
        f"{redacted(address)} needs packages for s3://, https:// and http://: "
        f"{to_install('remote')} ({error})"
    )


def _list_strictly(store: Any) -> None:
    """Make fsspec raise for a page that cannot be read, where it ignores every `OSError`.

    The files that such a page links to would otherwise be missed.
    """
    page: Callable[..., Awaitable[Any]] = store._ls
    if getattr(page, "strict", False):
        return  # a store is made once for the same settings

    async def strict(url: str, *args: Any, **options: Any) -> Any:
        try:
            return await page(url, *args, **options)
        except OSError as error:
            if url.endswith("/") and error.args == (url.rstrip("/"),):
                return []  # a page without links, which fsspec requests without the slash, too
            raise _Unlisted(url) from error

    strict.strict = True  # type: ignore[attr-defined]
    store._ls = strict


def _options(address: str) -> dict[str, Any]:
    """Return the options of a file system for our limits, with those that the user has set."""
    from fsspec.config import conf  # an extra

    timeout = limits().timeout
    scheme = scheme_of(address)
    if scheme in S3:
        own = {"connect_timeout": timeout, "read_timeout": timeout,
               "retries": {"total_max_attempts": _CLIENT_TRIES, "mode": "standard"}}  # fmt: skip
        set_by_user = conf.get("s3", {})
        options = {"config_kwargs": {**own, **set_by_user.get("config_kwargs", {})}}
        if "session" not in set_by_user:
            options["session"] = _session(set_by_user.get("profile", ""))
        return options
    if scheme in WEB:
        from aiohttp import ClientTimeout  # comes with fsspec

        waits = ClientTimeout(total=None, sock_connect=timeout, sock_read=timeout)
        # Read a .gz as it is stored, even if the server calls it encoded.
        own = {"timeout": waits, "auto_decompress": False, "trust_env": True}
        set_by_user = {**conf.get("http", {}), **conf.get("https", {})}
        return {"client_kwargs": {**own, **set_by_user.get("client_kwargs", {})}}
    return {}


def _session(profile: str) -> Any:
    """Return the session with which clients of S3 count, and do not repeat what we repeat."""
    session = counting_session(profile)
    for name in _REPEATED_HERE:
        event = f"needs-retry.s3.{name}"
        session.register(event, _stop_after_silence, unique_id=f"dedupindex-{name}")
    return session


def _stop_after_silence(caught_exception: Exception | None = None, **_: Any) -> None:
    """Raise the error of a store that was silent, in place of repeating the request at once.

    The client would wait as long again, twice, in each of our tries.
    """
    if caught_exception is not None and type(caught_exception).__name__ in _SILENCES:
        raise caught_exception


def with_retries(address: str, work: Callable[[], T], done: str = "read") -> T:
    """Return the result of `work`, retried within `RetryLimits`.

    Raises `BadSource`, or `StoreUnavailable` for what may pass.

    `done` says in the message what cannot be done with the object.
    """
    tries = limits().tries
    for number in range(1, tries + 1):
        try:
            return work()
        except SOURCE_ERRORS:
            raise
        except Exception as failed:
            error, where = failed, address
            if isinstance(failed, _Unlisted) and isinstance(failed.__cause__, OSError):
                error, where = failed.__cause__, str(failed)
            if is_lasting(error) or number == tries:
                gone = isinstance(error, FileNotFoundError) and _NO_BUCKET not in _codes(error)
                why = missing(where) if gone else error_text(error)
                raise given_up(
                    f"{redacted(where)} cannot be {done}: {why}", error, number, done
                ) from error
        pause(number)
    raise AssertionError


def given_up(
    message: str, error: Exception, tries: int, done: str = "read"
) -> BadSource | StoreUnavailable:
    """Return the error for a request that has failed so often; it says whether that may pass."""
    times = f" (tried {tries} times)" if tries > 1 else ""
    # What is wrong on this machine may be right on others of a cluster.
    here = f"{message.rstrip('.')}, on {socket.gethostname()}"
    if _lacks_credentials(error):
        return StoreUnavailable(f"{here}: {_NEEDED}")
    if _NO_BUCKET in _codes(error):
        return StoreUnavailable(f"{here}: {_BUCKET}")
    if done != "read" and isinstance(_answered(error), PermissionError):
        return BadSource(f"{here}: {_NOT_ALLOWED}")
    if name := _asks_for_fewer(error):
        return StoreUnavailable(f"{message.rstrip('.')} ({name}){times}; {_FEWER}")
    kind = BadSource if is_lasting(error) else StoreUnavailable
    return kind(f"{message}{times}")


def _asks_for_fewer(error: Exception) -> str:
    """Return the status with which a store, or a web server, asks for fewer requests, or ""."""
    status, codes = getattr(_answered(error), "status", 0), _codes(error) & _TOO_MANY
    if status in (429, 503):
        return f"status {status}"
    if not codes:
        return ""
    code = min(codes)
    return f"status {code}" if code.isdigit() else f"status 503 {code}"


def pause(number: int) -> None:
    """Wait before the next try, after `number` failures."""
    wait = min(_FIRST_WAIT * 2 ** (number - 1), _LONGEST_WAIT)
    time.sleep(wait * random.uniform(0.5, 1.0))


def is_lasting(error: Exception) -> bool:
    """Return whether retrying is of no use."""
    error = _answered(error)
    status = getattr(error, "status", None)
    if isinstance(status, int) and 400 <= status < 500:
        return status not in _PASSING_STATUSES
    name = type(error).__name__  # of packages that may not be installed
    if name in ("FileExpired", _INVALID) or _NO_BUCKET in _codes(error):
        return True
    return isinstance(error, _LASTING) or _lacks_credentials(error)


def _lacks_credentials(error: Exception) -> bool:
    error = _answered(error)
    refused = not _REFUSED_CREDENTIALS.isdisjoint(_codes(error))
    return "Credential" in type(error).__name__ or refused


def _codes(error: Exception) -> set[str]:
    """Return the codes of S3 in an error of botocore, or in the one that caused it."""
    error = _answered(error)
    answers = (getattr(one, "response", None) for one in (error, error.__cause__))
    return {one.get("Error", {}).get("Code", "") for one in answers if isinstance(one, dict)}


def _answered(error: Exception) -> Exception:
    """Return the error that a store's package was handling when it failed itself, if it did so.

    s3fs takes the first argument of each error, and that of a timeout has none.
    """
    while isinstance(error, _MISTAKES):
        handled = error.__cause__ or error.__context__
        if not isinstance(handled, Exception):
            break
        error = handled
    return error


def missing(address: str) -> str:
    scheme = scheme_of(address)
    if scheme not in S3:
        return f"nothing is there (is the {scheme} address right?)"
    bucket, _, key = redacted(address).partition("://")[2].partition("/")
    return f"nothing is there (are bucket {bucket} and key {key} right?)"


def error_text(error: Exception) -> str:
    """Return the text of an error, without the query strings of addresses."""
    error = _answered(error)
    text = _ERRNO.sub("", str(error)) or type(error).__name__
    if type(error).__name__ == _INVALID:  # which goes on with a pattern, say
        text = text.partition("\n")[2].partition(": Bucket name must")[0]
    if _ARCHIVED in _codes(error):
        text = f"{text.rstrip('.')}: {_RESTORE}"
    return _QUERY.sub(r"\1", text)


def facts(address: str) -> ObjectFacts:
    """Request the facts of an object; raises `BadSource`."""
    store, path = store_of(address)
    return with_retries(address, partial(_request_facts, store, path, address))


def facts_or_none(address: str) -> ObjectFacts | None:
    """As `facts`, but return None if the object does not exist."""
    store, path = store_of(address)

    def ask() -> ObjectFacts | None:
        try:
            return _request_facts(store, path, address)
        except FileNotFoundError:
            return None

    return with_retries(address, ask)


def _request_facts(store: Any, path: str, address: str) -> ObjectFacts:
    try:
        info = request_info(store, path)
    except FileNotFoundError as error:
        cause = error.__cause__  # fsspec raises this for every error of a web server
        if isinstance(cause, Exception) and getattr(cause, "status", 0) not in _GONE:
            raise cause from error
        raise
    if info.get("type") == "directory":
        raise IsADirectoryError("it is a directory")
    return facts_of(info, address)


def request_info(store: Any, path: str) -> dict[str, Any]:
    """Return what a file system tells of an object or directory; raises as it does."""
    try:
        info: dict[str, Any] = store.info(path)
    except PermissionError as error:
        refused = error
    else:
        return info
    try:  # a request for a byte, because the answer to HEAD has no reason
        store.cat_file(path, 0, 1)
    except PermissionError as error:
        refused = error
    except Exception:  # the object is empty, say
        raise refused from None
    raise refused


def facts_of(info: dict[str, Any], address: str) -> ObjectFacts:
    """Return the facts in an info dictionary of fsspec; raises `BadSource`."""
    size = info.get("size")
    if not isinstance(size, int):
        raise BadSource(
            f"{redacted(address)}: the server does not state its size, so a transfer that was cut "
            "could not be detected; download it first"
        )
    stamps = [str(info[name]) for name in (*_STAMPS, *_TIMES) if info.get(name)]
    return ObjectFacts(size, stamps[0] if stamps else "")
