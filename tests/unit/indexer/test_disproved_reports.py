"""Reports of a crawl against what its files have, in any order of merging and reading."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.capture import Capture, Evidence
from dedupindex.crawls import lifecycle, merge_crawls
from dedupindex.crawls.stores.lmdb_crawl_store import LmdbStore
from dedupindex.index import open_index
from dedupindex.indexer.disproved_reports import refuse_disproved
from tests.support.budgets import examples
from tests.support.captures import capture
from tests.support.purging import begin, held, load
from tests.unit.post_crawl.test_impact import report

CRAWL, NAMES = "weekly", ("a.warc.gz", "b.warc.gz", "c.warc.gz")
Key = tuple[object, bytes, bytes]

keys = st.tuples(
    st.integers(1, 3),
    st.sampled_from([b"http://example.com/a", b"http://example.com/b"]),
    st.integers(1, 3),
)
records = st.lists(st.tuples(keys, st.sampled_from(NAMES[:2])), max_size=5)
reports = st.lists(  # one of each URL and digest: a crawl keeps no more
    st.tuples(keys, st.sampled_from([*NAMES, ""])), max_size=8, unique_by=lambda one: one[0][:2]
)


def key_of(one: Capture) -> Key:
    return one.digest, one.url, one.date


def left(recorded: list[Capture], reported: list[Capture], read: set[str]) -> list[Capture]:
    """What is not refused: a model."""
    borne_out = {key_of(one) for one in recorded}
    of_files = [one for one in reported if one.container in read]
    gone = {(key_of(one), one.container) for one in of_files if key_of(one) not in borne_out}
    unnamed = {(key, "") for key, _ in gone}
    kept = [one for one in reported if (key_of(one), one.container) not in gone | unnamed]
    return [*recorded, *kept]


@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
def test_what_is_left_does_not_depend_on_the_order(engine: str) -> None:
    @settings(max_examples=examples({"lmdb": 100, "whoosh": 20}[engine]))
    @given(records, reports, st.permutations(["merge", *NAMES[:2]]), st.integers(1, 3))
    def check(
        stored: list[tuple[tuple[int, bytes, int], str]],
        told: list[tuple[tuple[int, bytes, int], str]],
        order: list[str],
        done: int,
    ) -> None:
        told += [((9, b"http://c.example/" + name.encode(), 1), name) for name in NAMES[:2]]
        steps = order if "merge" in order[:done] else [*order[:done], "merge"]
        steps = steps[: max(done, steps.index("merge") + 1)]
        recorded = [
            capture(*key, container=f"/w/{name}", crawl=CRAWL)
            for key, name in stored
            if name in steps
        ]
        reported = [
            capture(*key, container=name, crawl=CRAWL, evidence=Evidence.ROW) for key, name in told
        ]
        with tempfile.TemporaryDirectory() as directory:
            index = begin(Path(directory), engine)
            with closing(LmdbStore(index)) as store:
                report(store, CRAWL, *reported)
                store.write(lambda writing: lifecycle.commit(writing, CRAWL))
                for step in steps:
                    if step == "merge":
                        merge_crawls.merge(index, store)
                        continue
                    load(index, [one for one in recorded if one.container == f"/w/{step}"])
                    with closing(open_index(index, write=True)) as opened:
                        refuse_disproved(opened, CRAWL, index / "scratch", {f"/w/{step}"})
            expected = begin(Path(directory) / "expected", engine)
            load(expected, left(recorded, reported, read_in(index)))
            assert held(index) == held(expected)

    check()


def read_in(index: Path) -> set[str]:
    with closing(open_index(index)) as engine, engine.view() as view:
        return {Path(file.name).name for file in view.containers()}
