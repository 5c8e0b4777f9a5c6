"""One file as three parts of the product read it: the index, the manifest, and verify."""

from __future__ import annotations

import hashlib
import re
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from dedupindex.capture import Capture, Problem, Refusal
from dedupindex.post_crawl.manifest.parquet import Line
from dedupindex.post_crawl.manifest.record_lines import ManifestOptions, Scan
from dedupindex.sources.warc_records import WarcSource
from dedupindex.verify.file_bytes import opened
from dedupindex.verify.issues import DAMAGE, REMARK, Broken, Finding
from dedupindex.verify.parse_records import AnyRecord, CheckedRecord
from dedupindex.verify.walk_file import Container

_SHARED = "share one gzip member or zstd frame"
_ODD = ("its version line", "its header has bare")  # of the form, not of a field
_ZEROS = ("zero bytes", "no gzip member")  # padding: reported by verify, skipped by the index
Payload = tuple[int, int, str]  # offset of the record, length, SHA-1 in hex


class Reading(NamedTuple):
    """What one of the three parts reads in a file."""

    records: int  # that are whole, of all types
    payloads: set[Payload]  # of responses and ARC documents
    damaged: set[int]  # offsets
    remarks: int  # on records that are whole


def by_index(path: Path) -> tuple[Reading, set[Payload]]:
    """As `bin/index` reads it, and the payloads that it admits."""
    with WarcSource(path.name, path) as source:
        items = list(source.items())
    captures = {
        (item.offset, item.size, item.digest.raw.hex())
        for item in items
        if isinstance(item, Capture)
    }
    damaged_records = sum(isinstance(item, Refusal) and item.reason == "damaged" for item in items)
    problems = [item for item in items if isinstance(item, Problem)]
    harmless = (_SHARED, "-Digest does not match")  # of records that were read whole
    damaged = {
        problem.offset
        for problem in problems
        if not any(text in problem.message for text in harmless)
    }
    records = len(items) - len(problems) - damaged_records
    if any(_SHARED in item.message for item in problems):
        captures = set()  # replay reaches the first of each member only
    return Reading(records, set(), damaged, source.remarks.total()), captures


def by_manifest(path: Path) -> tuple[Reading, list[Line]]:
    """As `bin/manifest` reads it."""
    with closing(Scan(str(path), 0, ManifestOptions())) as scan:
        lines = [line for batch in scan.lines() for line in batch]
    payloads = {(line.offset, line.length, line.payload.hex()) for line in lines}
    damaged = {offset for offset, text in scan.problems if not text.startswith("zero bytes")}
    records = scan.records.total() - scan.records["damaged"]
    return Reading(records, payloads, damaged, scan.remarks.total()), lines


def by_verify(path: Path) -> Reading:
    """As `bin/verify` reads it, which shares no code with the others."""
    records: list[tuple[AnyRecord, bytes]] = []
    damaged, remarks, odd = set(), 0, False
    with opened(path) as file:
        for item in Container(file).each():
            if not isinstance(item, Finding):
                odd = isinstance(item, CheckedRecord) and item.head.odd.startswith(_ODD)
                with suppress(Broken):  # raised again when the record is closed
                    records.append((item, b"".join(item.pieces())))
            elif item.level == DAMAGE and not any(text in item.message for text in _ZEROS):
                damaged.add(item.offset)
            elif item.reason == "runs-on":  # the others remark that a line end is missing
                remarks += not odd
            elif item.level == REMARK and not odd and "first record" not in item.message:
                remarks += "without a record" not in item.message
    whole = [(record, block) for record, block in records if record.end >= 0]  # they were closed
    remarks += sum(
        isinstance(record, CheckedRecord) and record.head.odd.startswith(_ODD)
        for record, _ in whole
    )
    payloads = {
        _payload(record.offset, block)
        for record, block in whole
        if record.kind in (b"response", b"arc")
    }
    return Reading(len(whole), payloads, damaged, remarks)


def _payload(offset: int, block: bytes) -> Payload:
    blank = re.search(rb"\n\r?\n", block) if block.startswith(b"HTTP/") else None
    body = block[blank.end() :] if blank else block
    return offset, len(body), hashlib.sha1(body).hexdigest()


def compare_readings(path: Path, data: bytes) -> Reading:
    """Check that all three read the same in some bytes, and return it."""
    path.write_bytes(data)
    index, captures = by_index(path)
    manifest, lines = by_manifest(path)
    verify = by_verify(path)
    assert captures <= manifest.payloads, (captures, manifest.payloads)
    refused = {
        line.offset
        for line in lines
        if line.not_original_reason not in ("", "not-exact", "no-digest")
    }
    missing = {
        payload
        for payload in manifest.payloads - captures
        if payload[0] not in refused and captures
    }
    assert not missing, missing
    index = index._replace(payloads=manifest.payloads)
    assert index == manifest == verify, (index, manifest, verify, data[:9000])
    return verify
