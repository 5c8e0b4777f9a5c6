"""``bin/verify`` reports what other deduplicators lose, and accepts correct output.

Each defect was met in their own outputs. jwarc comes from Maven Central; warchaeology and
warcdedupe from no registry, so they are tried where they are installed. What others did that need
more to run (warccollres, warcrefs, crocoite, ArchiveTeam) is made here, byte for byte.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dedupindex.verify.collection import Collection
from dedupindex.verify.compare_collections import Against
from dedupindex.verify.issues import BROKEN, LOSS, REASONS, REMARK
from tests.integration.test_server_live import serving
from tests.peers.environments import built
from tests.peers.test_jwarc import jwarc
from tests.support.verifying import BODY, HOST, asked, copy_of, page, reasons, write
from tests.support.warc_cases import record_id, sha1
from tests.unit.cli.test_cli import dedupindex
from tests.unit.post_crawl.test_compare_payloads import SHATTERED

pytestmark = pytest.mark.peer
OTHER = BODY[::-1]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nSet-Cookie: a=%d\r\n\r\n"
FINE = b"2026-11-%02dT09:14:17.25Z"


def shot(number: int, body: bytes = BODY, **options: Any) -> bytes:
    """A page with all fields of a crawler, and a Content-Length: else jwarc ignores it."""
    options = {
        "IP_Address": b"192.0.2.1",
        "Warcinfo_ID": record_id(900),
        "Concurrent_To": record_id(100 + number),
        "head": HEAD % (len(body), number),
        **options,
    }
    return page(number, body, **options)


def fine(number: int) -> bytes:
    """A page of WARC/1.1, captured within a second."""
    return shot(number, Date=FINE % number, version=b"WARC/1.1")


PAIR = [block + BODY for block in SHATTERED]
SETS: dict[str, list[bytes]] = {
    "right": [shot(1), asked(1), shot(2), asked(2), shot(3, OTHER), asked(3)],
    "collision": [shot(1, PAIR[0]), shot(2, PAIR[1])],
    "a copy that states the digest of another": [
        shot(1), shot(2, OTHER, Payload_Digest=sha1(BODY)),
    ],
    "an original that states the digest of another": [
        shot(1, OTHER, Payload_Digest=sha1(BODY)), shot(2),
    ],
    "fractions of seconds": [fine(1), fine(2)],
    "brackets of wget": [
        shot(number, Target_URI=b"<" + HOST + b"%d>" % number) for number in (1, 2)
    ],
    "the later one first": [shot(2), shot(1)],
    "nothing to gain": [shot(1, b"x"), shot(2, b"x")],
}  # fmt: skip


def jwarc_dedupe(old: Path, new: Path) -> None:
    shutil.copyfile(old, new)
    jwarc("dedupe", "-j", "1", "--cache-size", "1000", new.name, folder=new.parent)
    new.with_name(new.name.replace(".warc", "-dedup.warc")).replace(new)


def warchaeology(old: Path, new: Path, *, lenient: bool = False) -> None:
    words = [built("warchaeology"), "dedup", "--one-to-one", "--deterministic", "-g", "0"]
    more = [
        "-w",
        new.parent,
        "--index-dir",
        new.parent / "index",
        "-K",
        *["--lenient"][:lenient],
        old,
    ]
    subprocess.run([*words, *more], check=False, capture_output=True)
    (made,) = new.parent.glob("*.warc.gz")
    made.rename(new)


def warcdedupe(old: Path, new: Path) -> None:
    subprocess.run([built("warcdedupe"), "--disable-progress", old, new], check=True)


_JWARC = {"id-changed", "field-lost", "field-changed", "not-truncated"}
_ANEW = {"recompressed", "digest-form"}
_FOREIGN = {"refers-to-brackets", "profile-version"}
FOUND: dict[str, dict[str, tuple[set[str], set[str]]]] = {
    # tool: set: what is said of its output alone, and beside what it was made from
    "jwarc": {
        "right": ({"not-truncated"}, _JWARC),
        "collision": ({"not-truncated"}, {*_JWARC, "not-rebuilt"}),
        "a copy that states the digest of another": (
            {"not-truncated"},
            {*_JWARC, "not-rebuilt"},
        ),
        "an original that states the digest of another": (
            {"not-truncated", "payload-digest", "wrong-digest"},
            {*_JWARC, "not-rebuilt"},
        ),
        "fractions of seconds": (
            {"not-truncated", "date-spelling"},
            {*_JWARC, "version-changed", "date-changed", "date-spelling"},
        ),
        "brackets of wget": ({"not-truncated"}, {*_JWARC, "uri-changed"}),
        "the later one first": ({"not-truncated", "later-original"}, {*_JWARC, "later-original"}),
        "nothing to gain": (set(), set()),
    },
    "warchaeology": {
        "right": (set(), _ANEW),
        "collision": (set(), {*_ANEW, "not-rebuilt"}),
        "a copy that states the digest of another": (set(), {*_ANEW, "not-rebuilt"}),
        "an original that states the digest of another": (
            {"payload-digest", "wrong-digest"},
            {*_ANEW, "not-rebuilt"},
        ),
        "fractions of seconds": ({"date-spelling"}, {*_ANEW, "date-spelling"}),
        "brackets of wget": (
            {"no-target-uri", "no-refers-to-uri"},
            {"uri-changed", "record-changed", "digest-form", "no-target-uri", "no-refers-to-uri"},
        ),
        "the later one first": ({"later-original"}, {*_ANEW, "later-original"}),
        "nothing to gain": (set(), {"recompressed"}),
    },
    "warchaeology --lenient": {
        "right": ({"misframed"}, {"misframed"}),
    },
    "warcdedupe": {
        "right": (_FOREIGN, {*_FOREIGN, "field-lost"}),
        "collision": (_FOREIGN, {*_FOREIGN, "field-lost", "not-rebuilt"}),
        "a copy that states the digest of another": ({"payload-digest"}, set()),
        "an original that states the digest of another": ({"payload-digest"}, set()),
        "fractions of seconds": (set(), {"field-lost"}),
        "brackets of wget": (_FOREIGN, {*_FOREIGN, "field-lost"}),
        "the later one first": (
            {*_FOREIGN, "later-original"},
            {*_FOREIGN, "field-lost", "later-original"},
        ),
        "nothing to gain": (_FOREIGN, {*_FOREIGN, "field-lost", "larger"}),
    },
}
TOOLS = {
    "jwarc": jwarc_dedupe,
    "warchaeology": warchaeology,
    "warchaeology --lenient": partial(warchaeology, lenient=True),
    "warcdedupe": warcdedupe,
}
Tool = Callable[[Path, Path], None]


def verdicts(tool: Tool, records: list[bytes], folder: Path) -> tuple[set[str], set[str], int]:
    """Return what verify finds in the output, and against the input; and the number of revisits."""
    old = write(folder / "old/x.warc.gz", records)
    new = folder / "new/x.warc.gz"
    new.parent.mkdir()
    tool(old, new)
    alone = Collection([new])
    said = reasons(list(alone.findings()))
    return said, reasons(list(Against(old, [new]).findings())), alone.revisits


@pytest.mark.parametrize("name", list(FOUND))
def test_verify_reports_what_each_tool_loses(name: str, tmp_path: Path) -> None:
    for number, (what, (alone, beside)) in enumerate(FOUND[name].items()):
        (tmp_path / str(number)).mkdir()
        said, compared, _ = verdicts(TOOLS[name], SETS[what], tmp_path / str(number))
        assert (said, compared) == (alone, beside), what


def test_defects_that_lose_pages_are_losses() -> None:
    """A defect that makes readers lose a page is reported with exit status 8."""
    lost = ("not-rebuilt", "self-reference", "field-lost", "headers-changed", "uri-changed")
    assert {REASONS[reason] for reason in (*lost, "id-changed", "date-changed")} == {LOSS}
    assert {REASONS[reason] for reason in ("refers-to-brackets", "no-target-uri")} == {BROKEN}
    assert {REASONS[reason] for reason in ("not-truncated", "later-original")} == {REMARK}


def copied(number: int, original: int = 1, **options: Any) -> bytes:
    """The revisit that a shot becomes, with nothing lost."""
    fields = {
        "IP_Address": b"192.0.2.1",
        "Warcinfo_ID": record_id(900),
        "Concurrent_To": record_id(100 + number),
        "head": HEAD % (len(BODY), number),
    }
    return copy_of(number, original, **{**fields, **options})


_WARCREFS = {"Refers_To": None, "Truncated": None, "Block_Digest": None, "Concurrent_To": None}
_BARE = (HEAD % (len(BODY), 2)).replace(b"\r\n", b"\n").removesuffix(b"\n")
MADE: dict[str, tuple[list[bytes], set[str], set[str]]] = {
    "nothing": ([shot(1), copied(2)], set(), set()),
    "warccollres -p: its own URL and date": (
        [shot(1), copied(2, 2, **_WARCREFS)],
        {"self-reference"},
        {"original-missing", "field-lost"},
    ),
    "warcrefs: another HTTP header": (
        [shot(1), copied(2, **_WARCREFS, block=_BARE)],
        {"http-headers", "not-truncated", "no-refers-to"},
        {"headers-changed", "field-lost"},
    ),
    "crocoite-merge-warc: the date of today": (
        [shot(1), copied(2, Date=b"2031-01-01T00:00:00Z", Concurrent_To=None)],
        set(),
        {"date-changed", "field-lost"},
    ),
    "crocoite-merge-warc: another record id": (
        [shot(1), copied(2, Record_ID=record_id(77))],
        set(),
        {"id-changed"},
    ),
    "ArchiveTeam: records written anew": (
        [shot(1, X_Added=b"a"), copied(2)],
        set(),
        {"record-changed"},
    ),
}


@pytest.mark.parametrize("what", list(MADE))
def test_verify_reports_known_defects(what: str, tmp_path: Path) -> None:
    made, alone, beside = MADE[what]

    def tool(old: Path, new: Path) -> None:
        write(new, made)

    said, compared, revisits = verdicts(tool, [shot(1), shot(2)], tmp_path)
    assert (alone <= said, beside <= compared, revisits) == (True, True, 1)
    if what == "nothing":
        assert said == compared == set()


def test_jwarc_with_an_index_that_knows_the_file(tmp_path: Path) -> None:
    """It finds every record itself there, and makes it a revisit of itself."""
    path = write(tmp_path / "x.warc.gz", [shot(1), shot(2, OTHER)])
    dedupindex("index", "--by-url", "-w", "-m", ".*", path, tmp_path / "index")
    with serving(tmp_path / "index") as server:
        url = f"http://127.0.0.1:{server.port}/cdx"
        jwarc("dedupe", "--cdx-server", url, path.name, folder=tmp_path)
    alone = Collection([tmp_path / "x-dedup.warc.gz"])
    findings = list(alone.findings())
    assert [one.reason for one in findings if one.level == LOSS] == ["self-reference"] * 2
    found = list(Against(path, [tmp_path / "x-dedup.warc.gz"]).findings())
    assert [one.reason for one in found].count("original-missing") == 2
