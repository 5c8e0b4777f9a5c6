"""Where corpora go: files that appear whole, commands, and what is read over HTTP."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

import duckdb
import pytest
import zstandard

from dedupindex.cli import main
from dedupindex.corpus import Corpus, Enrichment
from dedupindex.corpus.capture_list import jsonl_writer
from dedupindex.counts import ProgressUpdate
from dedupindex.errors import BadInput, BadSource, DedupError
from dedupindex.runtime.duckdb import open_database, write_parquet
from dedupindex.runtime.workers import map_in_order
from dedupindex.verify.collection import Collection
from dedupindex.verify.issues import REASONS, REMARK
from tests.support.commands import typed, with_small_files
from tests.support.corpora import HEADER, Page, archive, html
from tests.support.stores import web
from tests.support.warc_cases import gz
from tests.unit.cli.test_cli import dedupindex
from tests.unit.corpus.test_corpus import news
from tests.unit.warc.test_arc import document, header


def lines(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    if path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().stream_reader(data).read()
    return [json.loads(line) for line in data.splitlines()]


def test_lines_of_json_in_any_form(tmp_path: Path) -> None:
    corpus = Corpus.from_cdx(news(tmp_path)).enrich("html.title", "mime")
    wanted = list(corpus)
    for name in ("o.jsonl", "o.jsonl.gz", "o.json.zst"):
        report = corpus.save_as_json(tmp_path / name)
        assert lines(tmp_path / name) == wanted
        assert report.bytes == (tmp_path / name).stat().st_size


def test_a_table(tmp_path: Path) -> None:
    corpus = Corpus.from_cdx(news(tmp_path)).where("status == 200")
    corpus = corpus.enrich("html.title", "html.links", "response").map("payload", "size", len)
    corpus = corpus.map("payload.mime", "odd", lambda mime: 1 if "png" in mime else "one")
    corpus.map("payload", "bad", lambda data: data.nothing).save_as_parquet(tmp_path / "o.parquet")
    database = duckdb.connect()
    table = database.sql(f"FROM '{tmp_path}/o.parquet'")
    types = dict(zip(table.columns, map(str, table.types), strict=True))
    assert types["timestamp"] == "TIMESTAMP" and types["status"] == "INTEGER"
    assert types["payload.size"] == "BIGINT" and types["payload.string.html.title"] == "VARCHAR"
    found = database.sql(
        'SELECT originalUrl, "payload.string.html.title", "payload.size", "payload.mime.odd", '
        "redirectUrl, error, httpHeader ->> '$.Content-Type' "
        f"FROM '{tmp_path}/o.parquet' WHERE timestamp < '2026-11-02' ORDER BY mime"
    ).fetchall()
    why = "bad: AttributeError: 'bytes' object has no attribute 'nothing'"
    assert found == [
        ("http://news.org/logo.png", None, 10, "1", None, why, "image/png"),
        ("http://news.org/", "front", 60, '"one"', None, why, "text/html"),
    ]
    Corpus.from_cdx(tmp_path / "all.cdx").where("status == 1").save_as_parquet(
        tmp_path / "no.parquet"
    )
    assert database.sql(f"SELECT count(*) FROM '{tmp_path}/no.parquet'").fetchall() == [(0,)]
    database.close()


@pytest.mark.parametrize("name", ["digest", "Digest"])
def test_columns_whose_names_differ_only_in_case(tmp_path: Path, name: str) -> None:
    own = Enrichment("own", "", (name,), lambda nothing, entry: "x")
    corpus = Corpus.from_cdx(news(tmp_path)).enrich(own)
    with pytest.raises(BadInput, match="would be one column"):
        corpus.save_as_parquet(tmp_path / "o.parquet")


def test_parquet_of_large_numbers_and_similar_names(tmp_path: Path) -> None:
    corpus = Corpus.from_cdx(archive(tmp_path, Page("http://a.org/", body=html("x"))))
    large = corpus.map("payload", "large", lambda data: (1 << 64) - 1)
    large.save_as_parquet(tmp_path / "o.parquet")
    with duckdb.connect() as database:
        found = database.sql(f"SELECT \"payload.large\" FROM '{tmp_path}/o.parquet'").fetchall()
    assert found == [(str((1 << 64) - 1),)]
    twice = corpus.map("payload", "Size", len).map("payload", "size", len)
    with pytest.raises(BadInput, match=r"payload\.size and payload\.Size would be one column"):
        twice.save_as_parquet(tmp_path / "twice.parquet")
    assert len(list(twice)) == 1 and not (tmp_path / "twice.parquet").exists()


def test_a_cdxj(tmp_path: Path) -> None:
    one = Page("http://a.org/", 1, html("x"))
    cdx = archive(tmp_path, Page("http://b.org/", 2, of=one), one)
    Corpus.from_cdx(cdx).save_as_cdxj(tmp_path / "o.cdxj")
    text = (tmp_path / "o.cdxj").read_text()
    assert text.splitlines() == sorted(text.splitlines())
    assert '"mime":"warc/revisit"' in text.splitlines()[1]
    again = Corpus.from_cdx(tmp_path / "o.cdxj").enrich("html.title")
    assert list(again) == list(Corpus.from_cdx(cdx).enrich("html.title"))


def test_a_cdxj_of_containers_with_one_file_name(tmp_path: Path) -> None:
    """Of one URL, at one place in each: read back every capture has its own payload."""
    for year, title in ((1, "one"), (2, "two")):
        archive(tmp_path / f"{year}", Page("http://a.org/", year, html(title)), cdx="all.cdxj")
        (tmp_path / f"{year}" / "all.cdxj").unlink()
    corpus = Corpus.from_warcs(tmp_path)
    corpus.save_as_cdxj(tmp_path / "o.cdxj")
    again = Corpus.from_cdx(tmp_path / "o.cdxj").enrich("html.title")
    assert list(again) == list(corpus.enrich("html.title"))
    text = (tmp_path / "o.cdxj").read_text()
    assert f'"filename":"{tmp_path}/2/a.warc.gz"' in text
    short = re.sub(r'"filename":"[^"]*/', '"filename":"', text)
    (tmp_path / "o.cdxj").write_text(short)  # as others write it: which of them is it?
    found = list(Corpus.from_cdx(tmp_path / "o.cdxj", containers=tmp_path).enrich("html.title"))
    assert [entry["payload"] for entry in found if "payload" in entry] == [
        {"string": {"html": {"title": "one"}}}
    ]
    (wrong,) = (entry["error"] for entry in found if "error" in entry)
    assert "at the offset in its metadata is another capture, of 20261101091417" in wrong


def test_a_cdxj_keeps_odd_captures(tmp_path: Path) -> None:
    one = Page("http://a.org/", 1, html("x"))
    profile = b"http://netpreserve.org/warc/1.1/revisit/server-not-modified"
    unmodified = Page("http://a.org/", 2, of=one, fields={"Profile": profile}, status=304)
    odd = Page("http://a.org/odd", 3, b"x", head=b"HTTP/1.1 200 OK\r\n\r\n")
    archive(tmp_path, one, unmodified, odd).unlink()
    corpus = Corpus.from_warcs(tmp_path)
    corpus.save_as_cdxj(tmp_path / "o.cdxj")
    again = Corpus.from_cdx(tmp_path / "o.cdxj")
    titles = [[e["payload"] for e in some.enrich("html.title").where("mime == 'text/html'")]
              for some in (corpus, again)]  # fmt: skip
    assert titles == [[{"string": {"html": {"title": "x"}}}] * 2] * 2
    mimes = [[entry["record"]["mime"] for entry in some] for some in (corpus, again)]
    assert [sorted(some) for some in mimes] == [["-", "text/html", "text/html"]] * 2


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_self_contained_warc(tmp_path: Path, ending: str) -> None:
    one = Page("http://a.org/", 1, html("original" * 99), file=f"a.warc{ending}")
    again = Page("http://b.org/", 2, of=one, file=f"b.warc{ending}")
    more = Page("http://c.org/", 3, html("other"), file=f"b.warc{ending}")
    cdx = archive(tmp_path, one, again, more)
    out = tmp_path / "o" / "some.warc.gz"
    out.parent.mkdir()
    report = Corpus.from_cdx(cdx).where("timestamp > '2026-11-01'").save_as_warc(out)
    assert (report.entries, report.records, dict(report.errors), report.problems) == (2, 3, {}, [])
    levels = [REASONS[finding.reason] for finding in Collection([out]).findings()]
    assert [level for level in levels if level != REMARK] == []
    if ending:
        assert out.read_bytes().endswith(one.stored + again.stored + more.stored)
    found = {
        e["record"]["originalUrl"]: e for e in Corpus.from_cdx(out.parent).enrich("html.title")
    }
    titles = {url: entry["payload"]["string"]["html"]["title"] for url, entry in found.items()}
    assert titles == {"http://a.org/": "original" * 99, "http://b.org/": "original" * 99,
                      "http://c.org/": "other"}  # fmt: skip
    assert sorted(path.name for path in out.parent.iterdir()) == ["some.cdxj", "some.warc.gz"]
    every = Corpus.from_cdx(cdx).save_as_warc(tmp_path / "all.warc.gz")
    assert (every.entries, len(lines_of(tmp_path / "all.cdxj"))) == (3, 3)
    with pytest.raises(BadInput, match=r"ends with \.warc\.gz"):
        Corpus.from_cdx(cdx).save_as_warc(tmp_path / "o.warc")


def test_one_line_for_each_kind_of_defect(tmp_path: Path) -> None:
    one = Page("http://a.org/", 1, html("original"))
    unnamed = {"Refers_To_Target_URI": None, "Refers_To_Date": None}  # as wget leaves them out
    more = [Page("http://a.org/", day, of=one, fields=unnamed) for day in (2, 3, 4)]
    chained = {"Refers_To_Target_URI": b"http://a.org/", "Refers_To_Date": more[0].date}
    more.append(Page("http://a.org/", 5, of=one, fields=chained))
    report = Corpus.from_cdx(archive(tmp_path, one, *more)).save_as_warc(tmp_path / "o.warc.gz")
    messages = {problem.message.partition(":")[0]: problem.message for problem in report.problems}
    assert report.entries == 5 and len(messages) == len(report.problems)
    assert messages["no-refers-to-uri"].endswith(" (and 2 more)")
    assert f"it refers to a revisit: {tmp_path}/o.warc.gz at " in messages["chained"]


def test_one_line_for_each_missing_container(tmp_path: Path) -> None:
    pages = [
        Page(f"http://a.org/{n}", body=html(f"{n}"), file=f"{n % 2}.warc.gz") for n in range(7)
    ]
    cdx = archive(tmp_path, *pages)
    (tmp_path / "1.warc.gz").unlink()
    report = Corpus.from_cdx(cdx).save_as_warc(tmp_path / "o.warc.gz")
    assert (report.chosen, report.entries, report.errors) == (7, 4, {"warc": 3})
    (problem,) = report.problems
    assert problem.container == "1.warc.gz" and problem.message.endswith("(and 2 more)")


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_only_the_first_record_of_a_shared_member_is_taken(tmp_path: Path) -> None:
    one, two = (Page(f"http://a.org/{name}", body=html(name)) for name in ("one", "two"))
    stored = gz(one.record(1) + two.record(2))
    (tmp_path / "a.warc.gz").write_bytes(stored)
    one.offset, one.stored = 0, stored
    (tmp_path / "x.cdx").write_text(HEADER + one.cdx())
    Corpus.from_cdx(tmp_path / "x.cdx").save_as_warc(tmp_path / "o.warc.gz")
    written = gzip.decompress((tmp_path / "o.warc.gz").read_bytes())
    assert written.endswith(one.record(1)) and two.url.encode() not in written


def test_records_that_cannot_be_written_to_a_warc(tmp_path: Path) -> None:
    (tmp_path / "x.arc.gz").write_bytes(gz(header()) + gz(document()))
    archive(tmp_path, Page("http://a.org/", body=html("x")))
    (tmp_path / "all.cdx").unlink()
    report = Corpus.from_warcs(tmp_path).save_as_warc(tmp_path / "o.warc.gz")
    assert (report.errors, len(report.problems)) == ({"warc": 1}, 1)
    assert "bin/convert" in report.problems[0].message
    assert (report.chosen, report.entries) == (2, 1)
    assert len(lines_of(tmp_path / "o.cdxj")) == 1


@pytest.mark.parametrize("name", ["o.jsonl", "o.jsonl.gz", "o.parquet", "o.warc.gz"])
def test_the_error_of_a_full_disk_names_the_file(tmp_path: Path, name: str) -> None:
    pages = (Page(f"http://a.org/{n}", body=html("t", os.urandom(3000).hex())) for n in range(60))
    words = ["corpus", archive(tmp_path / "a", *pages), "-o", tmp_path / name]
    words += [] if name.endswith("warc.gz") else ["--enrich", "text"]
    line = [sys.executable, "-m", "dedupindex", *map(str, words), "--jobs", "1"]
    done = subprocess.run(with_small_files(58, line), capture_output=True, text=True)
    match = re.fullmatch("dedupindex: (.*): File too large\n", done.stderr)
    assert done.returncode == 3 and match, done.stderr
    # a table is put aside before it is made
    assert match[1] == str(tmp_path / name) or (name == "o.parquet" and match[1].endswith("/rows"))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_error_of_a_full_disk_names_the_temporary_file(tmp_path: Path) -> None:
    """The output may be on a disk that has room."""
    pages = (Page(f"http://a.org/{n}", body=html("t", os.urandom(3000).hex())) for n in range(60))
    source = archive(tmp_path / "a", *pages)
    with pytest.raises(OSError, match="File too large") as failed, small():
        Corpus.from_cdx(source).enrich("text").having(jobs=1, work=tmp_path).save_as_parquet(
            tmp_path / "o.parquet"
        )
    assert "/.corpus-" in failed.value.filename and failed.value.filename.endswith("/rows")
    with (
        pytest.raises(OSError, match="File too large") as failed,
        small(),
        jsonl_writer(tmp_path / "spool") as add,
    ):
        for number in range(3000):
            add(url=f"http://a.org/{number}", container="x" * 50)
    assert failed.value.filename == f"{tmp_path}/spool"


@contextmanager
def small() -> Iterator[None]:
    """Files of this process are small, too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_errors_of_duckdb_name_the_file(tmp_path: Path) -> None:
    with open_database(tmp_path, "100MB", 1) as (database, _):
        rows = "SELECT hash(range) FROM range(200000)"
        with pytest.raises(DedupError, match=f"^{tmp_path}/o.parquet was not written: "), small():
            write_parquet(database, rows, tmp_path / "o.parquet")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["o.jsonl.gz", "o.parquet", "o.cdxj", "o.warc.gz"])
def test_a_run_that_breaks_off_leaves_nothing(tmp_path: Path, name: str) -> None:
    cdx = news(tmp_path)
    before = sorted(tmp_path.iterdir())

    def broken(plan: Any, chunks: Any) -> Iterator[Any]:
        yield from ()
        raise DedupError("the cluster has gone")

    corpus = Corpus.from_cdx(cdx).having(run=broken, work=tmp_path)
    save = {"o.jsonl.gz": corpus.save_as_json, "o.parquet": corpus.save_as_parquet,
            "o.cdxj": corpus.save_as_cdxj, "o.warc.gz": corpus.save_as_warc}  # fmt: skip
    with pytest.raises(DedupError, match="has gone"):
        save[name](tmp_path / name)
    assert sorted(tmp_path.iterdir()) == before


def test_the_command(tmp_path: Path) -> None:
    cdx = news(tmp_path)
    out, talk = typed("corpus", cdx, "--where", "mime == 'text/html'", "--latest", "url",
                           "--matching", "payload.string.text", "(?i)FLOOD", "--enrich",
                           "html.title, mime")  # fmt: skip
    (entry,) = map(json.loads, out.splitlines())
    assert entry["record"]["timestamp"] == "2026-11-02T09:14:17Z"
    assert entry["payload"] == {"string": {"html": {"title": "front"}}, "mime": "text/html"}
    assert talk == ""
    out, _ = typed(
        "corpus", tmp_path, "--first", "digest", "-o", tmp_path / "o.jsonl.zst", "--json"
    )
    assert json.loads(out)["entries"] == len(lines(tmp_path / "o.jsonl.zst")) == 5
    (tmp_path / "mine.py").write_text("def size(text):\n    return len(text)\n")
    out, _ = dedupindex("corpus", cdx, "--map", "payload", "size", "mine:size",
                        "--where", "status == 404", PYTHONPATH=str(tmp_path))  # fmt: skip
    assert json.loads(out)["payload"] == {"size": len(html("404"))}
    (tmp_path / "wrong.py").write_text("def f(:\n")
    _, talk = dedupindex("corpus", cdx, "--map", "payload", "size", "wrong:f", status=4,
                         PYTHONPATH=str(tmp_path))  # fmt: skip
    assert "'wrong:f' cannot be loaded: SyntaxError" in talk
    out, _ = typed("corpus", cdx, "-o", tmp_path / "o.warc.gz")
    assert out.startswith("5 captures matched the filter; 5 records read, ")
    out, talk = typed("corpus", cdx, "--where", "status == 1")
    assert (out, talk.strip()) == ("", "no capture matched the filter")
    with cdx.open("a") as stream:
        stream.write("this is not a capture\n")
    out, talk = typed("corpus", cdx, "--where", "status == 404", status=7)
    assert len(out.splitlines()) == 1
    assert talk == "CDX lines skipped, not captures: 1\n"
    (tmp_path / "c.warc").unlink()
    out, talk = typed("corpus", cdx, "--enrich", "mime", status=7)
    assert len(out.splitlines()) == 5
    assert "response failed for 2 captures; each has an error in its place" in talk


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--where", "status = 200"], 4, "status"),
        (["--enrich", "colour"], 4, "no enrichment 'colour'"),
        (["--matching", "payload.string", "("], 4, "is not a regular expression"),
        (["--map", "payload", "x", "nowhere:f"], 4, "'nowhere:f' cannot be loaded"),
        (["--map", "payload", "x", "os:sep"], 4, "is not a function"),
        (["-o", "o.txt"], 4, "its ending says what to write"),
        (["-o", "/nowhere/o.jsonl"], 2, "o.jsonl cannot be written: its directory does not exist"),
        (["--enrich", "mime", "-o", "new.warc.gz"], 4, "cannot hold what"),
        (["--map", "payload", "x", "os:fspath", "-o", "new.cdxj"], 4, "cannot hold what"),
        (["--json"], 2, "--json needs -o"),
        (["--originals", "nowhere"], 6, "nowhere"),
        (["--containers", "nowhere"], 4, "does not exist"),
    ],
)  # fmt: skip
def test_the_command_refuses(tmp_path: Path, words: list[str], status: int, message: str) -> None:
    cdx = archive(tmp_path, Page("http://b.org/", 2, of=Page("http://a.org/", body=b"x")))
    _, talk = typed("corpus", cdx, *words, status=status)
    assert message in talk


def test_ranges_over_http(tmp_path: Path) -> None:
    one = Page("http://a.org/", 1, html("original"))
    archive(tmp_path, Page("http://x.org/", 1, os.urandom(200_000)), one,
            Page("http://b.org/", 2, of=one, file="b.warc.gz"))  # fmt: skip
    with web(tmp_path) as server:
        corpus = Corpus.from_cdx(f"{server.url}/all.cdx").having(jobs=1)
        (entry,) = corpus.where("hostname == 'b.org'").enrich("html.title")
        assert entry["payload"]["string"]["html"]["title"] == "original"
        asked = [(path, wanted) for how, path, wanted in server.requests if how == "GET"]
        ranges = {path: wanted for path, wanted in asked if "warc" in path}
        end = one.offset + len(one.stored) - 1
        assert ranges["/a.warc.gz"] == f"bytes={one.offset}-{end}"
        here = Corpus.from_cdx(tmp_path / "all.cdx", containers=f"{server.url}/")
        (entry,) = here.where("hostname == 'a.org'").enrich("html.title")
        assert entry["payload"]["string"]["html"]["title"] == "original"
        scanned = Corpus.from_warcs(f"{server.url}/b.warc.gz", f"{server.url}/a.warc.gz")
        assert scanned.where("hostname == 'b.org'").enrich("html.title").count() == 1


def _squared(shared: int, number: int) -> int:
    if number == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 21:
        raise ValueError(number)
    return number**shared


def _lost(number: int) -> Iterator[int]:
    yield -number


@pytest.mark.parametrize("jobs", [2, 3])
def test_tasks_in_turn(jobs: int) -> None:
    taken: list[int] = []

    def tasks(count: int) -> Iterator[int]:
        for number in range(count):
            taken.append(number)
            yield number

    done = map_in_order(_squared, 2, tasks(20), jobs, _lost)
    assert next(done) == 0
    assert len(taken) < 20  # they are taken as they are needed
    assert list(done) == [-13 if number == 13 else number**2 for number in range(1, 20)]
    run: Callable[[], list[int]] = lambda: list(map_in_order(_squared, 2, tasks(30), jobs, _lost))  # noqa: E731
    with pytest.raises(ValueError, match="21"):
        run()


def _deadly(text: str) -> bool:
    if "deadly" in text:
        os.kill(os.getpid(), signal.SIGKILL)
    return "good" in text


@pytest.mark.parametrize("days", [(1, 2, 3), range(1, 260)])
def test_a_capture_that_kills_its_process_costs_no_other_of_its_url(
    tmp_path: Path, days: Iterable[int]
) -> None:
    """Also where a group is longer than a chunk."""
    *early, deadly, last = days
    pages = [
        Page("http://a.org/", body=html("deadly" if day == deadly else "no" if day == last else
             "good" if day == early[0] else "bad"), fields={"Date": _date(day)})
        for day in days
    ]  # fmt: skip
    pages.append(Page("http://b.org/", 1, html("good too")))
    archive(tmp_path, *pages)
    corpus = Corpus.from_warcs(tmp_path / pages[0].file).having(jobs=2)
    found = corpus.filter("payload.string", _deadly).latest("url").enrich("html.title")
    titles = [
        entry.get("payload", {}).get("string", {}).get("html", {}).get("title")
        or entry["error"].partition(":")[0]
        for entry in found
    ]
    assert sorted(titles) == ["good", "good too", "process"]


def _date(day: int) -> bytes:
    return (
        (datetime(2025, 1, 1, tzinfo=UTC) + timedelta(day)).strftime("%Y-%m-%dT00:00:00Z").encode()
    )


def test_a_container_that_cannot_be_opened_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is down is asked several times, with pauses: not for each capture."""
    source = archive(tmp_path, *(Page(f"http://a.org/{n}", body=b"x") for n in range(80)))
    tried: list[str] = []

    def opened(path: str) -> BinaryIO:
        tried.append(path)
        raise BadSource("nobody answers")

    monkeypatch.setattr("dedupindex.corpus.read_records.open_anywhere", opened)
    entries = list(Corpus.from_cdx(source).having(jobs=1).enrich("response"))
    assert [entry["error"] for entry in entries] == [
        f"response: {tmp_path}/a.warc.gz cannot be read: nobody answers"
    ] * 80
    assert len(tried) <= 10  # once for each chunk


def test_nothing_that_is_read_is_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arc = tmp_path / "arc"
    arc.mkdir()
    source = news(arc)
    files = {path: path.read_bytes() for path in arc.iterdir()}
    [first, *_] = sorted(path for path in files if path.name.endswith(".warc.gz"))
    (tmp_path / "x").mkdir()
    for out in (first, tmp_path / "x" / ".." / "arc" / first.name):
        assert main(["corpus", str(arc), "-o", str(out)]) == BadInput.exit_status, out
        assert "are never overwritten" in capsys.readouterr().err
    (tmp_path / "new.cdxj").write_text("a list of something else")
    with pytest.raises(BadInput, match="new.cdxj exists"):
        Corpus.of(arc).save_as_warc(tmp_path / "new.warc.gz")
    odd = arc / "captures"
    source.rename(odd)
    with pytest.raises(BadInput, match="is read as a SOURCE"):
        Corpus.from_cdx(odd, containers=arc).save_as_json(odd)
    (tmp_path / "link.jsonl").symlink_to(first)
    with pytest.raises(BadInput, match="overwritten"):
        Corpus.of(arc).save_as_json(tmp_path / "link.jsonl")
    odd.rename(source)
    assert {path: path.read_bytes() for path in arc.iterdir()} == files
    for _ in range(2):  # our own may be made anew
        assert Corpus.of(arc).save_as_json(arc / "o.jsonl").entries


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("taken", ["o.warc.gz", "o.cdxj"])
def test_files_that_appear_meanwhile_are_not_overwritten(
    tmp_path: Path, taken: str, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by another run with the same name, or on a file system without hard links."""

    def no_link(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no hard links")

    if not links:
        monkeypatch.setattr(os, "link", no_link)
    corpus = Corpus.from_cdx(news(tmp_path / "in"))
    out = tmp_path / "out"
    out.mkdir()

    def meanwhile(seen: ProgressUpdate) -> None:
        (out / taken).write_text("theirs")

    late = corpus.having(on_progress=meanwhile)
    for save in (late.save_as_warc, *([late.save_as_cdxj] if taken == "o.cdxj" else [])):
        with pytest.raises(BadInput, match=f"{taken} exists, and archives are never overwritten"):
            save(out / ("o.warc.gz" if save == late.save_as_warc else "o.cdxj"))
        assert [path.name for path in out.iterdir()] == [taken]
        assert (out / taken).read_text() == "theirs"
        (out / taken).unlink()
    corpus.save_as_warc(out / "o.warc.gz")
    assert sorted(path.name for path in out.iterdir()) == ["o.cdxj", "o.warc.gz"]


def test_missing_packages_are_reported_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    cdx, there = str(news(tmp_path)), "http://127.0.0.1:9/warcs/"
    assert main(["corpus", cdx, "--containers", there, "--enrich", "text"]) == 4
    output = capsys.readouterr()
    assert output.err.count("\n") == 1 and not output.out
    assert "bin/setup remote" in output.err


# --- CDX -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["o.cdx", "o.cdx.gz"])
def test_a_cdx_lists_what_was_selected(tmp_path: Path, name: str) -> None:
    one = Page("http://a.org/", 1, html("x"))
    pages = [one, Page("http://a.org/again", 2, of=one), Page("http://b.org/", 3, status=404)]
    cdx = archive(tmp_path, *pages)
    corpus = Corpus.from_warcs(tmp_path / "a.warc.gz")
    corpus.save_as_cdx(tmp_path / name)
    data = (tmp_path / name).read_bytes()
    text = (gzip.decompress(data) if name.endswith(".gz") else data).decode()
    assert text == cdx.read_text()
    again = Corpus.from_cdx(tmp_path / name).enrich("html.title")
    assert [entry for entry in again] == list(Corpus.from_cdx(cdx).enrich("html.title"))
    with pytest.raises(BadInput, match="never overwritten"):
        corpus.save_as_cdx(tmp_path / name)


def test_a_cdx_of_odd_values(tmp_path: Path) -> None:
    page = Page("http://a.org/a b\u00e9", 1, html("x"))
    archive(tmp_path / "one", page)
    archive(tmp_path / "two", page)
    corpus = Corpus.from_warcs(tmp_path / "one", tmp_path / "two")
    corpus.save_as_cdx(tmp_path / "o.cdx")
    first, second = (line.split(" ") for line in (tmp_path / "o.cdx").read_text().splitlines()[1:])
    assert len(first) == len(second) == 11
    assert first[2] == "http://a.org/a%20b\u00e9"
    assert [line[10] for line in (first, second)] == [
        str(tmp_path / folder / "a.warc.gz") for folder in ("one", "two")
    ]
    page.file = "a b.warc.gz"
    archive(tmp_path / "three", page)
    with pytest.raises(BadInput, match="file name with space"):
        Corpus.from_warcs(tmp_path / "three").save_as_cdx(tmp_path / "p.cdx")
    assert not (tmp_path / "p.cdx").exists()


def test_a_data_frame_without_its_package(tmp_path: Path) -> None:
    corpus = Corpus.from_cdx(tmp_path / "none.cdx")
    with pytest.raises(BadInput, match="polars or pandas, not of 'dask'"):
        corpus.to_dataframe("dask")
    with pytest.raises(BadInput, match="needs the package polars"):
        corpus.to_dataframe("polars")


# --- limits, and what an error does --------------------------------------------------------------


def test_the_largest_record(tmp_path: Path) -> None:
    packed = gzip.compress(html("big", "x" * 3000))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\n\r\n"
    pages = [
        Page("http://a.org/big", 1, html("big", "x" * 3000)),
        Page("http://a.org/packed", 2, packed, head=head),
        Page("http://a.org/", 3, html("x")),
    ]
    cdx = archive(tmp_path, *pages)
    for size, failing in (("64MiB", set()), ("1KiB", {"http://a.org/big", "http://a.org/packed"})):
        out, _ = typed(
            "corpus", cdx, "--enrich", "html.title", "--max-record", size, status=7 * bool(failing)
        )
        entries = [json.loads(line) for line in out.splitlines()]
        failed = {one["record"]["originalUrl"] for one in entries if "error" in one}
        assert failed == failing
    assert "is not a size" in typed("corpus", cdx, "--max-record", "much", status=2)[1]
    assert "at least 1 byte" in typed("corpus", cdx, "--max-record", "0", status=4)[1]


@pytest.mark.parametrize("name", ["o.jsonl", "o.parquet", "o.warc.gz"])
def test_the_first_error_ends_the_run_by_choice(tmp_path: Path, name: str) -> None:
    pages = [Page("http://a.org/", 1, html("x")),
             Page("http://b.org/", 2, html("y"), file="gone.warc.gz")]  # fmt: skip
    cdx = archive(tmp_path, *pages)
    (tmp_path / "gone.warc.gz").unlink()
    words = [] if name.endswith(".warc.gz") else ["--enrich", "response"]
    line = ["corpus", cdx, *words, "-o", tmp_path / name]
    _, talk = typed(*line, "--on-error", "stop", status=7)
    assert "http://b.org/ of 20261102091417" in talk
    assert "gone.warc.gz was not found" in talk
    assert not (tmp_path / name).exists() and not (tmp_path / "o.cdxj").exists()
    cdx.write_text(cdx.read_text() + "damaged\n")
    _, talk = typed(*line, "--where", "hostname == 'a.org'", "--on-error", "stop", status=7)
    assert "lines of the metadata that are no captures: 1" in talk
    typed(*line, status=7)
    assert (tmp_path / name).exists()


def test_the_publisher_is_in_the_warcinfo(tmp_path: Path) -> None:
    cdx = archive(tmp_path, Page("http://a.org/", 1, html("x")))
    out = tmp_path / "o.warc.gz"
    typed("corpus", cdx, "--publisher", "Bibliothèque d'État", "-o", out)
    data = gzip.decompress(out.read_bytes())
    info = data[: data.index(b"WARC-Type: response")]
    assert "\r\npublisher: Bibliothèque d'État\r\n".encode() in info
    typed("corpus", "--again", out, "-o", tmp_path / "again.warc.gz")
    assert b"publisher: Bib" in gzip.decompress((tmp_path / "again.warc.gz").read_bytes())
    with pytest.raises(BadInput, match="one line of text"):
        Corpus.from_cdx(cdx).having(publisher="x\r\nsoftware: y")
