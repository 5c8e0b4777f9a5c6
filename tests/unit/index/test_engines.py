"""What every engine must do; an engine in `dedupindex.index.ENGINES` is tested as it is."""

from __future__ import annotations

import json
import random
import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex import index
from dedupindex.capture import Capture, Evidence
from dedupindex.digest import Digest
from dedupindex.errors import (
    Damaged,
    FormatFromFuture,
    IndexUnavailable,
    SettingsConflict,
    StrategyUnavailable,
)
from dedupindex.index import open_index
from dedupindex.index.engine import PURGES_KEPT, IndexedContainer, Load
from dedupindex.index.engines.lmdb.lmdb_engine import LmdbEngine
from dedupindex.index.format import cells
from dedupindex.index.format.cells import ContainerRef
from dedupindex.index.format.visits import Visit
from dedupindex.index.identity import FILE, Settings, read_identity
from dedupindex.index.load.runs import RunWriter
from dedupindex.indexer.copy_index import copy_to_engine
from dedupindex.lookup.decide import Match, Query, Strategy, find
from dedupindex.urlkey import urlkey
from tests.conftest import ENGINES, On
from tests.support.budgets import examples
from tests.support.captures import capture, sha1
from tests.support.engine_bench import Bench
from tests.unit.index.test_merge_rule import conflicting, model, same

FILES = list(index.ENGINES)
# What a cluster does not do, by design: its data is in no files here, so nothing is to be copied,
# damaged, cut, packed or left behind; no state of it lasts while others write; a load is not there
# whole or not at all, but run again. `peers/test_cassandra.py` has what it does instead.
of_files = pytest.mark.parametrize("make", FILES, indirect=True)
A, WWW, B = b"http://example.com/a", b"https://www.example.com/a", b"http://other.org/b"

Make = Callable[..., Bench]


@pytest.fixture(params=ENGINES)
def make(request: pytest.FixtureRequest, tmp_path: Path, on: On) -> Iterator[Make]:
    count = iter(range(100))
    with on(request.param) as engine:

        def make(settings: Settings | None = None) -> Bench:
            return Bench(tmp_path / f"bench-{next(count)}", engine(), settings)

        yield make


@pytest.fixture
def bench(make: Make) -> Bench:
    return make()


def some(first: int, last: int, day: int = 1) -> list[Capture]:
    """Captures of numbers `first` to `last`, each of a digest and a URL of its own."""
    return [
        capture(number, b"http://h%d.example.com/p/%d" % (number % 7, number), day)
        for number in range(first, last)
    ]


def test_visits_are_kept_or_refused(make: Make, tmp_path: Path) -> None:
    bench = make(Settings(etag=True))
    bench.load([capture(1, A)])
    keys = bench.settings.keys()
    visits = [Visit.of(capture(number, url, day)) for number, url, day in
              [(1, A, 1), (1, A, 3), (2, A, 2), (1, B, 1), (1, WWW, 4)]]  # fmt: skip
    writer = RunWriter(tmp_path, "visits")
    writer.extend([visit.item(keys) for visit in visits])
    writer.flush()
    with bench.open(write=True) as engine:
        engine.load(Load(ledger=writer.paths))
    with bench.open() as engine, engine.view() as view:
        if not bench.packs:
            with pytest.raises(StrategyUnavailable, match="on a cluster"):
                engine.visits(view, keys.tail(A))
            return
        of_url, of_urlkey, none = (
            list(map(Visit.parse, engine.visits(view, prefix)))
            for prefix in (keys.tail(A), keys.tail(A)[:4], keys.tail(b"http://c.example/"))
        )
        assert (of_url, none) == ([visits[1], visits[2]], [])  # the last one of each payload
        assert sorted(of_urlkey) == sorted([visits[1], visits[2], visits[4]])
        assert engine.check() == []


# --- what is found -------------------------------------------------------------------------------


def test_exact_canonical_and_any(bench: Bench) -> None:
    items = [capture(1, A), capture(1, WWW, 2), capture(1, B, 3), capture(2, A)]
    outcome = bench.load(items)
    assert (outcome.added, outcome.captures, outcome.digests) == (4, 4, 2)
    with bench.view() as view:
        assert view.exact(sha1(1), WWW) == [items[1]]
        assert view.exact(sha1(1), b"http://example.com/A") == []
        assert sorted(view.canonical(sha1(1), urlkey(A), 10)) == sorted(items[:2])
        assert len(view.canonical(sha1(1), urlkey(A), 1)) == 1
        assert sorted(view.any(sha1(1), 10)) == sorted(items[:3])
        assert len(view.any(sha1(1), 2)) == 2
        assert view.any(sha1(1), 0) == view.any(sha1(3), 10) == view.exact(sha1(3), A) == []
        assert view.canonical(sha1(2), urlkey(B), 10) == []
        assert view.counts()[:2] == (4, 2)


def test_captures_are_read_from_a_key_on(bench: Bench) -> None:
    items = some(1, 60) + [capture(1, A), capture(1, B)]
    bench.load(items)
    with bench.view() as view:
        whole = list(view.captures_by_key())
        assert sorted(one for _, one in whole) == sorted(items)
        assert [key for key, _ in whole] == sorted(key for key, _ in whole)
        for at in (0, 1, 30, len(whole) - 1):
            assert list(view.captures_by_key(whole[at][0])) == whole[at:]
        between = whole[30][0][:-1] + bytes([whole[30][0][-1] ^ 1])
        assert list(view.captures_by_key(between)) == [one for one in whole if one[0] >= between]
        assert list(view.captures_by_key(b"\xff")) == []


def test_lookups_find_by_every_strategy(bench: Bench) -> None:
    bench.load([capture(1, A), capture(2, B)])
    settings = bench.settings
    with bench.view() as view:
        for url, match in ((A, Match.EXACT_URL), (WWW, Match.CANONICAL_URL), (B, Match.DIGEST)):
            answer = find(view, settings, Query(sha1(1), url))
            assert answer is not None
            assert (answer.match, answer.original) == (match, capture(1, A))
        assert find(view, settings, Query(sha1(1), WWW, Strategy.EXACT_URL)) is None
        assert find(view, settings, Query(sha1(1), B, Strategy.CANONICAL_URL)) is None
        assert find(view, settings, Query(sha1(3), A)) is None


def test_digests_that_are_prefixes_of_others_are_not_mixed_up(bench: Bench) -> None:
    long, short = Digest("blake3", bytes(32)), Digest("md5", bytes(16))
    digests = [Digest("sha256", bytes(32)), long, short, Digest("sha512", bytes(64))]
    items = [capture(1, A)._replace(digest=digest) for digest in digests]
    bench.load(items)
    with bench.view() as view:
        for item in items:
            assert view.any(item.digest, 10) == [item]
        assert view.counts()[:2] == (4, 4)
        assert [digest for digest, _ in view.captures()] == [
            short,
            digests[0],
            digests[3],
            long,
        ]


def test_every_field_is_kept(make: Make) -> None:
    bench = make(Settings(etag=True))
    item = capture(
        1,
        b"http://example.com/caf\xc3\xa9?q=\xff",
        date=b"2026-11-20T09:14:17.123456789Z",
        evidence=Evidence.ROW,
        status=404,
        mime=b"x-odd/type",
        size=1 << 40,
        record_id=b"odd:id",
        etag=b'"e"',
        last_modified=b"yesterday",
    )
    bench.load([item])
    assert bench.held() == [(item.digest, item)]
    with bench.view() as view:
        assert view.exact(item.digest, item.url) == [item]


def test_captures_come_in_the_order_of_digests(bench: Bench) -> None:
    items = some(0, 60)
    bench.load(items[20:])
    bench.load(items[:20])
    assert [digest for digest, _ in bench.held()] == sorted(item.digest for item in items)


# --- which captures are kept ----------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=examples(20))
@given(
    st.lists(conflicting, min_size=1, max_size=12).flatmap(st.permutations),
    st.lists(st.integers(0, 12), max_size=2),
)
def test_any_order_and_splitting_ends_in_the_same_index(
    on: On, engine: str, items: list[Capture], cuts: list[int]
) -> None:
    places = [0, *sorted(cuts), len(items)]
    with tempfile.TemporaryDirectory() as directory, on(engine) as name:
        bench = Bench(Path(directory), name())
        for start, end in zip(places, places[1:], strict=False):
            bench.load(items[start:end])
            held, counts = bench.held(), bench.counts()
            assert counts.captures == len(held)
            assert counts.digests == len({digest for digest, _ in held})
        assert same(held, model(items, bench.settings.keys(), "earliest"))
        with bench.open() as engine_:
            assert engine_.check() == []


def test_the_earliest_is_kept_in_either_order(make: Make) -> None:
    for days in ((2, 1, 3), (1, 3, 2), (3, 2, 1)):
        bench = make()
        outcomes = [bench.load([capture(1, A, day)]) for day in days]
        assert bench.held() == [(sha1(1), capture(1, A, 1))]
        assert sum(outcome.captures for outcome in outcomes) == 1
        assert sum(outcome.added for outcome in outcomes) == 1


def test_keep_latest(make: Make) -> None:
    for days in ((2, 1, 3), (1, 3, 2), (3, 2, 1)):
        bench = make(Settings(keep="latest"))
        for day in days:
            bench.load([capture(1, A, day)])
        assert bench.held() == [(sha1(1), capture(1, A, 3))]


@pytest.mark.parametrize(
    ("winner", "loser"),
    [
        ({"evidence": Evidence.RECORD, "container": "z"}, {"evidence": Evidence.ROW}),
        ({"evidence": Evidence.ROW, "container": "z"}, {"evidence": Evidence.NAMED}),
        ({"container": "z"}, {"date": b"2026-11-01T09:14:17.1Z"}),
        ({"date": b"2026-11-01T09:14:17.12Z"}, {"date": b"2026-11-01T09:14:17.2Z"}),
        ({"container": "a", "offset": 9}, {"container": "b", "offset": 1}),
        ({"container": "a"}, {"container": ""}),
        ({"offset": 1}, {"offset": 9}),
        ({"offset": 9}, {"offset": -1}),
    ],
)
def test_ties_within_a_second(
    winner: dict[str, object], loser: dict[str, object], make: Make
) -> None:
    better, worse = capture(1, A, **winner), capture(1, A, **loser)  # type: ignore[arg-type]
    for items in ([[better, worse]], [[better], [worse]], [[worse], [better]]):
        bench = make()
        for part in items:
            bench.load([capture(2, B, container="b"), *part])
        assert (sha1(1), better) in bench.held()
        assert bench.counts()[:2] == (2, 2)


@pytest.mark.parametrize("marker_first", [True, False])
@pytest.mark.parametrize(("claimed", "kept"), [(1, True), (2, False), (3, False)])
def test_a_claim_that_names_a_revisit_is_no_original(
    marker_first: bool, claimed: int, kept: bool, make: Make
) -> None:
    marker = capture(1, A, 2, evidence=Evidence.REVISIT)
    claim = capture(1, A, claimed, evidence=Evidence.NAMED, container="")
    together, separate = make(), make()
    together.load([marker, claim])
    for item in (marker, claim) if marker_first else (claim, marker):
        separate.load([item])
    expected = [(claim.digest, claim)] if kept else []
    assert together.held() == separate.held() == expected
    assert together.counts()[:2] == separate.counts()[:2] == (len(expected), len(expected))
    with separate.view() as view:
        assert [item for item in view.any(sha1(1), 10)] == [item for _, item in expected]
        assert view.exact(sha1(1), A) == view.canonical(sha1(1), urlkey(A), 10)


def test_a_capture_that_lost_to_a_refused_claim_comes_back(bench: Bench) -> None:
    claim = capture(1, A, 2, evidence=Evidence.NAMED, container="")
    row = capture(1, A, 3, evidence=Evidence.ROW)
    bench.load([row])
    bench.load([claim])
    assert bench.held() == [(sha1(1), claim)]
    assert bench.counts()[:2] == (1, 1)
    bench.load([capture(1, A, 1, evidence=Evidence.REVISIT)])
    assert bench.held() == [(sha1(1), row)]
    assert bench.counts()[:2] == (1, 1)


def test_a_tombstone_keeps_no_digest_in_the_count(bench: Bench) -> None:
    bench.load([capture(1, A, 5, evidence=Evidence.REVISIT), capture(2, B)])
    assert bench.counts()[:2] == (1, 1)
    bench.load([capture(1, WWW)])
    assert bench.counts()[:2] == (2, 2)


def test_an_index_without_urls_holds_one_capture_a_digest(make: Make) -> None:
    bench = make(Settings(url_index=False))
    first, second = capture(1, A, 1), capture(1, B, 2)
    bench.load([second])
    bench.load([first, capture(2, A)])
    with bench.view() as view:
        assert view.any(sha1(1), 10) == [first]
        assert view.counts()[:2] == (2, 2)
        answer = find(view, bench.settings, Query(sha1(1), A))
        assert answer is not None and answer.match is Match.EXACT_URL


def test_an_index_without_canonical_urls(make: Make) -> None:
    bench = make(Settings(canonical=False))
    bench.load([capture(1, A), capture(1, WWW, 2)])
    with bench.view() as view:
        assert view.exact(sha1(1), A) == [capture(1, A)]
        assert len(view.any(sha1(1), 10)) == 2


@pytest.mark.parametrize("separate", [True, False])
def test_urls_with_the_same_hash_are_not_mixed_up(
    separate: bool, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "xxh3_64_digest", lambda data: b"same-hash")
    items = [capture(1, A, 1), capture(1, WWW, 2), capture(1, B, 3)]
    for part in [[item] for item in items] if separate else [items]:
        bench.load(part)
    with bench.view() as view:
        for item in items:
            assert view.exact(sha1(1), item.url) == [item]
        assert sorted(view.canonical(sha1(1), urlkey(A), 10)) == sorted(items[:2])
        assert sorted(view.any(sha1(1), 10)) == sorted(items)
        assert view.counts()[:2] == (3, 1)
    bench.load([capture(1, WWW, 1)])
    assert bench.counts()[:2] == (3, 1)
    assert (sha1(1), capture(1, WWW, 1)) in bench.held()


def test_further_digests_find_the_same_capture(make: Make) -> None:
    bench = make(Settings(also_digest="sha256"))
    other = Digest("sha256", b"\1" * 32)
    item = capture(1, A)
    outcome = bench.load([item._replace(also=(other,))])
    assert (outcome.added, outcome.captures, outcome.digests) == (1, 2, 2)
    with bench.view() as view:
        assert view.exact(other, A) == view.exact(sha1(1), A) == [item]
        assert view.counts()[:2] == (2, 2)


def test_loading_again_changes_nothing(bench: Bench) -> None:
    items = [*some(0, 40), capture(3, A, evidence=Evidence.NAMED, container="")]
    items.append(capture(9, B, evidence=Evidence.REVISIT))
    bench.load(items)
    held, counts = bench.held(), bench.counts()
    outcome = bench.load(items)
    assert (outcome.added, outcome.replaced, outcome.unchanged) == (0, 0, 41)
    assert (bench.held(), bench.counts()) == (held, counts)


def test_small_and_large_loads_make_the_same_index(make: Make) -> None:
    """Engines may take a small load in another way than a large one."""
    items = [*some(0, 300), *some(50, 80, 2), *some(290, 330, 2)]
    random.Random(1).shuffle(items)
    small, large = make(), make()
    large.load(items)
    small.load(items[:250])
    for start in range(250, len(items), 30):
        small.load(items[start : start + 30])
    assert small.held() == large.held()
    assert small.counts() == large.counts()


# --- what else an index keeps --------------------------------------------------------------------


def test_captures_of_dropped_containers_are_removed(bench: Bench) -> None:
    old = [
        IndexedContainer("/warcs/1.warc.gz", 1, "aa", 2),
        IndexedContainer("/warcs/2.warc.gz", 2, "bb", 1),
    ]
    bench.load([capture(1, A), capture(2, A), capture(3, B, 2)], old)
    new = IndexedContainer("/warcs/1.warc.gz", 9, "cc", 1)
    again = [capture(2, A), capture(4, A)]
    outcome = bench.load(again, [new], ["/warcs/1.warc.gz"])
    assert (outcome.added, outcome.replaced, outcome.unchanged) == (1, 0, 1)
    left = [*((item.digest, item) for item in again), (sha1(3), capture(3, B, 2))]
    assert sorted(bench.held()) == sorted(left)
    with bench.view() as view:
        assert list(view.containers()) == [new, old[1]]
        assert view.counts() == (3, 3, 2)
    bench.load([], [], ["/warcs/1.warc.gz", "/no/such"])
    assert bench.counts() == (1, 1, 1)


NAMES = [
    "plain.warc.gz",
    "/tmp/\udcff\udc80.warc",
    "https://example.org/a b?c=\N{SNOWMAN}",
    "/" + "long/" * 300 + "a",
    "/" + "long/" * 300 + "b",
    "x" * 480,
    "x" * 481,
]


def test_containers_of_any_name(bench: Bench) -> None:
    containers = [
        IndexedContainer(name, number, "ff", number, "crawl", number == 3)
        for number, name in enumerate(NAMES)
    ]
    items = [capture(number, A, container=name) for number, name in enumerate(NAMES)]
    bench.load(items[:4], containers[:4])
    bench.load(items[4:], containers[4:])
    with bench.view() as view:
        assert sorted(view.containers()) == sorted(containers)
        assert [view.container(name) for name in NAMES] == containers
        assert view.container("x" * 479) is None
        assert view.counts().containers == len(NAMES)
        assert sorted(item.container for _, item in view.captures()) == sorted(NAMES)
    with bench.open() as engine:
        assert [engine.number_of(ContainerRef(name)) for name in NAMES] == list(
            range(1, len(NAMES) + 1)
        )
        assert engine.number_of(ContainerRef("x" * 479)) == 0
        assert engine.next_number() == len(NAMES) + 1


def test_captures_keep_their_crawl(bench: Bench) -> None:
    items = [
        capture(1, A, crawl="weekly"),
        capture(2, A, crawl="daily"),
        capture(3, A),
        capture(4, A, container="", crawl="weekly"),
        capture(5, A, container="x" * 600, crawl="weekly"),
        capture(6, A, container=""),
    ]
    bench.load(items[:3])
    bench.load(items[3:])
    for _ in range(2):
        assert sorted(item for _, item in bench.held()) == sorted(items)
        with bench.open(write=True) as engine:
            places = [ContainerRef(item.container, item.crawl) for item in items[:5]]
            assert [engine.number_of(place) for place in places] == [1, 2, 3, 4, 5]
            assert engine.number_of(ContainerRef("/warcs/1.warc.gz", "monthly")) == 0
            assert engine.check() == []
            if bench.packs:
                engine.compact()
    bench.load([], dropped=["/warcs/1.warc.gz"])  # whoever's it is
    assert sorted(item for _, item in bench.held()) == sorted(items[3:])


def test_containers_come_by_name(bench: Bench) -> None:
    names = ["b", "a/2", "c", "a/10"]
    bench.load([], [IndexedContainer(name, 1, "", 0) for name in names])
    with bench.view() as view:
        assert [container.name for container in view.containers()] == sorted(names)


def test_the_metadata_of_the_last_load_that_had_any_is_kept(bench: Bench) -> None:
    with bench.open() as engine:
        assert (engine.metadata(), engine.next_number(), engine.number_of(ContainerRef("a"))) == (
            {},
            1,
            0,
        )
    bench.load([capture()], metadata={"sources": ["a"]})
    bench.load([capture(2)])
    with bench.open() as engine:
        assert engine.metadata() == {"sources": ["a"]}


def test_the_last_purges_are_remembered(bench: Bench, tmp_path: Path) -> None:
    with bench.open(write=True) as engine:
        assert engine.purges() == []
        engine.load(Load(purges=[{"n": 0}]))
    bench.load([capture()])
    with bench.open(write=True) as engine:
        engine.load(Load(purges=[{"n": 1}]))
        if bench.packs:
            engine.compact()
        assert engine.purges() == [{"n": 0}, {"n": 1}]
        (tmp_path / "copy").mkdir()
        copy_to_engine(engine, tmp_path / "copy", "lmdb")
        engine.load(Load(purges=[{"n": n} for n in range(2, PURGES_KEPT + 1)]))
    with bench.open() as engine:
        assert engine.purges() == [{"n": n} for n in range(1, PURGES_KEPT + 1)]
        assert engine.check() == []
    with closing(open_index(tmp_path / "copy")) as engine:
        assert engine.purges() == [{"n": 0}, {"n": 1}]


@pytest.mark.parametrize("make", ["lmdb"], indirect=True)
def test_an_index_that_was_made_before_purges_were_remembered(bench: Bench) -> None:
    bench.load([capture()])
    with bench.open(write=True) as engine:
        assert isinstance(engine, LmdbEngine)
        trees = engine._trees
        assert trees is not None
        with trees.env.begin(write=True) as txn:
            assert txn.delete(b"purges", db=trees.meta)
        assert engine.purges() == [] == engine.check()
        engine.load(Load(purges=[{"n": 0}]))
        assert engine.purges() == [{"n": 0}]


# --- what an index refuses -----------------------------------------------------------------------


def test_an_index_is_unavailable_before_its_first_load(bench: Bench) -> None:
    with bench.open() as engine:
        assert engine.identity.generation == 0
        with pytest.raises(IndexUnavailable, match="has not finished"), engine.view():
            pass
    bench.load([])
    assert bench.counts() == (0, 0, 0)
    with bench.open() as engine:
        assert engine.identity.generation >= 1


def test_unreadable_identity_files_are_refused(bench: Bench) -> None:
    bench.load([capture()])
    content = json.loads((bench.index / FILE).read_text())
    (bench.index / FILE).write_text(json.dumps({**content, "format": 99}))
    with pytest.raises(FormatFromFuture, match="format 99"):
        open_index(bench.index)
    (bench.index / FILE).write_text("{")
    with pytest.raises(Damaged):
        open_index(bench.index)
    (bench.index / FILE).unlink()
    with pytest.raises(IndexUnavailable, match="there is no index"):
        open_index(bench.index)


def test_keys_of_another_canonicaliser_are_not_searched(bench: Bench) -> None:
    """Its captures would not be found, so lookups would answer that there is none."""
    bench.load([capture()])
    identity = read_identity(bench.index)
    replace(identity, canonicaliser="surt-9").write(bench.index)
    with pytest.raises(SettingsConflict, match="urlkeys of surt-9"):
        open_index(bench.index)


def data_files(bench: Bench) -> list[Path]:
    other = (FILE, "lock", "LOCK")
    return [
        path
        for path in sorted(bench.index.rglob("*"))
        if path.is_file() and not path.name.endswith(other)
    ]


@of_files
def test_missing_data_is_an_outage(bench: Bench) -> None:
    bench.load([capture()])
    for path in data_files(bench):
        path.unlink()
    with pytest.raises(IndexUnavailable), bench.view():
        pass


@of_files
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # Whoosh, of cut files
def test_cut_data_is_reported(bench: Bench) -> None:
    bench.load(some(0, 2000))
    for path in data_files(bench):
        data = path.read_bytes()
        for length in (0, len(data) // 2):
            path.write_bytes(data[:length])
            with suppress(IndexUnavailable, Damaged), bench.view() as view:
                assert len(list(view.captures())) == 2000  # the file may be of no use to readers
        path.write_bytes(data)
    assert bench.counts().captures == 2000


@of_files
def test_check_finds_every_flipped_byte(bench: Bench) -> None:
    victim = capture(7, b"http://example.com/victim?q=1", mime=b"x-odd/type", status=404)
    bench.load([*some(0, 5), victim, *some(8, 20)])
    with bench.open() as engine:
        assert engine.check() == []
    entry = cells.encode(victim, bench.numbers[ContainerRef(victim.container)])
    path = next(path for path in data_files(bench) if entry in path.read_bytes())
    data = path.read_bytes()
    for number in range(len(entry)):
        changed = bytearray(entry)
        changed[number] ^= 1 << number % 8
        path.write_bytes(data.replace(entry, changed))  # pages out of use may hold it too
        with bench.open() as engine:
            assert engine.check(), f"byte {number} of {entry.hex()}"
    path.write_bytes(data)


@of_files
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # Whoosh, of damaged files
def test_check_never_raises(bench: Bench) -> None:
    bench.load([*some(0, 30), capture(40, A, evidence=Evidence.REVISIT)])
    generator = random.Random(3)
    for path in data_files(bench):
        data = path.read_bytes()
        for _ in range(25):
            at = generator.randrange(len(data))
            path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
            try:
                engine = open_index(bench.index)
            except (IndexUnavailable, Damaged):
                continue
            assert isinstance(engine.check(), list)
            engine.close()
        path.write_bytes(data)


# --- while others read and write, and when things fail -------------------------------------------


@of_files
@pytest.mark.parametrize("count", [1, 2000])
def test_a_view_keeps_its_state(count: int, bench: Bench) -> None:
    bench.load(some(0, 500))
    with bench.open() as engine, engine.view() as view:
        captures = view.captures()
        first = next(captures)
        assert bench.load_elsewhere(some(500, 500 + count), ["/no/such"] * (count > 1))
        assert len([first, *captures]) == 500
        assert view.counts()[:2] == (500, 500)
        assert view.any(sha1(500), 10) == []
        assert len(view.any(sha1(499), 10)) == 1
    assert bench.counts()[:2] == (500 + count, 500 + count)


@of_files
def test_a_copy_is_an_index_of_one_state(bench: Bench, tmp_path: Path) -> None:
    bench.load(
        [*some(0, 300), capture(1, A, 2)], [IndexedContainer("c", 1, "aa", 1)], metadata={"a": 1}
    )
    held = bench.held()
    target = tmp_path / "copy"
    target.mkdir()
    with bench.open() as engine, engine.view():
        engine.copy(target)
    bench.load(some(300, 310))
    with closing(open_index(target)) as engine, engine.view() as view:
        assert list(view.captures()) == held
        assert view.counts() == (301, 300, 1)
        assert (engine.metadata(), engine.next_number()) == ({"a": 1}, 3)
        assert engine.identity.settings == bench.settings
        assert engine.check() == []
    bench.index.rename(tmp_path / "gone")
    copied = Bench(tmp_path / "more", "none")
    copied.index, copied.numbers = target, bench.numbers
    copied.load(some(300, 310))
    assert copied.counts().captures == 311


@of_files
def test_compacting_keeps_the_content(bench: Bench) -> None:
    tombstones = [capture(n, A, evidence=Evidence.REVISIT) for n in range(3)]
    bench.load([*some(0, 200), *tombstones], [IndexedContainer("c", 1, "aa", 1)], metadata={"a": 1})
    for number in range(200, 230, 10):
        bench.load(some(number, number + 10))
    held, counts = bench.held(), bench.counts()
    with bench.open(write=True) as engine:
        engine.compact()
        assert engine.check() == []
        with engine.view() as view:
            assert list(view.captures()) == held
    assert (bench.held(), bench.counts()) == (held, counts)
    assert bench.load(tombstones).captures == 0


def test_one_writer_can_load_repeatedly(bench: Bench) -> None:
    """One engine loads again and again, and reads what it loaded."""
    runs = [bench.stage(some(start, start + 20)) for start in range(0, 60, 20)]
    places = [(number, place) for place, number in bench.numbers.items()]
    with bench.open(write=True) as engine:
        for number, paths in enumerate(runs, 1):
            engine.load(Load(paths, places))
            with engine.view() as view:
                assert view.counts().captures == 20 * number
                assert len(list(view.captures())) == 20 * number
        assert engine.number_of(ContainerRef("/warcs/1.warc.gz")) == 1
        assert engine.check() == []


def test_a_closed_engine_does_not_answer(bench: Bench) -> None:
    bench.load([capture()])
    engine = open_index(bench.index)
    engine.close()
    engine.close()
    with pytest.raises(IndexUnavailable), engine.view():
        pass


def size_without_leftovers(bench: Bench) -> int:
    with bench.open(write=True) as engine:
        engine.clear_leftovers()
    return sum(path.stat().st_size for path in data_files(bench))


@of_files
@pytest.mark.parametrize("large", [True, False])
def test_a_load_killed_at_any_step_can_be_repeated(large: bool, make: Make) -> None:
    first = some(0, 300 if large else 1500)
    second = [*some(100, 1000, 2), *some(0, 50, 3)] if large else some(1450, 1550, 2)
    undisturbed = make()
    undisturbed.load(first)
    seconds = undisturbed.seconds_of(second)
    size = size_without_leftovers(undisturbed)
    for share in (0.1, 0.5, 0.9, 1.0):
        bench = make()
        bench.load(first)
        before = bench.held()
        ended = bench.load_elsewhere(second, delay=seconds * share)
        assert bench.held() in (before, undisturbed.held())
        assert not ended or bench.held() == undisturbed.held()
        bench.load(second)
        assert bench.held() == undisturbed.held()
        assert bench.counts()[:2] == undisturbed.counts()[:2]
        with bench.open() as engine:
            assert engine.check() == []
        assert size_without_leftovers(bench) < 1.5 * size


@of_files
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # Whoosh, of a failed copy
@pytest.mark.parametrize("share", [0.3, 0.95])
def test_a_full_disk_leaves_the_old_state(share: float, make: Make) -> None:
    more = some(500, 2500)
    whole = make()
    whole.load(some(0, 500), metadata={"n": 1})
    whole.load(more)
    largest = max(path.stat().st_size for path in data_files(whole))
    bench = make()
    bench.load(some(0, 500), metadata={"n": 1})
    held = bench.held()
    runs = bench.stage(more)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    with bench.open(write=True) as engine:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(largest * share), hard))
        try:
            with pytest.raises(IndexUnavailable, match="nothing was changed"):
                engine.load(
                    Load(runs, [(1, ContainerRef("/warcs/1.warc.gz"))], [], metadata={"n": 2})
                )
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        with engine.view() as view:
            assert list(view.captures()) == held
    assert bench.held() == held
    with bench.open() as engine:
        assert engine.metadata() == {"n": 1}
        assert engine.check() == []
    bench.load(more)
    assert bench.held() == whole.held()


def test_a_damaged_run_leaves_the_old_state(bench: Bench) -> None:
    bench.load(some(0, 10))
    held = bench.held()
    for count in (1, 300):
        runs = bench.stage(some(10, 10 + count))
        data = runs[0].read_bytes()
        runs[0].write_bytes(data[:20] + b"\0" + data[21:])
        with bench.open(write=True) as engine:
            with pytest.raises(Damaged, match="without --resume"):
                engine.load(Load(runs, [(1, ContainerRef("/warcs/1.warc.gz"))], []))
            with engine.view() as view:
                assert list(view.captures()) == held
        runs[0].unlink()
        with bench.open(write=True) as engine, pytest.raises(IndexUnavailable):
            engine.load(Load(runs, [(1, ContainerRef("/warcs/1.warc.gz"))], []))
    assert bench.held() == held


def test_both_ways_to_load_count_the_same(make: Make) -> None:
    """A load into a small index is a rebuild, and into a big one a few puts."""
    before = [
        capture(1, A, 9, evidence=Evidence.ROW),
        capture(2, A, 9, evidence=Evidence.NAMED),
        capture(3, A, 9),
    ]
    incoming = [
        *[capture(n, A, day, evidence=Evidence.ROW) for n in (1, 2, 3, 4) for day in (4, 5, 6)],
        *[capture(n, A, day, evidence=Evidence.NAMED) for n in (1, 2, 5) for day in (3, 4, 7)],
        *[capture(n, A, 4, evidence=Evidence.REVISIT) for n in (1, 2, 4, 5)],
        *[capture(n, A, day) for n in (2, 6) for day in (8, 7, 9)],
    ]
    small, big = make(), make()
    small.load(before)
    big.load([*before, *(capture(n, B) for n in range(100, 4000))])
    one, other = small.load(incoming), big.load(incoming)
    assert one == other
    assert one.contradicted
    assert small.held() == [pair for pair in big.held() if pair[1].url == A]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (lmdb.BadTxnError("x"), Damaged),
        (lmdb.CorruptedError("x"), Damaged),
        (lmdb.PageNotFoundError("x"), Damaged),
        (lmdb.MapResizedError("x"), IndexUnavailable),
        (lmdb.Error("x"), IndexUnavailable),
    ],
)
def test_damage_that_lmdb_finds_is_damage(
    error: lmdb.Error, kind: type[Exception], tmp_path: Path
) -> None:
    """A nightly check that says "missing, or being written" would be tried again for ever."""
    bench = Bench(tmp_path / "index", "lmdb")
    bench.load([capture(1, A)])
    with bench.open() as engine, pytest.raises(kind), engine.view():
        raise error
