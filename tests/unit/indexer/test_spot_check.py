"""A sample of what was written is looked up after each load, merge, copy and purge."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from contextlib import closing
from functools import partial
from io import BytesIO
from pathlib import Path
from random import Random

import pytest

from dedupindex.capture import Capture, Evidence
from dedupindex.cli import main
from dedupindex.cli.maintenance import (
    UNFINISHED,
    compared_before,
    new_on_cluster,
    note_compared,
)
from dedupindex.crawls import lifecycle
from dedupindex.crawls.crawl_captures import add
from dedupindex.crawls.store import Writing
from dedupindex.crawls.stores import make_store
from dedupindex.errors import Damaged, SpotCheckFailed
from dedupindex.index import open_index
from dedupindex.index.engine import IndexCounts, Load
from dedupindex.index.engines.lmdb import lmdb_engine
from dedupindex.index.engines.whoosh import whoosh_engine
from dedupindex.index.identity import Settings
from dedupindex.index.load.merge_rule import MergeOutcome
from dedupindex.index.load.runs import SORTING, spread
from dedupindex.indexer import spot_check
from dedupindex.indexer.admission import admission_filter
from dedupindex.indexer.copy_index import Copied
from tests.support.captures import capture, sha1
from tests.support.engine_bench import Bench

ENGINES = {"lmdb": lmdb_engine.LmdbEngine, "whoosh": whoosh_engine.WhooshEngine}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: object) -> tuple[int, str, str]:
        status = main([str(word) for word in words])
        output = capsys.readouterr()
        return status, output.out, output.err

    return run


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def rows(path: Path, first: int, last: int) -> Path:
    """A CDX of captures, each of a digest of its own."""
    lines = [
        f"com,example)/{n} 20261101091417 http://example.com/{n} image/png 200 "
        f"{sha1(n).raw.hex()} - - {1000 + n} {n * 100} {n % 3}.warc.gz"
        for n in range(first, last)
    ]
    path.write_text("\n".join([" CDX N b a m s k r M S V g", *lines, ""]))
    return path


def warc(path: Path, first: int, last: int) -> Path:
    """A WARC of responses, each of a payload of its own."""
    writer = BytesIO()
    for n in range(first, last):
        http = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n%d" % n
        writer.write(
            b"WARC/1.1\r\nWARC-Type: response\r\nWARC-Date: 2026-11-01T09:14:17Z\r\n"
            b"WARC-Target-URI: http://example.com/%d\r\n"
            b"WARC-Record-ID: <urn:uuid:00000000-0000-4000-8000-%012d>\r\n"
            b"Content-Type: application/http; msgtype=response\r\n"
            b"Content-Length: %d\r\n\r\n%b\r\n\r\n" % (n, n, len(http), http)
        )
    path.write_bytes(writer.getvalue())
    return path


def losing(patch: pytest.MonkeyPatch, engine: str) -> None:
    """Loads lose what they bring."""
    load = ENGINES[engine].load

    def lossy(self: object, brought: Load) -> MergeOutcome:
        load(self, brought._replace(runs=[]))  # type: ignore[arg-type]
        return MergeOutcome(added=len(brought.containers) and 400)

    patch.setattr(ENGINES[engine], "load", lossy)


def held(index: Path) -> list[object]:
    with closing(open_index(index)) as engine, engine.view() as view:
        assert engine.check() == []
        return [*view.captures(), view.counts()]


def repair(output: str) -> list[str]:
    """The command that an error names, without bin/."""
    return shlex.split(re.search(r"bin/(index --\w+.*?)(?: \(if|$)", output, re.M).group(1))  # type: ignore[union-attr]


def test_items_are_chosen_at_equal_distances() -> None:
    assert list(spread(range(5), 7)) == [0, 1, 2, 3, 4]
    assert list(spread(range(100), 4)) == [0, 33, 66, 99]
    assert list(spread(range(100), 1)) == [0]


@pytest.mark.parametrize("first", [True, False])
def test_a_build_that_loses_captures_fails_and_is_repaired(
    first: bool, engine: str, run: Run, tmp_path: Path
) -> None:
    index, whole = tmp_path / "an index", tmp_path / "whole"
    one, other = rows(tmp_path / "one.cdx", 0, 400), rows(tmp_path / "other.cdx", 400, 800)
    for words in ([one], ["--add", "--crawl", "a&week", other]):
        assert run("index", *words, whole, "--engine", engine)[0] == 0
    words = (
        [one, index, "--engine", engine] if first else ["--add", "--crawl", "a&week", other, index]
    )
    if not first:
        assert run("index", one, index, "--engine", engine)[0] == 0
    with pytest.MonkeyPatch.context() as patch:
        losing(patch, engine)
        status, _, err = run("index", *words)
    assert status == SpotCheckFailed.exit_status
    assert "it is not found" in err and "of a sample of " in err
    again = run("index", *words)  # all is known, and not answered still
    assert again[0] == SpotCheckFailed.exit_status and repair(again[2]) == repair(err)
    assert run(*repair(err))[0] == 0
    if first:
        assert run("index", "--add", "--crawl", "a&week", other, index)[0] == 0
    assert held(index) == held(whole)


def test_a_build_killed_before_its_check_is_checked_by_the_next(
    engine: str, run: Run, tmp_path: Path
) -> None:
    index, one = tmp_path / "index", rows(tmp_path / "one.cdx", 0, 400)
    with pytest.MonkeyPatch.context() as patch:
        losing(patch, engine)
        patch.setattr(
            spot_check, "confirm", lambda *_: raise_(KeyboardInterrupt())
        )  # as if it was killed
        assert run("index", one, index, "--engine", engine)[0] == 130
    status, _, err = run("index", one, index, "--engine", engine)
    assert status == SpotCheckFailed.exit_status
    assert run(*repair(err))[0] == 0
    assert run("index", one, index, "--engine", engine)[0] == 0
    assert not (index / spot_check.UNCONFIRMED).exists()


@pytest.mark.parametrize("damage", [lambda raw: raw[:50], lambda raw: raw.replace(b"0", b"8", 1)])
def test_a_damaged_sample_is_reported(
    damage: Callable[[bytes], bytes], run: Run, tmp_path: Path
) -> None:
    index, one = tmp_path / "index", rows(tmp_path / "one.cdx", 0, 400)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spot_check, "confirm", lambda *_: raise_(KeyboardInterrupt()))
        assert run("index", one, index)[0] == 130
    unconfirmed = index / spot_check.UNCONFIRMED
    unconfirmed.write_bytes(damage(unconfirmed.read_bytes()))
    status, _, err = run("index", one, index)
    assert status == Damaged.exit_status and f"{unconfirmed} is damaged" in err
    unconfirmed.unlink()
    assert run("index", one, index)[0] == 0


def test_the_captures_that_replace_a_file_are_looked_up(run: Run, tmp_path: Path) -> None:
    index, one = tmp_path / "index", warc(tmp_path / "one.warc", 0, 30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spot_check, "confirm", lambda *_: raise_(KeyboardInterrupt()))
        assert run("index", one, index)[0] == 130
    warc(one, 30, 60)
    assert run("index", "--replace", one, index)[0] == 0
    assert not (index / spot_check.UNCONFIRMED).exists()


def test_a_build_that_mixes_up_containers_fails(run: Run, tmp_path: Path) -> None:
    """As one does whose numbers of containers stand for others in the index."""
    load = lmdb_engine.LmdbEngine.load

    def mixing(self: lmdb_engine.LmdbEngine, brought: Load) -> MergeOutcome:
        names = [place for _, place in brought.places]
        turned = zip((number for number, _ in brought.places), names[1:] + names[:1], strict=True)
        return load(self, brought._replace(places=list(turned)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lmdb_engine.LmdbEngine, "load", mixing)
        status, _, err = run("index", rows(tmp_path / "one.cdx", 0, 400), tmp_path / "index")
    assert status == SpotCheckFailed.exit_status and "another capture is found in its place" in err


def crawled(index: Path) -> None:
    """Commit a crawl with two captures."""

    def report(writing: Writing) -> None:
        items = [capture(50), capture(51)]
        add(writing, writing.crawl("weekly"), items, Settings(), admission_filter(Settings()))

    with closing(make_store(index)) as store:
        store.write(partial(lifecycle.begin, name="weekly"))
        store.write(report)
        store.write(partial(lifecycle.commit, name="weekly"))


def test_a_merge_that_loses_captures_fails_and_is_repaired(
    engine: str, run: Run, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    assert run("index", rows(tmp_path / "one.cdx", 0, 100), index, "--engine", engine)[0] == 0
    crawled(index)
    with pytest.MonkeyPatch.context() as patch:
        losing(patch, engine)
        status, _, err = run("index", "--merge", index)
    assert status == SpotCheckFailed.exit_status
    status, out, _ = run(*repair(err))
    assert status == 0 and "2 added" in out
    assert len(held(index)) == 102 + 1


def test_a_copy_that_answers_otherwise_fails_and_is_repaired(
    engine: str, run: Run, tmp_path: Path
) -> None:
    index, other, target = tmp_path / "index", tmp_path / "other", tmp_path / "a copy"
    assert run("index", rows(tmp_path / "one.cdx", 0, 400), index, "--engine", engine)[0] == 0
    assert run("index", rows(tmp_path / "two.cdx", 900, 950), other, "--engine", engine)[0] == 0
    copy = ENGINES[engine].copy

    def mistaken(self: object, target: Path) -> None:
        with closing(open_index(other)) as mistaken:
            copy(mistaken, target)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ENGINES[engine], "copy", mistaken)
        status, _, err = run("index", "--copy", target, index)
    assert status == SpotCheckFailed.exit_status and "the source answers it otherwise" in err
    [remove] = re.findall(r"(rm -r .*?) &&", err)
    subprocess.run(shlex.split(remove), check=True)
    assert run(*repair(err))[0] == 0
    assert held(target) == held(index)


def test_a_copy_to_another_engine_that_loses_captures_fails(run: Run, tmp_path: Path) -> None:
    index, target = tmp_path / "index", tmp_path / "copy"
    assert run("index", rows(tmp_path / "one.cdx", 0, 400), index)[0] == 0
    words = ["index", "--copy", target, index, "--engine", "whoosh"]
    with pytest.MonkeyPatch.context() as patch:
        losing(patch, "whoosh")
        assert run(*words)[0] == Damaged.exit_status  # before anything is asked
    assert run(*words)[0] == 0  # exactly as it was typed
    assert [*held(target)][:-1] == [*held(index)][:-1]


def test_an_index_that_cannot_answer_is_not_copied(run: Run, tmp_path: Path) -> None:
    index = tmp_path / "index"
    assert run("index", rows(tmp_path / "one.cdx", 0, 400), index)[0] == 0
    lost = partial(KeyError, "container number 1 has no name")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "dedupindex.index.engines.lmdb.lmdb_engine.LmdbView.place_of", lambda *_: raise_(lost())
        )
        status, _, err = run("index", "--copy", tmp_path / "copy", index)
    assert status == Damaged.exit_status and "bin/index --check" in err


def raise_(error: BaseException) -> None:
    raise error


def test_a_purge_that_takes_nothing_out_fails_and_is_run_again(
    engine: str, run: Run, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    assert run("index", rows(tmp_path / "one.cdx", 0, 400), index, "--engine", engine)[0] == 0
    words = ["purge", index, "--url", "http://example.com/1", "--prefix"]
    with pytest.MonkeyPatch.context() as patch:
        losing(patch, engine)
        status, _, err = run(*words)
    assert status == SpotCheckFailed.exit_status and "it was purged, and is still found" in err
    assert run(*words)[0] == 0
    assert len(held(index)) == 400 - 111 + 1


def test_a_purge_that_takes_more_than_it_must_fails_and_is_repaired(
    run: Run, tmp_path: Path
) -> None:
    index, source = tmp_path / "index", rows(tmp_path / "one.cdx", 0, 400)
    assert run("index", source, index)[0] == 0
    load = lmdb_engine.LmdbEngine.load

    def greedy(self: lmdb_engine.LmdbEngine, brought: Load) -> MergeOutcome:
        with self.view() as view:
            names = frozenset(place.container for _, place in view.places())
        return load(self, brought._replace(dropped=names))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lmdb_engine.LmdbEngine, "load", greedy)
        status, _, err = run("purge", index, "--url", "http://example.com/7")
    assert status == SpotCheckFailed.exit_status and "it was not purged" in err
    words = [str(source) if word == "SOURCE..." else word for word in repair(err)]
    assert run(*words)[0] == 0
    assert len(held(index)) == 399 + 1


@pytest.mark.parametrize("keep", ["earliest", "latest"])
@pytest.mark.parametrize("url_index", [True, False])
def test_a_correct_load_passes_the_check(
    keep: str, url_index: bool, tmp_path: Path, chance: Random
) -> None:
    """Captures that lose to others, chains, rows that are refuted, and further digests."""
    bench = Bench(tmp_path, "lmdb", Settings(url_index=url_index, canonical=url_index, keep=keep))
    asked = 0
    for _ in range(20):
        items = [some(chance) for _ in range(chance.randint(1, 60))]
        load = Load(bench.stage(items), [(n, place) for place, n in bench.numbers.items()], [])
        drawn = spot_check.sample_load(load, bench.settings.keys())
        with bench.open(write=True) as engine:
            engine.load(load)
        spot_check.confirm(bench.index, drawn, "")  # which raises where an answer is wrong
        asked += len(drawn)
    assert asked > 20


def some(chance: Random) -> Capture:
    number, evidence = chance.randrange(6), Evidence(chance.randrange(4))
    return capture(
        number,
        b"http://example.com/%d" % chance.randrange(4),
        chance.randint(1, 6),
        evidence=evidence,
        container="" if evidence >= Evidence.NAMED else f"/{chance.randrange(3)}.warc",
        offset=chance.choice([-1, 0, 77]),
        also=(capture(number + 100).digest,) if evidence == Evidence.RECORD else (),
    )


def test_a_sample_is_small_however_much_is_loaded(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "lmdb")
    runs = [
        run for n in range(0, 20_000, 2000) for run in bench.stage(map(capture, range(n, n + 2000)))
    ]
    load = Load(runs, [], [])
    assert len(load.runs) == 10
    drawn = spot_check.sample_load(load, bench.settings.keys())
    assert 100 < len(drawn) <= spot_check.CHUNKS * spot_check.EACH
    assert min(one.key for one in drawn)[1] < 16 and max(one.key for one in drawn)[1] > 240


def test_an_incomplete_note_of_a_copy_is_ignored(tmp_path: Path) -> None:
    copied = Copied(IndexCounts(400, 300, 2), "a0" * 32)
    note_compared(tmp_path, copied)
    assert compared_before(tmp_path) == copied
    noted = (tmp_path / UNFINISHED).read_bytes()
    for length in range(len(noted)):
        (tmp_path / UNFINISHED).write_bytes(noted[:length])
        assert compared_before(tmp_path) is None


def test_a_copy_to_a_cluster_removes_what_a_killed_one_was_sorting(tmp_path: Path) -> None:
    (tmp_path / UNFINISHED).touch()
    (tmp_path / f"{SORTING}1").mkdir()
    (tmp_path / f"{SORTING}1" / "sorted-0.run").write_bytes(b"items")
    (tmp_path / "index.json").write_bytes(b"{}")
    with new_on_cluster(tmp_path, "cassandra://localhost/keyspace") as resumed:
        assert resumed
    assert [path.name for path in tmp_path.iterdir()] == ["index.json"]
