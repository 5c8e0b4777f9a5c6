"""jwarc and pywb read what ``bin/convert`` and ``bin/export --self-contained`` write."""

from __future__ import annotations

import gzip
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import warcio
from fastwarc.warc import ArchiveIterator, WarcRecordType
from warcio.exceptions import ArchiveLoadFailed

from dedupindex.warc.zstd_format import DICTIONARY_FRAME
from demo.site import Page
from tests.conftest import need
from tests.peers.replay import check_revisits, records, replay
from tests.peers.site import COPIES, PAGES, bodies, site
from tests.peers.test_jwarc import jwarc
from tests.peers.test_wget_dedup import harvest
from tests.support.verifying import BODY, DAY, HOST, copy_of, page, write
from tests.support.warc_cases import chunked, gz
from tests.unit.cli.test_cli import dedupindex
from tests.unit.warc.test_arc import document, header

pytestmark = pytest.mark.peer
BASE = b"http://arc.example"
BODIES = {
    b"/": b"<!doctype html><p>" + random.Random(2).randbytes(2000).hex().encode(),
    b"/image": b"\x89PNG\r\n\x1a\n" + random.Random(1).randbytes(9000),
    b"/packed": gzip.compress(random.Random(3).randbytes(4000).hex().encode(), mtime=0),
    b"/chunked": b"<p>chunked" * 100,
}


def arc(day: int) -> bytes:
    """An ARC file of these bodies, and of a DNS answer."""
    date = b"202611%02d091417" % day
    dns = document(b"1.2.3.4", url=b"dns:arc.example", mime=b"text/dns", head=b"", date=date)
    members = [header(), dns]
    for number, (path, body) in enumerate(BODIES.items()):
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nX-Day: %d\r\n" % day
        if path == b"/packed":
            head += b"Content-Encoding: gzip\r\n"
        if path == b"/chunked":
            head += b"Transfer-Encoding: chunked\r\n"
            body = chunked(body[:300], body[300:])
        else:
            head += b"Content-Length: %d\r\n" % len(body)
        when = b"202611%02d09141%d" % (day, number)
        members.append(document(body, url=BASE + path, date=when, head=head + b"\r\n"))
    return b"".join(map(gz, members))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ARC files, converted."""
    folder = tmp_path_factory.mktemp("convert")
    (folder / "arcs").mkdir()
    for day in (1, 2):
        (folder / "arcs" / f"{day}.arc.gz").write_bytes(arc(day))
    dedupindex("convert", folder / "arcs", "--out", folder / "warcs")
    return folder


def check(*warcs: Path) -> None:
    """warcio, FastWARC and jwarc find nothing wrong."""
    words = [Path(sys.executable).with_name("warcio"), "check", *warcs]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for path in warcs:
        with open(path, "rb") as stream:
            for record in ArchiveIterator(stream, parse_http=False):
                assert "WARC-Block-Digest" not in record.headers or record.verify_block_digest()
        with open(path, "rb") as stream:
            kinds = WarcRecordType.response
            for record in ArchiveIterator(stream, record_types=kinds):
                stated = "WARC-Payload-Digest" in record.headers
                assert not stated or record.verify_payload_digest()
    jwarc("validate", *warcs, folder=warcs[0].parent)


def test_other_readers_accept_the_output(folder: Path) -> None:
    warcs = sorted((folder / "warcs").iterdir())
    check(*warcs)
    assert len(records(warcs)) == 2 * len(BODIES)


def test_converted_files_are_deduplicated_and_replay(folder: Path) -> None:
    """And come back when that was undone: the ARC files, bit for bit."""
    manifest, plan, out = folder / "manifest", folder / "plan", folder / "out"
    dedupindex("manifest", folder / "warcs", "-o", manifest)
    dedupindex("resolve", manifest, "-o", plan)
    dedupindex("rewrite", plan, "--out", out)
    dedupindex("verify", "--against", folder / "warcs", out)
    warcs = [out / f"{day}.warc.gz" for day in (1, 2)]
    check(*warcs)
    found = records(warcs)
    revisits = [one for one in found if one.type == "revisit"]
    assert len(revisits) == len(BODIES) - 1  # chunked bodies state no digest
    served = {(BASE + path).decode(): body for path, body in BODIES.items()}
    with replay(warcs, folder) as archive:
        assert check_revisits(found, archive, served) == len(revisits)
        for one in found:
            if one.type == "response":
                assert archive.get(one.url, one.date) == (200, served[one.url], one.date)
    dedupindex("convert", "--back", out, "--out", folder / "x", status=7)
    dedupindex("undedup", out, "--out", folder / "undone")
    dedupindex("convert", "--back", folder / "undone", "--out", folder / "again")
    for day in (1, 2):
        assert (folder / "again" / f"{day}.arc.gz").read_bytes() == arc(day)


def test_a_subset_replays_on_its_own(tmp_path: Path) -> None:
    """Of a harvest by wget, rewritten: one folder of the site, and what it needs of the rest."""
    feed = Page(random.Random(4).randbytes(3000).hex().encode(), chunked=True)
    pages = {"/feed": feed, "/copy/feed": feed}
    with site(pages) as base:
        urls = [base + path for path in (*PAGES, *COPIES, *pages)]
        (tmp_path / "warcs").mkdir()
        harvest(tmp_path / "warcs", "one", urls)
        served = {**bodies(base), f"{base}/copy/feed": feed.body}
    dedupindex("manifest", tmp_path / "warcs", "-o", tmp_path / "manifest")
    dedupindex("resolve", tmp_path / "manifest", "-o", tmp_path / "plan")
    dedupindex("rewrite", tmp_path / "plan", "--out", tmp_path / "out")
    subset = tmp_path / "subset.warc.gz"
    words = ("--url", f"{base}/copy/", "-o", subset)
    dedupindex("export", "--self-contained", tmp_path / "out", *words)
    dedupindex("verify", subset)
    found = records([subset])
    assert sorted(one.type for one in found) == ["response"] * 3 + ["revisit"] * 3
    with replay([subset], tmp_path) as archive:
        assert check_revisits(found, archive, served) == 3


@pytest.mark.parametrize("dictionary", [False, True], ids=["without dictionary", "dictionary"])
def test_who_reads_zstd(dictionary: bool, tmp_path: Path) -> None:
    """The table in docs/convert.md; what pywb does is in test_pywb.py."""
    pages = [page(number) for number in range(1, 28 if dictionary else 4)]
    (tmp_path / "a.warc").write_bytes(b"".join(pages))
    dedupindex("convert", "--to", "zstd", tmp_path / "a.warc", "--out", tmp_path / "out")
    path = tmp_path / "out" / "a.warc.zst"
    assert path.read_bytes().startswith(DICTIONARY_FRAME) == dictionary
    with open(path, "rb") as stream:
        found = [record.reader.read() for record in ArchiveIterator(stream, parse_http=False)]
    assert found == [one.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n\r\n") for one in pages]
    with open(path, "rb") as stream, pytest.raises(ArchiveLoadFailed):
        list(warcio.ArchiveIterator(stream))
    assert "Exception" in jwarc("ls", path, folder=tmp_path, status=1)
    need("zstd", found=shutil.which("zstd") is not None)
    words = ["zstd", "--decompress", "--stdout", "--quiet", path]
    done = subprocess.run(words, capture_output=True, check=False)
    assert (done.stdout == b"".join(pages)) == (not dictionary) == (done.returncode == 0)


def test_revisits_of_revisits_replay_once_they_are_repointed(tmp_path: Path) -> None:
    """pywb does not follow a chain; it shows the original when the revisit names that."""
    chain = [page(1), copy_of(2, 1), copy_of(3, 2), copy_of(4, 3)]
    write(tmp_path / "in" / "a.warc.gz", chain)
    dedupindex("convert", "--repoint", tmp_path / "in", "--out", tmp_path / "out")
    check(tmp_path / "out" / "a.warc.gz")
    for name, replays in (("in", (1, 2)), ("out", (1, 2, 3, 4))):
        with replay([tmp_path / name / "a.warc.gz"], tmp_path / name) as archive:
            for number in (1, 2, 3, 4):
                date = (DAY % number).decode()
                expected = (200, BODY, date)
                found = archive.get((HOST + b"%d" % number).decode(), date)
                assert (found == expected) == (number in replays), (name, number, found)
