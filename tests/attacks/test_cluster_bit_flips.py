"""A flipped bit in a column of a cluster's tables never gives a wrong answer.

Keys are left out: a row with a flipped key is not found, and its checksum covers the key, too.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dedupindex.cli.maintenance import read_back
from dedupindex.crawls import crawl_captures, lifecycle, merge_crawls, statistics
from dedupindex.crawls.combined_view import CrawlSnapshot
from dedupindex.crawls.counting import NO_ORIGINAL, LookupCounter, add_counted
from dedupindex.crawls.crawl_captures import add, of_crawl
from dedupindex.crawls.parse_report import add_self_report, self_report_of
from dedupindex.crawls.statistics_keys import StatisticsKind, key_of
from dedupindex.crawls.store import Writing
from dedupindex.crawls.stores import make_store
from dedupindex.crawls.stores.cassandra_crawl_store import CassandraStore
from dedupindex.errors import Damaged, DedupError, FormatFromPast, IndexUnavailable
from dedupindex.index import open_index
from dedupindex.index.address import Address
from dedupindex.index.engines.cassandra.cassandra_engine import CassandraEngine
from dedupindex.index.engines.cassandra.cql import Row, Session, Statement, Use
from dedupindex.index.format.cells import ContainerRef, digest_prefix
from dedupindex.index.identity import Settings
from dedupindex.indexer.admission import admission_filter
from dedupindex.indexer.pipeline import Build, build
from dedupindex.lookup.decide import Query, find
from tests.peers.cassandra import Keyspaces
from tests.support.captures import capture, sha1
from tests.unit.indexer.test_spot_check import rows

pytestmark = pytest.mark.peer
SETTINGS = Settings()
NUMBERS = range(1, 7)
COLUMNS = {  # of each table: its keys, and what is stored under them
    "capture": (("dk", "live", "rest", "crawl"), ("cell",)),
    "place": (("number",), ("container", "crawl")),
    "number": (("place",), ("number",)),
    "container": (("name",), ("about",)),
    "crawl": (("shelf", "number"), ("about",)),
    "claim": (("dk", "namespace"), ("crawl", "until", "secret")),
    "statistic": (
        ("crawl", "kind", "part", "heading", "writer", "since"),
        ("amounts",),
    ),
    "ledger": (("dk", "rest", "id"), ("body",)),
    "about": (("name",), ("value",)),
}
BITS = {"crawl": 32, "until": 64, "number": 64}  # of columns that are integers
UNCHECKED = {"claim"}  # end by themselves before anybody has read them back
REFUSED = "refused"
Answers = dict[str, Any]


@pytest.fixture
def index(keyspaces: Keyspaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An index on a cluster with crawls that have asked, claimed and reported."""
    monkeypatch.setattr("dedupindex.crawls.stores.cassandra_crawl_registry.AGE", 0.0)
    with keyspaces.some() as address:
        made = tmp_path / "index"
        job = Build([str(rows(tmp_path / "a.cdx", 1, 7))], made, engine=address(), crawl="weekly")
        build(job)
        again = rows(tmp_path / "copies.cdx", 1, 7)  # copies: the ledger has them
        again.write_text(again.read_text().replace(" 20261101", " 20261102"))
        build(replace(job, sources=[str(again)], add=True))
        with closing(make_store(made)) as store:
            for name in ("done", "gone", "going"):
                store.write(partial(lifecycle.begin, name=name))
                store.write(partial(_report_captures, name=name))
            store.write(partial(lifecycle.commit, name="done"))
            store.write(partial(lifecycle.cancel, name="gone"))
        yield made


def _report_captures(writing: Writing, name: str) -> None:
    crawl, counting = writing.crawl(name), LookupCounter()
    url = b"http://example.com/%d"
    captures = [capture(n + 3, url % (n + 3), container=f"{name}.warc") for n in NUMBERS]
    add(writing, crawl, captures, SETTINGS, admission_filter(SETTINGS))
    for number in NUMBERS:
        counting.count_lookup(
            (name, "EXACT_URL", b"http://%d.example/" % number, NO_ORIGINAL, 7, 1000)
        )
    add_counted(writing, counting.take())
    add_self_report(writing, crawl, {"not_looked_up": 3})
    crawl_captures.claim(writing, crawl, sha1(100), int(time.time() * 1000), 3600)


def answers(index: Path) -> Answers:
    """Return all answers, on new connections."""
    results: Answers = {}
    with closing(make_store(index)) as store, closing(open_index(index)) as engine:
        assert isinstance(engine, CassandraEngine)
        with engine.view() as view:
            results |= _answer("captures", lambda: sorted(view.captures()))
            results |= _answer("places", lambda: sorted(view.places()))
            results |= _answer("containers", lambda: sorted(view.containers()))
            results |= _answer("counts", view.counts)
            for name in ("0.warc.gz", "1.warc.gz", "2.warc.gz"):
                results |= _answer(name, partial(engine.number_of, ContainerRef(name, "weekly")))
        results |= _answer("next number", engine.next_number)
        with store.reading() as reading:
            results |= _crawl_answers(reading)
            for crawl in ("", "going"):
                for number in range(1, 12):
                    name = f"lookup {number} of {crawl!r}"
                    query = _query(number)
                    results |= _answer(name, partial(_lookup, engine, reading, crawl, query))
    return results


def _query(number: int) -> Query:
    return Query(sha1(number), b"http://example.com/%d" % number)


def _lookup(engine: CassandraEngine, reading: Any, crawl: str, query: Query) -> Any:
    with engine.view() as view:
        return find(CrawlSnapshot(reading).view_for(view, SETTINGS.keys(), crawl), SETTINGS, query)


def _crawl_answers(reading: Any) -> Answers:
    answers = _answer("claims", lambda: sorted(reading.claims(digest_prefix(sha1(100)))))
    for crawl in reading.crawls():
        answers[f"crawl {crawl.name}"] = crawl.stored()
        for name, ask in (
            (
                "captures",
                lambda c: [captured.capture(reading, c.name) for captured in of_crawl(reading, c)],
            ),
            ("counts", reading.counts),
            ("self report", partial(self_report_of, reading)),
            ("times", partial(statistics.times, reading)),
            ("total", partial(statistics.total, reading)),
            *(
                (kind.name, lambda c, k=kind: list(reading.statistics(key_of(c.number, k))))
                for kind in StatisticsKind
            ),
        ):
            answers |= _answer(f"{name} of {crawl.name}", partial(ask, crawl))
    return answers


def _answer(name: str, ask: Callable[[], Any]) -> Answers:
    """Return an answer, or that it was refused, under its name."""
    try:
        return {name: ask()}
    except Damaged:
        return {name: REFUSED}


def table_rows(session: Session, keyspace: str, table: str) -> list[Row]:
    """Return the rows of a table that have values: their keys, then their columns."""
    keys, columns = COLUMNS[table]
    statement = Statement(
        f"SELECT {', '.join((*keys, *columns))} FROM {keyspace}.{table}", Use.WRITE
    )
    rows = [row for page in session.scan(statement) for row in page]
    return [row for row in rows if None not in row and row[0] != "lease"]


def flip_bit(value: Any, bits: int, chance: Random) -> Any:
    """Return the value with one bit flipped; text remains ASCII."""
    if isinstance(value, int):
        raw = bytearray((value % (1 << bits)).to_bytes(bits // 8, "big"))
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        return int.from_bytes(raw, "big", signed=True)
    raw = bytearray(value.encode() if isinstance(value, str) else bytes(value))
    raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(7 if isinstance(value, str) else 8)
    return raw.decode() if isinstance(value, str) else bytes(raw)


@pytest.mark.parametrize("table", COLUMNS)
def test_a_flipped_bit_of_a_column_is_refused(
    index: Path, table: str, chance: Random, effort: int
) -> None:
    tally, wrong = Counter[str](), list[str]()
    with closing(make_store(index)) as store:
        assert isinstance(store, CassandraStore)
        session, keyspace = store.session, Address.parse(_engine_of(index)).keyspace
        before, (keys, columns) = answers(index), COLUMNS[table]
        assert REFUSED not in before.values() and read_back(index)[0] == []
        for _ in range(effort):
            for place, column in enumerate(columns, len(keys)):
                row = chance.choice(
                    [
                        candidate
                        for candidate in table_rows(session, keyspace, table)
                        if candidate[place]
                    ]
                )
                where = " AND ".join(f"{key} = ?" for key in keys)
                put = Statement(
                    f"UPDATE {keyspace}.{table} SET {column} = ? WHERE {where}",
                    Use.WRITE,
                )
                value = flip_bit(row[place], BITS.get(column, 0), chance)
                key = row[: len(keys)]
                session.execute(put, value, *key)
                flip = f"{table}.{column} {key}: {row[place]!r} is {value!r}"
                tally[_compare_answers(index, before, table, wrong, flip)] += 1
                session.execute(put, row[place], *key)
        assert answers(index) == before
    print(table, dict(tally))
    assert not wrong, "\n".join(wrong[:20])


def _engine_of(index: Path) -> str:
    with closing(open_index(index)) as engine:
        return engine.identity.engine


def _compare_answers(index: Path, before: Answers, table: str, wrong: list[str], flip: str) -> str:
    """Return the effect on the answers, and add wrong ones to `wrong`."""
    refused = False
    try:
        after = answers(index)
    except (Damaged, FormatFromPast, IndexUnavailable):
        refused = True
    else:
        for name, answer in after.items():
            refused |= answer == REFUSED
            if answer != REFUSED and answer != before[name]:
                wrong.append(f"{flip}: {name}: {answer} and not {before[name]}")
    try:
        is_found = bool(read_back(index)[0])
    except DedupError:
        is_found = True
    if not is_found and table not in UNCHECKED:
        wrong.append(f"{flip}: --check does not find it")
    return REFUSED if refused else "the same"


def test_a_lost_name_of_a_container_is_found_and_refuses_no_other_lookup(index: Path) -> None:
    before, keyspace = answers(index), Address.parse(_engine_of(index)).keyspace
    remove = Statement(f"DELETE FROM {keyspace}.place WHERE number = ?", Use.WRITE)
    with closing(make_store(index)) as store, closing(open_index(index)) as engine:
        assert isinstance(store, CassandraStore) and isinstance(engine, CassandraEngine)
        [number] = [
            row[0]
            for row in table_rows(store.session, keyspace, "place")
            if bytes(row[1]).startswith(b"going.warc")
        ]
        store.session.execute(remove, number)
        assert [problem for problem in read_back(index)[0] if "crawl going" in problem]
        after = answers(index)
        changed = {name for name, answer in after.items() if answer != before[name]} - {"places"}
        assert changed and {after[name] for name in changed} == {REFUSED}
        assert all("going" in name for name in changed)


def test_numbers_of_containers_are_never_counted_from_one_again(index: Path) -> None:
    """As they were where the key of the row flipped that has the next one."""
    before, keyspace = answers(index), Address.parse(_engine_of(index)).keyspace
    remove = Statement(f"DELETE FROM {keyspace}.about WHERE name = 'next_number'", Use.WRITE)
    with closing(make_store(index)) as store:
        assert isinstance(store, CassandraStore)
        store.session.execute(remove)
    assert any("next_number" in problem for problem in read_back(index)[0])
    more = rows(index.parent / "b.cdx", 7, 20)
    more.write_text(more.read_text().replace(".warc.gz", ".arc.gz"))
    with pytest.raises(Damaged, match="next_number"):
        build(Build([str(more)], index, engine=_engine_of(index), add=True))
    after = answers(index)
    assert {name for name in after if after[name] != before[name]} == {"next number"}


def test_a_damaged_name_of_a_container_refuses_no_other_lookup_of_a_batch(index: Path) -> None:
    keyspace = Address.parse(_engine_of(index)).keyspace
    put = Statement(f"UPDATE {keyspace}.place SET container = ? WHERE number = ?", Use.WRITE)
    with closing(make_store(index)) as store, closing(open_index(index)) as engine:
        assert isinstance(store, CassandraStore) and isinstance(engine, CassandraEngine)
        for number, name, _ in table_rows(store.session, keyspace, "place"):
            if bytes(name).startswith(b"1.warc.gz"):
                store.session.execute(put, bytes(name)[:-1], number)
        with engine.view() as view:
            view.prefetch(map(sha1, NUMBERS))
            results = [_answer("", partial(find, view, SETTINGS, _query(n)))[""] for n in NUMBERS]
        assert [result == REFUSED for result in results] == [number % 3 == 1 for number in NUMBERS]


def test_crawls_with_a_damaged_row_are_swept(index: Path) -> None:
    with closing(make_store(index)) as store:
        assert isinstance(store, CassandraStore)
        session, keyspace = store.session, Address.parse(_engine_of(index)).keyspace
        rows = [row for row in table_rows(session, keyspace, "capture") if row[3] == 2]
        put = Statement(
            f"UPDATE {keyspace}.capture SET cell = ? "
            "WHERE dk = ? AND live = ? AND rest = ? AND crawl = ?",
            Use.WRITE,
        )
        session.execute(put, bytes(rows[0][4])[:-1] + b"?", *rows[0][:4])
        merge_crawls.sweep(store, 0.0, {})
        with store.reading() as reading:
            assert reading.crawl("gone").swept and not reading.crawl("going").swept
        left = [row for row in table_rows(session, keyspace, "capture") if row[1] == 1]
        assert {row[3] for row in left} == {1, 3} and len(left) == 2 * len(NUMBERS)
