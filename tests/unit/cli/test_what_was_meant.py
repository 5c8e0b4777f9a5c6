"""Messages that name what was typed, and what was probably meant."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dedupindex.crawls import lifecycle
from dedupindex.crawls.stores import make_store
from dedupindex.index.identity import read_identity
from dedupindex.lookup import explain
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1
from tests.support.commands import typed
from tests.unit.cli.test_cli import dedupindex
from tests.unit.indexer.test_pipeline import HEADER, cdx_line
from tests.unit.post_crawl.test_index_originals import BODIES, write
from tests.unit.server.test_crawl_api import begin, report


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "a.cdx"
    path.write_text(HEADER + cdx_line(1, 1, 1) + cdx_line(2, 2, 2))
    return path


@pytest.fixture
def index(tmp_path: Path, lines: Path) -> Path:
    typed("index", "--crawl", "weekly-1", lines, tmp_path / "index")
    return tmp_path / "index"


@pytest.fixture
def cancelled(make_index: MakeIndex) -> Path:
    """An index with a crawl `kept`, of indexed files, and k4, which was cancelled."""
    index = make_index([capture(1, crawl="kept", container="w.warc.gz")])
    with closing(make_store(index)) as store:
        store.write(partial(lifecycle.begin, name="k4"))
        store.write(partial(lifecycle.cancel, name="k4"))
    return index


def test_a_cancelled_crawl_is_said_to_be_cancelled(cancelled: Path) -> None:
    sentence = "crawl k4 was cancelled: the index has nothing of what it reported"
    said = typed("list", cancelled, "--of-crawl", "k4", status=10)[1]
    assert said == f"no capture matches; {sentence}\n"
    listed, said = typed("list", cancelled, "--crawl", "k4")
    assert "http" in listed and f"warning: {sentence}; " in said
    for words in (("k4", "--compare", "kept"), ("kept", "--compare", "k4")):
        assert sentence in typed("report", cancelled, "--crawl", *words, status=4)[1]


def test_a_lookup_of_a_url_without_scheme_says_so(index: Path) -> None:
    words = ("lookup", index, "--digest", sha1(1), "--url", "h1.example/p1")
    out, said = typed(*words, "--strategy", "EXACT_URL", status=10)
    assert out.startswith("no duplicate")
    assert "h1.example/p1 has no scheme: did you mean http://h1.example/p1?" in said
    assert "h1.example/p1 has no scheme: did you mean" in typed(*words)[1]  # found by digest only
    full = ("lookup", index, "--digest", sha1(1), "--url", "http://h1.example/p1")
    assert typed(*full)[1] == ""
    assert "scheme" not in typed(*words[:5], "dns:h1.example")[1]


def test_a_lookup_of_a_digest_that_no_index_of_this_kind_has_says_so(index: Path) -> None:
    """Not "no duplicate" only: the payload may be archived all the same."""
    for digest, hinted in ((f"md5:{'ab' * 16}", True), (f"sha1:{'ab' * 20}", False)):
        out, said = typed("lookup", index, "--digest", digest, status=10)
        hint = "the index has no digest of the algorithm md5, only sha1"
        assert out.startswith("no duplicate") and (hint in said) is hinted
        out, _ = typed("lookup", index, "--digest", digest, "--json", status=10)
        assert out.startswith('{"duplicate":false') or '"duplicate": false' in out


def test_a_lookup_that_leaves_captures_out_says_so(index: Path) -> None:
    words = ("lookup", index, "--digest", sha1(1), "--url", "http://other.example/")
    said = "captures have this digest, and none meets all conditions: --explain says why\n"
    for more in (("--strategy", "EXACT_URL"), ("--min-size", "1000000000")):
        assert typed(*words, *more, status=10)[1] == said
        out, messages = typed(*words, *more, "--explain", status=10)
        assert out.count("considered: ") == 1 and messages == ""
    assert typed("lookup", index, "--digest", sha1(4000), status=10)[1] == ""
    empty = "sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"
    said = "this is the digest of an empty payload, which is never an original\n"
    assert typed("lookup", index, "--digest", empty, status=10)[1] == said


def test_a_lookup_of_what_was_purged_says_so(index: Path) -> None:
    words = ("lookup", index, "--digest", sha1(1), "--url", "http://h1.example/p1")
    assert "purged" not in typed(*words)[1]
    typed("purge", index, "--url", "http://h1.example/p1")
    out, said = typed(*words, status=10)
    assert out.startswith("no duplicate")
    assert "captures with this digest were purged from the index" in said
    assert "purged" not in typed("lookup", index, "--digest", sha1(3), status=10)[1]


def test_the_archive_in_place_of_a_new_index_is_noticed(tmp_path: Path, lines: Path) -> None:
    said = typed("index", "--all", tmp_path / "new-idx", lines.parent, status=2)[1]
    assert f"the index comes last, as in bin/index --all {lines.parent} {tmp_path}/new-idx" in said
    said = typed("index", tmp_path / "new-idx", lines.parent, status=2)[1]
    assert f"the index comes last, as in bin/index {lines.parent} {tmp_path}/new-idx" in said
    assert not (tmp_path / "new-idx").exists()


def test_results_in_a_store_are_no_directory_of_a_host(tmp_path: Path) -> None:
    (tmp_path / "smaller/.rewrite").mkdir(parents=True)
    words = (
        "undedup",
        tmp_path / "smaller",
        "--out",
        tmp_path / "again",
        "--host",
        "h2=s3://b/smaller",
    )
    said = typed(*words, status=2)[1]
    assert "results in an object store are read with --originals s3://b/smaller" in said


def test_a_cluster_is_not_searched_for_digests_of_an_algorithm() -> None:
    """It would read everything: neither the view nor the query is looked at."""
    nothing: Any = None
    assert explain.algorithm_hint(nothing, nothing, "cassandra://h1,h2:9042/archive") == ""


def test_a_report_on_nothing_names_the_crawls(index: Path, cancelled: Path) -> None:
    said = typed("report", cancelled, status=2)[1]
    assert "either --crawl NAME or --against SOURCE... for files; crawls in " in said
    assert "kept" in said.partition("; crawls in ")[2]
    assert "or --against SOURCE... for files" in typed("report", index, status=2)[1]


def test_the_data_file_of_an_index_is_missing(index: Path) -> None:
    data = index / f"data-{read_identity(index).generation}.mdb"
    whole = data.read_bytes()
    remedy = ": restore the index from a copy, or build it again in another directory"
    for changed, text in (
        (b"", ".mdb is empty: "),
        (whole[:16] + b"junk" + whole[20:], ".mdb is damaged (MDB_INVALID: "),
    ):
        data.write_bytes(changed)
        _, said = typed("index", "--check", index, status=7)
        assert text in said and remedy in said, said
    data.unlink()
    said = typed("list", index, status=6)[1]
    assert f".mdb is missing{remedy}" in said
    assert "Errno" not in said


def test_all_is_named_if_it_was_typed(index: Path, lines: Path) -> None:
    said = typed("index", "--add", "--all", lines, index, status=5)[1]
    assert "leave --all out, or make a new index with --all" in said
    assert "--mime" not in said and "whitelist" not in said


def test_the_example_has_the_option_that_was_typed(tmp_path: Path, lines: Path) -> None:
    said = typed("index", "--add", lines, status=2)[1]
    assert f"bin/index --add {lines} my-index" in said


def test_a_report_names_the_groups_that_it_does_not_have(index: Path, lines: Path) -> None:
    said = typed("report", index, "--crawl", "k", "--by", "year", status=2)[1]
    assert "a report with --crawl is not by year, but by host, mime" in said
    said = typed("report", index, "--against", lines, "--by", "hour", status=2)[1]
    assert "a report with --against is not by hour, but by host" in said


def test_the_name_of_a_crawl_is_no_source(index: Path) -> None:
    said = typed("report", index, "weekly-1", status=2)[1]
    assert "there is no file weekly-1; did you mean --crawl weekly-1?" in said
    assert "did you mean" not in typed("report", index, "weekly-2", status=4)[1]


@pytest.mark.parametrize("ended", [False, True])
def test_a_name_like_that_of_a_crawl_that_waits_for_its_files_is_warned_of(
    index: Path, tmp_path: Path, ended: bool
) -> None:
    """But not the next one in a row of names, and not once the files of the other were read."""
    live = LiveIndex(index)
    live.refresh()
    web = create_app(Config(index), live).test_client()
    begin(web, "november-1")
    assert web.post("/captures?crawl=november-1", json=report(9)).status_code == 200
    if ended:
        web.post("/crawls/november-1/commit")
    live.crawls.write_counts()

    def said(name: str, number: int) -> str:
        path = tmp_path / f"{number}.cdx"
        path.write_text(HEADER + cdx_line(number, number, number))
        return dedupindex("index", "--add", "--crawl", name, path, index)[1]

    assert "warning" not in said("november-2", 5)
    assert "warning" not in said("wekly-1", 6)  # weekly-1 used no server
    told = "knows no crawl december-1; did you mean november-1? That one used the server, and not"
    assert told in said("december-1", 7)
    file = write(tmp_path / "a.warc.gz", 2, BODIES[:1])  # which that of the report is in
    dedupindex("index", "--add", "--crawl", "november-1", file, index)
    assert ("warning" in said("decmber-1", 8)) is not ended


def test_a_copy_of_a_file_is_not_said_to_be_better(tmp_path: Path) -> None:
    file, index = write(tmp_path / "o.warc.gz", 2, BODIES[:2]), tmp_path / "index"
    typed("index", "--all", file, index)
    (tmp_path / "copy.warc.gz").write_bytes(file.read_bytes())
    out = typed("index", "--add", tmp_path / "copy.warc.gz", index)[0]
    assert "better than the capture that the index had: all of the same time, in a file wh" in out
    earlier = write(tmp_path / "z.warc.gz", 1, BODIES[:1])
    out = typed("index", "--add", earlier, index)[0]
    assert "better than the capture that the index had\n" in out
    typed("purge", index, "--container", tmp_path / "copy.warc.gz")
    assert "copy.warc.gz" not in typed("list", index)[0]


def test_a_pair_that_moves_to_another_crawl_is_not_new(tmp_path: Path) -> None:
    file, index = write(tmp_path / "1.warc.gz", 2, BODIES[:2]), tmp_path / "index"
    typed("index", "--all", "--crawl", "one", file, index)
    out = typed("index", "--reread", "--crawl", "two", file, index)[0]
    counts = [line.split()[:2] for line in out.splitlines() if line.startswith("  ")]
    assert "  of these moved from crawl one, with all captures: 1 file\n" in out
    assert counts[1:] == [["added", "0"], ["replaced", "0"], ["unchanged", "2"]]
