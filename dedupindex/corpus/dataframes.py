"""A corpus as a data frame of Polars, pandas or PySpark, or as an RDD of Spark.

Polars and pandas are packages of the user; they are imported on first use. Of Spark there is the
session of the user, and its executors read the records.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import warn

import orjson

from dedupindex.corpus.extract import ChunkResult, ExtractionPlan, rendered_on_executor
from dedupindex.corpus.extract_report import CorpusReport
from dedupindex.corpus.select import SpooledChunks
from dedupindex.errors import BadInput
from dedupindex.runtime.duckdb import literal, one_thread, quoted

if TYPE_CHECKING:
    from dedupindex.corpus.archive import Corpus

POLARS, PANDAS = LIBRARIES = ("polars", "pandas")


def check_library(name: str) -> str:
    """Return the library to use, by default the first that is installed; raises `BadInput`."""
    if name and name not in LIBRARIES:
        raise BadInput(f"data frames are of {' or '.join(LIBRARIES)}, not of {name!r}")
    for library in (name,) if name else LIBRARIES:
        if find_spec(library) is not None:
            return library
    raise BadInput(f"a data frame needs the package {name or ' or '.join(LIBRARIES)}")


def frame_of(corpus: Corpus, library: str) -> Any:
    """Return a data frame in memory, by way of a temporary Parquet file."""
    with tempfile.TemporaryDirectory(prefix=".corpus-", dir=corpus.settings.work) as home:
        table = Path(home, "table.parquet")
        report = corpus.save_as_parquet(table)
        if report.problems or report.refused:
            warn(report.source_problems(), stacklevel=3)
        if library == POLARS:
            return import_module(POLARS).read_parquet(table, memory_map=False)
        with one_thread() as database:  # pandas itself would need PyArrow
            return database.execute(f"SELECT * FROM {quoted(literal(table))}").df()


def rdd_of(corpus: Corpus, context: Any) -> Any:
    """Return an RDD of lines of JSON in UTF-8; executors read the records when it is evaluated.

    The captures are selected now, and their metadata are part of the RDD. Raises `BadInput` for a
    corpus whose captures depend on each other, after a filter on values.
    """
    made: list[Any] = []

    def run(plan: ExtractionPlan, chunks: SpooledChunks) -> Iterator[ChunkResult]:
        if plan.best is not None or plan.distinct:
            raise BadInput("an RDD has no latest, first, once or distinct after a filter on values:"
                           " save the corpus and let Spark read that")  # fmt: skip
        tasks = list(chunks)
        rows = context.parallelize(tasks, max(len(tasks), 1))
        made.append(rows.flatMap(partial(rendered_on_executor, plan)))
        yield from ()

    report = CorpusReport()
    cores = max(int(context.defaultParallelism), 1)
    for _ in corpus.having(run=run, jobs=cores).kept(report):
        pass
    if report.problems or report.refused:
        warn(report.source_problems(), stacklevel=3)
    return made[0]


def entries_of(corpus: Corpus, context: Any) -> Any:
    """Return an RDD of what iterating over the corpus yields."""
    return rdd_of(corpus, context).map(orjson.loads)


def spark_frame_of(corpus: Corpus, session: Any) -> Any:
    """Return a data frame of PySpark, nested as the JSON is, whose schema Spark infers."""
    return session.read.json(rdd_of(corpus, session.sparkContext).map(bytes.decode))
