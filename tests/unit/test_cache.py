"""`dedupindex.cache`: the only long-lived cache, and the modules that must use it."""

from __future__ import annotations

import pickle
import re
from itertools import chain

import pytest

from dedupindex import timestamps
from dedupindex.cache import LONGEST, SLOT, Cache, size_of
from dedupindex.crawls import counting as module
from dedupindex.crawls.counting import NO_ORIGINAL, LookupCounter, LookupOutcome
from dedupindex.errors import BadDate, BadQuery
from dedupindex.lookup import policy
from server.api.cdx_query import MOST_FIELDS, cdx_query_of
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1
from tests.support.paths import ROOT


def test_the_limit_is_never_exceeded() -> None:
    cache = Cache[bytes, bytes](10_000)
    for number in range(1000):
        key, value = b"%d" % number, b"v" * (number % 300)
        assert cache.keep(key, value) is value and cache.get(key) == value
        held = sum(size_of(one) + SLOT for pair in cache.items() for one in (pair,))
        assert cache.held <= 10_000
        assert held - cache.held == len(cache) * size_of(()) + len(cache) * 16
    assert len(cache) > 10


def test_long_entries_are_not_cached() -> None:
    cache = Cache[str, str]()
    for key, value in (("k" * LONGEST, ""), ("k", "v" * LONGEST)):
        assert cache.keep(key, value) == value and not cache
    assert cache.keep("k", "v", 5000) == "v" and cache.held > 5000  # who says so knows
    assert cache.keep("big", "v", 2 << 20) == "v" and "big" not in cache
    tupled = Cache[tuple[str, tuple[str, ...]], int]()
    tupled.keep(("a", ("n" * LONGEST,)), 1)
    assert not tupled


def test_it_is_empty_in_another_process() -> None:
    cache = Cache[str, int](5000)
    cache.keep("a", 1)
    copy = pickle.loads(pickle.dumps(cache))
    assert (copy.most, copy.held, len(copy)) == (5000, 0, 0)


def test_long_lived_caches_are_bounded() -> None:
    """`functools` counts entries, not bytes, and keeps them however long they are."""
    counted = re.compile(r"lru_cache|functools import.*\bcache\b|fnmatch import.*fnmatchcase")
    may = {
        "dedupindex/index/tokens.py",  # patterns of whoever runs the server
        "dedupindex/indexer/admission.py",  # the filter of the index, and of one that replaces it
        "dedupindex/indexer/copy_index.py",  # numbers to hashes, while an index is copied
    }
    found = {
        str(path.relative_to(ROOT))
        for pattern in (
            "server/**/*.py",
            "dedupindex/*.py",
            "dedupindex/index/**/*.py",
            "dedupindex/crawls/**/*.py",
            "dedupindex/indexer/*.py",
        )
        for path in ROOT.glob(pattern)
        if counted.search(path.read_text())
    }
    assert found == may


def test_days_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timestamps, "_DAYS_KEPT", 50)
    for number in range(3000):
        day = b"%04d-%02d-%02dT00:00:00Z" % (
            2 + number // 336,
            1 + number // 28 % 12,
            1 + number % 28,
        )
        assert timestamps.check_date(day) == day
        assert len(timestamps._KNOWN_DAYS) <= 50
    with pytest.raises(BadDate):
        timestamps.check_date(b"2023-02-29T00:00:00Z")


def test_patterns_of_policies_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_globs", Cache(20_000))
    monkeypatch.setattr(policy, "_expressions", Cache(20_000))
    for number in range(100):
        mime, url = f"image/{number}-[ab]*", f"http://{number}[.]example/.*"
        rules = policy.parse_policy([{"mime": mime, "url": url, "never": True}])
        asked = f"http://{number}.example/x".encode()
        assert rules.rules_for(asked, b"image/%d-b1" % number).never()
        assert not rules.rules_for(asked, b"image/%d-c1" % number).never()
        assert not rules.rules_for(b"http://other.example/", b"image/%d-b1" % number).never()
        assert policy._globs.held <= 20_000 and policy._expressions.held <= 20_000


def test_statistics_keep_no_long_values(monkeypatch: pytest.MonkeyPatch) -> None:
    counting = LookupCounter(lambda: 0.0)
    long = "a." * 30_000
    held = capture(1, f"http://{long}example/".encode())._replace(mime=b"m" * 4000, size=7)
    answer = b'{"duplicate":false' + b" " * 60_000 + b"}"
    counting.count_lookup((long, "DIGEST_ANY", f"http://{long}x/", NO_ORIGINAL, -1, 1))
    counting.count_lookup(("one", "DIGEST_ANY", "http://b.example/", answer, -1, 1))
    assert not counting._lookups  # they are added up already
    counting.count_lookup(
        ("one", "DIGEST_ANY", "http://b.example/", LookupOutcome.of_hit("digest", held), -1, 1)
    )
    counting.count_stored("one", [held])
    waiting = [*counting._lookups, *counting._stored]
    assert len(waiting) == 2 and max(len(repr(one)) for one in waiting) < 1500
    monkeypatch.setattr(module, "TIMES_KEPT", 3)
    for number in range(10):
        counting.count_lookup(
            (f"crawl-{number}", "DIGEST_ANY", "http://b.example/", NO_ORIGINAL, -1, 1)
        )
    counted = counting.take()
    headings = {*chain(*counted.hosts), *chain(*counted.groups)}
    assert max(len(text) for text in headings if not isinstance(text, int)) <= 255
    for rows in (counted.hosts.values(), counted.groups.values()):
        assert sum(row[module.COLUMN["lookups"]] for row in rows) == 13
        assert sum(row[module.COLUMN["digest_bytes"]] for row in rows) == 7
    assert len(counted.times) <= 3


def test_a_long_accept_header_is_read_in_part_and_not_kept(make_index: MakeIndex) -> None:
    live = LiveIndex(make_index([capture(1)]))
    live.refresh()
    web = create_app(Config(live.index), live).test_client()
    long = ", image/x" * 20_000
    for accept, kind in ((f"text/plain{long}", "text/plain"), (f"application/json{long}", "json")):
        answer = web.get(f"/lookup?digest={sha1(1)}", headers={"Accept": accept})
        assert answer.status_code == 200 and kind in answer.content_type


def test_a_cdx_query_names_so_many_fields() -> None:
    fields = ",".join(["url"] * MOST_FIELDS)
    assert len(cdx_query_of(f"url=http://a.example/&fl={fields}").fields) == MOST_FIELDS
    with pytest.raises(BadQuery, match=f"at most {MOST_FIELDS} fields"):
        cdx_query_of(f"url=http://a.example/&fl={fields},url")
