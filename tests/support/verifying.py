"""Archives as a correct rewriter writes them, made with string operations only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dedupindex.verify.compare_files import verify_pair
from dedupindex.verify.issues import Finding
from dedupindex.verify.locate_originals import OriginalsIndex
from tests.support.warc_cases import (
    END,
    HTTP,
    IDENTICAL,
    gz,
    record_id,
    request,
    response,
    revisit,
    sha1,
)

HOST = b"http://example.com/"
DAY = b"2026-11-%02dT09:14:17Z"
BODY = b"<html>" + bytes(range(32, 127)) * 20 + b"</html>"


def page(number: int, body: bytes = BODY, **options: Any) -> bytes:
    """A response as wget writes it; the `number` is in its URL, date and id."""
    options.setdefault("Target_URI", HOST + b"%d" % number)
    options.setdefault("Date", DAY % number)
    options.setdefault("Block_Digest", sha1(options.get("head", HTTP) + body))
    return response(body, number=number, **options)


def asked(number: int) -> bytes:
    """The request of page `number`."""
    return request(
        number=100 + number,
        Target_URI=HOST + b"%d" % number,
        Date=DAY % number,
        Concurrent_To=record_id(number),
    )


def copy_of(number: int, original: int, body: bytes = BODY, **options: Any) -> bytes:
    """The revisit that page `number` becomes, field by field."""
    block = options.pop("block", options.get("head", HTTP))
    options.pop("head", None)
    fields = {
        "Target_URI": HOST + b"%d" % number,
        "Date": DAY % number,
        "Content_Type": b"application/http; msgtype=response",
        "Payload_Digest": sha1(body),
        "Block_Digest": sha1(block),
        "Profile": IDENTICAL,
        "Truncated": b"length",
        "Refers_To": record_id(original),
        "Refers_To_Target_URI": HOST + b"%d" % original,
        "Refers_To_Date": DAY % original,
    }
    return revisit(block, **{"number": number, **fields, **options})


def write(path: Path, records: list[bytes], *, plain: bool = False) -> Path:
    """An archive of these records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(records) if plain else b"".join(map(gz, records)))
    return path


def compared(old: Path, new: Path, *others: Path) -> list[Finding]:
    """What `verify_pair` finds, with originals in `new` and `others`."""
    database = new.parent / "places.sqlite"
    database.unlink(missing_ok=True)
    originals = OriginalsIndex(database)
    originals.add_files([new, *others])
    return list(verify_pair(old, new, originals.find))


def reasons(findings: list[Finding]) -> set[str]:
    return {finding.reason for finding in findings}


__all__ = ["BODY", "DAY", "END", "HOST", "HTTP", "asked", "compared", "copy_of", "page", "reasons"]
