"""Makes a filter of all digests of an index on a cluster, and keeps it current.

The digests of the cluster are read once, in ranges of tokens, while the list of those that are
added (`added_digests`) is read from before that on. Then only the list is read, every second. The
filter is made anew when the index is another one, or something in the list was missed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from dedupindex.digest_filter import key_of
from dedupindex.errors import BadInput, DedupError, IndexUnavailable
from dedupindex.index.address import Address
from dedupindex.index.engine import clock
from dedupindex.index.engines.cassandra import added_digests, cassandra_schema, metadata
from dedupindex.index.engines.cassandra.cql import Session, Statement, Use, connect
from dedupindex.index.identity import read_identity
from dedupindex.index.shared_filter import SharedFilter

RENEWED = 1.0  # seconds between two readings of what was added
CONSISTENCIES = ("LOCAL_QUORUM", "QUORUM", "EACH_QUORUM", "ALL")
_AGAIN = 5.0  # seconds until it is tried again
_RANGES, _DIGESTS = 16, 200_000  # at least; digests of one
_AT_ONCE = 3  # ranges
_TOKENS = 1 << 63
_DIGESTS_OF = Statement(
    "SELECT DISTINCT dk FROM KS.capture WHERE token(dk) > ? AND token(dk) <= ?", Use.QUORUM
)


def filter_identity(address: Address, signature: str) -> int:
    """Return what a filter records of the index that it was made of."""
    return xxh3_64_intdigest(repr((sorted(address.hosts), address.where[1:], signature)).encode())


class _Origin(NamedTuple):
    """What the filter is of."""

    engine: str  # as ``index.json`` names it
    signature: str


class ClusterFilter:
    """The filter of the index that a directory names, in memory that others read."""

    def __init__(
        self,
        index: Path,
        shared: SharedFilter,
        report: Callable[[str], None],
        reported: Callable[[], int] = lambda: 0,
    ) -> None:
        """`report` takes messages, `reported` returns how many captures crawls have."""
        self._index, self._shared, self._report, self._reported = index, shared, report, reported
        self._ended = threading.Event()

    def end(self) -> None:
        """Make `run` return soon."""
        self._ended.set()

    def run(self) -> None:
        """Make the filter and renew it, again and again."""
        said = ""
        while not self._ended.is_set():
            try:
                self._make()
            except DedupError as error:
                if str(error) != said:
                    said = str(error)
                    self._report(f"without a digest filter: {error}")
            finally:
                self._shared.stop()
            self._ended.wait(_AGAIN)

    def _make(self) -> None:
        engine = read_identity(self._index).engine
        address = Address.parse(engine)
        if address.consistency not in CONSISTENCIES:
            raise BadInput(f"it needs a consistency of {CONSISTENCIES[0]} or more")
        with closing(connect(address)) as session:
            origin = _Origin(engine, metadata.signature_of(session))
            state = metadata.About(session).state()
            if not state.generation:
                raise IndexUnavailable("the first load has not finished")
            if not cassandra_schema.has_table(session, "added"):  # it was made by another version
                with metadata.Lease(session, str(address)):
                    cassandra_schema.create_tables(session, address)
            self._check(session, origin)
            tail = added_digests.AddedTail(session, added_digests.join_epochs(session))
            if self._ended.wait(added_digests.LATEST):
                return
            expected = state.digests + self._reported()
            self._shared.begin(filter_identity(address, origin.signature), expected)
            with _DigestScan(session, self._shared, expected) as scan:
                self._renew(session, tail, origin, scan)

    def _renew(
        self, session: Session, tail: added_digests.AddedTail, origin: _Origin, scan: _DigestScan
    ) -> None:
        """Follow the list until the end; raises what makes the filter unusable."""
        whole = False
        while not self._ended.is_set():
            scanned, began = scan.is_done(), clock()
            try:
                self._check(session, origin)
                for keys in tail.read():
                    self._shared.add(keys, wait=None)
                if scanned:
                    self._shared.renew(began)
            except added_digests.Missed:
                raise
            except IndexUnavailable:
                pass  # it is tried again; soon the filter is too old to answer
            if scanned and not whole:
                whole = True
                status = self._shared.status()
                self._report(
                    f"the digest filter has {status.digests:,} digests in {status.size:,} bytes"
                )
            self._ended.wait(RENEWED)

    def _check(self, session: Session, origin: _Origin) -> None:
        """Raise `Missed` if the filter is not of the index that is served."""
        engine = read_identity(self._index).engine
        if origin != _Origin(engine, metadata.signature_of(session)):
            raise added_digests.Missed("the index has been replaced")
        found = cassandra_schema.datacenters(session)
        if len(found) > 1:
            raise added_digests.Missed(
                f"the index has copies in the datacenters {', '.join(found)}; what is written in "
                "one is seen in another at some time"
            )


class _DigestScan:
    """Adds all digests of a cluster to a filter, in threads; a context manager."""

    def __init__(self, session: Session, shared: SharedFilter, expected: int) -> None:
        self._session, self._shared = session, shared
        self._ended = threading.Event()
        self._threads = ThreadPoolExecutor(_AT_ONCE, "digests")
        self._ranges = _ranges(max(_RANGES, expected // _DIGESTS))
        self._taking = threading.Lock()
        self._futures = [self._threads.submit(self._run) for _ in range(_AT_ONCE)]

    def __enter__(self) -> _DigestScan:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._threads.shutdown()

    def is_done(self) -> bool:
        """Return whether all digests were added; raises what a thread has raised."""
        if not all(map(Future.done, self._futures)):
            return False
        return all(future.result() for future in self._futures)

    def _run(self) -> bool:
        """Read ranges until none is left; return False if it was ended before."""
        while True:
            with self._taking:
                found = next(self._ranges, None)
            if found is None:
                return True
            while not self._ended.is_set():
                try:
                    if self._read(*found):
                        break
                except IndexUnavailable:
                    self._ended.wait(1.0)
            else:
                return False

    def _read(self, after: int, last: int) -> bool:
        for page in self._session.scan(_DIGESTS_OF, after, last):
            self._shared.add([key_of(bytes(start)[1:]) for (start,) in page], wait=None)
            if self._ended.is_set():
                return False
        return True


def _ranges(count: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of tokens: from after one to another. No digest has the least token."""
    bounds = [2 * _TOKENS * at // count - _TOKENS for at in range(count)] + [_TOKENS - 1]
    return iter(pairwise(bounds))
