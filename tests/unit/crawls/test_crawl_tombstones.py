"""What an index knows to be no original is none of a crawl's either, before and after the merge."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.capture import Capture, Evidence
from dedupindex.crawls import lifecycle, merge_crawls
from dedupindex.crawls.combined_view import CrawlSnapshot
from dedupindex.crawls.crawl import Visibility
from dedupindex.crawls.crawl_captures import add
from dedupindex.crawls.store import Store
from dedupindex.crawls.stores.lmdb_crawl_store import LmdbStore
from dedupindex.index import open_index
from dedupindex.index.engine import Load
from dedupindex.index.format.cells import encode, encode_revisit
from dedupindex.index.identity import Identity, Settings
from dedupindex.index.load.runs import RunWriter
from dedupindex.indexer.admission import admission_filter
from dedupindex.lookup import decide
from dedupindex.lookup.decide import Query, Strategy
from dedupindex.timestamps import digits_of_date
from tests.support.budgets import examples
from tests.support.captures import capture

URLS = (b"http://example.com/a", b"http://www.example.com/a", b"http://example.com/b")
READ, UNREAD = 0, -1  # the offset of a mark says which it is


def of_kinds(*kinds: Evidence) -> st.SearchStrategy[Capture]:
    return st.builds(
        lambda url, day, evidence: capture(1, url, day, evidence=evidence, container=""),
        st.sampled_from(URLS),
        st.integers(1, 5),
        st.sampled_from(kinds),
    )


heard = of_kinds(Evidence.ROW, Evidence.NAMED)  # what crawls can report
known = st.one_of(
    of_kinds(Evidence.RECORD, Evidence.ROW, Evidence.NAMED),
    st.builds(
        lambda url, day, offset: capture(1, url, day, evidence=Evidence.REVISIT, offset=offset),
        st.sampled_from(URLS),
        st.integers(1, 5),
        st.sampled_from([READ, UNREAD]),
    ),
)


def built(directory: Path, engine: str, captures: list[Capture], chosen: Settings) -> Path:
    """An index that has read `captures`, revisits among them."""
    index = directory / "index"
    index.mkdir()
    Identity(engine, chosen).write(index)
    writer = RunWriter(directory, "known")
    for one in captures:
        marks = one.evidence is Evidence.REVISIT
        entry = encode_revisit(one, read=one.offset == READ) if marks else encode(one, 0)
        writer.extend([chosen.keys().key_of(one.digest, one.url) + entry])
    writer.flush()
    with closing(open_index(index, write=True)) as opened:
        opened.load(Load(writer.paths, [], []))
    return index


def answers(index: Path, store: Store) -> list[tuple[bytes, bytes] | None]:
    """Which original each URL, and none, is answered by each strategy: its URL and second."""
    told = []
    with closing(open_index(index)) as engine, engine.view() as base, store.reading() as reading:
        chosen = engine.identity.settings
        view = CrawlSnapshot(reading).view_for(base, chosen.keys(), "")
        for url in (b"", *URLS):
            for strategy in Strategy if url and chosen.url_index else [Strategy.DIGEST_ANY]:
                query = Query(capture(1).digest, url, strategy)
                found = decide.find(view, chosen, query)
                told.append(found and (found.original.url, digits_of_date(found.original.date)))
    return told


@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
@pytest.mark.parametrize("keep", ["earliest", "latest"])
def test_answers_are_the_same_before_and_after_a_merge(engine: str, keep: str) -> None:
    @settings(max_examples=examples(50 if engine == "lmdb" else 15))
    @given(st.lists(known, max_size=8), st.lists(heard, min_size=1, max_size=3), st.booleans())
    def check(before: list[Capture], reported: list[Capture], url_index: bool) -> None:
        chosen = Settings(keep=keep, url_index=url_index, canonical=url_index)
        with tempfile.TemporaryDirectory() as name:
            index = built(Path(name), engine, before, chosen)
            with closing(LmdbStore(index)) as store:
                with store.writing() as writing:
                    crawl = lifecycle.begin(writing, "a", seen=Visibility.ALL)
                    add(writing, crawl, reported, chosen, admission_filter(chosen))
                live = answers(index, store)
                with store.writing() as writing:
                    lifecycle.commit(writing, "a")
                assert answers(index, store) == live
                merge_crawls.merge(index, store)
                merge_crawls.sweep(store, 0, dict.fromkeys([crawl.number], -1000.0))
                merged = answers(index, store)
        if keep == "earliest" and url_index:
            assert live == merged
        else:  # of several that are true another may be preferred
            assert [bool(one) for one in live] == [bool(one) for one in merged]

    check()


def test_a_named_capture_is_no_original_from_the_date_of_a_revisit_on(tmp_path: Path) -> None:
    chain = capture(1, day=5, evidence=Evidence.REVISIT, offset=READ)
    index = built(tmp_path, "lmdb", [chain], Settings())
    with closing(LmdbStore(index)) as store:
        for day, known in ((5, False), (6, False), (4, True)):
            with store.writing() as writing:
                crawl = lifecycle.begin(writing, f"records-{day}", seen=Visibility.ALL)
                named = capture(1, day=day, evidence=Evidence.NAMED)
                assert add(writing, crawl, [named], Settings(), admission_filter(Settings())).added
            assert any(answers(index, store)) is known
