"""Servers for tests: an S3 object store and a web server, and their faults."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from tests.support.paths import ROOT

_numbers = count(1)


@dataclass
class Fault:
    """A fault in the answers to requests of a method, for paths with an ending."""

    ending: str
    times: int  # the number of requests that it applies to
    status: int = 0  # answered instead
    body: bytes = b""  # of that answer
    cut: int = -1  # bytes of the answer before the connection is cut
    short: int = -1  # bytes of the answer that are sent as if they were all of it
    wrong: bool = False  # whether a byte of the answer, or of what a PUT sends, is another
    then: Callable[[], object] = lambda: None  # done before the answer is sent
    method: str = "GET"
    query: str = ""  # a pattern that is found in the query of the request
    when: Callable[[], bool] = lambda: True  # whether it applies
    lost: bool = False  # whether the request is not carried out, if `status` is answered
    unconditional: bool = False  # whether a PUT is carried out whatever its conditions
    earlier: tuple[str, str] = ("", "")  # what is read in place of what: as it was before


@dataclass
class Server:
    """A server in a thread of this process."""

    url: str
    requests: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, range
    faults: list[Fault] = field(default_factory=list)

    def fault(self, method: str, path: str) -> Fault | None:
        """Return the fault of a request, if any, and count it down."""
        for fault in self.faults:
            name, _, query = path.partition("?")
            matches = fault.method == method and name.endswith(fault.ending)
            if matches and fault.times and re.search(fault.query, query) and fault.when():
                fault.times -= 1
                return fault
        return None


class _HttpServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, address: Any) -> None:
        """Ignore errors: a client may close its connection."""


@contextmanager
def _running(handler: Any, url: str = "") -> Iterator[Server]:
    with _HttpServer(("127.0.0.1", 0), handler) as http_server:
        http_server.daemon_threads = True
        server = Server(f"http://127.0.0.1:{http_server.server_port}{url}")
        http_server.state = server  # type: ignore[attr-defined]
        thread = threading.Thread(target=http_server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            http_server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def state(self) -> Server:
        state: Server = self.server.state  # type: ignore[attr-defined]
        return state

    def log_message(self, format: str, *args: object) -> None:
        pass

    def record_request(self) -> Fault | None:
        request = self.command, self.path, self.headers.get("Range", "")
        self.state.requests.append(request)
        fault = self.state.fault(self.command, self.path)
        if fault is not None:
            fault.then()
        return fault

    def answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, fault: Fault | None
    ) -> None:
        length = len(body)
        if fault is not None and fault.status:
            status, body, headers, length = fault.status, fault.body, [], len(fault.body)
        elif fault is not None and fault.short >= 0:
            body = body[: fault.short]
            length = len(body)
        elif fault is not None and fault.wrong and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        if self.command == "HEAD":
            length = int(dict((k.lower(), v) for k, v in headers).get("content-length", length))
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = fault is not None and 0 <= fault.cut < len(body)
        self.wfile.write(body[: fault.cut] if fault is not None and cut else body)
        if cut:
            self.close_connection = True


class _Proxy(_Handler):
    """Forwards requests."""

    target = ""

    def do_GET(self) -> None:
        fault = self.record_request()
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if fault is not None and fault.wrong and self.command == "PUT":
            middle = length // 2
            body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
        if fault is not None and fault.status and fault.lost:
            self.answer(fault.status, [], b"", fault)
            return
        path = self.path.replace(*fault.earlier) if fault is not None else self.path
        if fault is not None and fault.unconditional:
            for name in ("If-Match", "If-None-Match"):
                del self.headers[name]
        if not self._holds():
            self.answer(412, [], b"", None)
            return
        status, headers, answer = self._forward(self.command, path, body, dict(self.headers))
        self.answer(status, headers, answer, fault)

    def _forward(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = HTTPConnection(self.target)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        found = answer.status, answer.getheaders(), answer.read()
        connection.close()
        return found

    def _holds(self) -> bool:
        """Check If-Match of the request that completes an upload, which moto does not."""
        if self.command != "POST" or "If-Match" not in self.headers:
            return True
        who = {"Authorization": self.headers["Authorization"]}
        _, headers, _ = self._forward("HEAD", self.path.partition("?")[0], b"", who)
        return dict(headers).get("ETag") == self.headers["If-Match"]

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET


class _Files(_Handler):
    """Serves files of a directory with an ETag, with or without ranges; directories as links."""

    def __init__(self, *args: Any, root: Path, ranges: bool, etags: bool, sized: bool) -> None:
        self.root, self.ranges, self.etags, self.sized = root, ranges, etags, sized
        super().__init__(*args)

    def do_GET(self) -> None:
        fault = self.record_request()
        path = self.root / self.path.partition("?")[0].lstrip("/")
        if path.is_dir():
            names = [entry.name + "/" * entry.is_dir() for entry in sorted(path.iterdir())]
            links = "".join(f'<a href="{name}">{name}</a>\n' for name in names)
            self.answer(200, [("Content-Type", "text/html")], links.encode(), fault)
            return
        if not path.is_file():
            self.answer(404, [], b"", fault)
            return
        data = path.read_bytes()
        headers = [("Content-Type", "application/octet-stream")]
        if self.etags:
            headers.append(("ETag", f'"{hash(data):x}"'))
        if not self.sized:
            self.send_response(200)
            self.end_headers()
            self.close_connection = True
            self.wfile.write(data if self.command == "GET" else b"")
            return
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if match and self.ranges:
            begin, end = int(match[1]), min(int(match[2]), len(data) - 1)
            headers.append(("Content-Range", f"bytes {begin}-{end}/{len(data)}"))
            self.answer(206, headers, data[begin : end + 1], fault)
            return
        headers.append(("Content-Length", str(len(data))))
        self.answer(200, headers, data, fault)

    do_HEAD = do_GET


@contextmanager
def web(
    root: Path, *, ranges: bool = True, etags: bool = True, sized: bool = True
) -> Iterator[Server]:
    """A web server for the files below `root`."""
    with _running(partial(_Files, root=root, ranges=ranges, etags=etags, sized=sized)) as server:
        yield server


class _Responder(_Handler):
    def __init__(self, *args: Any, respond: Callable[[str], tuple[int, bytes]]) -> None:
        self.respond = respond
        super().__init__(*args)

    def do_GET(self) -> None:
        fault = self.record_request()
        status, body = self.respond(self.path)
        self.answer(status, [], body, fault)


@contextmanager
def responding(respond: Callable[[str], tuple[int, bytes]]) -> Iterator[Server]:
    """Give a web server that answers a path with the status and body that `respond` returns."""
    with _running(partial(_Responder, respond=respond)) as server:
        yield server


@dataclass
class Bucket:
    """A new bucket in an object store, and the server in front of it."""

    name: str
    server: Server
    client: Any

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    def content(self, prefix: str) -> dict[str, bytes]:
        """Return the objects below a prefix by their names there; all with their keys if empty."""
        prefix = prefix and f"{prefix}/"
        listing = self.client.list_objects_v2(Bucket=self.name, Prefix=prefix)
        get = partial(self.client.get_object, Bucket=self.name)
        keys = [one["Key"] for one in listing.get("Contents", ())]
        return {key.removeprefix(prefix): get(Key=key)["Body"].read() for key in keys}

    def put(self, key: str, data: bytes, *, part: int = 0) -> str:
        """Store an object, in parts of `part` bytes if that is not 0; return its address."""
        if not part:
            self.client.put_object(Bucket=self.name, Key=key, Body=data)
            return f"{self.url}/{key}"
        target = {"Bucket": self.name, "Key": key}
        upload = self.client.create_multipart_upload(**target)["UploadId"]
        parts = []
        for number, at in enumerate(range(0, len(data), part), 1):
            answer = self.client.upload_part(
                **target, UploadId=upload, PartNumber=number, Body=data[at : at + part]
            )
            parts.append({"PartNumber": number, "ETag": answer["ETag"]})
        self.client.complete_multipart_upload(
            **target, UploadId=upload, MultipartUpload={"Parts": parts}
        )
        return f"{self.url}/{key}"


def allowed(use: str) -> set[str]:
    """Return the actions of IAM that docs/batch.md lists for a use, which begins so."""
    page = (ROOT / "docs/batch.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith(f"| {use}"))
    (other,) = (line for line in page.splitlines() if line.startswith("| results: `--out"))
    return set(re.findall(r"`(s3:\w+)`", other if "the same five" in row else row))


def asked(server: Server, prefix: str) -> set[str]:
    """Return the actions of IAM that the requests for keys with a prefix needed."""
    found = set()
    for method, path, _ in server.requests:
        where, _, query = path.partition("?")
        given = parse_qs(query, keep_blank_values=True)
        key = unquote(where).lstrip("/").partition("/")[2] or given.get("prefix", [""])[0]
        if f"{key}/".startswith(f"{prefix}/"):
            found.add(_action(method, where.strip("/"), given))
    return found


def _action(method: str, where: str, query: dict[str, list[str]]) -> str:
    if method in ("GET", "HEAD"):
        return "s3:GetObject" if "/" in where else "s3:ListBucket"
    if method == "DELETE":
        return "s3:AbortMultipartUpload" if "uploadId" in query else "s3:DeleteObject"
    return "s3:DeleteObject" if "delete" in query else "s3:PutObject"


@contextmanager
def object_store() -> Iterator[Callable[[], Bucket]]:
    """Run an S3 server behind a proxy and set the environment for it; give a maker of buckets."""
    import boto3
    from moto.server import ThreadedMotoServer
    from s3fs import S3FileSystem

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    handler = type("Proxy", (_Proxy,), {"target": f"{host}:{port}"})
    with _running(handler) as server:
        environment = {
            "AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "very-secret", "AWS_DEFAULT_REGION": "us-east-1",
        }  # fmt: skip
        before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        S3FileSystem.clear_instance_cache()
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}")

        def bucket() -> Bucket:
            name = f"bucket-{next(_numbers)}"
            client.create_bucket(Bucket=name)
            server.faults.clear()
            server.requests.clear()
            return Bucket(name, server, client)

        try:
            yield bucket
        finally:
            client.close()
            moto.stop()
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value
            S3FileSystem.clear_instance_cache()
