"""The answers to lookups, claims and reports, as types that cannot be mistaken for one another."""

from __future__ import annotations

import re
import threading
from base64 import b64decode
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z")
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Original:
    """The capture that a revisit refers to."""

    url: str  # for WARC-Refers-To-Target-URI; if it is not UTF-8, use `url_bytes`
    date: str  # WARC-Date, for WARC-Refers-To-Date
    record_id: str | None  # without angle brackets, for WARC-Refers-To; None: not known
    digest: str  # as the record of the original spells it
    url_bytes: bytes
    committed: bool = True  # False: reported by an open crawl, which may be cancelled
    fields: Mapping[str, Any] = field(
        default_factory=dict, repr=False, compare=False
    )  # the JSON object


@dataclass(frozen=True)
class Hit:
    """The payload is stored already."""

    match: str  # exact_url, canonical_url or digest
    original: Original
    skip: bool = False  # a policy: write nothing, not even a revisit


@dataclass(frozen=True)
class Miss:
    """The payload is not stored, or must be stored again. Store it.

    `why` is "" for a new payload; ``unknown_algorithm``, ``cut-digest``; ``spelled_otherwise`` if
    the original spells its digest in another way, so that replay tools would not find it; or the
    word of a policy, such as ``never``.
    """

    why: str = ""
    original: None = None


@dataclass(frozen=True)
class NotAsked:
    """It is not known whether the payload is stored: store it. It is not counted as new.

    `why` is ``unreachable``, ``timeout``, ``status`` (5xx), ``garbage`` (an unreadable answer),
    ``outage`` (not sent, after many failures), ``invalid`` (a field cannot be sent), or the code
    with which the server refused the lookup.
    """

    why: str
    message: str = ""
    original: None = None


@dataclass(frozen=True)
class Claimed:
    """The payload is new, and this crawl shall store it until the lease ends."""

    token: str
    until: float  # seconds since 1970
    original: None = None


@dataclass(frozen=True)
class Taken:
    """The payload is new, and another crawler has claimed it."""

    until: float
    original: None = None


@dataclass(frozen=True)
class Last:
    """What is known last of a URL. Fetch it in full if `conditions` is empty."""

    conditions: Mapping[str, str] = field(default_factory=dict)  # header fields to send
    original: Original | None = None  # for the revisit, if the URL has not changed
    known: bool = False  # whether the server knows any capture of the URL
    why: str = ""  # "", or why the server was not asked or did not answer, as of `NotAsked`
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)  # JSON

    def is_confirmed(self, status: int, headers: Mapping[str, str]) -> bool:
        """Return whether a response says that `original` has not changed: then write a revisit.

        It must be a 304 to a request with all `conditions`. If it states an ETag or a Last-Modified
        other than those (RFC 9110 section 15.4.5), fetch the URL again in full. The names of
        `headers` are in any case.
        """
        if status != 304 or not self.conditions or self.original is None:
            return False
        stated = {name.lower(): value.strip() for name, value in headers.items()}
        etag, asked = stated.get("etag"), self.conditions.get("If-None-Match")
        if etag and asked:
            return etag.removeprefix("W/") == asked.removeprefix("W/")  # section 8.8.3.2
        modified, since = stated.get("last-modified"), self.conditions.get("If-Modified-Since")
        return not (modified and since) or modified == since


Answer = Hit | Miss | NotAsked
Claim = Hit | Miss | Claimed | Taken | NotAsked  # Miss: only spelled_otherwise

SPELLED_OTHERWISE = Miss("spelled_otherwise")


class Question(NamedTuple):
    """One lookup of a batch."""

    digest: str
    url: str | bytes = ""


@dataclass(frozen=True)
class Reported:
    """What became of reported captures, including earlier ones that were kept."""

    added: int = 0
    unchanged: int = 0
    refused: int = 0  # by the rules of the index: status, media type, empty …
    bad: int = 0  # a field is missing or invalid
    kept: int = 0  # not sent; the next report or flush tries again
    dropped: int = 0  # refused by the server, or too many were kept
    why: Mapping[str, int] = field(default_factory=dict, compare=False)
    """The reasons of `refused` (words: ``status``) and `bad` (sentences), each with a number."""

    def __add__(self, other: Reported) -> Reported:
        return Reported(
            self.added + other.added,
            self.unchanged + other.unchanged,
            self.refused + other.refused,
            self.bad + other.bad,
            other.kept,
            self.dropped + other.dropped,
            Counter(self.why) + Counter(other.why),
        )


def read_answer(value: Any) -> Answer:
    """Read the answer to a lookup; raises `ValueError` if anything in it is doubtful."""
    if not isinstance(value, dict):
        raise ValueError("an answer must be an object")
    if "error" in value:
        return refusal(value)
    if value.get("duplicate") is False:
        return Miss(str(value.get("reason") or value.get("policy") or ""))
    if value.get("duplicate") is not True or not isinstance(value.get("match"), str):
        raise ValueError("an answer says whether it is a duplicate, and how it matches")
    return Hit(value["match"], _original(value.get("original")), value.get("skip") is True)


def read_last(value: Any) -> Last:
    """Read the last capture of a URL; raises `ValueError` if anything in it is doubtful."""
    if not isinstance(value, dict):
        raise ValueError("an answer must be an object")
    if "error" in value:
        return Last(why=refusal(value).why)
    if not isinstance(value.get("known"), bool):
        raise ValueError("an answer says whether the URL is known")
    if not value["known"]:
        return Last(fields=value)
    original = None if value.get("original") is None else _original(value["original"])
    conditions = value.get("conditions")
    if not isinstance(conditions, dict) or (conditions and original is None):
        raise ValueError("the conditions are header fields, and have an original")
    safe = {_text(name): _text(text) for name, text in conditions.items()}
    return Last(safe, original, True, fields=value)


def read_claim(value: Any) -> Claim:
    """Read the answer to a claim; raises `ValueError` if anything in it is doubtful."""
    answer = read_answer(value)
    if not isinstance(answer, Miss):
        return answer
    until, token = value.get("until"), value.get("token")
    if isinstance(until, bool) or not isinstance(until, int | float):
        raise ValueError("a claim ends at some time")
    if value.get("claimed") is False:
        return Taken(until)
    if value.get("claimed") is not True or not isinstance(token, str):
        raise ValueError("a claim is made or is not, and has a token if it is")
    return Claimed(token, until)


def refusal(value: Any) -> NotAsked:
    """Read an ``{"error": …}`` of the server; raises `ValueError`."""
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("code"), str):
        raise ValueError("an error has a code")
    return NotAsked(error["code"], str(error.get("message", "")))


def read_reported(value: Any) -> Reported:
    """Read the answer to a report; raises `ValueError`."""
    refused = value.get("refused") if isinstance(value, dict) else None
    if not isinstance(refused, dict):
        raise ValueError("a report is answered with counts")
    counts = [value.get("added"), value.get("unchanged"), *refused.values(), value.get("bad")]
    if not all(type(count) is int for count in counts):
        raise ValueError("counts are numbers")
    added, unchanged, *reasons, bad = counts
    results = value.get("results")
    errors = [one for one in results if isinstance(one, dict)] if isinstance(results, list) else []
    why = Counter(refused) + Counter(refusal(error).message for error in errors)
    return Reported(added, unchanged, sum(reasons), bad, why=why)


def _original(value: Any) -> Original:
    if not isinstance(value, dict):
        raise ValueError("a duplicate has an original")
    url, date, digest = (_text(value.get(name)) for name in ("url", "date", "digest"))
    record_id = None if value.get("record_id") is None else _text(value["record_id"])
    if not _DATE.fullmatch(date):
        raise ValueError("the date of an original is a WARC-Date")
    encoded = value.get("url_base64")
    exact = b64decode(encoded, validate=True) if isinstance(encoded, str) else url.encode()
    _text(exact.decode("latin-1"))
    committed = value.get("committed") is not False
    return Original(url, date, record_id, digest, exact, committed, value)


def _text(value: Any) -> str:
    """Return text for a header line, which must have no control characters."""
    if not isinstance(value, str) or not value or _UNWRITABLE.search(value):
        raise ValueError("an original has a URL, a date and a digest")
    return value


class Counts:
    """The numbers of a client's lookups and reports; may be read at any time.

    Every lookup and claim is counted as a hit, a miss, taken or not looked up. `spelled_otherwise`
    and `answered_by_filter` are misses, too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._why: Counter[str] = Counter()
        self._missed: dict[str, Counter[str]] = {}  # by crawl

    def answered(self, answer: Claim, crawl: object = "") -> None:
        """Count the answer to a lookup or claim of a crawl."""
        with self._lock:
            self._counts["lookups"] += 1
            missed = self._of(crawl)
            if isinstance(answer, NotAsked):
                self._why[answer.why] += 1
                missed["not_looked_up"] += 1
            else:
                self._counts[_NAMES[type(answer)]] += 1
                self._counts["spelled_otherwise"] += answer == SPELLED_OTHERWISE

    def answered_by_filter(self, crawl: object = "") -> None:
        """Count a miss that the digest filter answered."""
        with self._lock:
            for name in ("lookups", "misses", "answered_by_filter"):
                self._counts[name] += 1
            self._of(crawl)["answered_by_filter"] += 1

    def reported(self, crawl: str, done: Reported) -> None:
        """Count the outcome of a report of a crawl, except captures that are kept."""
        with self._lock:
            for name in ("added", "unchanged", "refused", "bad"):
                self._counts[name] += getattr(done, name)
            self._counts["not_reported"] += done.dropped
            self._of(crawl)["not_reported"] += done.dropped

    def missed(self, crawl: str) -> dict[str, int]:
        """Return what only the client knows of a crawl, as the server takes it."""
        with self._lock:
            missed = self._missed.get(crawl, Counter())
            names = ["not_looked_up", "not_reported"]
            if missed["answered_by_filter"]:
                names.append("answered_by_filter")
            return {name: missed[name] for name in names}

    def crawls(self) -> list[str]:
        """Return the crawls of all lookups and reports, also those without any that failed."""
        with self._lock:
            return list(filter(None, self._missed))

    def _of(self, crawl: object) -> Counter[str]:
        name = crawl if isinstance(crawl, str) else ""
        if name not in self._missed and len(self._missed) >= _CRAWLS:
            name = ""
        return self._missed.setdefault(name, Counter())

    @property
    def not_looked_up(self) -> int:
        """The number of lookups without an answer."""
        with self._lock:
            return self._why.total()

    def as_json(self) -> dict[str, Any]:
        """Return all counts, by name."""
        with self._lock:
            counts = {name: self._counts[name] for name in _ALL}
            why = dict(sorted(self._why.items()))
        return {**counts, "not_looked_up": sum(why.values()), "not_looked_up_why": why}


_CRAWLS = 1000  # that have counts of their own
_NAMES: dict[type, str] = {Hit: "hits", Miss: "misses", Claimed: "misses", Taken: "taken"}
_ALL = (
    *("lookups", "hits", "misses", "taken", "spelled_otherwise", "answered_by_filter"),
    *("added", "unchanged", "refused", "bad", "not_reported"),
)
