"""CDX lines: layouts, columns, dialects, and that nothing in a line can stop the reading."""

from __future__ import annotations

import itertools
import random
from base64 import b32encode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dedupindex.capture import Capture, Covers, Evidence, Problem, Refusal, Revisit
from dedupindex.digest import Digest, Spelling
from dedupindex.sources import SourceOptions
from dedupindex.sources.cdx_columns import guess, header
from tests.support.text_sources import BASE32, HEX, items, one, records

HEADER = b" CDX N b a m s k r M S V g\n"
GOOD = f"com,a)/ 20261120091417 http://a.com/ text/html 200 {BASE32} - - 10 20 x.warc.gz"
DIGEST = Digest.parse(f"sha1:{BASE32}")
VALUES = {
    "N": "com,a)/",
    "a": "http://a.com/",
    "b": "20261120091417",
    "m": "text/html",
    "s": "200",
    "k": BASE32,
    "S": "10",
    "V": "20",
    "g": "x.warc.gz",
    "u": "<urn:uuid:1>",
    **dict.fromkeys("rMAcnvDe", "-"),
}
CAPTURE = Capture(
    digest=DIGEST,
    spelling=Spelling(0, 0),
    url=b"http://a.com/",
    date=b"2026-11-20T09:14:17Z",
    evidence=Evidence.ROW,
    covers=Covers.UNKNOWN,
    status=200,
    mime=b"text/html",
    size=10,
    size_of_record=True,
    container="x.warc.gz",
    offset=20,
)


def line(**columns: str) -> str:
    """A good line but for some columns, named by their letters."""
    return " ".join({**VALUES, **columns}[letter] for letter in "NbamskrMSVg")


def test_a_line() -> None:
    assert one("cdx", GOOD) == CAPTURE


@pytest.mark.parametrize("delimiter", [" ", "\t", "|"])
def test_any_order_of_header_letters(delimiter: str) -> None:
    """The fast way as well: the first block, which is read carefully, ends with the header."""
    chance = random.Random(7)
    orders = [chance.sample(list(VALUES), len(VALUES)) for _ in range(60)]
    for letters in [*orders, *itertools.permutations("abkg"), *itertools.permutations("abkSu")]:
        head = delimiter.join(["", "CDX", *letters]).encode() + b"\n"
        row = delimiter.join(VALUES[letter] for letter in letters).encode() + b"\n"
        found = items("cdx", head + 3 * row, block=len(head))
        expected = CAPTURE._replace(
            status=200 if "s" in letters else 0,
            mime=b"text/html" if "m" in letters else b"",
            size=10 if "S" in letters else -1,
            size_of_record="S" in letters,
            offset=20 if "V" in letters else -1,
            container="x.warc.gz" if "g" in letters else "source",
            record_id=b"urn:uuid:1" if "u" in letters else b"",
        )
        assert found == [expected] * 3, letters


@pytest.mark.parametrize("width", [7, 9, 10, 11, 14])
def test_layouts_by_the_number_of_columns(width: int) -> None:
    letters = {
        7: "NbamskS",
        9: "NbamskrVg",
        10: "NbamskrMVg",
        11: "NbamskrMSVg",
        14: "NbamskrMSVg",
    }[width]
    columns = [VALUES[letter] for letter in letters] + ["-"] * (width - len(letters))
    capture = one("cdx", " ".join(columns))
    assert isinstance(capture, Capture)
    assert (capture.url, capture.digest) == (b"http://a.com/", DIGEST)
    assert capture.offset == (20 if width > 7 else -1)
    assert capture.size == (10 if "S" in letters else -1)
    assert capture.container == ("x.warc.gz" if width > 7 else "source")


@pytest.mark.parametrize(
    ("columns", "outcome"),
    [
        ({"k": HEX}, Spelling(0, 2)),
        ({"k": HEX.upper()}, Spelling(0, 3)),
        ({"k": BASE32.lower()}, Spelling(0, 1)),
        ({"k": f"sha1:{BASE32}"}, Spelling(1, 0)),
        ({"k": f"SHA-1:{BASE32}"}, Spelling(4, 0)),
        ({"k": "a" * 64}, Spelling(0, 2)),
        ({"k": "-"}, "bad-digest"),
        ({"k": "ERROR"}, "bad-digest"),
        ({"k": "0cc175b9c0f1b6a831c399e269772661"}, "bad-digest"),
        ({"k": "ab" * 16}, "bad-digest"),
        ({"k": "xxh3:abc"}, "bad-digest"),
        ({"k": BASE32[:-1] + "1"}, "bad-digest"),
        ({"k": BASE32[:-1] + "_"}, "bad-digest"),
        ({"k": BASE32[:-1] + "é"}, "bad-digest"),
        ({"b": "2026"}, "bad-date"),
        ({"b": "20260230091417"}, "bad-date"),
        ({"b": "20261120250000"}, "bad-date"),
        ({"b": "00010101000000"}, "bad-date"),
        ({"a": "dns:a.com"}, "not-http"),
        ({"a": "ftp://a.com/"}, "not-http"),
        ({"a": "urn:x"}, "not-http"),
        ({"a": "warcinfo:/x.warc.gz/archive"}, "not-http"),
        ({"s": "-404"}, "fetch-failed"),
        ({"N": "com,a)/?__wb_method=post"}, "method"),
        ({"N": "com,a)/?a=1&__wb_method=PUT&b"}, "method"),
        ({"N": "com,a)/?__wb_method=GET"}, Spelling(0, 0)),
        ({"a": "HTTPS://a.com/"}, Spelling(0, 0)),
        ({"S": "-"}, Spelling(0, 0)),
        ({"V": "-"}, Spelling(0, 0)),
        ({"s": "-"}, Spelling(0, 0)),
    ],
)
@pytest.mark.parametrize("fast", [False, True])
def test_odd_columns(columns: dict[str, str], outcome: str | Spelling, fast: bool) -> None:
    data = HEADER + (GOOD + "\n").encode() + line(**columns).encode() + b"\n"
    found = items("cdx", data, block=len(HEADER) + len(GOOD) + 1 if fast else 1 << 18)
    assert len(found) == 2
    assert found[0] == CAPTURE
    if isinstance(outcome, str):
        assert found[1] == Refusal(outcome)
    else:
        assert isinstance(found[1], Capture)
        assert found[1].spelling == outcome
        assert found[1].digest.spelled(outcome) == columns.get("k", BASE32)


def test_columns_of_a_cdx_line() -> None:
    capture = one("cdx", line(m="Text/HTML;charset=UTF-8", s="404", b="20261120091417005"))
    assert isinstance(capture, Capture)
    assert capture.mime == b"text/html"
    assert capture.status == 404
    assert capture.date == b"2026-11-20T09:14:17.005Z"
    bracketed = one("cdx", line(a="<http://a.com/>"))
    assert isinstance(bracketed, Capture)
    assert bracketed.url == b"http://a.com/"
    odd_name = one("cdx", line(g="käse.warc.gz"))
    assert isinstance(odd_name, Capture)
    assert odd_name.container == "käse.warc.gz"


@pytest.mark.parametrize("columns", [{"m": "warc/revisit", "s": "-"}, {"g": "-", "V": "-"}])
def test_revisits_old_and_new(columns: dict[str, str]) -> None:
    revisit = one("cdx", line(**columns))
    assert isinstance(revisit, Revisit)
    assert revisit.refers_to is None
    assert revisit.capture.evidence == Evidence.REVISIT
    assert revisit.capture.mime != b"warc/revisit"


@pytest.mark.parametrize(
    "bad",
    [
        *(line(a="http://a.com/a b"), line(S="ten"), line(S="1_0"), line(V="+5"), line(V="9" * 19)),
        *(line(s="OK"), line(a="http://a.com/\rx"), GOOD[:40], GOOD + " ", "x" * 100, "\0"),
    ],
)
@pytest.mark.parametrize("fast", [False, True])
def test_bad_lines_are_refused_by_number(bad: str, fast: bool) -> None:
    first = HEADER + (GOOD + "\n").encode()
    data = first + f"{bad}\n{GOOD}\n".encode()
    found = items("cdx", data, block=len(first) if fast else 1 << 18)
    assert isinstance(found[1], Problem)
    assert (found[1].container, found[1].offset) == ("source", 3)
    assert found[1].message.startswith("line 3: ")
    assert [found[0], *found[2:]] == [CAPTURE, Refusal("bad-line"), CAPTURE]


def test_metadata_lines() -> None:
    data = f"@alias http://a.com/ http://b.com/\n\n{GOOD}\n \n".encode()
    assert items("cdx", data) == [Refusal("alias"), CAPTURE]


def test_header_in_the_middle_applies_to_following_lines() -> None:
    short = f"20261120091417 http://a.com/ {BASE32}\n".encode()
    first = HEADER + (GOOD + "\n").encode()
    data = first + b" CDX b a k\n" + short * 2 + HEADER + (GOOD + "\n").encode() + short
    expected = CAPTURE._replace(
        status=0, mime=b"", size=-1, size_of_record=False, container="source", offset=-1
    )
    for block in (len(first), 40, 1 << 18):
        found = items("cdx", data, block=block)
        assert [*records(found)] == [CAPTURE, expected, expected, CAPTURE, Refusal("bad-line")]


def test_unlabelled_digests_of_another_algorithm() -> None:
    options = SourceOptions(digest_algorithm="md5")
    capture = one("cdx", line(k="0cc175b9c0f1b6a831c399e269772661"), options)
    assert isinstance(capture, Capture)
    assert capture.digest.algorithm == "md5"
    blake = one("cdx", line(k="a" * 64), SourceOptions(digest_algorithm="blake3"))
    assert isinstance(blake, Capture)
    assert blake.digest.algorithm == "blake3"
    plain = one("cdx", line(k="a" * 64))
    assert isinstance(plain, Capture)
    assert plain.digest.algorithm == "sha256"


def test_a_hundred_problems_are_reported_and_the_rest_counted() -> None:
    found = items("cdx", HEADER + b"junk\n" * 1000)
    problems = [item for item in found if isinstance(item, Problem)]
    assert found.count(Refusal("bad-line")) == 1000
    assert len(problems) == 101
    assert problems[-1].message == "900 more lines could not be read"


def printable(extra: str = "") -> st.SearchStrategy[str]:
    return st.text(
        st.characters(min_codepoint=33, max_codepoint=0x2FFF, exclude_characters=extra), min_size=1
    )


@given(
    st.lists(
        st.tuples(
            st.datetimes().filter(lambda when: 1 < when.year < 9999),
            printable("\x85\xa0").map("http://a.com/{}".format),
            st.sampled_from(["text/html", "image/x-y", "application/pdf"]),
            st.integers(100, 599),
            st.binary(min_size=20, max_size=20),
            st.integers(0, 10**18 - 1),
            st.integers(0, 10**18 - 1),
            printable("-"),
        ),
        min_size=1,
    ),
    st.integers(1, 300),
)
def test_random_fields_round_trip(rows: list[tuple], block: int) -> None:  # type: ignore[type-arg]
    text = ""
    expected = []
    for when, url, mime, status, raw, size, offset, container in rows:
        digits = f"{when.year:04}{when:%m%d%H%M%S}"
        digest = b32encode(raw).decode()
        text += f"k {digits} {url} {mime} {status} {digest} - - {size} {offset} {container}\n"
        date = f"{when.year:04}-{when:%m-%dT%H:%M:%SZ}"
        expected.append(
            CAPTURE._replace(
                digest=Digest("sha1", raw),
                url=url.encode(),
                date=date.encode(),
                mime=mime.encode(),
                status=status,
                size=size,
                offset=offset,
                container=container,
            )
        )
    assert items("cdx", text.encode(), block=block) == expected


@given(
    st.binary(max_size=300).filter(lambda data: b"CDX" not in data and data[:1] not in b"\x1f"),
    st.integers(1, 50),
)
@example(b"\n\r\n\r\r\n", 3)
def test_any_bytes_are_one_refusal_for_every_line(data: bytes, block: int) -> None:
    data = data.removeprefix(b"\xef\xbb\xbf")
    lines = [part for part in data.replace(b"\r\n", b"\n").split(b"\n") if part.strip()]
    for start in (b"", HEADER):
        found = items("cdx", start + data, block=block)
        assert len(records(found)) == len(lines)
        assert all(isinstance(item, Refusal) for item in records(found))


@given(st.data())
def test_any_damage_to_a_line_leaves_one_item(data: st.DataObject) -> None:
    good = bytearray(GOOD.encode())
    for _ in range(data.draw(st.integers(1, 5))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    good = bytearray(bytes(good).replace(b"\n", b"~"))
    whole = HEADER + (GOOD + "\n").encode() + bytes(good) + b"\n"
    careful = items("cdx", whole)
    fast = items("cdx", whole, block=len(HEADER) + len(GOOD) + 1)
    assert careful == fast
    assert len(records(careful)) == 1 + bool(good.strip())


def test_preset_values_remain_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dedupindex.sources.rows._MAX_CACHED", 4)
    lines = [GOOD.replace("text/html", f"x/{n}").replace("x.warc", f"{n}.warc") for n in range(9)]
    lines.append(GOOD.replace("text/html", "-"))
    *_, last = items("cdx", HEADER + "\n".join(lines).encode())
    assert isinstance(last, Capture) and last.mime == b""


def test_headers() -> None:
    assert header(b" CDX N b a") == (b" ", ["N", "b", "a"])
    assert header(b"CDX a k u") == (b" ", ["a", "k", "u"])
    assert header(b"\tCDX\ta\tk") == (b"\t", ["a", "k"])
    assert header(b" CDX") is None
    assert header(b"\tCDX a k") is None
    assert header(b" CDX ") is None
    assert header(b"CDX files are in the archive") is None
    assert header(b" CDX a b offset") is None


def test_a_header_says_what_it_lacks() -> None:
    for letters, lacks in (
        ("a k u", "names no date (b), as a list for wget (bin/export --wget), so"),
        ("a b m", "names no digest (k), so"), ("N g", "no URL (a), date (b) and digest (k), so"),
    ):  # fmt: skip
        (problem,) = (
            one for one in items("cdx", f" CDX {letters}\n".encode()) if isinstance(one, Problem)
        )
        assert lacks in problem.message


def test_text_about_cdx_between_rows_is_a_bad_line() -> None:
    row = (GOOD + "\n").encode()
    found = items("cdx", HEADER + row + b"CDX files are below\n" + row)
    assert [type(item) for item in found] == [Capture, Problem, Refusal, Capture]
    assert guess(b"a b c") is None
