"""The edge cases of the rules of deduplication, by their numbers, through all stages.

One collection holds a folder for each case. It is rewritten to a directory and, another time, in
place; then every file must be, byte for byte, what its case says, the reports must have counted
what the cases say, and bin/verify must find nothing in the results that it had not found before.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from dedupindex.runtime.tables import printable
from tests.support import post_crawl, post_crawl_odd
from tests.support.post_crawl import DAY, Case, Make, Piece, Run
from tests.support.post_crawl_odd import http
from tests.support.warc_cases import (
    CHUNKED_HTTP,
    HTTP,
    chunked,
    gz,
    record,
    record_id,
    request,
    revisit,
    sha1,
)
from tests.support.zstd_files import trained
from tests.unit.post_crawl.test_compare_payloads import SHATTERED, WANG

CASES: dict[str, Make] = {}
PLAIN: dict[str, Make] = {}  # of those, what makes sense in plain files, too
ZSTD: dict[str, Make] = {}  # the same in zstd frames


def case(*names: str, plain: bool = False) -> Callable[[Make], Make]:
    """Register a case under its numbers and what they are about."""

    def register(make: Make) -> Make:
        for name in names:
            CASES[name] = make
            if plain:
                PLAIN[f"{name} plain"] = make
                ZSTD[f"{name} zstd"] = make
        return make

    return register


for _name, _odd in {**post_crawl_odd.ODD, **post_crawl_odd.KINDS}.items():
    case(_name, plain=_odd.plain)(partial(post_crawl_odd.fill, odd=_odd))


@case("01 uncompressed")
def _(one: Case) -> None:
    one.packed = False
    one.file(
        "x.warc", one.original(), request(number=9), one.copy(),
        one.kept("unique", one.record(3, one.other)),
    )  # fmt: skip


@case("02 all records in one member")
def _(one: Case) -> None:
    whole = one.record(1) + one.record(2)
    one.file("x.warc.gz", Piece(gz(whole), "shared-member"), Piece(b"", "shared-member"))


@case("03 end of the last member missing", "04 last member cut")
def _(one: Case) -> None:
    missing = 4 if one.name.startswith("03") else 300
    last = gz(one.record(3))[:-missing]
    one.file("x.warc.gz", one.original(), one.kept("damaged", one.record(2)), last, damaged=True)
    one.file("y.warc.gz", one.copy(4))


@case(
    "05 wrong checksum in the middle", "05 wrong length in the middle", "06 bit flip in the middle"
)
def _(one: Case) -> None:
    middle = bytearray(gz(one.record(2)))
    middle[{"checksum": -7, "length": -2, "flip": 200}[one.name.split()[2]]] ^= 16
    one.file(
        "x.warc.gz",
        one.original(),
        bytes(middle),
        one.kept("damaged", one.record(3)),
        damaged=True,
    )
    one.file("y.warc.gz", one.copy(4))


@case("07 empty members", "08 members of line ends")
def _(one: Case) -> None:
    filler = gz(b"" if one.name.startswith("07") else b"\r\n")
    one.file("x.warc.gz", filler, one.original(), filler, filler, one.copy(), filler, one.copy(3))


@case("09 zeros between", "09 zeros behind", "09 garbage between", "09 garbage behind")
def _(one: Case) -> None:
    junk = bytes(9) if "zeros" in one.name else b"garbage!\n"
    pieces: list[Piece | bytes] = [one.original(), one.kept("damaged", one.record(2))]
    pieces.insert(1 if "between" in one.name else 2, junk)
    one.file("x.warc.gz", *pieces, damaged=True)
    one.file("y.warc.gz", one.copy(3))


@case("10 record over two members")
def _(one: Case) -> None:
    whole = one.record(2)
    halves = gz(whole[:400]) + gz(whole[400:])
    one.file(
        "x.warc.gz",
        one.original("unused-original"),
        halves,
        one.kept("damaged", one.record(3)),
        damaged=True,
    )


@case("11 two records in a member among others")
def _(one: Case) -> None:
    two = gz(one.record(2) + one.record(3))
    one.file(
        "x.warc.gz", one.original(), Piece(two, "shared-member"), Piece(b"", "shared-member"),
        one.copy(4),
    )  # fmt: skip


@case("12 plain record behind members", "12 member behind plain records")
def _(one: Case) -> None:
    plain, packed = one.record(2), gz(one.record(3))
    if "behind members" in one.name:
        one.file(
            "x.warc.gz",
            one.original("unused-original"),
            one.kept("damaged", one.record(4)),
            plain,
            damaged=True,
        )
    else:
        one.file(
            "x.warc",
            Piece(one.record(1), "unused-original"),
            Piece(plain, "damaged"),
            packed,
            damaged=True,
        )


@case("13 optional fields of the gzip header")
def _(one: Case) -> None:
    def dressed(data: bytes, flags: int, optional: bytes) -> bytes:
        member = gz(data)
        head = member[:3] + bytes([flags]) + member[4:10] + optional
        if flags & 2:
            head += (zlib.crc32(head) & 0xFFFF).to_bytes(2, "little")
        return head + member[10:]

    extra = b"\x0c\x00SL\x08\x00" + bytes(8)
    first, second = one.original(), one.copy()
    one.file(
        "x.warc.gz",
        first._replace(stored=dressed(first.record, 4, extra)),
        second._replace(stored=dressed(second.record, 4 | 8 | 16 | 2, extra + b"name\0comment\0")),
        Piece(dressed(request(number=9), 8, b"n\0")),
        one.copy(3),
    )


@case("15 plain under .gz")
def _(one: Case) -> None:
    one.packed = False
    one.file("x.warc.gz", one.original(), one.copy())


@case("15 gzip under .warc")
def _(one: Case) -> None:
    one.file("x.warc", one.original(), one.copy())


@case(
    "22 length too small", "22 length too large", "22 length is not a number", "22 length negative",
    "22 length missing", "22 two lengths", plain=True,
)  # fmt: skip
def _(one: Case) -> None:
    length = len(HTTP + one.body)
    given: dict[str, object] = {
        "small": {"Content_Length": b"%d" % (length - 9)},
        "large": {"Content_Length": b"%d" % (length + 9)},
        "number": {"Content_Length": b"x"},
        "negative": {"Content_Length": b"-1"},
        "missing": {"Content_Length": None},
        "lengths": {"more": [(b"Content-Length", b"1")]},
    }[one.name.removesuffix(" plain").removesuffix(" zstd").split()[-1]]
    bad = one.pack(one.record(2, **given))
    # In a plain file nobody knows where the next record begins.
    behind = one.kept("damaged", one.record(3))
    one.file("x.warc" + ".gz" * one.packed, one.original(), bad, behind, damaged=True)
    one.file("y.warc" + ".gz" * one.packed, one.copy(4))


@case("27 one record id on several records", plain=True)
def _(one: Case) -> None:
    one.remarks.add("no-refers-to")
    number = one.number * 100 + 1
    other = one.kept("unique", one.record(3, one.other, number=number))
    one.file("x.warc", one.original(), other, one.copy(2, refers=False))


@case("32 other schemes", plain=True)
def _(one: Case) -> None:
    pieces = []
    for year, url in enumerate(
        (b"dns:a.test", b"ftp://a.test/x", b"whois://a.test", b"gemini://a.test/", b"urn:x:y",
         b"screenshot:http://a.test/", b"metadata://gnu.org/software/wget/warc/MANIFEST.txt"), 1,
    ):  # fmt: skip
        text = record(
            b"response" if year < 3 else b"resource", one.body, number=one.number * 100 + year,
            Target_URI=url, Date=DAY % year, Content_Type=b"text/plain",
            Payload_Digest=sha1(one.body),
        )  # fmt: skip
        pieces.append(one.kept("not-http" if year < 3 else "", text))
    one.file("x.warc", *pieces)


@case("33 WARC-Filename of another file", plain=True)
def _(one: Case) -> None:
    info = record(b"warcinfo", b"software: x\r\n", number=9, Filename=b"other.warc.gz",
                  Target_URI=None, Content_Type=b"application/warc-fields")  # fmt: skip
    one.file("x.warc", one.pack(info), one.original(), one.copy(2, Warcinfo_ID=record_id(9)))


@case("34 header of nearly 1 MiB")
def _(one: Case) -> None:
    long = one.record(2, more=[(b"X-Long", b"y" * 1_040_000)])
    one.file("x.warc", one.original(), one.turns(long), one.copy(3))


@case("34 header of more than 1 MiB", plain=True)
def _(one: Case) -> None:
    long = one.pack(one.record(2, more=[(b"X-Long", b"y" * (1 << 20))]))
    one.file("x.warc", one.original(), long, one.kept("damaged", one.record(3)), damaged=True)
    one.file("y.warc", one.copy(4))


@case("35 revisits that were there", plain=True)
def _(one: Case) -> None:
    there = revisit(
        number=one.number * 100 + 2, Target_URI=b"http://c%d.test/2" % one.number, Date=DAY % 2,
        Refers_To_Target_URI=b"http://c%d.test/1" % one.number, Refers_To_Date=DAY % 1,
        Refers_To=record_id(one.number * 100 + 1), Payload_Digest=sha1(one.body),
    )  # fmt: skip
    one.file("x.warc", one.original(), one.pack(there), one.copy(3))


@case("44 other chunks of the same entity", plain=True)
def _(one: Case) -> None:
    said = {"head": CHUNKED_HTTP, "Payload_Digest": sha1(one.body)}
    pieces = [
        one.kept("unique", one.record(year, chunked(one.body[:at], one.body[at:]), **said))
        for year, at in ((1, 10), (2, 20))
    ]
    one.file("x.warc", *pieces)


@case("46 gzip and identity", plain=True)
def _(one: Case) -> None:
    packed = gzip.compress(one.body, mtime=0)
    head = http(b"Content-Encoding: gzip")
    one.file(
        "x.warc", one.kept("unique", one.record(1, packed, head=head)),
        one.original("original", 2), one.copy(3),
    )  # fmt: skip


@case("55 HEAD", "55 OPTIONS", "55 POST", "55 PUT", plain=True)
def _(one: Case) -> None:
    method = one.name.split()[1].encode()

    def asked(year: int) -> bytes:
        number = one.number * 100 + year
        return one.pack(request(method, number + 50, Concurrent_To=record_id(number)))

    one.file(
        "x.warc", one.kept("method", one.record(1)), asked(1), asked(3),
        one.original("original", 2),
        one.kept("method", one.record(3)), one.copy(4),
    )  # fmt: skip


@case("56 two responses to one request", plain=True)
def _(one: Case) -> None:
    asked = request(number=one.number * 100 + 50, Concurrent_To=record_id(one.number * 100 + 2))
    denied = http(b"WWW-Authenticate: x", status=b"401 Unauthorized")
    one.file(
        "x.warc", one.original(), one.pack(asked),
        one.kept("unique", one.record(2, one.other, head=denied)), one.copy(3),
    )  # fmt: skip


@case("59 the same file twice", "60 the same record in two files")
def _(one: Case) -> None:
    """One of equal ids is the original of others, but never of the other."""
    one.remarks.add("no-refers-to")
    first, again = one.original(), one.kept("same-record", one.record(1))
    one.file("x.warc.gz", first)
    if one.name.startswith("59"):
        one.file("y.warc.gz", again)
    else:
        one.file("y.warc.gz", one.kept("unique", one.record(2, one.other)), again)
    one.file("z.warc.gz", one.copy(3, refers=False))


@case("61 same URL and second, same digest", plain=True)
def _(one: Case) -> None:
    same = {"Target_URI": b"http://c%d.test/" % one.number, "Date": DAY % 1}
    one.file("x.warc", one.original(**same), one.copy(2, **same), one.copy(3))


@case("61 same URL and second, same digest, other header", plain=True)
def _(one: Case) -> None:
    same = {"Target_URI": b"http://c%d.test/" % one.number, "Date": DAY % 1}
    other = one.record(2, **same, head=HTTP.replace(b"OK", b"Fine"))
    one.file("x.warc", one.original(**same), one.kept("same-second", other), one.copy(3))


@case("62 same URL and second, other digest", plain=True)
def _(one: Case) -> None:
    """The first would be found under a key that finds the other, too; the next one is not."""
    same = {"Target_URI": b"http://c%d.test/" % one.number, "Date": DAY % 1}
    one.file(
        "x.warc", one.kept("no-earlier-original", one.record(1, **same)),
        one.kept("unique", one.record(2, one.other, **same)),
        one.original("original", 3), one.copy(4),
    )  # fmt: skip


@case("63 dates tie", plain=True)
def _(one: Case) -> None:
    """Then it is the path, and then the offset."""
    day = DAY % 7
    end = ".warc" + ".gz" * one.packed
    first = one.original("original", 3, Date=day)
    one.file("b" + end, one.copy(2, Date=day), one.copy(4, Date=day))
    one.file("a" + end, first)


@case("64 original later than its copy in the file", plain=True)
def _(one: Case) -> None:
    """Order is that of dates, not of files: the earlier capture keeps its bytes."""
    first = one.original("original", 1)
    one.file("x.warc", one.copy(5), first)


@case("65 fractions of a second decide", plain=True)
def _(one: Case) -> None:
    first = one.original("original", 2, Date=b"2000-01-01T00:00:00.25Z", version=b"WARC/1.1")
    one.file(
        "x.warc", one.copy(1, Date=b"2000-01-01T00:00:00.5Z", version=b"WARC/1.1"), first,
        one.copy(3, Date=b"2000-01-01T00:00:00.250000001Z", version=b"WARC/1.1"),
    )  # fmt: skip


@case("65 ties at seconds are ambiguous", plain=True)
def _(one: Case) -> None:
    said = {"Target_URI": b"http://c%d.test/" % one.number, "version": b"WARC/1.1"}
    one.file(
        "x.warc",
        one.kept("no-earlier-original", one.record(1, Date=b"2000-01-01T00:00:00.25Z", **said)),
        one.kept("unique", one.record(2, one.other, Date=b"2000-01-01T00:00:00.5Z", **said)),
        one.original("original", 3), one.copy(4),
    )  # fmt: skip


@case("66 year 9998", plain=True)
def _(one: Case) -> None:
    one.file("x.warc", one.original(), one.copy(Date=b"9998-12-31T23:59:59.999999999Z"))


@case("68 an original is a copy of nothing", plain=True)
def _(one: Case) -> None:
    """All refer to the first, none to a copy."""
    one.file("x.warc", one.original(), *[one.copy(year) for year in range(2, 9)])


@case("70 the earliest is a revisit", "71 chain of revisits", plain=True)
def _(one: Case) -> None:
    """Revisits are originals of nothing; chains that were there stay as they are."""

    def there(year: int, of: int) -> bytes:
        return one.pack(revisit(
            number=one.number * 100 + year, Target_URI=b"http://c%d.test/%d" % (one.number, year),
            Date=DAY % year, Refers_To_Target_URI=b"http://c%d.test/%d" % (one.number, of),
            Refers_To_Date=DAY % of, Refers_To=record_id(one.number * 100 + of),
            Payload_Digest=sha1(one.body),
        ))  # fmt: skip

    one.file(
        "x.warc", there(1, 3), one.original("original", 3), there(4, 3), there(5, 4), one.copy(6)
    )


@case("72 the earliest has no digest", plain=True)
def _(one: Case) -> None:
    one.file(
        "x.warc", one.kept("unique", one.record(1, Payload_Digest=None)),
        one.original("original", 2), one.copy(3),
    )  # fmt: skip


@case("75 wrong block digest", plain=True)
def _(one: Case) -> None:
    good = {"Block_Digest": sha1(HTTP + one.body)}
    bad = one.kept("digest-mismatch", one.record(2, Block_Digest=sha1(b"else")))
    one.file("x.warc", one.original(**good), bad, one.copy(3, **good))


@case("75 original with a wrong block digest", plain=True)
def _(one: Case) -> None:
    one.file(
        "x.warc", one.original(Block_Digest=sha1(b"else")),
        one.kept("original-digest-mismatch", one.record(2)),
    )  # fmt: skip


@case("81 unknown profile", plain=True)
def _(one: Case) -> None:
    odd = revisit(number=one.number * 100 + 1, Profile=b"http://x.test/", Date=DAY % 1,
                  Payload_Digest=sha1(one.body))  # fmt: skip
    one.file("x.warc", one.pack(odd), one.original("original", 2), one.copy(3))


@case("83 SHA-1 collision")
@case("84 collision with a common suffix", "85 MD5 collision", plain=True)
def _(one: Case) -> None:
    """Two originals, and each has its own copies."""
    pair, spell = (WANG, post_crawl_odd.hexed("md5")) if "MD5" in one.name else (SHATTERED, sha1)
    tail = b"" if one.name.startswith("83") else one.body
    bodies = [body + tail for body in pair]
    assert spell(bodies[0]) == spell(bodies[1])
    pieces = []
    for year, body in enumerate(bodies, 1):
        said = {"body": body, "Payload_Digest": spell(body)}
        pieces += [one.original("original", year, **said), one.copy(year + 2, **said)]
    one.file("x.warc", *pieces)


@case("109 nothing to gain", plain=True)
def _(one: Case) -> None:
    """The revisit would be larger than the record: it is kept, and the file is the same."""
    one.file(
        "x.warc", one.original("original", 1, body=b"tiny %d" % one.number),
        one.kept("no-gain", one.record(2, b"tiny %d" % one.number)),
    )  # fmt: skip


@case("111 one name in several folders", plain=True)
def _(one: Case) -> None:
    one.file("a/same.warc", one.original())
    one.file("b/same.warc", one.copy())
    one.file("b/c/same.warc", one.copy(3))


@case("112 odd names of files")
def _(one: Case) -> None:
    one.file("a b\n c.warc.gz", one.original())
    one.file("no utf-8 \udcff\udce9/%zz'\"\\\t.warc.gz", one.copy())
    one.file("-rf.warc.gz", one.copy(3))


@case("115 thousands of duplicates in a file", plain=True)
def _(one: Case) -> None:
    first = one.original()
    host, number = b"http://c%d.test/" % one.number, 10_000_000 + one.number * 10_000
    many = [one.copy(2, number=number + n, Target_URI=host + b"%d" % n) for n in range(3, 1000)]
    one.file("x.warc", first, *many)


@case("120 all are duplicates of an earlier one in the file", plain=True)
def _(one: Case) -> None:
    first = one.original()
    one.file("x.warc", first, *[one.copy(year) for year in range(2, 20)])


def made() -> list[Case]:
    cases = []
    makes = {**CASES, **PLAIN, **ZSTD}
    for number, name in enumerate(makes, 1):
        one = Case(name.replace("/", "-"), number, packed=name not in PLAIN)
        if name in ZSTD:
            one.zstd = b"" if number % 3 == 0 else trained()
        makes[name](one)
        cases.append(one)
    return cases


ALL = {one.name: one for one in made()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("cases"))
    for one in ALL.values():
        one.write(run.source)
    run.prepare()
    run.to_directory()
    run.in_place()
    return run


WAYS = pytest.mark.parametrize("way", ["out", "placed"])


@WAYS
@pytest.mark.parametrize("name", ALL)
def test_every_file_is_as_its_case_expects(run: Run, name: str, way: str) -> None:
    ALL[name].check(run.top / way)


def test_damaged_files_are_named_and_no_others(run: Run) -> None:
    assert run.results["manifest"].status == 7
    output = run.results["manifest"].err
    for one in ALL.values():
        for name in one.files:
            place = printable(str(run.source / one.name / name))
            assert (place in output) == (name in one.damaged), place


@WAYS
def test_everything_is_counted(run: Run, way: str) -> None:
    expected: Counter[str] = sum((one.words() for one in ALL.values()), Counter())
    resolved, rewritten = run.results["resolve"].totals, run.results[way].totals
    found = Counter(resolved["kept"]) + Counter(rewritten["refused"])
    found["unique"], found["original"] = resolved["unique"], resolved["originals"]
    found["revisit"] = rewritten["revisits"]
    assert found == expected
    assert run.results[way].status == run.results[f"{way} dry"].status == 0
    assert run.results[f"{way} dry"].totals == {**rewritten, "dry_run": True}


@WAYS
def test_verification_finds_nothing_that_was_not_there_before(run: Run, way: str) -> None:
    before = post_crawl.findings(run.results["before"], run.source)
    after = post_crawl.findings(run.results[f"{way} verify"], run.top / way)
    against = post_crawl.findings(run.results[f"{way} against"], run.top / way)
    assert run.results[f"{way} against"].status == 0
    for one in ALL.values():
        for name in one.files:
            place = printable(f"{one.name}/{name}")
            new = after.pop(place, Counter()) - before.pop(place, Counter())
            assert {reason for reason, _ in new} <= one.remarks, place
            assert {reason for reason, _ in against.pop(place, {})} <= one.remarks, place
    assert not (before or after or against)


def test_undo_restores_the_sources(run: Run) -> None:
    assert run.results["undo"].status == 0
    assert post_crawl.tree(run.source) == post_crawl.tree(run.top / "before")


def test_bin_dedup_comes_to_the_same(run: Run) -> None:
    """All stages in one command, after a dry run with the same numbers."""
    out = run.top / "dedup"
    said = {}
    for name, more in (("dedup dry", ["--dry-run"]), ("dedup", [])):
        result = run.do(name, "dedup", run.source, "--out", out, *more)
        assert result.status == 7, result.err  # damage that was there before is there
        said[name] = result.totals
    for key in ("files", "records", "revisits", "bytes_before", "bytes_after", "refused"):
        assert said["dedup dry"][key] == said["dedup"][key], key
    assert said["dedup"]["revisits"] == run.results["out"].totals["revisits"]
    assert post_crawl.tree(out) == post_crawl.tree(run.out)
