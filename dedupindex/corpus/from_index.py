"""Captures of an index: the originals that it holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dedupindex.corpus.capture_list import Revisits, SourceContext
from dedupindex.corpus.row import shown
from dedupindex.corpus.spool import JsonlWriter, relation
from dedupindex.index import open_index
from dedupindex.lookup.render_json import url_as_json
from dedupindex.timestamps import digits_of_date
from dedupindex.urlkey import urlkey


@dataclass(frozen=True)
class OfIndex:
    """The originals that an index holds; it knows no revisits."""

    revisits: ClassVar[Revisits] = Revisits.NONE
    index: Path
    places: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        return (str(self.index),)

    def relation(self, work: SourceContext) -> str:
        spool = work.home / "index.rows"
        engine = open_index(self.index)
        try:
            with engine.view() as view, JsonlWriter(spool) as rows:
                for digest, capture in view.captures():
                    if digest != capture.digest:
                        continue  # it stands under further digests, too
                    rows.add(
                        surt=shown(urlkey(capture.url)),
                        timestamp=digits_of_date(capture.date).decode(),
                        url=url_as_json(capture.url)["url"],
                        mime=capture.mime.decode("latin-1") or None,
                        status=capture.status or None,
                        digest=capture.digest.spelled(capture.spelling).removeprefix("sha1:"),
                        length=capture.size if capture.size_of_record else None,
                        offset=capture.offset if capture.offset >= 0 else None,
                        container=capture.container or None,
                    )
        finally:
            engine.close()
        return relation([spool])
