"""Claims over HTTP: look up, or get the right to store; one at a time or many at once."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from secrets import token_bytes
from time import perf_counter_ns
from typing import Any, NamedTuple

from dedupindex.crawls import claims
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

Allowed = Callable[[Iterable[str]], None]  # raises if the asker may not read these namespaces


class _Asked(NamedTuple):
    """One claim that is asked for."""

    query: Query
    lease: int  # seconds
    token: bytes  # the asker's own; empty: it has none


class Claiming:
    """Answers claims, in any number of threads; raises `DedupError`."""

    def __init__(self, live: LiveIndex) -> None:
        self._live = live

    def claim(self, given: Mapping[str, Any], allowed: Allowed) -> dict[str, Any]:
        """``{"crawl", "digest", …, "lease"?, "token"?}``: an original, or who may store it.

        One transaction: of all who ask at once for a digest that nobody has, one is told to store.
        """
        return self._claim([self._asked(given, allowed)])[0]

    def claims(self, given: Mapping[str, Any], allowed: Allowed) -> dict[str, Any]:
        """``{"crawl", "claims": [...], …}``: the same for each, in order, in one transaction.

        What stands beside the list holds for all of it. One that cannot be read is answered so.
        """
        common = {**given}
        items = common.pop("claims")
        if not isinstance(items, list):
            raise BadQuery("claims must be a list")
        if len(items) > AT_ONCE:
            raise RequestError("too_large", f"at most {AT_ONCE} claims at once")
        if "token" in common:
            raise BadQuery("each claim has a token of its own")
        found: list[_Asked | dict[str, Any]] = []
        for item in items:
            try:
                if not isinstance(item, dict) or "crawl" in item:
                    raise BadQuery("a claim is an object, and its crawl stands beside the list")
                found.append(self._asked({**common, **item}, allowed))
            except DedupError as error:
                found.append(error_object(code_of(error), str(error)))
        told = iter(self._claim([one for one in found if isinstance(one, _Asked)]))
        answers: list[dict[str, Any]] = []
        firsts: dict[Digest, int] = {}
        for place, one in enumerate(found):
            answers.append(next(told) if isinstance(one, _Asked) else one)
            answer = answers[-1]
            if isinstance(one, _Asked) and "claimed" in answer and _is_for_one(one.query, answer):
                first = firsts.setdefault(one.query.digest, place)
                if first != place:
                    answer["in_batch"] = first
        return {"answers": answers}

    def _asked(self, given: Mapping[str, Any], allowed: Allowed) -> _Asked:
        given = {**given}
        lease, token = given.pop("lease", claims.LEASE), given.pop("token", "")
        if type(lease) is not int or not 1 <= lease <= claims.LONGEST:
            raise BadQuery(f"lease must be a number of seconds up to {claims.LONGEST}")
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
        return _Asked(query, lease, bytes.fromhex(token))

    def _claim(self, asked: list[_Asked]) -> list[dict[str, Any]]:
        """All of one crawl, in one transaction."""
        if not asked:
            return []
        opened = self._live.opened()
        settings = opened.engine.identity.settings

        def change(writing: Writing) -> list[tuple[Decision | None, dict[str, Any]]]:
            crawl = writing.crawl(asked[0].query.crawl)
            claims.require_open(crawl)
            snapshot, left = self._live.crawls.written(writing), Budget(LOOKS_OF_CLAIMS)
            with opened.engine.view() as base:

                def one(ask: _Asked) -> tuple[Decision | None, dict[str, Any]]:
                    query = ask.query
                    seen = snapshot.seen(base, settings.keys(), query.crawl, query.namespaces)
                    if query.conditional():
                        seen = left.looking(seen)
                    try:
                        decision = decide.decide(seen, settings, query)
                    except RequestError as error:  # too much was looked at before
                        return None, error_object(code_of(error), str(error))
                    answer = _told(writing, crawl, ask, decision)
                    held = answer.get("claimed") and _is_for_one(query, answer)
                    if writing.serial or not held:
                        return decision, answer
                    return self._again(writing, ask, decision, answer)

                look_ahead(base, [ask.query.digest for ask in asked])
                places: dict[Digest, list[int]] = {}
                for place, ask in enumerate(asked):
                    places.setdefault(ask.query.digest, []).append(place)
                groups = list(places.values())  # of one digest in order: the first is to have it
                told = writing.each(lambda some: [one(asked[place]) for place in some], groups)
                found = dict(zip(chain(*groups), chain(*told), strict=True))
                return [found[place] for place in range(len(asked))]

        started = perf_counter_ns()
        done = self._live.crawls.write(change)
        share = (perf_counter_ns() - started) // len(asked)
        for ask, (decision, _) in zip(asked, done, strict=True):
            if decision is not None:
                self._live.crawls.counting.note_answer(ask.query, decision.answer, share)
        return [content for _, content in done]

    def _again(
        self, writing: Writing, ask: _Asked, before: Decision, told: dict[str, Any]
    ) -> tuple[Decision, dict[str, Any]]:
        """A claim that was won because another had ended: what it stored is there now."""
        opened, query = self._live.opened(), ask.query
        settings, snapshot = opened.engine.identity.settings, self._live.crawls.written(writing)
        with opened.engine.view() as base:
            seen = snapshot.seen(base, settings.keys(), query.crawl, query.namespaces)
            decision = decide.decide(seen, settings, query)
        if decision.answer is None:
            return before, told
        claims.release(writing, query.digest, told["token"])
        return decision, decide.as_json(decision)

    def release(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """``{"digest", "token"}``: the claimant will not store the payload after all."""
        given = {**given}
        token = given.pop("token", "")
        if not isinstance(token, str):
            raise BadQuery("token must be a string")
        try:
            query, _ = query_of(of_json(given))
        except UnknownAlgorithm:
            return {"released": False}
        change = partial(claims.release, digest=query.digest, token=token)
        return {"released": self._live.crawls.write(change)}


def _is_for_one(query: Query, answer: dict[str, Any]) -> bool:
    """Return whether a claim is one that others wait for."""
    return not answer.keys() & {"policy", "reason"} and query.digest not in EMPTY


def _told(writing: Writing, crawl: Crawl, ask: _Asked, decision: Decision) -> dict[str, Any]:
    """The answer to a claim, which is made if nothing else answers it."""
    if decision.answer is not None:
        return decide.as_json(decision)
    policy = decision.policy or decide.wary(ask.query)
    if policy or decision.reason or ask.query.digest in EMPTY:
        # each stores it: nobody is to wait for another
        until = time.time() + min(ask.lease, claims.LONGEST)
        free = {"claimed": True, "until": until, "token": (ask.token or token_bytes(16)).hex()}
        return {**decide.as_json(decision._replace(policy=policy)), **free}
    now = int(time.time() * 1000)
    claim, mine = claims.claim(writing, crawl, ask.query.digest, now, ask.lease, ask.token)
    shown = {"duplicate": False, "claimed": mine, "until": claim.until / 1000}
    return {**shown, "token": claim.token} if mine else shown
