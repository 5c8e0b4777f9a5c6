"""Many lookups in one request: a JSON batch in one read transaction, or a stream of JSON lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter_ns
from typing import Any, BinaryIO, NamedTuple, assert_never

import orjson

from dedupindex.capture import Capture
from dedupindex.crawls.counting import NO_ORIGINAL, LookupOutcome
from dedupindex.crawls.crawl import with_crawl_defaults
from dedupindex.digest import EMPTY, Digest, is_cut
from dedupindex.errors import BadQuery, DedupError, UnknownCrawl
from dedupindex.index.engine import AHEAD, Finder
from dedupindex.index.format.fast_answer import BROKEN, NONE, sha1_prefix
from dedupindex.index.shared_filter import SharedFilter
from dedupindex.lookup import decide
from dedupindex.lookup.decide import CONDITIONAL_LIMIT, LIMIT, Query, Strategy
from dedupindex.lookup.explain import explanation_json
from dedupindex.lookup.params import (
    PARAMETERS,
    UnknownAlgorithm,
    params_from_json,
    parse_query,
    query_digests,
)
from dedupindex.urlkey import urlkey
from server.api.request_body import line_chunks, load_json
from server.config import Config
from server.live_index import LiveIndex, LiveState, Opened
from server.metrics import CELLS, HIT, MISS, Metrics, log_outage
from server.responses import RequestError, code_of, error_object
from server.worker_crawls import Crawls, failed_lookup, lookup_row, plain_covers

_BATCH = {"REQUEST_METHOD": "POST", "PATH_INFO": "/lookup"}  # of a request, for the log

EXPLAINED = 100  # lookups of a request
BATCH_READS = 100 * CONDITIONAL_LIMIT  # captures that conditions may refuse, in a batch
UNKNOWN = orjson.dumps({"duplicate": False, "reason": "unknown_algorithm"})
"""The answer to a digest of an algorithm that no index holds, which is not an error."""

_MAX_PAYLOADS = 100_000  # of one batch; those of a longer stream are not compared

_Row = tuple[str, str, str | bytes, LookupOutcome | bytes, int]
"""A `CountedLookup` without the time that it took."""
Given = dict[str, bytes]
Allowed = Callable[[Iterable[str]], None]  # raises if the client may not read them


class Budget:
    """What remains of the limits of one request: explanations, and captures read by conditions."""

    def __init__(self, reads: int | None = None) -> None:
        """`reads`: captures that may be read; None for JSON lines, which have no limit."""
        self._total, self._reads, self._explained = reads, reads, EXPLAINED

    def explain(self) -> None:
        """Count an explanation; raises `BadQuery` beyond the limit."""
        if not self._explained:
            raise BadQuery(
                f"at most {EXPLAINED} lookups of a request are explained; this one is not answered"
            )
        self._explained -= 1

    def limited(self, view: Finder) -> Finder:
        """Return a view whose long searches count against the limit."""
        return view if self._reads is None else _LimitedView(view, self)

    def search(self, view: Finder, digest: Digest, limit: int) -> list[Capture]:
        """Return `view.any`, and count the captures; raises `RequestError` at the limit."""
        if self._reads is None:
            return view.any(digest, limit)
        if self._reads <= 0:
            raise RequestError(
                "overloaded",
                f"the conditions of this batch made it read {self._total} captures; this lookup is "
                "not answered: send it in a request of its own",
            )
        found = view.any(digest, limit)
        self._reads -= len(found)
        return found


class _LimitedView(Finder):
    """A `Finder` whose long searches count against a `Budget`."""

    def __init__(self, view: Finder, budget: Budget) -> None:
        self._view, self._budget = view, budget

    def exact(self, digest: Digest, url: bytes) -> list[Capture]:
        return self._view.exact(digest, url)

    def canonical(self, digest: Digest, urlkey: bytes, limit: int) -> list[Capture]:
        return self._view.canonical(digest, urlkey, limit)

    def any(self, digest: Digest, limit: int) -> list[Capture]:
        if limit <= LIMIT:
            return self._view.any(digest, limit)
        return self._budget.search(self._view, digest, limit)

    def denies(self, digest: Digest, capture: Capture) -> str:
        return self._view.denies(digest, capture)

    def at_url(self, url: bytes) -> Iterator[Capture]:
        return self._view.at_url(url)

    def at_urlkey(self, key: bytes) -> Iterator[Capture]:
        return self._view.at_urlkey(key)


class BatchDuplicates:
    """The new payloads that several lookups of one batch ask for."""

    def __init__(self) -> None:
        self._places: dict[tuple[Any, ...], int] = {}

    def first_place(self, query: Query, place: int) -> int | None:
        """Return the place of the first lookup of a new payload, None if that is this one.

        Two payloads are the same if the capture of the first would be the original of the second.
        """
        if query.digest in EMPTY or is_cut(query.digest.raw):
            return None
        match query.strategy:
            case Strategy.DIGEST_ANY:
                url = b""
            case Strategy.EXACT_URL:
                url = query.url
            case Strategy.CANONICAL_URL:
                url = urlkey(query.url)
            case _:
                assert_never(query.strategy)
        key = (query.digest, query.covers, query.crawl, query.namespaces, url)
        first = self._places.get(key)
        if first is None and len(self._places) < _MAX_PAYLOADS:
            self._places[key] = place
        return first


class _BatchRequest(NamedTuple):
    """What the lookups of one request have in common."""

    defaults: Given  # options of each lookup
    allowed: Allowed
    duplicates: BatchDuplicates | None
    budget: Budget

    @classmethod
    def of(cls, options: Given, allowed: Allowed, budget: Budget) -> _BatchRequest:
        """Split the option `in_batch` from the others; raises `BadQuery`."""
        defaults = {**options}
        text = defaults.pop("in_batch", b"")
        in_batch = text and PARAMETERS["in_batch"].read(text)
        return cls(defaults, allowed, BatchDuplicates() if in_batch else None, budget)


class Batch:
    """Answers one request with many lookups."""

    def __init__(self, live: LiveIndex, metrics: Metrics, config: Config) -> None:
        self._live, self._metrics, self._config = live, metrics, config

    def json(self, body: bytes, options: Given, allowed: Allowed) -> bytes:
        """Answer ``{"lookups": [...], …}`` from one state of the index: ``{"answers": [...]}``."""
        started = perf_counter_ns()
        content = load_json(body)
        if not isinstance(content, dict) or not isinstance(content.get("lookups"), list):
            raise RequestError("bad_request", 'the body must be an object with a list "lookups"')
        lookups = content.pop("lookups")
        limit = self._config.max_batch
        if len(lookups) > limit:
            raise RequestError("too_large", f"a batch has at most {limit} lookups")
        asked = _BatchRequest.of(
            {**options, **params_from_json(content)}, allowed, Budget(BATCH_READS)
        )
        try:
            with self._live.state(filtered=True) as state:
                answers = _Answers(state.opened, self._live.crawls, asked)
                found = answers.answers_to(state, lookups)
        except DedupError:
            self._count_failed(asked, len(lookups))
            raise
        answers.count(started, len(lookups))
        self._metrics.batch("batch", answers.cells, started)
        if not found:
            return b'{"answers":[]}'
        found[0] = b'{"answers":[' + found[0]  # before joining: the whole is long to copy
        found[-1] += b"]}"
        return b",".join(found)

    def lines(self, stream: BinaryIO, options: Given, allowed: Allowed) -> Iterator[bytes]:
        """Return the answers to lines, each chunk as it comes; blank lines are skipped.

        Raises at once if the options fit no lookup: that is an error of the whole request.
        """
        asked = _BatchRequest.of(options, allowed, Budget())
        _Answers(self._live.opened(), self._live.crawls, asked)
        return self._lines(stream, asked)

    def _lines(self, stream: BinaryIO, asked: _BatchRequest) -> Iterator[bytes]:
        for lookups, numbers in line_chunks(stream, self._config.max_line):
            started = perf_counter_ns()
            try:
                with self._live.state(filtered=True) as state:
                    answers = _Answers(state.opened, self._live.crawls, asked)
                    found = answers.answers_to(state, lookups, numbers)
                cells = answers.cells
                answers.count(started, len(lookups))
            except DedupError as error:  # of the index: "no duplicate" would be wrong
                code = code_of(error)
                log_outage(code, str(error), _BATCH)
                self._count_failed(asked, len(lookups))
                found = [orjson.dumps(error_object(code, str(error), line)) for line in numbers]
                cells = Counter({CELLS[code]: len(lookups)})
            self._metrics.batch("lines", cells, started)
            found.append(b"")
            yield b"\n".join(found)

    def _count_failed(self, asked: _BatchRequest, count: int) -> None:
        """Count lookups that failed together."""
        if name := asked.defaults.get("crawl", b"").decode("utf-8", "replace"):
            self._live.crawls.counting.count_lookups([failed_lookup(name)] * count)


class _Answers:
    """Answers lookups of one request, and counts them."""

    def __init__(self, opened: Opened, crawls: Crawls, asked: _BatchRequest) -> None:
        """Raises `BadQuery` or `StrategyUnavailable` for options that fit no lookup."""
        self._counting, self._policy = crawls.counting, crawls.policy
        self._defaults, self._allowed, self._duplicates, self._budget = asked
        self._lines = False
        self._counted: list[_Row] = []  # of lookups of crawls
        self._settings = opened.engine.identity.settings
        options = {name: PARAMETERS[name].read(v) for name, v in self._defaults.items() if v}
        strategy = options.get("strategy", Strategy.DIGEST_ANY)
        decide.require_strategy(self._settings, strategy)
        self._strategy, self._base = strategy.value, CELLS[strategy.value, "exact_url"]
        plain = self._duplicates is None and self._defaults.keys() <= {"strategy", "crawl"}
        self._plain = opened.plain if plain and strategy.has_fast_answer() else None
        self._any_is_new = plain and strategy is Strategy.DIGEST_ANY and not crawls.policy.rules
        self._crawl = options.get("crawl", "")
        self.cells: Counter[int] = Counter()

    def count(self, started: int, lookups: int) -> None:
        """Count the answers; each took an equal share of the time since `started`."""
        if self._counted:
            share = (perf_counter_ns() - started) // lookups
            self._counting.count_lookups((*row, share) for row in self._counted)

    def answers_to(
        self, state: LiveState, lookups: list[Any], lines: Sequence[int] | None = None
    ) -> list[bytes]:
        """Return the answers in order; `lines` are the line numbers of JSON lines."""
        self._lines = lines is not None
        places = range(len(lookups)) if lines is None else lines
        covers = plain_covers(state.crawls.crawl(self._crawl)) if self._crawl else 0
        cursor = state.view.cursor()
        if self._plain is None or cursor is None or covers < 0:
            shared = state.shared if self._any_is_new and covers >= 0 else None
            return self._each(state, lookups, places, shared)
        answer, crawl = self._plain.answer, self._crawl
        has_none, of_crawls = state.crawls.has_none, crawl or state.crawls.known.answering
        found: list[bytes] = []
        not_plain = set[int]()  # places of those that needed the full answer
        for item in lookups:
            body = None
            try:
                # Other fields, and a URL in angle brackets, need the full answer.
                if len(item) == 2:
                    text, url = item["digest"], item["url"]
                    spelled = text[5:]
                    prefix = sha1_prefix(spelled) if text.startswith("sha1:") else None
                    if prefix is not None and type(url) is str and url[0] != "<" and url[-1] != ">":
                        body = answer(cursor, prefix, spelled, url, covers)
                        if (body is NONE or of_crawls) and not has_none(prefix, crawl):
                            body = None
            except (TypeError, AttributeError, UnknownCrawl, *BROKEN):
                body = None  # the full answer reports the error
            if body is None:
                not_plain.add(len(found))
                body = self._full_answer(state, item, places[len(found)])
            found.append(body)
        if crawl:
            self._counted += [
                (crawl, self._strategy, item["url"], body, -1)
                for place, (item, body) in enumerate(zip(lookups, found, strict=True))
                if place not in not_plain
            ]
        misses = sum(body is NONE for body in found)
        self.cells[self._base + HIT] += len(found) - len(not_plain) - misses
        self.cells[self._base + MISS] += misses
        return found

    def _each(
        self,
        state: LiveState,
        lookups: list[Any],
        places: Sequence[int],
        shared: SharedFilter | None,
    ) -> list[bytes]:
        """Return the answers in order; what a shared filter lacks is new without more ado."""
        found: list[bytes] = []
        for at in range(0, len(lookups), AHEAD):
            chunk = lookups[at : at + AHEAD]
            new = [shared is not None and _is_lacking(shared, item) for item in chunk]
            asked = [item for item, lacking in zip(chunk, new, strict=True) if not lacking]
            state.view.prefetch(query_digests(asked, self._defaults))
            for item, lacking, place in zip(chunk, new, places[at : at + AHEAD], strict=True):
                if not lacking:
                    found.append(self._full_answer(state, item, place))
                    continue
                found.append(NONE)
                if self._crawl:
                    self._counted.append((self._crawl, self._strategy, item["url"], NONE, -1))
            self.cells[self._base + MISS] += sum(new)
        return found

    def _full_answer(self, state: LiveState, asked: Any, place: int) -> bytes:
        try:
            if isinstance(asked, DedupError):
                raise asked
            if not isinstance(asked, dict):
                raise BadQuery("a lookup is a JSON object")
            given = {**self._defaults, **params_from_json(asked)}
            query, explain, _ = parse_query(given)
            if query.crawl or self._policy.rules:
                crawl = state.crawls.crawl(query.crawl)
                query = with_crawl_defaults(query, given, crawl, self._policy)
            if query.namespaces:
                self._allowed(query.namespaces)
            seen = state.seen_by(query.crawl, query.namespaces)
            if query.has_conditions():
                seen = self._budget.limited(seen)
            decision = decide.decide(seen, self._settings, query)
            answer, content = decision.answer, decide.as_json(decision)
            if explain:
                self._budget.explain()
                content |= explanation_json(seen, self._settings, query)
            new = answer is None and not decision.policy
            if self._duplicates is not None and new and not decide.policy_in_force(query):
                first = self._duplicates.first_place(query, place)
                content |= {} if first is None else {"in_batch": first}
            if answer is not None:
                self._counting.count_original(query.crawl, answer.original)
            if query.crawl:
                self._counted.append(lookup_row(query, answer))
            match = answer.match.value if answer else "none"
            self.cells[CELLS[query.strategy.value, match]] += 1
            return orjson.dumps(content)
        except UnknownAlgorithm:
            self.cells[CELLS[Strategy.DIGEST_ANY.value, "unknown_algorithm"]] += 1
            if name := asked.get("crawl") or self._crawl:
                url = asked.get("url") or ""
                self._counted.append((name, self._strategy, url, NO_ORIGINAL, -1))
            return UNKNOWN
        except DedupError as error:
            code = code_of(error)
            log_outage(code, str(error), _BATCH)
            self.cells[CELLS[code]] += 1
            self._count_failure(asked)
            return orjson.dumps(error_object(code, str(error), place if self._lines else 0))

    def _count_failure(self, asked: Any) -> None:
        """Count a lookup that failed for the crawl that it names, if any."""
        own = asked.get("crawl") if isinstance(asked, dict) else None
        if name := own if isinstance(own, str) else self._crawl:
            self._counting.count_lookup(failed_lookup(name))


def _is_lacking(shared: SharedFilter, item: Any) -> bool:
    """Return whether a lookup of a digest and a URL is of what a filter lacks."""
    try:
        if len(item) != 2:
            return False
        text, url = item["digest"], item["url"]
        prefix = sha1_prefix(text[5:]) if text.startswith("sha1:") else None
        if prefix is None or type(url) is not str or url[0] == "<" or url[-1] == ">":
            return False
        return bool(url.encode()) and shared.lacks(prefix)
    except (TypeError, AttributeError, *BROKEN):
        return False  # the full answer reports the error
