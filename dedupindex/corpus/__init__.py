"""Corpora cut out of an archive: by metadata first, then by what the records say that are left.

`Corpus` is lazy: what is asked of it is only noted, until something is counted, looked at or saved.
Then a CDX, an index or a scan of WARC files tells which captures there are (`metadata`), DuckDB
filters them, and of those that are left the records are read by their ranges (`records`). What is
derived of a record is an `Enrichment`, and stands in the output below what it was made of.
"""

from __future__ import annotations

from dedupindex.corpus.archive import Corpus
from dedupindex.corpus.enrich import Enrichment, Entry
from dedupindex.corpus.extract_report import CorpusReport

__all__ = ["Corpus", "Enrichment", "Entry", "CorpusReport"]
