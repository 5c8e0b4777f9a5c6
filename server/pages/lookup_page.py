"""The page that looks up a digest or URL and explains the answer.

It does not count as a lookup of a crawl: people must see whether the crawler itself has asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from flask import render_template, request

from dedupindex.digest import SIZES, no_label
from dedupindex.errors import BadDigest, Damaged, DedupError, StrategyUnavailable
from dedupindex.index.engine import Finder
from dedupindex.lookup import decide, explain
from dedupindex.lookup.decide import Strategy
from dedupindex.lookup.params import (
    PARAMETERS,
    UnknownAlgorithm,
    params_from_query_string,
    parse_query,
)
from dedupindex.lookup.render_json import header_lines, original_as_json
from dedupindex.urlkey import host_of, lacks_scheme, meant_url, urlkey
from server.api.request_fields import query_string
from server.live_index import LiveState
from server.responses import ERRORS, code_of
from server.services import Handlers

_SHOWN = 200  # captures
_UNLISTED = "This index keeps no list of captures by URL: give the digest, too, or read all of it."


Given = dict[str, bytes]


def _meant(url: bytes) -> str:
    """Return what was meant with a URL that has no scheme, "" if it is empty or has one."""
    text = url.decode("utf-8", "surrogateescape")
    return meant_url(text) if text and lacks_scheme(text) else ""


class LookupPage(Handlers):
    def lookup(self) -> tuple[str, int]:
        """Show the form and, if it was filled in, the answer."""
        given: Given = {}
        found: dict[str, Any] = {"kind": "nothing"}
        problem, status = "", 200
        try:
            given = params_from_query_string(query_string(request.environ))
            if digest := given.get("digest", b"").decode("utf-8", "replace"):
                if ":" not in digest and not given.get("unlabelled"):
                    raise BadDigest(f"{no_label(digest)}, or choose under Conditions what it is")
                found = self._of_digest(given)
            elif given.get("url"):
                found = self._of_url(given)
                if found["kind"] == "unlisted":
                    status, problem = ERRORS[StrategyUnavailable.code][0], _UNLISTED
        except UnknownAlgorithm:
            found = {"kind": "unknown"}
        except DedupError as error:
            status = ERRORS[code_of(error)][0]
            if status >= 500:
                raise
            problem = str(error)
        page = render_template(
            "lookup.html",
            given={
                name: given.get(name, b"").decode("utf-8", "surrogateescape") for name in PARAMETERS
            },
            strategies=tuple(Strategy.__members__),
            algorithms=list(SIZES),
            problem=problem,
            meant=_meant(given.get("url", b"")),
            found=found,
            crawls=self._known_crawls(found.get("considered", ())),
            by_url=self._live.opened().engine.identity.settings.by_url,
        )
        return page, status

    def _known_crawls(self, rows: Iterable[dict[str, Any]]) -> set[str]:
        """Return the crawls of captures that have a page; names from bin/index have none."""
        names = {row["original"]["crawl"] for row in rows} - {None}
        return {name for name in names if self._live.crawls.crawl(name) is not None}

    def _of_digest(self, given: Given) -> dict[str, Any]:
        query = parse_query(given).query
        with self._live.state(refresh=bool(query.crawl)) as state:
            query = self._live.crawls.completed(query, given, state.crawls)
            view, settings = self._seen_by(state, query.crawl, query.namespaces), state.settings
            decision = decide.decide(view, settings, query)
            explained = explain.explanation_json(view, settings, query)
            if decision.answer is None:
                engine = self._live.opened().engine.identity.engine
                explained["hint"] = explain.algorithm_hint(
                    state.view, query, engine
                ) or explain.purged_hint(state.view, query)
        lines, answer = "", decision.answer
        if answer is not None:
            try:
                lines = header_lines(answer.original).decode("utf-8", "surrogateescape")
            except Damaged as error:
                lines = str(error)
        return {
            "kind": "digest",
            "answer": decide.as_json(decision),
            "lines": lines.splitlines(),
            "more": False,
            **explained,
        }

    def _of_url(self, given: Given) -> dict[str, Any]:
        """Return the captures of a URL, and of the URLs with the same urlkey."""
        values = {name: PARAMETERS[name].read(value) for name, value in given.items() if value}
        url: bytes = values["url"]
        name: str = values.get("crawl", "")
        with self._live.state(refresh=bool(name)) as state:
            crawl = state.crawls.crawl(name)
            namespaces = {*values.get("namespace", ()), crawl.namespace if crawl else ""} - {""}
            view = self._seen_by(state, name, tuple(namespaces))
            canonical = state.settings.canonical
            captures = view.at_urlkey(urlkey(url)) if canonical else view.at_url(url)
            try:
                found = list(islice(captures, _SHOWN + 1))
            except StrategyUnavailable:
                host = host_of(url).decode("utf-8", "surrogateescape")
                text = url.decode("utf-8", "surrogateescape")
                command = self._commands.typed("list", ["--url", meant_url(text)])
                return {"kind": "unlisted", "host": host, "command": command}
        rows = [
            {
                "match": decide.match_of(url, capture.url).value,
                "original": {**original_as_json(capture), "crawl": capture.crawl or None},
            }
            for capture in found[:_SHOWN]
        ]
        return {"kind": "url", "considered": rows, "more": len(found) > _SHOWN}

    def _seen_by(self, state: LiveState, crawl: str, namespaces: tuple[str, ...]) -> Finder:
        if namespaces:
            self._access.may_read(request.environ, namespaces)
        return state.seen_by(crawl, namespaces)
