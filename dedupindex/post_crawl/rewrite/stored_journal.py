"""The journal of an object that a run in place replaces: objects below ``.rewrite/``.

They are beside the objects of the prefix that was named, and called as `journal` says:

    lock          held while a run writes below the prefix
    KEY.jsonl     the journal of one object; it is written first, and deleted last
    KEY.dropped   the dropped members, until ``--commit``
    KEY.new       what is to replace the object, until it has
    KEY.old       likewise, while the object is restored
    KEY.N.committed

All are created where nothing is, and read back. An object is replaced when its journal, its
dropped members and its new content are proven in the store, and have been shown to make the object
that was scanned. Nothing is concluded from what the store does not have: a store may answer
with what was there before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from dedupindex.errors import BadInput, BadSource, Damaged
from dedupindex.object_store import (
    RemoteFile,
    check_creatable,
    create_object,
    facts_or_none,
    find_objects,
    is_remote,
    list_directory,
    locked_prefix,
    remove_object,
)
from dedupindex.post_crawl.manifest.parquet import ManifestContainer
from dedupindex.post_crawl.rewrite.journal import FileAfter, FileBefore, Journal, OffsetMap
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY, file_key
from dedupindex.runtime.atomic_replace import Untouched, hash_of

_READ = 8 << 20  # bytes
_TRIES = 3  # to read an object: a store may answer with wrong bytes
_JOURNALS = (".jsonl", ".committed")
MIXED = (
    "files of this machine and objects cannot be replaced in one run: name them in two, each with "
    "a working directory of its own"
)


class StoredJournal:
    """The objects about one object of a prefix."""

    def __init__(self, root: str, name: str) -> None:
        self.root, self.name = root.rstrip("/"), name
        self.address = f"{self.root}/{name}"
        self._stem = f"{journal_prefix(root)}/{file_key(name)}"
        self.lines = f"{self._stem}.jsonl"
        self.dropped = f"{self._stem}.dropped"
        self.candidate = f"{self._stem}.new"
        self.restored = f"{self._stem}.old"

    def exists(self) -> bool:
        """Whether there is a journal; asked twice, as a store may miss what it has."""
        return any(facts_or_none(self.lines) is not None for _ in range(2))

    def mirrored(self, directory: Path, *, dropped: bool) -> Journal:
        """Copy the journal, and the dropped members if wanted, to a directory.

        Raises `BadSource`, and `Untouched` for what is not there.
        """
        journal = Journal(directory, self.name)
        journal.directory.mkdir(parents=True, exist_ok=True)
        download(self.lines, journal.lines)
        if dropped:
            download(self.dropped, journal.dropped)
        return journal

    def create(self, journal: Journal, new: BinaryIO) -> None:
        """Create all objects, from local files; raises `FileExistsError` if there are others."""
        for path, address in ((journal.lines, self.lines), (journal.dropped, self.dropped)):
            with open(path, "rb") as file:
                create_object(file, address)
        create_object(new, self.candidate)

    def keep(self, journal: Journal) -> None:
        """Create the journal and the dropped members again if they are not there."""
        for path, address in ((journal.lines, self.lines), (journal.dropped, self.dropped)):
            if facts_or_none(address) is None:
                with open(path, "rb") as file:
                    create_object(file, address)

    def clear(self) -> None:
        """Remove all objects; the object itself is known to be the one before the run."""
        for address in (self.candidate, self.restored, self.dropped, self.lines):
            remove_object(address)

    def commit(self, journal: Journal) -> int:
        """Remove the dropped members for good; return how many bytes they took."""
        number = 1
        with open(journal.lines, "rb") as lines:
            while True:
                try:
                    create_object(lines, f"{self._stem}.{number}.committed")
                    break
                except FileExistsError:
                    number += 1
        found = facts_or_none(self.dropped)
        for address in (self.candidate, self.restored, self.dropped, self.lines):
            remove_object(address)
        return found.size if found else 0


def journal_prefix(root: str) -> str:
    return f"{root.rstrip('/')}/{DIRECTORY}"


def download(address: str, path: Path) -> str:
    """Copy an object to a file and return its ETag; raises `Untouched` if there is none."""
    for _ in range(_TRIES):
        if (found := facts_or_none(address)) is None:
            raise Untouched(f"{address} is not in the store")
        with open(path, "wb") as file, RemoteFile(address, found, in_order=True) as remote:
            while data := remote.read(_READ):
                file.write(data)
            if file.tell() == found.size and not remote.changed():
                return found.stamp
    raise BadSource(f"{address} was changed while it was read: try again")


def makes_old_file(journal: Journal, new: Path) -> bool:
    """Return whether a journal makes of the new file the one before the run."""
    try:
        before, _ = journal.summary()
        return hash_of(journal.old_content(new)) == before.content_hash
    except (Damaged, TypeError, ValueError):  # read wrong
        return False


def stored_offsets(container: ManifestContainer, size: int, directory: Path) -> OffsetMap | None:
    """Return the offsets in an object that a run in place has replaced by one of this size.

    None if there is no such run. `directory` is for temporary files.
    """
    try:
        journal = StoredJournal(container.root, container.name).mirrored(directory, dropped=False)
        before, after = journal.summary()
        sizes = before.size, before.content_hash, after.size
        if sizes == (container.size, container.content_hash, size):
            return journal.offsets()
    except (Untouched, Damaged):
        pass
    return None


def check_other_roots(container: ManifestContainer) -> None:
    """Raise `Untouched` if a run on a prefix above or below the root has replaced an object."""
    root = container.root.rstrip("/")
    parts = container.path.removesuffix("/").split("/")
    for count in range(3, len(parts)):  # "s3:", "", the bucket
        folder = "/".join(parts[:count])
        if folder != root and StoredJournal(folder, "/".join(parts[count:])).exists():
            raise Untouched(
                f"a run on {folder} has rewritten it, and can be undone: --commit or --undo that "
                "first"
            )


def check_replaceable(addresses: Iterable[str]) -> bool:
    """Return whether files to be replaced are in object stores; sends nothing.

    Raises `BadInput` if some are and some are not, `BadSource` for stores that do not speak S3.
    """
    named = list(addresses)
    stored = [address for address in named if is_remote(address)]
    if len(stored) not in (0, len(named)):
        raise BadInput(MIXED)
    for address in stored:
        check_creatable(address)
    return bool(stored)


@contextmanager
def locked_prefixes(roots: Iterable[str]) -> Iterator[None]:
    """Hold the locks of prefixes; raises `IndexBusy`, and `BadSource` as `locked_prefix`."""
    with ExitStack() as locks:
        for root in sorted(set(roots)):
            locks.enter_context(locked_prefix(f"{journal_prefix(root)}/lock"))
        yield


def journal_sizes(root: str) -> dict[str, int]:
    """Return the sizes of the objects that are kept to undo runs, by name."""
    entries = list_directory(journal_prefix(root))
    return {entry.address.rpartition("/")[2]: entry.facts.size for entry in entries if entry.facts}


def mirror_journals(root: str, directory: Path) -> None:
    """Copy the journals of a prefix to a directory, without dropped members."""
    local = directory / DIRECTORY
    local.mkdir(parents=True, exist_ok=True)
    for name in sorted(journal_sizes(root)):
        if name.endswith(_JOURNALS):
            address = f"{journal_prefix(root)}/{name}"
            try:
                download(address, local / name)
            except Untouched as error:
                raise BadSource(
                    f"{address} was removed while it was read: run the same command again"
                ) from error


def roots_below(address: str) -> list[str]:
    """Return the prefixes at or below an address that have journals."""
    marker = f"/{DIRECTORY}/"
    names = (found.address for found in find_objects(f"{address.rstrip('/')}/"))
    return sorted({name.rpartition(marker)[0] for name in names if name.endswith(".jsonl")} - {""})


def summary_of(journal: Journal) -> tuple[FileBefore, FileAfter]:
    """Return what a journal says of a file; raises `Untouched` if it cannot be read."""
    try:
        return journal.summary()
    except Damaged as error:
        raise Untouched(f"its journal cannot be read: {error}") from error
