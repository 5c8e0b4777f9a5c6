"""Parquet tables: every row as the row of a CDX; names, types, damage."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.capture import Capture, Item, Problem, Refusal, Revisit, Rows
from dedupindex.errors import BadInput, BadSource
from dedupindex.sources import SourceOptions, expand, open_source
from dedupindex.sources.table_columns import parse_names
from tests.support.budgets import examples
from tests.support.stores import Bucket, Fault, web
from tests.support.tables import BASE32, ROW, TYPES, cdx_line, write_table
from tests.support.text_sources import HEX, brief, records

PLAIN = (
    "capture http://example.com/ 2026-11-20T09:14:17Z 200 image/png 1043 333 a.warc.gz " + BASE32
)


def read(path: Path | str, **options: Any) -> list[Item]:
    with open_source(str(path), options=SourceOptions(**options)) as source:
        found = list(source.items())
        assert source.position == source.size
    with open_source(str(path), options=SourceOptions(**options)) as source:
        batched = [
            item
            for batch in source.batches()
            for item in (batch.captures() if isinstance(batch, Rows) else batch)
        ]
    assert sorted(map(repr, batched)) == sorted(map(repr, found))
    return found


def of_row(tmp_path: Path, types: dict[str, str] | None = None, **values: Any) -> str:
    """Return the item of one row that differs from `ROW` in some values."""
    path = write_table(tmp_path / "t.parquet", [ROW | values], TYPES | (types or {}))
    (item,) = read(path)
    return brief(item)


def test_a_plain_row(tmp_path: Path) -> None:
    assert of_row(tmp_path) == PLAIN
    (capture,) = read(tmp_path / "t.parquet")
    assert isinstance(capture, Capture)
    assert capture.container == ROW["warc_filename"]
    assert capture.size_of_record


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"content_digest": None}, "refused bad-digest"),
        ({"content_digest": "-"}, "refused bad-digest"),
        ({"content_digest": BASE32[:-1]}, "refused bad-digest"),
        ({"content_digest": BASE32[:-1] + "1"}, "refused bad-digest"),
        ({"content_digest": HEX}, PLAIN.replace(BASE32, HEX)),
        ({"content_digest": f"sha1:{BASE32}"}, PLAIN.replace(BASE32, f"sha1:{BASE32}")),
        ({"fetch_time": None}, "refused bad-date"),
        ({"fetch_time": "infinity"}, "refused bad-date"),
        ({"fetch_time": "12026-11-20 09:14:17"}, "refused bad-date"),
        ({"fetch_time": "2026-11-20 09:14:17.5"}, PLAIN.replace("17Z", "17.500Z")),
        ({"url": None}, "refused not-http"),
        ({"url": "ftp://example.com/"}, "refused not-http"),
        ({"url": "dns:example.com"}, "refused not-http"),
        ({"url": "<http://example.com/>"}, PLAIN),
        ({"url": "HTTP://example.com/"}, PLAIN.replace("http:", "HTTP:")),
        ({"url": "http://example.com/ä b"}, PLAIN.replace(".com/", ".com/ä b")),
        ({"fetch_status": None}, PLAIN.replace(" 200 ", " 0 ")),
        ({"fetch_status": -404}, "refused fetch-failed"),
        ({"content_mime_type": None}, PLAIN.replace("image/png", "-")),
        ({"content_mime_type": "Text/HTML; charset=x"}, PLAIN.replace("image/png", "text/html")),
        (
            {"content_mime_type": "warc/revisit"},
            "revisit http://example.com/ 2026-11-20T09:14:17Z -> ?",
        ),
        ({"warc_filename": "-"}, "revisit http://example.com/ 2026-11-20T09:14:17Z -> ?"),
        # a place without the name of a file is not one in the table
        ({"warc_filename": None}, PLAIN.replace("333 a.warc.gz", "-1 t.parquet")),
        ({"warc_filename": ""}, PLAIN.replace("333 a.warc.gz", "-1 t.parquet")),
        ({"warc_record_offset": None}, PLAIN.replace("333", "-1")),
        ({"warc_record_length": None}, PLAIN.replace("1043", "-1")),
        ({"content_truncated": "length"}, "refused truncated"),
        ({"content_truncated": "-"}, PLAIN),
        ({"content_truncated": ""}, PLAIN),
        ({"url_surtkey": "com,example)/?__wb_method=post&a=b"}, "refused method"),
        ({"url_surtkey": "com,example)/?__wb_method=GET&a=b"}, PLAIN),
        ({"url_surtkey": "com,example)/?__wb_method=get"}, PLAIN),
        ({"url_surtkey": "com,example)/?__wb_method=gets"}, "refused method"),
        ({"url_surtkey": "com,a)/?__wb_method=get&__wb_method=put"}, "refused method"),
        ({"url_surtkey": "com,a)/?__wb_method=get&__wb_method=Get&a"}, PLAIN),
        ({"url_surtkey": "com,a)/?__wb_method="}, "refused method"),
        ({"url_surtkey": None}, PLAIN),
    ],
)
def test_each_row_gives_one_item(tmp_path: Path, values: dict[str, Any], expected: str) -> None:
    assert of_row(tmp_path, **values) == expected


@pytest.mark.parametrize("name", ["warc_record_offset", "warc_record_length"])
def test_a_negative_number_is_a_bad_line(tmp_path: Path, name: str) -> None:
    path = write_table(tmp_path / "t.parquet", [ROW, ROW | {name: -5}, ROW])
    found = read(path)
    assert [item for item in found if isinstance(item, Problem)] == [
        Problem(str(path), 2, "row 2: b'-5' is not a size or offset")
    ]
    assert sorted(map(brief, records(found))) == [PLAIN, PLAIN, "refused bad-line"]


@pytest.mark.parametrize(
    ("kind", "written", "date"),
    [
        ("TIMESTAMP WITH TIME ZONE", "2026-11-20 09:14:17+02", "2026-11-20T07:14:17Z"),
        ("TIMESTAMP_NS", "2026-11-20 09:14:17.123456789", "2026-11-20T09:14:17.123Z"),
        ("TIMESTAMP_S", "2026-11-20 09:14:17", "2026-11-20T09:14:17Z"),
        ("TIMESTAMP_MS", "2026-11-20 09:14:17.120", "2026-11-20T09:14:17.120Z"),
        ("VARCHAR", "20261120091417", "2026-11-20T09:14:17Z"),
        ("VARCHAR", "20261120091417123", "2026-11-20T09:14:17.123Z"),
        ("VARCHAR", "2026-11-20T09:14:17Z", "2026-11-20T09:14:17Z"),
        ("VARCHAR", "2026-11-20 09:14:17.123", "2026-11-20T09:14:17.123Z"),
        ("VARCHAR", "2026-11-20T09:14:17+02:00", None),
        ("VARCHAR", "20261120091461", None),
        ("VARCHAR", "20261131091417", None),
        ("VARCHAR", "yesterday", None),
        ("BIGINT", 20261120091417, "2026-11-20T09:14:17Z"),
        ("BIGINT", 20261120, None),
    ],
)
def test_types_of_times(tmp_path: Path, kind: str, written: Any, date: str | None) -> None:
    expected = PLAIN.replace("2026-11-20T09:14:17Z", date) if date else "refused bad-date"
    assert of_row(tmp_path, {"fetch_time": kind}, fetch_time=written) == expected


def test_text_as_bytes_and_numbers_as_text(tmp_path: Path) -> None:
    texts = {name: "BLOB" for name, kind in TYPES.items() if kind == "VARCHAR"}
    assert of_row(tmp_path, texts) == PLAIN
    url = b"http://example.com/\xff"
    path = write_table(tmp_path / "b.parquet", [ROW | {"url": url}], TYPES | {"url": "BLOB"})
    (item,) = read(path)
    assert isinstance(item, Capture)
    assert item.url == url
    numbers = {name: "VARCHAR" for name, kind in TYPES.items() if kind.endswith("INT")}
    numbers |= dict.fromkeys(("warc_record_offset", "warc_record_length"), "VARCHAR")
    assert of_row(tmp_path, numbers) == PLAIN
    path = write_table(tmp_path / "n.parquet", [ROW | {"fetch_status": "x"}], TYPES | numbers)
    assert [brief(item) for item in read(path)] == ["problem 1", "refused bad-line"]


def test_a_record_id(tmp_path: Path) -> None:
    types = TYPES | {"warc_record_id": "VARCHAR"}
    uuid = "urn:uuid:00000000-0000-4000-8000-000000000001"
    for written, kept in ((f"<{uuid}>", uuid), (uuid, uuid), ("-", ""), (None, ""), ("x:y", "x:y")):
        rows = [ROW | {"warc_record_id": written}]
        (item,) = read(write_table(tmp_path / "t.parquet", rows, types))
        assert isinstance(item, Capture)
        assert item.record_id == kept.encode()


# --- names ----------------------------------------------------------------------------------------

OTHER = {"url": "uri", "fetch_time": "when", "content_digest": "sha 1", "warc_filename": "f"}


def test_columns_named_as_in_a_cdxj(tmp_path: Path) -> None:
    names = {
        "url": "url", "fetch_time": "timestamp", "content_digest": "digest",
        "content_mime_type": "mime", "fetch_status": "status", "warc_filename": "filename",
        "warc_record_offset": "offset", "warc_record_length": "length",
    }  # fmt: skip
    row = {name: ROW[usual] for usual, name in names.items()}
    types = {name: TYPES[usual] for usual, name in names.items()}
    assert list(map(brief, read(write_table(tmp_path / "t.parquet", [row], types)))) == [PLAIN]


def test_columns_with_names_of_the_user(tmp_path: Path) -> None:
    types = {OTHER.get(name, name): kind for name, kind in TYPES.items()}
    rows = [{OTHER.get(name, name): value for name, value in ROW.items()}]
    path = write_table(tmp_path / "t.parquet", rows, types)
    assert list(map(brief, read(path, columns=OTHER))) == [PLAIN]
    assert expand([str(tmp_path)]).paths == []
    assert expand([str(tmp_path)]).skipped == 1
    assert expand([str(tmp_path)], columns=OTHER).paths == [str(path)]
    with pytest.raises(BadSource, match="no known kind"):
        open_source(str(path))
    with pytest.raises(BadSource, match="without a column nowhere; it has url_surtkey, uri"):
        open_source(str(path), "parquet", SourceOptions(columns=OTHER | {"method": "nowhere"}))


def test_names_of_columns() -> None:
    assert parse_names("") == {}
    assert parse_names("url=u=x,fetch_time=t") == {"url": "u=x", "fetch_time": "t"}
    for text in ("url", "url=", "=x", "uri=x"):
        with pytest.raises(BadInput, match=f"--columns {text}: write NAME=COLUMN"):
            parse_names(text)


@pytest.mark.parametrize("name", ["url", "fetch_time", "content_digest"])
def test_a_missing_column(tmp_path: Path, name: str) -> None:
    types = {column: kind for column, kind in TYPES.items() if column != name}
    path = write_table(tmp_path / "t.parquet", [ROW], types)
    with pytest.raises(BadSource, match=rf"t\.parquet is a Parquet table without a column {name}"):
        open_source(str(path), "parquet")
    assert expand([str(tmp_path)]).skipped == 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("url", "INTEGER"),
        ("fetch_time", "DATE"),
        ("fetch_time", "DOUBLE"),
        ("content_digest", "INTEGER"),
        ("fetch_status", "DOUBLE"),
        ("warc_record_offset", "BOOLEAN"),
    ],
)
def test_a_wrong_type(tmp_path: Path, name: str, kind: str) -> None:
    path = write_table(tmp_path / "t.parquet", [{}], TYPES | {name: kind})
    words = f"column {name} cannot be read as {name}: it has the type {kind}"
    with pytest.raises(BadSource, match=words):
        open_source(str(path))


@pytest.mark.parametrize("name", ["file_row_number", "File_Row_Number"])
def test_a_column_with_the_name_of_row_numbers(tmp_path: Path, name: str) -> None:
    path = write_table(tmp_path / "t.parquet", [ROW | {name: 5}], TYPES | {name: "INTEGER"})
    with pytest.raises(BadSource, match=f"with a column {name}: rename it"):
        open_source(str(path))


def test_names_of_files_are_no_patterns(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write_table(tmp_path / "a1.parquet", [ROW, ROW])
    path = write_table(tmp_path / "a[1]*'.parquet", [ROW])
    assert len(read(path)) == 1


def test_a_directory_of_partitions(tmp_path: Path) -> None:
    parts = tmp_path / "crawl=CC-MAIN-2026-47" / "subset=warc"
    parts.mkdir(parents=True)
    path = write_table(parts / "part-0.c000.gz.parquet", [ROW])
    assert expand([str(tmp_path)]).paths == [str(path)]
    assert list(map(brief, read(path))) == [PLAIN]


def test_many_rows_keep_their_order_and_unusual_ones_are_refused(tmp_path: Path) -> None:
    rows = [ROW | {"url": f"http://example.com/{number}"} for number in range(5000)]
    for number in range(0, 5000, 700):
        rows[number] = rows[number] | {"content_digest": None}
    found = read(write_table(tmp_path / "t.parquet", rows, group=2048))
    urls = [item.url for item in found if isinstance(item, Capture)]
    expected = [row["url"].encode() for row in rows if row["content_digest"]]
    assert sorted(urls) == sorted(expected)
    assert found.count(Refusal("bad-digest")) == 8


def test_an_empty_table(tmp_path: Path) -> None:
    assert read(write_table(tmp_path / "t.parquet", [])) == []


# --- a table and the CDX of the same captures -------------------------------------------------

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "url": st.one_of(
        st.sampled_from(["http://a.com/", "https://b.org/x?y=%20", "dns:a", "http://a.com/é"]),
        st.from_regex(r"https?://[a-z]{1,5}\.com/[!-~]{0,20}", fullmatch=True),
    ),
    "fetch_time": st.datetimes().map(lambda time: time.replace(microsecond=0).isoformat(" ")),
    "fetch_status": st.sampled_from([None, 200, 206, 304, 404, -1, -9998]),
    "content_digest": st.one_of(
        st.sampled_from([None, "-", HEX, f"sha1:{BASE32}", "X", BASE32.lower()]),
        st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", min_size=32, max_size=32),
    ),
    "content_mime_type": st.sampled_from(
        [None, "text/html", "image/PNG", "warc/revisit", "unk", "a/b;c=d"]
    ),
    "content_mime_detected": st.none(),
    "warc_filename": st.sampled_from(["a.warc.gz", "x/b.warc.gz", "é.warc"]),
    "warc_record_offset": st.one_of(st.none(), st.integers(-1, 2**31 - 1)),
    "warc_record_length": st.one_of(st.none(), st.integers(-1, 2**31 - 1)),
    "url_surtkey": st.sampled_from(["com,a)/", "com,a)/?__wb_method=POST", "com,a)/?a=b"]),
}
rows_of_captures = st.lists(st.fixed_dictionaries(VALUES), max_size=12)


def briefly(found: list[Item]) -> list[str]:
    return sorted(
        brief(item._replace(capture=item.capture) if isinstance(item, Revisit) else item)
        for item in found
    )


@settings(max_examples=examples(60), deadline=None)
@given(rows=rows_of_captures)
def test_a_table_and_its_cdx_have_the_same_captures(
    rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("both")
    plain = folder / "same.cdx"
    lines = [" CDX N b a m s k r M S V g", *map(cdx_line, rows)]
    plain.write_text("".join(line + "\n" for line in lines))
    table = write_table(folder / "same.parquet", rows, group=2048)
    with open_source(str(plain)) as source:
        of_cdx = records(list(source.items()))
    assert briefly(records(read(table))) == briefly(of_cdx)


# --- damage -------------------------------------------------------------------------------------


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    """A table of three row groups."""
    rows = [ROW | {"url": f"http://example.com/{number}"} for number in range(3 * 2048)]
    return write_table(tmp_path / "t.parquet", rows, group=2048)


def test_damage_costs_only_its_row_group(groups: Path) -> None:
    data = bytearray(groups.read_bytes())
    place = data.index(b"PAR1") + len(data) // 3 + 200
    data[place : place + 400] = b"\xff" * 400
    groups.write_bytes(data)
    found = read(groups)
    problems = [item for item in found if isinstance(item, Problem)]
    assert len(problems) == 1
    assert "cannot be read" in problems[0].message
    assert len(records(found)) == 3 * 2048
    lost = found.count(Refusal("damaged"))
    assert 0 < lost <= 2048
    kept = [item.url for item in found if isinstance(item, Capture)]
    assert len(set(kept)) == 3 * 2048 - lost


@pytest.mark.parametrize("left", [4, 11, 400, -1, -9])
def test_a_cut_table_is_a_problem(groups: Path, left: int) -> None:
    groups.write_bytes(groups.read_bytes()[:left])
    (problem,) = read(groups)
    assert isinstance(problem, Problem)
    assert problem.message.startswith("is no whole Parquet file: ")
    assert expand([str(groups.parent)]).paths == [str(groups)]


def test_a_table_that_changes_while_it_is_read(groups: Path) -> None:
    with open_source(str(groups)) as source:
        found = iter(source.batches())
        next(found)
        groups.touch()
        last = list(found)[-1]
    assert source.changed
    assert isinstance(last, list)
    assert last[-1] == Problem(str(groups), source.size, last[-1].message)  # type: ignore[union-attr]


def test_a_table_from_a_pipe(monkeypatch: pytest.MonkeyPatch, groups: Path) -> None:
    with open(groups, "rb") as stream:
        monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": stream}))
        with pytest.raises(BadSource, match="Parquet table cannot be read from a pipe"):
            open_source("-")


def flipped(data: bytes, count: int) -> Iterator[bytes]:
    """Yield data with one bit changed at places spread over it."""
    choose = random.Random(5)
    for _ in range(count):
        damaged = bytearray(data)
        damaged[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        yield bytes(damaged)


def test_no_bit_flip_is_a_crash(tmp_path: Path) -> None:
    rows = [ROW | {"url": f"http://example.com/{number}"} for number in range(60)]
    path = write_table(tmp_path / "t.parquet", rows)
    for data in flipped(path.read_bytes(), 40):
        path.write_bytes(data)
        with suppress(BadSource):  # another name of a column, another type, or no Parquet file
            read(path)


# --- elsewhere ----------------------------------------------------------------------------------


def test_a_table_on_a_web_server(groups: Path) -> None:
    here = read(groups)
    with web(groups.parent) as server:
        address = f"{server.url}/t.parquet"
        found = read(address)
        with open_source(address) as source:
            list(source.items())
            assert not source.changed
        assert len(found) == len(here) == 3 * 2048
        assert list(map(brief, found)) == list(map(brief, here))
        server.requests.clear()
        server.faults.append(Fault("t.parquet", 1, cut=1000))
        assert len(read(address)) == len(here)


def test_only_needed_columns_are_requested(tmp_path: Path) -> None:
    noise = random.Random(7).randbytes
    rows = [ROW | {"other": noise(500)} for _ in range(2048)]
    path = write_table(tmp_path / "t.parquet", rows, TYPES | {"other": "BLOB"})
    with web(tmp_path) as server:
        assert len(read(f"{server.url}/t.parquet")) == 2048
        ranges = [span.removeprefix("bytes=").split("-") for *_, span in server.requests if span]
        requested = sum(int(end) + 1 - int(begin) for begin, end in ranges)
    assert requested < path.stat().st_size / 2


def test_a_table_that_cannot_be_fetched(groups: Path) -> None:
    with web(groups.parent) as server:
        source = open_source(f"{server.url}/t.parquet")
        server.faults.append(Fault("t.parquet", 99, status=403))
        with source, pytest.raises(BadSource, match=r"t\.parquet cannot be read"):
            list(source.items())


def test_tables_in_an_object_store(groups: Path, buckets: Callable[[], Bucket]) -> None:
    bucket = buckets()
    address = bucket.put("crawl=1/part-0.parquet", groups.read_bytes(), part=5 << 20)
    bucket.put("crawl=1/_SUCCESS", b"")
    found = expand([f"{bucket.url}/crawl=1/"])
    assert found.paths == [address]
    assert len(read(address)) == 3 * 2048
    with open_source(address) as source:
        batches = source.batches()
        next(batches)
        bucket.put("crawl=1/part-0.parquet", groups.read_bytes() + b"x")
        list(batches)
    assert source.changed
