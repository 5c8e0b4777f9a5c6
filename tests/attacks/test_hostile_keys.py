"""Clients that send a new long value every time: the memory of a worker stays bounded."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 120.0  # seconds after which an answer does not come
GROWTH = 50 << 20  # bytes that a worker may take more after hostile requests than before
LONG = 55_000  # characters of a parameter; with all others it fits into a request line
LONG_HEADER = 200_000
HEADERS = (
    *("Accept", "Accept-Charset", "Accept-Encoding", "Accept-Language", "Authorization"),
    *("Cache-Control", "Content-Type", "Cookie", "Forwarded", "From", "If-Match", "If-None-Match"),
    *("If-Modified-Since", "Origin", "Range", "Referer", "Sec-Fetch-Site", "User-Agent"),
    *("X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Request-Id"),
)
KNOWN = {"digest": str(sha1(1)), "url": "http://example.com/1", "crawl": "known", "name": "known"}


class Served(NamedTuple):
    """A server with one worker, as a user starts it."""

    port: int
    worker: int  # process id

    def private(self) -> int:
        """The private memory of the worker, in bytes."""
        text = Path(f"/proc/{self.worker}/smaps_rollup").read_text()
        return sum(int(size) << 10 for size in re.findall(r"Private_\w+: +(\d+) kB", text))


@contextmanager
def served(index: Path) -> Iterator[Served]:
    log = index.with_name(index.name + ".log")
    command = [ROOT / "bin" / "serve", index, "--port", "0", "--workers", "1", "--json"]
    with (
        open(log, "w") as stream,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stream, text=True) as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            (worker,) = (
                int(process_id) for process_id in children.split() if _serves(int(process_id))
            )
            yield Served(int(json.loads(line)["url"].rpartition(":")[2]), worker)
        finally:
            process.terminate()
            process.wait(DEADLINE)


def _serves(process: int) -> bool:
    """Whether a process is a worker: others of Python's own hold no sockets that listen."""
    return b"resource_tracker" not in Path(f"/proc/{process}/cmdline").read_bytes()


@pytest.fixture
def server(make_index: MakeIndex) -> Iterator[Served]:
    index = make_index([capture(number, b"http://example.com/%d" % number) for number in (1, 2)])
    with served(index) as running:
        with closing(HTTPConnection("127.0.0.1", running.port, timeout=DEADLINE)) as connection:
            ask(connection, "POST", "/crawls", {"name": "known"})
        yield running


def ask(
    connection: HTTPConnection, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, bytes]:
    """Send a request; a refused or closed connection is opened again next time."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        body = json.dumps(body)
        fields.setdefault("Content-Type", "application/json")
    try:
        connection.request(method, path, body, fields)
        response = connection.getresponse()
        return response.status, response.read()
    except OSError:
        connection.close()
        return 0, b""


def long_value(chance: Random, length: int) -> str:
    """Return a long text: a URL, a list, an expression or other text."""
    unique = f"{chance.getrandbits(64):x}"
    forms = (
        f"http://{unique}.{'a.' * (length // 2)}example/",
        f"http://example.com/{unique}{'/a' * (length // 2)}",
        f"http://example.com/?{unique}{'&a=b' * (length // 4)}",
        f"{unique}{'x' * length}",
        f"{unique}, {'text/plain;q=0.5, ' * (length // 18)}*/*",
        f"{'timestamp,digest, ' * (length // 20)}{' ' * (chance.getrandbits(10))}url",
        f"!~mime:{unique[:8]}{'a|' * 90}b",
        f"Bearer {unique}{'t' * length}",
    )
    return chance.choice(forms)


def parameters(connection: HTTPConnection) -> Iterator[tuple[str, str, list[str]]]:
    """Method, path and parameters of each route that the server's own document has."""
    document = json.loads(ask(connection, "GET", "/openapi.json")[1])
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            declared = operation.get("parameters", ())
            names = [parameter["name"] for parameter in declared if parameter["in"] == "query"]
            yield method.upper(), path, names
            if "requestBody" in operation:
                content = operation["requestBody"]["content"]["application/json"]["schema"]
                schema = document["components"]["schemas"][content["$ref"].rpartition("/")[2]]
                yield f"{method.upper()} body", path, list(_fields(schema, document))


def _fields(schema: dict[str, Any], document: dict[str, Any]) -> set[str]:
    """The names of fields in a schema, also of those within it."""
    text = json.dumps(schema)
    names = set(schema.get("properties", ()))
    for reference in re.findall(r'schemas/(\w+)"', text):
        names |= set(document["components"]["schemas"][reference].get("properties", ()))
    return names


def attack(connection: HTTPConnection, chance: Random, routes: list[Any]) -> int:
    """Send a long value in each parameter of each route and each header; return the number."""
    count = 0
    for method, path, names in routes:
        http_method, _, body = method.partition(" ")
        for name in names or [""]:
            value = long_value(chance, LONG)
            target = re.sub(r"\{\w+\}", "known" if name else quote(value[:LONG], safe=""), path)
            content = {parameter: KNOWN[parameter] for parameter in names if parameter in KNOWN} | {
                name: value
            }
            if body:
                lists = {"lookups": [content], "captures": [content], "claims": [content]}
                ask(connection, http_method, target, content)
                ask(connection, http_method, target, {k: v for k, v in lists.items() if k in names})
            else:
                query = "&".join(
                    f"{key}={quote(text, safe='/:,.')}" for key, text in content.items()
                )
                ask(connection, http_method, f"{target}?{query}"[:65_000])
            count += 1
    for path in ("/lookup", "/crawls", "/"):
        for header in HEADERS:
            query = f"{path}?digest={KNOWN['digest']}&url={quote(KNOWN['url'])}&crawl=known"
            ask(connection, "GET", query, None, **{header: long_value(chance, LONG_HEADER)})
            count += 1
    for _ in range(80):  # what crawlers ask most
        for crawl in ("", "&crawl=known", f"&crawl={chance.getrandbits(600):x}"):
            url = quote(f"http://{chance.getrandbits(64):x}.{'a.' * (LONG // 2)}com/", safe="")
            ask(connection, "GET", f"/lookup?digest={sha1(1)}&url={url}{crawl}")
            count += 1
    for _ in range(30):
        fields = ",".join(chance.choices(("url", "mime", "digest", "status"), k=LONG // 8))
        ask(connection, "GET", f"/cdx?url=http://example.com/1&fl={fields}")
        accept = long_value(chance, LONG_HEADER // 2)
        ask(connection, "GET", f"/lookup?digest={sha1(1)}", Accept=accept)
        count += 2
    return count


def test_hostile_keys_do_not_fill_memory(server: Served, chance: Random, effort: int) -> None:
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE)) as connection:
        routes = list(parameters(connection))
        attack(connection, chance, routes)  # what is loaded on first use, and the heap's own slack
        before = server.private()
        count = sum(attack(connection, chance, routes) for _ in range(2 * effort))
        grown = server.private() - before
        url = f"http://{'a.' * (LONG // 2)}example/"
        answer = ask(connection, "GET", f"/lookup?digest={sha1(1)}&url={quote(url, safe='')}")
    assert (answer[0], json.loads(answer[1])["match"]) == (200, "digest")  # answered all the same
    assert grown < GROWTH, f"{grown >> 20} MiB more after {count} requests"
