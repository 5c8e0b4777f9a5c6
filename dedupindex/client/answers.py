"""What comes of a lookup, a claim or a report, as types that cannot be taken for one another."""

from __future__ import annotations

import re
import threading
from base64 import b64decode
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z")
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Original:
    """The capture that a revisit refers to. What is not known is None."""

    url: str  # for WARC-Refers-To-Target-URI; where it is not UTF-8 only `url_bytes` is exact
    date: str  # WARC-Date to the letter, for WARC-Refers-To-Date
    record_id: str | None  # without angle brackets, for WARC-Refers-To
    digest: str  # as the original's own record spells it
    url_bytes: bytes
    committed: bool = True  # False: of a crawl that goes on and may yet be cancelled
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)  # all else


@dataclass(frozen=True)
class Hit:
    """The payload is stored already."""

    match: str  # exact_url, canonical_url or digest
    original: Original
    skip: bool = False  # a policy of the server or crawl: write nothing at all, not even a revisit


@dataclass(frozen=True)
class Miss:
    """The server has looked: the payload is not stored, or a policy wants it stored. Store it.

    Or the original spells its digest otherwise than the question: replay would not find it.
    """

    why: str = (
        ""  # unknown_algorithm, cut-digest, spelled_otherwise, or what a policy says: never …
    )
    original: None = None


@dataclass(frozen=True)
class NotAsked:
    """Nobody knows whether the payload is stored, so store it; it is not counted as new.

    `why` is ``unreachable``, ``timeout``, ``status`` (5xx), ``garbage``, ``quiet`` (not tried,
    after many failures), or the server's own code where it refused the question.
    """

    why: str
    message: str = ""
    original: None = None


@dataclass(frozen=True)
class Claimed:
    """The payload is stored nowhere, and it is for this crawl to store it, until the lease ends."""

    token: str
    until: float  # seconds since 1970
    original: None = None


@dataclass(frozen=True)
class Taken:
    """The payload is stored nowhere yet; another crawler has said that it will store it."""

    until: float
    original: None = None


Answer = Hit | Miss | NotAsked
Claim = Hit | Miss | Claimed | Taken | NotAsked  # Miss: of what is stored, spelled otherwise

SPELLED_OTHERWISE = Miss("spelled_otherwise")
_T = TypeVar("_T")


def usable(answer: _T, digest: str) -> _T | Miss:
    """An answer to a question with `digest`; not a hit that replay would not find.

    A revisit has the digest as its crawler spells it, and replay tools compare that text with the
    original's own, but for the label.
    """
    if isinstance(answer, Hit) and _value(answer.original.digest) != _value(digest):
        return SPELLED_OTHERWISE
    return answer


def _value(digest: str) -> str:
    return digest.rpartition(":")[2]


class Question(NamedTuple):
    """One lookup of a batch."""

    digest: str
    url: str | bytes = ""


@dataclass(frozen=True)
class Reported:
    """What became of captures that were reported; earlier ones that were kept count too."""

    added: int = 0
    unchanged: int = 0
    refused: int = 0  # by the index's own rules: status, media type, empty …
    bad: int = 0  # a field is missing or cannot be read
    kept: int = 0  # could not be sent now; the next report or flush tries again
    dropped: int = 0  # the server will not have them, or too many were kept

    def __add__(self, other: Reported) -> Reported:
        return Reported(
            self.added + other.added,
            self.unchanged + other.unchanged,
            self.refused + other.refused,
            self.bad + other.bad,
            other.kept,
            self.dropped + other.dropped,
        )


def read_answer(value: Any) -> Answer:
    """An answer of the server; `ValueError` unless it is one beyond doubt."""
    if not isinstance(value, dict):
        raise ValueError("an answer must be an object")
    if "error" in value:
        return refusal(value)
    if value.get("duplicate") is False:
        return Miss(str(value.get("reason") or value.get("policy") or ""))
    if value.get("duplicate") is not True or not isinstance(value.get("match"), str):
        raise ValueError("an answer says whether it is a duplicate, and how it matches")
    return Hit(value["match"], _original(value.get("original")), value.get("skip") is True)


def read_claim(value: Any) -> Claim:
    """The answer to a claim; `ValueError` unless it is one beyond doubt."""
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
    """An ``{"error": …}`` of the server."""
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("code"), str):
        raise ValueError("an error has a code")
    return NotAsked(error["code"], str(error.get("message", "")))


def read_reported(value: Any) -> Reported:
    """What the server did with captures; `ValueError` if it does not say so."""
    refused = value.get("refused") if isinstance(value, dict) else None
    if not isinstance(refused, dict):
        raise ValueError("a report is answered with counts")
    counts = [value.get("added"), value.get("unchanged"), *refused.values(), value.get("bad")]
    if not all(type(count) is int for count in counts):
        raise ValueError("counts are numbers")
    added, unchanged, *reasons, bad = counts
    return Reported(added, unchanged, sum(reasons), bad)


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
    """Text for a header line: a control character would end it and begin another."""
    if not isinstance(value, str) or not value or _UNWRITABLE.search(value):
        raise ValueError("an original has a URL, a date and a digest")
    return value


# What a client asked and what came of it, to be shown at the end of a crawl.


class Counts:
    """Numbers of a client's life, safe to read at any time.

    Every lookup and claim ends as a hit, a miss, taken or not looked up; they add up. Of the misses
    some are hits that replay would not find: `spelled_otherwise`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._why: Counter[str] = Counter()
        self._missed: dict[str, Counter[str]] = {}  # by crawl

    def answered(self, answer: Hit | Miss | NotAsked | Claimed | Taken, crawl: object = "") -> None:
        """Count what came of a lookup or claim that a crawl made."""
        with self._lock:
            self._counts["lookups"] += 1
            if isinstance(answer, NotAsked):
                self._why[answer.why] += 1
                self._of(crawl)["not_looked_up"] += 1
            else:
                self._counts[_NAMES[type(answer)]] += 1
                self._counts["spelled_otherwise"] += answer == SPELLED_OTHERWISE

    def reported(self, done: Reported) -> None:
        """Count what became of captures that reached an end: all but those kept."""
        with self._lock:
            for name in ("added", "unchanged", "refused", "bad"):
                self._counts[name] += getattr(done, name)
            self._counts["not_reported"] += done.dropped

    def dropped(self, crawl: str, count: int) -> None:
        """Count captures of a crawl that are not reported, beside `reported`."""
        with self._lock:
            self._of(crawl)["not_reported"] += count

    def missed(self, crawl: str) -> dict[str, int]:
        """What a crawl did not look up and not report, for the server's report of it."""
        with self._lock:
            missed = self._missed.get(crawl, Counter())
            return {name: missed[name] for name in ("not_looked_up", "not_reported")}

    def crawls(self) -> list[str]:
        """The crawls that missed something."""
        with self._lock:
            return [crawl for crawl, missed in self._missed.items() if crawl and missed.total()]

    def _of(self, crawl: object) -> Counter[str]:
        name = crawl if isinstance(crawl, str) else ""
        if name not in self._missed and len(self._missed) >= _CRAWLS:
            name = ""
        return self._missed.setdefault(name, Counter())

    @property
    def not_looked_up(self) -> int:
        """Lookups that nobody answered."""
        with self._lock:
            return self._why.total()

    def as_json(self) -> dict[str, Any]:
        """All counts, by name."""
        with self._lock:
            counts = {name: self._counts[name] for name in _ALL}
            why = dict(sorted(self._why.items()))
        return {**counts, "not_looked_up": sum(why.values()), "not_looked_up_why": why}


_CRAWLS = 1000  # that are counted apart
_NAMES: dict[type, str] = {Hit: "hits", Miss: "misses", Claimed: "misses", Taken: "taken"}
_ALL = (
    *("lookups", "hits", "misses", "taken", "spelled_otherwise"),
    *("added", "unchanged", "refused", "bad", "not_reported"),
)
