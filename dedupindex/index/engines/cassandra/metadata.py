"""What an index on a cluster records of itself: identity, counts, container numbers, the loader.

These are rows of the table ``about``. A load writes ``loading`` first and ``state`` last, then
removes ``loading``: if that is there without a loader, a load was killed, and the counts must be
made anew. Each load has a timestamp later than those before, whatever the machine's clock. A random
signature in the identity shows whether the keyspace was dropped and loaded again.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from math import ceil
from time import sleep, time_ns
from typing import Any

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.errors import Damaged, DedupError, IndexBusy, IndexUnavailable, SettingsConflict
from dedupindex.index import identity as directory
from dedupindex.index.address import Address
from dedupindex.index.engine import clock, retry
from dedupindex.index.engines.cassandra.cassandra_schema import NUMBER, PLACE, PLACES, tables_exist
from dedupindex.index.engines.cassandra.cql import (
    Call,
    ConditionalResult,
    Row,
    Session,
    Statement,
    Unclear,
    Use,
    execute_conditional,
    write_all,
)
from dedupindex.index.format import cells
from dedupindex.index.format.cells import ContainerRef
from dedupindex.index.identity import Identity, Settings

LEASE = 60  # seconds that a loader that died on another machine keeps others waiting
_RENEWED = LEASE / 6
_NUMBERS_LOST = (
    "the index has lost its 'next_number', so containers cannot be numbered; build it again in "
    "another keyspace"
)
_GET = Statement("SELECT value FROM KS.about WHERE name = ?")
_GET_SERIAL = _GET._replace(use=Use.SERIAL)
_PUT = Statement("INSERT INTO KS.about (name, value) VALUES (?, ?) USING TIMESTAMP ?", Use.WRITE)
_REMOVE = Statement("DELETE FROM KS.about USING TIMESTAMP ? WHERE name = ?", Use.WRITE)
_CREATE = Statement(
    "INSERT INTO KS.about (name, value) VALUES (?, ?) IF NOT EXISTS", Use.CONDITIONAL
)
_CHANGE = Statement("UPDATE KS.about SET value = ? WHERE name = ? IF value = ?", Use.CONDITIONAL)
_ACQUIRE = Statement(
    "INSERT INTO KS.about (name, value) VALUES ('lease', ?) IF NOT EXISTS USING TTL ?",
    Use.CONDITIONAL,
)
_RENEW = Statement(
    "UPDATE KS.about USING TTL ? SET value = ? WHERE name = 'lease' IF value = ?", Use.CONDITIONAL
)
_RELEASE = Statement("DELETE FROM KS.about WHERE name = 'lease' IF value = ?", Use.CONDITIONAL)
_PUT_PLACE = Statement(
    "INSERT INTO KS.place (number, container, crawl) VALUES (?, ?, ?)", Use.WRITE
)
_PUT_NUMBER = Statement("INSERT INTO KS.number (place, number) VALUES (?, ?)", Use.WRITE)
_TRIES = 10  # of a transaction that collides with others, or whose outcome is unknown


@dataclass
class IndexState:
    """The content of the row ``state``."""

    generation: int = 0  # finished loads
    captures: int = 0
    digests: int = 0
    containers: int = 0
    checksum: int = 0  # see `merge_rule.checksum`
    own_digests: bool = True
    written: int = 0  # the latest timestamp of a capture, microseconds since 1970
    note: dict[str, Any] = field(default_factory=dict)
    purges: list[dict[str, Any]] = field(default_factory=list)


class About:
    """The rows of ``about`` of one index."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get(self, name: str) -> Any:
        """Return a value, None if it is missing; raises `Damaged`, `FormatFromPast`."""
        rows = self._session.execute(_GET, name)
        if not rows:
            return None
        stored = rows[0][0]
        if stored[-9:-8] != "#":  # it has no checksum
            raise self._from_past()
        return json.loads(cells.unsealed_text(name.encode(), stored))

    def _from_past(self) -> IndexUnavailable:
        """Return the error for text without a checksum, which is of format 1."""
        rows = self._session.execute(_GET, "identity")
        options = ""
        with suppress(ValueError, LookupError, TypeError):
            options = Settings.options_of(json.loads(rows[0][0])["settings"])
        what = "the index in this keyspace of the cluster"
        return directory.other_format(what, 1, options, "cassandra://HOST,.../OTHER_KEYSPACE")

    def put(self, name: str, value: Any, written: int) -> None:
        write_all(self._session, [(_PUT, (name, _sealed(name, value), written))])

    def remove(self, name: str, written: int) -> None:
        write_all(self._session, [(_REMOVE, (written, name))])

    def state(self) -> IndexState:
        """Return the state after the last finished load."""
        return IndexState(**(self.get("state") or {}))

    def next_number(self) -> int:
        """Return the first container number that is not assigned; raises `Damaged`."""
        number = self.get("next_number")
        if number is None and self._lost_numbers():
            raise Damaged(_NUMBERS_LOST)
        return int(number or 1)

    def _lost_numbers(self) -> bool:
        """Return whether containers have numbers, but there is no ``next_number``.

        Counting from 1 again would give numbers other names, and captures other containers.
        """
        numbered = any(page for page in self._session.scan(PLACES))
        return numbered and not self._session.execute(_GET_SERIAL, "next_number")

    def take_numbers(self, count: int) -> int:
        """Assign `count` new container numbers and return the first; raises `Damaged`."""
        session = self._session
        for _ in range(_TRIES):
            with suppress(Unclear):
                found = session.execute(_GET_SERIAL, "next_number")
                if not found:
                    if self._lost_numbers():
                        raise Damaged(_NUMBERS_LOST)
                    session.execute(_CREATE, "next_number", _sealed("next_number", 1))
                    continue
                stored = found[0][0]
                free = int(cells.unsealed_text(b"next_number", stored))
                after = _sealed("next_number", free + count)
                rows = session.execute(_CHANGE, after, "next_number", stored)
                if rows and rows[0][0]:
                    return free
        raise IndexUnavailable("the cluster gives no container numbers; run the same command again")

    def identity(self, engine: str) -> Identity | None:
        """Return the identity, None before the first load is done; raises for other formats."""
        state = self.state()
        stored = self.get("identity") if state.generation else None
        if stored is None:
            return None
        if stored["format"] != directory.FORMAT:
            raise directory.other_format(f"the index at {engine}", stored["format"], "", engine)
        settings = Settings(**stored["settings"])
        return Identity(engine, settings, stored["canonicaliser"], state.generation)

    def identify(self, identity: Identity, written: int) -> None:
        """Write the identity, and a new signature, before the first load."""
        content = {
            "format": directory.FORMAT,
            "settings": asdict(identity.settings),
            "canonicaliser": identity.canonicaliser,
            "mark": secrets.token_hex(8),
        }
        self.put("identity", content, written)


def _sealed(name: str, value: Any) -> str:
    return cells.sealed_text(name.encode(), json.dumps(value))


def signature_of(session: Session) -> str:
    """Return the signature of the index in the keyspace, "" if there is none.

    It is read with the consistency of writes: a node that was down may lack it.
    """
    stored = About(session.for_changes()).get("identity")
    return "" if stored is None else str(stored.get("mark", ""))


def has_signature(session: Session, signature: str) -> bool:
    """Return whether the index in the keyspace has a signature; raises `IndexUnavailable`."""
    try:
        return signature_of(session) == signature
    except IndexUnavailable:
        if tables_exist(session):
            raise
        return False


def check_same(mine: Identity, cluster: Identity, address: Address) -> None:
    """Raise `SettingsConflict` unless a directory refers to the index that the cluster has."""
    if (mine.settings, mine.canonicaliser) != (cluster.settings, cluster.canonicaliser):
        raise SettingsConflict(
            f"the index at {address} has other settings than {directory.FILE} of its directory "
            "here says; name the address itself, or another directory"
        )


EXECUTORS = "executors"  # row of a load by executors: seconds that the next load waits
_LENT = LEASE / 6


class Lease:
    """The right to load, which one process at a time has, on any machine; a context manager.

    A thread renews it. The lease of a process that has died on this machine is taken over at once;
    that of one on another machine ends by itself, after `LEASE` seconds.
    """

    def __init__(self, session: Session, index: str) -> None:
        self._session, self._index = session, index
        process = {"host": socket.gethostname(), "pid": os.getpid(), **_identified(os.getpid())}
        self.text = json.dumps({**process, "token": secrets.token_hex(8)})
        self._ended = threading.Event()
        self._renewed = 0.0

    def __enter__(self) -> Lease:
        self._renewed = clock()
        for _ in range(_TRIES):
            found = self._try(_ACQUIRE, self.text, LEASE)
            if not found.applied and found.row is not None and _is_dead(found.row[0]):
                found = self._try(_RENEW, LEASE, self.text, found.row[0])
            if found.applied or found.row is not None:
                break
        if not found.applied:
            holder = json.loads(found.row[0]) if found.row else {}
            raise IndexBusy(
                f"process {holder.get('pid', '?')} on {holder.get('host', '?')} is writing to "
                f"{self._index}; try again later (a minute after it died)"
            )
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()
        return self

    def _try(self, statement: Statement, *values: Any) -> ConditionalResult:
        back = _GET_SERIAL, ("lease",)
        return execute_conditional(
            self._session, (statement, values), back, lambda row: row[0] == self.text
        )

    def check(self) -> None:
        """Raise `IndexUnavailable` if another process may have the lease by now."""
        if clock() - self._renewed > LEASE - _RENEWED:
            raise IndexUnavailable(
                f"the right to write to {self._index} was lost, since the cluster did not answer "
                "for a while; run the same command again"
            )

    def _renew(self) -> None:
        while not self._ended.wait(_RENEWED):
            with suppress(IndexUnavailable):
                began = clock()
                rows = self._session.execute(_RENEW, LEASE, self.text, self.text)
                if rows and rows[0][0]:
                    self._renewed = began

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        with suppress(IndexUnavailable):  # it ends by itself
            self._session.execute(_RELEASE, self.text)


class LentLease:
    """The lease of a load as its executors have it: they may write while the row says the same.

    An executor that is cut off from its driver stops by itself. What it has sent by then may be
    written later, so whoever takes over from executors waits (`await_executors`).
    """

    def __init__(self, session: Session, text: str) -> None:
        """`text`: that of the driver's lease."""
        self._session, self._text = session, text
        self._seen = float("-inf")

    def check(self) -> None:
        """Raise `DedupError` unless the driver had the lease a few seconds ago.

        It is final, so `retry` lets it pass. Raises `IndexUnavailable` if that is not known.
        """
        began = clock()
        if began - self._seen <= _LENT:
            return
        rows = self._session.execute(_GET_SERIAL, "lease")
        if not rows or rows[0][0] != self._text:
            raise DedupError("the load to which this executor belongs has ended")
        self._seen = began


def executors_end(address: Address) -> int:
    """Return how many seconds after its driver has lost the lease an executor may write at most.

    It saw the lease `_LENT` seconds before, or asked for it for `timeout` seconds; then its last
    batch had `timeout` seconds. The rest is for nodes that are slow to write what they have got.
    """
    return ceil(LEASE + 4 * address.timeout)


def await_executors(about: About, lease: Lease, on_progress: OnProgress) -> None:
    """Wait until no executor of a load that was interrupted can write any more; once for it.

    Raises `IndexUnavailable` if another process may have the lease by then.
    """
    seconds = about.get(EXECUTORS) or 0
    for second in range(seconds):
        part = second / seconds
        on_progress(ProgressUpdate("waiting for executors of an interrupted load", part=part))
        sleep(1)
    if seconds:
        lease.check()
        about.remove(EXECUTORS, max(time_ns() // 1000, (about.get("loading") or 0) + 1))


def _identified(pid: int) -> dict[str, str]:
    """Return the boot id, PID namespace and start time of a process, "" if it is gone."""
    with open("/proc/sys/kernel/random/boot_id") as stream:
        boot = stream.read().strip()
    space = os.readlink("/proc/self/ns/pid")
    try:
        with open(f"/proc/{pid}/stat") as stream:
            began = stream.read().rpartition(")")[2].split()[19]
    except OSError:
        began = ""
    return {"boot": boot, "space": space, "began": began}


def _is_dead(text: str) -> bool:
    """Return whether the process that holds a lease has certainly ended."""
    holder = json.loads(text)
    found = _identified(int(holder["pid"]))
    here = (holder["boot"], holder["space"]) == (found["boot"], found["space"])
    return here and bool(holder["began"] != found["began"])


# --- container numbers, which several machines assign --------------------------------------------


def key_of(place: ContainerRef) -> bytes:
    """Return the key of a container in the table ``number``."""
    return bytes_of(f"{place.crawl}\0{place.container}")


def bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def place_in(number: int, row: Row) -> ContainerRef:
    """Return the container in a row of ``place``; raises `Damaged`."""
    crawl = bytes(row[1])
    name = cells.unsealed(number.to_bytes(4) + crawl, bytes(row[0]))
    return ContainerRef(*(text.decode("utf-8", "surrogateescape") for text in (name, crawl)))


def put_place(number: int, place: ContainerRef) -> Call:
    """Return the call that writes what a number stands for."""
    crawl = bytes_of(place.crawl)
    name = cells.sealed(number.to_bytes(4) + crawl, bytes_of(place.container))
    return _PUT_PLACE, (number, name, crawl)


def number_in(key: bytes, stored: int) -> int:
    """Return the container number in a row of ``number``; raises `Damaged`."""
    number = stored & cells.LOW
    if stored != _sealed_number(key, number):
        raise cells.damaged(key)
    return number


def put_number(number: int, place: ContainerRef) -> Call:
    """Return the call that writes the number of a container."""
    key = key_of(place)
    return _PUT_NUMBER, (key, _sealed_number(key, number))


def _sealed_number(key: bytes, number: int) -> int:
    """Return a number with the checksum of key and number in the upper half of 64 bits."""
    stored = cells.sealed(key, number.to_bytes(4))
    return int.from_bytes(stored[4:] + stored[:4], signed=True)


def register(session: Session, places: Sequence[tuple[int, ContainerRef]]) -> dict[int, int]:
    """Write containers; return the final number of each, by the number that its build assigned.

    Builds assign numbers before they have the lease: numbers that are taken by now are replaced.
    """
    calls = [(NUMBER, (key_of(place),)) for _, place in places]
    known = retry(lambda: list(session.execute_many(calls)))
    now = {
        number: number_in(key_of(place), rows[0][0])
        for (number, place), rows in zip(places, known, strict=True)
        if rows
    }
    fresh = [(number, place) for number, place in places if number not in now]
    if fresh:
        now |= _numbers(About(session), [number for number, _ in fresh])
    # Known ones are written again: that restores a name that was lost.
    write_all(session, [put_place(now[number], place) for number, place in places])
    # Numbers come last: who reads a number must find its name.
    write_all(session, [put_number(now[number], place) for number, place in fresh])
    return now


def unnamed(session: Session, numbers: Iterable[int]) -> list[int]:
    """Return the container numbers that have no name, in order."""
    wanted = sorted(numbers)
    calls = [(PLACE, (number,)) for number in wanted]
    found = retry(lambda: list(session.execute_many(calls)))
    return [number for number, rows in zip(wanted, found, strict=True) if not rows]


def _numbers(about: About, wanted: list[int]) -> dict[int, int]:
    """Assign numbers: those that are wanted, if all of them are free."""
    free = retry(about.next_number)
    if min(wanted) >= free and about.take_numbers(max(wanted) + 1 - free) == free:
        return {number: number for number in wanted}
    first = about.take_numbers(len(wanted))
    return {number: first + at for at, number in enumerate(wanted)}
