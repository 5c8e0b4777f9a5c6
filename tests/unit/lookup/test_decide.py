"""`dedupindex.lookup.decide`: strategies, conditions, bounds and explanations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dedupindex.capture import Capture, Covers, Evidence
from dedupindex.digest import EMPTY, Digest, Spelling
from dedupindex.errors import BadQuery, IndexUnavailable, StrategyUnavailable
from dedupindex.index import open_index
from dedupindex.index.identity import Settings
from dedupindex.lookup.conditions import LONGEST_AGE, parse_age, parse_date
from dedupindex.lookup.decide import LIMIT, Answer, Decision, Match, Query, Strategy, as_json, find
from dedupindex.lookup.explain import MAX_CONSIDERED, explanation_json
from dedupindex.lookup.render_json import header_lines, original_as_json
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1

Ask = Callable[[Iterable[Capture], Query], Answer | None]
PAGE = b"http://example.com/page"
COUSIN = b"https://www.Example.com/Page/"  # another URL with the same urlkey
OTHER = b"http://other.example/copy"


@pytest.fixture
def ask(make_index: MakeIndex) -> Ask:
    def asked(captures: Iterable[Capture], query: Query) -> Answer | None:
        with closing(open_index(make_index(captures))) as engine, engine.view() as view:
            return find(view, engine.identity.settings, query)

    return asked


def test_exact_url_is_preferred_to_canonical_url_to_any_digest(ask: Ask) -> None:
    stored = [capture(1, OTHER, 1), capture(1, COUSIN, 2), capture(1, PAGE, 3)]
    for number, match in ((3, Match.EXACT_URL), (2, Match.CANONICAL_URL), (1, Match.DIGEST)):
        answer = ask(stored[:number], Query(sha1(1), PAGE))
        assert answer == Answer(match, stored[number - 1])


@pytest.mark.parametrize(
    ("strategy", "found"),
    [
        (Strategy.EXACT_URL, [PAGE]),
        (Strategy.CANONICAL_URL, [PAGE, COUSIN]),
        (Strategy.DIGEST_ANY, [PAGE, COUSIN, OTHER]),
    ],
)
def test_a_strategy_finds_only_its_own_match_classes(
    ask: Ask, strategy: Strategy, found: list[bytes]
) -> None:
    for url in (PAGE, COUSIN, OTHER):
        answer = ask([capture(1, url)], Query(sha1(1), PAGE, strategy))
        assert (answer is not None) == (url in found)


def test_without_a_url_the_earliest_is_found(ask: Ask) -> None:
    stored = [capture(1, b"http://h%d.example/" % day, day) for day in (5, 3, 9)]
    answer = ask(stored, Query(sha1(1)))
    assert answer == Answer(Match.DIGEST, stored[1])


def test_another_digest_is_a_miss(ask: Ask) -> None:
    assert ask([capture(1, PAGE)], Query(sha1(2), PAGE)) is None
    assert ask([capture(1, PAGE)], Query(Digest("md5", b"x" * 16), PAGE)) is None


@pytest.mark.parametrize("digest", sorted(EMPTY))
def test_the_empty_payload_never_has_an_original(ask: Ask, digest: Digest) -> None:
    stored = capture(1, PAGE)._replace(digest=digest)
    assert ask([stored], Query(digest, PAGE)) is None


@pytest.mark.parametrize(
    ("condition", "passes"),
    [
        ({"as_of": b"2026-11-04T00:00:00Z"}, False),
        ({"as_of": b"2026-11-05T09:14:17Z"}, True),
        ({"as_of": b"2026-11-06T09:14:17Z", "max_age": 86400}, True),
        ({"as_of": b"2026-11-06T09:14:18Z", "max_age": 86400}, False),
        ({"min_size": 1001}, True),
        ({"min_size": 1002}, False),
        ({"not_record": capture(1, PAGE, 5).record_id}, False),
        ({"not_record": b"urn:uuid:other"}, True),
        ({"not_date": b"2026-11-05T09:14:17Z"}, False),
        ({"not_date": b"2026-11-05T09:14:18Z"}, True),
    ],
)
def test_conditions(ask: Ask, condition: dict[str, object], passes: bool) -> None:
    query = Query(sha1(1), PAGE, **condition)  # type: ignore[arg-type]
    assert (ask([capture(1, PAGE, 5)], query) is not None) is passes


def test_a_size_that_is_not_of_the_payload_does_not_meet_min_size(ask: Ask) -> None:
    for stored in (capture(1, PAGE, size=-1), capture(1, PAGE, size_of_record=True)):
        assert ask([stored], Query(sha1(1), PAGE, min_size=1)) is None
        assert ask([stored], Query(sha1(1), PAGE)) is not None


def test_a_record_never_finds_itself_but_the_next_best(ask: Ask) -> None:
    stored = [capture(1, PAGE, 1), capture(1, OTHER, 2)]
    answer = ask(stored, Query(sha1(1), PAGE, not_record=stored[0].record_id))
    assert answer == Answer(Match.DIGEST, stored[1])


def test_the_exact_url_is_found_beyond_the_limit_of_captures(ask: Ask) -> None:
    stored = [capture(1, b"http://h.example/%d" % n, 1 + n % 28) for n in range(10 * LIMIT)]
    for wanted in stored[:: 3 * LIMIT]:
        assert ask(stored, Query(sha1(1), wanted.url)) == Answer(Match.EXACT_URL, wanted)
    assert ask(stored, Query(sha1(1), PAGE)) is not None


@pytest.mark.parametrize("place", [0, 50, 399, 777])
def test_one_capture_of_many_that_meets_the_conditions_is_found(ask: Ask, place: int) -> None:
    stored = [capture(1, b"http://h.example/%d" % n, 9 if n != place else 1) for n in range(800)]
    query = Query(sha1(1), PAGE, as_of=b"2026-11-02T00:00:00Z")
    assert ask(stored, query) == Answer(Match.DIGEST, stored[place])


def test_a_strategy_that_the_index_cannot_answer_is_refused_by_name(make_index: MakeIndex) -> None:
    for chosen, strategy, word in (
        (Settings(url_index=False, canonical=False), Strategy.EXACT_URL, "--no-url-index"),
        (Settings(url_index=False, canonical=False), Strategy.CANONICAL_URL, "--no-url-index"),
        (Settings(canonical=False), Strategy.CANONICAL_URL, "--no-canonicalized"),
    ):
        index = make_index([capture(1, PAGE)], chosen)
        with (
            closing(open_index(index)) as engine,
            engine.view() as view,
            pytest.raises(StrategyUnavailable, match=word),
        ):
            find(view, chosen, Query(sha1(1), PAGE, strategy))


def test_the_match_class_is_calculated_even_without_urls_in_the_index(
    make_index: MakeIndex,
) -> None:
    chosen = Settings(url_index=False, canonical=False)
    index = make_index([capture(1, PAGE)], chosen)
    with closing(open_index(index)) as engine, engine.view() as view:
        for url, match in (
            (PAGE, Match.EXACT_URL),
            (COUSIN, Match.CANONICAL_URL),
            (OTHER, Match.DIGEST),
        ):
            answer = find(view, chosen, Query(sha1(1), url))
            assert answer is not None and answer.match is match


def test_a_strategy_that_needs_a_url_is_refused_without_one(ask: Ask) -> None:
    with pytest.raises(BadQuery, match="needs a url"):
        ask([], Query(sha1(1), b"", Strategy.EXACT_URL))


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("DIGEST_ANY", Strategy.DIGEST_ANY),
        ("digest_url_preferred", Strategy.DIGEST_ANY),
        ("URL_EXACT", Strategy.EXACT_URL),
        ("URL_CANONICAL", Strategy.CANONICAL_URL),
    ],
)
def test_both_sets_of_strategy_names_are_accepted(name: str, strategy: Strategy) -> None:
    assert Strategy.parse(name) is strategy


def test_the_refusal_of_an_unknown_strategy_lists_the_names() -> None:
    with pytest.raises(BadQuery, match="EXACT_URL"):
        Strategy.parse("NEAREST")


def test_explain_gives_a_verdict_for_each_capture(make_index: MakeIndex) -> None:
    stored = [capture(1, PAGE, 9), capture(1, COUSIN, 2), capture(1, OTHER, 1)]
    query = Query(sha1(1), PAGE, as_of=b"2026-11-05T00:00:00Z")
    with closing(open_index(make_index(stored))) as engine, engine.view() as view:
        explanation = explanation_json(view, engine.identity.settings, query)
    verdicts = {
        PAGE: ("exact_url", "captured after as_of 2026-11-05T00:00:00Z"),
        COUSIN: ("canonical_url", "chosen"),
        OTHER: ("digest", "not preferred: canonical_url goes first"),
    }
    assert explanation == {
        "considered": [
            {
                "match": match,
                "verdict": verdict,
                "original": {**original_as_json(found), "crawl": None},
            }
            for found, (match, verdict) in zip(stored, verdicts.values(), strict=True)
        ]
    }
    with closing(open_index(make_index(stored))) as engine, engine.view() as view:
        others = explanation_json(view, engine.identity.settings, Query(sha1(1)))["considered"]
    assert [one["verdict"] for one in others if one["original"]["url"] != OTHER.decode()] == [
        "not preferred: the chosen one is earlier"
    ] * 2


def test_an_explanation_is_bounded_and_has_the_chosen_one(make_index: MakeIndex) -> None:
    stored = [capture(1, b"http://example.com/%d" % n, day=2) for n in range(3 * MAX_CONSIDERED)]
    good = capture(1, b"http://example.com/good", day=1)
    query = Query(sha1(1), PAGE, as_of=b"2026-11-01T23:00:00Z")
    with closing(open_index(make_index([*stored, good]))) as engine, engine.view() as view:
        explanation = explanation_json(view, engine.identity.settings, query)
    considered = explanation["considered"]
    assert explanation["more"] and len(considered) == MAX_CONSIDERED
    chosen = [one["original"]["url"] for one in considered if one["verdict"] == "chosen"]
    assert chosen == ["http://example.com/good"]


def test_an_unreadable_index_is_never_a_miss(tmp_path: Path, make_index: MakeIndex) -> None:
    with pytest.raises(IndexUnavailable):
        open_index(tmp_path / "nothing")
    index = make_index([capture(1, PAGE)])
    for data in index.glob("data-*.mdb"):
        data.unlink()
    with pytest.raises(IndexUnavailable):
        open_index(index)


def test_an_answer_has_the_exact_values_of_the_revisit_header(ask: Ask) -> None:
    stored = capture(
        1,
        "http://example.com/caf\u00e9?a=1&b= 2".encode(),
        date=b"2026-11-01T09:14:17.123456Z",
        evidence=Evidence.RECORD,
    )._replace(spelling=Spelling(1, 2))
    answer = ask([stored], Query(sha1(1)))
    assert answer is not None
    original = as_json(Decision(answer))["original"]
    assert original["url"] == stored.url.decode()
    assert original["date"] == "2026-11-01T09:14:17.123456Z"
    assert original["digest"] == "sha1:" + sha1(1).raw.hex()
    assert header_lines(answer.original) == (
        b"WARC-Refers-To: <%b>\r\nWARC-Refers-To-Target-URI: %b\r\nWARC-Refers-To-Date: %b\r\n"
        % (stored.record_id, stored.url, stored.date)
    )


def test_a_miss_as_json() -> None:
    assert as_json(Decision(None)) == {"duplicate": False}


@pytest.mark.parametrize(
    ("text", "age"), [("90", 90), ("90s", 90), ("15m", 900), ("12h", 43200), ("30d", 2592000)]
)
def test_ages(text: str, age: int) -> None:
    assert parse_age(text) == age


@pytest.mark.parametrize("text", ["999999999999", "31000y", "11000000d"])
def test_ages_up_to_a_limit(text: str) -> None:
    assert 0 <= parse_age(text) <= LONGEST_AGE < 2**63


@pytest.mark.parametrize(
    "text", ["", "d", "-1", "1w", "1e9", "１d", "999999999999y", "999999999999m", "32000y"]
)
def test_odd_ages_are_refused(text: str) -> None:
    with pytest.raises(BadQuery):
        parse_age(text)


def test_dates() -> None:
    assert parse_date("20261120091417", days=True) == b"2026-11-20T09:14:17Z"
    assert parse_date("2026-11-20", days=True) == b"2026-11-20T23:59:59.999999999Z"
    assert parse_date("2026-11-20T09:14:17.5Z", days=True) == b"2026-11-20T09:14:17.5Z"
    with pytest.raises(BadQuery):
        parse_date("yesterday", days=True)


@pytest.mark.parametrize("last", ["2026-12-31T23:59:59Z", "2026-12-31T23:59:59.500Z"])
def test_a_day_is_meant_to_its_end(ask: Ask, last: str) -> None:
    stored = capture(1, PAGE)._replace(date=last.encode())
    for text, found in (
        *(("2026", True), ("2026-12", True), ("20261231", True), ("2026-12-30", False)),
        *((last, True), ("2026-12-31T23:59:58Z", False)),
    ):
        query = Query(sha1(1), PAGE, as_of=parse_date(text, days=True), max_age=86400)
        assert (ask([stored], query) is not None) is found, text


def test_originals_with_other_digests_answer_only_with_bridge(
    make_index: MakeIndex,
) -> None:
    other = Digest("sha256", b"x" * 32)
    stored = [
        capture(1, PAGE, covers=Covers.STORED, also=(other,)),
        capture(2, PAGE, covers=Covers.BOTH),
        capture(3, PAGE),
    ]
    with closing(open_index(make_index(stored))) as engine, engine.view() as view:

        def ask(digest: Digest, **more: Any) -> bool:
            query = Query(digest, PAGE, **more)
            return find(view, engine.identity.settings, query) is not None

        assert not ask(other) and ask(other, bridge=True)
        assert ask(sha1(1)) and ask(sha1(1), covers=Covers.STORED)
        assert not ask(sha1(1), covers=Covers.ENTITY)
        assert ask(sha1(1), covers=Covers.ENTITY, bridge=True)
        for number in (2, 3):  # of the last it is not known
            assert all(ask(sha1(number), covers=covers) for covers in Covers)


@pytest.mark.parametrize(
    ("typed", "date"),
    [
        ("2026", b"2026-12-31T23:59:59.999999999Z"),
        ("2024-02", b"2024-02-29T23:59:59.999999999Z"),
        ("202602", b"2026-02-28T23:59:59.999999999Z"),
        ("2026-11-20", b"2026-11-20T23:59:59.999999999Z"),
        ("20261120", b"2026-11-20T23:59:59.999999999Z"),
        ("20261120091417", b"2026-11-20T09:14:17Z"),
        ("2026-11-20T09:14:17.5Z", b"2026-11-20T09:14:17.5Z"),
    ],
)
def test_a_period_is_meant_to_its_end(typed: str, date: bytes) -> None:
    assert parse_date(typed, days=True) == date
    if len(typed) < 14:
        with pytest.raises(BadQuery):
            parse_date(typed)


@pytest.mark.parametrize("typed", ["0000", "2026-13", "2026-00", "2026-02-30", "2026-1", "soon"])
def test_what_is_no_date(typed: str) -> None:
    with pytest.raises(BadQuery, match="a date is written 2026, 2026-11, 2026-11-20, 2026-11-20T"):
        parse_date(typed, days=True)
