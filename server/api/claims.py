"""Claims over HTTP: a lookup that gives the right to store a new payload; alone or in a batch."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from secrets import token_bytes
from time import perf_counter_ns
from typing import Any, NamedTuple

from dedupindex.crawls import crawl_captures
from dedupindex.crawls.crawl import Crawl
from dedupindex.crawls.store import Writing
from dedupindex.digest import EMPTY, Digest
from dedupindex.errors import BadDigest, BadQuery, DedupError
from dedupindex.index.engine import look_ahead
from dedupindex.lookup import decide
from dedupindex.lookup.decide import Decision, Query
from dedupindex.lookup.params import UnknownAlgorithm, of_json, query_of
from server.api.batch_limits import LOOKS_OF_CLAIMS, Budget
from server.live_index import LiveIndex
from server.responses import RequestError, code_of, error_object

AT_ONCE = 1000  # claims in one transaction: others write in between
_TOKEN = re.compile(r"(?:[0-9A-Fa-f]{32})?")

Allowed = Callable[[Iterable[str]], None]  # raises if the client may not read these namespaces


class _Claim(NamedTuple):
    """One claim of a request."""

    query: Query
    lease: int  # seconds
    token: bytes  # of the client; empty: none


class Claiming:
    """Answers claims, in any number of threads; raises `DedupError`."""

    def __init__(self, live: LiveIndex) -> None:
        self._live = live

    def claim(self, given: Mapping[str, Any], allowed: Allowed) -> dict[str, Any]:
        """Answer ``{"crawl", "digest", …, "lease"?, "token"?}`` with an original or a claim.

        One transaction: of all clients that ask for a new digest at once, one may store it.
        """
        return self._claim([self._asked(given, allowed)])[0]

    def claims(self, given: Mapping[str, Any], allowed: Allowed) -> dict[str, Any]:
        """Answer each of ``{"crawl", "claims": [...], …}`` in order, in one transaction.

        Options beside the list apply to all of it. An invalid claim gets an error as its answer.
        """
        common = {**given}
        items = common.pop("claims")
        if not isinstance(items, list):
            raise BadQuery("claims must be a list")
        if len(items) > AT_ONCE:
            raise RequestError("too_large", f"at most {AT_ONCE} claims at once")
        if "token" in common:
            raise BadQuery("each claim has a token of its own")
        found: list[_Claim | dict[str, Any]] = []
        for item in items:
            try:
                if not isinstance(item, dict) or "crawl" in item:
                    raise BadQuery("a claim is an object, and its crawl stands beside the list")
                found.append(self._asked({**common, **item}, allowed))
            except DedupError as error:
                found.append(error_object(code_of(error), str(error)))
        made = iter(self._claim([one for one in found if isinstance(one, _Claim)]))
        answers: list[dict[str, Any]] = []
        firsts: dict[Digest, int] = {}
        for place, one in enumerate(found):
            answers.append(next(made) if isinstance(one, _Claim) else one)
            answer = answers[-1]
            if isinstance(one, _Claim) and "claimed" in answer and _is_for_one(one.query, answer):
                first = firsts.setdefault(one.query.digest, place)
                if first != place:
                    answer["in_batch"] = first
        return {"answers": answers}

    def _asked(self, given: Mapping[str, Any], allowed: Allowed) -> _Claim:
        given = {**given}
        lease, token = given.pop("lease", crawl_captures.LEASE), given.pop("token", "")
        if type(lease) is not int or not 1 <= lease <= crawl_captures.LONGEST:
            raise BadQuery(f"lease must be a number of seconds up to {crawl_captures.LONGEST}")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise BadQuery("token must be 32 hex digits")
        asked = of_json(given)
        try:
            query, _ = query_of(asked)
        except UnknownAlgorithm:
            raise BadDigest("no known algorithm in the digest: nothing can be claimed") from None
        if not query.crawl:
            raise BadQuery("a claim needs the crawl that makes it")
        query = self._live.crawls.completed(query, asked)
        if query.namespaces:
            allowed(query.namespaces)
        return _Claim(query, lease, bytes.fromhex(token))

    def _claim(self, asked: list[_Claim]) -> list[dict[str, Any]]:
        """All of one crawl, in one transaction."""
        if not asked:
            return []
        opened = self._live.opened()
        settings = opened.engine.identity.settings

        def change(writing: Writing) -> list[tuple[Decision | None, dict[str, Any]]]:
            crawl = writing.crawl(asked[0].query.crawl)
            crawl_captures.require_open(crawl)
            snapshot, left = self._live.crawls.written(writing), Budget(LOOKS_OF_CLAIMS)
            with opened.engine.view() as base:

                def one(ask: _Claim) -> tuple[Decision | None, dict[str, Any]]:
                    query = ask.query
                    seen = snapshot.view_for(base, settings.keys(), query.crawl, query.namespaces)
                    if query.conditional():
                        seen = left.limited(seen)
                    try:
                        decision = decide.decide(seen, settings, query)
                    except RequestError as error:  # the limit of the batch is reached
                        return None, error_object(code_of(error), str(error))
                    answer = _answer_of(writing, crawl, ask, decision)
                    held = answer.get("claimed") and _is_for_one(query, answer)
                    if writing.serial or not held:
                        return decision, answer
                    return self._decide_again(writing, ask, decision, answer)

                look_ahead(base, [ask.query.digest for ask in asked])
                places: dict[Digest, list[int]] = {}
                for place, ask in enumerate(asked):
                    places.setdefault(ask.query.digest, []).append(place)
                groups = list(places.values())  # of one digest in order: the first gets the claim
                answered = writing.map_concurrently(
                    lambda some: [one(asked[place]) for place in some], groups
                )
                found = dict(zip(chain(*groups), chain(*answered), strict=True))
                return [found[place] for place in range(len(asked))]

        started = perf_counter_ns()
        done = self._live.crawls.write(change)
        share = (perf_counter_ns() - started) // len(asked)
        for ask, (decision, _) in zip(asked, done, strict=True):
            if decision is not None:
                self._live.crawls.counting.note_answer(ask.query, decision.answer, share)
        return [content for _, content in done]

    def _decide_again(
        self, writing: Writing, ask: _Claim, before: Decision, answer: dict[str, Any]
    ) -> tuple[Decision, dict[str, Any]]:
        """Look up again after winning a claim: its last holder may have stored the payload."""
        opened, query = self._live.opened(), ask.query
        settings, snapshot = opened.engine.identity.settings, self._live.crawls.written(writing)
        with opened.engine.view() as base:
            seen = snapshot.view_for(base, settings.keys(), query.crawl, query.namespaces)
            decision = decide.decide(seen, settings, query)
        if decision.answer is None:
            return before, answer
        crawl_captures.release(writing, query.digest, answer["token"])
        return decision, decide.as_json(decision)

    def release(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Release a claim, ``{"digest", "token"}``, whose holder will not store the payload."""
        given = {**given}
        token = given.pop("token", "")
        if not isinstance(token, str):
            raise BadQuery("token must be a string")
        try:
            query, _ = query_of(of_json(given))
        except UnknownAlgorithm:
            return {"released": False}
        change = partial(crawl_captures.release, digest=query.digest, token=token)
        return {"released": self._live.crawls.write(change)}


def _is_for_one(query: Query, answer: dict[str, Any]) -> bool:
    """Return whether other clients wait for the holder of a claim."""
    return not answer.keys() & {"policy", "reason"} and query.digest not in EMPTY


def _answer_of(writing: Writing, crawl: Crawl, ask: _Claim, decision: Decision) -> dict[str, Any]:
    """Return the original for a claim; without one, make the claim."""
    if decision.answer is not None:
        return decide.as_json(decision)
    policy = decision.policy or decide.wary(ask.query)
    if policy or decision.reason or ask.query.digest in EMPTY:
        # every client stores it, and none waits
        until = time.time() + min(ask.lease, crawl_captures.LONGEST)
        free = {"claimed": True, "until": until, "token": (ask.token or token_bytes(16)).hex()}
        return {**decide.as_json(decision._replace(policy=policy)), **free}
    now = int(time.time() * 1000)
    claim, mine = crawl_captures.claim(writing, crawl, ask.query.digest, now, ask.lease, ask.token)
    shown = {"duplicate": False, "claimed": mine, "until": claim.until / 1000}
    return {**shown, "token": claim.token} if mine else shown
