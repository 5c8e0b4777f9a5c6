"""Bodies of requests: limits, reading them whole or as JSON lines, and who may send them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryFile
from threading import BoundedSemaphore
from typing import IO, Any, BinaryIO, NamedTuple, cast
from urllib.parse import parse_qsl

import orjson

from dedupindex.errors import IndexUnavailable
from dedupindex.index.tokens import Role
from server.auth import Access
from server.config import LINES_BODIES, MAX_SPOOLED, MAX_STREAMS, Config
from server.live_index import LiveIndex
from server.responses import RequestError

FORM = "application/x-www-form-urlencoded"
LINES_TYPES = ("application/x-ndjson", "application/ndjson", "application/jsonl")
_FORM_FIELDS = 100  # at most
_READ = 1 << 16  # bytes of a body that are read at once
_CHUNK = 1000  # lines that are answered in one read transaction


class BodySlots:
    """Slots for bodies, so that slow clients cannot hold all threads of a worker."""

    def __init__(self, limit: int = MAX_STREAMS) -> None:
        self._free, self._limit = BoundedSemaphore(limit), limit

    def acquire(self) -> None:
        """Take a slot; raises `RequestError` at once if none is free."""
        if not self._free.acquire(blocking=False):
            raise RequestError("overloaded", f"{self._limit} bodies are being received; try again")

    def release(self) -> None:
        self._free.release()

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold a slot while a body is received."""
        self.acquire()
        try:
            yield
        finally:
            self.release()


def media_type(environ: dict[str, Any]) -> str:
    """Return the media type of a body in lower case, without parameters."""
    kind: str = environ.get("CONTENT_TYPE", "")
    return kind.partition(";")[0].strip().lower()


def read_body(environ: dict[str, Any], limit: int) -> bytes:
    """Return a body; raises `RequestError` as soon as it is known to exceed `limit` bytes.

    No byte beyond the stated length is read: each read waits for another thread.
    """
    stream, length = environ["wsgi.input"], environ.get("CONTENT_LENGTH", "")
    whole = int(length) if length.isdigit() else -1
    pieces, size = [], whole if whole > limit else 0
    while size <= limit and size != whole and (piece := stream.read(_READ)):
        size += len(piece)
        pieces.append(piece)
    if size > limit:
        raise RequestError("too_large", f"a body has at most {limit} bytes; send JSON lines")
    return b"".join(pieces)


def load_json(body: bytes) -> Any:
    """Return a decoded JSON body; raises `RequestError`."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError("bad_request", f"the body is not JSON: {error}") from error


@contextmanager
def spooled_body(stream: BinaryIO, length: int, folder: Path) -> Iterator[BinaryIO]:
    """Store a body of known length in an unnamed temporary file in `folder`, and open it.

    Raises `RequestError` if the body ends early, and `IndexUnavailable` if it cannot be written.
    """
    with ExitStack() as closing:
        with _disk_errors(folder):
            file = TemporaryFile(dir=folder)  # noqa: SIM115 (closed below, even if the disk is full)
        closing.callback(_close, file)
        left = length
        while left and (piece := stream.read(min(_READ, left))):
            left -= len(piece)
            with _disk_errors(folder):
                file.write(piece)
        if left:
            raise RequestError("bad_request", f"the body ended {left} bytes early")
        with _disk_errors(folder):
            file.seek(0)  # writes what is still buffered
        yield cast(BinaryIO, file)


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"the body cannot be kept in {folder}, and nothing of it is done: {error}"
        raise IndexUnavailable(message) from error


def _close(file: IO[bytes]) -> None:
    with suppress(OSError):  # closing tries again to write what the disk refused
        file.close()


class Lines(NamedTuple):
    """Lines of a stream that are not blank."""

    items: list[Any]  # the decoded lines, or errors in their place
    numbers: Sequence[int]  # of the lines, from 1; blank ones count


def line_chunks(stream: BinaryIO, limit: int) -> Iterator[Lines]:
    """Yield the lines of a stream in chunks of at most `_CHUNK`.

    A line over `limit` bytes, or one that is not JSON, is an error in the place of its item.
    """
    rest, skipping, seen = b"", False, 0
    while True:
        piece = stream.read(_READ)
        *complete, rest = (rest + piece if piece else rest + b"\n").split(b"\n")
        found: list[Any] = []
        blank = set[int]()
        for number, line in enumerate(complete, seen + 1):
            if skipping or len(line) > limit:
                found.append(RequestError("too_large", f"a line has at most {limit} bytes"))
                skipping = False
            elif line and not line.isspace():
                found.append(_load_line(line))
            else:
                blank.add(number)
        numbers: Sequence[int] = range(seen + 1, seen + 1 + len(complete))
        if blank:
            numbers = [number for number in numbers if number not in blank]
        seen += len(complete)
        if len(rest) > limit:
            rest, skipping = b"", True
        for at in range(0, len(found), _CHUNK):
            yield Lines(found[at : at + _CHUNK], numbers[at : at + _CHUNK])
        if not piece:
            return


def _load_line(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return RequestError("bad_request", f"not JSON: {error}")


class Writers:
    """Checks requests that write to crawls, and reads their bodies; thread-safe."""

    def __init__(self, live: LiveIndex, access: Access, bodies: BodySlots, config: Config) -> None:
        self._live, self._access = live, access
        self._bodies, self._limit, self._index = bodies, config.max_body, config.index
        self._spools = BodySlots(MAX_SPOOLED)

    def allowed(self, environ: dict[str, Any], crawl: str = "", namespace: str = "") -> str:
        """Return the name of the token that may write to a crawl; raises `RequestError`.

        `crawl` is "" while it is not known; `namespace` is that of a crawl that is yet to begin.
        """

        def namespaces() -> list[str]:
            known = self._live.crawls.crawl(crawl) if crawl else None
            return [known.namespace if known else namespace] if crawl else []

        return self._access.require(environ, Role.WRITE, crawl, namespaces)

    def fields(self, environ: dict[str, Any], *, queried: bool = False) -> dict[str, Any]:
        """Return the fields of a form or JSON object; raises `RequestError`.

        No body is read without permission to write. A query string is refused unless the caller
        has read it (`queried`): ``?force=true`` must not be ignored.
        """
        self.allowed(environ)
        if environ.get("QUERY_STRING") and not queried:
            raise RequestError(
                "bad_query",
                "this request takes no parameters in its URL; send them in the body, as a form "
                "or a JSON object",
            )
        kind = media_type(environ)
        if kind == FORM and not environ.get("CONTENT_LENGTH"):  # a form cut off is still a form
            raise RequestError("bad_request", "a form needs its Content-Length")
        with self._bodies.slot():
            body = read_body(environ, self._limit)
        if kind == FORM:
            if body[:1] in (b"{", b"["):  # no field begins so; curl -d sends everything as a form
                message = "the body looks like JSON: send Content-Type: application/json"
                raise RequestError("unsupported_media_type", message)
            return _form_fields(body)
        if not body.strip():
            return {}
        if kind != "application/json":
            raise RequestError("unsupported_media_type", f"POST application/json or {FORM}")
        content = load_json(body)
        if not isinstance(content, dict):
            raise RequestError("bad_request", "the body must be a JSON object")
        return content

    @contextmanager
    def received(self, environ: dict[str, Any]) -> Iterator[BinaryIO]:
        """Read a whole body of JSON lines, and open it; raises `RequestError`.

        A body over the limit of a JSON body is stored in a file beside the index.
        """
        length = environ.get("CONTENT_LENGTH", "")
        size, most = int(length) if length.isdigit() else 0, self._limit * LINES_BODIES
        if size > most:
            message = f"JSON lines have at most {most} bytes; send them in several requests"
            raise RequestError("too_large", message)
        with self._bodies.slot():
            if size <= self._limit:
                yield BytesIO(read_body(environ, self._limit))
                return
            stream = cast(BinaryIO, environ["wsgi.input"])
            with self._spools.slot(), spooled_body(stream, size, self._index) as lines:
                yield lines


def _form_fields(body: bytes) -> dict[str, Any]:
    """Return the fields of a form that are not empty."""
    try:
        pairs = parse_qsl(body.decode(), errors="strict", max_num_fields=_FORM_FIELDS)
    except ValueError as error:
        raise RequestError("bad_request", f"the form cannot be read: {error}") from error
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise RequestError("bad_request", "a field of the form is given twice")
    return fields
