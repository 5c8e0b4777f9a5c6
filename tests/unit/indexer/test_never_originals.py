"""A record that was read and refused is no original, whatever rows and revisits claim."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import permutations
from pathlib import Path
from zipfile import ZipFile

import pytest

from dedupindex.index import open_index
from dedupindex.index.identity import Settings
from dedupindex.indexer.pipeline import Build, Built, build
from dedupindex.timestamps import digits_of_date
from tests.support.warc_cases import (
    DATE,
    HTTP,
    URL,
    gz,
    record_id,
    request,
    response,
    revisit,
    sha1,
)

PAYLOAD = b"payload"
LATER = b"2026-11-21T09:14:17Z"
PARTIAL = b"HTTP/1.1 206 Partial Content\r\nContent-Type: text/html\r\n\r\n"
ANY = Settings(mime=".*", whitelist=True)


def damaged() -> bytes:
    """A whole record of another URL, and one whose end is missing."""
    whole = gz(response(bytes(range(256)), number=7, Target_URI=b"http://example.com/first"))
    return whole + whole[:-100]


REFUSED: dict[str, Callable[[], bytes]] = {
    "truncated": lambda: gz(response(PAYLOAD, Truncated=b"length")),
    "digest-mismatch": lambda: gz(response(b"other", Payload_Digest=sha1(PAYLOAD))),
    "method": lambda: (
        gz(response(PAYLOAD, Concurrent_To=b"<urn:x:post>"))
        + gz(request(b"POST", Record_ID=b"<urn:x:post>"))
    ),
    "partial": lambda: gz(response(PAYLOAD, head=PARTIAL)),
    "behind-damage": lambda: damaged() + gz(response(PAYLOAD)),
    "segmented": lambda: gz(response(PAYLOAD, Segment_Number=b"1")),
    "shared-member": lambda: gz(
        response(b"first", Target_URI=b"http://example.com/first") + response(PAYLOAD, number=7)
    ),
    "unresolved-revisit": lambda: gz(
        revisit(HTTP, Date=DATE, Refers_To_Target_URI=None, Refers_To_Date=None)
    ),
}


def claim() -> bytes:
    """A revisit of another URL that names the refused record."""
    return gz(
        revisit(
            number=9,
            Target_URI=b"http://example.net/copy",
            Date=LATER,
            Refers_To_Target_URI=URL,
            Refers_To_Date=DATE,
        )
    )


def row() -> bytes:
    """A line of a CDX beside the file."""
    digest = sha1(PAYLOAD).removeprefix(b"sha1:")
    fields = (digits_of_date(DATE), URL, digest)
    return (
        b" CDX N b a m s k r M S V g\n- %b %b text/html 200 %b - - 90 0 refused.warc.gz\n" % fields
    )


@pytest.fixture(params=REFUSED)
def reason(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(index: Path, *sources: Path, add: bool = False, settings: Settings = ANY) -> Built:
    return build(Build([str(source) for source in sources], index, settings, add=add))


def originals(index: Path) -> list[bytes]:
    """Dates of what would be answered for the URL of the refused record."""
    with closing(open_index(index)) as engine, engine.view() as view:
        assert engine.check() == []
        return [capture.date for _, capture in view.captures() if capture.url == URL]


def write(folder: Path, reason: str) -> tuple[Path, Path, Path]:
    paths = folder / "refused.warc.gz", folder / "claim.warc.gz", folder / "beside.cdx"
    for path, data in zip(paths, (REFUSED[reason](), claim(), row()), strict=True):
        path.write_bytes(data)
    return paths


def test_without_the_refused_record_rows_are_originals(tmp_path: Path) -> None:
    """Otherwise the tests below would prove nothing."""
    _, named, beside = write(tmp_path, "truncated")
    run(tmp_path / "named", named)
    run(tmp_path / "beside", beside)
    assert originals(tmp_path / "named") == originals(tmp_path / "beside") == [DATE]


@pytest.mark.parametrize("keep", ["earliest", "latest"])
def test_in_one_build(reason: str, keep: str, tmp_path: Path) -> None:
    settings = Settings(mime=".*", whitelist=True, keep=keep)
    built = run(tmp_path / "index", *write(tmp_path, reason), settings=settings)
    assert originals(tmp_path / "index") == []
    assert built.tally.refused[reason] == 1
    assert built.tally.refused["refers-to-revisit"] == 1
    assert built.tally.refused["contradicted"] == 1


def test_in_one_file(reason: str, tmp_path: Path) -> None:
    for number, parts in enumerate(permutations([REFUSED[reason](), claim()])):
        path = tmp_path / f"{number}.warc.gz"
        path.write_bytes(b"".join(parts))
        run(tmp_path / f"index{number}", path)
        assert originals(tmp_path / f"index{number}") == []


def test_in_any_order_with_add(reason: str, tmp_path: Path) -> None:
    for number, paths in enumerate(permutations(write(tmp_path, reason))):
        index = tmp_path / f"index{number}"
        for step, path in enumerate(paths):
            run(index, path, add=step > 0)
        assert originals(index) == []


def test_a_read_record_named_by_its_id_is_no_revisit(tmp_path: Path) -> None:
    """Crawlers overlap: one stored a revisit of the URL before another stored the response."""
    early, late = b"2026-11-20T09:14:15Z", b"2026-11-23T09:14:17Z"
    other = gz(revisit(HTTP, number=4, Target_URI=URL, Date=early))  # of another URL's capture
    stored = gz(response(PAYLOAD))
    named = {"Refers_To_Target_URI": URL, "Refers_To_Date": DATE, "Date": late, "number": 9}
    beside = b"http://example.net/copy"
    by_id = gz(revisit(Target_URI=beside, Refers_To=record_id(1), **named))
    by_other = gz(revisit(Target_URI=beside, Refers_To=record_id(4), **named))
    without = gz(revisit(Target_URI=beside, **named))
    for at, (claims, chained) in enumerate(
        [([by_id], 0), ([without], 1), ([by_other], 1), ([by_id, by_other, by_id], 1)]
    ):
        own, others = tmp_path / f"own{at}.warc.gz", tmp_path / f"other{at}.warc.gz"
        own.write_bytes(stored + b"".join(claims))
        others.write_bytes(other)
        built = run(tmp_path / f"index{at}", own, others)
        assert built.tally.refused.get("refers-to-revisit", 0) == chained
        assert originals(tmp_path / f"index{at}") == [DATE]
        for step, path in enumerate((others, own)):  # and where the record comes later
            built = run(tmp_path / f"later{at}", path, add=step > 0)
        assert built.tally.refused.get("refers-to-revisit", 0) == chained
        assert originals(tmp_path / f"later{at}") == [DATE]
    # Of a record that nobody has read only its id is known, and it may be a revisit itself.
    alone = tmp_path / "alone.warc.gz"
    alone.write_bytes(other + by_id)
    assert run(tmp_path / "alone", alone).tally.refused["refers-to-revisit"] == 1
    assert DATE not in originals(tmp_path / "alone")


def test_only_what_stands_before_the_damage_is_an_original(tmp_path: Path) -> None:
    """Replay tools read a file up to its first damage, and each file of a WACZ by itself."""
    before, behind = b"http://example.com/before", b"http://example.com/behind"
    first_url = b"http://example.com/first"
    parts = [
        gz(response(b"one", number=2, Target_URI=before)), damaged(),
        gz(response(b"two", number=3, Target_URI=behind)),
    ]  # fmt: skip
    first, second = tmp_path / "first.warc.gz", tmp_path / "second.warc.gz"
    first.write_bytes(b"".join(parts))
    second.write_bytes(gz(response(PAYLOAD)))
    packed = tmp_path / "both.wacz"
    with ZipFile(packed, "w") as container:
        for path in (first, second):
            container.write(path, f"archive/{path.name}")
    zeros = tmp_path / "zeros.warc"
    zeros.write_bytes(response(b"one", Target_URI=before) + bytes(512) + response(PAYLOAD))
    for number, (sources, urls) in enumerate(
        [
            ([first, second], {before, first_url, URL}),
            ([packed], {before, first_url, URL}),
            ([zeros], {before}),
        ]
    ):
        index = tmp_path / f"index{number}"
        built = run(index, *sources)
        with closing(open_index(index)) as engine, engine.view() as view:
            assert {capture.url for _, capture in view.captures()} == urls
        assert built.tally.refused["behind-damage"] == 1
