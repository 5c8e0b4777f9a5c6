"""Sources of captures: archives, CDX, logs, databases of other indexes, and those of plugins.

`expand` finds the containers that a user names, `open_source` opens one. `RowReader` makes items of
the fields of a row; packages that add a kind of source (`plugins`) may use it, too.
"""

from __future__ import annotations

from dedupindex.sources.discover import KINDS, Expanded, expand, is_stream
from dedupindex.sources.open_source import open_source
from dedupindex.sources.rows import RowFields, RowReader
from dedupindex.sources.service_address import ServiceAddress, service_of
from dedupindex.sources.source import Source, SourceOptions

__all__ = [
    "KINDS", "Expanded", "RowFields", "RowReader", "ServiceAddress", "Source", "SourceOptions",
    "expand", "is_stream", "open_source", "service_of",
]  # fmt: skip
