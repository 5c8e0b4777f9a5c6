"""One container, read from its first byte to its last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from dedupindex.post_crawl.manifest.lines import Line
from dedupindex.post_crawl.manifest.record_lines import (
    FastLines,
    Judge,
    ManifestOptions,
    reference,
    standing,
)
from dedupindex.sources.source import GROWING
from dedupindex.warc.arc import DOCUMENT, HEADER
from dedupindex.warc.fast_reader import read
from dedupindex.warc.gzip_members import MAGIC, Damage, Filler
from dedupindex.warc.headers import COMMON
from dedupindex.warc.reader import Event
from dedupindex.warc.record import BrokenRecord, Record, Sound
from dedupindex.warc.request_pairing import FULL, RequestPairing
from dedupindex.warc.window import open_window

_CONCURRENT = COMMON.index(b"WARC-Concurrent-To")
_KINDS = (b"warcinfo", b"request", b"response", b"resource", b"metadata", b"revisit",
          b"conversion", b"continuation", HEADER, DOCUMENT)  # fmt: skip
_PADDED = "zero bytes stand where a record should: the file is left as it is"


class Scan:
    """A WARC or ARC file, plain or gzipped.

    When `lines` has ended, `records` counts what was read by kind, `problems` names what is
    damaged by offset, and `changed` says that the file was being written: then nothing of it is
    worth anything. A name that ends in ``.open``, as crawlers write it, is not read at all.
    """

    def __init__(
        self,
        path: str,
        container: int,
        options: ManifestOptions,
        refer: Callable[[Line], None] = lambda line: None,
    ) -> None:
        """Open the file; raises `BadSource`. `refer` gets the lines of `reference`."""
        self.records: Counter[str] = Counter()
        self.remarks: Counter[str] = Counter()  # on records that were read, see `record.REMARKS`
        self.problems: list[tuple[int, str]] = []
        self.content_hash = ""
        self.changed = path.endswith(".open")
        self.damaged = False
        self._window = open_window(path, path)
        self.size = self._window.size
        self.mark = self._window.mark
        start = self._window.read(0, 1 << 16).lstrip(b"\0")
        self._gzip = start.startswith(MAGIC)
        self._judge, self._fast = Judge(container, options), FastLines(container, options)
        self._skip_empty = options.skip_empty
        self._container, self._refer = container, refer
        self._pairing: RequestPairing[Line] = RequestPairing(lambda line: line.record_id, _refused)
        self._open: tuple[Line, Record] | None = None  # of which it is not known how it ends

    @property
    def position(self) -> int:
        """Bytes of the file read so far."""
        return self._window.hashed

    def close(self) -> None:
        self._window.close()

    def lines(self) -> Iterator[list[Line]]:
        """All lines in order of offset, some at a time; raises `BadSource`."""
        window, pairing, fast = self._window, self._pairing, self._fast
        if not self.changed:
            responses = requests = 0
            for event in read(window):
                if self._open is not None:
                    self._settle(event)
                if event is None:
                    requests += 1
                elif isinstance(event, Sound) and (line := fast.line(event)) is not None:
                    responses += 1
                    pairing.add(line, event.values[_CONCURRENT])
                    if len(pairing.items) >= FULL:
                        yield pairing.leave()
                else:
                    self._take(event)
            self.records += Counter(request=requests, response=responses)
            self._settle(None)
            yield pairing.leave(everything=True)
            self.content_hash = window.content_hash()
            self.changed = window.changed()
        if not self.size:
            self.problems.append((0, "is empty: it holds no record"))
        if self.changed:
            self.problems.append((self.size, GROWING))

    def _take(self, event: Event) -> None:
        if isinstance(event, Damage):
            self._damage(event.offset, event.message)
            self.records["damaged"] += event.record
        elif isinstance(event, Filler):
            if self._window.read(event.offset, 1) == b"\0":
                self._damage(event.offset, _PADDED)
        else:
            try:
                self._record(event)
            except BrokenRecord:
                return  # the reader accounts for it next, as damage
            if event.remark:
                self.remarks[event.remark] += 1
            known = event.type in _KINDS
            self.records[event.type.decode() if known else "unknown"] += 1

    def _record(self, record: Record) -> None:
        if record.type in (b"response", DOCUMENT):
            self._open = self._judge.line(record), record
        elif record.type == b"request":
            self._pairing.request(record)
        elif record.type == b"revisit":
            self._refer(reference(self._container, record))
            self._refer(standing(self._container, record))
        record.finish()

    def _settle(self, event: Event | None) -> None:
        """Take the line whose record has ended; `event` is what follows it."""
        if self._open is None:
            return
        (line, record), self._open = self._open, None
        if self._skip_empty and line.unfit == "empty":
            return
        shared = record.shared or (
            self._gzip and isinstance(event, Record | Damage) and event.offset == record.offset
        )
        stay, unfit = line.stay, line.unfit
        if shared:
            stay, unfit = stay or "shared-member", unfit or "shared-member"
        elif record.remark or self._led(record):
            stay, unfit = stay or "not-exact", unfit or "not-exact"
        line = line._replace(stored=record.stored, stay=stay, unfit=unfit)
        self._pairing.add(line, record.values[_CONCURRENT])

    def _led(self, record: Record) -> bool:
        """Whether something stands before the record in its member."""
        begin = 0 if self._gzip else record.offset
        return record.end not in (-1, begin + record.start + record.length + 4)

    def _damage(self, offset: int, message: str) -> None:
        self.damaged = True
        self.problems.append((offset, message))


def _refused(line: Line) -> Line:
    """What the answer to another request than GET is."""
    return line._replace(stay=line.stay or "method", unfit=line.unfit or "method")
