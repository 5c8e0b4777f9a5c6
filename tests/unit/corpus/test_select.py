"""The captures of CDX and CDXJ files, and those that are selected, against a simple model."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from zipfile import ZipFile

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.corpus import Corpus, CorpusReport
from dedupindex.corpus.capture_list import SourceContext
from dedupindex.corpus.extract import nothing
from dedupindex.corpus.from_cdx import CdxCaptures
from dedupindex.corpus.output import cdxj_line
from dedupindex.corpus.row import CorpusRow, RecordPlace
from dedupindex.corpus.select import conditions, digest_key
from dedupindex.digest import Digest, Spelling, is_cut
from dedupindex.errors import BadSource
from tests.support.budgets import examples
from tests.support.corpora import HEADER, Page, archive, html
from tests.unit.corpus.test_corpus import urls


class Row(NamedTuple):
    """A line of a CDX."""

    url: str
    second: int
    mime: str
    status: str
    digest: str

    @property
    def timestamp(self) -> str:
        return f"202611010000{self.second:02d}"

    @property
    def revisit(self) -> bool:
        return self.mime == "warc/revisit"

    def line(self, number: int) -> str:
        key = self.url.replace("http://", "").replace("/", ")/")
        return (
            f"{key} {self.timestamp} {self.url} {self.mime} {self.status} {self.digest} - - "
            f"100 {number} a.warc.gz\n"
        )


DIGESTS = [letter * 32 for letter in "BCD"]
rows = st.builds(
    Row,
    st.sampled_from(["http://a/", "http://a/x", "http://b/"]),
    st.integers(0, 6),
    st.sampled_from(["text/html", "image/png", "warc/revisit", "-"]),
    st.sampled_from(["200", "404", "-"]),
    st.sampled_from([*DIGESTS, "-"]),
)


def seen(path: Path, corpus: Corpus) -> list[tuple[str, str, int]]:
    """URL, timestamp and number of every capture of a corpus."""
    kept = corpus.kept(CorpusReport(), nothing)
    return sorted((k.capture.url, k.capture.timestamp, k.capture.record.offset) for k in kept)


def order(pair: tuple[int, Row]) -> tuple[Any, ...]:
    number, row = pair
    return row.timestamp, row.revisit, row.url, number


def resolved(found: list[Row], row: Row) -> Row:
    """A revisit with the media type and status of the capture that it repeats."""
    if not row.revisit:
        return row
    same = [o for o in enumerate(found) if not o[1].revisit and o[1].digest == row.digest != "-"]
    same = [o for o in same if o[1].url == row.url] or same
    if not same:
        return row._replace(mime="-")
    original = min(same, key=lambda pair: (pair[1].timestamp, pair[1].url, pair[0]))[1]
    status = original.status if row.status == "-" else row.status
    return row._replace(mime=original.mime, status=status)


@settings(max_examples=examples(25))
@given(st.lists(rows, max_size=12), st.data())
def test_selection(found: list[Row], data: st.DataObject) -> None:
    revisits = data.draw(st.sampled_from(["resolve", "skip", "once"]))
    group = data.draw(st.sampled_from([None, ("url", True), ("url", False), ("digest", False)]))
    conditions = {
        "status == 200": lambda row: row.status == "200",
        "mime != 'text/html'": lambda row: row.mime != "text/html",
        "timestamp > '2026-11-01T00:00:02'": lambda row: row.second > 2,
        "url =~ 'x$'": lambda row: row.url.endswith("x"),
    }
    chosen = data.draw(st.lists(st.sampled_from(sorted(conditions)), max_size=2))
    left = [
        (number, row if revisits == "skip" else resolved(found, row))
        for number, row in enumerate(found)
    ]
    was = {number for number, row in enumerate(found) if row.revisit}
    if revisits == "skip":
        left = [(number, row) for number, row in left if number not in was]
    versions = data.draw(st.sampled_from([None, (0, 2), (len(chosen), 2), (len(chosen), 1)]))
    with _lines(found) as path:
        corpus = Corpus.from_cdx(path).having(revisits=revisits, jobs=1)
        for place, condition in enumerate([*chosen, "true"]):
            if versions and versions[0] == place:  # wherever it is given, it counts what is left
                corpus = corpus.where(f"versions >= {versions[1]} and versions < 4")
            if condition != "true":
                corpus = corpus.where(condition)
                left = [(number, row) for number, row in left if conditions[condition](row)]
        if versions:
            left = _with_versions(left, range(versions[1], 4))
        groups = [group] if group else []
        if group:
            corpus = corpus.latest(group[0]) if group[1] else corpus.first(group[0])
        if revisits == "once":
            groups.append(("digest", False))
        for by, latest in groups:
            left = _best(left, was, by, latest=latest)
        assert seen(path, corpus) == sorted((row.url, row.timestamp, n) for n, row in left)
        assert corpus.count() == len(left)


def _row(timestamp: str, **more: Any) -> CorpusRow:
    values = dict.fromkeys(CorpusRow._fields) | {"url": "http://a/", "revisit": False} | more
    place = RecordPlace("a.warc.gz", 1, 100)
    return CorpusRow(**values | {"timestamp": timestamp, "record": place})  # type: ignore[arg-type]


_TIMES = st.builds(
    "20161231{}{:02d}".format, st.sampled_from(["2358", "2359"]), st.integers(57, 60)
) | st.builds("20170101{}{:02d}".format, st.sampled_from(["0000", "2359"]), st.integers(0, 2))


@given(st.lists(_TIMES, max_size=8), st.sampled_from(["<", "<=", "==", "!=", ">=", ">"]), _TIMES)
def test_times_in_sql_are_those_in_python(found: list[str], sign: str, other: str) -> None:
    """Also of a second 60, which DuckDB does not know."""
    parsed = conditions(f"timestamp {sign} '{other}'")
    with duckdb.connect() as database:
        database.execute('CREATE TABLE captures ("timestamp" VARCHAR)')
        for one in found:
            database.execute("INSERT INTO captures VALUES (?)", [one])
        query = f'SELECT "timestamp" FROM captures WHERE {" AND ".join(c.sql for c in parsed)}'
        of_sql = [one for (one,) in database.execute(query).fetchall()]
    assert of_sql == [one for one in found if all(c.holds(_row(one)) for c in parsed)]


def test_captures_of_a_leap_second_are_kept(tmp_path: Path) -> None:
    leap = ["20161231235959", "20161231235960", "20170101000000"]
    (tmp_path / "a.cdxj").write_bytes(b"".join(cdxj_line(_row(one), revisit=False) for one in leap))
    corpus = Corpus.from_cdx(tmp_path / "a.cdxj").having(jobs=1)
    report = CorpusReport()
    for condition, wanted in {
        "timestamp >= '2016'": leap,
        "timestamp < '2017'": leap[:1],
        "timestamp == '2017-01-01T00:00:00'": leap[1:],
    }.items():
        kept = corpus.where(condition).kept(report, nothing)
        assert [one.capture.timestamp for one in kept] == wanted
    assert report.refused == 0
    corpus.save_as_parquet(tmp_path / "a.parquet")
    with duckdb.connect() as database:
        rows = database.sql(f"SELECT timestamp::VARCHAR FROM '{tmp_path}/a.parquet' ORDER BY 1")
        assert rows.fetchall() == [
            ("2016-12-31 23:59:59",), ("2017-01-01 00:00:00",), ("2017-01-01 00:00:00",),
        ]  # fmt: skip
        database.execute(
            "COPY (SELECT 'http://a/' AS url, unnest([20161231235960]) AS fetch_time) "
            f"TO '{tmp_path}/b.parquet'"
        )
    table = Corpus.from_cdx(tmp_path / "b.parquet").having(jobs=1)
    assert [one.capture.timestamp for one in table.kept(report, nothing)] == leap[1:2]


def test_space_in_a_canonical_url_is_encoded_in_a_cdxj(tmp_path: Path) -> None:
    url = "http://a.example/x y"
    columns = ["example,a)/x y", "20260101000000", url, "text/html", "200", "B", *"--90", "a.warc"]
    header = "\t".join(("", *HEADER.split()))
    (tmp_path / "a.cdx").write_text(f"{header}\n" + "\t".join(columns) + "\n")
    Corpus.from_cdx(tmp_path / "a.cdx").having(jobs=1).save_as_cdxj(tmp_path / "o.cdxj")
    assert (tmp_path / "o.cdxj").read_bytes().startswith(b"example,a)/x%20y 20260101000000 {")
    again = Corpus.from_cdx(tmp_path / "o.cdxj").having(jobs=1)
    (kept,) = again.kept(CorpusReport(), nothing)
    assert kept.capture.url == url


def _with_versions(left: list[tuple[int, Row]], counts: range) -> list[tuple[int, Row]]:
    versions = Counter(row.url for _, row in left)
    return [(number, row) for number, row in left if versions[row.url] in counts]


def _best(
    left: list[tuple[int, Row]], was: set[int], by: str, *, latest: bool
) -> list[tuple[int, Row]]:
    groups: dict[str, list[tuple[int, Row]]] = {}
    for number, row in left:
        key = getattr(row, by)
        groups.setdefault(f"alone {number}" if key == "-" else key, []).append((number, row))
    kept = []
    for several in groups.values():
        end = (max if latest else min)(row.timestamp for _, row in several)
        several = [one for one in several if one[1].timestamp == end]
        way = -1 if latest else 1
        kept.append(min(several, key=lambda one: (one[0] in was, one[1].url, way * one[0])))
    return kept


def test_versions_after_a_group_are_those_that_are_left(tmp_path: Path) -> None:
    found = [Row("http://a/", 1, "text/html", "200", DIGESTS[0]),
             Row("http://a/", 2, "text/html", "200", DIGESTS[1]),
             Row("http://a/", 3, "text/html", "404", DIGESTS[1]),
             Row("http://b/", 4, "text/html", "200", DIGESTS[2])]  # fmt: skip
    with _lines(found) as path:
        corpus = Corpus.from_cdx(path).having(jobs=1).first("digest")
        for condition, count in {
            "versions == 2": 2,
            "versions == 2 and status == 200": 2,
            "status == 200 and versions == 1 and timestamp > '2026-11-01T00:00:01'": 2,
            "versions == 2 or url == 'http://b/'": 3,
        }.items():
            assert corpus.where(condition).count() == count, condition


def test_a_line_that_comes_again_is_no_version(tmp_path: Path) -> None:
    found = [Row("http://a/", 1, "text/html", "200", DIGESTS[0])]
    with _lines(found) as path:
        again = path.with_name("again.cdx")
        again.write_text(path.read_text())
        corpus = Corpus.from_cdx(path, again).having(jobs=1)
        assert corpus.where("versions == 1").count() == 2
        assert corpus.where("versions > 1").count() == 0


@contextmanager
def _lines(found: list[Row]) -> Iterator[Path]:
    with TemporaryDirectory() as name:
        path = Path(name) / "x.cdx"
        path.write_text(HEADER + "".join(row.line(n) for n, row in enumerate(found)))
        yield path


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """One database for all examples of a test: to open one costs more than to ask it."""
    with duckdb.connect() as opened:
        yield opened


@given(raw=st.binary(min_size=20, max_size=20), label=st.integers(0, 4), encoding=st.integers(0, 3))
def test_a_digest_is_one_key_however_it_is_spelled(
    database: duckdb.DuckDBPyConnection, raw: bytes, label: int, encoding: int
) -> None:
    digest = Digest("sha1", raw)
    bare = digest.spelled(Spelling(0, 0))
    text = digest.spelled(Spelling(label, encoding))
    if label == 0 and encoding == 1:
        return  # small letters without a label are nobody's SHA-1
    query = f"SELECT {digest_key('d')} FROM (SELECT ? AS d)"
    expected = None if is_cut(raw) else bare
    assert database.execute(query, [text]).fetchall() == [(expected,)]


def test_layouts(tmp_path: Path) -> None:
    """All that tell the same tell of the same captures."""
    page = Page("http://a.org/x?y=1", 2, html("x"))
    other = Page("http://b.org/", 3, b"\x89PNG\r\n\x1a\n\0", "image/png", file="b.warc.gz")
    eleven = archive(tmp_path, page, other)
    lines = eleven.read_text().splitlines()[1:]
    wanted = list(Corpus.from_cdx(eleven).enrich("mime"))
    assert [entry["payload"]["mime"] for entry in wanted] == ["text/html", "image/png"]

    def like(name: str, text: str | bytes, *, sized: bool = True) -> None:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        entries = list(Corpus.from_cdx(path).enrich("mime"))
        if not sized:
            for entry in wanted:
                entry["record"]["compressedSize"] = None
        assert entries == wanted, name
        path.unlink()

    like("bare.cdx", "\n".join(lines) + "\n")
    like("dos.cdx", HEADER.strip("\n") + "\r\n" + "\r\n".join(lines) + "\r\n")
    fourteen = "".join(f"{line} - - -\n" for line in lines)
    like("fourteen.cdx", fourteen)
    like(
        "tabs.cdx",
        "\tCDX\tN\tb\ta\tm\ts\tk\tr\tM\tS\tV\tg\n" + "\n".join(lines).replace(" ", "\t") + "\n",
    )
    packed = b"".join(gzip.compress(f"{line}\n".encode()) for line in lines)
    like("zip.cdx.gz", packed)
    jsons = []
    for line in lines:
        key, stamp, url, mime, status, digest, _, _, size, offset, file = line.split(" ")
        fields = {"url": url, "mime": mime, "status": status, "digest": f"sha1:{digest}",
                "length": size, "offset": int(offset), "filename": file}  # fmt: skip
        jsons.append(f"{key} {stamp} {json.dumps(fields)}\n")
    for entry in wanted:
        entry["record"]["digest"] = "sha1:" + entry["record"]["digest"]
    like("x.cdxj", "!meta {}\n" + "".join(jsons))
    for entry in wanted:
        entry["record"]["digest"] = entry["record"]["digest"].removeprefix("sha1:")
    nine = "".join(" ".join(line.split(" ")[:7] + line.split(" ")[9:]) + "\n" for line in lines)
    like("nine.cdx", nine, sized=False)


@pytest.mark.parametrize("kind", ["cdx", "cdxj"])
def test_line_ends_may_be_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Whichever it is, and wherever DuckDB parts the file between its threads."""
    monkeypatch.setattr("dedupindex.corpus.from_cdx.MAX_LINE", 1 << 10)
    chance = Random(7)
    row = Row("http://a/", 1, "text/html", "200", "-")
    wanted = [f"http://a/{number}{'x' * chance.randrange(90)}" for number in range(4000)]
    if kind == "cdx":
        lines = [HEADER.strip("\n"), *(row._replace(url=url).line(0).strip() for url in wanted)]
    else:
        lines = [f"a)/ {row.timestamp} {json.dumps({'url': url})}" for url in wanted]
    path = tmp_path / f"x.{kind}"
    for ends in (["\n", "\r\n"], ["\r\n"], ["\n"]):
        text = "".join(line + chance.choice(ends) for line in lines)
        for last in ("", "\r", "\n\r\n\n"):
            path.write_bytes((text.rstrip() + last).encode())
            report = CorpusReport()
            kept = Corpus.from_cdx(path).having(jobs=1).kept(report, nothing)
            assert sorted(one.capture.url for one in kept) == sorted(wanted)
            assert report.refused == 0


@pytest.mark.parametrize("size", [3, 9, 30])
@pytest.mark.parametrize("name", ["x.cdx", "x.cdx.gz"])
def test_a_line_of_any_length_is_counted(tmp_path: Path, name: str, size: int) -> None:
    """In megabytes; it begins so that buffers of DuckDB end in it."""
    row = Row("http://a/", 1, "text/html", "200", "-")
    before = [row._replace(url=f"http://a/{'x' * (1 << 19)}").line(number) for number in range(15)]
    long = row._replace(url=f"http://a/{'x' * (size << 20)}").line(0)
    data = (HEADER + "".join([*before, long, *before])).encode()
    (tmp_path / name).write_bytes(gzip.compress(data, 1) if name.endswith(".gz") else data)
    report = CorpusReport()
    assert len(list(Corpus.from_cdx(tmp_path / name).having(jobs=1).kept(report, nothing))) == 30
    assert report.refused == 1


def test_a_cdx_with_the_places_of_originals(tmp_path: Path) -> None:
    one = Page("http://a.org/", 1, html("original"))
    again = Page("http://b.org/", 2, of=one, file="b.warc.gz")
    cdx = archive(tmp_path, one, again)
    line = next(line for line in cdx.read_text().splitlines() if "b.org" in line)
    cdx.write_text(f"{line} {len(one.stored)} {one.offset} a.warc.gz\n")
    (entry,) = Corpus.from_cdx(cdx).enrich("html.title")
    assert entry["payload"]["string"]["html"]["title"] == "original"  # of the same digest
    cdx.write_text(f"{line} {len(one.stored)} {one.offset} a.warc.gz\n".replace(one.digest, "-"))
    (entry,) = Corpus.from_cdx(cdx).enrich("html.title")
    assert "another record than its original" in entry["error"]  # nothing tells that it is
    line = line.replace("b.org", "a.org").replace("org,b)", "org,a)")
    again = Page("http://a.org/", 2, of=one, file="b.warc.gz")
    archive(tmp_path, one, again)
    line = next(line for line in cdx.read_text().splitlines() if "revisit" in line)
    cdx.write_text(f"{line} {len(one.stored)} {one.offset} a.warc.gz\n")
    (entry,) = Corpus.from_cdx(cdx).enrich("html.title")
    assert entry["payload"]["string"]["html"]["title"] == "original"


def test_many_files_are_read_together(tmp_path: Path) -> None:
    """Whatever their names, and each with the CDX files beside it."""
    wanted = []
    for number, name in enumerate(("a b", "ü", "q'x", 'd"q', "br[1]", "st*r", "que?", "per%20")):
        folder = tmp_path / f"{name}{number % 3}"
        page = Page(f"http://a.org/{number}", number + 1, html(f"t{number}"))
        wanted.append((page.url, f"t{number}"))
        archive(folder, page, cdx=f"{name}.cdx")
        if number % 2:
            packed = folder / f"{name}.cdx"
            packed.with_suffix(".cdx.gz").write_bytes(gzip.compress(packed.read_bytes()))
            packed.unlink()
    captures = CdxCaptures(tuple(map(str, sorted(tmp_path.glob("*/*.cdx*")))))
    assert (
        captures.relation(SourceContext(tmp_path, 1, [])).count("read_csv") == 2
    )  # plain, and with gzip
    found = Corpus.from_cdx(*captures.sources).enrich("html.title")
    titles = [
        (entry["record"]["originalUrl"], entry["payload"]["string"]["html"]["title"])
        for entry in found
    ]
    assert sorted(titles) == wanted


def test_lines_that_are_no_captures_are_counted(tmp_path: Path) -> None:
    cdx = archive(tmp_path, Page("http://a.org/", body=html("x")))
    good = cdx.read_text().splitlines()[1]
    bad = ["", "nonsense", good + " more", good.replace("20261101091417", "yesterday"),
           good.replace("20261101091417", "20260230091417"),
           good.replace(" http://a.org/ ", " - "), good.rpartition(" ")[0]]  # fmt: skip
    cdx.write_text(HEADER + "".join(f"{line}\n" for line in [*bad, good]))
    report = Corpus.from_cdx(cdx).save_as_json(tmp_path / "o.jsonl")
    # an empty line is none, and one without a URL tells of no capture
    assert (report.refused, report.entries) == (len(bad) - 2, 1)
    cdxj = tmp_path / "x.cdxj"
    json_line = 'org,a)/ 20261101091417 {"url": "http://a.org/"}'
    bad = [
        json_line[:-1],
        json_line.replace("url", "uri"),
        "nonsense",
        json_line.replace("17 ", " "),
    ]
    cdxj.write_text("".join(f"{line}\n" for line in [json_line, *bad]))
    report = Corpus.from_cdx(cdxj).save_as_json(tmp_path / "o.jsonl")
    assert (report.refused, report.entries) == (len(bad), 1)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_concatenated_files(tmp_path: Path, end: str) -> None:
    """Headers come again, lines are blank or of warcinfo records; none of it was a capture."""
    pages = [Page(f"http://a.org/{n}", n + 1, html(f"{n}")) for n in range(3)]
    cdx = archive(tmp_path, *pages)
    lines = cdx.read_text().splitlines()[1:]
    info = "- 20261101091417 - warc-info - - - - 100 0 a.warc.gz"
    head = HEADER.rstrip()
    for between in ([head], ["", "  "], [info], [head.strip(), head + " ", "", info]):
        cdx.write_text("".join(line + end for line in [head, lines[0], *between, *lines[1:]]))
        report = Corpus.from_cdx(cdx).having(jobs=1).save_as_json(tmp_path / "o.jsonl")
        assert (report.entries, report.refused) == (3, 0), between
    other = " CDX a b m s k r M V g"
    cdx.write_text("".join(line + end for line in [head, *lines, other]))
    with pytest.raises(BadSource, match="all.cdx has a header in its middle that names other"):
        Corpus.from_cdx(cdx).count()
    cdx.write_text("".join(line + end for line in [head, *lines]).replace(" ", "\t"))
    with cdx.open("a") as stream:
        stream.write(f"{head}{end}".replace(" ", "\t"))
    assert Corpus.from_cdx(cdx).count() == 3


def test_a_key_of_cdxj_may_have_braces(tmp_path: Path) -> None:
    """As those that pywb and cdxj-indexer write, which decode %7B."""
    cdxj = tmp_path / "x.cdxj"
    cdxj.write_text(
        'org,a)/{"x":1} 20261101091417 {"url": "http://a.org/%7B%22x%22:1%7D"}\n'
        'org,a)/y 20261101091417 {"url": "http://a.org/y"}\n  \n'
    )
    report = Corpus.from_cdx(cdxj).save_as_json(tmp_path / "o.jsonl")
    assert (report.entries, report.refused) == (2, 0)
    keys = [
        json.loads(line)["record"]["surtUrl"]
        for line in (tmp_path / "o.jsonl").read_text().splitlines()
    ]
    assert sorted(keys) == ["org,a)/y", 'org,a)/{"x":1}']


def test_where_containers_are(tmp_path: Path) -> None:
    page = Page("http://a.org/", body=html("x"))
    cdx = archive(tmp_path / "one", page)
    deep = tmp_path / "warcs" / "2026" / "a.warc.gz"
    deep.parent.mkdir(parents=True)
    (tmp_path / "one" / "a.warc.gz").rename(deep)

    def title(text: str, *containers: str | Path) -> Any:
        cdx.write_text(HEADER + page.cdx().replace("a.warc.gz", text))
        (entry,) = Corpus.from_cdx(cdx, containers=tuple(map(str, containers))).enrich("html.title")
        return entry.get("error") or entry["payload"]["string"]["html"]["title"]

    assert "was not found" in title("a.warc.gz")
    assert title("a.warc.gz", tmp_path / "warcs") == "x"
    assert title("/data/of/others/a.warc.gz", tmp_path / "warcs") == "x"
    assert title("2026/a.warc.gz", tmp_path / "warcs") == "x"
    assert title("a.warc.gz", deep) == "x"
    assert title(str(deep)) == "x"
    assert title("../warcs/2026/a.warc.gz") == "x"
    title("a.warc.gz")
    (entry,) = Corpus.of(cdx, tmp_path / "warcs").enrich("html.title")
    assert "error" not in entry
    with pytest.raises(BadSource, match="named as a place of WARC files, does not exist"):
        title("a.warc.gz", tmp_path / "nowhere")


def test_a_cdx_in_a_directory_hides_no_capture(tmp_path: Path) -> None:
    """It may be of one file only, as what a corpus of the directory has left there."""
    one = Page("http://a.org/", body=html("x"))
    archive(tmp_path, one, Page("http://b.org/", body=html("y"), file="b.warc.gz"))
    cdx = tmp_path / "all.cdx"
    lines = cdx.read_text().splitlines(keepends=True)
    cdx.write_text("".join(line for line in lines if "b.org" not in line))
    assert urls(Corpus.of(cdx)) == ["http://a.org/"]
    assert sorted(urls(Corpus.of(tmp_path))) == ["http://a.org/", "http://b.org/"]
    (tmp_path / "sub").mkdir()
    cdx.rename(tmp_path / "sub" / cdx.name)
    assert urls(Corpus.of(tmp_path / "sub")) == ["http://a.org/"]


def test_invalid_sources(tmp_path: Path) -> None:
    cdx = archive(tmp_path, Page("http://a.org/", body=html("x")))
    with ZipFile(tmp_path / "x.wacz", "w") as packed:
        packed.writestr("datapackage.json", "{}")
    for corpus, word in (
        (Corpus.from_warcs(tmp_path / "x.wacz"), "as a WACZ: holds no WARC file"),
        (Corpus.from_cdx(tmp_path / "a.warc.gz"), "not a CDX or CDXJ file"),
        (Corpus.from_cdx(tmp_path / "nothing"), "cannot be read"),
        (Corpus.from_warcs(cdx), "is cdx"),
    ):
        with pytest.raises(BadSource, match=word):
            corpus.count()
    (tmp_path / "x.wacz").unlink()
    assert urls(Corpus.of(tmp_path).enrich("mime")) == ["http://a.org/"]
    cdx.unlink()
    (entry,) = Corpus.of(tmp_path).enrich("mime")
    assert entry["payload"]["mime"] == "text/html"
