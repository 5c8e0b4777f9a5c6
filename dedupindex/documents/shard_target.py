"""Where the shards of a run go: a directory, or an object store.

In a store nothing can be renamed, and a machine that is lost takes its disk with it. So shards are
made in a temporary directory and uploaded, and the state of the run, too: from time to time, so
that the run can be resumed on another machine. While the shards of a run are not whole, the store
has its marker, as a directory has.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dedupindex.documents.shards import clear, hidden_shard, parse_name, publish, shards_in
from dedupindex.errors import SOURCE_ERRORS, BadInput
from dedupindex.object_store import (
    FoundObject,
    check_writable,
    download,
    facts_or_none,
    list_directory,
    remove_object,
    upload,
    write_marker,
)
from dedupindex.runtime.files import sync_directory

UNFINISHED = ".unfinished"
SAVE_SECONDS = 300.0  # between uploads of the state: so much is hashed again after a loss


class ShardTarget:
    """A directory of shards on this machine."""

    def __init__(self, top: Path) -> None:
        self.top = top  # where hidden shards are written

    def fetch(self, name: str) -> None:
        """Get the state of an earlier run, if there is one and it is not here."""

    def save(self, state: Path, at_once: bool) -> None:
        """Keep the state of a run, which has just been committed; perhaps only `at_once`."""

    def has_shards(self, run: str) -> bool:
        """Return whether an earlier run has finished; remove what an interrupted one left."""
        clear(self.top, run)
        return bool(shards_in(self.top, run))

    def mark(self, run: str) -> None:
        """Say that the shards of a run are not whole."""
        marker = self._marker(run)
        marker.touch()
        sync_directory(marker.parent)

    def unmark(self, run: str) -> None:
        self._marker(run).unlink(missing_ok=True)

    def publish(self, run: str, names: list[str]) -> None:
        """Give hidden shards their names, and delete earlier shards of the run."""
        publish(self.top, run, names)

    def _marker(self, run: str) -> Path:
        return self.top / f".{run}{UNFINISHED}"


class StoreTarget(ShardTarget):
    """A directory of shards in an object store, with a temporary directory here."""

    def __init__(self, address: str, top: Path) -> None:
        """Raises `BadSource` for an address that cannot be written to."""
        check_writable(address)
        super().__init__(top)
        self._address, self._saved = address.rstrip("/"), float("-inf")

    def fetch(self, name: str) -> None:
        address = f"{self._address}/{name}"
        if (known := facts_or_none(address)) is not None:
            download([(FoundObject(address, known), self.top / name)])

    def save(self, state: Path, at_once: bool) -> None:
        if at_once or time.monotonic() > self._saved + SAVE_SECONDS:
            upload([(state, f"{self._address}/{state.name}")])
            self._saved = time.monotonic()

    def has_shards(self, run: str) -> bool:
        return bool(self._shards(run))

    def mark(self, run: str) -> None:
        write_marker(f"{self._address}/.{run}{UNFINISHED}")

    def unmark(self, run: str) -> None:
        remove_object(f"{self._address}/.{run}{UNFINISHED}")

    def publish(self, run: str, names: list[str]) -> None:
        upload([(hidden_shard(self.top, name), f"{self._address}/{name}") for name in names])
        for name in set(self._shards(run)) - set(names):
            remove_object(f"{self._address}/{name}")

    def _shards(self, run: str) -> list[str]:
        names = (one.address.rpartition("/")[2] for one in list_directory(f"{self._address}/"))
        return [name for name in names if parse_name(name)[1] == run]


def require_no_file(top: Path) -> None:
    """Raise `BadInput` if there is a file where a directory for results is to be made."""
    if top.is_file():
        raise BadInput(f"{top} is a file: name a directory for the results")


@contextmanager
def shard_target(top: Path | str) -> Iterator[ShardTarget]:
    """Open a directory for shards, or an address; a new directory is removed after `BadSource`."""
    if isinstance(top, str):
        with tempfile.TemporaryDirectory(prefix="dedupindex-shards-") as name:
            yield StoreTarget(top, Path(name))
        return
    require_no_file(top)
    new = not top.exists()
    top.mkdir(parents=True, exist_ok=True)
    try:
        yield ShardTarget(top)
    except SOURCE_ERRORS:
        if new:
            shutil.rmtree(top)
        raise
