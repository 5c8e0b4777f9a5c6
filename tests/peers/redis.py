"""A real redis-server of its own for a test, and browsertrix-crawler as Redis sees it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import redis

from tests.conftest import need
from tests.peers.environments import running
from tests.peers.replay import free_port, listening


@contextmanager
def redis_server(folder: Path, password: str = "") -> Iterator[str]:
    """A server that keeps nothing; gives the address of its first database."""
    need("redis-server", found=shutil.which("redis-server") is not None)
    port = free_port()
    words: list[str | Path] = ["redis-server", "--port", str(port), "--bind", "127.0.0.1"]
    words += ["--save", "", "--appendonly", "no", "--dir", folder]
    words += ["--requirepass", password] if password else []
    with running(words, folder / "redis.log", lambda: listening(port)):
        yield f"redis://{f':{password}@' if password else ''}127.0.0.1:{port}/0"


class Found(NamedTuple):
    """What the crawler writes into a revisit."""

    url: str
    date: str
    container: str | None


class Crawl:
    """A crawl of browsertrix-crawler 1.14.1: its commands, in its order, as they were recorded."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self.client: Any = client
        self.name = name
        being_written = {"filename": f"20261121031450842-{name}.wacz"}
        self.client.rpush(f"c:{name}:wacz", json.dumps(being_written))
        self.client.sadd("uncommittedcrawls", name)

    def response(self, digest: str, url: str, digits: str, size: int) -> Found | None:
        """Look a response up, and add it if it is new."""
        client, counts = self.client, f"h:{self.name}:counts"
        crawl = client.hget("alldupes", digest)
        crawl = crawl.decode() if crawl else self.name
        value = client.hget(f"h:{crawl}", digest)
        if value is None:
            client.hsetnx(f"h:{self.name}", digest, f"0 {digits} {url} {size}")
            client.hincrby(counts, "totalUrls", 1)
            return None
        place, moment, original, stored = value.decode().split(" ")
        listed = client.lindex(f"c:{crawl}:wacz", int(place))
        client.hincrby(counts, "totalUrls", 1)
        client.hincrby(counts, "conservedSize", max(int(stored) - 210, 0))
        client.hincrby(counts, "dupeUrls", 1)
        date = datetime.strptime(moment + "000", "%Y%m%d%H%M%S%f")
        text = date.isoformat(timespec="milliseconds") + "Z"
        return Found(original, text, redis_name(listed))

    def finish(self, size: int = 15171) -> None:
        """The WACZ is made."""
        made = {"filename": f"{self.name}.wacz", "hash": "sha256:00", "size": size}
        self.client.lset(f"c:{self.name}:wacz", 0, json.dumps(made))
        self.client.hincrby(f"h:{self.name}:counts", "totalCrawlSize", size)

    def commit(self) -> None:
        """Let other crawls see it."""
        client, name = self.client, self.name
        assert client.sismember("uncommittedcrawls", name)
        cursor = None
        while cursor != 0:
            cursor, found = client.hscan(f"h:{name}", cursor or 0)
            for digest in found:
                client.hsetnx("alldupes", digest, name)
        for place in range(client.llen(f"c:{name}:wacz")):
            client.sadd("src:d", redis_name(client.lindex(f"c:{name}:wacz", place)))
        client.smove("uncommittedcrawls", "allcrawls", name)
        for field, value in client.hgetall(f"h:{name}:counts").items():
            client.hincrby("allcounts", field, int(value))


def redis_name(listed: bytes | None) -> str | None:
    """The file name in an entry of a list of WACZs."""
    return None if listed is None else str(json.loads(listed)["filename"])


def state(client: Any) -> dict[str, Any]:
    """Everything that is in a database."""
    found: dict[str, Any] = {}
    for key in sorted(client.keys()):
        kind = client.type(key)
        if kind == b"hash":
            found[key.decode()] = client.hgetall(key)
        elif kind == b"set":
            found[key.decode()] = client.smembers(key)
        elif kind == b"list":
            found[key.decode()] = client.lrange(key, 0, -1)
        else:
            found[key.decode()] = client.get(key)
    return found
