"""Purges of captures built from real records, and later builds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from dedupindex.capture import Capture, Evidence
from dedupindex.crawls import lifecycle, merge_crawls
from dedupindex.crawls.crawl_captures import add
from dedupindex.crawls.stores.lmdb_crawl_store import LmdbStore
from dedupindex.errors import BadInput, DedupError, HasDependents
from dedupindex.index import open_index
from dedupindex.index.format.cells import container_of, with_container
from dedupindex.index.format.ledger import split_items
from dedupindex.index.identity import Settings
from dedupindex.index.load.staging import Staging
from dedupindex.indexer.admission import admission_filter
from dedupindex.indexer.pipeline import Build, Built, build
from dedupindex.post_crawl.purge.impact import DependentRevisit
from dedupindex.post_crawl.purge.remove import purge, survey
from dedupindex.post_crawl.purge.target import Target, TargetKind
from tests.support.captures import capture
from tests.support.commands import typed
from tests.support.purging import begin, held, load
from tests.support.warc_cases import DATE, URL, gz, response, revisit

PAYLOAD = b"payload"
LATER = b"2026-11-21T09:14:17Z"
ANY = Settings(mime=".*", whitelist=True)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """An original, a copy of later, and a revisit of the first."""
    named = revisit(
        number=9, Target_URI=b"http://example.net/copy", Date=LATER,
        Refers_To_Target_URI=URL, Refers_To_Date=DATE,
    )  # fmt: skip
    copy = response(PAYLOAD, number=3, Date=LATER)
    made = []
    for name, data in (("first", response(PAYLOAD)), ("second", copy), ("third", named)):
        path = tmp_path / f"{name}.warc.gz"
        path.write_bytes(gz(data))
        made.append(path)
    return made


def index_of(files: list[Path], engine: str = "lmdb", **how: Any) -> Path:
    index = files[0].parent / f"index-{engine}-{len(list(files[0].parent.iterdir()))}"
    run(files, index, engine=engine, **how)
    return index


def run(files: list[Path], index: Path, **how: Any) -> Built:
    return build(Build([str(path) for path in files], index, **{"settings": ANY, **how}))


def answering(index: Path) -> list[str]:
    return [Path(one.container).name for _, one in held(index)]


def target(path: Path) -> Target:
    return Target(TargetKind.CONTAINER, (str(path),))


@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
def test_a_purged_file_is_indexed_again_only_on_request(files: list[Path], engine: str) -> None:
    index = index_of(files, engine, crawl="weekly")
    seen: list[Any] = []
    impact = survey(index, target(files[0]), seen.append).impact
    assert impact.originals.captures == impact.left["same_url"].captures == 1
    (one,) = (item for item in seen if isinstance(item, DependentRevisit))
    assert one.dependent.url == b"http://example.net/copy" and one.crawl == "weekly"
    assert one.container == str(files[2]) and one.dependent.names_date == DATE
    purge(index, target(files[0]), force=True)
    assert answering(index) == ["second.warc.gz"]
    again = run(files, index, engine=engine, crawl="weekly")
    assert again.tally.known == 3 and answering(index) == ["second.warc.gz"]
    assert again.tally.purged == 1
    if engine == "lmdb":  # of which the command takes the settings from the index
        said, _ = typed("index", "--add", *files, index)
        assert "known before: 3;" in said
        assert "of these purged: 1; --replace reads them again" in said
    run(files, index, engine=engine, crawl="weekly", replace=True)
    assert answering(index) == ["first.warc.gz"]
    assert survey(index, target(files[0])).impact.dependents.captures == 1


def test_a_file_of_the_same_records_under_another_name_is_another(files: list[Path]) -> None:
    index = index_of(files)
    purge(index, target(files[0]), force=True)
    moved = files[0].with_name("moved.warc.gz")
    shutil.copy(files[0], moved)
    run([moved], index, add=True)
    assert answering(index) == ["moved.warc.gz"]
    purge(index, Target(TargetKind.URL, (URL.decode(),)), force=True)
    assert answering(index) == []
    last = files[0].with_name("last.warc.gz")
    shutil.copy(files[0], last)
    assert run([last], index, add=True).tally.refused["purged"] == 1
    assert answering(index) == []


def test_replacing_a_file_removes_its_revisits_from_the_ledger(files: list[Path]) -> None:
    index = index_of(files)
    files[2].write_bytes(gz(response(b"other", Target_URI=b"http://example.net/other")))
    run(files, index, replace=True)
    impact = survey(index, target(files[0])).impact
    assert not impact.dependents.captures and impact.left["same_url"].captures == 1


@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
def test_a_file_that_is_read_anew_still_has_its_revisits(files: list[Path], engine: str) -> None:
    index = index_of(files, engine)
    files[2].write_bytes(files[2].read_bytes() + gz(response(b"more")))
    run([files[2]], index, engine=engine, replace=True)
    impact = survey(index, target(files[0])).impact
    assert impact.dependents.captures == impact.left["same_url"].captures == 1
    with pytest.raises(HasDependents):
        purge(index, target(files[0]), force=False)
    purge(index, target(files[2]), force=False)
    run([files[2]], index, engine=engine, replace=True)
    assert survey(index, target(files[0])).impact.dependents.captures == 1


@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
@pytest.mark.parametrize("other", [URL, b"http://example.org/other"])
def test_a_revisit_of_a_purged_original_protects_the_last_copy_of_its_payload(
    files: list[Path], engine: str, other: bytes
) -> None:
    files[1].write_bytes(gz(response(PAYLOAD, number=3, Date=LATER, Target_URI=other)))
    index = index_of(files, engine, crawl="weekly")
    purge(index, target(files[0]), force=True)
    run([files[2]], index, engine=engine, reread=True, add=True, crawl="weekly")
    seen: list[Any] = []
    impact = survey(index, target(files[1]), seen.append).impact
    assert impact.by_digest.captures == impact.broken.captures == 1
    (one,) = (item for item in seen if isinstance(item, DependentRevisit))
    assert (one.container, one.dependent.names_date) == (str(files[2]), DATE)
    assert one.left == "nowhere" and one.size == len(PAYLOAD)
    with pytest.raises(HasDependents):
        purge(index, target(files[1]), force=False)
    assert answering(index) == ["second.warc.gz"]
    copy = files[0].with_name("copy.warc.gz")
    shutil.copy(files[1], copy)
    run([copy], index, engine=engine, add=True)
    purge(index, target(files[1]), force=False)
    assert answering(index) == ["copy.warc.gz"]
    with pytest.raises(HasDependents):
        purge(index, target(copy), force=False)
    purge(index, target(files[2]), force=False)
    purge(index, target(copy), force=False)
    assert answering(index) == []


@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
def test_a_revisit_of_an_original_that_was_never_indexed_protects_the_last_copy(
    files: list[Path], engine: str
) -> None:
    files[1].write_bytes(gz(response(PAYLOAD, Target_URI=b"http://example.org/other")))
    index = index_of(files[1:], engine)
    assert survey(index, target(files[1])).impact.by_digest.captures == 1
    with pytest.raises(HasDependents):
        purge(index, target(files[1]), force=False)


@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
def test_revisits_of_a_purged_original_are_refused_until_its_record_is_read(
    files: list[Path], engine: str
) -> None:
    """It is no revisit of a revisit: the original is a response, in the copy of the file, too."""
    again = revisit(number=9, Date=LATER, Refers_To_Target_URI=URL, Refers_To_Date=DATE)
    copy, alone = (files[0].with_name(f"{name}.warc.gz") for name in ("copy", "alone"))
    for path in (files[0], copy):
        path.write_bytes(gz(response(PAYLOAD)) + gz(again))
    alone.write_bytes(gz(again))
    index = index_of(files[:1], engine)
    purge(index, target(files[0]), force=False)
    tally = run([alone], index, engine=engine, add=True).tally
    assert (tally.added, dict(tally.refused)) == (0, {"purged": 1})
    tally = run([copy], index, engine=engine, add=True).tally
    assert (tally.added, tally.unchanged, dict(tally.refused)) == (1, 1, {})
    assert answering(index) == ["copy.warc.gz"]
    tally = run([alone], index, engine=engine, reread=True, add=True).tally
    assert (tally.unchanged, dict(tally.refused)) == (1, {})


def test_revisits_of_a_record_that_is_read_again_after_a_purge_are_known(
    files: list[Path],
) -> None:
    """Its crawl had reported it under the name without a directory, which was purged, too."""
    ((_, found),) = held(index_of(files[:1]))
    index = begin(files[0].parent / "served", settings=ANY)
    merged_report(index, found)
    run(files[:1], index, add=True, crawl="weekly")
    purge(index, target(files[0]), force=True)
    run(files[:1], index, replace=True, crawl="weekly")
    tally = run(files[2:], index, add=True, crawl="next").tally
    assert (tally.unchanged, dict(tally.refused)) == (1, {})
    assert answering(index) == ["first.warc.gz"]
    assert survey(index, target(files[0])).impact.dependents.captures == 1


@pytest.mark.parametrize("order", ["reported first", "read first"])
@pytest.mark.parametrize("named", ["", "weekly"])
def test_indexed_captures_belong_to_the_crawl_of_the_command(
    files: list[Path], order: str, named: str
) -> None:
    """As the documentation says: without --crawl the record that is read is of no crawl."""
    ((_, found),) = held(index_of(files[:1]))
    index = begin(files[0].parent / "served", settings=ANY)
    steps: list[Callable[[], object]] = [
        lambda: merged_report(index, found),
        lambda: run(files[:1], index, add=True, crawl=named),
    ]
    for step in steps if order == "reported first" else reversed(steps):
        step()
    assert [one.crawl for _, one in held(index)] == [named]
    weekly = survey(index, Target(TargetKind.CRAWL, ("weekly",))).impact
    assert weekly.originals.captures == bool(named)


def merged_report(index: Path, found: Capture) -> None:
    """A crawl that reports what it has written, without offset, and is taken in."""
    one = found._replace(offset=-1, record_id=b"", container=Path(found.container).name)
    with closing(LmdbStore(index)) as store:
        with store.writing() as writing:
            add(writing, lifecycle.begin(writing, "weekly"), [one], ANY, admission_filter(ANY))
            lifecycle.commit(writing, "weekly")
        merge_crawls.merge(index, store)


def test_processes_and_resumed_builds_make_the_same_ledger(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(index: Path) -> list[bytes]:
        with closing(open_index(index)) as engine, engine.view() as view:
            return sorted(item[:30] for item in view.ledger())

    plain = index_of(files, jobs=1)
    several = index_of(files, jobs=2)
    killed = files[0].parent / "killed"
    job = Build([str(path) for path in files], killed, settings=ANY, jobs=2)
    with monkeypatch.context() as patched:

        def fail(*given: Any) -> None:
            raise DedupError("the power went")

        patched.setattr("dedupindex.indexer.pipeline._load", fail)
        with pytest.raises(DedupError):
            build(job)
    assert build(replace(job, resume=True)).tally.records == 3
    assert found(plain) == found(several) == found(killed) != []


@pytest.mark.parametrize("done", [1, 3])
def test_a_crawl_that_is_merged_before_a_build_is_resumed_keeps_its_files(
    files: list[Path], monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    """The numbers of the containers that the build has read are the crawl's by then."""
    other = files[0].with_name("other.warc.gz")
    other.write_bytes(gz(response(b"other", Target_URI=b"http://example.net/other")))
    reported = capture(7, container="weekly.warc.gz")

    def places(index: Path) -> list[tuple[bytes, str, str]]:
        with closing(open_index(index)) as engine, engine.view() as view:
            revisits = [
                (with_container(body, 0), *view.place_of(container_of(body)))
                for _, body in split_items(view.ledger(), ANY.keys())
            ]
            found = [(one.url, one.container, one.crawl) for _, one in view.captures()]
            assert not engine.check()
        return sorted([*found, *revisits])

    def fail(*given: Any) -> Any:
        raise DedupError("the power went")

    left, finish = [done], Staging.finish

    def finish_some(*given: Any) -> None:
        left[0] -= 1
        finish(*given) if left[0] >= 0 else fail()

    indexes = []
    for killed in (False, True):
        indexes.append(index := index_of([other]))
        if killed:
            with monkeypatch.context() as patched:
                patched.setattr(Staging, "finish", finish_some)
                patched.setattr("dedupindex.indexer.pipeline._load", fail)
                with pytest.raises(DedupError):
                    run(files, index, add=True, jobs=2)
                for child in active_children():
                    child.join()  # it has the lock, too
        merged_report(index, reported)
        assert run(files, index, add=True, jobs=2, resume=True).tally.records == 3
    assert places(indexes[0]) == places(indexes[1])
    assert any(place[1:] == ("weekly.warc.gz", "weekly") for place in places(indexes[1]))


def wacz(path: Path, payloads: dict[bytes, bytes]) -> Path:
    """A WACZ with two WARCs of responses, by URL, one of them in a directory of its own."""
    first, *rest = [
        gz(response(payload, number=at, Target_URI=url))
        for at, (url, payload) in enumerate(payloads.items(), 1)
    ]
    with ZipFile(path, "w") as container:
        container.writestr("archive/data.warc.gz", first)
        container.writestr("archive/deep/more.warc.gz", b"".join(rest))
    return path


def urls(index: Path) -> set[bytes]:
    return {one.url for _, one in held(index)}


@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
@pytest.mark.parametrize("below", ["", "archive"])
def test_a_wacz_is_the_file_of_all_captures_in_it(tmp_path: Path, engine: str, below: str) -> None:
    (tmp_path / below).mkdir(exist_ok=True)
    old, both, new = b"http://example.com/old", b"http://example.com/both", b"http://example.com/n"
    path = wacz(tmp_path / below / "a.wacz", {old: b"1", both: b"2"})
    other = tmp_path / below / "other.warc.gz"
    other.write_bytes(gz(response(PAYLOAD)))
    index = index_of([path, other], engine)
    wacz(path, {both: b"2", new: b"3"})
    run([path], index, engine=engine, replace=True)
    assert urls(index) == {both, new, URL}
    for text in (str(path), "a.wacz"):
        impact = survey(index, Target(TargetKind.CONTAINER, (text,))).impact
        assert impact.originals.captures == 2
    assert purge(index, target(path), force=False).found == {0}
    assert urls(index) == {URL}
    assert run([path], index, engine=engine, add=True).tally.known == 1
    run([path], index, engine=engine, replace=True)
    assert urls(index) == {both, new, URL}


def test_a_file_whose_captures_are_of_others_is_not_marked_as_purged(tmp_path: Path) -> None:
    path, row = tmp_path / "w.cdx", "com,example)/{0} 20260101000000 http://example.com/{0}"
    rest = "image/png 200 FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN - - 300 {0} w.warc.gz\n"
    lines = [f"{row} {rest}".format(number) for number in (1, 2)]
    path.write_text(" CDX N b a m s k r M S V g\n" + lines[0])
    index = index_of([path])
    for name in (str(path), "w.cdx"):
        meant = Target(TargetKind.CONTAINER, ("w.warc.gz", name))
        for ask in (survey, partial(purge, force=True)):
            with pytest.raises(BadInput, match=f"{path} itself.*give those"):
                ask(index, meant)
    assert len(urls(index)) == 1
    path.write_text(path.read_text() + lines[1])
    run([path], index, replace=True)
    assert len(urls(index)) == 2
    assert purge(index, Target(TargetKind.CONTAINER, ("w.warc.gz",)), force=False).found == {0}
    assert urls(index) == set()


def test_containers_are_found_by_any_path_to_them(
    tmp_path: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job").mkdir()
    path = files[0].rename(tmp_path / "job" / files[0].name)
    (tmp_path / "latest").symlink_to("job")
    read, linked = index_of([path, files[2]]), tmp_path / "latest" / path.name
    for index in (read, index_of([linked, files[2]])):
        names = path.name, "other/" + path.name
        load(index, [capture(at, URL, 1, container=name, evidence=Evidence.ROW)
                     for at, name in enumerate(names)])  # fmt: skip
        rounds = [(path.parent, path.name), (path.parent, f"./{path.name}")]
        rounds += [(tmp_path, f"job/{path.name}"), (tmp_path, f"job/../job/{path.name}")]
        rounds += [
            (tmp_path, f"latest/{path.name}"),
            (tmp_path, str(linked)),
            (tmp_path, str(path)),
        ]
        for directory, text in rounds:
            monkeypatch.chdir(directory)
            impact = survey(index, Target(TargetKind.CONTAINER, (text, text))).impact
            assert impact.dependents.captures == 1, text
            whole = impact.originals.captures + impact.copies.captures
            assert whole == (3 if "/" not in text else 2), text
    monkeypatch.chdir(path.parent)
    meant = Target(TargetKind.CONTAINER, (f"./{path.name}", str(linked)))
    with pytest.raises(HasDependents):
        purge(read, meant, force=False)
    assert purge(read, meant, force=True).found == {0, 1}
    assert [one.container for _, one in held(read)] == ["other/" + path.name]
    assert run([path], read, add=True).tally.known == 1  # it is marked as purged
    with closing(open_index(read)) as engine, engine.view() as view:
        registered = view.container(str(path))
        assert registered is not None and registered.purged
