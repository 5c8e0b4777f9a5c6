"""Records read by their ranges are those that reading a file in order finds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dedupindex.warc.random_access import FIRST, Read, RecordAt, Unreadable, record_at
from dedupindex.warc.reader import read
from dedupindex.warc.record import BrokenRecord, Record
from dedupindex.warc.window import open_window
from tests.support.warc_cases import DATA, gz, response
from tests.unit.warc.test_arc import V1, V2, document, header

FILES = sorted(path for path in DATA.iterdir() if "arc" in path.suffixes[0][1:])
MOST = 32 << 20


def reading(data: bytes) -> Read:
    return lambda offset, count: data[offset : offset + count]


def in_order(path: Path) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Offset, bytes, header and block of every record that an offset leads to."""
    with closing(open_window(path.name, path)) as window:
        for event in read(window):
            if isinstance(event, Record) and not event.shared:
                try:
                    block = b"".join(map(bytes, event.pieces()))
                    event.finish()
                except BrokenRecord:
                    continue
                yield event.offset, event.stored, event.text, block


def parts(found: RecordAt) -> tuple[bytes, bytes]:
    return found.record.text, found.block()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_record_of_the_samples(path: Path) -> None:
    read_at = reading(path.read_bytes())
    for offset, stored, text, block in in_order(path):
        for length in (stored, -1, stored // 2, stored + 1000):
            found = record_at(read_at, offset, length, MOST)
            assert parts(found) == (text, block), (offset, length)
            assert found.raw == path.read_bytes()[offset : offset + len(found.raw)]


@pytest.mark.parametrize("pack", [gz, bytes], ids=["gzip", "plain"])
@pytest.mark.parametrize("size", [0, 10, FIRST, 3 * FIRST, 5 << 20])
def test_long_and_short(pack: type[bytes], size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    one, other = pack(response(body)), pack(response(b"other", number=2))
    read_at = reading(one + other)
    for length in (len(one), -1, 1, len(one) + 10):
        found = record_at(read_at, 0, length, MOST)
        assert found.block().endswith(body)
        assert found.raw == one
    assert record_at(read_at, len(one), -1, MOST).block().endswith(b"other")


@pytest.mark.parametrize(("fields", "more"), [(V1, b""), (V2, b" 200 - - 0 a.arc")])
@pytest.mark.parametrize("pack", [gz, bytes], ids=["gzip", "plain"])
def test_documents_of_arc_files(fields: bytes, more: bytes, pack: type[bytes]) -> None:
    first = pack(header(fields))
    one, two = (
        pack(document(b"page", url=url, more=more)) for url in (b"http://a.org/", b"http://b.org/x")
    )
    read_at = reading(first + one + two)
    found = record_at(read_at, len(first) + len(one), len(two), MOST)
    assert found.record.values[0] == b"http://b.org/x"
    assert found.block().endswith(b"\r\n\r\npage")
    assert record_at(read_at, len(first), -1, MOST).record.values[0] == b"http://a.org/"


def test_offsets_without_a_record() -> None:
    one = gz(response(b"x" * 1000))
    for data, offset in (
        (one, len(one)),  # behind the end
        (one, 5),  # in its midst
        (one[:-20], 0),  # cut
        (one[:40] + b"\0" * 20 + one[60:], 0),  # damaged
        (b"nothing of the kind", 0),
        (response(b"x" * 1000)[:-50], 0),
        (gz(b"nothing of the kind"), 0),
    ):
        with pytest.raises(Unreadable):
            record_at(reading(data), offset, -1, MOST).block()


@pytest.mark.parametrize("pack", [gz, bytes], ids=["gzip", "plain"])
def test_memory_is_limited(pack: type[bytes]) -> None:
    data = pack(response(b"\0" * (2 << 20)))
    asked = []

    def read_at(offset: int, count: int) -> bytes:
        asked.append(count)
        return data[offset : offset + count]

    with pytest.raises(Unreadable, match="longer than the 1,048,576 bytes"):
        record_at(read_at, 0, len(data), 1 << 20)
    assert max(asked) <= 1 << 20
