"""Routes of claims: a lookup that gives the right to store a new payload, alone or in a batch."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from secrets import token_bytes
from time import perf_counter_ns
from typing import Any, NamedTuple

from flask import Response, request

from dedupindex.crawls import crawl_captures
from dedupindex.crawls.combined_view import CrawlSnapshot
from dedupindex.crawls.crawl import Crawl
from dedupindex.crawls.store import Writing
from dedupindex.digest import EMPTY, Digest
from dedupindex.errors import BadDigest, BadQuery, DedupError
from dedupindex.index.engine import View
from dedupindex.index.identity import Settings
from dedupindex.lookup import decide
from dedupindex.lookup.decide import Decision, Query
from dedupindex.lookup.params import UnknownAlgorithm, params_from_json, parse_query
from server import logs
from server.api.lookup_batch import BATCH_READS, Allowed, Budget
from server.api.request_fields import text_field
from server.responses import RequestError, code_of, error_object, json_of
from server.routes import Route
from server.services import Handlers

AT_ONCE = 1000  # claims in one transaction: others write in between
CLAIM_READS = BATCH_READS // 10  # captures in a transaction, which blocks other writers
_TOKEN = re.compile(r"(?:[0-9A-Fa-f]{32})?")


class _ClaimRequest(NamedTuple):
    query: Query
    lease: int  # seconds
    token: bytes  # of the client; empty: none


class Claims(Handlers):
    @Route("POST", "/claims", ("Claimed",), body=("Claim",), errors=(404, 409, 415))
    def claim(self) -> Response:
        """Look up, and claim the right to store."""
        given = self._writers.fields(request.environ)
        crawl = text_field(given, "crawl")
        who = self._writers.allowed(request.environ, crawl)
        allowed = partial(self._access.may_read, request.environ)
        if "claims" in given:
            answer = {"answers": self._answers(given, allowed)}
            results = Counter(map(_result, answer["answers"]))
            content: dict[str, Any] = dict(results)
        else:
            content = answer = self._claim([self._read(given, allowed)])[0]
            results = Counter([_result(answer)])
        self._metrics.written(results, "claims")
        logs.audit(request.environ, who, content, crawl)
        return json_of(answer)

    @Route("DELETE", "/claims", ("Released",), body=("Release",), errors=(404, 409, 415))
    def release(self) -> Response:
        """Release a claim."""
        given = self._writers.fields(request.environ)
        who = self._writers.allowed(request.environ)
        token = text_field(given, "token")
        given.pop("token", None)
        try:
            query = parse_query(params_from_json(given)).query
        except UnknownAlgorithm:
            released = False
        else:
            change = partial(crawl_captures.release, digest=query.digest, token=token)
            released = self._live.crawls.write(change)
        logs.audit(request.environ, who, {"released": released})
        return json_of({"released": released})

    def _answers(self, given: Mapping[str, Any], allowed: Allowed) -> list[dict[str, Any]]:
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
        found: list[_ClaimRequest | dict[str, Any]] = []
        for item in items:
            try:
                if not isinstance(item, dict) or "crawl" in item:
                    raise BadQuery("a claim is an object, and its crawl stands beside the list")
                found.append(self._read({**common, **item}, allowed))
            except DedupError as error:
                found.append(error_object(code_of(error), str(error)))
        made = iter(self._claim([claim for claim in found if isinstance(claim, _ClaimRequest)]))
        answers: list[dict[str, Any]] = []
        first_places: dict[Digest, int] = {}
        for place, claim in enumerate(found):
            if not isinstance(claim, _ClaimRequest):
                answers.append(claim)
                continue
            answer = next(made)
            answers.append(answer)
            if "claimed" in answer and _is_exclusive(claim.query, answer):
                first = first_places.setdefault(claim.query.digest, place)
                if first != place:
                    answer["in_batch"] = first
        return answers

    def _read(self, given: Mapping[str, Any], allowed: Allowed) -> _ClaimRequest:
        given = {**given}
        lease, token = given.pop("lease", crawl_captures.LEASE), given.pop("token", "")
        if type(lease) is not int or not 1 <= lease <= crawl_captures.LONGEST:
            raise BadQuery(f"lease must be a number of seconds up to {crawl_captures.LONGEST}")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise BadQuery("token must be 32 hex digits")
        asked = params_from_json(given)
        try:
            query = parse_query(asked).query
        except UnknownAlgorithm:
            raise BadDigest("no known algorithm in the digest: nothing can be claimed") from None
        if not query.crawl:
            raise BadQuery("a claim needs the crawl that makes it")
        with self._live.crawls.snapshot() as crawls:
            query = self._live.crawls.completed(query, asked, crawls)
        if query.namespaces:
            allowed(query.namespaces)
        return _ClaimRequest(query, lease, bytes.fromhex(token))

    def _claim(self, claims: list[_ClaimRequest]) -> list[dict[str, Any]]:
        """Answer claims of one crawl with originals or claims, in one transaction.

        Of all clients that ask for a new digest at once, one may store it.
        """
        if not claims:
            return []
        engine = self._live.opened().engine

        def change(writing: Writing) -> list[tuple[Decision | None, dict[str, Any]]]:
            crawl = writing.crawl(claims[0].query.crawl)
            crawl_captures.require_open(crawl)
            places: dict[Digest, list[int]] = {}
            for place, claim in enumerate(claims):
                places.setdefault(claim.query.digest, []).append(place)
            groups = list(places.values())  # of one digest in order: the first gets the claim
            snapshot, budget = self._live.crawls.written(writing), Budget(CLAIM_READS)
            with engine.view() as base:
                base.prefetch([claim.query.digest for claim in claims])
                decision_on = partial(_decide, base, snapshot, engine.identity.settings, budget)
                answered = writing.map_concurrently(
                    lambda group: [
                        self._answer(writing, crawl, claims[place], decision_on) for place in group
                    ],
                    groups,
                )
            found = dict(zip(chain(*groups), chain(*answered), strict=True))
            return [found[place] for place in range(len(claims))]

        started = perf_counter_ns()
        done = self._live.crawls.write(change)
        share = (perf_counter_ns() - started) // len(claims)
        for claim, (decision, _) in zip(claims, done, strict=True):
            if decision is not None:
                self._live.crawls.counting.count_answer(claim.query, decision.answer, share)
        return [content for _, content in done]

    def _answer(
        self,
        writing: Writing,
        crawl: Crawl,
        claim: _ClaimRequest,
        decision_on: Callable[[Query], Decision],
    ) -> tuple[Decision | None, dict[str, Any]]:
        """Return the decision on a claim and its answer; None where the budget is spent."""
        try:
            decision = decision_on(claim.query)
        except RequestError as error:
            return None, error_object(code_of(error), str(error))
        answer = _make(writing, crawl, claim, decision)
        won = answer.get("claimed") and _is_exclusive(claim.query, answer)
        if writing.serial or not won:
            return decision, answer
        # The last holder of the claim may have stored the payload after the lookup: look up again.
        engine, snapshot = self._live.opened().engine, self._live.crawls.written(writing)
        with engine.view() as fresh:
            again = _decide(fresh, snapshot, engine.identity.settings, None, claim.query)
        if again.answer is None:
            return decision, answer
        crawl_captures.release(writing, claim.query.digest, answer["token"])
        return again, decide.as_json(again)


def _decide(
    base: View, snapshot: CrawlSnapshot, settings: Settings, budget: Budget | None, query: Query
) -> Decision:
    seen = snapshot.view_for(base, settings.keys(), query.crawl, query.namespaces)
    if budget is not None and query.has_conditions():
        seen = budget.limited(seen)
    return decide.decide(seen, settings, query)


def _result(answer: dict[str, Any]) -> str:
    """Return the result of a claim, as the metrics name it."""
    if "error" in answer:
        return "bad"
    return "duplicate" if answer["duplicate"] else "claimed" if answer["claimed"] else "taken"


def _is_exclusive(query: Query, answer: dict[str, Any]) -> bool:
    """Return whether other clients wait for the holder of a claim."""
    return not answer.keys() & {"policy", "reason"} and query.digest not in EMPTY


def _make(
    writing: Writing, crawl: Crawl, claim: _ClaimRequest, decision: Decision
) -> dict[str, Any]:
    """Return the original for a claim; without one, make the claim."""
    if decision.answer is not None:
        return decide.as_json(decision)
    policy = decision.policy or decide.policy_in_force(claim.query)
    if policy or decision.reason or claim.query.digest in EMPTY:
        # Every client stores it, and none waits.
        until = time.time() + min(claim.lease, crawl_captures.LONGEST)
        free = {"claimed": True, "until": until, "token": (claim.token or token_bytes(16)).hex()}
        return {**decide.as_json(decision._replace(policy=policy)), **free}
    now = int(time.time() * 1000)
    held, mine = crawl_captures.claim(
        writing, crawl, claim.query.digest, now, claim.lease, claim.token
    )
    answer = {"duplicate": False, "claimed": mine, "until": held.until / 1000}
    return {**answer, "token": held.token} if mine else answer
