"""Other readers of the same files: what is sound for them must be the same for us."""

from __future__ import annotations

import gzip
import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator as FastIterator
from warcio.archiveiterator import ArchiveIterator as WarcioIterator

from dedupindex.warc.record import Record
from tests.support.warc_cases import DATA, ask, events_of, gz, record, request, response, revisit

Reader = Callable[[Path], list[tuple[int, str, int]]]
EXPECTED = {  # file -> what becomes of its records, and how many problems are named
    "bad.arc": ({"warcinfo-record": 1, "damaged": 1}, 1),
    "block-sized-records.warc.gz": ({"unknown-record-type": 3}, 0),
    "clipped.warc.gz": ({"damaged": 1}, 1),
    "clueweb-quirk.warc.gz": ({"warcinfo-record": 1, "bad-date": 29}, 0),
    "example-bad-non-chunked.warc.gz": ({"warcinfo-record": 1, "shared-member": 5}, 1),
    "example-bad.warc.gz.bad": ({"warcinfo-record": 1, "shared-member": 5}, 1),
    "example-digest.warc": ({"request-record": 4}, 0),
    "example-iana.org-chunked.warc": ({"warcinfo-record": 1, "capture": 1, "request-record": 1}, 0),
    "example-resource.warc.gz": ({"warcinfo-record": 2, "resource-record": 1}, 0),
    "example-space-in-target-uri.warc.gz": ({"warcinfo-record": 1, "resource-record": 1}, 0),
    "example-space-in-url.arc": ({"warcinfo-record": 1, "damaged": 1}, 1),
    "example-trunc.warc": ({"warcinfo-record": 2, "damaged": 1, "request-record": 1}, 1),
    "example-wget-bad-target-uri.warc.gz": (
        {
            "warcinfo-record": 1,
            "request-record": 1,
            "capture": 1,
            "metadata-record": 1,
            "resource-record": 2,
        },
        0,
    ),
    "example-wrong-chunks.warc.gz": ({"damaged": 1, "request-record": 1}, 2),
    "example.arc": ({"warcinfo-record": 1, "capture": 1}, 0),
    "example.arc.gz": ({"warcinfo-record": 1, "capture": 1}, 0),
    "example.warc": (
        {"warcinfo-record": 2, "capture": 1, "request-record": 2, "revisit": 1},
        0,
    ),
    "example.warc.gz": (
        {"warcinfo-record": 2, "capture": 1, "request-record": 2, "revisit": 1},
        0,
    ),
    "ipwb-1memento.warc": ({"warcinfo-record": 1, "digest-mismatch": 3}, 3),
    "ipwb-variableSizedDates.warc": (
        {"warcinfo-record": 1, "digest-mismatch": 3, "bad-date": 1},
        3,
    ),
    "jwat-valid-warcfile-upper-lower-case.warc": ({"warcinfo-record": 1, "not-http": 4}, 0),
    "post-test.warc.gz": ({"method": 3, "request-record": 3}, 0),
    "warcfile.warc.gz": (
        {"warcinfo-record": 1, "request-record": 17, "capture": 16, "metadata-record": 16},
        0,
    ),
}
HEALTHY = [
    "block-sized-records.warc.gz",
    "example-digest.warc",
    "example-iana.org-chunked.warc",
    "example-resource.warc.gz",
    "example-space-in-target-uri.warc.gz",
    "example-wget-bad-target-uri.warc.gz",
    "example.warc",
    "example.warc.gz",
    "post-test.warc.gz",
    "warcfile.warc.gz",
]


def test_every_sample_is_expected() -> None:
    assert {path.name for path in DATA.iterdir()} == EXPECTED.keys() | {"README.md"}
    readme = (DATA / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_samples(name: str) -> None:
    answer = ask(DATA / name)
    words, problems = EXPECTED[name]
    assert Counter(word for word in answer.words if word != "problem") == words
    assert len(answer.problems) == problems


@pytest.mark.parametrize("name", HEALTHY)
def test_count_of_version_lines(name: str) -> None:
    """The plainest count there is: version lines that begin a header in the inflated file."""
    data = (DATA / name).read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    headers = re.findall(rb"(?:^|\r\n\r\n)WARC/[0-9.]+\r\n(?:WARC|Warc|Content)-", text)
    assert len(events_of(DATA / name)) == len(headers)


def ours(path: Path) -> list[tuple[int, str, int]]:
    return [
        (event.offset, event.type.decode(), event.length)
        for event in events_of(path)
        if isinstance(event, Record)
    ]


def by_fastwarc(path: Path) -> list[tuple[int, str, int]]:
    with open(path, "rb") as stream:
        return [
            (found.stream_pos, found.headers["WARC-Type"], found.content_length)
            for found in FastIterator(stream, parse_http=False)
        ]


def by_warcio(path: Path) -> list[tuple[int, str, int]]:
    found = []
    with open(path, "rb") as stream:
        records = WarcioIterator(stream, no_record_parse=True)
        for each in records:
            found.append((records.get_record_offset(), each.rec_type, each.length))
            each.raw_stream.read()
    return found


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One crawl of a few hundred records of all kinds, gzipped and plain."""
    records = [record(b"warcinfo", b"software: x\r\n", number=0)]
    for number in range(1, 100):
        body = b"%d " % number * (number * number)
        records += [
            request(number=1000 + number),
            response(body, number=number, Target_URI=b"http://example.com/%d" % number),
            revisit(number=2000 + number),
            record(b"metadata", b"x" * number, number=3000 + number),
        ]
    directory = tmp_path_factory.mktemp("crawl")
    packed, plain = directory / "crawl.warc.gz", directory / "crawl.warc"
    packed.write_bytes(b"".join(map(gz, records)))
    plain.write_bytes(b"".join(records))
    return packed, plain


@pytest.mark.parametrize("other", [by_fastwarc, by_warcio])
def test_offsets_types_and_lengths(crawl: tuple[Path, Path], other: Reader) -> None:
    for path in (*crawl, *(DATA / name for name in HEALTHY)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what other projects deprecate
            assert ours(path) == other(path), path.name


def test_payloads_by_fastwarc(crawl: tuple[Path, Path]) -> None:
    for path in (*crawl, DATA / "warcfile.warc.gz", DATA / "example.warc"):
        expected = {}
        with open(path, "rb") as stream:
            for found in FastIterator(stream, parse_http=True):
                if found.headers["WARC-Type"] == "response":
                    body = found.reader.read()
                    expected[found.stream_pos] = hashlib.sha1(body).digest(), len(body)
        captures = ask(path).captures
        assert captures
        for capture in captures:
            assert (capture.digest.raw, capture.size) == expected[capture.offset]
        assert len(captures) >= len(expected) - 1
