"""A stock Heritrix 3 for tests, and a site for it to crawl."""

from __future__ import annotations

import fcntl
import gzip
import random
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import unquote

from warcio.archiveiterator import ArchiveIterator

from demo.steps import free_port
from tests.conftest import need

VERSION = "3.13.0"
PEERS = Path(__file__).resolve().parents[2] / ".peers"
UNPACK = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:unpack"
DEADLINE = 300.0  # seconds after which a crawl has failed


def heritrix_home() -> Path:
    """Where Heritrix is unpacked, fetched from Maven Central the first time."""
    home = PEERS / f"heritrix-{VERSION}"
    need("java", found=shutil.which("java") is not None)
    PEERS.mkdir(exist_ok=True)
    with open(PEERS / ".heritrix.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side
        if not home.exists():
            _fetch(home)
    return home


def trusted(certificate: Path) -> str:
    """The option with which Java trusts a certificate, and no other."""
    store = certificate.with_suffix(".jks")
    words = ["keytool", "-importcert", "-noprompt", "-storetype", "JKS", "-storepass", "changeit"]
    words += ["-keystore", str(store), "-file", str(certificate)]
    subprocess.run(words, check=True, capture_output=True)
    return f"-Djavax.net.ssl.trustStore={store}"


def _fetch(home: Path) -> None:
    need("mvn", found=shutil.which("mvn") is not None)
    with tempfile.TemporaryDirectory(dir=PEERS) as folder:
        words = ["mvn", "-q", "-B", UNPACK, f"-DoutputDirectory={folder}"]
        artifact = f"-Dartifact=org.archive.heritrix:heritrix:{VERSION}:tar.gz:dist"
        # It leaves an empty directory where it runs.
        done = subprocess.run([*words, artifact], cwd=folder, stdout=subprocess.DEVNULL)
        need(f"Heritrix {VERSION} (from Maven Central)", found=done.returncode == 0)
        (Path(folder) / home.name).rename(home)


class Page(NamedTuple):
    """What the site answers under a path."""

    body: bytes
    mime: str = "text/html"
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    chunked: bool = False  # for those who ask with HTTP/1.1
    answer: Callable[[Mapping[str, str]], Page | None] = lambda fields: None  # if not None, to them


def first_edition() -> dict[str, Page]:
    """Every kind of response that there is a rule for; "/" links to all of them."""
    rnd = random.Random(4)
    logo, report = Page(rnd.randbytes(5000), "image/png"), Page(rnd.randbytes(9000), "x/pdf")
    story = Page(b"<p>" + b"a story that is told twice " * 50)
    feed = Page(b"<feed>" + b"entry " * 700, "application/xml", chunked=True)
    encoded = (("Content-Encoding", "gzip"),)
    packed = gzip.compress(b'{"a": 1}' * 200, mtime=0)
    streamed = gzip.compress(rnd.randbytes(3000), mtime=0)
    pages = {
        "/logo.png": logo,
        "/copy/logo.png": logo,
        "/other/logo.png": logo,
        "/report.pdf": report,
        "/old/report.pdf": report,
        "/story.html": story,
        "/told/again.html": story,
        "/news.html": Page(b"<p>monday's news " * 60),
        "/feed.xml": feed,
        "/copy/feed.xml": feed,
        "/data.json": Page(packed, "application/json", headers=encoded),
        "/streamed.json": Page(streamed, "application/json", headers=encoded, chunked=True),
        "/z%C3%BCrich.bin": Page(rnd.randbytes(2000), "x/bin"),
        "/tour.mp4": Page(rnd.randbytes(120_000), "video/mp4"),
        "/part.bin": Page(rnd.randbytes(3000), "x/bin", 203),
        "/empty.bin": Page(b"", "x/bin"),
        "/gone.html": Page(b"<p>gone", status=404),
        "/moved.html": Page(b"<p>moved", status=302, headers=(("Location", "/story.html"),)),
    }
    links = "".join(f'<a href="{unquote(path)}">{path}</a> ' for path in pages)
    return {"/": Page(links.encode(), "text/html; charset=utf-8"), **pages}


class Site:
    """A site on loopback; each response is one send, or crawlers wait 40 ms for each."""

    def __init__(self) -> None:
        self.pages = first_edition()
        self.before: Callable[[str], None] = lambda path: None  # called before a path is answered
        handler = type("Handler", (_Handler,), {"site": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def payloads(self) -> dict[str, bytes]:
        """What can be a duplicate, by URL: status 200 and not empty."""
        return {
            self.url + path: page.body
            for path, page in self.pages.items()
            if page.status == 200 and page.body
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def do_GET(self) -> None:
        self.site.before(self.path)
        page = self.site.pages.get(self.path, Page(b"<p>nothing here", status=404))
        page = page.answer(self.headers) or page
        self._headers_buffer: list[bytes] = []
        self.send_response(page.status)
        self.send_header("Content-Type", page.mime)
        for name, value in page.headers:
            self.send_header(name, value)
        body = page.body
        if page.chunked and self.request_version == "HTTP/1.1":
            self.send_header("Transfer-Encoding", "chunked")
            pieces = [body[at : at + 1000] for at in range(0, len(body), 1000)]
            body = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in [*pieces, b""])
        else:
            self.send_header("Content-Length", str(len(body)))
        self._headers_buffer += [b"\r\n", body]
        with suppress(OSError):
            self.flush_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Tests say what went wrong."""


class Record(NamedTuple):
    """A WARC record, as warcio reads it."""

    kind: str
    headers: dict[str, str]
    status: str
    body: bytes

    @property
    def url(self) -> str:
        return self.headers["WARC-Target-URI"]


class Crawl(NamedTuple):
    """A crawl that has ended."""

    name: str  # as the dedup server knows it
    launch: Path  # directory with logs, reports and WARCs
    output: str

    def warcs(self) -> list[Path]:
        """The WARCs that it wrote."""
        return sorted((self.launch / "warcs").glob("*.warc.gz"))

    def records(self) -> list[Record]:
        """Responses and revisits."""
        found = []
        for path in self.warcs():
            with open(path, "rb") as stream:
                for record in ArchiveIterator(stream):
                    if record.rec_type in ("response", "revisit"):
                        headers, http = record.rec_headers, record.http_headers
                        status = http.get_statuscode() if http else ""
                        body = record.content_stream().read() if status != "206" else b""
                        kept = dict(headers.headers)
                        found.append(Record(record.rec_type, kept, status, body))
        return found

    def report_number(self, name: str) -> int:
        """Return a number of Heritrix's own report, or 0 if it is not listed."""
        text = (self.launch / "reports" / "crawl-report.txt").read_text()
        match = re.search(rf"^{re.escape(name)}: (\d+)", text, re.MULTILINE)
        return int(match[1]) if match else 0

    def alerts(self) -> str:
        return (self.launch / "logs" / "alerts.log").read_text()


class Heritrix:
    """Runs jobs; each in a process of its own."""

    def __init__(self, home: Path, folder: Path, *jars: Path) -> None:
        self._home, self._folder = home, folder
        self._jars = ":".join([f"{home}/lib/*", *map(str, jars)])
        (folder / "jobs").mkdir()

    def make(self, name: str, site: Site, server: str, *options: str) -> Path:
        """Make a job with the command that users have."""
        job = self._folder / "jobs" / name
        words = [sys.executable, "-m", "dedupindex", "heritrix-profile", str(self._home), str(job)]
        chosen = ["--server", server, "--seed", f"{site.url}/", "--contact", "http://a.example/"]
        extra = ["--no-delay", "--everything", *options]
        subprocess.run([*words, *chosen, *extra], check=True, stdout=subprocess.DEVNULL)
        return job

    @contextmanager
    def running(self, job: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
        """The process that runs a job, and the port of Heritrix's own interface."""
        port = free_port()
        words = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Dheritrix.home={self._folder}"]
        words += ["-cp", self._jars, "org.archive.crawler.Heritrix", "-a", "admin:admin"]
        words += ["-b", "127.0.0.1", "-p", str(port), "-j", str(job.parent), "-r", job.name]
        words += ["-l", f"{self._home}/conf/logging.properties"]
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen(words, cwd=self._folder, **output) as process:  # type: ignore[call-overload]
            try:
                yield process, port
            finally:
                process.kill()

    def run(self, job: Path, during: Callable[[int], Any] = lambda port: None) -> Crawl:
        """Run a job to its end, which Heritrix itself takes for a good one."""
        with self.running(job) as (process, port):
            during(port)
            output, _ = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, output
        launch = (job / "latest").resolve()
        return Crawl(f"{job.name}-{launch.name}", launch, output)


def tell(port: int, job: str, action: str) -> None:
    """Tell a Heritrix what to do with a job, as its web page does."""
    _ask(port, f"job/{job}", f"action={action}".encode())


def page_of(port: int, job: str, path: str) -> str:
    """A page of Heritrix's own interface about a job."""
    return _ask(port, f"job/{job}/{path}")


def _ask(port: int, path: str, body: bytes | None = None) -> str:
    url = f"https://127.0.0.1:{port}/engine/{path}"
    passwords = urllib.request.HTTPPasswordMgrWithDefaultRealm()
    passwords.add_password(None, url, "admin", "admin")
    context = ssl._create_unverified_context()
    opener = urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=context),
        urllib.request.HTTPDigestAuthHandler(passwords),
    )
    request = urllib.request.Request(url, body, headers={"Accept": "application/xml"})
    with opener.open(request, timeout=DEADLINE) as answer:
        return str(answer.read().decode())
