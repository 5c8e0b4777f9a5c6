"""The lifecycle of crawls and the captures that they report, over HTTP.

A client may repeat every request whose answer was lost: beginning, ending and reporting twice
changes nothing. Nothing is acknowledged before it is on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from itertools import islice
from typing import Any, BinaryIO, cast
from urllib.parse import parse_qsl

import orjson

from dedupindex.capture import Capture, Covers
from dedupindex.crawls import lifecycle, statistics
from dedupindex.crawls.crawl import Crawl, Visibility
from dedupindex.crawls.crawl_captures import Added, add
from dedupindex.crawls.crawl_report import date, warning
from dedupindex.crawls.parse_report import add_self_report, capture_of, self_report_of
from dedupindex.crawls.store import Reading, Writing
from dedupindex.digest import Digest
from dedupindex.errors import BadInput, BadQuery, DedupError, UnknownCrawl
from dedupindex.index.tokens import Role
from dedupindex.indexer.admission import admission_filter
from server.api.batch_limits import BodySlots
from server.api.request_body import Lines, read_body, spooled_body
from server.api.request_fields import (
    SELF_REPORT,
    bool_field,
    check_names,
    choice_field,
    counter_name,
    crawl_options,
    self_counts,
    text_field,
)
from server.auth import Access
from server.config import LINES_BODIES, MAX_SPOOLED, Config
from server.live_index import LiveIndex
from server.responses import RequestError, error_object

CHUNK = 1000  # captures in one transaction: others write in between
_LISTED_AT_ONCE = 200  # crawls whose figures are in memory
_BEGIN = ("name", "seen_by", "digest_covers", "strategy", "policy", "namespace")


@dataclass
class Reported:
    """The results of the captures of a request."""

    added: int = 0
    unchanged: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    bad: int = 0
    results: list[Any] = field(default_factory=list)
    in_batch: list[tuple[int, int]] = field(default_factory=list)  # places in `results`

    def as_json(self) -> dict[str, Any]:
        """Return the answer."""
        content = vars(self)
        return content if self.in_batch else {n: content[n] for n in content if n != "in_batch"}

    def take(self, done: Added, bad: int) -> None:
        """Add the results of one transaction."""
        self.added += done.added
        self.unchanged += done.unchanged
        self.bad += bad
        for reason, count in done.refused.items():
            self.refused[reason] = self.refused.get(reason, 0) + count

    def counts(self) -> dict[str, int]:
        """Return the number of captures by result."""
        refused = sum(self.refused.values())
        done = {"added": self.added, "unchanged": self.unchanged}
        return {**done, "refused": refused, "bad": self.bad}


class Reporting:
    """Changes and shows crawls; thread-safe, raises `DedupError`."""

    def __init__(self, live: LiveIndex, most: int) -> None:
        self._live, self._most = live, most

    def begin(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a crawl by the fields of `_BEGIN`, of which `name` is required; return it."""
        check_names(given, *_BEGIN)
        self._live.opened()  # without an index, crawls would be lost with their directory
        name = text_field(given, "name")
        seen = choice_field(
            given, "seen_by", {one.value: one for one in Visibility}, Visibility.OWN
        )
        covers = choice_field(
            given, "digest_covers", {one.name.lower(): one for one in Covers}, Covers.UNKNOWN
        )
        change = partial(
            lifecycle.begin, name=name, seen=seen, covers=covers, **crawl_options(given)
        )
        return self._shown(self._live.crawls.write(change, make=True))

    def namespace_of(self, crawl: str) -> str | None:
        """Return the namespace of a crawl, None if there is no such crawl."""
        known = self._live.crawls.crawl(crawl)
        return None if known is None else known.namespace

    def private_namespace(self, crawl: str) -> Iterator[str]:
        """Yield the namespace of a crawl, if it has one; it is read when iterated."""
        if namespace := self.namespace_of(crawl):
            yield namespace

    def end(self, name: str, given: Mapping[str, Any], *, keep: bool) -> dict[str, Any]:
        """Commit or cancel a crawl by ``{"exit"?, …}`` and the fields of `add_counts`; return it.

        With ``force`` it is cancelled even if other crawls may depend on its captures.
        """
        check_names(given, "exit", *SELF_REPORT, *([] if keep else ["force"]))
        cancel = partial(lifecycle.cancel, force=not keep and bool_field(given, "force"))
        step, exit = lifecycle.commit if keep else cancel, text_field(given, "exit")
        counts, who = self_counts(given), counter_name(given)
        self._live.crawls.write_counts()  # so that the answer counts the lookups of a short crawl

        def change(writing: Writing) -> Crawl:
            crawl = step(writing, name, exit)
            with suppress(BadInput):  # the crawl ends nevertheless
                add_self_report(writing, crawl, counts, who)
            return crawl

        return self._shown(self._live.crawls.write(change))

    def add_counts(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Store ``{"not_looked_up"?, "not_reported"?, "who"?}``, also of a crawl that has ended."""
        check_names(given, *SELF_REPORT)
        counts, who = self_counts(given), counter_name(given)

        def change(writing: Writing) -> Crawl:
            crawl = writing.crawl(name)
            add_self_report(writing, crawl, counts, who)
            return crawl

        return self._shown(self._live.crawls.write(change))

    def crawls(
        self, most: int = 0, after: str = "", *, skip: int = 0, sees: Callable[[Crawl], bool]
    ) -> list[dict[str, Any]]:
        """Return at most `most` crawls, 0 for all, the newest first.

        `after` names a crawl; those that began before it are returned. Crawls that `sees` refuses
        are left out, and of the others the first `skip`.
        """
        with self._live.crawls.reading() as reading:
            if reading is None:
                return []
            before = reading.crawl(after) if after else None
            seen = filter(sees, reading.newest(before))
            chosen, shown = islice(seen, skip, skip + most if most else None), []
            while some := list(islice(chosen, _LISTED_AT_ONCE)):
                ready = reading.with_statistics(some)
                shown += [_shown(ready, crawl) for crawl in some]
            return shown

    def crawl(self, name: str) -> dict[str, Any]:
        """Return one crawl; raises `UnknownCrawl`."""
        with self._live.crawls.reading() as reading:
            if reading is None:
                raise UnknownCrawl(f"there is no crawl {name[:200]!r}")
            return _shown(reading, reading.crawl(name))

    def _shown(self, crawl: Crawl) -> dict[str, Any]:
        return self.crawl(crawl.name)

    def captures(self, crawl: str, given: Mapping[str, Any], total: Reported) -> None:
        """One capture, or ``{"captures": [...]}``; `total` gets what became of each.

        Chunks are stored one by one; when this raises, `total` has those that were stored.
        """
        given = dict(given)
        given.pop("crawl", None)
        items = given.pop("captures", None)
        if items is None:
            items = [given]
        elif given or not isinstance(items, list):
            raise BadQuery('a batch is an object with a list "captures", and perhaps "crawl"')
        if len(items) > self._most:
            raise RequestError("too_large", f"at most {self._most} captures at once; send lines")
        first_places: dict[Digest, int] = {}
        for at in range(0, max(len(items), 1), CHUNK):  # none at all is an empty stretch
            some = items[at : at + CHUNK]
            found = [_read(item) for item in some]
            became = iter(self._report(crawl, found, total))
            for place, one in enumerate(found, at):
                result = next(became) if isinstance(one, Capture) else one
                total.results.append(result)
                if isinstance(one, Capture) and result in ("added", "unchanged"):
                    first = first_places.setdefault(one.digest, place)
                    if first != place:
                        total.in_batch.append((place, first))

    def lines(self, crawl: str, chunks: Iterator[Lines], total: Reported) -> None:
        """Store captures as they come, chunk by chunk; only errors are kept as results."""
        for items, places in chunks:
            found = [_read(item, line) for item, line in zip(items, places, strict=True)]
            self._report(crawl, found, total)
            if len(total.results) < CHUNK:
                total.results += [one for one in found if not isinstance(one, Capture)]

    def _report(
        self, name: str, found: list[Capture | dict[str, Any]], total: Reported
    ) -> list[str]:
        """Store captures; return the result of each."""
        settings = self._live.opened().engine.identity.settings
        captures = [one for one in found if isinstance(one, Capture)]

        def change(writing: Writing) -> Added:
            crawl = self._live.crawls.crawl_in(writing, name)
            return add(writing, crawl, captures, settings, admission_filter(settings))

        done = self._live.crawls.write(change)
        self._live.crawls.counting.note_stored(name, done.held)
        total.take(done, len(found) - len(captures))
        return done.results


def _read(item: Any, line: int = 0) -> Capture | dict[str, Any]:
    """Return a capture, or the error object that answers it."""
    try:
        if isinstance(item, RequestError):
            raise item
        if not isinstance(item, dict):
            raise BadInput("a capture is a JSON object")
        return capture_of(item)
    except DedupError as error:
        return error_object("bad_capture", str(error), line)


def _shown(reading: Reading, crawl: Crawl) -> dict[str, Any]:
    captures, size = reading.counts(crawl)
    total, times = statistics.total(reading, crawl), statistics.times(reading, crawl)
    return {
        **crawl.as_json(),
        "captures": captures,
        "bytes": size,
        "lookups": total.lookups,
        "duplicates": total.duplicates,
        "duplicate_bytes": total.duplicate_bytes,
        "errors": total.errors,
        "answered_others": statistics.others(reading, crawl),
        **self_report_of(reading, crawl)._asdict(),
        "first_lookup": date(times.first),
        "last_lookup": date(times.last),
        "warning": warning(crawl, total),
    }


def _now() -> int:
    return int(time.time() * 1000)


# Requests that write to crawls: their tokens, and their bodies as JSON or as a form.

_FORM = "application/x-www-form-urlencoded"
_MOST_FIELDS = 100  # of a form


class Writers:
    """Checks requests to write, and reads their bodies; thread-safe."""

    def __init__(
        self, reporting: Reporting, access: Access, bodies: BodySlots, config: Config
    ) -> None:
        self._reporting, self._access = reporting, access
        self._bodies, self._limit, self._index = bodies, config.max_body, config.index
        self._spools = BodySlots(MAX_SPOOLED)

    def allowed(self, environ: dict[str, Any], crawl: str = "", namespace: str = "") -> str:
        """Return the name of the token that may write to a crawl; raises `RequestError`.

        `crawl` is "" while it is not known; `namespace` is that of a crawl that is yet to begin.
        """

        def touched() -> list[str]:
            if not crawl:
                return []
            known = self._reporting.namespace_of(crawl)
            return [namespace if known is None else known]

        return self._access.require(environ, Role.WRITE, crawl, touched)

    def given(self, environ: dict[str, Any], *, queried: bool = False) -> dict[str, Any]:
        """Return the fields of a body; raises `RequestError`.

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
        kind, length = kind_of(environ), environ.get("CONTENT_LENGTH", "")
        if kind == _FORM and not length:  # a form that is cut off is still a form
            raise RequestError("bad_request", "a form needs its Content-Length")
        with self._bodies.slot():
            body = read_body(cast(BinaryIO, environ["wsgi.input"]), length, self._limit)
        if kind == _FORM:
            return _fields(body)
        if not body.strip():
            return {}
        if kind != "application/json":
            raise RequestError("unsupported_media_type", f"POST application/json or {_FORM}")
        try:
            content = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise RequestError("bad_request", f"the body is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise RequestError("bad_request", "the body must be a JSON object")
        return content

    @contextmanager
    def received(self, environ: dict[str, Any]) -> Iterator[BinaryIO]:
        """Read a whole body of JSON lines, and open it; raises `RequestError`.

        A body over the limit of a JSON body is stored in a file beside the index.
        """
        stream, length = cast(BinaryIO, environ["wsgi.input"]), environ.get("CONTENT_LENGTH", "")
        size, most = int(length) if length.isdigit() else 0, self._limit * LINES_BODIES
        if size > most:
            message = f"JSON lines have at most {most} bytes; send them in several requests"
            raise RequestError("too_large", message)
        if size <= self._limit:
            yield BytesIO(read_body(stream, length, self._limit))
            return
        with self._spools.slot(), spooled_body(stream, size, self._index) as lines:
            yield lines


def kind_of(environ: dict[str, Any]) -> str:
    """Return the media type of a body, without parameters."""
    kind: str = environ.get("CONTENT_TYPE", "")
    return kind.partition(";")[0].strip().lower()


def _fields(body: bytes) -> dict[str, Any]:
    """Return the fields of a form that are not empty."""
    try:
        pairs = parse_qsl(body.decode(), errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise RequestError("bad_request", f"the form cannot be read: {error}") from error
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise RequestError("bad_request", "a field of the form is given twice")
    return fields
