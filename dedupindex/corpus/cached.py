"""Captures and values that were computed once, for several uses of a corpus.

The captures that pass are kept in a list, with their originals resolved, and the values that were
asked for in a file beside it, which processes of this machine read. Where it is out of reach, as on
a cluster, values are computed again.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import finalize

from dedupindex.capture import Problem
from dedupindex.corpus.capture_list import Revisits, SourceContext, jsonl_writer, relation
from dedupindex.corpus.enrich import Entry
from dedupindex.corpus.extract import KeptCapture
from dedupindex.corpus.extract_report import CorpusReport

if TYPE_CHECKING:
    from dedupindex.corpus.archive import Corpus

_COPIED = ("surt", "timestamp", "url", "mime", "status", "digest", "redirect", "meta", "length",
           "revisit", "to_url", "to_timestamp", "unmodified", "named_url", "named_timestamp",
           "payload_key")  # fmt: skip


class CachedCaptures:
    """The captures of a corpus, a source of others; they are computed on first use.

    The files are removed when the last corpus that uses them is.
    """

    revisits: ClassVar[Revisits] = Revisits.LISTED

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._home: Path | None = None
        self._problems: list[Problem] = []

    @property
    def sources(self) -> tuple[str, ...]:
        return self._corpus.read_files()

    @property
    def containers(self) -> tuple[str, ...]:
        return self._corpus.source.containers

    def relation(self, context: SourceContext) -> str:
        if self._home is None:
            home = Path(mkdtemp(prefix=".corpus-", dir=self._corpus.settings.work)).absolute()
            finalize(self, shutil.rmtree, home, ignore_errors=True)
            self._fill(home)
            self._home = home
        context.problems.extend(self._problems)
        return relation([self._home / "captures"])

    def _fill(self, home: Path) -> None:
        report = CorpusReport()
        render = partial(_values_of, self._corpus.paths)
        with jsonl_writer(home / "captures") as add, open(home / "values", "wb") as values:
            for kept in self._corpus.kept(report, render):
                at = values.tell()
                values.write(kept.rendered)
                _add(add, kept, f"{at} {len(kept.rendered)} {home / 'values'}")
        self._problems = report.problems
        name = ", ".join(self.sources)
        if report.refused:
            what = f"lines of the metadata that are no captures: {report.refused:,}"
            self._problems.append(Problem(name, -1, what))
        if report.dropped:
            what = f"captures that failed and were left out: {report.dropped:,}"
            self._problems.append(Problem(name, -1, what))


def _add(add: Callable[..., None], kept: KeptCapture, cached: str) -> None:
    row, place, original = kept.capture, kept.capture.record, kept.capture.payload
    values: dict[str, Any] = {name: getattr(row, name) for name in _COPIED}
    if original is not None:
        values |= {"at_container": original.container or None, "at_offset": original.offset,
                   "at_length": original.length}  # fmt: skip
    add(**values, cached=cached, container=place.container or row.container,
        offset=place.offset if place.offset >= 0 else None)  # fmt: skip


def _values_of(paths: tuple[str, ...], entry: Entry) -> bytes:
    """Render the values at some paths, and the errors, of a capture."""
    values = {}
    for path in paths:
        if entry.has(path):
            values[path] = entry.value(path)
    try:
        return pickle.dumps((values, entry.errors))
    except Exception:  # a value of a user's function
        return pickle.dumps(({}, entry.errors))
