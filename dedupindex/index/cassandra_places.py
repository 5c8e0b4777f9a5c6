"""Container numbers of an index on a cluster, which many machines give out."""

from __future__ import annotations

from collections.abc import Sequence

from dedupindex.index.cassandra_schema import Statements
from dedupindex.index.cassandra_state import About
from dedupindex.index.cells import Place
from dedupindex.index.cql import Session, patiently, write_all


def key_of(place: Place) -> bytes:
    """What the number of a place is found by."""
    return bytes_of(f"{place.crawl}\0{place.container}")


def bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def text_of(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def register(
    session: Session, statements: Statements, places: Sequence[tuple[int, Place]]
) -> dict[int, int]:
    """Make places known; which number each has, of those that were given to them elsewhere.

    A build numbers what it stages before it may load, and so may others at the same time: numbers
    that were free then and are taken now are given anew.
    """
    about = About(session, statements)
    asked = [(statements.number, (key_of(place),)) for _, place in places]
    known = patiently(lambda: list(session.execute_many(asked)))
    now: dict[int, int] = {}
    fresh: list[tuple[int, Place]] = []
    for (number, place), rows in zip(places, known, strict=True):
        if rows:
            now[number] = int(rows[0][0])
        else:
            fresh.append((number, place))
    if fresh:
        given = _numbers(about, [number for number, _ in fresh])
        now |= given
        own = [(given[number], place) for number, place in fresh]
        write_all(
            session,
            [
                (statements.put_place, (number, bytes_of(place.container), bytes_of(place.crawl)))
                for number, place in own
            ],
        )
        # Who finds a number finds its place.
        write_all(
            session, [(statements.put_number, (key_of(place), number)) for number, place in own]
        )
    return now


def _numbers(about: About, wanted: list[int]) -> dict[int, int]:
    """Numbers that nobody else has: those that are wanted, if they are free."""
    free = about.next_number()
    if min(wanted) >= free and about.take_numbers(max(wanted) + 1 - free) == free:
        return {number: number for number in wanted}
    first = about.take_numbers(len(wanted))
    return {number: first + place for place, number in enumerate(wanted)}
