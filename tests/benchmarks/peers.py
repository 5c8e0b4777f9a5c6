"""The programs that are measured beside ours: OutbackCDX and the DeDuplicator, both in Java.

Neither is shipped. ``--peers DIR`` (or DEDUPINDEX_PEERS) names a directory that holds their built
forms, ``outbackcdx.jar`` and ``deduplicator.tar.gz``; docs/performance.md says how to build them.
"""

from __future__ import annotations

import http.client
import shutil
import socket
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo.steps import free_port
from tests.benchmarks.measure import Cores, Failed, Spent, environment, run, running

_INDEXER = "is.landsbokasafn.deduplicator.indexer."
_HEAP = "-Xmx1g"


class Missing(Exception):
    """What a job or its reference needs and this machine lacks, as a sentence."""


def need(program: str, package: str) -> str:
    """The path of a program; raises `Missing`."""
    path = shutil.which(program)
    if path is None:
        raise Missing(f"{program} is not installed (apt install {package})")
    return path


class Peers:
    """What of the peers is there."""

    def __init__(self, directory: Path | None, scratch: Path) -> None:
        self._directory, self._scratch = directory, scratch

    def _file(self, name: str) -> Path:
        if self._directory is None:
            raise Missing(f"give --peers DIR, a directory that holds {name}")
        path = self._directory / name
        if not path.is_file():
            raise Missing(f"there is no {name} in {self._directory}")
        need("java", "openjdk-17-jre-headless")
        return path.absolute()

    def outbackcdx(self) -> Path:
        """The jar of OutbackCDX; raises `Missing`."""
        return self._file("outbackcdx.jar")

    def jwarc(self) -> Path:
        """The jar of jwarc; raises `Missing`."""
        return self._file("jwarc-0.36.0.jar")

    def program(self, name: str) -> Path:
        """A program of one file; raises `Missing`."""
        if self._directory is None or not (self._directory / name).is_file():
            raise Missing(f"give --peers DIR, a directory that holds {name}")
        return (self._directory / name).absolute()

    def deduplicator(self) -> DeDuplicator:
        """The DeDuplicator's indexer, unpacked; raises `Missing`."""
        packed = self._file("deduplicator.tar.gz")
        home = self._scratch / "deduplicator"
        if not home.exists():
            with tarfile.open(packed) as archive:
                archive.extractall(self._scratch, filter="data")
        return DeDuplicator(home, self._scratch)


class DeDuplicator:
    """The Landsbokasafn DeDuplicator's ``bin/index``, everything included.

    Its script does not quote its arguments, so ``-m '.*'`` would become names of files.
    """

    def __init__(self, home: Path, scratch: Path) -> None:
        self._home, self._script = home, home / "bin" / "index"
        self.target = scratch / "deduplicator-index"

    def processor(self) -> list[Path]:
        """The jars that a Heritrix of today needs for the DeDuplicator's processor."""
        names = ("deduplicator-heritrix-*", "deduplicator-commons-*", "lucene-*", "openwayback-*")
        return [
            jar
            for name in (*names, "commons-httpclient-3.1")
            for jar in sorted((self._home / "lib").glob(f"{name}.jar"))
        ]

    def index(self, source: Path, iterator: str, cores: Cores, *, records: int) -> Spent:
        """Index a file or directory on one core; raises `Failed` unless all of it was indexed."""
        shutil.rmtree(self.target, ignore_errors=True)
        command = ["sh", self._script, "-m", ".+", "-w", "-i", _INDEXER + iterator]
        command += [source.absolute(), self.target]
        spent = run(command, cores.one, env=environment(JAVA_OPTS=_HEAP))
        if f"Indexed {records} items" not in spent.out:
            raise Failed(f"the DeDuplicator did not index {records:,} records: {spent.out[-500:]}")
        return spent


class OutbackCDX:
    """A running OutbackCDX."""

    def __init__(self, port: int, data: Path) -> None:
        self.port, self._data = port, data
        self._collections = 0

    def post(self, path: Path) -> float:
        """Seconds that one POST of a CDX file takes; into a new collection each time."""
        self._collections += 1
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        with open(path, "rb") as stream:
            begin = time.perf_counter()
            length = str(path.stat().st_size)
            connection.request(
                "POST", f"/bench{self._collections}", stream, {"Content-Length": length}
            )
            answer = connection.getresponse()
            text = answer.read()
            seconds = time.perf_counter() - begin
        connection.close()
        if answer.status != 200 or not text.startswith(b"Added "):
            raise Failed(f"OutbackCDX answered {answer.status}: {text[:200]!r}")
        return seconds

    def compact(self, patience: float = 120) -> None:
        """Have the last collection compacted, and wait until its files stay the same."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", f"/{self.collection}/compact", b"")
        connection.getresponse().read()
        connection.close()
        end, before, quiet = time.monotonic() + patience, -1, 0
        while quiet < 4 and time.monotonic() < end:
            size = sum(path.stat().st_size for path in self._data.rglob("*") if path.is_file())
            quiet = quiet + 1 if size == before else 0
            before = size
            time.sleep(0.5)  # that nothing was written for two seconds is all that tells of the end

    @property
    def collection(self) -> str:
        """The name of the collection that was filled last."""
        return f"bench{self._collections}"


@contextmanager
def outbackcdx(jar: Path, data: Path, cores: frozenset[int]) -> Iterator[OutbackCDX]:
    """OutbackCDX serving from an empty directory, on some cores only."""
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    port = free_port()
    command = ["java", _HEAP, "-jar", jar, "-b", "127.0.0.1", "-p", str(port), "-d", data]
    with running(command, cores):
        wait_for(port, "OutbackCDX")
        yield OutbackCDX(port, data)
    shutil.rmtree(data, ignore_errors=True)


def wait_for(port: int, what: str, patience: float = 60, host: str = "127.0.0.1") -> None:
    """Return when something listens at the port; raises `Failed` when nothing ever does."""
    end = time.monotonic() + patience
    while True:
        try:
            socket.create_connection((host, port), 1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise Failed(f"{what} did not start within {patience:.0f} s") from None
            time.sleep(0.02)  # it needs the core that this process may be on
