"""What a crawler reported stands until its WARC is read; then what the file has counts."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from dedupindex.cli.common import NOTHING_FOUND
from dedupindex.indexer import disproved_reports
from tests.support.commands import ended, typed
from tests.support.warc_cases import gz, response, revisit, sha1
from tests.unit.post_crawl.test_index_references import asking

TYPES = ("--whitelist", "--mime", ".*")
BODY, URL, DATE = b"the payload", b"http://a.test/1", b"2026-01-02T00:00:05Z"
DIGEST = sha1(BODY).decode()
names = pytest.mark.parametrize(
    "container", ["", "a.warc.gz", "out/a.warc.gz"], ids=["unnamed", "named", "moved"]
)
engines = pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
orders = pytest.mark.parametrize("merged_first", [True, False], ids=["merged", "read"])


def written(tmp_path: Path, body: bytes = BODY) -> Path:
    """The file of the crawl, whose record states the digest of BODY."""
    path = tmp_path / "harvest/a.warc.gz"
    path.parent.mkdir()
    record = response(body, Target_URI=URL, Date=DATE, Payload_Digest=DIGEST.encode())
    path.write_bytes(gz(record))
    return path


def begun(tmp_path: Path, engine: str, container: str) -> Path:
    """An index whose crawl `two` has reported the record, and is committed."""
    index, other = tmp_path / "index", tmp_path / "other.warc.gz"
    other.write_bytes(gz(response(b"another", Target_URI=b"http://b.test/", Date=DATE)))
    typed("index", *TYPES, "--engine", engine, "--crawl", "one", other, index)
    with asking(index) as web:
        web.post("/crawls", json={"name": "two"})
        reported: dict[str, Any] = {
            "digest": DIGEST, "url": URL.decode(), "status": 200, "date": DATE.decode(),
            "mime": "text/html", "size": len(BODY),
            **({"container": container} if container else {}),
        }  # fmt: skip
        answer = web.post("/captures?crawl=two", json=reported).get_json()
        assert answer["results"] == ["added"]
        web.post("/crawls/two/commit")
    return index


def originals(index: Path) -> list[str]:
    """The evidence of the originals of the digest, by the command and over HTTP."""
    status, text, _ = ended("list", index, "--digest", DIGEST, "--json")
    listed = [json.loads(line)["evidence"] for line in text.splitlines()]
    assert status == (0 if listed else NOTHING_FOUND)
    with asking(index) as web:
        found = web.get(f"/lookup?digest={DIGEST}&url={URL.decode()}").get_json()
    assert found["duplicate"] == bool(listed)
    return listed


def load_both(index: Path, path: Path, *, merged_first: bool, damaged: bool = False) -> str:
    """Merge the crawl and read its file, in either order; return what was said."""
    merge = ("--merge", index), 0
    read = ("--add", "--crawl", "two", path, index), 7 * damaged
    steps = (merge, read) if merged_first else (read, merge)
    return "".join(typed("index", *words, status=status)[0] for words, status in steps)


@engines
@names
@orders
def test_the_record_takes_the_place_of_the_report_and_both_are_purged_with_its_file(
    tmp_path: Path, engine: str, container: str, merged_first: bool
) -> None:
    index, path = begun(tmp_path, engine, container), written(tmp_path)
    assert originals(index) == ["row"]
    load_both(index, path, merged_first=merged_first)
    assert originals(index) == ["record"]
    found = json.loads(typed("impact", index, "--container", path, "--json")[0])
    assert found["originals"]["captures"] == found["nowhere"]["captures"] == 1
    assert found["same_url"]["captures"] == found["copies"]["captures"] == 0
    typed("purge", index, "--container", path)
    assert originals(index) == []
    typed("index", "--check", index)


@engines
@names
@orders
def test_a_report_whose_record_is_damaged_is_no_original(
    tmp_path: Path, engine: str, container: str, merged_first: bool
) -> None:
    index, path = begun(tmp_path, engine, container), written(tmp_path, b"the paYload")
    said = load_both(index, path, merged_first=merged_first, damaged=True)
    assert "digest-mismatch" in said
    assert originals(index) == []
    typed("index", "--check", index)


@engines
@names
@pytest.mark.parametrize("damaged", [True, False], ids=["refused", "purged"])
def test_a_crawl_does_not_answer_with_what_was_read_and_refused_or_purged(
    tmp_path: Path, engine: str, container: str, damaged: bool
) -> None:
    """It is committed and not merged, so it answers by itself."""
    index = begun(tmp_path, engine, container)
    path = written(tmp_path, b"the paYload" if damaged else BODY)
    typed("index", "--add", "--crawl", "two", path, index, status=7 * damaged)
    if not damaged:
        assert originals(index)
        typed("purge", index, "--container", path)
    assert originals(index) == []


def reported_by(
    index: Path, crawl: str, *given: dict[str, Any], purged: Sequence[str] = ()
) -> None:
    """Let a crawl report captures, and commit it; those of `purged` digests are refused."""
    with asking(index) as web:
        web.post("/crawls", json={"name": crawl})
        for one in given:
            whole = {"status": 200, "mime": "text/html", "date": DATE.decode(), **one}
            told = web.post(f"/captures?crawl={crawl}", json=whole).get_json()
            is_purged = one["digest"] in purged
            assert told["refused"] == ({"purged": 1} if is_purged else {})
            assert told["results"] == ["purged" if is_purged else "added"]
        web.post(f"/crawls/{crawl}/commit")


GHOST = sha1(b"never written").decode()
OTHER = "sha256:" + "ab" * 32


def answers(index: Path, digest: str, url: str = URL.decode()) -> bool:
    with asking(index) as web:
        return bool(web.get(f"/lookup?digest={digest}&url={url}").get_json()["duplicate"])


@engines
@orders
def test_reports_that_the_file_does_not_have_are_refused(
    tmp_path: Path, engine: str, merged_first: bool
) -> None:
    """Those of other files and crawls stay, and those that no record could bear out."""
    index, path = begun(tmp_path, engine, "a.warc.gz"), written(tmp_path)
    ghost = {"digest": GHOST, "url": "http://a.test/ghost"}
    reported_by(index, "three", {**ghost, "url": "http://a.test/3", "container": "a.warc.gz"})
    reported_by(
        index,
        "more",
        {"digest": DIGEST, "url": URL.decode(), "container": "a.warc.gz"},
        {**ghost, "container": "a.warc.gz"},
        {**ghost, "url": "http://a.test/b", "container": "b.warc.gz"},
        {"digest": OTHER, "url": "http://a.test/other", "container": "a.warc.gz"},
    )
    read = ("--add", "--crawl", "more", path, index)
    if merged_first:
        typed("index", "--merge", index)
        assert answers(index, GHOST, ghost["url"])
        assert json.loads(typed("index", *read, "--json")[0])["disproved_reports"] == 1
    else:
        assert json.loads(typed("index", *read, "--json")[0])["disproved_reports"] == 0
        assert json.loads(typed("index", "--merge", index, "--json")[0])["refused"] == 1
    assert "http://a.test/ghost" not in typed("list", index, "--digest", GHOST)[0]
    for digest, url in (
        (DIGEST, URL.decode()),
        (GHOST, "http://a.test/3"),
        (GHOST, "http://a.test/b"),
        (OTHER, "http://a.test/other"),
    ):
        assert url in typed("list", index, "--digest", digest)[0]
    assert json.loads(typed("index", *read, "--json")[0])["disproved_reports"] == 0
    typed("index", "--check", index)


@engines
def test_a_record_that_was_cut_off_is_no_original(tmp_path: Path, engine: str) -> None:
    """Its report was on disk before; of an algorithm that the file does not state nothing is."""
    index, path = begun(tmp_path, engine, "other.warc.gz"), written(tmp_path)
    last = gz(response(b"the last", Target_URI=b"http://a.test/2", Date=DATE, number=7))
    path.write_bytes(path.read_bytes() + last[: len(last) // 2])
    digests = (DIGEST, sha1(b"the last").decode(), OTHER)
    given = [
        {"digest": digest, "url": f"http://a.test/{at}", "container": "a.warc.gz"}
        for at, digest in enumerate(digests, 1)
    ]
    reported_by(index, "cut", *given)
    typed("index", "--merge", index)
    assert all(answers(index, digest) for digest in digests)
    said = typed("index", "--add", "--crawl", "cut", path, index, status=7)[0]
    assert "rows and reports that the files do not have: 1  no originals" in said
    assert [answers(index, digest) for digest in digests] == [True, False, True]


@engines
def test_a_report_that_lost_to_an_older_capture_does_not_come_back(
    tmp_path: Path, engine: str
) -> None:
    index, path = begun(tmp_path, engine, "other.warc.gz"), written(tmp_path)
    url, older = "http://a.test/2", tmp_path / "older.warc.gz"
    date = b"2026-01-01T00:00:00Z"
    older.write_bytes(gz(response(b"never written", Target_URI=url.encode(), Date=date, number=8)))
    typed("index", "--add", "--crawl", "one", older, index)
    in_file = {"container": "a.warc.gz"}
    reported_by(
        index, "late", {"digest": GHOST, "url": url, **in_file},
        {"digest": DIGEST, "url": URL.decode(), **in_file},
    )  # fmt: skip
    typed("index", "--merge", index)
    read = ("--add", "--crawl", "late", path, index, "--json")
    assert json.loads(typed("index", *read)[0])["disproved_reports"] == 1
    assert json.loads(typed("index", *read)[0])["disproved_reports"] == 0
    found = json.loads(typed("impact", index, "--container", older, "--json")[0])
    assert found["nowhere"]["captures"] == 1
    typed("purge", index, "--container", older)
    assert ended("list", index, "--digest", GHOST)[0] == NOTHING_FOUND


@engines
def test_files_are_compared_one_by_one(tmp_path: Path, engine: str) -> None:
    """One that states another algorithm, or is damaged, says nothing of the others."""
    index, path = begun(tmp_path, engine, "other.warc.gz"), written(tmp_path)
    long = "sha256:" + sha256(b"of b").hexdigest()
    record = response(
        b"of b", Target_URI=b"http://a.test/b", Date=DATE, number=7, Payload_Digest=long.encode()
    )
    (path.parent / "b.warc.gz").write_bytes(gz(record))
    cut = gz(response(b"of c", Target_URI=b"http://a.test/c", Date=DATE, number=8))
    (path.parent / "c.warc.gz").write_bytes(path.read_bytes() + cut[:-30])
    given = [
        {
            "digest": "sha256:" + sha256(name.encode()).hexdigest(),
            "url": f"http://a.test/{name}",
            "container": name,
        }
        for name in ("a.warc.gz", "b.warc.gz", "c.warc.gz")
    ]
    reported_by(
        index, "mixed", *given, {"digest": long, "url": "http://a.test/b", "container": "b.warc.gz"}
    )
    typed("index", "--merge", index)
    typed("index", "--add", "--crawl", "mixed", path.parent, index, status=7)
    assert [answers(index, one["digest"]) for one in given] == [True, False, True]
    assert answers(index, long)


@engines
@pytest.mark.parametrize("named", ["warcs/a.warc.gz", "a.warc.gz"])
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "wacz"])
def test_paths_and_files_in_a_wacz_are_those_of_the_file(
    tmp_path: Path, engine: str, named: str, packed: bool
) -> None:
    index, path = begun(tmp_path, engine, "other.warc.gz"), written(tmp_path)
    reported_by(index, "path", {"digest": GHOST, "url": "http://a.test/2", "container": named})
    typed("index", "--merge", index)
    if packed:
        with zipfile.ZipFile(tmp_path / "x.wacz", "w", zipfile.ZIP_STORED) as wacz:
            wacz.write(path, "archive/a.warc.gz")
        path = tmp_path / "x.wacz"
    typed("index", "--add", "--crawl", "path", path, index)
    assert not answers(index, GHOST, "http://a.test/2")


@engines
def test_a_report_that_is_repeated_after_a_purge_of_its_url_is_denied(
    tmp_path: Path, engine: str
) -> None:
    index = begun(tmp_path, engine, "a.warc.gz")
    reported_by(index, "sound", {"digest": DIGEST, "url": "http://c.test/"})
    typed("purge", index, "--url", URL.decode())
    again = {"digest": DIGEST, "url": URL.decode(), "container": "a.warc.gz"}
    reported_by(index, "again", again, purged=[DIGEST])
    assert answers(index, DIGEST)  # at the other URL
    listed = typed("list", index, "--digest", DIGEST)[0]
    assert "http://c.test/" in listed and URL.decode() not in listed


@engines
def test_a_build_that_was_interrupted_is_completed_by_the_next(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, path = begun(tmp_path, engine, "other.warc.gz"), written(tmp_path)
    reported_by(index, "cut", {"digest": GHOST, "url": "http://a.test/2", "container": "a.warc.gz"})
    typed("index", "--merge", index)

    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(disproved_reports, "refuse_disproved", interrupted)
        typed("index", "--add", "--crawl", "cut", path, index, status=130)
    assert answers(index, GHOST)
    another = tmp_path / "another.warc.gz"
    another.write_bytes(gz(response(b"more", Target_URI=b"http://d.test/", Date=DATE)))
    typed("index", "--copy", tmp_path / "copy", index)
    for one in (index, tmp_path / "copy"):
        typed("index", "--add", another, one)
        assert not answers(one, GHOST)
        assert not (one / disproved_reports.OWED).exists() and not (one / "merging").exists()


@engines
def test_no_record_is_refused_for_a_report_of_a_file_of_its_name(
    tmp_path: Path, engine: str
) -> None:
    """Two directories have files of one name; reports have whole paths, or the name alone."""
    index, first = begun(tmp_path, engine, "other.warc.gz"), written(tmp_path)
    second = tmp_path / "second/a.warc.gz"
    second.parent.mkdir()
    record = response(b"of b", Target_URI=b"http://a.test/b", Date=DATE, number=7)
    second.write_bytes(gz(record))
    digest = sha1(b"of b").decode()
    of_second = {"digest": digest, "url": "http://a.test/b"}
    reported_by(
        index, "both", {**of_second, "container": str(second)},
        {"digest": GHOST, "url": "http://a.test/2", "container": "a.warc.gz"},
    )  # fmt: skip
    typed("index", "--merge", index)
    typed("index", "--add", "--crawl", "both", first, index)
    assert not answers(index, GHOST) and answers(index, digest)
    typed("index", "--add", "--crawl", "both", second, index)
    listed = typed("list", index, "--digest", digest, "--json")[0]
    assert [json.loads(line)["evidence"] for line in listed.splitlines()] == ["record"]
    typed("index", "--check", index)


def test_a_crawl_may_have_any_name_that_a_server_takes(tmp_path: Path) -> None:
    index, path = begun(tmp_path, "lmdb", "other.warc.gz"), written(tmp_path)
    typed("index", "--add", "--crawl", "a'%&$\"..", path, index)
    assert originals(index) == ["record"]
    assert not (index / disproved_reports.OWED).exists()


def in_a(digest: str, url: str) -> dict[str, Any]:
    return {"digest": digest, "url": url, "container": "a.warc.gz"}


LAST_URL = "http://a.test/2"
LAST = gz(response(b"the last", Target_URI=LAST_URL.encode(), Date=DATE, number=7))
LAST_DIGEST = sha1(b"the last").decode()


def cut_off(tmp_path: Path, index: Path) -> Path:
    """The file of the crawl `cut`, which has reported both records, and wrote half of the last."""
    path = written(tmp_path)
    path.write_bytes(path.read_bytes() + LAST[: len(LAST) // 2])
    reported_by(index, "cut", in_a(LAST_DIGEST, LAST_URL), in_a(DIGEST, URL.decode()))
    typed("index", "--merge", index)
    return path


@engines
@pytest.mark.parametrize("keep", ["earliest", "latest"])
def test_a_report_whose_record_is_gone_does_not_come_back(
    tmp_path: Path, engine: str, keep: str
) -> None:
    """The record had taken its place, and nothing else is under its key."""
    index = tmp_path / "index"
    typed("index", *TYPES, "--engine", engine, "--keep", keep, "--empty", index)
    path = cut_off(tmp_path, index)
    cut = path.read_bytes()
    path.write_bytes(cut[: -(len(LAST) // 2)] + LAST)
    typed("index", "--add", "--crawl", "cut", path, index)
    path.write_bytes(cut)
    read = ("--replace", "--crawl", "cut", path, index, "--json")
    assert json.loads(typed("index", *read, status=7)[0])["disproved_reports"] == 1
    later, date = tmp_path / "later.warc.gz", b"2026-01-03T00:00:00Z"
    record = response(b"the last", Target_URI=LAST_URL.encode(), Date=date, number=9)
    later.write_bytes(gz(record))
    typed("index", "--add", "--crawl", "later", later, index)
    purged_with(index, later)


def purged_with(index: Path, path: Path) -> None:
    """Purge a file that alone has the last payload."""
    assert answers(index, LAST_DIGEST, LAST_URL)
    typed("purge", index, "--container", path)
    assert not answers(index, LAST_DIGEST, LAST_URL)


@engines
def test_a_record_in_another_file_does_not_bear_a_report_out(tmp_path: Path, engine: str) -> None:
    """That file may be purged."""
    index, copied = begun(tmp_path, engine, "other.warc.gz"), tmp_path / "z.warc.gz"
    copied.write_bytes(LAST)
    path = cut_off(tmp_path, index)
    typed("index", "--add", "--crawl", "other", copied, index)
    typed("index", "--add", "--crawl", "cut", path, index, status=7)
    purged_with(index, copied)


@engines
def test_a_file_of_a_wacz_without_a_sound_record_is_compared(tmp_path: Path, engine: str) -> None:
    index, path = begun(tmp_path, engine, "other.warc.gz"), written(tmp_path)
    reported_by(index, "cut", in_a(GHOST, "http://a.test/2"))
    typed("index", "--merge", index)
    with zipfile.ZipFile(tmp_path / "x.wacz", "w", zipfile.ZIP_STORED) as wacz:
        wacz.write(path, "archive/b.warc.gz")
        wacz.writestr("archive/a.warc.gz", path.read_bytes()[:-40])
    typed("index", "--add", "--crawl", "cut", tmp_path / "x.wacz", index, status=7)
    assert not answers(index, GHOST, "http://a.test/2")
    typed("index", "--check", index)


@engines
def test_what_is_reported_of_a_wacz_is_in_its_files(tmp_path: Path, engine: str) -> None:
    index, path = begun(tmp_path, engine, "other.warc.gz"), written(tmp_path)
    given = [in_a(DIGEST, URL.decode()), in_a(GHOST, "http://a.test/2")]
    reported_by(index, "packed", *({**one, "container": "x.wacz"} for one in given))
    typed("index", "--merge", index)
    with zipfile.ZipFile(tmp_path / "x.wacz", "w", zipfile.ZIP_STORED) as wacz:
        wacz.write(path, "archive/a.warc.gz")
    read = ("--add", "--crawl", "packed", tmp_path / "x.wacz", index, "--json")
    assert json.loads(typed("index", *read)[0])["disproved_reports"] == 1
    assert answers(index, DIGEST) and not answers(index, GHOST, "http://a.test/2")


@engines
def test_reports_of_a_purged_file_are_refused_also_later(tmp_path: Path, engine: str) -> None:
    index, path = begun(tmp_path, engine, "other.warc.gz"), written(tmp_path)
    typed("index", "--add", "--crawl", "late", path, index)
    typed("purge", index, "--container", path)
    late = in_a(GHOST, "http://a.test/2"), in_a(DIGEST, URL.decode())
    reported_by(index, "late", *late, purged=[DIGEST])
    typed("index", "--merge", index)
    assert not answers(index, GHOST, "http://a.test/2")
    assert ended("list", index, "--digest", GHOST)[0] == NOTHING_FOUND


def test_a_file_stays_in_its_crawl_when_it_is_replaced(tmp_path: Path) -> None:
    """Else what the crawl has reported of it would not be compared with it any more."""
    index, path = begun(tmp_path, "lmdb", "other.warc.gz"), written(tmp_path)
    typed("index", "--add", "--crawl", "weekly", path, index)
    path.write_bytes(gz(response(b"else", Target_URI=b"http://a.test/3", Date=DATE, number=3)))
    said = typed("index", "--replace", path, index, status=4)[1]
    assert "was read for crawl weekly, where it has to stay, and nothing was read again" in said
    assert f"bin/index --replace --crawl weekly {path} {index}" in said
    typed("index", "--replace", "--crawl", "weekly", path, index)
    typed("purge", index, "--container", path)
    assert "--crawl weekly" in typed("index", "--replace", path, index, status=4)[1]


def test_files_of_several_crawls_are_replaced_by_a_command_for_each(tmp_path: Path) -> None:
    index, path = begun(tmp_path, "lmdb", "other.warc.gz"), written(tmp_path)
    files = {"a.warc.gz": "weekly", "b.warc.gz": "daily", "c.warc.gz": ""}
    for number, (name, crawl) in enumerate(files.items(), 20):
        record = response(b"%d" % number, Target_URI=b"http://a.test/3", Date=DATE, number=number)
        (path.parent / name).write_bytes(gz(record))
        of_crawl = ("--crawl", crawl) if crawl else ()
        typed("index", "--add", *of_crawl, path.parent / name, index)
    for name in ("a.warc.gz", "c.warc.gz"):
        record = response(b"else", Target_URI=b"http://a.test/4", Date=DATE, number=ord(name[0]))
        (path.parent / name).write_bytes(gz(record))
    said = typed("index", "--replace", path.parent, index, status=4)[1]
    assert f"; bin/index --replace --crawl weekly {path} {index}" in said
    assert f"bin/index --replace {path.parent / 'c.warc.gz'} {index}; " in said
    typed("index", "--replace", "--crawl", "daily", path, index, status=4)
    said = typed("index", "--replace", "--crawl", "weekly", path, path.parent / "b.warc.gz", index)[
        1
    ]
    assert "daily" in said  # whose file is as it was, and stays in that crawl
    found = json.loads(typed("impact", index, "--crawl", "daily", "--json")[0])
    assert found["originals"]["captures"] == 1


def test_a_cdx_row_of_another_directory_is_of_the_record_that_was_purged(tmp_path: Path) -> None:
    """wget writes the path that it was given, and the file may have been moved since."""
    path, index = written(tmp_path), tmp_path / "index"
    row = f"{URL.decode()} 20260102000005 {URL.decode()} text/html 200 {DIGEST[5:]} - 0"
    cdx = tmp_path / "harvest/a.cdx"
    cdx.write_text(f" CDX N b a m s k r V g\n{row} ../out/a.warc.gz\n")
    typed("index", *TYPES, cdx, path, index)
    found = json.loads(typed("impact", index, "--container", path, "--json")[0])
    assert found["nowhere"]["captures"] == 1
    assert found["same_url"]["captures"] == found["copies"]["captures"] == 0
    typed("purge", index, "--container", path)
    assert originals(index) == []


def test_a_cdx_row_of_a_revisit_is_no_copy(tmp_path: Path) -> None:
    """As in a list that a crawler wrote before its file was rewritten in place."""
    path, index = written(tmp_path), tmp_path / "index"
    again = revisit(
        Target_URI=URL, Date=b"2026-01-02T00:00:09Z", Payload_Digest=DIGEST.encode(),
        Refers_To_Target_URI=URL, Refers_To_Date=DATE, number=5,
    )  # fmt: skip
    path.write_bytes(path.read_bytes() + gz(again))
    rows = "".join(
        f"{URL.decode()} 2026010200000{at} {URL.decode()} text/html 200 {DIGEST[5:]} - 0 {name}\n"
        for at, name in ((5, "a.warc.gz"), (9, "a.warc.gz"))
    )
    (tmp_path / "harvest/a.cdx").write_text(f" CDX N b a m s k r V g\n{rows}")
    typed("index", *TYPES, tmp_path / "harvest", index)
    found = json.loads(typed("impact", index, "--container", path, "--json")[0])
    assert found["originals"]["captures"] == found["revisits"]["captures"] == 1
    assert found["copies"]["captures"] == 0
