"""The digest filter of an index, kept by a client that answers most misses itself."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any
from urllib.parse import quote

from dedupindex.client.requests import Ask, Reply, given
from dedupindex.digest_filter import (
    PIECE,
    GrowingFilter,
    KnownKey,
    Part,
    PartInfo,
    known_key,
    read_manifest,
)
from dedupindex.errors import BadInput, Damaged

_TIMEOUT = 30.0  # seconds that a manifest or a piece of a part may take
_ATTEMPTS = 3  # to fetch a filter whose parts are being merged
_CRAWLS = 1000  # of which is known whether they are in a namespace
_GRACE = 30.0  # seconds beyond three intervals after which a filter is not used any more
_ABANDONED = 3600.0  # seconds after which nobody still writes to a file
_FILE = re.compile(r"([0-9a-f]{64})\.part|\.[0-9a-f]{64}\..*\.new")
_log = logging.getLogger("dedupindex.client")

# Parameters of a lookup that can only exclude captures of the digest. Others are always asked.
_EXCLUDING = frozenset(
    ("crawl", "strategy", "max_age", "as_of", "min_size", "not_record", "not_date")
    + ("covers", "bridge", "mime", "size")
)


Exchange = Callable[[Ask], Reply]


class _Outdated(Exception):
    """A part was merged into another since the manifest was read."""


class DigestFilter:
    """Which digests an index cannot have, for one client.

    directory   where parts are kept, also for the next run; a directory for each server. By default
                a temporary one. Parts are mapped into memory, so the system may drop their pages
    renew       seconds between two renewals; what is missed in between is stored once more
    most_bytes  the largest filter that is fetched; of a larger one nothing is

    A thread fetches the filter and renews it; no lookup waits for that. Lookups are answered here
    only if the filter is whole, was compared with the server's within three renewals, and has not
    the digest; if this client has not reported the digest itself; and if neither the lookup nor its
    crawl names a namespace. All else is asked, and claims are.

    >>> from dedupindex.client import Client, DigestFilter
    >>> with Client("http://127.0.0.1:8484", digest_filter=DigestFilter(renew=60)) as client:
    ...     answer = client.lookup("sha1:G7HRM7BGOKSKMSXZAHMUQTTV53QOFSMK", "http://example.com/")
    >>> answer.match
    'exact_url'
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        renew: float = 60.0,
        most_bytes: int = 1 << 30,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if renew <= 0:
            raise BadInput("a digest filter is renewed every so many seconds: more than 0")
        self._directory, self._renew, self._most = directory, renew, most_bytes
        self._clock = clock
        self._temporary: TemporaryDirectory[str] | None = None
        self._exchange: Exchange | None = None
        self._thread: threading.Thread | None = None
        self._parts: tuple[Part, ...] | None = None  # None: there is no filter
        self._compared = 0.0  # when with the server's manifest
        self._reported, self._adding = GrowingFilter(), threading.Lock()
        self._crawls: dict[str, bool] = {"": True}  # whether a crawl is in no namespace
        self._unknown: set[str] = set()  # crawls of which that is not known
        self._wake, self._closed = threading.Event(), False
        self._logged = ""
        self.ready = threading.Event()
        """Set once the server has been asked for the filter, whether it has one or not."""

    def start(
        self,
        exchange: Exchange,
        after: Callable[[Exchange], None],
        finish: Callable[[], None] = lambda: None,
    ) -> None:
        """Fetch the filter in a thread.

        `after` is called there after each renewal, and `finish` in the end.
        """
        if self._exchange is not None:
            raise BadInput("a digest filter belongs to one client: make another")
        self._exchange = exchange
        self._thread = threading.Thread(
            target=self._run, args=(exchange, after, finish), name="dedupindex-filter", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread; from now on everything is asked."""
        self._closed, self._parts = True, None
        self._wake.set()

    def join(self, timeout: float = 2.0) -> None:
        """Wait until the thread has ended; one that waits for the server ends later."""
        if self._thread is not None:
            self._thread.join(timeout)

    @property
    def digests(self) -> int:
        """The number of digests in the filter; 0 if there is none."""
        return sum(part.info.digests for part in self._parts or ())

    # --- lookups ---------------------------------------------------------------------------------

    def lacks(self, digest: object, more: Mapping[str, Any]) -> bool:
        """Return whether the index has no capture for a lookup; False if it must be asked."""
        parts = self._parts
        if parts is None or self._clock() - self._compared > 3 * self._renew + _GRACE:
            return False
        if not isinstance(digest, str) or not _EXCLUDING.issuperset(given(more)):
            return False
        sought = known_key(digest)
        if sought is None or not self._in_no_namespace(more.get("crawl") or ""):
            return False
        return not (_any_has(parts, sought) or self._reported.may_have(sought))

    def add(self, capture: Mapping[str, Any]) -> None:
        """Add the digests of a capture that the client is about to report."""
        also = capture.get("also") or ()
        for text in (capture.get("digest"), *(also.split(",") if isinstance(also, str) else also)):
            sought = known_key(text) if isinstance(text, str) else None
            if sought is not None:
                with self._adding:
                    self._reported.add(sought)

    def _in_no_namespace(self, crawl: object) -> bool:
        if not isinstance(crawl, str):
            return False
        plain = self._crawls.get(crawl)
        if plain is None and len(self._unknown) < _CRAWLS and crawl not in self._unknown:
            self._unknown.add(crawl)
            self._wake.set()
        return bool(plain)

    # --- renewal, in its thread ------------------------------------------------------------------

    def _run(
        self, exchange: Exchange, after: Callable[[Exchange], None], finish: Callable[[], None]
    ) -> None:
        due = self._clock()
        try:
            while not self._closed:
                self._wake.clear()
                try:
                    if self._clock() >= due:
                        due = self._clock() + self._renew
                        self.renew()
                        after(exchange)
                    self._ask_for_crawls()
                except Exception as error:  # whatever it is, lookups are asked
                    self._log_once(f"the digest filter is not renewed: {error!r}")
                self.ready.set()
                self._wake.wait(max(due - self._clock(), 0.01))
        finally:
            self._parts = None
            self.ready.set()
            finish()
            if self._temporary is not None:
                with suppress(OSError):
                    self._temporary.cleanup()

    def renew(self) -> None:
        """Fetch the parts that are new, and drop those that are gone.

        Raises `OSError`, `ValueError` or `Damaged`; the filter is then as it was.
        """
        for attempt in range(_ATTEMPTS):
            compared = self._clock()
            infos = self._manifest()
            if infos is None:
                self._parts = None
                return
            held = {part.info.id: part for part in self._parts or ()}
            try:
                parts = tuple(held.get(info.id) or self._fetched(info) for info in infos)
            except _Outdated:
                if attempt + 1 == _ATTEMPTS:
                    raise
                continue
            if not self._closed:
                self._parts, self._compared = parts, compared
            self._remove_others({info.id for info in infos})
            return

    def _get(self, path: str) -> Reply:
        assert self._exchange is not None
        return self._exchange(Ask("GET", path, b"", _TIMEOUT))

    def _manifest(self) -> list[PartInfo] | None:
        """Return the parts of the server's filter, None if it has none for us."""
        reply = self._get("/digest-filter")
        if reply.status in (401, 403, 404):
            self._log_once(f"there is no digest filter: the server answered {reply.status}")
            return None
        if reply.status != 200:
            raise ValueError(f"the server answered {reply.status}")
        infos = read_manifest(reply.body)
        if (size := sum(info.size for info in infos)) > self._most:
            self._log_once(f"the digest filter is not used: it has {size} bytes")
            return None
        return infos

    def _fetched(self, info: PartInfo) -> Part:
        """Return a part from the directory or the server."""
        directory = self._folder()
        path = directory / f"{info.id}.part"
        with suppress(OSError, Damaged):
            return Part.open(path, info.id)
        # Under a name of its own: another client that shares the directory may write the part, too,
        # and must not cut what is mapped here.
        with NamedTemporaryFile(
            dir=directory, prefix=f".{info.id}.", suffix=".new", delete=False
        ) as stream:
            beside = Path(stream.name)
            try:
                for number in range(-(-info.size // PIECE)):
                    reply = self._get(f"/digest-filter/{info.id}?piece={number}")
                    if reply.status == 404:
                        raise _Outdated
                    wanted = min(PIECE, info.size - number * PIECE)
                    if reply.status != 200 or len(reply.body) != wanted or self._closed:
                        raise ValueError(f"a piece of {len(reply.body)} bytes came")
                    stream.write(reply.body)
                stream.close()
                part = Part.open(beside, info.id)
                os.replace(beside, path)
            finally:
                beside.unlink(missing_ok=True)
        return part

    def _folder(self) -> Path:
        if self._directory is not None:
            folder = Path(self._directory)
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        if self._temporary is None:
            self._temporary = TemporaryDirectory(prefix="dedupindex-filter-")
        return Path(self._temporary.name)

    def _remove_others(self, kept: Iterable[str]) -> None:
        """Remove parts that are gone, and what killed clients left; mapped files stay readable."""
        for path in self._folder().iterdir():
            name = _FILE.fullmatch(path.name)
            if name is None or name[1] in kept:
                continue
            with suppress(OSError):
                if name[1] or time.time() - path.stat().st_mtime > _ABANDONED:
                    path.unlink()

    def _ask_for_crawls(self) -> None:
        """Learn which of the crawls that have asked are in a namespace."""
        for name in tuple(self._unknown):
            reply = self._get(f"/crawls/{quote(name, '')}")
            if reply.status == 200 and len(self._crawls) < _CRAWLS:
                self._crawls[name] = json.loads(reply.body)["namespace"] is None
            self._unknown.discard(name)

    def _log_once(self, sentence: str) -> None:
        if sentence != self._logged:
            self._logged = sentence
            _log.warning("%s; all is asked", sentence)


def _any_has(parts: Iterable[Part], sought: KnownKey) -> bool:
    return any(part.may_have(sought) for part in parts)
