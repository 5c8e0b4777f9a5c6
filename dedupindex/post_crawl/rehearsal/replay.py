"""The sample as readers get it: from pywb, if that is installed, before and after."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from dedupindex.post_crawl.rehearsal.rehearsal_steps import Step
from dedupindex.post_crawl.rehearsal.sample import SampledRevisit

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
