"""Where corpora go: files that appear whole, commands, and what is read over HTTP."""

from __future__ import annotations

import gzip
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
import zstandard

from dedupindex.cli import main
from dedupindex.corpus import Corpus
from dedupindex.errors import BadInput, DedupError
from dedupindex.processes import in_turn
from dedupindex.verify.collection import Collection
from dedupindex.verify.finding import REASONS, REMARK
from tests.corpora import Page, archive, html
from tests.stores import web
from tests.test_cli import dedupindex
from tests.test_corpus import news
from tests.test_warc_arc import document, header
from tests.warc_cases import gz


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


def test_a_cdxj(tmp_path: Path) -> None:
    one = Page("http://a.org/", 1, html("x"))
    cdx = archive(tmp_path, Page("http://b.org/", 2, of=one), one)
    Corpus.from_cdx(cdx).save_as_cdxj(tmp_path / "o.cdxj")
    text = (tmp_path / "o.cdxj").read_text()
    assert text.splitlines() == sorted(text.splitlines())
    assert '"mime":"warc/revisit"' in text.splitlines()[1]
    again = Corpus.from_cdx(tmp_path / "o.cdxj").enrich("html.title")
    assert list(again) == list(Corpus.from_cdx(cdx).enrich("html.title"))


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_warc_of_its_own(tmp_path: Path, ending: str) -> None:
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


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_what_goes_into_no_warc(tmp_path: Path) -> None:
    (tmp_path / "x.arc.gz").write_bytes(gz(header()) + gz(document()))
    archive(tmp_path, Page("http://a.org/", body=html("x")))
    (tmp_path / "all.cdx").unlink()
    report = Corpus.from_warcs(tmp_path).save_as_warc(tmp_path / "o.warc.gz")
    assert (report.errors, len(report.problems)) == ({"warc": 1}, 1)
    assert "bin/convert" in report.problems[0].message
    assert len(lines_of(tmp_path / "o.cdxj")) == 1


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
    out, talk = dedupindex("corpus", cdx, "--where", "mime == 'text/html'", "--latest", "url",
                           "--matching", "payload.string.text", "(?i)FLOOD", "--enrich",
                           "html.title, mime")  # fmt: skip
    (entry,) = map(json.loads, out.splitlines())
    assert entry["record"]["timestamp"] == "2026-11-02T09:14:17Z"
    assert entry["payload"] == {"string": {"html": {"title": "front"}}, "mime": "text/html"}
    assert talk == ""
    out, _ = dedupindex(
        "corpus", tmp_path, "--first", "digest", "-o", tmp_path / "o.jsonl.zst", "--json"
    )
    assert json.loads(out)["entries"] == len(lines(tmp_path / "o.jsonl.zst")) == 5
    (tmp_path / "mine.py").write_text("def size(text):\n    return len(text)\n")
    out, _ = dedupindex("corpus", cdx, "--map", "payload", "size", "mine:size",
                        "--where", "status == 404", PYTHONPATH=str(tmp_path))  # fmt: skip
    assert json.loads(out)["payload"] == {"size": len(html("404"))}
    out, _ = dedupindex("corpus", cdx, "-o", tmp_path / "o.warc.gz")
    assert out.startswith("5 captures of 5 that their metadata left; 5 records read, ")
    (tmp_path / "c.warc").unlink()
    out, talk = dedupindex("corpus", cdx, "--enrich", "mime", status=7)
    assert len(out.splitlines()) == 5
    assert "response failed for 2, which have an error in its place" in talk


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--where", "status = 200"], 4, "status"),
        (["--enrich", "colour"], 4, "no enrichment 'colour'"),
        (["--matching", "payload.string", "("], 4, "is no regular expression"),
        (["--map", "payload", "x", "nowhere:f"], 4, "'nowhere:f' cannot be loaded"),
        (["--map", "payload", "x", "os:sep"], 4, "is no function"),
        (["-o", "o.txt"], 4, "its ending says what to write"),
        (["--json"], 2, "name that with -o"),
        (["--originals", "nowhere"], 6, "nowhere"),
        (["--containers", "nowhere"], 4, "is not there"),
    ],
)  # fmt: skip
def test_the_command_refuses(tmp_path: Path, words: list[str], status: int, said: str) -> None:
    cdx = archive(tmp_path, Page("http://b.org/", 2, of=Page("http://a.org/", body=b"x")))
    _, talk = dedupindex("corpus", cdx, *words, status=status)
    assert said in talk


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

    done = in_turn(_squared, 2, tasks(20), jobs, _lost)
    assert next(done) == 0
    assert len(taken) < 20  # they are taken as they are needed
    assert list(done) == [-13 if number == 13 else number**2 for number in range(1, 20)]
    run: Callable[[], list[int]] = lambda: list(in_turn(_squared, 2, tasks(30), jobs, _lost))  # noqa: E731
    with pytest.raises(ValueError, match="21"):
        run()


def test_nothing_that_is_read_is_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arc = tmp_path / "arc"
    arc.mkdir()
    source = news(arc)
    files = {path: path.read_bytes() for path in arc.iterdir()}
    [first, *_] = sorted(path for path in files if path.name.endswith(".warc.gz"))
    for out in (first, arc / "x" / ".." / first.name):
        assert main(["corpus", str(arc), "-o", str(out)]) == BadInput.exit_status, out
        assert "is ever overwritten" in capsys.readouterr().err
    (tmp_path / "new.cdxj").write_text("a list of something else")
    with pytest.raises(BadInput, match="new.cdxj is there"):
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
