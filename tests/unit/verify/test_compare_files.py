"""`bin/verify --against`: a rewritten file beside the one it was made from."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from os.path import commonprefix
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.cli import main
from dedupindex.post_crawl.rewrite.rewrite_file import RewriteJob
from dedupindex.verify import file_bytes
from dedupindex.verify.collection import Collection
from dedupindex.verify.compare_collections import Against
from dedupindex.verify.compare_files import verify_pair
from dedupindex.verify.issues import LOSS
from dedupindex.verify.locate_originals import OriginalHint
from tests.support.budgets import examples
from tests.support.commands import typed
from tests.support.rewriting import FakePlan, run, small_set, total
from tests.support.verifying import DAY, HOST, asked, compared, copy_of, page, reasons, write
from tests.support.warc_cases import CHUNKED_HTTP, HTTP, chunked, gz, record_id, request, sha1

NEW = b"WARC/1.1"
SMALL = st.binary(max_size=40)
FILES = {"file-missing", "file-extra"}
COOKIE = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=%d\r\n\r\n"


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


@settings(max_examples=examples(30))
@given(SMALL, SMALL, st.integers(0, 3 << 21), SMALL, SMALL)
def test_how_many_bytes_are_equal(
    tmp_path_factory: pytest.TempPathFactory, one: bytes, other: bytes, size: int,
    rest: bytes, end: bytes,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("common")
    same = noise(size, size % 5000) + bytes(size)
    (folder / "old").write_bytes(one + same + rest)
    (folder / "new").write_bytes(other + same + end)
    with (
        file_bytes.opened(folder / "old") as old,
        file_bytes.opened(folder / "new") as new,
    ):
        found = file_bytes.common(old, len(one), new, len(other))
    assert found == len(same) + len(commonprefix([rest, end]))


def harvest(size: int = 400) -> tuple[list[bytes], list[bytes]]:
    """Records before and after: pages with requests, of which some repeat the body of page 1."""
    first = noise(1, size)
    before, after = [page(1, first), asked(1)], [page(1, first), asked(1)]
    for number in range(2, 12):
        head = COOKIE % number
        body = first if number % 3 == 0 else noise(number, size)
        was = page(number, body, head=head)
        before += [was, asked(number)]
        after += [copy_of(number, 1, body, head=head) if number % 3 == 0 else was, asked(number)]
    return before, after


@pytest.mark.parametrize("plain", [False, True], ids=["gzip", "plain"])
@pytest.mark.parametrize("size", [400, 70_000])
def test_a_right_rewrite_passes(plain: bool, size: int, tmp_path: Path) -> None:
    before, after = harvest(size)
    old = write(tmp_path / "old.warc.gz", before, plain=plain)
    new = write(tmp_path / "new.warc.gz", after, plain=plain)
    assert compared(old, new) == []
    assert new.stat().st_size < old.stat().st_size


def test_chunked_bodies_and_sub_seconds_pass(tmp_path: Path) -> None:
    body, fine = chunked(noise(1, 900)), b"2026-11-01T09:14:17.25Z"
    options = {"head": CHUNKED_HTTP, "version": NEW}
    before = [page(1, body, Date=fine, **options), page(2, body, Date=fine, **options)]
    profile = b"http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
    copy = copy_of(2, 1, body, Date=fine, Refers_To_Date=fine, Profile=profile, **options)
    old = write(tmp_path / "old.warc.gz", before)
    new = write(tmp_path / "new.warc.gz", [before[0], copy])
    assert compared(old, new) == []


def one(**options: object) -> Callable[[], tuple[list[bytes], list[bytes]]]:
    """Two pages, the second of which became a revisit in which something is otherwise."""
    return lambda: ([page(1), page(2), page(3)], [page(1), copy_of(2, 1, **options), page(3)])


def records(
    before: list[bytes], after: list[bytes]
) -> Callable[[], tuple[list[bytes], list[bytes]]]:
    return lambda: (before, after)


WGET = b"<" + HOST + b"2>"
CONCURRENT = page(2).replace(b"WARC-Date", b"WARC-Concurrent-To: <urn:x:1>\r\nWARC-Date")

CHANGED: dict[str, list[Callable[[], tuple[list[bytes], list[bytes]]]]] = {
    "record-missing": [
        records([page(1), page(2), page(3)], [page(1), page(3)]),
        records([page(1), page(2)], [page(1)]),
        records([page(1), page(2)], [page(2)]),
        records([page(1), page(2)], [page(2), page(1)]),
    ],
    "record-extra": [
        records([page(1), page(2)], [page(1), page(2), page(2)]),
        records([page(1), page(2)], [page(1), page(1), page(2)]),
        records([page(1)], [page(1), page(2)]),
    ],
    "record-changed": [
        records([page(1), page(2)], [page(1), page(2, b"other")]),
        records([page(1), page(2)], [page(1), page(2, X_Field=b"added")]),
        records([page(1), copy_of(2, 1)], [page(1), copy_of(2, 1, Truncated=None)]),
    ],
    "bytes-changed": [lambda: ([page(1)], [])],
    "original-missing": [
        one(Refers_To_Target_URI=HOST + b"9"),
        one(Refers_To=record_id(9)),
        one(Refers_To_Date=DAY % 9),
        one(Refers_To_Target_URI=HOST + b"2", Refers_To_Date=DAY % 2, Refers_To=record_id(2)),
    ],
    "not-rebuilt": [records([page(1), page(2)], [page(1), copy_of(2, 3), page(3, b"x")])],
    "headers-changed": [
        one(block=HTTP.replace(b"\r\n", b"\n")),  # warcrefs
        one(block=HTTP[:-2]),
        one(block=b""),
        one(block=HTTP + b"more"),
    ],
    "id-changed": [one(Record_ID=record_id(44))],
    "date-changed": [one(Date=b"2031-01-01T00:00:00Z")],  # crocoite-merge-warc
    "uri-changed": [one(Target_URI=b""), one(Target_URI=b"<" + HOST + b"2>")],
    "field-lost": [
        records([page(1), CONCURRENT], [page(1), copy_of(2, 1)]),
        one(Block_Digest=None),
        one(Content_Type=None),
    ],
    "field-changed": [one(Payload_Digest=b"sha1:" + b"A" * 32), one(Content_Type=b"text/plain")],
    "version-changed": [
        records([page(1), page(2, version=NEW)], [page(1), copy_of(2, 1)]),  # jwarc
    ],
    "field-added": [one(X_Field=b"added")],
    "digest-form": [
        one(Block_Digest=b"md5:" + b"0" * 32),
        one(Block_Digest=sha1(HTTP).lower()),
    ],
    "invalid-replacement": [
        records([page(1), page(2, Truncated=b"time")], [page(1), copy_of(2, 1)]),
        records([page(1), page(2, Segment_Number=b"1")], [page(1), copy_of(2, 1)]),
        records(
            [page(1), page(2).replace(b"WARC-Type: response", b"WARC-Type: resource")],
            [page(1), copy_of(2, 1)],
        ),
    ],
    "larger": [records([page(1, b"x"), page(2, b"x")], [page(1, b"x"), copy_of(2, 1, b"x")])],
}


@pytest.mark.parametrize("plain", [False, True], ids=["gzip", "plain"])
@pytest.mark.parametrize("reason", list(CHANGED))
def test_it_is_found(reason: str, plain: bool, tmp_path: Path) -> None:
    for number, case in enumerate(CHANGED[reason]):
        before, after = case()
        old = write(tmp_path / f"{number}/old.warc.gz", before, plain=plain)
        new = write(tmp_path / f"{number}/new.warc.gz", after, plain=plain)
        assert reason in reasons(compared(old, new)), number


def test_other_compression_is_found(tmp_path: Path) -> None:
    old = write(tmp_path / "old.warc.gz", [page(1), page(2)])
    new = tmp_path / "new.warc.gz"
    new.write_bytes(gz(page(1)) + gz(page(2), level=1))
    assert reasons(compared(old, new)) == {"recompressed"}
    argv = ["verify", "--against", str(old), str(new)]
    assert main(argv) == 8
    assert main([*argv, "--records"]) == 0
    assert main(["verify", str(new), "--records"]) == 2
    new.write_bytes(gz(page(1)) + gz(page(3), level=1))
    assert main([*argv, "--records"]) == 8


CHANGED["recompressed"] = []
CHANGED["original-damaged"] = []  # `test_a_damaged_original_is_named`


FLIPPED = ["gzip", "plain"]


@pytest.mark.parametrize("kind", FLIPPED)
def test_any_single_flip_is_found(kind: str, tmp_path: Path) -> None:
    before, after = harvest(150)
    plain = kind == "plain"
    old = write(tmp_path / "old.warc.gz", before, plain=plain)
    right = write(tmp_path / "right.warc.gz", after, plain=plain)
    data, new = right.read_bytes(), tmp_path / "new.warc.gz"
    free = set() if plain else set(uncovered(before, after))

    @settings(max_examples=examples(250))
    @given(st.integers(0, len(data) - 1), st.integers(0, 7))
    def flip(at: int, bit: int) -> None:
        hurt = bytearray(data)
        hurt[at] ^= 1 << bit
        new.write_bytes(hurt)
        assert compared(old, new) or at in free, (at, bit)

    flip()


def uncovered(before: list[bytes], after: list[bytes]) -> list[int]:
    """Bytes of new members that say nothing: flags, time, level, system; bits behind the end."""
    at, found = 0, []
    for was, now in zip(before, after, strict=True):
        if was != now:
            found += [*range(at + 3, at + 10), at + len(gz(now)) - 9]
        at += len(gz(now))
    return found


@pytest.mark.parametrize("plain", [False, True], ids=["gzip", "plain"])
def test_any_record_dropped_doubled_or_moved_is_found(plain: bool, tmp_path: Path) -> None:
    before, after = harvest()
    old = write(tmp_path / "old.warc.gz", before, plain=plain)

    @settings(max_examples=examples(120))
    @given(st.sampled_from(["drop", "double", "move"]), st.data())
    def change(how: str, data: st.DataObject) -> None:
        wrong = list(after)
        at = data.draw(st.integers(0, len(wrong) - 1))
        moved = wrong[at]
        if how != "double":
            del wrong[at]
        if how != "drop":
            there = st.integers(0, len(wrong))
            wrong.insert(data.draw(there if how == "double" else there.filter(at.__ne__)), moved)
        new = write(tmp_path / "new.warc.gz", wrong, plain=plain)
        found = compared(old, new)
        assert {"record-missing", "record-extra"} & reasons(found)
        assert all(finding.level == LOSS for finding in found if finding.reason in CHANGED)

    change()


def test_equal_records_are_never_inflated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = noise(0, 5000)
    before = [page(n % 28 + 1, noise(n, 5000)) for n in range(2, 400)]
    before = [page(1, body), *before[:200], page(29, body), *before[200:]]
    after = [copy_of(29, 1, body) if r == page(29, body) else r for r in before]
    old = write(tmp_path / "old.warc.gz", before)
    new = write(tmp_path / "new.warc.gz", after)
    inflated: list[int] = []
    real = file_bytes.GzipReader.__init__

    def counted(self: file_bytes.GzipReader, file: object, offset: int) -> None:
        inflated.append(offset)
        real(self, file, offset)  # type: ignore[arg-type]

    monkeypatch.setattr(file_bytes.GzipReader, "__init__", counted)
    findings = list(verify_pair(old, new, lambda wanted: [OriginalHint(new, 0)]))
    assert findings == []
    assert len(set(inflated)) < 60 < len(before)


def embedded(outer: int, inner: list[bytes]) -> bytes:
    """A member that holds an archive as its payload, byte for byte."""
    return gz(page(outer, b"".join(map(gz, inner))), level=0)


def test_an_archive_in_a_payload_is_not_taken_for_members(tmp_path: Path) -> None:
    """A rewriter that mistakes the payload's members for the file's ruins the outer member."""
    inner = [page(11), page(12), page(13)]
    whole = [gz(page(1)), embedded(2, inner), gz(page(3))]
    ruined = whole[1].replace(gz(inner[1]), gz(copy_of(12, 11)))
    assert ruined != whole[1]
    old, new = tmp_path / "old.warc.gz", tmp_path / "new.warc.gz"
    old.write_bytes(b"".join(whole))
    new.write_bytes(whole[0] + ruined + whole[2])
    assert "damaged-member" in reasons(compared(old, new))
    new.write_bytes(b"".join(whole))
    assert compared(old, new) == []


def test_an_original_in_a_payload_does_not_count(tmp_path: Path) -> None:
    old, new = tmp_path / "old.warc.gz", tmp_path / "new.warc.gz"
    held = embedded(5, [page(1)])
    old.write_bytes(held + gz(page(2)) + gz(page(3)))
    new.write_bytes(held + gz(copy_of(2, 1)) + gz(page(3)))
    assert reasons(compared(old, new)) == {"original-missing"}
    other = write(tmp_path / "other.warc.gz", [page(1)])
    assert compared(old, new, other) == []
    plain_old, plain_new = tmp_path / "old.warc", tmp_path / "new.warc"
    held = page(5, page(1))
    plain_old.write_bytes(held + page(2) + page(3))
    plain_new.write_bytes(held + copy_of(2, 1) + page(3))
    found = list(
        verify_pair(plain_old, plain_new, lambda _: [OriginalHint(plain_new, held.find(page(1)))])
    )
    assert reasons(found) == {"original-missing"}


def test_damage_of_the_old_file_is_accepted(tmp_path: Path) -> None:
    hurt = bytearray(gz(page(4, noise(4, 3000))))
    hurt[300] ^= 1
    tail = bytes(hurt) + gz(page(5, noise(5, 90_000))) + b"\0" * 99
    old, new = tmp_path / "old.warc.gz", tmp_path / "new.warc.gz"
    old.write_bytes(gz(page(1)) + gz(page(2)) + tail)
    new.write_bytes(gz(page(1)) + gz(copy_of(2, 1)) + tail)
    assert compared(old, new) == []
    new.write_bytes(gz(page(1)) + gz(copy_of(2, 1)) + tail[:-1])
    assert reasons(compared(old, new)) == {"bytes-changed"}


@pytest.mark.parametrize("plain", [False, True], ids=["gzip", "plain"])
def test_a_damaged_original_is_named(plain: bool, tmp_path: Path) -> None:
    """The finding names the original's file, and the records after the revisit are compared."""
    original = page(1, noise(1, 3000)) if plain else gz(page(1, noise(1, 3000)))
    cut = tmp_path / "other.warc"
    cut.write_bytes(original[:2000])
    before = [page(2, noise(1, 3000)), page(3), page(4)]
    after = [copy_of(2, 1, noise(1, 3000)), page(3), page(5)]
    old = write(tmp_path / "old.warc.gz", before, plain=plain)
    new = write(tmp_path / "new.warc.gz", after, plain=plain)

    def compare(*files: Path) -> list[tuple[str, str]]:
        places = [OriginalHint(file, 0) for file in files]
        return [(one.reason, one.message) for one in verify_pair(old, new, lambda _: places)]

    (reason, message), *rest = compare(cut)
    assert reason == "original-damaged"
    assert message.startswith(f"its original, {cut} at 0, cannot be read: ")
    assert [reason for reason, _ in rest] == ["record-missing", "record-extra"]
    sound = write(tmp_path / "sound.warc.gz", [page(1, noise(1, 3000))])
    assert compare(cut, sound) == rest
    other = write(tmp_path / "another.warc.gz", [page(1, noise(2, 3000))])
    reason_of_other, message_of_other = compare(other)[0]
    assert reason_of_other == "not-rebuilt"
    assert f"its original, {other} at 0, " in message_of_other
    for files in ((cut, other), (other, cut)):
        assert compare(*files)[0] == (reason, message)


def test_an_original_that_cannot_be_read_is_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can tell whether it is damaged: its disk or store does not answer."""
    body = noise(1, 300_000)
    original = write(tmp_path / "other.warc", [page(1, body)], plain=True)
    old = write(tmp_path / "old.warc.gz", [page(2, body)])
    new = write(tmp_path / "new.warc.gz", [copy_of(2, 1, body)])
    read = file_bytes.File.read

    def fails(self: file_bytes.File, offset: int, size: int) -> bytes:
        if self.path == original and offset > 100_000:
            raise file_bytes.UnreadableFile("Input/output error")
        return read(self, offset, size)

    monkeypatch.setattr(file_bytes.File, "read", fails)
    (found,) = verify_pair(old, new, lambda _: [OriginalHint(original, 0)])
    assert found.reason == "unreadable"
    assert f"its original, {original} at 0, cannot be read: Input/output error" in found.message


def test_other_kinds_of_files_must_be_equal(tmp_path: Path) -> None:
    old, new = tmp_path / "old.arc", tmp_path / "new.arc"
    old.write_bytes(b"filedesc://x 0.0.0.0 20261101000000 text/plain 0\n\n")
    new.write_bytes(old.read_bytes() + b"\n")
    assert reasons(compared(old, new)) == {"bytes-changed"}
    new.write_bytes(old.read_bytes())
    assert compared(old, new) == []


def test_a_record_larger_than_memory_takes_little(tmp_path: Path) -> None:
    body = bytes(64 << 20)
    old = write(tmp_path / "old.warc.gz", [page(1, body), page(2, body)])
    new = write(tmp_path / "new.warc.gz", [page(1, body), copy_of(2, 1, body)])
    del body
    tracemalloc.start()
    assert compared(old, new) == []
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_our_own_rewriter_passes(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    small_set(source)
    assert total(run(RewriteJob(FakePlan(source), out))).revisits == 19
    assert list(Against(source, [out]).findings()) == []
    assert list(Collection([out]).findings()) == []
    assert reasons(list(Against(out, [source]).findings())) == {"record-changed"}


def test_folders_are_compared_file_by_file(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    write(old / "a.warc.gz", [page(1)])
    write(old / "deep" / "b.warc.gz", [page(2), asked(2)])
    write(new / "a.warc.gz", [page(1)])
    write(new / "deep" / "b.warc.gz", [copy_of(2, 1), asked(2)])
    assert list(Against(old, [new]).findings()) == []
    typed("verify", "--against", old, new)
    (old / "notes.txt").write_text("no archive")
    _, talk = typed("verify", "--against", old, new)
    assert f"all that the archives in {old} held is there" in talk
    assert "1 file that is no archive is not compared: notes.txt" in talk
    lines, _ = typed("verify", "--against", old, new, "--json")
    assert '"not_compared":1,"not_compared_files":["notes.txt"]' in lines
    write(old / "c.warc.gz", [page(3)])
    write(new / "d.warc.gz", [page(4)])
    assert reasons(list(Against(old, [new]).findings())) == FILES
    lines, talk = typed("verify", "--against", old, new, status=8)
    assert "file-missing" in lines
    assert "2 files" in talk
    (new / "a.warc.gz").unlink()
    elsewhere = write(tmp_path / "elsewhere.warc.gz", [page(1)])
    assert "original-missing" in reasons(list(Against(old, [new]).findings()))
    assert "original-missing" not in reasons(list(Against(old, [new], [elsewhere]).findings()))


def test_links_to_directories_are_followed(tmp_path: Path) -> None:
    """As `bin/dedup` follows them, in every place; each directory is entered once."""
    old, new, far = tmp_path / "old", tmp_path / "new", tmp_path / "far"
    write(old / "a.warc.gz", [page(1)])
    linked = write(far / "2025" / "b.warc.gz", [page(2, b"other")])
    for place, target in (("2025", "2025"), ("2026", "2025"), ("loop", "../old")):
        (old / place).symlink_to(far / target)
    typed("dedup", old, "--out", new)
    result = new / "2025" / "b.warc.gz"
    assert not (new / "2026").exists()
    for against in (old, f"{old}/[a2]*"):
        assert typed("verify", "--against", against, new)[1].startswith("2 files")
    kept = result.rename(far / "kept.warc.gz")
    for against in (old, f"{old}/20*"):
        assert "file-missing" in typed("verify", "--against", against, new, status=8)[0]

    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "link").symlink_to(far)
    (new / "2025").rmdir()
    (new / "2025").symlink_to(far / "2025")
    linked.unlink()
    kept.rename(linked)
    assert typed("verify", "--against", old, new, "--records")[1].startswith("2 files")
    write(new / "c.warc.gz", [copy_of(3, 2, b"other")])
    typed("verify", new)
    (new / "2025").unlink()
    assert "dangling" in typed("verify", new, status=8)[0]
    typed("verify", new, "--originals", tmp_path / "found")


def test_a_glob_does_not_see_the_links_beside_what_it_matches(tmp_path: Path) -> None:
    write(tmp_path / "old" / "2025" / "a.warc.gz", [page(1)])
    (tmp_path / "old" / "2").symlink_to("2025")
    (tmp_path / "new").mkdir()
    words = ("verify", "--against", tmp_path / "old" / "202*", tmp_path / "new")
    assert "2025/a.warc.gz is" in typed(*words, status=8)[0]


def test_unreadable_archives_are_compared(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        write(folder / "a.warc.gz", [page(1)])
    odd = {
        "x.warc.zst": b"\x28\xb5\x2f\xfd zstd", "DEEP/Y.WARC.BZ2": b"BZh9", "cut.arc.gz": b"\0",
        "z.warc.gz.open": b"\0\0",
    }  # fmt: skip
    for name, data in odd.items():
        (old / name).parent.mkdir(exist_ok=True)
        (old / name).write_bytes(data)
    for name in ("a.warc.gz.cdx", "a.warc.gz.sha256", "README.txt", "archive"):
        (old / name).write_bytes(b"beside")
    missing = list(Against(old, [new]).findings())
    assert {Path(one.file).name for one in missing} == {Path(name).name for name in odd}
    assert reasons(missing) == {"file-missing"}
    for name, data in odd.items():
        (new / name).parent.mkdir(exist_ok=True)
        (new / name).write_bytes(data)
    assert list(Against(old, [new]).findings()) == []
    (new / "x.warc.zst").write_bytes(b"")
    assert reasons(list(Against(old, [new]).findings())) == {"bytes-changed"}


def test_losses_by_other_tools_are_reported(tmp_path: Path) -> None:
    """Another id, no Truncated, profile and version 1.0, a date cut to seconds."""
    fine = b"2026-11-02T09:14:17.5Z"
    old = write(
        tmp_path / "old.warc.gz",
        [page(1), page(2, version=NEW, Date=fine), asked(2), request(number=7)],
    )
    wrong = copy_of(
        2, 1, Record_ID=record_id(55), Truncated=None, Date=fine[:-3] + b"Z", Block_Digest=None
    )
    new = write(tmp_path / "new.warc.gz", [page(1), wrong, asked(2), request(number=7)])
    found = reasons(compared(old, new))
    assert {"id-changed", "version-changed", "date-changed", "not-truncated"} <= found
    assert "record-missing" not in found


def test_a_part_of_a_document_is_named(tmp_path: Path) -> None:
    ranged = HTTP.replace(b"OK\r\n", b"OK\r\nContent-Range: bytes 0-9/99\r\n", 1)
    old = write(tmp_path / "old/a.warc.gz", [page(1, head=ranged), page(2, head=ranged)])
    new = [page(1, head=ranged), copy_of(2, 1, head=ranged)]
    assert reasons(compared(old, write(tmp_path / "new/a.warc.gz", new))) == {"partial"}


def test_damage_in_a_result_alone_is_loss(tmp_path: Path) -> None:
    """Else the status of a worse result were that of known damage, which jobs take for done."""
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        for name in "abcd":
            write(folder / f"{name}.warc.gz", [page(1), page(2, noise(2, 400)), page(3)])
    whole = (old / "a.warc.gz").read_bytes()
    spoilt = whole[:600] + bytes(20) + whole[620:]
    (new / "a.warc.gz").write_bytes(spoilt)
    assert "damage\t" in typed("verify", "--against", old, new, status=8)[0]
    (new / "b.warc.gz").unlink()
    assert "file-missing" in typed("verify", "--against", old, new, status=8)[0]
    (old / "a.warc.gz").write_bytes(spoilt)  # damage that both have is not counted
    typed("verify", "--against", old, new, status=8)
    typed("verify", "--against", old / "a.warc.gz", new / "a.warc.gz")
