"""What an index counts of an archive is the same before and after ``bin/dedup``."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dedupindex.crawls.compare_crawls import CHANGES
from dedupindex.index import open_index
from dedupindex.index.summary import summarize
from tests.support.commands import typed
from tests.support.warc_cases import NOT_MODIFIED, gz, response, revisit, sha1

PNG = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n"
HEADS = {
    "png": PNG,
    "html": PNG.replace(b"image/png", b"text/html; charset=utf-8"),
    "missing": PNG.replace(b"200 OK", b"404 Not Found"),
    "moved": PNG.replace(b"200 OK", b"203 Elsewhere"),
}
FIRST = b"http://a.test/png0"


def crawl(path: Path, seed: int, day: int, *, mixed: bool) -> None:
    """A crawl of a day, with few payloads, at URLs that the other has, too.

    `mixed`: responses of all kinds have the same payloads.
    """
    choose = Random(100 * seed + day)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as stream:
        for number in range(60):
            kind = choose.choice(list(HEADS))
            body = Random(f"{'' if mixed else kind}{choose.randrange(6)}").randbytes(2000)
            url = f"http://{choose.choice('ab')}.test/{kind}{choose.randrange(15)}".encode()
            date = b"2026-01-%02dT00:00:%02dZ" % (day, number)
            stream.write(gz(response(
                body, head=HEADS[kind], Target_URI=url, Date=date, number=1000 * day + number
            )))  # fmt: skip


def reports(index: Path, sources: Path) -> tuple[dict[str, int], dict[str, int]]:
    """What a comparison and ``bin/index --stats`` count, whether stored or as a revisit."""
    typed("index", "--crawl", "old", sources / "1.warc.gz", index)
    typed("index", "--add", "--crawl", "new", sources / "2.warc.gz", index)
    total = json.loads(typed("report", index, "--crawl", "new", "--compare", "old", "--json")[0])
    compared = total["total"]
    shown = {f"{name}{end}": compared[f"{name}{end}"] for name in CHANGES for end in ("", "_bytes")}
    for side in ("first", "second"):
        shown[side] = compared[f"{side}_stored"] + compared[f"{side}_revisits"]
    with closing(open_index(index)) as engine:
        held = summarize(engine)["total"]
    return shown, {
        "visits": held["captures"] + held["revisits"],
        "bytes": held["bytes"] + held["revisit_bytes"],
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mixed", [False, True])
def test_reports_are_the_same_after_dedup(seed: int, mixed: bool, tmp_path: Path) -> None:
    for day in (1, 2):
        crawl(tmp_path / f"set/{day}.warc.gz", seed, day, mixed=mixed)
    before = reports(tmp_path / "before", tmp_path / "set")
    more = ["--any-status"] if mixed else []
    done = json.loads(
        typed("dedup", tmp_path / "set", "--out", tmp_path / "out", *more, "--json")[0]
    )
    assert done["revisits"] > 30
    after = reports(tmp_path / "after", tmp_path / "out")
    if mixed:  # of some payloads the index has no record any more, and so no size
        before, after = (
            ({name: count for name, count in compared.items() if "bytes" not in name}, {})
            for compared, _ in (before, after)
        )
    assert after == before


def indexed(directory: Path, *records: bytes) -> Path:
    (directory / "x.warc.gz").write_bytes(b"".join(map(gz, records)))
    typed("index", directory / "x.warc.gz", directory / "index")
    return directory / "index"


def counted(index: Path) -> tuple[int, int]:
    with closing(open_index(index)) as engine:
        total = summarize(engine)["total"]
    return total["captures"], total["revisits"]


def of_first(head: bytes, day: int, **options: Any) -> bytes:
    """A revisit of the first response; its URL is another."""
    return revisit(
        head, Target_URI=b"http://a.test/again%d" % day, Payload_Digest=sha1(b"png"), number=day,
        Date=b"2026-01-%02dT00:00:00Z" % day, Refers_To_Target_URI=FIRST,
        Refers_To_Date=b"2026-01-01T00:00:00Z", **options,
    )  # fmt: skip


def test_purging_knows_the_revisits_that_are_not_counted(tmp_path: Path) -> None:
    """As ``bin/dedup --any-status`` writes them: the original is in the index."""
    first = response(b"png", head=PNG, Target_URI=FIRST, Date=b"2026-01-01T00:00:00Z")
    index = indexed(tmp_path, first, of_first(HEADS["missing"], 2), of_first(PNG, 3))
    assert counted(index) == (1, 1)
    found = json.loads(typed("impact", index, "--url", FIRST.decode(), "--json")[0])
    assert found["dependents"]["captures"] == 2


def test_what_a_url_answered_304_is_counted(tmp_path: Path) -> None:
    """Its status is not that of the payload; nor need a revisit state any."""
    first = response(b"png", head=PNG, Target_URI=FIRST, Date=b"2026-01-01T00:00:00Z")
    unchanged = of_first(b"HTTP/1.1 304 Not Modified\r\n\r\n", 2, Profile=NOT_MODIFIED)
    assert counted(indexed(tmp_path, first, unchanged, of_first(b"", 3))) == (1, 2)
