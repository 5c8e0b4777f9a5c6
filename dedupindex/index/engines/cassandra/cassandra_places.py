"""Container numbers of an index on a cluster, which many machines give out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dedupindex.index.engines.cassandra.cassandra_schema import Statements
from dedupindex.index.engines.cassandra.cql import Row, Session, Statement, patiently, write_all
from dedupindex.index.engines.cassandra.metadata import About
from dedupindex.index.format.cells import LOW, ContainerRef, damaged, sealed, unsealed

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
