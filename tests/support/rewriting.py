"""Sets of containers to rewrite, and a plan for them made by simple code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

from dedupindex.post_crawl.manifest.parquet import Line, ManifestContainer
from dedupindex.post_crawl.plan.plan_file import MatchCriteria, Plan, Planned, Totals
from dedupindex.post_crawl.rewrite.rewrite_all import rewrite
from dedupindex.post_crawl.rewrite.rewrite_file import RewriteJob
from dedupindex.post_crawl.rewrite.rewrite_outcome import RewriteOutcome
from dedupindex.post_crawl.verify_results import Proof
from dedupindex.runtime.atomic_replace import content_hash
from dedupindex.warc import http
from dedupindex.warc.gzip_members import Filler
from dedupindex.warc.reader import read
from dedupindex.warc.record import Record
from dedupindex.warc.window import open_window
from tests.support.warc_cases import HTTP, gz, request, response, sha1

EARLY, LATE = b"2020-01-01T00:00:00Z", b"2026-11-20T09:14:17Z"


class FakePlan(Plan):
    """Every response that has the body of an earlier one becomes its revisit."""

    def __init__(self, root: Path, names: list[str] | None = None) -> None:
        self.totals, self.criteria, self.made_of = Totals(), MatchCriteria(), "fake"
        self.path = Path("plan")
        names = names or sorted(
            str(path.relative_to(root))
            for path in root.rglob("*.warc*")
            if path.is_file() and not path.name.startswith(".")
        )
        self._containers = {
            number: _container(number, root, name) for number, name in enumerate(names, 1)
        }
        self.found: list[Planned] = []
        first: dict[bytes, Line] = {}
        all_lines = [
            (line, body)
            for container in self._containers.values()
            for line, body in _lines(container)
        ]
        for line, body in sorted(all_lines, key=lambda pair: pair[0].date):
            original = first.setdefault(body, line)
            if original is not line:
                self.found.append(Planned(line, 2, 1, original))
        self.totals.copies = len(self.found)
        self.totals.stored = sum(planned.line.stored for planned in self.found)

    def preload(self) -> None:
        self._loaded = {number: [*self.copies(number)] for number in self.containers()}, {}

    def containers(self) -> dict[int, ManifestContainer]:
        return self._containers

    def lines(self, container: int) -> Iterator[Line]:
        yield from (line for line, _ in _lines(self._containers[container]))

    def outside(self) -> dict[int, ManifestContainer]:
        return {}

    def container(self, number: int) -> ManifestContainer:
        return self._containers[number]

    def copies(self, container: int, part: range | None = None) -> Iterator[Planned]:
        copies = [
            planned
            for planned in self.found
            if planned.line.container == container and (part is None or planned.line.offset in part)
        ]
        yield from sorted(copies, key=lambda planned: planned.line.offset)

    def protected(self, container: int) -> Iterator[int]:
        yield from sorted(
            {
                planned.original.offset
                for planned in self.found
                if planned.original.container == container
            }
        )


def _container(number: int, root: Path, name: str) -> ManifestContainer:
    status = os.stat(root / name)
    with open(root / name, "rb", buffering=0) as file:
        digest = content_hash(file)
    return ManifestContainer(
        number, str(root), name, status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev,
        digest,
    )  # fmt: skip


def _lines(container: ManifestContainer) -> Iterator[tuple[Line, bytes]]:
    window = open_window(container.name, container.path)
    responses = []
    for event in read(window):
        if isinstance(event, Record) and event.type == b"response":
            block = b"".join(bytes(piece) for piece in event.pieces())
            responses.append((event, block))
    window.close()
    for event, block in responses:  # the lengths of long records are known only now
        url, date, record_id, _, digest, _, _ = event.values
        head, _, body = block.partition(b"\r\n\r\n")
        line = Line(
            container.number, event.offset, event.stored, record_id.strip(b"<>"),
            url.strip(b"<>"), date, digest, b"", 3, b"", len(body), 200, b"\n",
            http.content_types(head), 0, "", "",
        )  # fmt: skip
        yield line, body


def members(*records: bytes) -> bytes:
    return b"".join(map(gz, records))


def small_set(root: Path) -> None:
    """Three containers, one of them plain and one in a folder, whose bodies repeat."""
    (root / "deep").mkdir(parents=True)
    bodies = [Random(number).randbytes(1500) for number in range(6)]

    def pair(number: int, body: bytes, date: bytes = LATE) -> list[bytes]:
        url = b"http://example.com/%d" % number
        block = sha1(HTTP + body)
        return [
            response(body, (b"WARC-Block-Digest", block), number=number, Target_URI=url, Date=date),
            request(number=1000 + number, Target_URI=url),
        ]

    first = [record for number in range(6) for record in pair(number, bodies[number], EARLY)]
    second = [record for number in range(20, 32) for record in pair(number, bodies[number % 8 % 6])]
    third = [record for number in range(40, 46) for record in pair(number, bodies[number - 40])]
    # within one file: an original of its own, and a copy of it behind it
    third += pair(50, body := Random(9).randbytes(2000), EARLY) + pair(51, body)
    (root / "a.warc.gz").write_bytes(members(*first))
    (root / "deep" / "b.warc.gz").write_bytes(members(*second))
    (root / "c.warc").write_bytes(b"".join(third))


def total(outcomes: list[RewriteOutcome]) -> RewriteOutcome:
    totals = RewriteOutcome(files=0)
    for outcome in outcomes:
        totals.add(outcome)
    return totals


def all_proofs(proofs: Iterator[Proof]) -> Proof:
    """The proofs of files as one, in an order of its own."""
    total = Proof()
    for proof in proofs:
        total.add(proof)
    total.named.sort()
    return total


def run(job: RewriteJob, processes: int = 1) -> list[RewriteOutcome]:
    return sorted(rewrite(job, processes), key=lambda outcome: outcome.name)


def records_of(path: Path) -> list[tuple[bytes, bytes]]:
    """Header and block of every record."""
    window = open_window(path.name, path)
    records = []
    for event in read(window):
        if isinstance(event, Filler) and not event.offset:  # a zstd dictionary
            continue
        assert isinstance(event, Record), event
        block = b"".join(bytes(piece) for piece in event.pieces())
        event.finish()
        records.append((event.text, block))
    window.close()
    return records


def content(root: Path) -> dict[str, bytes]:
    """Every file below a directory but those of journals."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".rewrite" not in path.parts
    }
