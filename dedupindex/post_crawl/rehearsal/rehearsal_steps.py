"""What a step came to, and the reports that all of them make."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from dedupindex.errors import BadInput
from dedupindex.post_crawl.rewrite.journal import JournalEntry, entries, journals
from dedupindex.post_crawl.rewrite.revisit_record import END
from dedupindex.runtime.files import exclusive
from dedupindex.verify.issues import Broken
from dedupindex.verify.rebuild import Sample

_NAMED = 20


@dataclass
class Step:
    """One of the seven."""

    name: str
    did: str  # in a few words
    numbers: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)  # the first; `failed` counts all
    failed: int = 0
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        return not self.failed

    def fail(self, problem: str, count: int = 1) -> None:
        """Note what is not as it should be."""
        self.failed += count
        if len(self.problems) < _NAMED:
            self.problems.append(problem)

    def expect(self, numbers: Mapping[str, tuple[int, int]]) -> None:
        """Note numbers, each with what it should be."""
        for name, (found, wanted) in numbers.items():
            self.numbers[name] = found
            if found != wanted:
                self.fail(f"{name.replace('_', ' ')}: {found:,}, not {wanted:,}")

    def as_json(self) -> dict[str, Any]:
        return {
            "step": self.name,
            "did": self.did,
            "sound": self.sound,
            **self.numbers,
            "failed": self.failed,
            "problems": self.problems,
            "seconds": round(self.seconds, 3),
        }


# The directory of a rehearsal: nobody else's, and never one that holds what is rehearsed.

_DIRECTORIES = ("before", "copy", "converted", "out", "dedup", "after", "in-place")


@contextmanager
def taken(top: Path, sources: Iterable[str]) -> Iterator[None]:
    """Begin afresh, as nobody else can until the block ends.

    What an earlier rehearsal left is removed. Raises `BadInput` if `top` is something else, or if
    a source is in it: that would go, too; or if something in it is a link to elsewhere. `IndexBusy`
    if another rehearsal is at work.
    """
    mark = top / "rehearsal"
    if top.exists() and not mark.exists() and any(top.iterdir()):
        raise BadInput(f"{top} holds something else; name another directory")
    top.mkdir(parents=True, exist_ok=True)
    _check_apart(top, sources)
    mark.touch()
    with exclusive(top / "lock", f"the rehearsal in {top}"):
        for name in _DIRECTORIES:
            shutil.rmtree(top / name, ignore_errors=True)
            if os.path.lexists(top / name):  # a link leads to files that are not ours
                raise BadInput(f"{top / name} cannot be removed: name another directory")
        yield


def _check_apart(top: Path, sources: Iterable[str]) -> None:
    """Directories are told by their inodes, since links and mounts give them other names."""
    mine = {_inode(top)}
    for name in _DIRECTORIES:
        for inside, _, _ in os.walk(top / name):
            with suppress(FileNotFoundError):
                mine.add(_inode(Path(inside)))
    seen: set[Path] = set()
    for source in sources:
        for folder in Path(source).resolve().parents:
            if folder in seen:
                break
            seen.add(folder)
            if _inode(folder) in mine:
                raise BadInput(
                    f"{source} is in {top}, which is emptied before a rehearsal: name another "
                    "directory with --work"
                )


def _inode(folder: Path) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


# Some revisits of a result, chosen at random, made into the records that they stand for.


class SampledRevisit(NamedTuple):
    """A revisit, and what its journal says of it."""

    path: Path
    entry: JournalEntry


def rebuild(step: Step, folder: Path, size: int, seed: int, beside: Path) -> list[SampledRevisit]:
    """Rebuild `size` revisits below `folder`, which are returned.

    Originals are found as replay tools do, by URL and date. With the header that was there each
    must be the record that was dropped, by its SHA-256.
    """
    chosen = _chosen(folder, size, Random(seed))
    with TemporaryDirectory(prefix=".sample-", dir=beside) as name:
        sample = Sample([folder], Path(name))
        for one in chosen:
            running = hashlib.sha256(one.entry.header.encode("latin-1"))
            try:
                for piece in sample.block(one.path, one.entry.new_offset):
                    running.update(piece)
            except Broken as broken:
                step.fail(f"{one.path} at {one.entry.new_offset}: {broken}")
                continue
            running.update(END)
            if running.hexdigest() != one.entry.sha256:
                step.fail(f"{one.path} at {one.entry.new_offset}: it is not the record that was")
    step.numbers["sample"] = len(chosen)
    return chosen


def _chosen(folder: Path, size: int, random: Random) -> list[SampledRevisit]:
    """So many of all revisits, each with the same chance, without holding all."""
    held: list[SampledRevisit] = []
    for number, one in enumerate(_all(folder)):
        if len(held) < size:
            held.append(one)
        elif (at := random.randrange(number + 1)) < size:
            held[at] = one
    return sorted(held, key=lambda one: (str(one.path), one.entry.new_offset))


def _all(folder: Path) -> Iterator[SampledRevisit]:
    for journal in journals(folder):
        path = folder / journal.summary()[0].name
        for entry in entries(journal.lines):
            yield SampledRevisit(path, entry)


# The sample as readers get it: from pywb, if that is installed, before and after.

_PATIENCE = 60.0  # seconds
_FIELD = re.compile(
    r"^WARC-(Target-URI|Date)[ \t]*:[ \t]*<?([^\r\n>]*)", re.IGNORECASE | re.MULTILINE
)
_OWN = ("date", "connection", "server")  # headers of the answer, not of the capture


class ReplayAnswer(NamedTuple):
    """What a reader gets."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def replay(
    step: Step, before: Path, after: Path, chosen: Sequence[SampledRevisit], beside: Path
) -> None:
    """Compare what pywb serves for revisits with what it served for the records that were there.

    Without pywb nothing is done, and the number is None. What pywb cannot replay of the file
    before counts for nothing, but if that is all of the sample the step fails.
    """
    wayback, indexer = shutil.which("wayback"), shutil.which("cdx-indexer")
    if not chosen:
        return
    if wayback is None or indexer is None:
        step.numbers["replayed"] = None
        return
    replayed = 0
    with TemporaryDirectory(prefix=".replay-", dir=beside) as name:
        home = Path(name)
        collections = {"before": before, "after": after}
        for collection, folder in collections.items():
            _index(step, indexer, folder, home / f"{collection}.cdxj")
        with _serving(wayback, collections, home) as port:
            for one in chosen:
                said = dict((key.lower(), value) for key, value in _FIELD.findall(one.entry.header))
                moment = "".join(filter(str.isdigit, said["date"]))[:14]
                path = f"{moment}id_/{said['target-uri']}"
                was, now = (_get(port, collection, path) for collection in collections)
                if not any(name == "memento-datetime" for name, _ in was.headers):
                    continue
                replayed += 1
                if was != now:
                    step.fail(f"{said['target-uri']} {said['date']}: pywb serves something else")
    step.numbers["replayed"] = replayed
    if not replayed:
        step.fail("pywb is here, and replayed nothing of the sample: nothing is known of replay")


def _index(step: Step, indexer: str, folder: Path, target: Path) -> None:
    words = [indexer, "-j", "-s", "-r", "-d", str(folder), "-o", str(target), str(folder)]
    done = subprocess.run(words, check=False, capture_output=True)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        step.fail(f"pywb could not index {folder}: {said[-1] if said else done.returncode}")


@contextmanager
def _serving(wayback: str, collections: dict[str, Path], home: Path) -> Iterator[int]:
    """pywb until the block ends; gives its port."""
    config = {
        "collections": {
            name: {"index": str(home / f"{name}.cdxj"), "archive_paths": f"{folder.resolve()}/"}
            for name, folder in collections.items()
        }
    }
    (home / "config.yaml").write_text(json.dumps(config))  # which is YAML, too
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    with open(home / "log", "wb") as log:
        process = subprocess.Popen(
            [wayback, "-b", "127.0.0.1", "-p", str(port)], cwd=home, stdout=log, stderr=log
        )
    try:
        _wait(process, port)
        yield port
    finally:
        process.terminate()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < end:
        with socket.socket() as client:
            if not client.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.05)


def _get(port: int, collection: str, path: str) -> ReplayAnswer:
    connection = HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)
    try:
        # Without this header pywb would unpack what the site sent compressed.
        accept = {"Accept-Encoding": "gzip, deflate, br"}
        connection.request("GET", f"/{collection}/{path}", headers=accept)
        response = connection.getresponse()
        headers = [
            (name.lower(), value.replace(collection, ""))  # which is in links, too
            for name, value in response.getheaders()
            if name.lower() not in _OWN
        ]
        return ReplayAnswer(response.status, headers, response.read())
    except (OSError, HTTPException, ValueError) as error:
        return ReplayAnswer(599, [], str(error).encode())
    finally:
        connection.close()
