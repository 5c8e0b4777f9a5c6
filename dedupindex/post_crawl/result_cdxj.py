"""A CDXJ of the files that a job has written, as pywb needs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

from dedupindex.capture import Problem
from dedupindex.runtime.external_sort import sorted_lines


def cdxj(names: Mapping[str, str], jobs: int, problems: list[Problem]) -> Iterator[bytes]:
    """Yield the lines of a CDXJ of WARC files, sorted as bytes: of all their captures.

    `names` has the file names that the lines state, by the paths of the files. What cannot be read
    is added to `problems`. `jobs` processes read, 0: one per core.
    """
    from dedupindex.corpus.archive import Corpus  # slow: DuckDB
    from dedupindex.corpus.extract import nothing
    from dedupindex.corpus.extract_report import CorpusReport
    from dedupindex.corpus.output import cdxj_line

    corpus = Corpus.from_warcs(*names).having(jobs=jobs)
    with closing(corpus.kept(CorpusReport(problems=problems), nothing)) as captures:
        yield from sorted_lines(
            cdxj_line(capture, revisit=capture.revisit, container=names[capture.record.container])
            for capture, *_ in captures
        )
