"""A crawler of a hundred lines: real HTTP into real WARC, asking a dedupindex server on its way.

It fetches over a plain socket, so that what it writes is what came over the wire, chunk framing
included. Its payload digest is of the entity (WARC 1.1 section 5.9), which is what it asks for.
"""

from __future__ import annotations

import json
import socket
import time
from base64 import b32encode
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha1
from io import BytesIO
from pathlib import Path
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

PROFILE = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"


def harvest(urls: Iterable[str], port: int, path: Path, *, server: str = "") -> Counter[str]:
    """Fetch `urls` from the site at a loopback port into a WARC; ask `server` if one is given.

    Returns how many records of each kind were written. A server that fails counts as
    "not-looked-up" and the response is stored in full: an outage must never look like "new".
    """
    outcome: Counter[str] = Counter()
    with open(path, "wb") as stream:
        writer = WARCWriter(stream, gzip=True, warc_version="WARC/1.1")
        writer.write_record(writer.create_warcinfo_record(path.name, {"software": "demo"}))
        for url in urls:
            head, body, entity = fetch(url, port)
            digest, date = digest_of(entity), now()
            answer = _ask(server, digest, url, outcome) if server and entity else None
            kind, _ = write(writer, url, date, digest, head, body, answer)
            outcome[kind] += 1
    return outcome


def digest_of(entity: bytes) -> str:
    """As WARC has it, of a payload."""
    return "sha1:" + b32encode(sha1(entity).digest()).decode()


def now() -> str:
    """The time, as WARC has it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def await_second_after(date: str) -> None:
    """Wait until captures have another date than this one.

    A response of the same URL and second, but with another HTTP header, is not rewritten.
    """
    while now() == date:
        time.sleep(0.01)


def fetch(url: str, port: int) -> tuple[bytes, bytes, bytes]:
    """Header block and body as they came, and the body without chunk framing."""
    parts = urlsplit(url)
    request = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(request.encode())
        reply = connection.makefile("rb").read()
    head, separator, body = reply.partition(b"\r\n\r\n")
    chunked = b"transfer-encoding: chunked" in head.lower()
    return head + separator, body, _without_chunks(body) if chunked else body


def _without_chunks(body: bytes) -> bytes:
    entity, stream = b"", BytesIO(body)
    while length := int(stream.readline(), 16):
        entity += stream.read(length)
        stream.readline()
    return entity


def _ask(server: str, digest: str, url: str, outcome: Counter[str]) -> dict[str, str] | None:
    query = f"{server}/lookup?digest={quote(digest)}&url={quote(url, safe='')}"
    try:
        with urlopen(Request(query), timeout=20) as reply:
            answer = json.load(reply)
    except (OSError, ValueError):
        outcome["not-looked-up"] += 1
        return None
    if not answer["duplicate"]:
        return None
    outcome[answer["match"]] += 1
    original: dict[str, str] = answer["original"]
    return original


def write(
    writer: WARCWriter,
    url: str,
    date: str,
    digest: str,
    head: bytes,
    body: bytes,
    original: dict[str, str] | None,
) -> tuple[str, str]:
    """Write a response, or a revisit of an original (WARC 1.1 section 6.7.2): its kind and id."""
    kind = "revisit" if original else "response"
    block = head if original else head + body
    fields = [("WARC-Payload-Digest", digest)]
    if original:
        fields += [
            ("WARC-Profile", PROFILE),
            ("WARC-Truncated", "length"),
            ("WARC-Refers-To", f"<{original['record_id']}>"),
            ("WARC-Refers-To-Target-URI", original["url"]),
            ("WARC-Refers-To-Date", original["date"]),
        ]
    record_id = writer._make_warc_id()
    fields += [("WARC-Date", date), ("WARC-Record-ID", record_id), ("WARC-Target-URI", url)]
    headers = StatusAndHeaders("", [("WARC-Type", kind), *fields], protocol="WARC/1.1")
    record = writer.create_warc_record(
        url,
        kind,
        payload=BytesIO(block),
        length=len(block),
        warc_content_type="application/http; msgtype=response",
        warc_headers=headers,
    )
    writer.write_record(record)
    return kind, record_id
