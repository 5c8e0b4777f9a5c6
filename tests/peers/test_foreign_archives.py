"""Archives that other projects publish in package registries, and what they say of them.

Source packages of PyPI with archives are those of pywb (its `sample_archive`), of warcio up to
1.6.3 and of Warcat; on npm it is warcio 1.0.3. What their tests state of each is stated here, with
what cdxj-indexer's tests, which come without files, say of the same ones.

These have none: warcio 1.7.0, 1.7.5 and 1.8.1; cdxj-indexer 1.0, 1.3.0, 1.4.6 and 1.5.0; FastWARC
0.4.2 and 0.14.9; warctools 4.10.0 and 5.0.1; wpull 1.2.3 and 2.0.1; of npm's warcio seven from
1.2.0 to 2.4.11, and of its @webrecorder/wabac four from 2.7.7 to 2.27.3. Neither jwarc 0.36.0 nor
webarchive-commons 1.1.9 and 3.0.2 have a jar of tests in Maven Central.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from base64 import b32decode, b32encode
from pathlib import Path
from shutil import copyfile
from typing import NamedTuple

import pytest

from dedupindex.capture import Capture
from dedupindex.corpus import Corpus
from dedupindex.sources import open_source
from dedupindex.verify.collection import Collection
from dedupindex.verify.file_bytes import opened
from dedupindex.verify.issues import Finding
from dedupindex.verify.walk_file import Container
from tests.peers.environments import npm, sdist
from tests.support.readings import by_manifest, by_verify, compare_readings

pytestmark = pytest.mark.peer
PYWB = "pywb==2.10.0", "5ae43c9b2a5321e39b9c8e16538bfbc0146eeb6fe26713232e45378b774a1a96"
WARCIO = "warcio==1.6.3", "3944846590145c93e9d9370e3a7e7df3f19ad2e988205a5d819085a7167cd0db"
WARCIO_JS = "warcio@1.0.3", "dde25de673afb5c1b168e135f814b9e1e671556a7ae91bef54180183761991bb"
WARCAT = "Warcat==2.2.5", "a3d7af6b4f1cbc6244833e19904932647c8f57d46a2b770fc499a1ec5ca8a8bd"
WHOLE = {  # file: records that are whole, and how many are remarked on
    "bad.arc": (1, 0),
    "dupes.warc.gz": (25, 0),
    "example-bad.warc.gz.bad": (6, 0),
    "example-extra.warc": (6, 4),
    "example-url-agnostic-orig.warc.gz": (2, 1),
    "example-url-agnostic-revisit.warc.gz": (2, 1),
    "example-wget-1-14.warc.gz": (6, 0),
    "example-wpull.warc.gz": (4, 0),
    "example.arc": (2, 0),
    "example.arc.gz": (2, 0),
    "example.warc": (5, 0),
    "example.warc.gz": (6, 0),
    "example2.warc.gz": (3, 0),
    "httpbin-resource.warc.gz": (1, 0),
    "iana.warc.gz": (343, 0),
    "missing-status-text.warc": (0, 0),
    "post-test.warc.gz": (6, 0),
}
DAMAGED = {"bad.arc", "example.warc", "missing-status-text.warc"}
ROWS, MEMBERS = 188, 38  # of zipcdx/zipnum-sample.cdx.gz; its .idx has a line for each member


ALL = ["warcinfo", "warcinfo", "response", "request", "revisit", "request"]
THEIRS = {  # their tests' types of all records; warcio: test_archiveiterator, test_cli, and so on
    "warcio/bad.arc": ["arc-header"],  # and, to them, three of no length; cdxj-indexer, too
    "warcio/example-bad-non-chunked.warc.gz": ALL,  # as recompressed; else they refuse it
    "warcio/example-bad.warc.gz.bad": [*ALL[1:], "response"],  # theirs only say: not readable
    "warcio/example-iana.org-chunked.warc": ["warcinfo", "response", "request"],
    "warcio/example-resource.warc.gz": ["warcinfo", "warcinfo", "resource"],
    "warcio/example-trunc.warc": ALL[:4],
    "warcio/example.arc": ["arc-header", "arc"],
    "warcio/example.arc.gz": ["arc-header", "arc"],
    "warcio/example.warc": ALL,
    "warcio/example.warc.gz": ALL,
    "warcio/post-test.warc.gz": ["response", "request"] * 3,
    "warcio.js/example-resource.warc.gz": ["resource"],
    "warcio.js/example-wget-bad-target-uri.warc.gz": [
        *("warcinfo", "request", "response", "metadata", "resource", "resource")
    ],
    "warcio.js/example.warc": ALL,
    "warcio.js/example.warc.gz": ALL,
    "Warcat/at.warc": [  # theirs: eight records
        *("warcinfo", "request", "response", "request", "response", *["resource"] * 3)
    ],
    "Warcat/at.warc.gz": ["warcinfo", *["request", "response"] * 2, *["resource"] * 3],
    "Warcat/bad_http_chunked_content.warc": ["response"],
    "Warcat/c1_warcinfo.warc": ["warcinfo"],  # WARC/0.18
    "Warcat/long_url.warc": ["response"],
    "Warcat/not_utf8_http_header.warc": ["response"],
}
# They read what has no whole number as its length (from 134), or is cut (one error); we name both.
LENGTH_WRONG = {"warcio/bad.arc": 134, "warcio/example-trunc.warc": 1197}
OFFSETS = {  # warcio's and warcio.js's lists of all records
    "warcio/example.warc.gz": [0, 353, 784, 2012, 2538, 3123],
    "warcio/example.warc": [0, 488, 1197, 2566, 3370, 4316],
    "warcio/example.arc.gz": [0, 171],
    "warcio/example.arc": [0, 151],
    "warcio.js/example-wget-bad-target-uri.warc.gz": [0, 410, 824, 1978, 2295, 2681],
    "warcio.js/example.warc.gz": [0, 353, 784, 2012, 2621, 3207],
}
EXAMPLE = "http://example.com/"
STATED: dict[str, list[tuple[int, str, str, str]]] = {  # offset, date, URL, SHA-1; "": not stated
    # warcio's test_extract_warc_response, test_write_arc2warc_record
    "warcio/example.warc.gz": [
        (784, "20170306040206", EXAMPLE, "G7HRM7BGOKSKMSXZAHMUQTTV53QOFSMK")
    ],
    "warcio/example.arc.gz": [(171, "20140216050221", EXAMPLE, "B2LTWWPUOYAH7UIPQ7ZUPQ4VMBSVC36A")],
    # warcio.js's testIndexer; wget 1.14 to 1.19 writes the URL between angle brackets
    "warcio.js/example.warc.gz": [
        (784, "20170306040206", EXAMPLE, "G7HRM7BGOKSKMSXZAHMUQTTV53QOFSMK")
    ],
    "warcio.js/example-wget-bad-target-uri.warc.gz": [(824, "", EXAMPLE, "")],
    # cdxj-indexer's test_indexer
    "warcio/example.arc": [(151, "20140216050221", EXAMPLE, "B2LTWWPUOYAH7UIPQ7ZUPQ4VMBSVC36A")],
    "warcio/post-test.warc.gz": [
        (0, "20140610000859", "http://httpbin.org/post", "M532K5WS4GY2H4OVZO6HRPOP47A7KDWU"),
        (1196, "20140610001151", "http://httpbin.org/post", "M7YCTM7HS3YKYQTAWQVMQSQZBNEOXGU2"),
        (
            2395,
            "20140610001255",
            "http://httpbin.org/post?foo=bar",
            "B6E5P6JUZI6UPDTNO4L2BCHMGLTNCUAJ",
        ),
    ],
}


class Row(NamedTuple):
    """A response that pywb's own CDX files name."""

    file: str
    offset: int
    digest: str  # SHA-1 in hex


@pytest.fixture(scope="module")
def samples() -> Path:
    return sdist(*PYWB) / "pywb-2.10.0" / "sample_archive"


def test_there_are_no_others(samples: Path) -> None:
    assert {path.name for path in (samples / "warcs").iterdir()} == set(WHOLE)


@pytest.mark.parametrize("name", WHOLE)
def test_three_readers_agree(samples: Path, tmp_path: Path, name: str) -> None:
    found = compare_readings(tmp_path / name, (samples / "warcs" / name).read_bytes())
    assert (found.records, found.remarks) == WHOLE[name]
    assert bool(found.damaged) == (name in DAMAGED)


def test_offsets_and_digests_equal_those_in_their_cdx_files(samples: Path) -> None:
    """Offset and digest of each response; those of POST have their request's body in the key."""
    rows = [row for path in sorted((samples / "cdx").glob("*.cdx")) for row in _rows(path)]
    assert len(rows) == 60
    found = {
        Row(name, offset, digest)
        for name in {row.file for row in rows}
        for offset, _, digest in by_manifest(samples / "warcs" / name)[0].payloads
    }
    assert set(rows) - found == set()


def _rows(path: Path) -> list[Row]:
    rows = []
    for line in path.read_text().splitlines()[1:]:
        _, _, _, mime, _, digest, *_, offset, name = line.split(" ")
        if mime != "warc/revisit" and name in WHOLE:
            rows.append(Row(name, int(offset), b32decode(digest).hex()))
    return rows


def test_a_query_of_their_zipnum_is_a_selection_from_all_of_it(samples: Path) -> None:
    index = samples / "zipcdx" / "zipnum-sample.idx"
    assert Corpus.of(index).count() == ROWS
    for prefix, where in (
        ("iana.org/_css/*", "surt =~ '^org,iana\\)/_css/'"),
        ("http://www.iana.org/domains*", "surt =~ '^org,iana\\)/domains'"),
        ("example.com/", "surt == 'com,example)/'"),
        ("*.iana.org", "surt =~ '^org,iana[),]'"),
    ):
        found = Corpus.from_archive(str(index), url=prefix).count()
        assert found == Corpus.of(index).where(where).count() > 0


def test_every_row_of_their_zipnum_is_read(samples: Path) -> None:
    path = samples / "zipcdx" / "zipnum-sample.cdx.gz"
    assert path.read_bytes().count(b"\x1f\x8b\x08\x00") == MEMBERS
    assert len((samples / "zipcdx" / "zipnum-sample.idx").read_text().splitlines()) == MEMBERS
    with open_source(str(path)) as source:
        items = list(source.items())
    assert len(items) == ROWS
    whole = samples / "cdx" / "iana.cdx"
    with open_source(str(whole)) as source:
        digests = {item.digest for item in source.items() if isinstance(item, Capture)}
    assert digests <= {item.digest for item in items if isinstance(item, Capture)}


@pytest.mark.parametrize("where", ["out", "in place"])
def test_dedup_loses_nothing(samples: Path, tmp_path: Path, where: str) -> None:
    """Records that are kept are unchanged; dropped ones can be restored."""
    before, work = tmp_path / "before", tmp_path / "work"
    for folder in (before, work):
        folder.mkdir()
        for path in (samples / "warcs").iterdir():
            copyfile(path, folder / path.name)
    if where == "out":
        out = tmp_path / "out"
        run("dedup", str(work), "--out", str(out), statuses=(0, 7))
        run("verify", "--against", str(before), str(out), statuses=(0, 7))
        run("undedup", str(out), "--out", str(tmp_path / "back"), statuses=(0, 7))
        back = tmp_path / "back"
    else:
        run("dedup", str(work), "--in-place", statuses=(0, 7))
        run("undedup", str(work), "--in-place", statuses=(0, 7))
        back = work
    for path in before.iterdir():
        if (back / path.name).exists():
            was, now = by_verify(path), by_verify(back / path.name)
            assert now.records == was.records
            assert {found[1:] for found in now.payloads} == {found[1:] for found in was.payloads}
            if where == "in place":
                assert (back / path.name).read_bytes() == path.read_bytes()


@pytest.fixture(scope="module")
def others() -> dict[str, Path]:
    """Every archive of warcio, warcio.js and Warcat, by project and file."""
    folders = {
        "warcio": sdist(*WARCIO) / "warcio-1.6.3" / "test" / "data",
        "warcio.js": npm(*WARCIO_JS) / "package" / "test" / "data",
        "Warcat": sdist(*WARCAT) / "Warcat-2.2.5" / "example",
    }
    return {
        f"{name}/{path.name}": path for name, folder in folders.items() for path in folder.iterdir()
    }


def test_all_of_the_others_are_listed(others: dict[str, Path]) -> None:
    assert set(others) == set(THEIRS)


@pytest.mark.parametrize("name", THEIRS)
def test_types_and_offsets_equal_the_stated_ones(
    others: dict[str, Path], tmp_path: Path, name: str
) -> None:
    """Three readers agree, and read each record that is theirs, but for those of wrong lengths."""
    found = compare_readings(tmp_path / others[name].name, others[name].read_bytes())
    with opened(others[name]) as file:
        read = [item for item in Container(file).each() if not isinstance(item, Finding)]
    assert [item.kind.decode() for item in read] == THEIRS[name]
    if name in OFFSETS:
        assert [item.offset for item in read] == OFFSETS[name]
    wrong = LENGTH_WRONG.get(name)
    assert found.damaged == ({wrong} if wrong else set())
    assert found.records == len(THEIRS[name]) - (wrong in {item.offset for item in read})


@pytest.mark.parametrize("name", STATED)
def test_responses_have_the_stated_offsets_and_digests(others: dict[str, Path], name: str) -> None:
    lines = by_manifest(others[name])[1]
    for line, (offset, date, url, digest) in zip(lines, STATED[name], strict=True):
        assert (line.offset, line.url.decode()) == (offset, url)
        assert date in ("", re.sub(rb"\D", b"", line.date).decode())
        assert digest in ("", b32encode(line.payload).decode())


def test_records_that_warcio_writes_in_its_tests(tmp_path: Path) -> None:
    """13 that `test_writer` states as text, the responses with the digest of their payload."""
    found = 0
    tests = sdist(*WARCIO) / "warcio-1.6.3" / "test" / "test_writer.py"
    for node in ast.parse(tests.read_text()).body:
        text = node.value.value if isinstance(getattr(node, "value", 0), ast.Constant) else ""
        if not str(text).startswith("WARC/"):
            continue
        data = text.encode()
        read = compare_readings(tmp_path / "one.warc", data)
        assert (read.records, read.remarks, read.damaged) == (1, 0, set())
        if b"WARC-Type: response" in data:
            (digest,) = re.findall(rb"Payload-Digest: sha1:(\w{32})", data)
            assert {one[2] for one in read.payloads} == {b32decode(digest).hex()}
        found += 1
    assert found == 13


def test_warcat_finds_one_problem_and_so_do_we(others: dict[str, Path]) -> None:
    """Two records of wget have one WARC-Record-ID."""
    found = [finding.reason for finding in Collection([others["Warcat/at.warc"]]).findings()]
    assert found == ["duplicate-record-id"]


def run(*words: str, statuses: tuple[int, ...]) -> None:
    done = subprocess.run([sys.executable, "-m", "dedupindex", *words], capture_output=True)
    assert done.returncode in statuses, done.stderr.decode()
