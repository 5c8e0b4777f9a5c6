"""Sources of captures: WARC, ARC, WACZ, CDX, CDXJ, crawl logs, and Redis keys of Browsertrix.

`expand` finds the containers that a user names, `open_source` opens one.
"""

from __future__ import annotations

from dedupindex.sources.discover import KINDS, Expanded, expand, is_stream
from dedupindex.sources.open_source import open_source
from dedupindex.sources.source import Source, SourceOptions

__all__ = ["KINDS", "Expanded", "Source", "SourceOptions", "expand", "open_source", "is_stream"]
