"""What a run found as text, in the ten fields of warccollres: with the right references."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from dedupindex.post_crawl.manifest.lines import TYPES
from dedupindex.post_crawl.manifest.parquet import line_of
from dedupindex.post_crawl.manifest.warcsum_format import resolved_line, text_line
from dedupindex.post_crawl.plan.group_duplicates import GroupingRule
from dedupindex.post_crawl.plan.manifest_input import Inputs
from dedupindex.post_crawl.plan.plan_writer import STRETCH, copies_file
from dedupindex.runtime.duckdb import Database, literal, quoted

_FETCHED = 2048  # rows at a time


def write_text(
    database: Database, inputs: Inputs, rule: GroupingRule, part: Path, stream: BinaryIO
) -> None:
    """Write all lines of a part that is written, by file and offset, as warcrefs wants them.

    What stays has copy number 1, as originals have.
    """
    algorithms = inputs.algorithms()
    names = {container.number: container for container in inputs.containers}
    columns = ", ".join(f'l."{name}"' for name in TYPES)
    for number, (lines, first, last) in enumerate(inputs.stretches(STRETCH)):
        copies = quoted(literal(copies_file(part, number)))
        found = database.execute(f"""
            SELECT {columns}, coalesce(e.extension, 1), coalesce(p.copy, 1),
              coalesce(p.original_url, ''), coalesce(p.original_date, '')
            FROM (SELECT * FROM ({lines}) WHERE {rule.of_partition()}) AS l
            LEFT JOIN (
              SELECT place, extension FROM equal JOIN extensions USING (label, form)
              WHERE place BETWEEN {first} AND {last}) AS e USING (place)
            LEFT JOIN read_parquet({copies}) AS p
              ON p.container = l.container AND p."offset" = l."offset"
            ORDER BY l.place""")
        while rows := found.fetchmany(_FETCHED):
            for row in rows:
                line, (extension, copy, url, date) = line_of(row[: len(TYPES)]), row[len(TYPES) :]
                six = text_line(names[line.container], line, algorithms[line.container])
                reference = url.encode("latin-1"), date.encode("latin-1")
                stream.write(resolved_line(six, extension, copy, *reference))
