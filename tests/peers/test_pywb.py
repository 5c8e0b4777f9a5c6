"""A real pywb whose index is our ``/cdx``: it replays all captures, and lists them by time."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode

import pytest

from dedupindex.corpus import Corpus
from tests.integration.test_server_live import serving
from tests.peers.environments import DEADLINE, PYWB, environment, running
from tests.peers.front import in_front_of
from tests.peers.replay import Archive, free_port, listening, records
from tests.peers.site import COPIES, PAGES, bodies, site
from tests.peers.test_wget_dedup import harvest
from tests.support.paths import ROOT
from tests.unit.cli.test_cli import dedupindex

pytestmark = pytest.mark.peer


def test_all_pages_of_a_zipnum_cluster(tmp_path: Path) -> None:
    """What pywb answers without being asked for pages is the first one: here two captures."""
    with site() as base:
        stored = harvest(tmp_path, "one", [base + path for path in (*PAGES, *COPIES)])
    Corpus.from_warcs(tmp_path / "one.warc.gz").save_as_cdxj(tmp_path / "one.cdxj")
    blocks, index = b"", ""
    for number, line in enumerate((tmp_path / "one.cdxj").read_bytes().splitlines(keepends=True)):
        block = gzip.compress(line)
        key = b" ".join(line.split(b" ")[:2]).decode()
        index += f"{key}\tcdx.gz\t{len(blocks)}\t{len(block)}\t{number + 1}\n"
        blocks += block
    (tmp_path / "cdx.gz").write_bytes(blocks)
    (tmp_path / "all.idx").write_text(index)
    (tmp_path / "all.loc").write_text(f"cdx.gz\t{tmp_path}/cdx.gz\n")
    (tmp_path / "config.yaml").write_text(
        f"collections: {{all: {{index: zipnum+{tmp_path}/all.idx, archive_paths: {tmp_path}/}}}}\n"
    )
    port, log = free_port(), tmp_path / "pywb.log"
    wayback = environment("pywb", PYWB) / "wayback"
    words = [wayback, "-b", "127.0.0.1", "-p", str(port), "-t", "4"]
    with running(words, log, lambda: listening(port)):
        for output in ("json", "cdxj"):
            ask = partial(
                Corpus.from_archive, f"http://127.0.0.1:{port}/all/cdx", url=f"{base}/*",
                output=output, pageSize="2", containers=str(tmp_path),
            )  # fmt: skip
            found = ask()
            assert found.count() == len(stored) > 4, log.read_text()
            assert not any("error" in entry for entry in found.enrich("response"))
            assert ask(page="0").count() == 2


def test_pywb_replays_and_lists_all_captures_of_the_index(tmp_path: Path) -> None:
    with site() as base:
        stored = harvest(tmp_path, "one", [base + path for path in (*PAGES, *COPIES)])
    index, port, log = tmp_path / "index", free_port(), tmp_path / "pywb.log"
    dedupindex("index", "--by-url", "-w", "-m", ".*", tmp_path / "one.warc.gz", index)
    with serving(index) as server, in_front_of(server.port) as front:
        (tmp_path / "config.yaml").write_text(
            f"collections: {{all: {{index: cdx+{front.url}/cdx, archive_paths: {tmp_path}/}}}}\n"
        )
        wayback = environment("pywb", PYWB) / "wayback"
        words = [wayback, "-b", "127.0.0.1", "-p", str(port), "-t", "4"]
        with running(words, log, lambda: listening(port)):
            archive = Archive(port, log)
            for one in stored:
                answer = archive.get(one.url, one.date)
                assert answer == (200, bodies(base)[one.url], one.date), log.read_text()
            assert front.statuses() == [200] * len(stored)
            for output in ("json", "cdxj", "text"):
                corpus = Corpus.from_archive(
                    f"http://127.0.0.1:{port}/all/cdx", url=f"{base}/logo.png", output=output,
                    containers=str(tmp_path),
                )  # fmt: skip
                (entry,) = corpus.enrich("response")
                size = len(bodies(base)[base + "/logo.png"])
                assert entry["payload"] == f"bytes(length: {size})", (output, entry)
            connection = HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
            connection.request("GET", f"/all/cdx?url={base}/logo.png")
            listing = connection.getresponse().read().decode()
            connection.close()
    (logo,) = [one for one in stored if one.url == base + "/logo.png"]
    (line,) = listing.splitlines()
    assert logo.digest.removeprefix("sha1:") in line and "/logo.png" in line


@pytest.mark.parametrize("form", ["cdx", "cdxj"])
def test_pywb_replays_from_an_exported_index(form: str, tmp_path: Path) -> None:
    """The file is put where a collection of pywb has its indexes, and nothing else is done."""
    with site() as base:
        stored = harvest(tmp_path, "one", [base + path for path in (*PAGES, *COPIES)])
        served = bodies(base)
    index = tmp_path / "index"
    dedupindex("index", "-w", "-m", ".*", tmp_path / "one.warc.gz", index)
    archive, indexes = _collection(tmp_path)
    (tmp_path / "one.warc.gz").rename(archive / "one.warc.gz")
    dedupindex("export", f"--{form}", index, "-o", indexes / f"index.{form}")
    with _wayback(tmp_path) as replayed:
        for one in stored:
            answer = replayed.get(one.url, one.date)
            assert answer == (200, served[one.url], one.date), replayed.log.read_text()


def _collection(home: Path) -> tuple[Path, Path]:
    """Where a collection of pywb has its archives, and where its indexes."""
    archive, indexes = (home / "collections" / "all" / name for name in ("archive", "indexes"))
    archive.mkdir(parents=True)
    indexes.mkdir()
    return archive, indexes


@contextmanager
def _wayback(home: Path) -> Iterator[Archive]:
    """pywb with the collection of a directory."""
    port, log = free_port(), home / "pywb.log"
    wayback = environment("pywb", PYWB) / "wayback"
    words = [wayback, "-b", "127.0.0.1", "-p", str(port), "-t", "4"]
    with running(words, log, lambda: listening(port)):
        yield Archive(port, log)


def _listed(archive: Archive, url: str) -> list[dict[str, str]]:
    """The rows that pywb has of a URL."""
    connection = HTTPConnection("127.0.0.1", archive.port, timeout=DEADLINE)
    try:
        connection.request("GET", f"/all/cdx?{urlencode({'url': url, 'output': 'json'})}")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    return [json.loads(line) for line in text.splitlines()]


def test_pywb_replays_from_the_cdxj_of_converted_files(tmp_path: Path) -> None:
    """Of a harvest with revisits, made to zstd, of which pywb has the list, and back to gzip."""
    with site() as base:
        urls = [base + path for path in (*PAGES, *COPIES)]
        harvest(tmp_path, "one", urls)
        served = bodies(base)
    dedupindex("dedup", tmp_path / "one.warc.gz", "--out", tmp_path / "small")
    stored = records([tmp_path / "small" / "one.warc.gz"])
    assert {one.type for one in stored} == {"response", "revisit"}
    for kind, source in (("zstd", "small"), ("gzip", "zstd/collections")):
        home = tmp_path / kind
        archive, indexes = _collection(home)
        words = ("--to", kind, tmp_path / source, "--out", archive)
        dedupindex("convert", *words, "--cdxj", indexes / "index.cdxj")
        with _wayback(home) as replayed:
            for one in stored:
                (row,) = _listed(replayed, one.url)
                assert row["timestamp"] == re.sub(r"\D", "", one.date)
                assert row["digest"] == one.digest.removeprefix("sha1:")
                assert (row["mime"] == "warc/revisit") == (one.type == "revisit")
                answer = replayed.get(one.url, one.date)
                # Without zstd it answers 503, or a page without content that it takes for an ARC's.
                whole = answer == (200, served[one.url], one.date)
                assert whole == (kind == "gzip"), replayed.log.read_text()


def test_pywb_replays_results_with_the_settings_of_the_manual(
    tmp_path: Path,
) -> None:
    """In directories by year: the list names files by their path below the results."""
    with site() as base:
        urls = [base + path for path in (*PAGES, *COPIES)]
        for year in ("2023", "2024"):
            (tmp_path / "warcs" / year).mkdir(parents=True)
            harvest(tmp_path / "warcs" / year, "one", urls)
        served = bodies(base)
    words = ("--out", tmp_path / "smaller", "--cdxj", tmp_path / "smaller.cdxj")
    dedupindex("dedup", tmp_path / "warcs", *words)
    page = (ROOT / "docs/post-crawl.md").read_text()
    (config,) = re.findall(r"```yaml\n(collections:.*?)```", page, re.DOTALL)
    for shown, here in (("/lists/", f"{tmp_path}/"), ("/home/me/", f"{tmp_path}/")):
        assert shown in config
        config = config.replace(shown, here)
    (tmp_path / "config.yaml").write_text(config.replace("  smaller:", "  all:"))
    stored = records(sorted((tmp_path / "smaller").rglob("*.warc.gz")))
    assert {one.type for one in stored} == {"response", "revisit"}
    with _wayback(tmp_path) as replayed:
        for one in stored:
            answer = replayed.get(one.url, one.date)
            assert answer == (200, served[one.url], one.date), replayed.log.read_text()


def test_a_corpus_of_what_pywb_replays(tmp_path: Path) -> None:
    """Its WARC files are out of reach: by its CDX server, and by a local CDX."""
    with site() as base:
        harvest(tmp_path, "one", [base + path for path in (*PAGES, *COPIES)])
    dedupindex("dedup", tmp_path / "one.warc.gz", "--out", tmp_path / "small")  # with revisits
    archive, indexes = _collection(tmp_path)
    local_list = tmp_path / "local.cdx"
    Corpus.from_warcs(tmp_path / "small" / "one.warc.gz").save_as_cdx(local_list)
    Corpus.from_warcs(tmp_path / "small" / "one.warc.gz").save_as_cdxj(indexes / "index.cdxj")
    (tmp_path / "small" / "one.warc.gz").rename(archive / "one.warc.gz")
    expected = _payloads(Corpus.from_warcs(archive / "one.warc.gz").enrich("response", "text"))
    with _wayback(tmp_path) as replayed:
        address = f"http://127.0.0.1:{replayed.port}/all/"
        server = Corpus.from_archive(f"{address}cdx", url=f"{base}/*", output="json")
        for corpus in (server, Corpus.from_cdx(local_list)):
            asked = corpus.enrich("response", "text").having(replay=address, rate=1000.0)
            assert _payloads(asked) == expected, replayed.log.read_text()
        (entry, *_) = asked.where("status == 200")
        assert "Memento-Datetime" not in entry["httpHeader"]
    assert len(expected) > 4


def _payloads(corpus: Corpus) -> dict[tuple[str, str], object]:
    """The payload of each capture, as its length and its text."""
    entries = list(corpus.where("url =~ '^http'"))  # wget writes what is no capture, too
    assert not any("error" in entry for entry in entries), entries
    return {
        (entry["record"]["originalUrl"], entry["record"]["timestamp"]): entry["payload"]
        for entry in entries
    }
