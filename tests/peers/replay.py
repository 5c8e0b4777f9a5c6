"""Replay judges a crawl: every capture of some WARCs as a reader of the archive would get it.

    with replay(warcs, folder) as archive:
        check_revisits(warcs, archive, bodies)

`pywb` from PyPI reads the WARCs with an index of its own and nothing of ours.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

from warcio.archiveiterator import ArchiveIterator

from demo.steps import free_port
from tests.peers.environments import DEADLINE, PYWB, environment, running


class Record(NamedTuple):
    """A response or revisit, as warcio reads it. What a record does not say is ""."""

    type: str
    url: str
    date: str
    record_id: str
    digest: str
    status: str
    refers_to: str
    refers_to_url: str
    refers_to_date: str


class Replayed(NamedTuple):
    """What a reader gets."""

    status: int
    body: bytes
    date: str  # of the capture that pywb has taken: of several, the nearest that it can replay


class Whole(NamedTuple):
    """What a reader gets, with the headers as they came."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Archive(NamedTuple):
    """A running pywb."""

    port: int
    log: Path

    def get(self, url: str, date: str, mode: str = "id_") -> Replayed:
        """The capture of a URL at a WARC-Date."""
        answer = self.whole(url, date, mode)
        said = dict(answer.headers).get("Memento-Datetime")
        date = f"{parsedate_to_datetime(said):%Y-%m-%dT%H:%M:%SZ}" if said else ""
        return Replayed(answer.status, answer.body, date)

    def whole(self, url: str, date: str, mode: str = "id_") -> Whole:
        """As `get`; headers tell neither the time nor the port of pywb."""
        moment = "".join(filter(str.isdigit, date))[:14]
        connection = HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)
        try:
            # Without this header pywb would unpack what the site sent compressed.
            accept = {"Accept-Encoding": "gzip, deflate, br"}
            connection.request("GET", f"/all/{moment}{mode}/{url}", headers=accept)
            response = connection.getresponse()
            own = f"127.0.0.1:{self.port}"
            headers = [
                (name, value.replace(own, "pywb"))
                for name, value in response.getheaders()
                if name != "Date"  # of the answer
            ]
            return Whole(response.status, tuple(headers), response.read())
        finally:
            connection.close()


def records(warcs: Iterable[Path]) -> list[Record]:
    """All responses and revisits, in the order of the files."""
    found = []
    for path in warcs:
        with open(path, "rb") as stream:
            for record in ArchiveIterator(stream):
                if record.rec_type not in ("response", "revisit"):
                    continue
                header = record.rec_headers.get_header
                names = (
                    *("WARC-Target-URI", "WARC-Date", "WARC-Record-ID", "WARC-Payload-Digest"),
                    *("WARC-Refers-To", "WARC-Refers-To-Target-URI", "WARC-Refers-To-Date"),
                )
                url, date, ident, digest, *refers = [header(name) or "" for name in names]
                status = record.http_headers.get_statuscode() if record.http_headers else ""
                url = url.removeprefix("<").removesuffix(">")
                found.append(Record(record.rec_type, url, date, ident, digest, status, *refers))
    return found


def check_references(found: list[Record], *, by_id_only: bool = False) -> int:
    """Every revisit names a response that exists, with its payload digest; how many there are.

    `by_id_only`: for crawlers that write WARC-Refers-To and nothing else of the original.
    """
    responses = {one.record_id: one for one in found if one.type == "response"}
    revisits = [one for one in found if one.type == "revisit"]
    for revisit in revisits:
        original = responses[revisit.refers_to]
        assert original.digest == revisit.digest
        assert original.date <= revisit.date
        if not by_id_only:
            named = (revisit.refers_to_url, revisit.refers_to_date)
            assert named == (original.url, original.date)
    return len(revisits)


def listening(port: int) -> bool:
    """Return whether a process accepts connections at a port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def replay(warcs: Iterable[Path], folder: Path) -> Iterator[Archive]:
    """pywb over some WARCs, which it indexes itself, in a new directory below `folder`."""
    tools = environment("pywb", PYWB)
    home = folder / "pywb"
    home.mkdir()
    for words in (["init", "all"], ["add", "all", *map(str, warcs)]):
        done = subprocess.run(
            [tools / "wb-manager", *words], cwd=home, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    port, log = free_port(), home / "pywb.log"
    words = [tools / "wayback", "-b", "127.0.0.1", "-p", str(port), "-t", "4"]
    with running(list(words), log, lambda: listening(port)):
        yield Archive(port, log)


def second(date: str) -> str:
    """A WARC-Date without its fraction."""
    return re.sub(r"\..*", "", date.removesuffix("Z")) + "Z"


def check_revisits(found: Iterable[Record], archive: Archive, bodies: Mapping[str, bytes]) -> int:
    """Every revisit replays, byte for byte as the site served it; how many did.

    Itself: of one that it cannot resolve pywb would give another capture of the URL.
    """
    checked = 0
    for record in found:
        if record.type == "revisit":
            answer = archive.get(record.url, record.date)
            date = second(record.date)
            expected = (200, bodies[record.url], date)
            assert answer == expected, f"{record}\n{archive.log.read_text()}"
            checked += 1
    return checked
