"""Groups of captures of which one is kept, however long they are and whatever fails in them."""

from __future__ import annotations

import gc
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from dedupindex.corpus import Corpus
from dedupindex.corpus.read_records import Containers, MissingRecord
from dedupindex.corpus.row import CorpusRow, RecordPlace
from dedupindex.runtime.workers import run_to_end
from dedupindex.sources import SourceOptions
from tests.support.corpora import HEADER, Page, archive, html
from tests.unit.corpus.test_corpus import urls
from tests.unit.indexer.test_pipeline import EVERYTHING, content, run


@pytest.mark.parametrize("held", [0, 1 << 20])
@pytest.mark.parametrize("jobs", [1, 2])
def test_the_best_of_each_group_that_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int, held: int
) -> None:
    """Short groups before long ones, those of several pieces, and ends at the end of a piece."""
    monkeypatch.setattr("dedupindex.corpus.select.MAX_CHUNK", 4)
    monkeypatch.setattr("dedupindex.corpus.extract._MAX_RESULT", held)
    for seed in range(12):
        chance = Random(seed)
        lengths = [chance.choice((1, 1, 2, 3, 4, 5, 8, 9, 13)) for _ in range(10)]
        days = {
            f"http://h{number:02d}.org/": chance.sample(range(1, 29), length)
            for number, length in enumerate(lengths)
        }
        good = {url: set(chance.sample(sorted(of), chance.randint(0, 2) % (len(of) + 1)))
                for url, of in days.items()}  # fmt: skip
        lines = [
            Page(url, day, status=200 if day in good[url] else 404).cdx()
            for url, of in days.items() for day in of
        ]  # fmt: skip
        chance.shuffle(lines)
        cdx = tmp_path / f"{seed}.cdx"
        cdx.write_text(HEADER + "".join(lines))
        corpus = Corpus.from_cdx(cdx).having(jobs=jobs)
        passed = corpus.filter("record", lambda record: record["status"] == 200)
        for best, chosen in ((max, passed.latest("url")), (min, passed.first("url"))):
            wanted = [(url, best(of)) for url, of in sorted(good.items()) if of]
            found = [(e["record"]["originalUrl"], int(e["record"]["timestamp"][8:10]))
                     for e in chosen]  # fmt: skip
            assert sorted(found) == wanted, (seed, lengths)


def test_a_failed_capture_does_not_settle_a_group(tmp_path: Path) -> None:
    """Nobody knows whether the latest would have passed: the next that does is there, too."""
    pages = [Page("http://a.org/", day, html(f"t{day}"), file=f"{day}.warc.gz")
             for day in (1, 2, 3)]  # fmt: skip
    cdx = archive(tmp_path, *pages)
    (tmp_path / "3.warc.gz").unlink()
    corpus = Corpus.from_cdx(cdx).having(jobs=1)
    found = corpus.filter("payload.string.html.title").latest("url").enrich("html.title")
    assert [(entry["record"]["timestamp"][8:10], "error" in entry) for entry in found] == [
        ("03", True), ("02", False),
    ]  # fmt: skip


def test_a_task_may_have_several_follow_up_tasks() -> None:
    left = {"a": ["b", "", "c"], "b": ["", ""], "c": ["d"], "d": [""]}
    done = run_to_end(lambda task: iter([(task, one) for one in left[task]]), "a",
                      lambda result: result[1] or None)  # fmt: skip
    assert sorted(done) == [(task, one) for task in "abcd" for one in sorted(left[task])]


def test_the_earliest_original_is_taken_in_any_order(tmp_path: Path) -> None:
    body = html("same")
    for seed in range(6):
        chance = Random(seed)
        days = chance.sample(range(1, 20), 9)
        pages = [Page(f"http://h{number}.org/", day, body) for number, day in enumerate(days)]
        again = Page("http://z.org/", 28, of=pages[0])
        cdx = archive(tmp_path / str(seed), *pages, again)
        (entry,) = Corpus.from_cdx(cdx).where("hostname == 'z.org'")
        first = days.index(min(days))
        assert entry["record"]["revisitOf"]["originalUrl"] == f"http://h{first}.org/"


NOTHING = "3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"


def test_304_is_not_read_as_a_revisit_that_may_be_one_itself(tmp_path: Path) -> None:
    """A CDX line of a revisit may have an empty digest and no status: no original is known."""
    one = Page("http://a.org/", 1, html("right"))
    doubtful, unchanged = (Page("http://a.org/", day, of=one) for day in (2, 3))
    cdx = archive(tmp_path, one, doubtful, unchanged)
    revisits = [
        cdx_line.replace(one.digest, NOTHING).replace("revisit -", f"revisit {status}")
        for cdx_line, status in ((doubtful.cdx(), "-"), (unchanged.cdx(), "304"))
    ]
    cdx.write_text(HEADER + one.cdx() + "".join(revisits))
    corpus = Corpus.from_cdx(cdx).having(jobs=1)
    (entry,) = corpus.where("status == 304")
    assert entry["record"]["revisitOf"]["timestamp"] == "2026-11-01T09:14:17Z"


def _asked(path: Path, page: Page, **known: object) -> CorpusRow:
    place = RecordPlace(str(path / page.file), page.offset, len(page.stored))
    found = CorpusRow(None, page.timestamp, page.url, None, None, page.digest, None, None, None,
                    False, None, None, False, page.file, *[None] * 4, place, None)  # fmt: skip
    return found._replace(**known)


def test_a_record_must_agree_with_its_metadata(tmp_path: Path) -> None:
    """Of another time it may be, if it has the same payload."""
    stated = Page("http://a.org/", 1, html("x"))
    silent = Page("http://a.org/", 1, html("x"), fields={"Payload_Digest": None}, file="b.warc.gz")
    archive(tmp_path, stated, silent)
    with closing(Containers()) as containers:
        other = {"timestamp": "20261102091417"}
        containers.own(_asked(tmp_path, stated, **other))
        containers.own(_asked(tmp_path, silent))
        for page, more in ((silent, other), (silent, {**other, "digest": None}),
                           (stated, {**other, "digest": None}),
                           (stated, {**other, "digest": NOTHING})):  # fmt: skip
            with pytest.raises(MissingRecord, match="in its metadata is another capture"):
                containers.own(_asked(tmp_path, page, **more))


def test_few_containers_are_open_at_a_time(tmp_path: Path) -> None:
    pages = [Page(f"http://a.org/{n}", 1, html("x"), file=f"{n}.warc.gz") for n in range(60)]
    archive(tmp_path, *pages)
    gc.collect()  # or files that tests before have left open are closed meanwhile
    before = len(os.listdir("/proc/self/fd"))
    with closing(Containers()) as containers:
        for page in pages:
            containers.own(_asked(tmp_path, page))
            assert len(os.listdir("/proc/self/fd")) - before <= 16
        assert containers.opened == 60
    assert len(os.listdir("/proc/self/fd")) == before


def test_304_means_the_capture_of_the_date_that_it_names(tmp_path: Path) -> None:
    """Though metadata, which do not say what it names, give it the place of another."""
    profile = b"http://netpreserve.org/warc/1.0/revisit/server-not-modified"
    own = {"Profile": profile, "Payload_Digest": None}
    head = b"HTTP/1.1 304 Not Modified\r\n\r\n"
    old, new = (Page("http://a.org/", day, html(f"t{day}")) for day in (1, 2))
    again = Page("http://a.org/", 3, of=new, head=head, fields=own)
    archive(tmp_path, old, new, again)
    with closing(Containers()) as containers:
        for page, message in ((new, ""), (old, "another date")):
            at = RecordPlace(str(tmp_path / page.file), page.offset, len(page.stored))
            capture = _asked(tmp_path, again, revisit=True, payload=at, digest=None)
            if message:
                with pytest.raises(MissingRecord, match=message):
                    containers.stored(capture)
            else:
                assert containers.stored(capture).payload == new.body


def test_no_capture_of_an_index_comes_twice(tmp_path: Path) -> None:
    """Though it may stand under several digests; and how long its record is, it may not know."""
    one = Page("http://a.org/", 1, html("x" * 900))
    cdx = archive(tmp_path / "in", one, Page("http://b.org/", 2, html("y")))
    both = replace(EVERYTHING, also_digest="sha256")
    computed = SourceOptions(also=("sha256",))
    run(tmp_path / "ix", tmp_path / "in" / "a.warc.gz", settings=both, options=computed)
    assert len(content(tmp_path / "ix")) == 4
    corpus = Corpus.from_index(tmp_path / "ix", containers=tmp_path / "in")
    assert sorted(urls(corpus)) == ["http://a.org/", "http://b.org/"]
    (entry,) = corpus.where("hostname == 'a.org'").enrich("html.title")
    assert entry["record"]["compressedSize"] is None
    assert entry["payload"]["string"]["html"]["title"] == "x" * 900
    run(tmp_path / "of_cdx", cdx)
    (entry,) = Corpus.from_index(tmp_path / "of_cdx").where("hostname == 'a.org'")
    assert entry["record"]["compressedSize"] == len(one.stored)
