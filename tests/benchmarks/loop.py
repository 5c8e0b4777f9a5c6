"""The yardstick of WARC reading: a bare FastWARC loop that takes the SHA-1 of every payload.

    python -m tests.benchmarks.loop [--strong] FILE...    prints seconds, responses, bytes, records

It hashes what our index build hashes (with --strong, BLAKE3 too, what our manifest hashes) and
compares it with what the record says, and does nothing else: no keys, no entries, no sorting,
nothing written.
"""

from __future__ import annotations

import json
import sys
import time
from base64 import b32encode
from hashlib import sha1

from blake3 import blake3
from fastwarc.warc import ArchiveIterator, WarcRecordType

_STEP = 1 << 16


def scan(path: str, *, strong: bool) -> tuple[int, int, int]:
    """Responses whose body has the digest they state, bytes, and responses of all kinds.

    A body with its chunks has not the digest that a crawler took without them.
    """
    responses = size = records = 0
    with open(path, "rb") as stream:
        for record in ArchiveIterator(
            stream, record_types=WarcRecordType.response, parse_http=False
        ):
            record.parse_http()
            records += 1
            hasher = sha1(usedforsecurity=False)
            second = blake3() if strong else None
            while data := record.reader.read(_STEP):
                hasher.update(data)
                if second is not None:
                    second.update(data)
                size += len(data)
            if second is not None:
                second.digest()
            stated = record.headers.get("WARC-Payload-Digest")
            responses += stated == "sha1:" + b32encode(hasher.digest()).decode()
    return responses, size, records


def main() -> None:
    begin = time.perf_counter()
    strong = sys.argv[1] == "--strong"
    found = [scan(path, strong=strong) for path in sys.argv[1 + strong :]]
    wall = time.perf_counter() - begin
    responses, size, records = map(sum, zip(*found, strict=True))
    report = {"wall": wall, "responses": responses, "bytes": size, "records": records}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
