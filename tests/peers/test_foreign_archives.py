"""Archives that other projects publish in package registries, and what they say of them.

Only pywb's source package on PyPI has any: its `sample_archive`. The source packages of warcio,
cdxj-indexer, warctools and wpull hold none, nor do warcio and @webrecorder/wabac on npm, and
jwarc and webarchive-commons put no jar of tests into Maven Central.
"""

from __future__ import annotations

import subprocess
import sys
from base64 import b32decode
from pathlib import Path
from shutil import copyfile
from typing import NamedTuple

import pytest

from dedupindex.capture import Capture
from dedupindex.sources import open_source
from tests.peers.environments import sdist
from tests.readings import agreed, by_manifest, by_verify

pytestmark = pytest.mark.peer
PYWB = "pywb==2.10.0", "5ae43c9b2a5321e39b9c8e16538bfbc0146eeb6fe26713232e45378b774a1a96"
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
    found = agreed(tmp_path / name, (samples / "warcs" / name).read_bytes())
    assert (found.records, found.remarks) == WHOLE[name]
    assert bool(found.damaged) == (name in DAMAGED)


def test_what_their_cdx_files_say_is_read(samples: Path) -> None:
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
    """What is left is what was there; what was dropped comes back."""
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


def run(*words: str, statuses: tuple[int, ...]) -> None:
    done = subprocess.run([sys.executable, "-m", "dedupindex", *words], capture_output=True)
    assert done.returncode in statuses, done.stderr.decode()
