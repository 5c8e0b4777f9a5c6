"""Encoding rows in columns gives the same bytes as encoding each capture."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from dedupindex.capture import Capture, Covers, Evidence, Item, Refusal, Rows
from dedupindex.counts import BuildTally
from dedupindex.digest import CANONICAL, EMPTY, Digest, Spelling
from dedupindex.index import open_index
from dedupindex.index.format.cells import Keys, decode, encode, entries_of
from dedupindex.index.format.tombstones import REVISIT
from dedupindex.index.identity import Settings
from dedupindex.indexer import stage
from dedupindex.indexer.admission import admission_filter, admits_all, reasons
from dedupindex.indexer.encode_rows import CaptureColumns, stage_captures, stage_rows
from dedupindex.indexer.pipeline import Build, Built, build
from dedupindex.sources import SourceOptions
from dedupindex.sources.cdx import CdxSource
from dedupindex.sources.open_source import open_source
from dedupindex.sources.source import Source
from tests.support.budgets import examples
from tests.support.captures import capture
from tests.unit.indexer.test_never_originals import REFUSED
from tests.unit.indexer.test_never_originals import row as row_of_refused

KEYS = st.sampled_from([Keys(), Keys(canonical=False), Keys(url=False, canonical=False)])
MIMES = [b"text/html", b"", b"image/png", b"foo/bar"]
SHA1_EMPTY = next(digest.raw for digest in EMPTY if digest.algorithm == "sha1")


@st.composite
def rows(draw: st.DrawFn) -> Rows:
    """Whatever a source may give at once."""
    count = draw(st.integers(1, 5))

    def column(values: st.SearchStrategy[object]) -> list[object]:
        return draw(st.lists(values, min_size=count, max_size=count))

    def known(most: int) -> st.SearchStrategy[int]:
        return draw(st.sampled_from([st.integers(0, most), st.just(-1)]))

    identified = st.uuids().map(lambda uuid: b"urn:uuid:%b" % str(uuid).encode())
    columns = (
        st.one_of(st.binary(min_size=20, max_size=20), st.just(SHA1_EMPTY)),
        st.from_regex(rb"https?://[!-~]{1,30}", fullmatch=True),
        st.datetimes().map(lambda time: b"%04d" % time.year + f"{time:%m%d%H%M%S}".encode()),
        st.tuples(st.sampled_from([200, 404, 206, 0, 99999]), st.sampled_from(MIMES)),
        known(10**9 - 1),
        known(10**12 - 1),
        st.sampled_from(["", "a.warc.gz", "b.warc.gz"]),
        draw(st.sampled_from([identified, st.just(b"")])),
    )
    spelling = draw(st.sampled_from([Spelling(0, 0), CANONICAL]))
    return Rows(spelling, *map(column, columns))  # type: ignore[arg-type]


@given(rows(), KEYS, st.booleans())
def test_staged_rows_are_those_of_each_capture(some: Rows, keys: Keys, etag: bool) -> None:
    each = [
        keys.key_of(one.digest, one.url) + encode(one, len(one.container), etag=etag)
        for one in some.captures()
    ]
    assert stage_rows(some, keys, len) == each


@given(rows(), st.sampled_from(["200", "2xx", "200,404"]), st.booleans(), st.integers(0, 9))
def test_rows_are_admitted_as_captures_are(some: Rows, status: str, only: bool, least: int) -> None:
    settings = Settings(mime="text/|foo", whitelist=only, status=status, min_size=least)
    refuse = admission_filter(settings)
    assert reasons(refuse, some) == list(map(refuse, some.captures()))


@st.composite
def captures(draw: st.DrawFn) -> list[Capture]:
    """Captures of which most can be encoded in columns."""
    odd = draw(st.booleans())

    def usual(values: list[Any], others: list[Any]) -> st.SearchStrategy[Any]:
        return st.sampled_from(values + others if odd else values)

    uuids = st.uuids().map(lambda uuid: b"urn:uuid:%b" % str(uuid).encode())
    raw = st.binary(min_size=20, max_size=20)
    made = st.builds(
        Capture,
        digest=st.one_of(
            raw.map(lambda data: Digest("sha1", data)),
            usual(
                [Digest("sha256", b"\1" * 32)],
                [Digest("sha1", SHA1_EMPTY), Digest("md5", bytes(16))],
            ),
        ),
        spelling=st.sampled_from([CANONICAL, Spelling(0, 2), Spelling(2, 4)]),
        url=usual(
            [b"http://a.org/", b"https://www.a.org:81/%41?b"],
            [b"HTTP://A/", b"dns:a", b"http://a/\xff", b""],
        ),
        date=usual(
            [b"2026-11-20T09:14:17Z", b"1996-01-01T00:00:00Z"], [b"2026-11-20T09:14:17.25Z"]
        ),
        evidence=usual([Evidence.RECORD], [Evidence.ROW]),
        covers=st.sampled_from(list(Covers)),
        status=usual([200, 404], [206, 0, 99999]),
        mime=st.sampled_from(MIMES),
        size=usual([1, 9, 2**32 - 3], [-1, 0, 2**32 - 2, 2**40]),
        size_of_record=usual([False], [True]),
        record_id=st.one_of(uuids, usual([b"urn:uuid:" + b"0" * 36], [b"", b"urn:x"]))
        if odd
        else uuids,
        container=st.sampled_from(["", "a.warc.gz", "b.warc.gz"]),
        offset=usual([0, 2**40 - 2], [-1, 2**40 - 1]),
        etag=usual([b""], [b'"x"']),
        last_modified=usual([b""], [b"x"]),
        also=usual([()], [(Digest("sha256", b"\2" * 32),), (Digest("md5", bytes(16)),)]),
    )
    return draw(st.lists(made, min_size=1, max_size=4))


@limits(max_examples=examples(400))
@given(captures(), KEYS)
def test_captures_in_columns_are_those_of_each_capture(some: list[Capture], keys: Keys) -> None:
    columns = CaptureColumns.of(some)
    if columns.plain:
        each = [keys.key_of(one.digest, one.url) + encode(one, len(one.container)) for one in some]
        assert stage_captures(columns, keys, len) == each


@limits(max_examples=examples(400))
@given(captures(), st.sampled_from(["200", "2xx", "200,404"]), st.booleans(), st.integers(0, 9))
def test_captures_are_admitted_together_only_if_each_is(
    some: list[Capture], status: str, only: bool, least: int
) -> None:
    refuse = admission_filter(
        Settings(mime="text/|foo", whitelist=only, status=status, min_size=least)
    )
    if admits_all(refuse, CaptureColumns.of(some)):
        assert not any(map(refuse, some))


@limits(max_examples=examples(400))
@given(captures(), st.booleans())
def test_a_batch_is_staged_as_its_captures_alone(some: list[Capture], etag: bool) -> None:
    settings = Settings(mime=".*", whitelist=True, status="2xx,404", min_size=2, etag=etag)

    def staged(batches: list[list[Capture]]) -> tuple[list[bytes], BuildTally]:
        stager, entries = stage._Stager(settings, len), list[bytes]()  # type: ignore[arg-type]
        for batch in batches:
            stager._add_items(list(batch), entries)
        return entries, stager.tally

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "admits_all", lambda *_: False)
        alone = staged([[one] for one in some])
    assert staged([some]) == alone


def test_usual_captures_are_plain() -> None:
    record_id = b"urn:uuid:00000000-0000-4000-8000-000000000001"
    one = capture(container="a.warc.gz", record_id=record_id, offset=7, size=9)
    columns = CaptureColumns.of([one, one._replace(mime=b"foo/bar", status=404)])
    assert columns.plain
    assert admits_all(
        admission_filter(Settings(mime=".*", whitelist=True, status="2xx,404")), columns
    )


@given(rows(), st.data())
def test_some_of_the_rows(some: Rows, data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.booleans(), min_size=len(some.urls), max_size=len(some.urls)))
    left = [one for one, good in zip(some.captures(), wanted, strict=True) if good]
    if left:
        assert list(some.only(wanted).captures()) == left


ODD = {  # what is unusual -> its columns
    "nothing": {},
    "revisit": {"m": b"warc/revisit", "s": b"-"},
    "revisit as wget writes it": {"g": b"-"},
    "404": {"s": b"404"},
    "206": {"s": b"206"},
    "no status": {"s": b"-"},
    "failed": {"s": b"-6"},
    "status no number": {"s": b"ok"},
    "rare mime": {"m": b"foo/bar"},
    "no mime": {"m": b"-"},
    "mime with a parameter": {"m": b"Text/HTML;charset=x"},
    "no size": {"S": b"-"},
    "size 0": {"S": b"0"},
    "size of ten digits": {"S": b"4294967296"},
    "offset of 13 digits": {"V": b"1099511627776"},
    "no offset": {"V": b"-"},
    "cut digest": {"k": b"A" * 32},
    "empty payload": {"k": b"3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"},
    "bad digest": {"k": b"FKXGYNOJJ7H3IFO35FPUBC445EPOQRX1"},
    "digest in hex": {"k": b"2aae6c35c94fcfb415dbe95f408b9ce91ee846ed"},
    "labelled digest": {"k": b"sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN"},
    "MD5": {"k": b"0123456789abcdef0123456789abcdef"},
    "URL not ASCII": {"a": "http://a.com/é".encode()},
    "URL not UTF-8": {"a": b"http://a.com/\xff"},
    "control in URL": {"a": b"http://a.com/\x01"},
    "URL in brackets": {"a": b"<http://a.com/>"},
    "capital scheme": {"a": b"HTTP://a.com/"},
    "not http": {"a": b"dns:a.com"},
    "nothing of a URL": {"a": b"http://"},
    "no such day": {"b": b"20240230111111"},
    "no such hour": {"b": b"20240201246111"},
    "no such minute": {"b": b"20240201116111"},
    "second 60": {"b": b"20240201112360"},
    "other day": {"b": b"20190706112233"},
    "milliseconds": {"b": b"20240201112300123"},
    "a row like a header": {"N": b"CDX"},
    "a row like an alias": {"N": b"@alias"},
    "POST": {"N": b"com,a)/?__wb_method=POST"},
    "a GET with its method": {"N": b"com,a)/?__wb_method=GET"},
    "a column more": {"g": b"a.warc.gz more"},
    "carriage return": {"g": b"a.warc.gz\rx"},
    "other file": {"g": b"b.warc.gz"},
    "file not UTF-8": {"g": b"\xff.warc.gz"},
    "no record id": {"u": b"-"},
    "record id no UUID": {"u": b"<urn:x:1>"},
    "capital record id": {"u": b"<urn:uuid:5A0CFA42-9B5B-4DD6-8F0D-0A3FB2C1E8D7>"},
}
LAYOUTS = ["N b a m s k r M S V g", "N b a m s k r M V g", "a b a m s k r M V g u", "k a b", "N b"]
USUAL = {
    "b": b"20240201112233", "m": b"text/html", "s": b"200", "S": b"500", "g": b"a.warc.gz",
    "N": b"com,a)/",
}  # fmt: skip


def line(
    number: int, odd: dict[str, bytes], layout: str = LAYOUTS[0], blank: bytes = b" "
) -> bytes:
    """A line whose digest, URL, offset and record id depend on its number."""
    bits = [b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[number >> 5 * at & 31 :][:1] for at in range(31)]
    columns = {
        **USUAL,
        "k": b"".join(bits) + b"B",
        "a": b"http://a.com/%d" % (number % 7),
        "V": b"%d" % number,
        "u": b"<urn:uuid:00000000-0000-4000-8000-%012d>" % number,
        **odd,
    }
    return blank.join([columns.get(letter, b"-") for letter in layout.split(" ")])


def cdx(seed: int) -> bytes:
    """Lines of which some are odd, below several headers."""
    rng = random.Random(seed)
    layout, blank, share = rng.choice(LAYOUTS[:4]), rng.choice([b" ", b"\t"]), rng.choice([0, 0.2])

    def header() -> bytes:
        return blank.join([b"", b"CDX", *layout.encode().split()])

    lines = [header()]
    for number in range(300):
        odd = rng.choice(list(ODD.values())) if rng.random() < share else {}
        lines.append(line(number, odd, layout, blank))
        if rng.random() < 0.01:
            layout, blank = rng.choice(LAYOUTS), rng.choice([b" ", b" ", b"\t"])
            lines.append(rng.choice([header(), b"", b"@alias http://a.com/ x", b"CDX"]))
    return b"\n".join(lines) + rng.choice([b"", b"\n"])


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on no line is plain."""
    monkeypatch.setattr("dedupindex.sources.cdx.finder", lambda layout: lambda block: [])


def spread(batches: Iterator[Rows | list[Item]]) -> list[str]:
    found: list[Item] = []
    for batch in batches:
        found += batch.captures() if isinstance(batch, Rows) else batch
    return sorted(map(repr, found))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("block", [1 << 9, 1 << 12])
def test_a_cdx_read_in_blocks_is_as_read_line_by_line(
    seed: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def source() -> CdxSource:
        return CdxSource("x", BytesIO(cdx(seed)), block=block)

    batches = list(source().batches())
    in_order = list(source().items())
    one_by_one(monkeypatch)
    assert list(source().items()) == in_order
    assert spread(iter(batches)) == sorted(map(repr, in_order))


@pytest.mark.parametrize("layout", LAYOUTS[:4])
def test_regular_lines_are_read_in_blocks_around_irregular_ones(layout: str) -> None:
    odd = {42: line(42, ODD["not http"], layout), 44: line(44, ODD["MD5"], layout)}
    lines = [odd.get(number, line(number, {}, layout)) for number in range(60)]
    data = b"\n".join([b" CDX " + layout.encode(), *lines]) + b"\n"
    source = CdxSource("x", BytesIO(data), block=len(data) // 2)
    first, rows, others, *_ = source.batches()
    assert isinstance(first, list) and isinstance(rows, Rows)
    assert others == [Refusal("not-http"), Refusal("bad-digest")]
    assert len(first) + len(rows.urls) + len(others) >= 59  # one may have been cut in two


def indexed(folder: Path, settings: Settings, *sources: Path) -> tuple[Built, list[object]]:
    """A build, and the entries of the index with its tombstones."""
    built = build(Build([str(source) for source in sources], folder, settings))
    entries: list[object] = []
    with open_index(folder).view() as view:
        for key, cell in view.cells():  # type: ignore[attr-defined]
            for entry in entries_of(cell):
                mark = entry[0] & 3 == REVISIT
                found = entry if mark else decode(key, entry, view.place_of)  # type: ignore[attr-defined]
                entries.append((key, entry[0], found))
    return built, entries


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first block of a file is read line by line: it has the header."""

    def opened(path: str, kind: str | None, options: SourceOptions) -> Source:
        source = open_source(path, kind, options)
        if isinstance(source, CdxSource):
            source._block = 300
        return source

    monkeypatch.setattr(stage, "open_source", opened)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize(
    "settings",
    [
        Settings(mime=".*", whitelist=True),
        Settings(mime=".*", whitelist=True, status="2xx,404", keep="latest"),
        Settings(mime="text/", min_size=1, etag=True),
    ],
)
def test_irregular_lines_are_treated_as_if_read_alone(
    odd: dict[str, bytes], settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = []
    for name, layout in (("x.cdx", LAYOUTS[0]), ("y.cdx", LAYOUTS[2])):
        lines = [b" CDX " + layout.encode()]
        for number in range(30):
            lines.append(line(number, odd if number % 3 == 1 else {}, layout))
            lines.append(line(number, {"b": b"20240201112232"}, layout))
        paths.append(tmp_path / name)
        paths[-1].write_bytes(b"\n".join(lines) + b"\n")
    bulk, held = indexed(tmp_path / "bulk", settings, *paths)
    with monkeypatch.context() as patch:
        one_by_one(patch)
        alone, expected = indexed(tmp_path / "alone", settings, *paths)
    assert held == expected
    bulk.tally.seconds = alone.tally.seconds = 0.0
    assert bulk == alone


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("reason", ["truncated", "method", "digest-mismatch"])
def test_a_row_among_many_is_refuted_by_its_record(reason: str, tmp_path: Path) -> None:
    warc, beside = tmp_path / "refused.warc.gz", tmp_path / "beside.cdx"
    warc.write_bytes(REFUSED[reason]())
    header, refused, _ = row_of_refused().split(b"\n")
    plain = [line(number, {"g": b"refused.warc.gz"}) for number in range(20)]
    beside.write_bytes(b"\n".join([header, *plain[:10], refused, *plain[10:]]) + b"\n")
    built, _ = indexed(tmp_path / "index", Settings(mime=".*", whitelist=True), warc, beside)
    built.tally.refused.pop("request-record", None)
    assert built.tally.refused == {reason: 1, "contradicted": 1}
    assert built.tally.added == 20


def staged_of(data: bytes, make: Callable[[str, BytesIO], Source]) -> list[bytes]:
    stager = stage._Stager(Settings(mime=".*", whitelist=True), len)  # type: ignore[arg-type]
    with make("x", BytesIO(data)) as source:
        return [entry for batch in stager.read(source, lambda *_: None) for entry in batch]


def test_rows_of_revisits_leave_tombstones_and_refused_rows_nothing() -> None:
    def staged(odd: dict[str, bytes]) -> list[bytes]:
        lines = [b" CDX " + LAYOUTS[0].encode(), *[line(n, {}) for n in range(9)], line(9, odd)]
        made = b"\n".join(lines) + b"\n"
        return staged_of(made, lambda name, stream: CdxSource(name, stream, block=300))

    length = Keys().lengths()[2]
    plain = staged({})
    for refused in ({"s": b"404"}, ODD["empty payload"], ODD["cut digest"], ODD["POST"]):
        assert staged(refused) == plain[:9]
    *before, mark = staged(ODD["revisit"])
    assert before == plain[:9]
    assert (mark[:length], mark[length] & 7, len(mark)) == (plain[9][:length], 3, length + 8)
