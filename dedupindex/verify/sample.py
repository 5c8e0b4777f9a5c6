"""Revisits taken one by one: the block that each stands for, put together as replay tools do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from dedupindex.verify.block_facts import bare, examine
from dedupindex.verify.collection import archives_below, in_order, size_of
from dedupindex.verify.file_bytes import UnreadableFile, opened
from dedupindex.verify.issues import Broken
from dedupindex.verify.locate_originals import OriginalReference, OriginalsIndex, Shelf, places
from dedupindex.verify.parse_records import CheckedRecord
from dedupindex.verify.walk_file import Container


class Sample:
    """Finds originals among archives by URL and date, wherever they are."""

    def __init__(self, folders: Iterable[Path], beside: Path) -> None:
        files = [path for folder in folders for path in archives_below(folder)]
        self._originals = OriginalsIndex(beside / "places.sqlite")
        self._originals.write(in_order(places, files, size_of(files)))

    def block(self, path: Path, offset: int) -> Iterator[bytes]:
        """The HTTP header of the revisit at `offset` and the body of the original that it names.

        Raises `Broken` if there is no revisit, or no such original.
        """
        try:
            with opened(path) as file, closing(Shelf(self._originals.find)) as shelf:
                record = Container(file).at(offset)[0]
                if not isinstance(record, CheckedRecord) or record.kind != b"revisit":
                    raise Broken("record-changed", "no revisit stands there")
                facts, message = examine(record, [])
                wanted = OriginalReference(
                    bare(facts.to_url) or facts.url, facts.to_date, facts.to_id
                )
                original = next(iter(shelf.take(wanted)), None)
                if original is None:
                    raise Broken("original-missing", "no full record of its URL and date is found")
                yield message.head if message else b""
                yield from original.body()
        except UnreadableFile as error:
            raise Broken("unreadable", str(error)) from error
