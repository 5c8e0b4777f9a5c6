"""Records that a plan must keep: those that revisits refer to, and captures of one second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from dedupindex.post_crawl.manifest.parquet import open_manifest
from dedupindex.verify.collection import Collection
from dedupindex.verify.compare_collections import Against
from tests.support.commands import run_json
from tests.support.verifying import BODY, DAY, HOST, asked, copy_of, page, reasons, write
from tests.support.warc_cases import HTTP, gz, record_id, sha1

OTHER = BODY[::-1]
NONE = {"Refers_To": None, "Refers_To_Target_URI": None, "Refers_To_Date": None}
MEANT: dict[str, bytes] = {  # revisits of page 2, which could be one of page 1
    "all three": copy_of(9, 2),
    "URL and date": copy_of(9, 2, Refers_To=None),
    "the same second, another spelling": copy_of(
        9, 2, Refers_To=None, Refers_To_Target_URI=b"http://www.example.com/2"
    ),
    "record id, as wget writes it": copy_of(9, 2, **{**NONE, "Refers_To": record_id(2)}),
    "nothing, but it has the URL": copy_of(9, 2, Target_URI=HOST + b"2", **NONE),
    "URL, with a date at which nothing is": copy_of(9, 2, Refers_To=None, Refers_To_Date=DAY % 30),
    "URL, with no date that is one": copy_of(9, 2, Refers_To=None, Refers_To_Date=b"yesterday"),
    "URL in brackets": copy_of(9, 2, Refers_To=None, Refers_To_Target_URI=b"<" + HOST + b"2>"),
}
NOTHING = {
    "page 1": copy_of(9, 1),
    "a record that is elsewhere": copy_of(9, 8),
    "another payload of the URL": copy_of(9, 2, OTHER, Refers_To=None, Refers_To_Date=None),
    "no revisit": page(9, OTHER),
}


def rewritten(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, object], dict[str, object]]:
    """Run the stages over ``in``; return the reports of resolve and rewrite."""
    run_json(capsys, "manifest", folder / "in", "-o", folder / "m", "--jobs", 1)
    planned = run_json(capsys, "resolve", folder / "m", "-o", folder / "plan")
    done = run_json(capsys, "rewrite", folder / "plan", "--out", folder / "out", "--jobs", 1)
    assert list(Against(folder / "in", [folder / "out"]).findings()) == []
    return planned, done


@pytest.mark.parametrize("how", [*MEANT, *NOTHING])
def test_records_that_revisits_refer_to_are_kept(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "in/a.warc.gz", [page(1), asked(1), page(2), asked(2), page(3), asked(3)])
    write(tmp_path / "in/b.warc.gz", [asked(9), MEANT.get(how) or NOTHING[how]])
    before = reasons(list(Collection([tmp_path / "in"]).findings()))
    planned, done = rewritten(tmp_path, capsys)
    assert planned["kept"] == ({"referred-to": 1} if how in MEANT else {})
    assert done["revisits"] == (1 if how in MEANT else 2)
    assert reasons(list(Collection([tmp_path / "out"]).findings())) == before


def test_an_earlier_harvest_that_comes_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was rewritten once is resolved again with files that have an earlier capture."""
    write(tmp_path / "in/b.warc.gz", [page(5), page(6), page(7)])
    assert rewritten(tmp_path, capsys)[1]["revisits"] == 2
    again = tmp_path / "again"
    write(again / "in/a.warc.gz", [page(1), page(2)])
    (tmp_path / "out/b.warc.gz").rename(again / "in/b.warc.gz")
    planned, done = rewritten(again, capsys)
    assert done["revisits"] == 1 and planned["kept"] == {"referred-to": 1}
    assert list(Collection([again / "out"]).findings()) == []


def test_the_manifest_lists_originals_of_revisits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, top = tmp_path / "in", tmp_path / "m"
    first = [page(1), copy_of(2, 1), copy_of(3, 1, Refers_To_Date=b"x", Refers_To=None)]
    write(source / "a.warc.gz", first)
    write(source / "b.warc.gz", [page(4)])
    run_json(capsys, "manifest", source, "-o", top)
    offset = len(gz(first[0]))
    digest, url, behind = sha1(BODY).decode(), HOST.decode(), offset + len(gz(first[1]))
    names = [record_id(number).decode().strip("<>") for number in (1, 2, 3)]
    expected = [
        (offset, "refers-to", names[0], f"{url}1", digest),
        (offset, "revisit", names[1], f"{url}2", digest),
        (behind, "refers-to", "", f"{url}1", digest),
        (behind, "revisit", names[2], f"{url}3", digest),
    ]
    assert meant(top) == expected
    (line,) = [line for line in lines(top) if line[0] == f"{HOST.decode()}1"]
    assert replay_keys(top) == [line[1], 0]
    (source / "a.warc.gz").unlink()
    run_json(capsys, "manifest", source, "-o", top)
    assert meant(top) == []


def fetched(query: str, glob: str) -> list[Any]:
    with duckdb.connect() as database:  # not the default connection, whose threads never end
        return database.execute(query, [glob]).fetchall()


def meant(top: Path) -> list[tuple[object, ...]]:
    glob = open_manifest(top).references
    query = """SELECT "offset", not_rewritable_reason, record_id, url, digest
        FROM read_parquet(?) ORDER BY 1, 2"""
    return fetched(query, glob)


def replay_keys(top: Path) -> list[int]:
    query = """SELECT replay_key FROM read_parquet(?)
        WHERE not_rewritable_reason = 'refers-to' ORDER BY "offset\""""
    return [row[0] for row in fetched(query, open_manifest(top).references)]


def lines(top: Path) -> list[tuple[object, ...]]:
    query = "SELECT url, replay_key FROM read_parquet(?)"
    return fetched(query, open_manifest(top).parquet)


AT_2 = {"Target_URI": HOST + b"2", "Date": DAY % 2}
SERVED = HTTP.replace(b"\r\n\r\n", b"\r\nServer: b\r\n\r\n")
ERROR = b"HTTP/1.1 401 Unauthorized\r\n\r\n"
TWINS: dict[str, tuple[list[bytes], int]] = {  # records beside page 2, and revisits then
    "the same payload again": ([page(3, **AT_2)], 2),
    "the same payload with another header": ([page(3, **AT_2, head=SERVED)], 0),
    "the same payload twice, once with another header": (
        [page(3, **AT_2), page(4, **AT_2, head=SERVED)],
        0,
    ),
    "another payload": ([page(3, OTHER, **AT_2)], 0),
    "an error with the same body": ([page(3, head=ERROR, **AT_2)], 0),
    "a redirect": ([page(3, b"x", head=b"HTTP/1.1 302 Found\r\n\r\n", **AT_2)], 0),
    "a fraction of the second": (
        [page(3, OTHER, **{**AT_2, "Date": b"2026-11-02T09:14:17.5Z"}, version=b"WARC/1.1")],
        0,
    ),
    "that very record": ([page(2)], 2),
    "another URL of that key": (
        [page(3, **{**AT_2, "Target_URI": b"http://www.example.com/2"})],
        2,
    ),
    "another second": ([page(3, Target_URI=HOST + b"2")], 2),
    "a revisit of another payload": ([copy_of(3, 8, OTHER, **AT_2)], 0),
    "a revisit of the same payload": ([copy_of(3, 8, **AT_2)], 0),
    "a revisit of a second that is cut": (
        [copy_of(3, 8, **{**AT_2, "Date": b"2026-11-02T09:14:17.5Z"}, version=b"WARC/1.1")],
        0,
    ),
    "that very record as a revisit": ([copy_of(2, 8)], 1),
    "a revisit of another URL of that key": (
        [copy_of(3, 8, OTHER, **{**AT_2, "Target_URI": b"http://www.example.com/2"})],
        1,
    ),
    "a revisit of another second": ([copy_of(3, 8, OTHER, Target_URI=HOST + b"2")], 1),
}


@pytest.mark.parametrize("how", list(TWINS))
def test_records_that_replay_cannot_distinguish_stay(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a revisit it would be shown where the other was, or the other where it was."""
    beside, revisits = TWINS[how]
    write(tmp_path / "in/a.warc.gz", [page(1), asked(1), page(2), asked(2)])
    write(tmp_path / "in/b.warc.gz", beside)
    planned, done = rewritten(tmp_path, capsys)
    assert done["revisits"] == revisits
    assert bool(planned["kept"]) == (not revisits)


AT_1: dict[str, Any] = {"Target_URI": HOST + b"1", "Date": DAY % 1}
WWW = b"http://www.example.com/1"
OF_ITS_OWN_SECOND: dict[str, tuple[list[bytes], int]] = {  # behind page 1, and revisits then
    "equal": ([page(2, **AT_1)], 1),
    "equal ones": ([page(2, **AT_1), page(3, **AT_1)], 2),
    "a later one": ([page(2, **AT_1), page(3)], 2),
    "another header": ([page(2, **AT_1, head=SERVED)], 0),
    "one with another header": ([page(2, **AT_1), page(3, **AT_1, head=SERVED)], 0),
    "one with another status": ([page(2, **AT_1), page(3, **AT_1, head=ERROR)], 0),
    "another payload": ([page(2, **AT_1), page(3, OTHER, **AT_1)], 0),
    "another URL of that key": ([page(2, **{**AT_1, "Target_URI": WWW})], 0),
    "equal, and another URL of that key": (
        [page(2, **AT_1), page(3, **{**AT_1, "Target_URI": WWW})],
        1,
    ),
    "a fraction later": (
        [page(2, **{**AT_1, "Date": b"2026-11-01T09:14:17.5Z"}, version=b"WARC/1.1")],
        1,
    ),
    "a revisit": ([page(2, **AT_1), copy_of(3, 8, **AT_1)], 0),
}


@pytest.mark.parametrize("how", list(OF_ITS_OWN_SECOND))
def test_a_copy_in_the_second_of_its_original_must_equal_all_records_of_that_second(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    beside, revisits = OF_ITS_OWN_SECOND[how]
    write(tmp_path / "in/a.warc.gz", [page(1), asked(1)])
    write(tmp_path / "in/b.warc.gz", beside)
    _, done = rewritten(tmp_path, capsys)
    assert done["revisits"] == revisits


@pytest.mark.parametrize(
    ("kind", "revisits"), [(b"video/mp4", 1), (b"x-world/x-3dmf", 0), (b"", 1)]
)
def test_openwayback_finds_an_original_only_before_its_revisit(
    kind: bytes, revisits: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within a second its CDX is sorted by media type, and that of revisits is warc/revisit."""
    head = b"HTTP/1.1 200 OK\r\n" + (b"Content-Type: %b\r\n" % kind if kind else b"") + b"\r\n"
    write(tmp_path / "in/a.warc.gz", [page(n, **AT_1, head=head) for n in (1, 2)])
    _, done = rewritten(tmp_path, capsys)
    assert done["revisits"] == revisits


STANDING: dict[str, tuple[bytes, int]] = {  # a revisit where page 1 is, and revisits then
    "another payload": (copy_of(9, 8, OTHER, Target_URI=HOST + b"1", Date=DAY % 1), 1),
    "another URL of that key": (
        copy_of(9, 8, OTHER, Target_URI=b"http://www.example.com/1", Date=DAY % 1),
        1,
    ),
    "no digest": (copy_of(9, 8, Payload_Digest=None, Target_URI=HOST + b"1", Date=DAY % 1), 1),
    "the same payload": (copy_of(9, 8, Target_URI=HOST + b"1", Date=DAY % 1), 2),
    "another second": (copy_of(9, 8, OTHER, Target_URI=HOST + b"1"), 2),
}


@pytest.mark.parametrize("how", list(STANDING))
def test_a_record_in_the_second_of_a_revisit_of_another_payload_is_no_original(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tool that looks up by URL and second alone would show that revisit's payload."""
    beside, revisits = STANDING[how]
    write(tmp_path / "in/a.warc.gz", [page(1), page(2), page(3)])
    write(tmp_path / "in/b.warc.gz", [beside])
    planned, done = rewritten(tmp_path, capsys)
    assert done["revisits"] == revisits
    assert planned["kept"] == ({} if revisits == 2 else {"no-earlier-original": 1})
    assert "ambiguous-original" not in reasons(list(Collection([tmp_path / "out"]).findings()))
