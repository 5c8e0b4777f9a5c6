"""ARC to WARC and back, bit for bit; irregular files are not converted but named."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import re
import zlib
from base64 import b32encode
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from warcio.archiveiterator import ArchiveIterator

from dedupindex.errors import DedupError
from dedupindex.post_crawl.convert.arc_to_warc import convert, restore_arc
from dedupindex.post_crawl.convert.conversion import ConvertOutcome, ConvertTask
from dedupindex.post_crawl.convert.warc_to_arc import LayoutEnd, rebuild
from dedupindex.runtime import atomic_replace as parts
from dedupindex.verify.collection import Collection
from dedupindex.verify.issues import REASONS, REMARK
from tests.support.budgets import examples
from tests.support.commands import typed
from tests.support.warc_cases import CHUNKED_HTTP, DATA, HTTP, chunked, gz
from tests.unit.warc.test_arc import V2, document, header

DNS = document(b"20261120091417\nexample.com. 60 IN A 1.2.3.4\n", url=b"dns:example.com",
               mime=b"text/dns", head=b"")  # fmt: skip


class One(NamedTuple):
    """A record of the WARC file, as warcio reads it."""

    type: str
    fields: dict[str, str]
    block: bytes


def converted(
    folder: Path, arc: bytes, *, keep: bool = True, name: str = "t.arc"
) -> ConvertOutcome:
    """What becomes of an ARC file; where it becomes a WARC file, it is made of that again."""
    (folder / name).write_bytes(arc)
    target = folder / "out" / "t.warc"
    outcome = convert(ConvertTask(str(folder / name), target, keep))
    hidden = [path for path in folder.rglob(".*")]
    assert hidden == [] and target.exists() == (outcome.state != "left_alone")
    assert (outcome.state == "left_alone") == bool(outcome.problem)
    if outcome.state != "left_alone":
        back = restore_arc(ConvertTask(str(target), folder / "back"))
        assert back.problem == ""
        made = (folder / "back" / name).read_bytes()
        assert back.state in ("exact", "content")
        assert made == arc or (back.state == "content" and gzip.decompress(made) == _content(arc))
        assert back.state == "exact" or not keep
    return outcome


def _content(arc: bytes) -> bytes:
    return gzip.decompress(arc)


def records(path: Path) -> list[One]:
    """All but the last record, which is the layout."""
    found = []
    with open(path, "rb") as stream:
        for record in ArchiveIterator(stream, no_record_parse=True):
            fields = dict(record.rec_headers.headers)
            found.append(One(record.rec_type, fields, record.content_stream().read()))
    with open(path, "rb") as stream:
        for record in ArchiveIterator(stream, check_digests="raise"):
            record.raw_stream.read()
    assert found[-1].fields["Content-Type"] == "application/vnd.dedupindex.arc-layout"
    assert {REASONS[one.reason] for one in Collection([path]).findings()} <= {REMARK}
    return found[:-1]


@pytest.mark.parametrize("pack", [gz, bytes], ids=["gzip", "plain"])
def test_an_arc_becomes_a_warc(tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    version, first = header(), document(b"payload", mime=b"text/html")
    outcome = converted(tmp_path, pack(version) + pack(DNS) + pack(first))
    assert (outcome.state, outcome.responses, outcome.resources) == ("converted", 1, 1)
    info, block, dns, page = records(tmp_path / "out" / "t.warc")
    assert [one.type for one in (info, block, dns, page)] == [
        "warcinfo", "metadata", "resource", "response"
    ]  # fmt: skip
    assert info.fields["WARC-Filename"] == "t.warc" and "WARC-Warcinfo-ID" not in info.fields
    assert info.fields["WARC-Date"] == "2026-01-01T00:00:00Z"
    assert version.startswith(block.block)
    assert block.fields["WARC-Target-URI"] == "filedesc://t.arc"
    assert dns.fields["WARC-Target-URI"] == "dns:example.com"
    assert dns.fields["Content-Type"] == "text/dns"
    assert page.block == HTTP + b"payload"
    assert page.fields == {
        "WARC-Type": "response",
        "WARC-Record-ID": page.fields["WARC-Record-ID"],
        "WARC-Date": "2026-11-20T09:14:17Z",
        "WARC-Target-URI": "http://example.com/",
        "WARC-IP-Address": "1.2.3.4",
        "WARC-Warcinfo-ID": info.fields["WARC-Record-ID"],
        "Content-Type": "application/http; msgtype=response",
        "WARC-Payload-Digest": sha1(b"payload"),
        "WARC-Block-Digest": sha1(HTTP + b"payload"),
        "Content-Length": str(len(HTTP) + 7),
    }
    assert len({one.fields["WARC-Record-ID"] for one in (info, block, dns, page)}) == 4
    is_zipped = (tmp_path / "out" / "t.warc").read_bytes().startswith(b"\x1f\x8b")
    assert is_zipped == (pack is gz)


def sha1(data: bytes) -> str:
    return "sha1:" + b32encode(hashlib.sha1(data).digest()).decode()


def test_version_2(tmp_path: Path) -> None:
    more = b" 200 abc - 1234 t.arc"
    arc = header(V2) + document(more=more, mime=b"text/html; x=y", head=b"")
    assert converted(tmp_path, arc).state == "converted"
    page = records(tmp_path / "out" / "t.warc")[-1]
    assert (page.type, page.fields["Content-Type"]) == ("resource", "text/html; x=y")


@pytest.mark.parametrize(
    ("mime", "stated"),
    [
        (b"text/plain", "text/plain"),
        (b"no-type", "application/octet-stream"),
        (b"-", "application/octet-stream"),
        (b"text/html; charset=x", "text/html; charset=x"),
        (b"text/\xff", "application/octet-stream"),
    ],
)
def test_arc_records_without_http_become_resources(
    tmp_path: Path, mime: bytes, stated: str
) -> None:
    for body in (b"without a header", b"HTTP/1.0 200 OK\r\nno-end: x\r\n", b"HTTP/x\r\n\r\n"):
        folder = tmp_path / str(len(body))
        folder.mkdir()
        assert converted(folder, header() + document(body, head=b"", mime=mime)).resources == 1
        page = records(folder / "out" / "t.warc")[-1]
        assert (page.type, page.fields["Content-Type"]) == ("resource", stated)
        assert page.fields["WARC-Payload-Digest"] == sha1(body)


def test_an_empty_document_states_no_payload_digest(tmp_path: Path) -> None:
    assert converted(tmp_path, header() + document(b"", head=b"") + document(b"")).responses == 1
    for one in records(tmp_path / "out" / "t.warc")[2:]:
        assert "WARC-Payload-Digest" not in one.fields


def test_a_chunked_document_states_no_payload_digest(tmp_path: Path) -> None:
    """Checkers do not agree on what it would be of."""
    converted(tmp_path, header() + document(chunked(b"payload"), head=CHUNKED_HTTP))
    page = records(tmp_path / "out" / "t.warc")[-1]
    assert page.type == "response" and "WARC-Payload-Digest" not in page.fields


@pytest.mark.parametrize("ip", [b"0.0.0.0", b"-", b"999.1.1.1"])
def test_a_document_without_ip_address_has_no_such_field(tmp_path: Path, ip: bytes) -> None:
    converted(tmp_path, header() + document(ip=ip))
    assert "WARC-IP-Address" not in records(tmp_path / "out" / "t.warc")[-1].fields


def test_an_ipv6_address(tmp_path: Path) -> None:
    converted(tmp_path, header() + document(ip=b"2001:db8::1"))
    assert records(tmp_path / "out" / "t.warc")[-1].fields["WARC-IP-Address"] == "2001:db8::1"


@pytest.mark.parametrize(
    "arc",
    [
        document() + document(b"more"),  # no version block
        header(end=b"\n\r\n\n") + document() + document(),
        header(wrong=-1000) + document(),
        header(extra=b"<?xml version='1.0'?>\n<arcmetadata/>\n") + document(),
        header(end=b"") + b"\n" + document(end=b"") + b"\n" + document(end=b""),
        header() + document() + header() + document(),  # two files, one behind the other
        header() + document(url=b"http://example.com/a b") + document(url=b"http://x/\xff"),
        header() + document(date=b"20261120091417123"),
        header() + document(b"\n\n\n") + document(b"\r\n"),
        header(),
    ],
)  # fmt: skip
@pytest.mark.parametrize("pack", [gz, bytes], ids=["gzip", "plain"])
def test_unusual_files_are_reproduced(tmp_path: Path, arc: bytes, pack: object) -> None:
    assert callable(pack)
    assert converted(tmp_path, pack(arc)).state == "converted"


@pytest.mark.parametrize(
    "arc",
    [
        gz(header()) + b"\0" * 5000 + gz(document()) + b"\0",
        gz(header()) + gz(b"") + gz(b"\n") + gz(document()),
        gz(header(end=b"")) + gz(b"\n" + document(end=b"")) * 3,
        gz(header()) + gzip.compress(document(), mtime=7),
        gz(header()) + b"\x1f\x8b\x08\x18\0\0\0\0\0\3name\0comment\0" + gz(document())[10:],
        b"".join(gz(document(os.urandom(3000)), level) for level in range(1, 10)),
    ],
    ids=["zeros", "empty", "newline first", "time", "name and comment", "levels"],
)
def test_unusual_members_are_reproduced(tmp_path: Path, arc: bytes) -> None:
    outcome = converted(tmp_path, arc)
    assert (outcome.state, outcome.kept) == ("converted", 0)


def strange(data: bytes) -> bytes:
    """A member that zlib does not make: flushed in the middle."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    middle = len(data) // 2
    return (
        packer.compress(data[:middle])
        + packer.flush(zlib.Z_FULL_FLUSH)
        + packer.compress(data[middle:])
        + packer.flush()
    )


def test_members_that_zlib_does_not_reproduce_are_stored(tmp_path: Path) -> None:
    odd = strange(document(b"<p>strange" * 20_000))
    outcome = converted(tmp_path, gz(header()) + odd + gz(document()))
    assert (outcome.state, outcome.kept) == ("converted", len(odd))


def test_without_keep_only_the_content_of_members_is_reproduced(tmp_path: Path) -> None:
    arc = gz(header()) + strange(document(b"<p>strange" * 20_000)) + gz(document())
    assert converted(tmp_path, arc, keep=False).kept == 0
    assert (tmp_path / "back" / "t.arc").read_bytes() != arc


GOOD = header() + document()
LEFT = {
    "ambiguous": document(url=b"http://e.com/ 5.6.7.8 20200101000000 text/html"),
    "too-long": document(wrong=3),
    "too-short": document(wrong=-3),
    "cut": document()[:-20],
    "garbage": b"garbage\n",
    "bad-date": document(date=b"20001332000000"),
    "short-date": document(date=b"20001231"),
    "control": document(url=b"http://e.com/\x01"),
    "space": document(url=b"http://e.com/ "),
}


@pytest.mark.parametrize("case", LEFT)
@pytest.mark.parametrize("pack", [gz, bytes], ids=["gzip", "plain"])
def test_irregular_arc_files_are_not_converted(tmp_path: Path, case: str, pack: object) -> None:
    assert callable(pack)
    outcome = converted(tmp_path, pack(GOOD) + pack(LEFT[case]) + pack(document()))
    assert outcome.state == "left_alone" and outcome.problem.startswith("at ")


@pytest.mark.parametrize(
    "arc",
    [
        GOOD + b"\0" * 10,
        gz(GOOD)[:-3],
        gz(GOOD)[:-8] + b"\1\2\3\4" + gz(GOOD)[-4:],
        gz(GOOD) + b"more",
        b"",
        b"WARC/1.0\r\n",
        header(b"URL Archive-length") + document(),
    ],
)
def test_damaged_arc_files_are_not_converted(tmp_path: Path, arc: bytes) -> None:
    assert converted(tmp_path, arc).state == "left_alone"


def test_long_documents_are_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("gzip_members", "framing"):
        monkeypatch.setattr(f"dedupindex.warc.{module}.SHORT", 50)
    long = document(random.Random(1).randbytes(3_000_000))
    for name, arc in (("plain", GOOD + long + GOOD), ("gz", gz(GOOD) + gz(long) + gz(GOOD))):
        folder = tmp_path / name
        folder.mkdir()
        outcome = converted(folder, arc)
        assert (outcome.state, outcome.responses, outcome.kept) == ("converted", 3, 0)
        assert records(folder / "out" / "t.warc")


bodies = st.binary(max_size=300) | st.sampled_from([b"", b"\n", b"<p>" * 5000, chunked(b"x")])
documents = st.builds(
    document,
    bodies,
    url=st.sampled_from([b"http://e.com/", b"http://e.com/a b", b"ftp://x/y", b"dns:x"]),
    head=st.sampled_from([b"", HTTP, CHUNKED_HTTP, b"HTTP/1.0 200 OK\n\n"]),
    mime=st.sampled_from([b"text/html", b"text/html; charset=x", b"no-type"]),
)
packers = st.sampled_from([gz, lambda data: gz(data, 9), lambda data: gz(data, 1), strange])


@settings(max_examples=examples(60))
@given(
    parts=st.lists(documents, max_size=6),
    pack=st.lists(packers, min_size=7, max_size=7),
    zipped=st.booleans(),
)
def test_any_converted_file_is_reproduced(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[bytes],
    pack: list[object],
    zipped: bool,
) -> None:
    folder = tmp_path_factory.mktemp("property")
    all_parts = [header(), *parts]
    arc = b"".join(all_parts)
    if zipped:
        arc = b"".join(one(part) for one, part in zip(pack, all_parts, strict=False))  # type: ignore[operator]
    outcome = converted(folder, arc)
    assert (outcome.state, outcome.problem) == ("converted", "")
    assert outcome.responses + outcome.resources == len(parts)


def test_the_command(tmp_path: Path) -> None:
    arcs, warcs = tmp_path / "arcs", tmp_path / "warcs"
    (arcs / "below").mkdir(parents=True)
    good = gz(header()) + gz(document())
    (arcs / "below" / "a.arc.gz").write_bytes(good)
    (arcs / "b.ARC").write_bytes(GOOD)
    (arcs / "c.arc.gz").write_bytes(good[:-3])
    (arcs / "d.warc").write_bytes(b"WARC/1.0\r\n")
    os.utime(arcs / "b.ARC", (1, 1))
    out, talk = typed("convert", arcs, "--out", warcs, "--json", status=7)
    report = json.loads(out)
    assert (report["converted"], report["left_alone"], report["responses"], report["skipped"]) == (
        2,
        1,
        2,
        1,
    )
    assert "c.arc.gz was left alone" in talk and "cut short" in talk
    sizes = report["bytes_before"], report["bytes_after"]  # of the two that were converted
    assert sizes[0] == len(good) + len(GOOD)
    assert sizes[1] == sum(path.stat().st_size for path in warcs.rglob("*.warc*"))
    made = {str(path.relative_to(warcs)) for path in warcs.rglob("*") if path.is_file()}
    assert made == {"below/a.warc.gz", "b.warc"}
    assert (warcs / "b.warc").stat().st_mtime == 1
    before = {path: path.read_bytes() for path in warcs.rglob("*.warc*")}
    out, _ = typed("convert", arcs, "--out", warcs, "--json", "--jobs", 1, status=7)
    assert json.loads(out)["existing"] == 2
    assert before == {path: path.read_bytes() for path in warcs.rglob("*.warc*")}
    typed("verify", warcs)
    back = json.loads(typed("convert", "--back", warcs, "--out", tmp_path / "again", "--json")[0])
    assert back["exact"] == back["responses"] == 2
    assert (tmp_path / "again" / "below" / "a.arc.gz").read_bytes() == good
    assert (tmp_path / "again" / "b.ARC").read_bytes() == GOOD
    _, talk = typed("convert", "--back", DATA / "example.warc", "--out", tmp_path / "none")
    assert "nothing was written: of 1 file none was made of an ARC file" in talk
    _, talk = typed("convert", warcs, "--out", tmp_path / "x", status=4)
    assert "no ARC file" in talk and "; WARC files need --to gzip, --to zstd or --re" in talk
    assert not (tmp_path / "x").exists()


def test_files_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("a.arc", "a.arc.gz"):
        (tmp_path / name).write_bytes(GOOD)
    _, talk = typed("convert", tmp_path, "--out", tmp_path / "out", status=4)
    assert "would both become" in talk and "convert them in two runs" in talk
    for ending, out in ((".arc", "one"), (".arc.gz", "two")):
        assert f"'SOURCE/**/*{ending}' --out O" in talk
        typed("convert", f"{tmp_path}/**/*{ending}", "--out", tmp_path / out)
    assert len([*tmp_path.glob("*/a.warc*")]) == 2


def test_sizes_of_files_that_were_left_alone_are_not_shown(tmp_path: Path) -> None:
    arc = tmp_path / "a.arc.gz"
    arc.write_bytes((gz(header()) + gz(document()))[:-3])
    shown, _ = typed("convert", arc, "--out", tmp_path / "out", status=7)
    assert shown.strip() == "files: 1 left alone"


def test_no_existing_file_is_replaced(tmp_path: Path) -> None:
    assert converted(tmp_path, GOOD).state == "converted"
    target = tmp_path / "out" / "t.warc"
    content = target.read_bytes()
    (tmp_path / "t.arc").write_bytes(header() + document(b"other"))
    outcome = convert(ConvertTask(str(tmp_path / "t.arc"), target))
    assert outcome.state == "left_alone" and "made from another file" in outcome.problem
    target.write_bytes(content[:-5])
    (tmp_path / "t.arc").write_bytes(GOOD)
    assert convert(ConvertTask(str(tmp_path / "t.arc"), target)).state == "left_alone"
    assert target.read_bytes() == content[:-5]


def test_a_file_restored_by_another_process_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files may have been made of two ARC files of one name."""
    assert converted(tmp_path, GOOD).state == "converted"
    made = tmp_path / "again" / "t.arc"

    def rebuilt(path: Path, spool: BinaryIO, write: Callable[[bytes], object]) -> LayoutEnd:
        end = rebuild(path, spool, write)
        made.write_bytes(b"of another")
        return end

    monkeypatch.setattr("dedupindex.post_crawl.convert.arc_to_warc.rebuild", rebuilt)
    outcome = restore_arc(ConvertTask(str(tmp_path / "out" / "t.warc"), made.parent))
    assert outcome.state == "left_alone" and "exists already" in outcome.problem
    assert made.read_bytes() == b"of another"


ZEROS = b'["block", 1', b'["zeros", 9'


def test_a_changed_warc_is_not_restored(tmp_path: Path) -> None:
    arc = header() + document(b"payload") + document(b"another")
    converted(tmp_path, arc)
    target = tmp_path / "out" / "t.warc"
    content = target.read_bytes()
    for old, new in (
        (b"payload", b"Payload"),
        (b'["text"', b'["tixt"'),
        (b'["end"', b'["und"'),
        ZEROS,
    ):
        assert old in content
        target.write_bytes(content.replace(old, new, 1))
        back = restore_arc(ConvertTask(str(target), tmp_path / "again"))
        assert back.state == "left_alone" and list((tmp_path / "again").iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        (*ZEROS, "more zeros"),
        (b'["text"', b'["tixt"', "tixt"),
        (b'["end"', b'["und"', "no end"),
        (b'"size": ', b'"SIZE": ', "SIZE"),
        (b'["text", "h', b'["text", "g', "differ from the documents"),
        (b'["text"', b'["text!', "cannot be read"),
        (b'"name": "t.arc"', b'"name": 7', "other types"),
        (b'"name": "t.arc"', b'"name": ["a"]', "other types"),
        (b'"name": "t.arc"', b'"name": "\\ud800.arc"', "no valid file name"),
        (b'"name": "t.arc"', b'"name": "%b"' % (b"x" * 300), "no valid file name"),
        (b'"name": "t.arc"', b'"name": "a/b"', "no valid file name"),
        (b'"size": ', b'"size": -', "more zeros|other types"),
        (b'"exact": true', b'"exact": 1', "other types"),
        (b'["text"', b'["text", null]\n["text"', "cannot be read"),
        (b'["text"', b'["text", {}]\n["text"', "cannot be read"),
        (b'["text"', b'[["text"]]\n["text"', "cannot be read"),
        (b'["text"', b'["zeros", -9]\n["zeros", 9]\n["text"', "cannot be read|more bytes|differ"),
        (b'["text"', b"[" * 100_000 + b'\n["text"', "not a line of a layout"),
    ],
)
def test_a_changed_layout_is_refused(tmp_path: Path, old: bytes, new: bytes, word: str) -> None:
    converted(tmp_path, header() + document(b"payload"))
    target = tmp_path / "out" / "t.warc"
    content = target.read_bytes()
    start = content.rindex(b"\r\n\r\n", 0, -4) + 4
    stated, layout = sha1(content[start:-4]), content[start:].replace(old, new, 1)
    assert layout != content[start:] and stated.encode() in content
    head = content[:start].replace(stated.encode(), sha1(layout[:-4]).encode())
    old_length = b"Content-Length: %d\r\n" % (len(content) - start - 4)
    assert head.count(old_length) == 1
    head = head.replace(old_length, b"Content-Length: %d\r\n" % (len(layout) - 4))
    target.write_bytes(head + layout)
    back = restore_arc(ConvertTask(str(target), tmp_path / "again"))
    assert back.state == "left_alone" and re.search(word, back.problem)
    assert list((tmp_path / "again").iterdir()) == []


def test_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.arc")
    (tmp_path / name).write_bytes(header() + document(b"payload"))
    assert typed("convert", tmp_path / name, "--out", tmp_path / "out", status=0)
    made = tmp_path / "out" / os.fsdecode(b"caf\xe9.warc")
    assert b"WARC-Filename: caf%E9.warc\r\n" in made.read_bytes()
    assert typed("convert", "--back", made, "--out", tmp_path / "back", status=0)
    assert (tmp_path / "back" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.arc").write_bytes(GOOD)
    for names in (("fsync",), ("link", "replace")):
        with monkeypatch.context() as patched:
            for name in names:
                patched.setattr(f"os.{name}", _full)
            with pytest.raises(OSError, match="No space"):
                convert(ConvertTask(str(tmp_path / "t.arc"), tmp_path / "out" / "t.warc"))
        assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("back", [False, True])
def test_only_a_checked_file_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back: bool
) -> None:
    """Another process has put something else in the place of the part."""
    assert converted(tmp_path, GOOD).state == "converted"
    work, task = (
        (restore_arc, ConvertTask(str(tmp_path / "out" / "t.warc"), tmp_path / "again"))
        if back
        else (convert, ConvertTask(str(tmp_path / "t.arc"), tmp_path / "again" / "t.warc"))
    )
    create_file = parts.create_file

    def replaced(part: Path, file: BinaryIO, path: Path) -> None:
        part.unlink()
        part.write_bytes(b"something else")
        create_file(part, file, path)

    with monkeypatch.context() as patched:
        module = "arc_to_warc" if back else "conversion"
        patched.setattr(f"dedupindex.post_crawl.convert.{module}.create_file", replaced)
        with pytest.raises(DedupError, match="was replaced by another process"):
            work(task)
    assert list((tmp_path / "again").iterdir()) == []
    assert work(task).state == ("exact" if back else "converted")


def test_a_warc_created_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_file = parts.create_file

    def late(part: Path, file: BinaryIO, path: Path) -> None:
        path.write_bytes(b"of another process")
        create_file(part, file, path)

    (tmp_path / "t.arc").write_bytes(GOOD)
    monkeypatch.setattr("dedupindex.post_crawl.convert.conversion.create_file", late)
    outcome = convert(ConvertTask(str(tmp_path / "t.arc"), tmp_path / "out" / "t.warc"))
    assert outcome.state == "left_alone" and "was created by another process" in outcome.problem
    assert [path.read_bytes() for path in (tmp_path / "out").iterdir()] == [b"of another process"]


def _full(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("name", ["example.arc", "example.arc.gz"])
def test_foreign_samples_are_reproduced(tmp_path: Path, name: str) -> None:
    outcome = converted(tmp_path, (DATA / name).read_bytes())
    assert (outcome.state, outcome.responses) == ("converted", 1)


@pytest.mark.parametrize("name", ["bad.arc", "example-space-in-url.arc"])
def test_irregular_foreign_samples_are_not_converted(tmp_path: Path, name: str) -> None:
    assert converted(tmp_path, (DATA / name).read_bytes()).state == "left_alone"
