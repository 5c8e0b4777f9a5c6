"""Payloads of captures from the replay of a Wayback Machine, where its WARC files are out of reach.

An archive answers ``ADDRESS/20260501120000id_/URL`` with the payload as it was captured, and with
the time of the capture in ``Memento-Datetime`` (RFC 7089). OpenWayback, pywb and the Internet
Archive do. Requests keep to a rate; answers may be kept in a directory, so that a run that was
stopped is resumed, and asks for nothing twice.
"""

from __future__ import annotations

import re
import time
from email.message import Message
from email.utils import parsedate_to_datetime
from functools import partial
from hashlib import blake2b
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote, urljoin
from urllib.request import HTTPRedirectHandler, Request, build_opener

import orjson

from dedupindex import __version__
from dedupindex.corpus.read_records import MissingRecord, RecordParts
from dedupindex.corpus.row import CorpusRow, iso
from dedupindex.errors import BadInput, BadSource
from dedupindex.object_store import is_remote
from dedupindex.object_store.store_address import WEB, scheme_of
from dedupindex.object_store.stores import limits, with_retries
from dedupindex.runtime.files import atomic_file

_SAFE = "%/:=&?~+!$,;'@()*[]|"  # characters of a URL that are sent as they are
_REDIRECTS = 5  # of the archive, to other addresses of the same capture
_MAX_ERROR = 300  # bytes of an error response
_LONGEST_WAIT = 120.0  # seconds, of Retry-After
_ORIGINAL = "x-archive-orig-"  # prefix of fields of the capture
_OF_REPLAY = re.compile(r"x-archive-.*|memento-datetime|preference-applied|transfer-encoding"
                        r"|connection|keep-alive|content-length|set-cookie")  # fmt: skip
_last: dict[str, float] = {}  # when this process has sent its last request, by address


class Replay(NamedTuple):
    """Where payloads are requested, and how often."""

    address: str  # ends with a slash: ``https://web.archive.org/web/``
    interval: float = 0.0  # seconds between two requests of a process
    kept: Path | None = None  # a directory of answers


class ReplayAnswer(NamedTuple):
    """The answer for a capture; fields of the archive itself are left out."""

    status_line: str
    fields: dict[str, str]
    payload: bytes


def replay(address: str, rate: float, processes: int, kept: Path | None) -> Replay:
    """Return where to request payloads, `rate` times a second in all; raises `BadInput`."""
    if not is_remote(address) or scheme_of(address) not in WEB or not address.endswith("/"):
        raise BadInput(f"{address} is not the address of a replay: https://HOST/COLLECTION/")
    if rate <= 0:
        raise BadInput(f"a replay is asked more than 0 times a second, not {rate:g}")
    if kept is not None and not (
        kept.is_dir() if kept.exists() else kept.absolute().parent.is_dir()
    ):
        what = "is not a directory" if kept.exists() else "is in a directory that does not exist"
        raise BadInput(f"{kept}, in which answers are to be kept, {what}")
    return Replay(address, processes / rate, kept)


class ReplayReader:
    """Reads captures as `read_records.Containers` does, from a replay."""

    def __init__(self, source: Replay, max_record: int) -> None:
        self.opened = self.records = self.bytes = 0
        self._source, self.max_record = source, max_record

    def stored(self, capture: CorpusRow) -> RecordParts:
        """Return the payload that an archive replays for a capture; raises `MissingRecord`.

        The archive resolves revisits. There is no WARC header but its URL and its date.
        """
        path = f"{capture.timestamp}id_/{quote(capture.url, safe=_SAFE)}"
        kept = self._kept(path)
        answer = _load(kept) or self._request(path, kept)
        self.records += 1
        header = {"WARC-Target-URI": capture.url, "WARC-Date": iso(capture.timestamp)}
        return RecordParts(header, answer.status_line, answer.fields, answer.payload)

    def _request(self, path: str, kept: Path | None) -> ReplayAnswer:
        try:
            found = with_retries(self._source.address + path, partial(self._ask, path))
        except (BadSource, HTTPException) as error:
            raise MissingRecord(str(error)) from error
        if isinstance(found, MissingRecord):
            raise found
        self.bytes += len(found.payload)
        _store(found, kept)
        return found

    def close(self) -> None:
        """Do nothing; no connection is kept."""

    def _kept(self, path: str) -> Path | None:
        if self._source.kept is None:
            return None
        name = blake2b((self._source.address + path).encode(), digest_size=20).hexdigest()
        return self._source.kept / name[:2] / name

    def _ask(self, path: str) -> ReplayAnswer | MissingRecord:
        """Request a capture, and follow the archive's own redirects to the same one.

        What asking again would not change is returned; other failures are raised.
        """
        address = self._source.address + path
        stamp = path.partition("id_/")[0]
        for _ in range(_REDIRECTS):
            self._wait()
            with _opened(address) as reply:
                said = reply.headers.get("Memento-Datetime")
                if said is not None:
                    return _other_time(said, stamp) or self._answer(reply)
                target = reply.headers.get("Location")
                if not (target and 300 <= reply.status < 400):
                    what = reply.read(_MAX_ERROR).decode("utf-8", "replace").strip()
                    refusal = ReplayRefusal(reply.status, what)
                    if reply.status < 400:  # such as a form to log in
                        return MissingRecord(str(refusal))
                    raise refusal
            target = urljoin(address, target)
            if not re.search(rf"/{stamp}(?:id_)?/", target):
                return MissingRecord(f"the archive has it not: it redirects to {target}")
            address = target
        return MissingRecord(f"the archive redirects {_REDIRECTS} times")

    def _answer(self, reply: Any) -> ReplayAnswer | MissingRecord:
        payload = reply.read(self.max_record + 1)
        if len(payload) > self.max_record:
            return MissingRecord(f"its payload has more than {self.max_record:,} bytes")
        stated = reply.headers.get("Content-Length")
        if stated is not None and len(payload) != int(stated):
            raise EOFError(f"{len(payload):,} bytes came of {stated}")
        line = f"HTTP/1.1 {reply.status} {reply.reason}".rstrip()
        return ReplayAnswer(line, _fields(reply.headers), payload)

    def _wait(self) -> None:
        """Wait until the next request is due."""
        due = _last.get(self._source.address, -self._source.interval) + self._source.interval
        time.sleep(max(due - time.monotonic(), 0))
        _last[self._source.address] = time.monotonic()


class ReplayRefusal(Exception):
    """An error response of the archive itself; `status` decides whether to retry."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"the archive answers HTTP {status}: {text}")
        self.status = status


class _NoRedirects(HTTPRedirectHandler):
    """Redirects may be those of the capture, or lead to another capture."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


def _opened(address: str) -> Any:
    """Send a request; an error response is returned like any other."""
    headers = {
        "User-Agent": f"dedupindex/{__version__}",
        "Accept-Encoding": "gzip, deflate, br",  # without it pywb would unpack the payload
    }
    try:
        reply = build_opener(_NoRedirects).open(
            Request(address, headers=headers), timeout=limits().timeout
        )
    except HTTPError as error:
        if error.headers.get("Memento-Datetime") is None:
            _heed(error.headers)
        return error
    return reply


def _heed(headers: Message) -> None:
    """Wait as long as a server that is busy asks for."""
    wait = headers.get("Retry-After", "")
    if wait.isdecimal():
        time.sleep(min(float(wait), _LONGEST_WAIT))


def _other_time(said: str, stamp: str) -> MissingRecord | None:
    """Return an error for a capture of another time."""
    try:
        found = f"{parsedate_to_datetime(said):%Y%m%d%H%M%S}"
    except ValueError:
        found = said
    return (
        None
        if found == stamp
        else MissingRecord(f"the archive replays another capture, of {found}")
    )


def _fields(headers: Message) -> dict[str, str]:
    """Return the fields of the capture, without those of the archive.

    The content coding is that of the answer, as some archives unpack payloads.
    """
    original = {
        name[len(_ORIGINAL) :]: value
        for name, value in _joined(headers).items()
        if name.lower().startswith(_ORIGINAL)
    }
    if original:
        kept = {n: v for n, v in original.items() if n.lower() != "content-encoding"}
        coding = headers.get("Content-Encoding")
        return kept | ({"Content-Encoding": coding} if coding else {})
    return {
        name: value
        for name, value in _joined(headers).items()
        if not _OF_REPLAY.fullmatch(name.lower())
        and not (name.lower() == "link" and "memento" in value)
    }


def _joined(headers: Message) -> dict[str, str]:
    """Join repeated fields by commas under their first spelling."""
    fields: dict[str, str] = {}
    spellings: dict[str, str] = {}
    for name, value in headers.items():
        name = spellings.setdefault(name.lower(), name)
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return fields


def _load(file: Path | None) -> ReplayAnswer | None:
    """Return a kept answer, if there is one."""
    if file is None or not file.exists():
        return None
    with open(file, "rb") as stream:
        line, fields = orjson.loads(stream.readline())
        return ReplayAnswer(line, fields, stream.read())


def _store(answer: ReplayAnswer, file: Path | None) -> None:
    """Keep an answer; the file appears complete."""
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(file) as stream:
        stream.write(orjson.dumps(answer[:2]) + b"\n")
        stream.write(answer.payload)
