"""A digest filter in memory that the processes of a server share; docs/digest-filter.md.

One process, the builder, adds digests and says when the filter was renewed; the others read it, and
add what they have just stored. The memory is a file without name, of which only what is used is
occupied. It begins with numbers of 64 bits:

    0    generation   another number whenever it stops answering or its tables were laid out anew
    1    tables       how many there are
    2    digests      how many distinct ones were added
    3    identity     of the index that it was made of
    4    renewed      seconds of `clock`, a double: all that was acknowledged before is in it; or 0
    5    asked until  seconds of `clock`, a double, until which it answers nothing
    64   tables       where each begins, its blocks of 32 bytes, how many digests it has room for
    256  answered     by each process that reads: lookups that it did not have to ask

Digests are found in tables as in the parts of `dedupindex.digest_filter`. When the last table is
full, one of a quarter of all is added; when all memory is used, they are filled further, and more
new digests are taken for known.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from dedupindex.digest_filter import BITS, BLOCK, key_of, mask_of
from dedupindex.index.engine import clock

FRESH = 5.0
"""Seconds: it never answers for a digest that was acknowledged earlier, on whatever machine. A
filter that was renewed longer ago answers nothing."""
LEAST = 1 << 16  # bytes of a table

_HEADER = 4096  # bytes
_GENERATION, _TABLES, _DIGESTS, _IDENTITY, _RENEWED, _ASKED = range(6)
_TABLES_AT, _MOST_TABLES, _ANSWERED_AT = 64, 64, 256
_START, _BLOCKS, _ROOM = range(3)
_HELD = 1.0  # seconds that a process waits for another to add


class FilterStatus(NamedTuple):
    """What a filter tells of itself."""

    digests: int
    size: int  # bytes of its tables
    maximum: int  # bytes that they may have
    age: float | None  # seconds since it was renewed; None: it is not whole
    answered: int  # lookups


def create(maximum: int) -> int:
    """Return the file of a new filter, whose tables have at most `maximum` bytes."""
    file = os.memfd_create("digest-filter")
    os.ftruncate(file, _HEADER + max(maximum, LEAST))
    return file


class SharedFilter:
    """The filter as one process sees it; for any number of threads."""

    def __init__(self, file: int, process: int = 0, now: Callable[[], float] = clock) -> None:
        """`process`: its number among those that read, from 0 to 63."""
        # Opened anew: a lock belongs to the open file, and forked processes would share it.
        self._file = os.open(f"/proc/self/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
        self._memory = mmap.mmap(self._file, 0)
        self._words = memoryview(self._memory)[:_HEADER].cast("Q")
        self._times = memoryview(self._memory)[:_HEADER].cast("d")
        self._now, self._answered_at = now, _ANSWERED_AT + process
        self._known: tuple[tuple[int, int], list[tuple[int, int]]] = ((-1, -1), [])
        self._adding, self._counting = threading.Lock(), threading.Lock()

    # --- reading -------------------------------------------------------------------------------

    def of(self, identity: int) -> bool:
        """Return whether it was made of the index with an `identity`."""
        return self._words[_IDENTITY] == identity

    def is_fresh(self) -> bool:
        """Return whether it may answer."""
        now, renewed = self._now(), self._times[_RENEWED]
        return bool(renewed) and now - renewed <= FRESH and now >= self._times[_ASKED]

    def lacks(self, start: bytes) -> bool:
        """Return True if the index has no capture of a digest, which may be up to `FRESH` old.

        `start` is the digest's part of keys. Returns False if it has, or if that is not known.
        """
        words = self._words
        generation = words[_GENERATION]  # before `renewed`: see `stop`
        if not self.is_fresh():
            return False
        if self._has(key_of(start[1:])) or words[_GENERATION] != generation:
            return False  # or it was emptied meanwhile
        with self._counting:
            words[self._answered_at] += 1
        return True

    def _has(self, key: int) -> bool:
        mask, high, memory = mask_of(key), key >> 32, self._memory
        for begin, blocks in self._tables():
            at = begin + BLOCK * (high * blocks >> 32)
            if int.from_bytes(memory[at : at + BLOCK], "little") & mask == mask:
                return True
        return False

    def _tables(self) -> list[tuple[int, int]]:
        version = self._words[_GENERATION], self._words[_TABLES]
        known = self._known  # which other threads replace
        if known[0] != version:
            numbers = range(version[1])
            found = [(self._table(n, _START), self._table(n, _BLOCKS)) for n in numbers]
            self._known = known = version, found
        return known[1]

    def status(self) -> FilterStatus:
        size = sum(BLOCK * blocks for _, blocks in self._tables())
        renewed, words = self._times[_RENEWED], self._words
        return FilterStatus(
            words[_DIGESTS],
            size,
            len(self._memory) - _HEADER,
            self._now() - renewed if renewed else None,
            sum(words[_ANSWERED_AT:]),
        )

    # --- writing -------------------------------------------------------------------------------

    def store(self, starts: Iterable[bytes]) -> None:
        """Add what this process has stored in the index, before it is acknowledged."""
        keys = [key_of(start[1:]) for start in starts]
        if not self.add(keys):
            self._times[_ASKED] = self._now() + FRESH  # until the builder has them from the cluster

    def add(self, keys: Iterable[int], wait: float | None = _HELD) -> bool:
        """Add the keys of digests; return False if others were adding for `wait` seconds."""
        with self._adding, self._locked(wait) as locked:
            if locked and self._words[_TABLES]:
                for key in keys:
                    if not self._has(key):
                        self._add(key)
            return locked

    def _add(self, key: int) -> None:
        number = self._table_with_room()
        self._words[_TABLES_AT + 3 * number + _ROOM] -= 1
        begin, blocks = self._table(number, _START), self._table(number, _BLOCKS)
        at = begin + BLOCK * ((key >> 32) * blocks >> 32)
        block = int.from_bytes(self._memory[at : at + BLOCK], "little")
        self._memory[at : at + BLOCK] = (block | mask_of(key)).to_bytes(BLOCK, "little")
        self._words[_DIGESTS] += 1

    def _table_with_room(self) -> int:
        """Return a table for the next digest: a new one, or one that is filled beyond its size."""
        count = self._words[_TABLES]
        for number in reversed(range(count)):  # it is the last, unless all are filled again
            if self._table(number, _ROOM):
                return number
        used = self._table(count - 1, _START) + BLOCK * self._table(count - 1, _BLOCKS)
        size = min(max((used - _HEADER) // 4, LEAST), len(self._memory) - used)
        if size >= LEAST and count < _MOST_TABLES:
            self._put_table(count, used, size)
            self._words[_TABLES] = count + 1
            return count
        for number in range(count):
            self._fill(number)
        return count - 1

    def _fill(self, number: int) -> None:
        """Let a table have as many digests as it has room for, or so many again."""
        room = BLOCK * self._table(number, _BLOCKS) * 8 // BITS
        self._words[_TABLES_AT + 3 * number + _ROOM] = room

    def _table(self, number: int, what: int) -> int:
        return self._words[_TABLES_AT + 3 * number + what]

    def _put_table(self, number: int, start: int, size: int) -> None:
        at, blocks = _TABLES_AT + 3 * number, size // BLOCK
        self._words[at + _START], self._words[at + _BLOCKS] = start, blocks
        self._fill(number)

    def begin(self, identity: int, expected: int) -> None:
        """Empty it for an index with `expected` digests; it answers nothing until it is renewed."""
        with self._adding, self._locked(None):
            self.stop()
            self._words[_TABLES] = self._words[_DIGESTS] = 0
            self._memory.madvise(mmap.MADV_REMOVE, _HEADER)
            self._words[_IDENTITY] = identity
            size = max(expected * BITS // 8 // BLOCK * BLOCK, LEAST)
            self._put_table(0, _HEADER, min(size, len(self._memory) - _HEADER))
            self._words[_TABLES] = 1
            self._words[_GENERATION] += 1  # whoever has read tables meanwhile reads them again

    def renew(self, moment: float) -> None:
        """Record that it has all that was acknowledged before a moment of `clock`."""
        self._times[_RENEWED] = moment

    def stop(self) -> None:
        """Answer nothing until it is renewed.

        A lookup reads generation, `renewed`, tables and the generation again, and answers only if
        that is the same. So `renewed` is cleared first, and tables change only after the generation
        has: whoever reads the new generation finds `renewed` cleared, and whoever has read the old
        one before finds another in the end. x86 keeps loads in order, and stores.
        """
        self._times[_RENEWED] = 0.0
        self._words[_GENERATION] += 1

    @contextmanager
    def _locked(self, wait: float | None) -> Iterator[bool]:
        """Keep other processes from adding; yields False if that took more than `wait` seconds."""
        end, locked = time.monotonic() + (wait or 0.0), False
        while not locked:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | (fcntl.LOCK_NB if wait is not None else 0))
                locked = True
            except BlockingIOError:
                if time.monotonic() > end:
                    break
                time.sleep(0.001)
        try:
            yield locked
        finally:
            if locked:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        self._words.release()
        self._times.release()
        self._memory.close()
        os.close(self._file)
