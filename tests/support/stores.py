"""Servers for tests: an object store that speaks S3, a web server, and what goes wrong."""

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

_numbers = count(1)


@dataclass
class Fault:
    """What befalls a request of a method for a path that ends so."""

    ending: str
    times: int  # as often, then no more
    status: int = 0  # answered instead
    cut: int = -1  # bytes of the answer after which the connection is cut
    short: int = -1  # bytes of the answer that are said to be all of it
    then: Callable[[], object] = lambda: None  # done before the answer is sent
    method: str = "GET"
    when: Callable[[], bool] = lambda: True  # else the request is as others are


@dataclass
class Server:
    """A server in a thread of this process."""

    url: str
    requests: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, range
    faults: list[Fault] = field(default_factory=list)

    def fault(self, method: str, path: str) -> Fault | None:
        """The fault of a request, one time fewer to come."""
        for one in self.faults:
            meant = one.method == method and path.partition("?")[0].endswith(one.ending)
            if meant and one.times and one.when():
                one.times -= 1
                return one
        return None


class _Listening(ThreadingHTTPServer):
    def handle_error(self, request: Any, address: Any) -> None:
        """A client that has heard enough is no error."""


@contextmanager
def _running(handler: Any, url: str = "") -> Iterator[Server]:
    with _Listening(("127.0.0.1", 0), handler) as listening:
        listening.daemon_threads = True
        server = Server(f"http://127.0.0.1:{listening.server_port}{url}")
        listening.ours = server  # type: ignore[attr-defined]
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def ours(self) -> Server:
        ours: Server = self.server.ours  # type: ignore[attr-defined]
        return ours

    def log_message(self, format: str, *args: object) -> None:
        pass

    def note(self) -> Fault | None:
        told = self.command, self.path, self.headers.get("Range", "")
        self.ours.requests.append(told)
        fault = self.ours.fault(self.command, self.path)
        if fault is not None:
            fault.then()
        return fault

    def answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, fault: Fault | None
    ) -> None:
        length = len(body)
        if fault is not None and fault.status:
            status, body, headers, length = fault.status, b"", [], 0
        elif fault is not None and fault.short >= 0:
            body = body[: fault.short]
            length = len(body)
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
    """Passes requests on."""

    target = ""

    def do_GET(self) -> None:
        fault = self.note()
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        connection = HTTPConnection(self.target)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        self.answer(answer.status, answer.getheaders(), answer.read(), fault)
        connection.close()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET


class _Files(_Handler):
    """Serves files of a directory with an ETag, with or without ranges; directories as links."""

    def __init__(self, *args: Any, root: Path, ranges: bool, etags: bool, sized: bool) -> None:
        self.root, self.ranges, self.etags, self.sized = root, ranges, etags, sized
        super().__init__(*args)

    def do_GET(self) -> None:
        fault = self.note()
        path = self.root / self.path.partition("?")[0].lstrip("/")
        if path.is_dir():
            names = [one.name + "/" * one.is_dir() for one in sorted(path.iterdir())]
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


class _Telling(_Handler):
    def __init__(self, *args: Any, tell: Callable[[str], tuple[int, bytes]]) -> None:
        self.tell = tell
        super().__init__(*args)

    def do_GET(self) -> None:
        fault = self.note()
        status, body = self.tell(self.path)
        self.answer(status, [], body, fault)


@contextmanager
def telling(tell: Callable[[str], tuple[int, bytes]]) -> Iterator[Server]:
    """A web server that answers a path, with its query, as a function says: status and body."""
    with _running(partial(_Telling, tell=tell)) as server:
        yield server


@dataclass
class Bucket:
    """A bucket of its own in an object store, and the server that is asked for it."""

    name: str
    server: Server
    client: Any

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    def put(self, key: str, data: bytes, *, part: int = 0) -> str:
        """Store an object, in parts of so many bytes; its address."""
        if not part:
            self.client.put_object(Bucket=self.name, Key=key, Body=data)
            return f"{self.url}/{key}"
        where = {"Bucket": self.name, "Key": key}
        upload = self.client.create_multipart_upload(**where)["UploadId"]
        parts = []
        for number, at in enumerate(range(0, len(data), part), 1):
            told = self.client.upload_part(
                **where, UploadId=upload, PartNumber=number, Body=data[at : at + part]
            )
            parts.append({"PartNumber": number, "ETag": told["ETag"]})
        self.client.complete_multipart_upload(
            **where, UploadId=upload, MultipartUpload={"Parts": parts}
        )
        return f"{self.url}/{key}"


@contextmanager
def object_store() -> Iterator[Callable[[], Bucket]]:
    """An S3 server behind a proxy, found by the environment; makes buckets."""
    import boto3
    from moto.server import ThreadedMotoServer
    from s3fs import S3FileSystem

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    handler = type("Proxy", (_Proxy,), {"target": f"{host}:{port}"})
    with _running(handler) as server:
        set_to = {
            "AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "very-secret", "AWS_DEFAULT_REGION": "us-east-1",
        }  # fmt: skip
        before = {name: os.environ.get(name) for name in set_to}
        os.environ.update(set_to)
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
