"""``/api/records``: the protocol of doppelganger, which Zeno and gowarc use for lookups.

A posted record says that an original exists, as a revisit does; the server has not seen the
record. It is stored in a shared crawl that stays open: it is on disk when it is acknowledged, and
answers every lookup at once. When somebody commits or cancels that crawl, the next record begins
another. The token of a client that posts must allow writing to that crawl, which has no namespace.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import count
from time import perf_counter_ns
from typing import Any, NamedTuple

from flask import Response, request

from dedupindex.capture import Capture, Evidence, has_digest_encoding
from dedupindex.crawls import lifecycle
from dedupindex.crawls.crawl import Crawl, CrawlState, Visibility
from dedupindex.crawls.crawl_captures import Added, add
from dedupindex.crawls.store import Reading, Writing
from dedupindex.digest import Spelling, parse_spelled
from dedupindex.errors import BadInput, BadQuery, UnknownCrawl
from dedupindex.index.tokens import Role
from dedupindex.lookup import decide
from dedupindex.lookup.decide import Answer, Query
from dedupindex.timestamps import check_digits, date_of_digits, digits_of_date
from server import logs
from server.api.cdx_server_api import may_be_named
from server.api.request_body import load_json, read_body
from server.api.request_fields import query_string
from server.config import RECORDS_CRAWL
from server.responses import RequestError, json_of
from server.routes import Route
from server.services import Handlers, Services

_FIELDS = {"id", "uri", "date"}
_LONGEST_URL = 65_000
_DATE = re.compile(r"[0-9]{14}")
_RAW = "The URL, not escaped: everything after uri= is it."
_RECORD: dict[str, Any] = {
    "answer": {200: ("Record",), 404: ("text/plain",)},
    "parameters": {"uri": {"type": "string", "description": _RAW}},
}
_ADD: dict[str, Any] = {"answer": {201: ()}, "body": ("Records",)}


class _Current(NamedTuple):
    """The crawl that is open for records, or the name of the next one."""

    name: str
    crawl: Crawl | None


class Records(Handlers):
    """Looks records up and stores them; thread-safe, raises `DedupError`."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._held: tuple[object, int, _Current] | None = None

    @Route("GET", "/api/records/{id}", **_RECORD)
    def record(self, id: str) -> Response:
        """The original of a digest, in doppelganger's form."""
        return self.crawl_record("", id)

    @Route("GET", "/crawls/{name}/api/records/{id}", **_RECORD)
    def crawl_record(self, name: str, id: str) -> Response:
        """The same as /api/records/{id}, asked by a crawl."""
        self._access.may_read(request.environ)
        try:
            found = self._find(id, query_string(request.environ), name)
        except UnknownCrawl as error:
            return Response(f"{error}\n", status=404, content_type="text/plain")
        if found is None:
            return Response("record not found\n", status=404, content_type="text/plain")
        return json_of(found)

    @Route("GET", "/api/records/", {}, open=True)
    def no_record(self) -> Response:
        """Refused: a digest is needed."""
        raise RequestError("bad_digest", "invalid ID: a record is asked for by its digest")

    @Route("POST", "/api/records", **_ADD)
    @Route("POST", "/api/records/", name="add_records_slash", **_ADD)
    def add_records(self) -> Response:
        """Store records as originals."""
        with self._live.crawls.reading() as reading:
            crawl = RECORDS_CRAWL if reading is None else self._current(reading).name
        who = self._allowed(request.environ, crawl)  # before the body is read
        with self._bodies.slot():
            body = read_body(request.environ, self._config.max_body)
        logs.audit(request.environ, who, self._add(load_json(body), request.environ))
        return Response(status=201)

    def _allowed(self, environ: dict[str, Any], crawl: str) -> str:
        """Return whose token may write to a crawl without a namespace; raises `RequestError`."""
        return self._access.require(environ, Role.WRITE, crawl, lambda: [""])

    def _find(self, text: str, query: str, crawl: str) -> dict[str, Any] | None:
        """Return the record of a digest; `query` is ``uri=`` and then the URL, not escaped.

        `crawl` is the crawl that asks, "" if it is not known; raises `UnknownCrawl`.
        """
        started = perf_counter_ns()
        digest, spelling = parse_spelled(text, unlabelled="sha1")
        url = query.removeprefix("uri=").encode("latin-1") if query.startswith("uri=") else b""
        accepts = partial(_nameable, spelling=spelling)
        asked = Query(digest, url, crawl=crawl, accepts=accepts)
        with self._live.state(refresh=bool(crawl)) as state:
            asked = self._live.crawls.completed(asked, {}, state.crawls)
            if asked.namespaces:
                self._access.may_read(request.environ, asked.namespaces)
            view = state.seen_by(crawl, asked.namespaces)
            answer = decide.find(view, state.settings, asked)
        self._count(Query(digest, url, crawl=crawl), answer, perf_counter_ns() - started)
        if answer is None:
            return None
        original = answer.original
        date = int(digits_of_date(original.date))
        return {"id": text, "uri": original.url.decode(), "date": date}

    def _count(self, query: Query, answer: Answer | None, taken: int) -> None:
        """Count a lookup for its crawl, or for the crawl of records if it names none."""
        if not query.crawl:
            with self._live.crawls.reading() as reading:
                crawl = None if reading is None else self._current(reading).crawl
            if crawl is not None:
                query = query._replace(crawl=crawl.name)
        self._live.crawls.counting.count_answer(query, answer, taken)

    def _current(self, reading: Reading) -> _Current:
        """Return the crawl for records; it is searched for only after a crawl has changed."""
        version, held = reading.version(), self._held
        if held is not None and held[0] is reading.origin and held[1] == version:
            return held[2]
        current = _next(reading)
        if not isinstance(reading, Writing):  # a transaction may be rolled back
            self._held = reading.origin, version, current
        return current

    def _add(self, items: Any, environ: dict[str, Any]) -> dict[str, Any]:
        """Store an array of ``{"id", "uri", "date"}``; nothing of it if one record is invalid.

        Returns the name of the crawl and how many were added, unchanged and refused.
        """
        if not isinstance(items, list):
            raise RequestError("bad_request", "records come as a JSON array")
        if len(items) > self._config.max_batch:
            raise RequestError("too_large", f"at most {self._config.max_batch} records at once")
        captures = [_capture(item) for item in items]
        if not captures:
            return {"added": 0}
        settings = self._live.opened().engine.identity.settings
        refusal_reason = self._live.refusal_reason(captures)

        def change(writing: Writing) -> tuple[str, Added]:
            name, crawl = self._current(writing)
            self._allowed(environ, name)  # another may have begun since the first check
            crawl = crawl or lifecycle.begin(writing, name, seen=Visibility.ALL)
            return crawl.name, add(writing, crawl, captures, settings, refusal_reason)

        name, done = self._live.crawls.write(change, make=True)
        self._live.crawls.counting.count_stored(name, done.held)
        self._live.crawls.counting.count_refused(name, done.refused, done.refused_captures)
        counts = {"added": done.added, "unchanged": done.unchanged, "refused": done.refused}
        return {"crawl": name, **counts}


def _nameable(capture: Capture, spelling: Spelling) -> bool:
    """Return whether the answer may name an original: JSON cannot hold every URL.

    An original whose record spells the digest differently is left out: the client writes the
    digest as it has asked for it, and replay tools compare the text.
    """
    if not may_be_named(capture) or not has_digest_encoding(capture, spelling.encoding):
        return False
    try:
        capture.url.decode()
    except UnicodeDecodeError:
        return False
    return True


def _next(reading: Reading) -> _Current:
    """Return the first crawl for records that is open, or the name of one that is yet to begin."""
    for number in count(1):
        name = RECORDS_CRAWL if number == 1 else f"{RECORDS_CRAWL}-{number}"
        try:
            crawl = reading.crawl(name)
        except UnknownCrawl:
            return _Current(name, None)
        # A private crawl of this name may exist: no other client would see its records.
        shared = crawl.seen is Visibility.ALL and not crawl.namespace
        if shared and crawl.state is CrawlState.OPEN:
            return _Current(name, crawl)
    raise AssertionError  # numbers do not end


def _capture(item: Any) -> Capture:
    if not isinstance(item, dict) or not item.keys() <= _FIELDS:
        raise BadQuery('a record is {"id", "uri", "date"}')
    text, url, date = item.get("id"), item.get("uri"), item.get("date")
    if not isinstance(text, str) or not isinstance(url, str) or not 0 < len(url) <= _LONGEST_URL:
        raise BadQuery("id and uri of a record are text")
    digits = str(date) if type(date) in (int, str) else ""
    if not _DATE.fullmatch(digits):
        raise BadQuery("the date of a record is a number of 14 digits")
    digest, spelling = parse_spelled(text, unlabelled="sha1")
    try:
        return Capture(
            digest, spelling, url.encode(), date_of_digits(check_digits(digits.encode())),
            Evidence.NAMED,
        )  # fmt: skip
    except UnicodeEncodeError as error:
        raise BadInput(f"the uri cannot be read: {error}") from error
