"""The last hour of crawls by minutes: sums of all processes, and what needs attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest

from dedupindex.crawls import lifecycle, statistics
from dedupindex.crawls.counting import FAILED, NO_ORIGINAL, LookupCounter, LookupOutcome
from dedupindex.crawls.counting import add_counted as add
from dedupindex.crawls.minutes import MinuteCounts, attention, last_hour
from dedupindex.crawls.parse_report import add_self_report
from dedupindex.crawls.statistics_keys import RefusedPayload, StatisticsKind, key_of
from dedupindex.crawls.store import Store, Writing
from dedupindex.crawls.stores import make_store
from tests.conftest import MakeIndex
from tests.support.captures import capture

NOW = 1_795_000_000 // 3600 * 3600 + 1810  # ten seconds into a minute
HIT = LookupOutcome("exact_url", 3000, b"image/png", 200)
URL = "http://a.example/"


@pytest.fixture
def store(make_index: MakeIndex) -> Iterator[Store]:
    with closing(make_store(make_index())) as store:
        store.write(partial(lifecycle.begin, name="weekly"))
        yield store


def count(
    store: Store,
    minutes_ago: float,
    *outcomes: LookupOutcome,
    taken: int = 1000,
    stored: int = 0,
) -> None:
    """Count what one process has answered."""
    counter = LookupCounter(lambda: NOW - 60 * minutes_ago)
    for outcome in outcomes:
        counter.count_lookup(("weekly", "DIGEST_ANY", URL, outcome, -1, taken))
    counter.count_stored("weekly", [capture(number, size=1000) for number in range(stored)])
    store.write(partial(add, counted=counter.take()))


def hour(store: Store, now: float = NOW) -> list[MinuteCounts]:
    with store.reading() as reading:
        return last_hour(reading, reading.crawls(), now)


def problems(store: Store, now: float = NOW) -> list[str]:
    with store.reading() as reading:
        crawl = reading.crawl("weekly")
        return attention(reading, crawl, last_hour(reading, [crawl], now), now)


def test_minutes_are_the_sums_of_all_processes(store: Store) -> None:
    count(store, 2, HIT, NO_ORIGINAL, taken=1_000_000, stored=1)
    count(store, 2, HIT, FAILED, taken=3_000_000)
    count(store, 0, NO_ORIGINAL)
    minutes = hour(store)
    assert [counts.row.lookups for counts in minutes] == [0] * 57 + [3, 0, 1]
    assert [counts.minute for counts in minutes[-2:]] == [NOW // 60 - 1, NOW // 60]
    row = minutes[-3].row
    assert (row.exact_url, row.stored, row.errors) == (2, 1, 1)
    assert minutes[-3].row.as_json()["duplicate_bytes_percent"] == pytest.approx(
        100 * 6000 / 7000, abs=0.01
    )
    assert minutes[-3].average == pytest.approx(5e-3 / 3)
    assert 3e-3 <= minutes[-3].p99 <= 6e-3
    assert minutes[-1].p99 == minutes[-1].average == 1e-6  # of one lookup the time is known
    assert not any(minutes[-2].row)
    assert minutes[-2].p99 == 0


def test_a_later_hour_takes_the_place_of_an_earlier_one(store: Store) -> None:
    count(store, 60, HIT, HIT)
    assert not any(any(counts.row) for counts in hour(store))
    count(store, 0, HIT)
    count(store, 60, HIT)  # of a process that writes late
    assert [counts.row.lookups for counts in hour(store)][-1:] == [1]
    assert not any(any(counts.row) for counts in hour(store, NOW - 60))


def test_counts_that_were_given_back_count_by_hours_only(store: Store) -> None:
    counter = LookupCounter(lambda: NOW)
    counter.count_lookup(("weekly", "DIGEST_ANY", URL, HIT, -1, 1000))
    counter.count_refused("weekly", {"mime": 2}, [capture(1, size=7), capture(2, size=-1)])
    counter.give_back(counter.take())
    counter.count_lookup(("weekly", "DIGEST_ANY", URL, HIT, -1, 1000))
    store.write(partial(add, counted=counter.take()))
    assert hour(store)[-1].row.lookups == 1
    with store.reading() as reading:
        crawl = reading.crawl("weekly")
        reasons = statistics.refused(reading, crawl)
        refused = statistics.refused_payload(reading, crawl, reasons)
        assert refused == RefusedPayload(captures=2, unsized=1, bytes=7)
        hours = [*reading.statistics(reading.crawl("weekly").number.to_bytes(4, "big") + b"f")]
    assert [amounts[0] for _, amounts in hours] == [2]


def test_who_asks_as_he_should_needs_no_attention(store: Store) -> None:
    count(store, 1, *[HIT] * 5, *[NO_ORIGINAL] * 10, stored=10)
    assert problems(store) == []


def test_what_does_not_ask_or_asks_late_is_named(store: Store) -> None:
    assert problems(store) == ["begun, no lookup yet"]
    count(store, 7, NO_ORIGINAL, stored=1)
    assert problems(store) == ["no lookup for 7 min"]
    count(store, 1, *[NO_ORIGINAL] * 9, stored=30, taken=400_000_000)
    count(store, 1, FAILED)
    assert problems(store) == [
        "captures stored in the last hour: 31, but lookups that found nothing before: 10",
        "lookups that took more than 100 ms, of the last 5 minutes: 9",
        "lookups answered with an error, of the last 5 minutes: 1",
    ]
    store.write(lambda writing: lifecycle.commit(writing, "weekly", ""))
    assert problems(store) == []


def test_what_the_index_refused_days_before_hides_nothing_of_the_last_hour(store: Store) -> None:
    count(store, 1, NO_ORIGINAL, stored=30)

    def add_refused(writing: Writing) -> None:
        number = writing.crawl("weekly").number
        writing.add(key_of(number, StatisticsKind.REFUSED, b"mime"), [100])

    store.write(add_refused)
    assert "captures stored in the last hour: 30" in problems(store)[0]


def test_what_a_crawler_says_it_did_not_look_up_is_no_surprise(store: Store) -> None:
    count(store, 1, NO_ORIGINAL, stored=30)
    told = {"not_looked_up": 29}
    store.write(lambda writing: add_self_report(writing, writing.crawl("weekly"), told))
    assert problems(store) == []
