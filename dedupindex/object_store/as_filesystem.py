"""Objects as a file system that DuckDB reads from: ``object://`` and the address.

DuckDB asks for ranges. Each range is one request of a `RemoteFile`, with its retries.
"""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dedupindex.errors import SOURCE_ERRORS, BadSource, StoreUnavailable
from dedupindex.object_store.read_object import RemoteFile
from dedupindex.object_store.stores import ObjectFacts, facts

if TYPE_CHECKING:
    from dedupindex.runtime.duckdb import Database

PREFIX = "object://"
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)  # when all objects were changed, for DuckDB


class ObjectFiles:
    """The objects that a database reads, by address.

    DuckDB reports an error of a Python file as one of its own, in place of which the caller raises
    that of `take_failure`.
    """

    def __init__(self, database: Database) -> None:
        """Let a database read ``object://`` addresses until it is closed."""
        self.failure: BadSource | StoreUnavailable | None = None
        self._facts: dict[str, ObjectFacts] = {}
        database.execute("SET enable_external_file_cache = false")  # it would hold what was read
        database.register_filesystem(_file_system(self))

    def facts(self, path: str) -> ObjectFacts:
        """Return the facts of an object when it was first read."""
        address = path.removeprefix(PREFIX)
        if address not in self._facts:
            self._facts[address] = facts(address)
        return self._facts[address]

    def take_failure(self) -> BadSource | StoreUnavailable | None:
        """Return why an object could not be read; None if all could.

        It is not kept, because its frames refer to the database, which refers to this.
        """
        failure, self.failure = self.failure, None
        return failure

    def open(self, path: str) -> _RangeFile:
        return _RangeFile(path.removeprefix(PREFIX), self)


class _RangeFile(RemoteFile):
    """An object of which each `read` is one request."""

    def __init__(self, address: str, files: ObjectFiles) -> None:
        self._files = files
        super().__init__(address, files.facts(address))

    def read(self, size: int = -1) -> bytes:
        data = self._range_or_none(self.size if size < 0 else size)
        if data is None:
            raise OSError(str(self._files.failure))
        self._at += len(data)
        return data

    def _range_or_none(self, count: int) -> bytes | None:
        """Read a range; on failure note the error without its frames, which DuckDB would keep."""
        try:
            return self.range(count, self._at)
        except SOURCE_ERRORS as error:
            self._files.failure = type(error)(str(error))
            return None


def _file_system(files: ObjectFiles) -> Any:
    from fsspec import AbstractFileSystem  # an extra

    class Objects(AbstractFileSystem):  # type: ignore[misc]
        protocol = PREFIX.removesuffix("://")
        cachable = False

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return path  # an address must not be changed

        def open(self, path: str, mode: str = "rb", **_: Any) -> io.RawIOBase:
            return files.open(path)

        def glob(self, path: str, **_: Any) -> list[str]:
            return [path]

        def info(self, path: str, **_: Any) -> dict[str, Any]:
            return {"name": path, "size": files.facts(path).size, "type": "file"}

        def modified(self, path: str) -> datetime:
            return _LONG_AGO

        def exists(self, path: str, **_: Any) -> bool:
            return True

    return Objects()
