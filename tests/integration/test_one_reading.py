"""The index, the manifest and verify agree on complete records and offsets in every sample."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.budgets import examples
from tests.support.readings import Reading, compare_readings
from tests.support.warc_cases import DATA, END, HTTP, gz, record, request, response, revisit
from tests.support.zstd_files import zst
from tests.unit.warc.test_arc import V1, V2, document, header
from tests.unit.warc.test_other_readers import EXPECTED

Pack = Callable[[bytes], bytes]
FOLDER = Path(tempfile.mkdtemp())
LINE_ENDS = [
    b"", b"\r", b"\n", b"\r\n", b"\r\n\r", b"\n\r", b"\n\n", b"\r\n\n", b"\n\r\n", b"\r\n\r\n\r",
    b"\r\n" * 3, b"\n" * 3, b"\n" * 5, b"\r\n" * 40_000, b"\r\r\n",
]  # fmt: skip
WHOLE: dict[str, bytes] = {
    **{f"ends {end[:8]!r} {len(end)}": response(b"odd", number=2, end=end) for end in LINE_ENDS},
    **{f"LF, ends {end!r}": response(b"odd", eol=b"\n", end=end) for end in LINE_ENDS[:10]},
    "warc/1.0": response(b"odd", version=b"warc/1.0"),
    "Warc/1.1": response(b"odd", version=b"Warc/1.1"),
    "space behind the version": response(b"odd", version=b"WARC/1.0 \t"),
    "WARC/0.17": response(b"odd", version=b"WARC/0.17"),
    "WARC/7.5": response(b"odd", version=b"WARC/7.5"),
    "lower case names": response(b"odd").replace(b"WARC-", b"warc-"),
    "line ends before it": b"\r\n\n" + response(b"odd"),
    "revisit without line ends": revisit(end=b""),
    "empty revisit": revisit(b"", end=b"\r\n"),
    "empty resource": record(b"resource", end=b""),
    "request without line ends": request(end=b"\r\n"),
    "folded": response(b"odd").replace(b"WARC-Date: ", b"WARC-Date:\r\n "),
    "folded length": response(b"odd").replace(b"Content-Length: ", b"Content-Length:\r\n\t"),
    "no field": response(b"odd").replace(b"WARC-Date", b"no field at all\r\nWARC-Date"),
    "length with zeros": response(b"odd", Content_Length=b"%09d" % len(HTTP + b"odd")),
    "block of line ends": record(b"resource", END * 3, end=b""),
    "a WARC in it": response(b"x\r\n\r\n" + response(b"inner") * 2, end=b"\r\n"),
}
BROKEN: dict[str, bytes] = {
    "length too small": response(b"odd", Content_Length=b"3"),
    "length 5 too large": response(b"odd", Content_Length=b"%d" % (len(response(b"odd")) + 5)),
    "no length": response(b"odd", Content_Length=None),
    "two lengths": response(b"odd", (b"content-length", b"3")),
    "length no number": response(b"odd", Content_Length=b"x"),
    "length negative": response(b"odd", Content_Length=b"-1"),
    "length folded first": response(b"odd")
    .replace(b"WARC/1.0\r\n", b"WARC/1.0\r\n Content-Length: 3\r\n")
    .replace(b"\r\nContent-Length: ", b"\r\nX-Length: "),
    "garbage behind it": response(b"odd", end=b"\r\nx"),
    "no version": response(b"odd", version=b"WARC"),
    "bad version": response(b"odd", version=b"WARC/1"),
}
ARC_WHOLE: dict[str, bytes] = {
    "no line end": document(b"odd", end=b""),
    "CRLF": document(b"odd", end=b"\r\n"),
    "two": document(b"odd", end=b"\n\n"),
    "many": document(b"odd", end=b"\r\n" * 30_000),
    "line end before it": b"\n" + document(b"odd", end=b""),
    "line end before and behind it": b"\n" + document(b"odd"),
    "empty": document(b"", head=b""),
    "12 digits": document(b"odd", date=b"202611200914"),
    "17 digits": document(b"odd", date=b"20261120091417123"),
    "no address": document(b"odd", ip=b"-"),
    "address 0": document(b"odd", ip=b"0"),
    "IPv6": document(b"odd", ip=b"2001:db8::1"),
    "space in type": document(b"odd", mime=b"text/html; charset=x"),
    "space in URL": document(b"odd", url=b"http://e.com/a b"),
    "dns": document(b"1.2.3.4\n", url=b"dns:e.com", head=b""),
    "second version block": header(),
}  # fmt: skip
ARC_BROKEN: dict[str, bytes] = {
    "3 too long": document(b"odd", wrong=3),
    "2 too short": document(b"odd", wrong=-2),
    "far too long": document(b"odd", wrong=100_000),
    "no length": document(b"odd").replace(b"text/html ", b"text/html -"),
    "no date": document(b"odd", date=b"abc"),
    "garbage": b"garbage\n",
}
GOOD = [response(b"first", number=7), request(number=8), response(b"last", number=9)]
ARC_GOOD = [document(b"first"), document(b"last"), document(b"another")]


def _around(odd: bytes, good: list[bytes], place: str) -> list[bytes]:
    if place == "alone":
        return [odd]
    return {"first": [odd, *good], "middle": [good[0], odd, *good[1:]], "last": [*good, odd]}[place]


def _one_is_lost(found: Reading, records: list[bytes], pack: Pack) -> None:
    """In a plain file with the record before it, where what follows that proves nothing."""
    assert len(found.damaged) == 1
    lost = len(records) - found.records
    assert lost == 1 or (pack is bytes and lost == 2)


PLACES = pytest.mark.parametrize("place", ["first", "middle", "last", "alone"])
PACKS = pytest.mark.parametrize("pack", [gz, zst, bytes], ids=["gzip", "zstd", "plain"])
ARC_PACKS = pytest.mark.parametrize("pack", [gz, bytes], ids=["gzip", "plain"])


@PLACES
@PACKS
@pytest.mark.parametrize("odd", WHOLE)
def test_a_whole_record_of_a_warc(tmp_path: Path, odd: str, place: str, pack: Pack) -> None:
    records = _around(WHOLE[odd], GOOD, place)
    found = compare_readings(tmp_path / "t.warc", b"".join(map(pack, records)))
    assert (found.records, found.damaged) == (len(records), set())


@PLACES
@PACKS
@pytest.mark.parametrize("odd", BROKEN)
def test_a_broken_record_of_a_warc(tmp_path: Path, odd: str, place: str, pack: Pack) -> None:
    records = _around(BROKEN[odd], GOOD, place)
    found = compare_readings(tmp_path / "t.warc", b"".join(map(pack, records)))
    _one_is_lost(found, records, pack)


@PLACES
@ARC_PACKS
@pytest.mark.parametrize("odd", ARC_WHOLE)
def test_a_whole_document_of_an_arc(tmp_path: Path, odd: str, place: str, pack: Pack) -> None:
    records = [header(), *_around(ARC_WHOLE[odd], ARC_GOOD, place)]
    found = compare_readings(tmp_path / "t.arc", b"".join(map(pack, records)))
    assert (found.records, found.damaged) == (len(records), set())


@PLACES
@ARC_PACKS
@pytest.mark.parametrize("odd", ARC_BROKEN)
def test_a_broken_document_of_an_arc(tmp_path: Path, odd: str, place: str, pack: Pack) -> None:
    records = [header(), *_around(ARC_BROKEN[odd], ARC_GOOD, place)]
    found = compare_readings(tmp_path / "t.arc", b"".join(map(pack, records)))
    _one_is_lost(found, records, pack)


@pytest.mark.parametrize(
    "line",
    [b"filedesc:x 0.0.0.0 20260101000000 text/plain -1", b"filedesc://x 0", b"filedesc: a 9"],
)
def test_version_blocks(tmp_path: Path, line: bytes) -> None:
    block = b"\n1 0 Test\n" + V1 + b"\n\n"
    assert compare_readings(tmp_path / "t.arc", line + block + document()).records == 2


@pytest.mark.parametrize("fields", [V2, b"URL Archive-length"])
def test_fields_of_an_arc(tmp_path: Path, fields: bytes) -> None:
    more = b" 200 abc - 1234 f.arc.gz"
    found = compare_readings(tmp_path / "t.arc", header(fields) + document(more=more) + document())
    assert found.records == (2 if fields == V2 else 1)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_samples(tmp_path: Path, name: str) -> None:
    found = compare_readings(tmp_path / name.removesuffix(".bad"), (DATA / name).read_bytes())
    assert found.records or found.damaged


pieces = st.one_of(
    st.sampled_from([*WHOLE.values(), *BROKEN.values(), *GOOD]).filter(lambda one: len(one) < 9999),
    st.sampled_from([b"", b"\r\n", b"\n\n", b"\0" * 7, b"garbage", b"WARC/1.0\r\n", gz(b"inner")]),
)
documents = st.one_of(
    st.sampled_from([*ARC_WHOLE.values(), *ARC_BROKEN.values(), *ARC_GOOD]).filter(
        lambda one: len(one) < 9999
    ),
    st.sampled_from([b"", b"\n", b"\r\n\r\n", b"\0" * 7, b"garbage", b"http://e.com/ 1.2.3.4 2"]),
)
MANY = settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@MANY
@given(
    st.lists(pieces, min_size=1, max_size=5), st.sampled_from(["plain", "members", "one", "frames"])
)
def test_any_warc(parts: list[bytes], how: str) -> None:
    found = compare_readings(FOLDER / "t.warc", _packed([GOOD[0], *parts], how))
    assert found.records or found.damaged


@MANY
@given(st.lists(documents, min_size=1, max_size=5), st.sampled_from(["plain", "members", "one"]))
def test_any_arc(parts: list[bytes], how: str) -> None:
    found = compare_readings(FOLDER / "t.arc", _packed([header(), *parts], how))
    assert found.records or found.damaged


def _packed(parts: list[bytes], how: str) -> bytes:
    if how == "frames":
        return b"".join(map(zst, parts))
    if how == "members":
        return b"".join(map(gz, parts))
    return gz(b"".join(parts)) if how == "one" else b"".join(parts)


@pytest.fixture(scope="module", autouse=True)
def _removed() -> None:
    yield
    shutil.rmtree(FOLDER, ignore_errors=True)
