"""Corpora of Parquet tables: the captures of the CDX, by metadata first, here and elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dedupindex.corpus import Corpus
from dedupindex.errors import BadSource
from tests.support.corpora import Page, archive, html
from tests.support.stores import Bucket, web
from tests.support.tables import ROW, TYPES, damage_group, table_of_cdx, write_table

NAMES = ["a", "b", "c"]


def sites(folder: Path, *more: Page) -> Path:
    """Write an archive of a few hosts, with a revisit; return its CDX."""
    first = Page("http://a.org/", 1, html("a"), file="a.warc.gz")
    return archive(
        folder,
        first,
        Page("http://a.org/", 2, of=first, file="b.warc.gz"),
        Page("http://b.org/x.png", 3, b"\x89PNG\r\n\x1a\n", "image/png", file="b.warc.gz"),
        Page("http://c.org/gone", 4, html("c"), status=404),
        *more,
    )


def entries(corpus: Corpus) -> list[dict[str, Any]]:
    return list(corpus.having(jobs=1))


@pytest.mark.parametrize(
    "condition",
    [
        "",
        "status == 200",
        "mime == 'text/html'",
        "hostname == 'b.org' or status == 404",
        "surt >= 'org,b)' and surt < 'org,b,'",
        "timestamp >= '2026-11-02' and length < 100KB",
        "not (digest =~ '^A')",
    ],
)
def test_a_table_has_the_captures_of_its_cdx(tmp_path: Path, condition: str) -> None:
    cdx = sites(tmp_path / "warcs")
    table = table_of_cdx(cdx, tmp_path / "warcs" / "all.parquet")
    of_cdx, of_table = (
        Corpus.from_cdx(source).enrich("html.title", "response") for source in (cdx, table)
    )
    if condition:
        of_cdx, of_table = of_cdx.where(condition), of_table.where(condition)
    found = entries(of_table)
    assert found == entries(of_cdx)
    assert found or not condition


def test_the_kind_is_detected_and_other_columns_are_named(tmp_path: Path) -> None:
    table = table_of_cdx(sites(tmp_path / "warcs"), tmp_path / "all.parquet")
    found = Corpus.of(table, containers=tmp_path / "warcs").enrich("html.title")
    assert len(entries(found)) == 4
    names = {"url": "uri", "fetch_time": "when"}
    other = tmp_path / "other.parquet"
    table_of_cdx(tmp_path / "warcs" / "all.cdx", other, names)
    found = Corpus.of(other, containers=tmp_path / "warcs", columns=names).enrich("html.title")
    assert not [entry for entry in entries(found) if "error" in entry]


def test_a_table_with_a_cdx(tmp_path: Path) -> None:
    folder = tmp_path / "warcs"
    cdx = sites(folder)
    table = table_of_cdx(cdx, folder / "all.parquet")
    assert Corpus.from_cdx(cdx, table).count() == 8
    with pytest.raises(BadSource, match=r"a\.warc\.gz is not a CDX or CDXJ file or table"):
        Corpus.from_cdx(table, folder / "a.warc.gz").count()


def test_only_row_groups_that_can_match_are_read(tmp_path: Path) -> None:
    rows = [
        ROW | {"url": f"http://{host}.org/{number}", "url_surtkey": f"org,{host})/{number:05}"}
        for host in NAMES
        for number in range(2048)
    ]
    table = write_table(tmp_path / "t.parquet", rows, group=2048)
    damage_group(table, 1)
    corpus = Corpus.from_cdx(table)
    with pytest.raises(BadSource, match=r"t\.parquet"):
        corpus.count()
    assert corpus.where("surt < 'org,b)'").having(revisits="skip").count() == 2048
    assert corpus.where("surt == 'org,c)/00007'").having(revisits="skip").count() == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"url": None},
        {"url": ""},
        {"fetch_time": None},
        {"fetch_time": "infinity"},
        {"fetch_time": "12026-01-01"},
    ],
)
def test_rows_that_are_no_captures_are_refused(tmp_path: Path, bad: dict[str, Any]) -> None:
    table = write_table(tmp_path / "t.parquet", [ROW, ROW | bad, ROW])
    corpus = Corpus.from_cdx(table).where("status == 200")
    report = corpus.save_as_cdxj(tmp_path / "o.cdxj")
    assert (report.refused, report.entries) == (1, 2)


def test_times_as_text(tmp_path: Path) -> None:
    rows = [ROW | {"fetch_time": text} for text in ("20261120091417", "2026-11-20T09:14:17Z", "x")]
    table = write_table(tmp_path / "t.parquet", rows, TYPES | {"fetch_time": "VARCHAR"})
    report = Corpus.from_cdx(table).save_as_cdxj(tmp_path / "o.cdxj")
    assert (report.refused, report.entries) == (1, 2)


@pytest.mark.parametrize("name", ["url", "fetch_time"])
def test_a_table_without_a_column(tmp_path: Path, name: str) -> None:
    types = {column: kind for column, kind in TYPES.items() if column != name}
    table = write_table(tmp_path / "t.parquet", [ROW], types)
    with pytest.raises(BadSource, match=f"a Parquet table without a column {name}"):
        Corpus.from_cdx(table).count()


def test_a_table_without_digests(tmp_path: Path) -> None:
    types = {column: kind for column, kind in TYPES.items() if column != "content_digest"}
    assert Corpus.of(write_table(tmp_path / "t.parquet", [ROW], types)).count() == 1


def test_a_damaged_table(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.parquet", [ROW])
    table.write_bytes(table.read_bytes()[:-5])
    with pytest.raises(BadSource, match=r"t\.parquet is no whole Parquet file"):
        Corpus.from_cdx(table).count()


def test_a_table_on_a_web_server(tmp_path: Path) -> None:
    folder = tmp_path / "warcs"
    table_of_cdx(sites(folder), folder / "all.parquet")
    with web(folder) as server:
        address = f"{server.url}/all.parquet"
        corpus = Corpus.of(address, containers=f"{server.url}/").enrich("html.title")
        found = entries(corpus.where("mime == 'text/html' and status == 200"))
    titles = [entry["payload"]["string"]["html"]["title"] for entry in found]
    assert titles == ["a", "a"]


def test_a_table_in_an_object_store(tmp_path: Path, buckets: Callable[[], Bucket]) -> None:
    folder = tmp_path / "warcs"
    table = table_of_cdx(sites(folder), folder / "all.parquet")
    bucket = buckets()
    address = bucket.put("index/part-0.parquet", table.read_bytes())
    for name in ("a.warc.gz", "b.warc.gz"):
        bucket.put(f"warcs/{name}", (folder / name).read_bytes())
    corpus = Corpus.of(f"{bucket.url}/index/*.parquet", containers=f"{bucket.url}/warcs/")
    assert len(entries(corpus.enrich("response"))) == 4
    assert address
