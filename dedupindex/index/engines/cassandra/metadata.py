"""What an index on a cluster says of itself: identity, counts, the numbers given out, who loads.

The identity has a mark of its own, so that who has the index open notices when its keyspace was
dropped and loaded anew.

Rows of the table ``about``. `state` is written last in a load, in one piece; `loading` stands from
before the first capture until after that, so that it tells of a load that was killed. What such a
load has written is true as it is; only the counts must then be made anew. All that loads
write has their timestamps, later than those of the loads before, whatever a machine's clock says.
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
from types import TracebackType
from typing import Any

from dedupindex.errors import Damaged, IndexBusy, IndexUnavailable, SettingsConflict
from dedupindex.index import identity as directory
from dedupindex.index.address import Address
from dedupindex.index.engines.cassandra.cassandra_schema import Statements, made
from dedupindex.index.engines.cassandra.cql import (
    Row,
    Session,
    Settled,
    Statement,
    Unclear,
    Use,
    clock,
    conditionally,
    patiently,
    write_all,
)
from dedupindex.index.format.cells import (
    LOW,
    ContainerRef,
    damaged,
    is_sealed_text,
    sealed,
    sealed_text,
    unsealed,
    unsealed_text,
)
from dedupindex.index.identity import Identity, Settings

LEASE = 60  # seconds that a loader which has died, on another machine, keeps others waiting
_RENEWED = LEASE / 6
_NUMBERS_LOST = (
    "the index has lost its 'next_number', so containers cannot be numbered; build it again in "
    "another keyspace"
)
_TRIES = 10  # of a transaction that meets others, or whose outcome nobody told


@dataclass
class IndexState:
    """The content of `state`."""

    generation: int = 0  # loads that were finished
    captures: int = 0
    digests: int = 0
    containers: int = 0
    checksum: int = 0  # see `settle.checksum`
    own_digests: bool = True
    written: int = 0  # the latest timestamp of a capture, microseconds since 1970
    note: dict[str, Any] = field(default_factory=dict)


class About:
    """The rows of ``about`` of one index."""

    def __init__(self, session: Session, statements: Statements) -> None:
        self._session, self._on = session, statements

    def get(self, name: str) -> Any:
        """A value, None if it is not there."""
        rows = self._session.execute(self._on.about, name)
        if not rows:
            return None
        if not is_sealed_text(rows[0][0]):
            raise self._from_past()
        return json.loads(unsealed_text(name.encode(), rows[0][0]))

    def _from_past(self) -> IndexUnavailable:
        """What is said where text has no checksum, as in format 1."""
        rows = self._session.execute(self._on.about, "identity")
        options = ""
        with suppress(ValueError, LookupError, TypeError):
            options = Settings.options_of(json.loads(rows[0][0])["settings"])
        what = "the index in this keyspace of the cluster"
        return directory.other_format(what, 1, options, "cassandra://HOST,.../OTHER_KEYSPACE")

    def put(self, name: str, value: Any, written: int) -> None:
        text = _sealed(name, value)
        write_all(self._session, [(self._on.put_about, (name, text, written))])

    def remove(self, name: str, written: int) -> None:
        write_all(self._session, [(self._on.remove_about, (written, name))])

    def state(self) -> IndexState:
        """The state after the last load."""
        return IndexState(**(self.get("state") or {}))

    def next_number(self) -> int:
        """The first container number that was given to nobody; raises `Damaged`."""
        number = self.get("next_number")
        if number is None and self._lost_numbers():
            raise Damaged(_NUMBERS_LOST)
        return int(number or 1)

    def _lost_numbers(self) -> bool:
        """Whether containers have numbers, though no number is the next.

        Counted from 1 again, numbers would get other names, and captures other containers.
        """
        numbered = any(page for page in self._session.scan(self._on.places))
        return numbered and not self._session.execute(self._on.about_now, "next_number")

    def take_numbers(self, count: int) -> int:
        """The first of `count` container numbers that nobody else gets; raises `Damaged`.

        Nobody is told twice of the same: at worst some numbers are never used.
        """
        session, on = self._session, self._on
        for _ in range(_TRIES):
            with suppress(Unclear):
                found = session.execute(on.about_now, "next_number")
                if not found:
                    if self._lost_numbers():
                        raise Damaged(_NUMBERS_LOST)
                    session.execute(on.begin_about, "next_number", _sealed("next_number", 1))
                    continue
                stored = found[0][0]
                free = int(unsealed_text(b"next_number", stored))
                after = _sealed("next_number", free + count)
                rows = session.execute(on.change_about, after, "next_number", stored)
                if rows and rows[0][0]:
                    return free
        raise IndexUnavailable("the cluster gives no container numbers; run the same command again")

    def identity(self, engine: str) -> Identity | None:
        """What the index in the cluster is, None before its first load was finished.

        Raises `FormatFromFuture` or `FormatFromPast`.
        """
        state = self.state()
        said = self.get("identity") if state.generation else None
        if said is None:
            return None
        if said["format"] != directory.FORMAT:
            raise directory.other_format(f"the index at {engine}", said["format"], "", engine)
        settings = Settings(**said["settings"])
        return Identity(engine, settings, said["canonicaliser"], state.generation)

    def identify(self, identity: Identity, written: int) -> None:
        """Say what the index will be, before its first load."""
        said = {
            "format": directory.FORMAT,
            "settings": asdict(identity.settings),
            "canonicaliser": identity.canonicaliser,
            "mark": secrets.token_hex(8),
        }
        self.put("identity", said, written)

    def mark(self) -> str:
        """What no index has that takes the place of this one; "" where there is none."""
        said = self.get("identity")
        return "" if said is None else str(said.get("mark", ""))


def _sealed(name: str, value: Any) -> str:
    return sealed_text(name.encode(), json.dumps(value))


def mark_of(session: Session, keyspace: str) -> str:
    """The mark of the index in a keyspace; a node that was away, and lacks it, is not believed."""
    return About(session, Statements.of(keyspace, Use.WRITE)).mark()


def is_marked(session: Session, keyspace: str, mark: str) -> bool:
    """Whether a keyspace holds the index that has this mark; raises `IndexUnavailable`."""
    try:
        return mark_of(session, keyspace) == mark
    except IndexUnavailable:
        if made(session, keyspace):
            raise
        return False  # it was dropped


def agree(mine: Identity, cluster: Identity, address: Address) -> None:
    """Raise `SettingsConflict` unless a directory speaks of the index that the cluster has."""
    one = mine.settings, mine.canonicaliser
    if one != (cluster.settings, cluster.canonicaliser):
        raise SettingsConflict(
            f"the index at {address} has other settings than {directory.FILE} of its directory "
            "here says; name the address itself, or another directory"
        )


class Lease:
    """The right to load, of one process at a time in all the world. To be entered.

    It is renewed by a thread. One that is held by a process that has died on this machine is taken
    over at once; of another machine it is waited for until it ends by itself.
    """

    def __init__(self, session: Session, statements: Statements, index: str) -> None:
        self._session, self._on, self._index = session, statements, index
        self._text = json.dumps({**_process(), "token": secrets.token_hex(8)})
        self._ended = threading.Event()
        self._renewed = 0.0

    def __enter__(self) -> Lease:
        self._renewed = clock()
        for _ in range(_TRIES):
            found = self._try(self._on.lease, self._text, LEASE)
            if not found.won and found.row is not None and _dead(found.row[0]):
                found = self._try(self._on.renew, LEASE, self._text, found.row[0])
            if found.won or found.row is not None:
                break
        if not found.won:
            holder = json.loads(found.row[0]) if found.row else {}
            raise IndexBusy(
                f"process {holder.get('pid', '?')} on {holder.get('host', '?')} is writing to "
                f"{self._index}; try again later (a minute after it died)"
            )
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()
        return self

    def _try(self, statement: Statement, *values: Any) -> Settled:
        back, text = self._on.about_now, self._text
        return conditionally(
            self._session, statement, values, back, ("lease",), lambda row: row[0] == text
        )

    def check(self) -> None:
        """Raise `IndexUnavailable` if somebody else may be loading by now."""
        if clock() - self._renewed > LEASE - _RENEWED:
            raise IndexUnavailable(
                f"the right to write to {self._index} was lost, since the cluster did not answer "
                "for a while; run the same command again"
            )

    def _renew(self) -> None:
        while not self._ended.wait(_RENEWED):
            with suppress(IndexUnavailable):
                began = clock()
                values = LEASE, self._text, self._text
                rows = self._session.execute(self._on.renew, *values)
                if rows and rows[0][0]:
                    self._renewed = began

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        with suppress(IndexUnavailable):  # it ends by itself
            self._session.execute(self._on.release, self._text)


def _process() -> dict[str, Any]:
    """This process as others on its machine find it: the boot, the space of numbers, the start."""
    return {"host": socket.gethostname(), "pid": os.getpid(), **_seen(os.getpid())}


def _seen(pid: int) -> dict[str, str]:
    with open("/proc/sys/kernel/random/boot_id") as stream:
        boot = stream.read().strip()
    space = os.readlink("/proc/self/ns/pid")
    try:
        with open(f"/proc/{pid}/stat") as stream:
            began = stream.read().rpartition(")")[2].split()[19]
    except OSError:
        began = ""
    return {"boot": boot, "space": space, "began": began}


def _dead(text: str) -> bool:
    """Whether the process that holds a lease is surely gone."""
    holder = json.loads(text)
    seen = _seen(int(holder["pid"]))
    here = (holder["boot"], holder["space"]) == (seen["boot"], seen["space"])
    return here and bool(holder["began"] != seen["began"])


# Container numbers of an index on a cluster, which many machines give out.

Asked = tuple[Statement, Sequence[Any]]


def key_of(place: ContainerRef) -> bytes:
    """What the number of a place is found by."""
    return bytes_of(f"{place.crawl}\0{place.container}")


def bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def place_in(number: int, row: Row) -> ContainerRef:
    """The place that a row of the table has for a number; raises `Damaged`."""
    crawl = bytes(row[1])
    name = unsealed(_place_key(number, crawl), bytes(row[0]))
    return ContainerRef(_text(name), _text(crawl))


def number_in(key: bytes, stored: int) -> int:
    """The container number that is stored under the key of a place; raises `Damaged`."""
    number = stored & LOW
    if stored != sealed_number(key, number):
        raise damaged(key)
    return number


def put_place(on: Statements, number: int, place: ContainerRef) -> Asked:
    """What makes known what a number stands for."""
    crawl = bytes_of(place.crawl)
    name = sealed(_place_key(number, crawl), bytes_of(place.container))
    return on.put_place, (number, name, crawl)


def put_number(on: Statements, number: int, place: ContainerRef) -> Asked:
    """What makes known which number a place has."""
    key = key_of(place)
    return on.put_number, (key, sealed_number(key, number))


def sealed_number(key: bytes, number: int) -> int:
    """A number with a checksum of it and its key in the upper half of 64 bits."""
    stored = sealed(key, number.to_bytes(4, "big"))
    return int.from_bytes(stored[4:] + stored[:4], "big", signed=True)


def _place_key(number: int, crawl: bytes) -> bytes:
    return number.to_bytes(4, "big") + crawl


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def register(
    session: Session, statements: Statements, places: Sequence[tuple[int, ContainerRef]]
) -> dict[int, int]:
    """Make places known; which number each has, of those that were given to them elsewhere.

    A build numbers what it stages before it may load, and so may others at the same time: numbers
    that were free then and are taken now are given anew.
    """
    about = About(session, statements)
    asked = [(statements.number, (key_of(place),)) for _, place in places]
    known = patiently(lambda: list(session.execute_many(asked)))
    now: dict[int, int] = {}
    fresh: list[tuple[int, ContainerRef]] = []
    for (number, place), rows in zip(places, known, strict=True):
        if rows:
            now[number] = number_in(key_of(place), rows[0][0])
        else:
            fresh.append((number, place))
    if fresh:
        now |= _numbers(about, [number for number, _ in fresh])
    # Also of numbers that are there: what has lost its name gets it back.
    write_all(session, [put_place(statements, now[number], place) for number, place in places])
    # Who finds a number finds its place.
    write_all(session, [put_number(statements, now[number], place) for number, place in fresh])
    return now


def unnamed(session: Session, statements: Statements, numbers: Iterable[int]) -> list[int]:
    """The container numbers that stand for nothing, in order."""
    asked = sorted(numbers)
    found = patiently(
        lambda: list(session.execute_many((statements.place, (number,)) for number in asked))
    )
    return [number for number, rows in zip(asked, found, strict=True) if not rows]


def _numbers(about: About, wanted: list[int]) -> dict[int, int]:
    """Numbers that nobody else has: those that are wanted, if they are free."""
    free = about.next_number()
    if min(wanted) >= free and about.take_numbers(max(wanted) + 1 - free) == free:
        return {number: number for number in wanted}
    first = about.take_numbers(len(wanted))
    return {number: first + place for place, number in enumerate(wanted)}
