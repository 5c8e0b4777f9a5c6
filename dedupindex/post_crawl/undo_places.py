"""The results that an undo restores: those of a directory, of a store, or a part of a store."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dedupindex.errors import BadInput, BadSource, Damaged
from dedupindex.object_store import find_objects, is_many, redacted
from dedupindex.post_crawl.rewrite.journal import name_of, summary
from dedupindex.post_crawl.rewrite.result_place import store_of_state
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY


class Results(NamedTuple):
    directory: Path  # with their journals
    store: str = ""  # their address, if they are not in that directory
    part: str = ""  # of a store, what is restored: a name, or the beginning of names with a slash
    moved: str = ""  # the address at which they were written, if it is another one

    def has(self, name: str) -> bool:
        """Whether a file is of the part."""
        return name.startswith(self.part) if self.part.endswith("/") else self.part in ("", name)

    def objects(self) -> list[str]:
        """Return the names of the objects of the part; raises `BadSource`."""
        found = find_objects(f"{self.store}/{self.part}")
        return sorted(one.address.removeprefix(f"{self.store}/") for one in found)


def results_in(directory: Path) -> Results:
    return Results(directory, store_of_state(directory))


def stored_results(state: Path, address: str) -> Results:
    """Return the results at an address whose journals a directory has; raises `BadInput`.

    They are all that it has, a part of that, or a copy of all.
    """
    written, asked = store_of_state(state), address.rstrip("/")
    if written and asked == written:
        return Results(state, written)
    if written and asked.startswith(f"{written}/"):
        part = asked.removeprefix(f"{written}/")
        return Results(state, written, f"{part}/" if is_many(address) else part)
    why = _why_no_copy(state, asked) if written else ""
    if written and not why:
        return Results(state, asked, "", written)
    raise BadInput(
        f"{state} has the journals of {redacted(written) or 'results in the directory itself'}, "
        f"not of {redacted(asked)}{why}"
    )


def _why_no_copy(state: Path, address: str) -> str:
    """Return why what is at an address is no copy of results, by the sizes in their journals."""
    sizes: dict[str, set[int]] = {}
    for pattern in ("*.jsonl", "*.committed"):
        for path in (state / DIRECTORY).glob(pattern):
            with suppress(Damaged, OSError):
                sizes.setdefault(name_of(path), set()).add(summary(path)[1].size)
    there: dict[str, int] = {}
    with suppress(BadSource):
        for found in find_objects(f"{address}/"):
            there[found.address.removeprefix(f"{address}/")] = found.facts.size
    other = sorted(name for name, known in sizes.items() if there.get(name) not in known)
    if sizes and not other:
        return ""
    named = f", such as {other[0]}" if other else ""
    return (
        f"; a copy of them would have all files in the sizes that the journals state, and "
        f"{len(other):,} of {len(sizes):,} are not there{named}"
    )
