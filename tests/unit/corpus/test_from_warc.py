"""Corpora of WACZ files, whose WARC files are read without being unpacked."""

from __future__ import annotations

import gzip
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import pytest

from dedupindex.corpus import Corpus
from dedupindex.errors import BadSource
from tests.integration.test_spark_tasks import built
from tests.support.corpora import HEADER, Page, archive, html
from tests.support.stores import web
from tests.unit.corpus.test_corpus import urls

ONE = Page("http://a.org/", 1, html("original"))
PAGES = [
    ONE,
    Page("http://b.org/", 2, of=ONE, file="b.warc.gz"),
    Page("http://c.org/", 3, html("plain"), file="c.warc"),
]
TITLES = ["original", "original", "plain"]


def packed(folder: Path, name: str = "x.wacz", how: int = ZIP_STORED) -> Path:
    """A WACZ of the pages; the WARC files are nowhere else, the CDX stands beside it."""
    folder.mkdir(exist_ok=True)
    cdx = archive(folder / "made", *PAGES)
    path = folder / name
    with ZipFile(path, "w") as container:
        container.writestr("datapackage.json", "{}")
        for file in sorted((folder / "made").glob("*.warc*")):
            container.write(file, f"archive/{file.name}", how)
            file.unlink()
    cdx.rename(folder / "all.cdx")
    return path


def titles(corpus: Corpus) -> list[str]:
    """Of all captures by time, or why they have none."""
    entries = sorted(corpus.enrich("html.title"), key=lambda entry: entry["record"]["timestamp"])
    return [entry.get("error") or entry["payload"]["string"]["html"]["title"] for entry in entries]


def test_a_wacz_is_its_own_metadata(tmp_path: Path) -> None:
    path = packed(tmp_path)
    corpus = Corpus.of(path)
    assert titles(corpus) == TITLES
    assert urls(corpus.where("container =~ 'x.wacz/archive/b.warc.gz$'")) == ["http://b.org/"]
    report = corpus.save_as_warc(tmp_path / "o.warc.gz")
    assert (report.entries, report.records, report.problems) == (3, 4, [])
    assert titles(Corpus.from_cdx(tmp_path / "o.cdxj")) == TITLES


def test_metadata_that_name_files_in_a_wacz(tmp_path: Path) -> None:
    path = packed(tmp_path)
    assert titles(Corpus.from_cdx(tmp_path / "all.cdx", containers=path)) == TITLES
    assert titles(Corpus.from_cdx(tmp_path / "all.cdx", containers=tmp_path)) == TITLES
    index = tmp_path / "index"
    built(index, path)
    assert titles(Corpus.from_index(index)) == ["original", "plain"]
    (tmp_path / "elsewhere").mkdir()
    path.rename(tmp_path / "elsewhere" / "x.wacz")
    moved = Corpus.from_index(index, containers=tmp_path / "elsewhere")
    assert titles(moved) == ["original", "plain"]
    assert "was not found" in titles(Corpus.from_index(index))[0]


def test_sources_of_several_kinds(tmp_path: Path) -> None:
    path = packed(tmp_path)
    cdx = archive(tmp_path / "2", Page("http://z.org/", 9, html("more"), file="z.warc.gz"))
    warc = tmp_path / "2" / "z.warc.gz"
    assert titles(Corpus.of(warc, path)) == [*TITLES, "more"]
    with pytest.raises(BadSource, match=r"x\.wacz is not a CDX .* give it to --containers"):
        Corpus.of(path, warc, cdx).count()
    assert titles(Corpus.of(cdx, tmp_path / "all.cdx", containers=path)) == [*TITLES, "more"]


@pytest.mark.parametrize("name", ["index.cdx.gz", "index.cdxj", "all.cdx"])
def test_a_wacz_is_listed_by_its_own_index(tmp_path: Path, name: str) -> None:
    """Two WACZ files with equal entry names are read separately, and only the selected records."""
    paths = []
    for number, day in enumerate((1, 3), 1):
        folder = tmp_path / f"{number}"
        one = Page(f"http://{number}.org/", day, html(f"of {number}"))
        again = Page(f"http://{number}.org/again", day + 1, of=one)
        cdx = archive(folder, one, again)
        if name != "all.cdx":
            Corpus.from_cdx(cdx).save_as_cdxj(folder / "index.cdxj")
            cdx = folder / "index.cdxj"
        data = gzip.compress(cdx.read_bytes()) if name.endswith(".gz") else cdx.read_bytes()
        paths.append(tmp_path / f"{number}.wacz")
        with ZipFile(paths[-1], "w", ZIP_DEFLATED) as container:
            container.writestr(f"indexes/{name}", data)
            container.write(folder / "a.warc.gz", "archive/a.warc.gz", ZIP_STORED)
        (folder / "a.warc.gz").unlink()
    corpus = Corpus.of(*paths, paths[0])
    assert titles(corpus) == ["of 1", "of 1", "of 2", "of 2"]
    assert titles(Corpus.from_warcs(*paths)) == titles(corpus)
    report = corpus.where("url == 'http://2.org/'").enrich("mime").save_as_json(tmp_path / "o.json")
    assert (report.entries, report.records, report.containers) == (1, 1, 1)


def test_an_invalid_index_in_a_wacz(tmp_path: Path) -> None:
    path = packed(tmp_path)
    with ZipFile(path, "a") as container:
        container.writestr("indexes/index.cdxj", "what is this\n")
    with pytest.raises(BadSource, match="has an index that is no CDX or CDXJ: indexes/"):
        Corpus.of(path).count()
    assert titles(Corpus.from_warcs(path)) == TITLES


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("index.cdxj", b""),
        ("index.cdx.gz", gzip.compress(b"", mtime=0)),
        ("index.cdx", HEADER.encode().replace(b"\n", b"\r\n\r\n")),
        ("index.cdxj", b'!meta {"a": 1}\n'),
    ],
)
def test_an_empty_index_in_a_wacz_is_ignored(tmp_path: Path, name: str, data: bytes) -> None:
    path = packed(tmp_path / "1")
    with ZipFile(path, "a") as container:
        container.writestr(f"indexes/{name}", data)
    assert titles(Corpus.of(path)) == TITLES
    two = Page("http://z.org/", 9, html("told"))
    good = tmp_path / "good.wacz"
    with ZipFile(good, "w") as container:
        container.writestr("indexes/index.cdx", archive(tmp_path / "2", two).read_bytes())
        container.write(tmp_path / "2" / "a.warc.gz", "archive/a.warc.gz")
    assert titles(Corpus.of(path, good)) == [*TITLES, "told"]


def test_cdxj_is_preferred_to_cdx_in_a_wacz(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    cdx = archive(folder, ONE, Page("http://c.org/", 2, html("plain")))
    Corpus.from_cdx(cdx).where("hostname == 'a.org'").save_as_cdxj(folder / "index.cdxj")
    path = tmp_path / "x.wacz"
    with ZipFile(path, "w") as container:
        container.write(folder / "a.warc.gz", "archive/a.warc.gz")
        container.write(cdx, "indexes/index.cdx")
        container.write(folder / "index.cdxj", "indexes/index.cdxj")
    assert titles(Corpus.of(path)) == ["original"]
    with ZipFile(path, "a") as container:
        other = (folder / "index.cdxj").read_bytes().replace(b"a.org", b"x.org")
        container.writestr("indexes/more.cdxj.gz", gzip.compress(other))
    assert sorted(urls(Corpus.of(path))) == ["http://a.org/", "http://x.org/"]


def test_files_of_one_name_in_several(tmp_path: Path) -> None:
    """The WACZ that an index names counts, and not one that is found first."""
    for number in (1, 2):
        folder = tmp_path / f"{number}"
        cdx = archive(folder, Page(f"http://{number}.org/", number, html(f"of {number}")))
        with ZipFile(tmp_path / f"{number}.wacz", "w") as container:
            container.write(folder / "a.warc.gz", "archive/a.warc.gz")
        cdx.unlink()
        (folder / "a.warc.gz").unlink()
    built(tmp_path / "index", tmp_path / "1.wacz", tmp_path / "2.wacz")
    (tmp_path / "moved").mkdir()
    for number in (1, 2):
        (tmp_path / f"{number}.wacz").rename(tmp_path / "moved" / f"{number}.wacz")
    found = Corpus.from_index(tmp_path / "index", containers=tmp_path / "moved")
    assert titles(found) == ["of 1", "of 2"]


@pytest.mark.parametrize("above", ["archive/", ""])
def test_files_of_one_name_in_two_folders_of_one(tmp_path: Path, above: str) -> None:
    pages = {name: Page("http://a.org/", day, html(name)) for day, name in enumerate("pq", 1)}
    with ZipFile(tmp_path / "x.wacz", "w", ZIP_STORED) as container:
        lines = ""
        for name, page in pages.items():
            archive(tmp_path / name, page)
            container.write(tmp_path / name / page.file, f"archive/{name}/{page.file}")
            lines += page.cdx().replace(page.file, f"{above}{name}/{page.file}")
        container.writestr("indexes/index.cdx", HEADER + lines)
    assert titles(Corpus.of(tmp_path / "x.wacz")) == ["p", "q"]


def test_nothing_is_read_behind_the_end_of_a_file(tmp_path: Path) -> None:
    """Where another one begins, with a record of this very URL."""
    page = Page("http://c.org/", 1, html("plain"), file="c.warc")
    cdx = archive(tmp_path / "made", page)
    path = tmp_path / "x.wacz"
    with ZipFile(path, "w") as container:
        for name in ("c.warc", "d.warc"):
            container.write(tmp_path / "made" / "c.warc", f"archive/{name}")
        first, second = (info.header_offset for info in container.infolist())
    corpus = Corpus.from_cdx(cdx, containers=path).having(jobs=1)
    assert titles(corpus) == ["plain"]
    page.offset += second - first
    cdx.write_text(HEADER + page.cdx())
    (title,) = titles(corpus)
    assert "its container ends before it" in title


def test_over_http_by_ranges(tmp_path: Path) -> None:
    path = packed(tmp_path)
    with web(tmp_path) as server:
        address = f"{server.url}/{path.name}"
        assert titles(Corpus.of(address).having(jobs=1)) == TITLES
        server.requests.clear()
        found = Corpus.from_cdx(tmp_path / "all.cdx", containers=address).having(jobs=1)
        assert titles(found.where("hostname == 'c.org'")) == ["plain"]
        asked = [wanted for how, _, wanted in server.requests if how == "GET"]
        assert asked and all(wanted.startswith("bytes=") for wanted in asked)


def test_wacz_files_that_cannot_be_read_by_ranges(tmp_path: Path) -> None:
    deflated = packed(tmp_path, "deflated.wacz", ZIP_DEFLATED)
    corpus = Corpus.from_warcs(deflated)
    with pytest.warns(UserWarning, match=r"must be stored.* \(and 2 problems more\)"):
        assert corpus.count() == 0
    report = corpus.save_as_json(tmp_path / "o.jsonl")
    assert len(report.problems) == 3 and "must be stored" in report.problems[0].message
    (title, *_) = titles(Corpus.from_cdx(tmp_path / "all.cdx", containers=deflated))
    assert "archive/a.warc.gz is deflated in it" in title
    (tmp_path / "cut.wacz").write_bytes(packed(tmp_path / "other", "y.wacz").read_bytes()[:-30])
    report = Corpus.from_warcs(tmp_path / "cut.wacz").save_as_json(tmp_path / "o.jsonl")
    assert report.entries == 0 and "were not read" in report.problems[0].message
    (tmp_path / "all.cdx").unlink()
    (tmp_path / "other" / "all.cdx").unlink()
    with pytest.raises(BadSource, match="a WACZ is to be named itself"):
        Corpus.of(tmp_path / "other").count()
