"""The databases of warcprox as sources: what a row yields, and that a writer is not disturbed."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import blake3
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.capture import Capture, Evidence, Item, Problem
from dedupindex.errors import BadSource, ContainerChanged
from dedupindex.sources import expand, open_source, warcprox_db
from dedupindex.sources.warcprox_db import WarcproxSource
from tests.support.budgets import examples
from tests.support.commands import typed
from tests.support.text_sources import BASE32, HEX, brief
from tests.support.warcprox_databases import DATE, ID, URL, USUAL, make_database, value


def read(path: str, kind: str | None = None) -> list[Item]:
    with open_source(path, kind) as source:
        assert isinstance(source, WarcproxSource)
        return list(source.items())


def test_a_row_is_as_much_as_a_revisit_would_say(tmp_path: Path) -> None:
    path = make_database(tmp_path / "any.name", USUAL)
    first, second = read(path)
    assert isinstance(first, Capture) and isinstance(second, Capture)
    assert first.digest.spelled(first.spelling) == f"sha1:{HEX}"
    assert (first.url, first.date, first.record_id) == (
        URL.encode(),
        DATE.encode(),
        ID[1:-1].encode(),
    )
    assert (first.evidence, first.status, first.mime, first.size, first.offset) == (
        Evidence.NAMED, 0, b"", -1, -1,
    )  # fmt: skip
    assert first.container == path
    assert second.url == b"http://b.example/"  # of a bucket


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        (f"sha1:{BASE32}|", value(), f"capture {URL} {DATE} 0 - -1 -1 x sha1:{BASE32}"),
        (f"{HEX}|", value(), f"capture {URL} {DATE} 0 - -1 -1 x {HEX}"),
        (f"sha1:{HEX}", value(), f"capture {URL} {DATE} 0 - -1 -1 x sha1:{HEX}"),
        ("sha1:short|", value(), "refused bad-digest"),
        (f"sha1:{HEX}|", value(date="20261120091417"), "refused bad-date"),
        (f"sha1:{HEX}|", value("dns:a.example"), "refused not-http"),
        (f"sha1:{HEX}|", value("http://a.example/\u00e9"), "latin-1"),
        (f"sha1:{HEX}|", "{", "refused bad-line"),
        (f"sha1:{HEX}|", "[1]", "refused bad-line"),
        (f"sha1:{HEX}|", '{"id":"x","url":"http://a.example/"}', "refused bad-line"),
        (f"sha1:{HEX}|", '{"id":"x","url":"http://a.example/\u1234","date":1}', "refused bad-line"),
        (f"sha1:{HEX}|", "[" * 100_000, "refused bad-line"),
        (f"sha1:{HEX}|", None, "refused bad-line"),
        (f"sha1:{HEX}|", 5, "refused bad-line"),
        (None, value(), "refused bad-line"),
    ],
)
def test_rows(key: object, text: object, expected: str, tmp_path: Path) -> None:
    found = read(make_database(tmp_path / "x", [(key, text)]))
    (item,) = [item for item in found if not isinstance(item, Problem)]
    assert len(found) == 1 + (expected == "refused bad-line")  # which is shown, too
    if expected == "latin-1":  # as warcprox decodes the bytes of a WARC header
        assert isinstance(item, Capture) and item.url == b"http://a.example/\xe9"
    else:
        assert brief(item) == expected


def test_a_database_of_trough(tmp_path: Path) -> None:
    """The same table with a column for each value, one database for each bucket."""
    path = tmp_path / "bucket.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "create table dedup (digest_key varchar(100) primary key, url varchar(2100) not null, "
            "date varchar(100) not null, id varchar(100));"
        )
        insert = "insert into dedup (digest_key, url, date, id) values (?, ?, ?, ?)"
        database.execute(insert, (f"sha1:{HEX}", URL, DATE, ID))
        database.execute(insert, (f"sha1:{BASE32}", URL, DATE, None))
        database.commit()
    first, second = read(str(path))
    assert isinstance(first, Capture) and isinstance(second, Capture)
    assert (first.url, first.record_id) == (URL.encode(), ID[1:-1].encode())
    assert second.record_id == b""


def test_other_databases_are_of_no_known_kind(tmp_path: Path) -> None:
    path = tmp_path / "warcs" / "other.sqlite"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as database:
        database.execute("create table dedup_of_another (key, value)")
    with pytest.raises(BadSource, match="no known kind"):
        open_source(str(path))
    assert expand([str(path.parent)]).skipped == 1
    with open_source(str(path), "warcprox") as source, pytest.raises(BadSource, match="no table"):
        list(source.items())
    path.write_bytes(b"some text\n")
    with pytest.raises(BadSource, match="not a database"):
        open_source(str(path), "warcprox")


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with closing(sqlite3.connect(path)) as database:
        database.execute("create table dedup (hash, place)")
    with open_source(str(path)) as source, pytest.raises(BadSource, match="it has hash, place"):
        list(source.items())


@pytest.mark.parametrize(
    "schema",
    [
        "create table dedup (rowid text, key text, value text)",
        "create table other (key, value); create view dedup as select * from other",
    ],
)
def test_rows_that_cannot_be_told_apart_are_refused(schema: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(schema)
        table = "other" if "other" in schema else "dedup"
        database.execute(f"insert into {table} (key, value) values ('sha1:x', 'y')")
        database.commit()
    with open_source(str(path), "warcprox") as source, pytest.raises(BadSource, match="no table"):
        list(source.items())


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    make_database(path, [(f"sha1:{number:040x}|", value()) for number in range(1000)])
    data = bytearray(path.read_bytes())
    data[4096 * 4 :] = b"\xff" * (len(data) - 4096 * 4)
    path.write_bytes(data)
    with open_source(str(path)) as source, pytest.raises(BadSource, match=f"{path} cannot be read"):
        list(source.items())


@given(st.lists(st.tuples(st.integers(0, 20479), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=examples(150), deadline=None)
def test_any_bytes_may_be_damaged(changes: list[tuple[int, int]]) -> None:
    """Each database gives items or is refused, and is read to an end."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "x")
        path.write_bytes(_whole())
        data = bytearray(path.read_bytes())
        for place, byte in changes:
            data[place % len(data)] = byte
        path.write_bytes(data)
        try:
            assert len(read(str(path), "warcprox")) <= 200
        except BadSource as error:
            assert str(path) in str(error)


@cache
def _whole() -> bytes:
    with TemporaryDirectory() as folder:
        rows: list[tuple[object, object]] = [(f"sha1:{n:040x}|", value()) for n in range(60)]
        return Path(make_database(Path(folder, "x"), rows)).read_bytes()


def test_a_database_is_only_read_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Path(make_database(tmp_path / "x", USUAL)).read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    with pytest.raises(BadSource, match="- is a database, which is only read as a file"):
        open_source("-")


@pytest.mark.parametrize("wal", [False, True])
def test_reading_changes_nothing_beside_the_database(wal: bool, tmp_path: Path) -> None:
    path = Path(make_database(tmp_path / "x", USUAL, wal=wal))
    before = path.read_bytes()
    with open_source(str(path)) as source:
        assert len(list(source.items())) == 2
        assert source.content_hash == blake3.blake3(before).hexdigest()
        assert source.position == source.size == len(before)
        assert [each.name for each in tmp_path.iterdir()] == ["x"]
    assert path.read_bytes() == before and [each.name for each in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("wal", [False, True])
def test_a_writer_is_never_kept_waiting(
    wal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes between two items, with no patience at all; what it adds meanwhile may come."""
    monkeypatch.setattr(warcprox_db, "_AT_ONCE", 2)
    rows: list[tuple[object, object]] = [(f"sha1:{n:040x}|", value()) for n in range(9)]
    path = make_database(tmp_path / "x", rows, wal=wal)
    with closing(sqlite3.connect(path, timeout=0)) as writer:
        insert = "insert or replace into dedup (key, value) values (?, ?)"
        writer.execute(insert, ("sha1:" + "f" * 40 + "|", value()))
        writer.commit()
        with open_source(path) as source:
            found = []
            for number, item in enumerate(source.items()):
                found.append(item)
                if number < 5:
                    writer.execute(insert, (f"sha1:{number:039x}0|", value("http://new.example/")))
                    writer.commit()
            assert not source.changed
    digests = {item.digest for item in found if isinstance(item, Capture)}
    assert len(digests) >= 10


def test_rows_in_the_log_of_a_running_writer_count(tmp_path: Path) -> None:
    """A later run sees by its size that the database had more than its file."""
    path = make_database(tmp_path / "x", USUAL[:1], wal=True)
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("insert into dedup (key, value) values (?, ?)", USUAL[1])
        writer.commit()
        with open_source(path) as source:
            assert len(list(source.items())) == 2
            assert source.size > Path(path).stat().st_size
            content_hash = source.content_hash
    assert content_hash != blake3.blake3(Path(path).read_bytes()).hexdigest()


def test_a_database_that_is_written_while_it_is_taken_for_quiet(tmp_path: Path) -> None:
    path = make_database(tmp_path / "x", USUAL, wal=True)
    with open_source(path) as source:
        items = source.items()
        next(items)
        make_database(Path(path), [(f"sha1:{BASE32}|", value())])
        assert isinstance(list(items)[-1], Problem) and source.changed


def test_the_report_says_that_rows_have_no_status(tmp_path: Path) -> None:
    """In a directory nobody has named the database, and --status and --mime were given."""
    (tmp_path / "in").mkdir()
    other = f"sha1:{BASE32}|other", value("ftp://a.example/")
    make_database(tmp_path / "in" / "x", [*USUAL, other])
    words = ("index", "--status", "2xx", "--mime", "text/html", "--whitelist", tmp_path / "in")
    text, _ = typed(*words, tmp_path / "index")
    assert "remark: no-status" in text and "--status and --mime were not applied" in text
    report = json.loads(typed(*words, tmp_path / "again", "--json")[0])
    assert report["remarks"] == {"no-status": report["added"]} and report["added"] == len(USUAL)


def test_what_grew_is_read_again_with_replace(tmp_path: Path) -> None:
    path, index = make_database(tmp_path / "x", USUAL), tmp_path / "index"
    typed("index", path, index)
    assert "known before: 1" in typed("index", "--add", path, index)[0]
    make_database(Path(path), [(f"sha1:{BASE32}|", value("http://c.example/"))])
    typed("index", "--add", path, index, status=ContainerChanged.exit_status)
    typed("index", "--replace", path, index)
    lookup = ["lookup", index, "--digest", f"sha1:{HEX}", "--url"]
    for url in ("http://a.example/", "http://b.example/", "http://c.example/"):
        assert url in typed(*lookup, url)[0]
