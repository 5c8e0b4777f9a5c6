"""Cut corpora out of an archive: by metadata first, then by the content of the remaining records.

`Corpus` is lazy: operations only record what is wanted, until captures are counted, iterated or
saved. Then a CDX, an index or a scan of WARC files lists the captures, DuckDB filters them
(`select`), and the records of the remaining ones are read by range (`extract`). An `Enrichment`
derives values from a record; the output shows them below the value they were derived from.
"""

from __future__ import annotations

from dedupindex.corpus.archive import Corpus
from dedupindex.corpus.enrich import Enrichment, Entry
from dedupindex.corpus.extract_report import CorpusReport
from dedupindex.corpus.values import Groups, Values

__all__ = ["Corpus", "Enrichment", "Entry", "CorpusReport", "Groups", "Values"]
