"""The yardstick of WARC reading: a bare FastWARC loop that takes the SHA-1 of every payload.

    python -m tests.benchmarks.loop FILE...    prints seconds of the loop, responses, bytes

It hashes what our index build hashes and compares it with what the record says, and does nothing
else: no keys, no entries, no sorting, nothing written.
"""

from __future__ import annotations

import json
import sys
import time
from base64 import b32encode
from hashlib import sha1

from fastwarc.warc import ArchiveIterator, WarcRecordType

_STEP = 1 << 16


def scan(path: str) -> tuple[int, int]:
    """Responses whose payload has the digest they state, and their bytes."""
    responses = size = 0
    with open(path, "rb") as stream:
        for record in ArchiveIterator(
            stream, record_types=WarcRecordType.response, parse_http=False
        ):
            record.parse_http()
            hasher = sha1(usedforsecurity=False)
            while data := record.reader.read(_STEP):
                hasher.update(data)
                size += len(data)
            stated = record.headers.get("WARC-Payload-Digest")
            responses += stated == "sha1:" + b32encode(hasher.digest()).decode()
    return responses, size


def main() -> None:
    begin = time.perf_counter()
    found = [scan(path) for path in sys.argv[1:]]
    wall = time.perf_counter() - begin
    responses, size = map(sum, zip(*found, strict=True))
    print(json.dumps({"wall": wall, "responses": responses, "bytes": size}))


if __name__ == "__main__":
    main()
