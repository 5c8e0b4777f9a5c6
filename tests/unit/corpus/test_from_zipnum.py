"""Corpora of a URL, prefix, host or domain in a ZipNum cluster: only their blocks are read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dedupindex.corpus import Corpus
from dedupindex.corpus.from_zipnum import key_prefixes, query_of
from dedupindex.errors import BadInput
from dedupindex.urlkey import urlkey
from tests.support.clusters import write_cluster
from tests.support.corpora import Page, archive, html
from tests.support.stores import object_store, web
from tests.unit.corpus.test_corpus import urls

URLS = [
    "http://example.com/",
    "http://example.com/a",
    "http://www.example.com/a/",
    "http://example.com/a/b",
    "http://example.com/a?x=1",
    "http://example.com/ab",
    "http://example.com:8080/",
    "http://sub.example.com/",
    "http://example-shop.com/",
    "http://examples.com/",
    "http://other.org/",
    "https://example.com/z",
]


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """A cluster of `URLS`, and of other hosts before and after them, of each two captures."""
    others = [f"http://host{number}.{end}/" for number in range(30) for end in ("com", "net")]
    pages = [Page(url, day, html(url)) for url in (*URLS, *others) for day in (1, 2)]
    random.Random(3).shuffle(pages)
    cdx = archive(tmp_path, *pages)
    lines = sorted(line.encode() for line in cdx.read_text().splitlines() if line[0] != " ")
    cdx.unlink()
    return write_cluster(tmp_path, lines, ended=False)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"url": "example.com/"}, URLS[:1]),
        ({"url": "http://www.example.com/a"}, URLS[1:3]),
        ({"url": "example.com/a*"}, [*URLS[1:6]]),
        ({"url": "example.com/a/*"}, URLS[1:5]),
        ({"url": "example.com/a", "matchType": "prefix"}, URLS[1:6]),
        ({"url": "example.com/*"}, [*URLS[:6], URLS[11]]),
        ({"url": "example.com", "matchType": "host"}, [*URLS[:7], URLS[11]]),
        ({"url": "*.example.com"}, [*URLS[:8], URLS[11]]),
        ({"url": "example.com", "matchType": "domain"}, [*URLS[:8], URLS[11]]),
        ({"url": "nowhere.org/*"}, []),
        ({"url": "zzz.zzz/*"}, []),
    ],
)
def test_a_query_has_what_a_selection_from_all_has(
    cluster: Path, query: dict[str, str], expected: list[str]
) -> None:
    corpus = Corpus.from_archive(str(cluster), **query)
    assert sorted(urls(corpus)) == sorted(2 * expected)
    assert not [entry for entry in corpus.enrich("html.title") if "error" in entry]


def test_the_whole_cluster(cluster: Path) -> None:
    assert Corpus.of(cluster).count() == 2 * (len(URLS) + 60)
    assert Corpus.of(cluster).where("hostname == 'example.com'").count() == 14


def test_blocks_of_other_hosts_are_not_read(cluster: Path) -> None:
    for part in cluster.parent.glob("*.gz"):
        if part.name.startswith("cdx-") and part.name > "cdx-00004.gz":
            part.unlink()
    corpus = Corpus.of(f"{cluster}?url=example.com/*").where("timestamp == '2026-11-02'")
    assert corpus.count() == 7


def test_a_header_says_what_the_columns_are(tmp_path: Path) -> None:
    cdx = archive(tmp_path, *[Page(f"http://a.org/{number}", 1, b"x") for number in range(9)])
    rows = [line.split(" ") for line in cdx.read_text().splitlines()[1:]]
    lines = [" CDX N b g V S k s m a"] + [
        " ".join([c[0], c[1], c[10], c[9], c[8], c[5], c[4], c[3], c[2]]) for c in rows
    ]
    index = write_cluster(tmp_path, [line.encode() for line in lines])
    for number in range(9):
        corpus = Corpus.of(f"{index}?url=a.org/{number}")
        assert urls(corpus) == [f"http://a.org/{number}"]
        assert not [entry for entry in corpus.enrich("response") if "error" in entry]
    assert Corpus.of(f"{index}?url=b.org/").count() == 0


def test_a_cdxj(tmp_path: Path) -> None:
    archive(tmp_path, *[Page(f"http://a.org/{number}", 1, b"x") for number in range(9)])
    Corpus.from_cdx(tmp_path / "all.cdx").save_as_cdxj(tmp_path / "all.cdxj")
    lines = (tmp_path / "all.cdxj").read_bytes().splitlines()
    for path in ("all.cdx", "all.cdxj"):
        (tmp_path / path).unlink()
    index = write_cluster(tmp_path, lines)
    assert urls(Corpus.of(f"{index}?url=a.org/7")) == ["http://a.org/7"]


def test_a_damaged_block_is_a_problem(cluster: Path, tmp_path: Path) -> None:
    corpus = Corpus.from_archive(str(cluster), url="host1.com", matchType="domain")
    before = corpus.count()
    for part in cluster.parent.glob("cdx-*.gz"):
        data = bytearray(part.read_bytes())
        data[len(data) // 8 :: 50] = bytes(len(data[len(data) // 8 :: 50]))
        part.write_bytes(data)
    report = corpus.save_as_cdxj(tmp_path / "o.cdxj")
    assert before == 2
    assert report.problems
    assert "gzip data is damaged" in report.problems[0].message
    assert not report.whole


def test_a_part_that_was_not_copied_to_its_end(cluster: Path, tmp_path: Path) -> None:
    corpus = Corpus.from_archive(str(cluster), url="*.com")
    for part in cluster.parent.glob("cdx-*.gz"):
        part.write_bytes(b"")
    report = corpus.save_as_cdxj(tmp_path / "o.cdxj")
    assert not report.whole and "is cut, or not of its index" in report.problems[0].message


def test_queries() -> None:
    assert query_of("a/cluster.idx") is None
    assert query_of("http://a.org/cdx?url=b.org/") is None
    wanted = ("s3://b/cluster.idx", (("url", "a.org/*"), ("matchType", "host")))
    assert query_of("s3://b/cluster.idx?url=a.org/*&matchType=host") == wanted
    for query in (
        {},
        {"url": ""},
        {"url": "a.org", "limit": "5"},
        {"url": "a.org", "matchType": "all"},
        {"url": "ftp://a.org/"},
        {"url": "*"},
    ):
        with pytest.raises(BadInput):
            key_prefixes(query)


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_in_each_query_for_it(url: str) -> None:
    key = urlkey(url.encode()) + b" 20261120091417"
    for query in (
        {"url": url},
        {"url": url + "*"},
        {"url": url, "matchType": "host"},
        {"url": url, "matchType": "domain"},
    ):
        assert key.startswith(key_prefixes(query)), query


def test_a_cluster_on_a_web_server(cluster: Path) -> None:
    with web(cluster.parent) as server:
        source = f"{server.url}/cluster.idx?url=example.com/a"
        corpus = Corpus.of(source, containers=f"{server.url}/")
        assert sorted(urls(corpus)) == sorted(2 * URLS[1:3])
        assert not [entry for entry in corpus.enrich("html.title") if "error" in entry]
        read = {path for method, path, span in server.requests if span and "cdx-" in path}
    assert len(read) <= 2  # of which one has the header, or has none


def test_a_cluster_in_an_object_store(cluster: Path) -> None:
    with object_store() as make_bucket:
        bucket = make_bucket()
        for path in filter(Path.is_file, cluster.parent.iterdir()):
            bucket.put(path.name, path.read_bytes())
        bucket.server.requests.clear()
        source = f"{bucket.url}/cluster.idx?url=example.com/a"
        corpus = Corpus.of(source, containers=f"{bucket.url}/")
        assert sorted(urls(corpus)) == sorted(2 * URLS[1:3])
        assert not [entry for entry in corpus.enrich("html.title") if "error" in entry]
        read = {path for method, path, span in bucket.server.requests if span and "cdx-" in path}
    assert 0 < len(read) <= 2
