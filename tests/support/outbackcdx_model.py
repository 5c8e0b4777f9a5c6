"""A model of OutbackCDX: how it answers ranges of keys, with its cap on records of an answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

from tests.support.stub_server import stub_server


@dataclass
class OutbackCdxModel:
    """A collection ``coll``; as text, so that tests state what the real one was seen to answer."""

    lines: list[bytes]  # sorted by key and time
    cap: int = 1 << 60  # records that one answer reads (the option -r)
    broken: list[bytes] = field(default_factory=list)  # answers that end in this way come first
    queries: list[dict[str, str]] = field(default_factory=list)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = urlsplit(handler.path)
        query = {
            name: value for name, (value,) in parse_qs(path.query, True, encoding="latin-1").items()
        }
        self.queries.append(query)
        if path.path != "/coll":
            handler.send_response(404)
            handler.end_headers()
            handler.wfile.write(b"Collection nope does not exist\n")
            return
        handler.send_response(200)
        found = list(self._found(query))
        if self.broken and found:
            found = [*found[: len(found) // 2], self.broken.pop(0), b" " * 99]
            text = b"".join(found[:-1])
        else:
            text = b"".join(found)
        handler.send_header("Content-Length", str(sum(map(len, found))))
        handler.end_headers()
        handler.wfile.write(text)

    def _found(self, query: dict[str, str]) -> Iterator[bytes]:
        urlkey, since = query["urlkey"].encode("latin-1"), int(query.get("from", 0))
        left = min(self.cap, int(query["limit"]))
        for line in self.lines:
            key, timestamp = _position(line)
            if query["matchType"] == "range":
                wanted = urlkey <= key < b"~"
            else:
                wanted = key == urlkey and timestamp >= since
            if wanted and left > 0:
                left -= 1
                yield line


def row(urlkey: str, timestamp: int, **columns: str) -> bytes:
    return f"{urlkey} {timestamp} ".encode() + json.dumps(columns).encode() + b"\n"


def _position(line: bytes) -> tuple[bytes, int]:
    key, timestamp, _ = line.split(b" ", 2)
    return key, int(timestamp)


@contextmanager
def outbackcdx_model(
    lines: Iterable[bytes], cap: int = 1 << 60
) -> Iterator[tuple[str, OutbackCdxModel]]:
    """Serve a collection; gives its address as a source, and the model."""
    model = OutbackCdxModel(sorted(lines, key=_position), cap)
    with stub_server(model.answer) as url:
        yield f"outbackcdx+{url}/coll", model
