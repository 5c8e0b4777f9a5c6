"""Sources: everything that captures can be read from, behind one door.

WARC, ARC, WACZ, CDX, CDXJ, crawl logs and what Browsertrix keeps in Redis all become the same
stream of items (`Source`).
`expand` finds the containers that a user names, `open_source` opens one.
"""

from __future__ import annotations

from dedupindex.sources.discover import Expanded, expand, passing
from dedupindex.sources.kinds import KINDS
from dedupindex.sources.open_source import open_source
from dedupindex.sources.source import Source, SourceOptions

__all__ = ["KINDS", "Expanded", "Source", "SourceOptions", "expand", "open_source", "passing"]
