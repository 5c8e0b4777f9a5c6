"""Routes of deletion: its impact, dropped crawls, deleted captures.

Commands in their own processes read index and ledger, so that lookups do not wait for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import orjson
from flask import Response, request

from dedupindex.crawls import lifecycle, statistics
from dedupindex.errors import BadInput, BadQuery, HasDependents, IndexUnavailable
from dedupindex.index.tokens import Role
from dedupindex.runtime.files import exclusive
from dedupindex.runtime.report_table import rounded_shares
from server import logs
from server.api import request_fields as fields
from server.api.crawls import crawl_row
from server.commands import CommandTimeout
from server.responses import RequestError, json_of
from server.routes import Route
from server.services import Handlers

LISTED = 1000  # originals, copies and revisits in one answer
_SCOPES = ("container", "crawl", "host", "url")
_CAPTURE = dict.fromkeys(("digest", "url", "date"), fields.TEXT)
_UNCHANGED = (BadInput, HasDependents, RequestError)  # errors after which nothing has changed
_LISTING = re.compile("(bin/|dedupindex )impact --list")
IMPACT: dict[str, dict[str, Any]] = {
    "container": {
        **fields.TEXT,
        "description": "All captures of this file; of all files below it, if it ends with /.",
    },
    "crawl": {**fields.TEXT, "description": "All of this crawl."},
    "host": {**fields.TEXT, "description": "All of this host and those below it."},
    "url": {**fields.TEXT, "description": "All of this URL, exactly as it was."},
    "prefix": {**fields.BOOLEAN, "description": "With `url`: all that begin so."},
    "list": {
        **fields.BOOLEAN,
        "description": "Also list the first originals, copies and revisits.",
    },
}


class Deletions(Handlers):
    """Routes that need the role admin, if there are tokens."""

    @Route("GET", "/impact", ("Impact",), parameters=IMPACT)
    def impact(self) -> Response:
        """What depends on captures before they are deleted."""
        self._admin()
        given = fields.read_parameters(request.environ, IMPACT)
        options = [f"--{name}={given[name]}" for name in _SCOPES if name in given]
        if len(options) != 1:
            raise BadQuery(f"give one of {', '.join(_SCOPES)}")
        if given.get("prefix") == "true":
            options.append("--prefix")
        lines = LISTED if given.get("list") == "true" else 0
        listing = ["--list"] if lines else []
        output = self._commands.run("impact", ["--json", *listing, *options], lines=lines)
        content = orjson.loads(output.last)
        if lines:
            content["listed"] = [orjson.loads(line) for line in output.lines]
        return json_of(content)

    @Route("DELETE", "/crawls/{name}", ("Crawl",), body=("Drop",), errors=(404, 409, 415))
    def drop_crawl(self, name: str) -> Response:
        """Drop a crawl that is not merged yet."""
        # The body is read first: an aborted request drops nothing.
        who, given = self._admin(), self._writers.fields(request.environ)
        fields.check_fields(given, fields.DROP)
        drop = partial(lifecycle.drop, name=name, force=fields.bool_field(given, "force"))
        self._metrics.store_all_counts(self._live.crawls.write_counts)  # of all workers
        # While a merge runs, it could take in what is dropped.
        with _index_locked(self._live.index):
            crawl = self._live.crawls.write(drop)
        with audited(who):
            while self._live.crawls.write(partial(statistics.drop, crawl=crawl)):
                pass
            content = rounded_shares(crawl_row(self._live, name))
        logs.audit(request.environ, who, content)
        return json_of(content)

    @Route("DELETE", "/captures", ("Impact",), body=("Deletions",), errors=(409, 415))
    def delete_captures(self) -> Response:
        """Delete captures from the index."""
        who, given = self._admin(), self._writers.fields(request.environ)
        force = fields.bool_field(given, "force")
        given.pop("force", None)
        items = fields.batch_items(given, self._config.max_batch, "force")
        with TemporaryFile() as lines:
            for item in items:
                lines.write(orjson.dumps(_named_capture(item)) + b"\n")
            lines.seek(0)
            options = ["--captures=-", "--json", *(["--force"] if force else [])]
            try:
                with audited(who):
                    content = orjson.loads(self._commands.run("purge", options, lines).last)
            except HasDependents as error:
                raise _of_request(error) from error
        self._live.refresh()
        logs.audit(request.environ, who, counts_of(content))
        return json_of(content)

    def _admin(self) -> str:
        return self._access.require(request.environ, Role.ADMIN)


@contextmanager
def audited(who: str) -> Iterator[None]:
    """Log a write that fails after it may have changed something."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, CommandTimeout) or not isinstance(error, _UNCHANGED):
            logs.audit(request.environ, who, {"broken_off": True})
        raise


@contextmanager
def _index_locked(index: Path) -> Iterator[None]:
    """Hold the write lock of the index; raises `IndexUnavailable`, also while it is replaced."""
    with ExitStack() as held:
        try:
            held.enter_context(exclusive(index / "lock", "the index"))
        except OSError as error:
            why = error.strerror or error
            raise IndexUnavailable(f"the index at {index} cannot be locked: {why}") from error
        yield


def _of_request(error: HasDependents) -> HasDependents:
    """Return an error of ``bin/purge`` with what a client can do in place of its options."""
    text = _LISTING.sub("GET /impact with list=true", str(error))
    return HasDependents(text.replace("--force", "force=true in the body"))


def counts_of(removed: dict[str, Any]) -> dict[str, Any]:
    """Return what the audit has of a purge."""
    originals = removed["originals"]["captures"]
    return {"found": removed["found"], "removed": originals, "unmerged": removed["unmerged"]}


def _named_capture(item: Any) -> dict[str, str]:
    """Return digest, URL and date of a capture to delete; raises `BadQuery`."""
    if not isinstance(item, dict):
        raise BadQuery("a capture is a JSON object")
    fields.check_fields(item, _CAPTURE)
    found = {name: fields.text_field(item, name) for name in _CAPTURE}
    if not found["digest"] or not found["url"]:
        raise BadQuery("a capture that is deleted needs digest and url")
    return found
