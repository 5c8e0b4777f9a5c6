"""Re-point revisits that refer to revisits: at the record that has the payload.

Some crawlers refer to the last capture of a payload, which may be a revisit itself. No replay tool
follows that. Here such a chain is followed to its end, by record id or by URL and second, and the
fields that name the original are written anew; all else stays byte for byte. A revisit is left as
it is unless every step is certain: one record, the same text of the payload digest, and at the end
a record whose payload, read now, has this digest, and which no other payload shares URL and second
with.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dedupindex.errors import BadInput
from dedupindex.post_crawl.convert.conversion import (
    Conversion,
    ConvertOutcome,
    ConvertTask,
    NotConverted,
    convert_file,
)
from dedupindex.post_crawl.convert.recompress import sound_records, undamaged_records
from dedupindex.post_crawl.manifest.make_manifest import make
from dedupindex.post_crawl.manifest.parquet import Manifest, fetch_rows, open_manifest
from dedupindex.post_crawl.manifest.record_lines import REVISIT, REVISIT_TARGET, ManifestOptions
from dedupindex.post_crawl.rewrite.revisit_record import Reference, refers_to_date
from dedupindex.runtime.duckdb import (
    Database,
    literal,
    number,
    one_thread,
    open_database,
    quoted,
    write_parquet,
)
from dedupindex.sources.warc_files import Sources, find
from dedupindex.verify.parse_records import CheckedRecord
from dedupindex.warc.random_access import ExactRecord, NotExact
from dedupindex.warc.record import Record

_LONGEST = 100  # revisits in a chain
_LEVEL = 9  # of gzip, as revisits have it
_PIECE = 1 << 20
_END = b"\r\n\r\n"
_NAMING = re.compile(
    rb"^warc-refers-to(?:-target-uri|-date)?[ \t]*:[^\n]*\n(?:[ \t][^\n]*\n)*",
    re.IGNORECASE | re.MULTILINE,
)
_REFERS_TO = (b"warc-refers-to", b"warc-refers-to-target-uri", b"warc-refers-to-date")


class ChainTasks(NamedTuple):
    tasks: list[ConvertTask]  # files with revisits to be re-pointed
    found: Sources
    left: Counter[str]  # revisits of revisits that stay as they are, by reason


def repoint_tasks(
    sources: list[str], out: Path, home: Path, jobs: int, memory: str = "1GB"
) -> ChainTasks:
    """Read all files and find the chains; `home` is for temporary files.

    Raises `BadInput` if two files with chains have one name.
    """
    found = find(sources)
    made = make(found, home / "manifest", ManifestOptions(), jobs=jobs)
    found.problems += made.problems
    manifest, chains = open_manifest(home / "manifest"), home / "chains.parquet"
    with open_database(home, memory, 0) as (database, _):
        left = _find_chains(database, manifest, chains)
        rows = database.execute(f"SELECT DISTINCT container FROM {_read(chains)}").fetchall()
    containers, tasks = manifest.containers(), dict[Path, ConvertTask]()
    for (key,) in sorted(rows):
        one = containers[key]
        target = out / one.name
        if target in tasks:
            raise BadInput(f"{one.path} and {tasks[target].path} would both become {target}")
        tasks[target] = ConvertTask(
            one.path, target, size=one.size, name=one.name, chains=(chains, one.number)
        )
    found.skipped += len(containers) - len(tasks)
    return ChainTasks(sorted(tasks.values(), key=lambda task: -task.size), found, left)


def _read(parquet: Path) -> str:
    return f"read_parquet({quoted(literal(parquet))})"


def _find_chains(database: Database, manifest: Manifest, chains: Path) -> Counter[str]:
    """Write the revisits to be re-pointed, with their originals; count those that are left."""
    references = f"read_parquet({quoted(manifest.references)})"
    kind = "not_rewritable_reason"
    database.execute(f"""
        CREATE TABLE revisits AS
        SELECT row_number() OVER () AS id, own.*, t.record_id AS to_id, t.url AS to_url,
          t.replay_key AS to_key
        FROM (SELECT container, "offset", record_id, url, replay_key, digest FROM {references}
              WHERE {kind} = '{REVISIT}') AS own
        JOIN (SELECT container, "offset", record_id, url, replay_key FROM {references}
              WHERE {kind} = '{REVISIT_TARGET}') AS t USING (container, "offset")
        QUALIFY count(*) OVER (PARTITION BY container, "offset") = 1""")
    database.execute(f"""
        CREATE VIEW full_records AS
        SELECT container, "offset", record_id, url, date, replay_key, digest, strong,
          not_original_reason AS reason FROM read_parquet({quoted(manifest.parquet)})""")
    database.execute(_links("ends", "full_records", 'n.container, n."offset"'))
    database.execute(_links("steps", "revisits", "n.id AS next"))
    database.execute("""
        CREATE TABLE walk AS
        SELECT id, next AS node, digest FROM steps JOIN revisits USING (id)
        WHERE id NOT IN (SELECT id FROM ends)""")
    chained = number(database, "SELECT count(DISTINCT id) FROM walk")
    database.execute("CREATE TABLE reached (id BIGINT, node BIGINT)")
    for _ in range(_LONGEST):
        database.execute("""
            DELETE FROM walk WHERE id IN (SELECT id FROM walk GROUP BY id HAVING count(*) > 1)
              OR digest <> (SELECT digest FROM revisits AS r WHERE r.id = node)""")
        database.execute("""
            INSERT INTO reached SELECT id, node FROM walk WHERE node IN (SELECT id FROM ends)""")
        database.execute("DELETE FROM walk WHERE node IN (SELECT id FROM ends)")
        database.execute("""
            CREATE OR REPLACE TABLE walk AS
            SELECT walk.id, steps.next AS node, digest
            FROM walk JOIN steps ON steps.id = walk.node""")
        if not number(database, "SELECT count(*) FROM walk"):
            break
    write_parquet(database, _CERTAIN, chains)
    certain = number(database, f"SELECT count(*) FROM {_read(chains)}")
    return +Counter({"no-certain-original": chained - certain})


def _links(table: str, targets: str, columns: str) -> str:
    """Return SQL that finds what each revisit refers to: by record id, else by URL and second."""
    return f"""
        CREATE TABLE {table} AS
        WITH by_id AS (
          SELECT r.id, {columns} FROM revisits AS r
          JOIN {targets} AS n ON n.record_id = r.to_id WHERE r.to_id <> '')
        SELECT * FROM by_id
        UNION
        SELECT r.id, {columns} FROM revisits AS r
        JOIN {targets} AS n ON n.replay_key = r.to_key AND n.url = r.to_url
        WHERE r.to_key <> 0 AND r.id NOT IN (SELECT id FROM by_id)"""


_CERTAIN = """
SELECT r.container, r."offset", any_value(o.url) AS url, any_value(o.date) AS date,
  any_value(if(o.record_id IN (
    SELECT record_id FROM full_records GROUP BY record_id HAVING count(*) > 1
  ), '', o.record_id)) AS record_id
FROM reached JOIN revisits AS r ON r.id = reached.id
JOIN ends ON ends.id = reached.node
JOIN full_records AS o ON o.container = ends.container AND o."offset" = ends."offset"
GROUP BY r.id, r.container, r."offset", r.digest
HAVING count(*) = 1 AND any_value(o.reason) = '' AND any_value(o.digest) = r.digest
  AND any_value(o.replay_key) NOT IN (
    SELECT replay_key FROM full_records GROUP BY replay_key
    HAVING min(hash(strong)) <> max(hash(strong)))
ORDER BY r.container, r."offset"
"""


def repoint(task: ConvertTask) -> ConvertOutcome:
    """Re-point the revisits of one file; see `convert_file`."""
    return convert_file(task, _Repointing)


class _Repointing(Conversion):
    def write(self, file: BinaryIO) -> None:
        chains, source, position = _chains(self.task), self.window.file, 0
        for offset, stored in _places(undamaged_records(self.window), chains):
            member = _repointed(source, offset, stored, chains[offset])
            _copy(source, file, position, offset)
            file.write(member)
            position = offset + stored
        _copy(source, file, position, self.window.size)

    def check(self, path: Path) -> None:
        """Check that `verify` reads the same records, but for the fields that name originals."""
        chains, count = _chains(self.task), 0
        with (
            closing(sound_records(Path(self.task.path))) as olds,
            closing(sound_records(path)) as news,
        ):
            for old, new in zip_longest(olds, news):
                if old is None or new is None:
                    raise NotConverted(f"{path} has not as many records as {self.task.path}")
                reference = chains.get(old.offset)
                count += reference is not None
                if not _same(old, new, reference):
                    raise NotConverted(
                        f"the record at {old.offset} is not the one at {new.offset} of {path}"
                    )
        self.outcome.repointed = count


def _chains(task: ConvertTask) -> dict[int, Reference]:
    """Return the originals of the revisits of a file that are re-pointed, by offset."""
    assert task.chains is not None
    path, container = task.chains
    query = f'SELECT "offset", url, date, record_id FROM {_read(path)} WHERE container = ?'
    with one_thread() as database:
        return {
            offset: Reference(*(text.encode("latin-1") for text in names))
            for offset, *names in fetch_rows(database, query, [container])
        }


def _places(records: Iterator[Record], chains: dict[int, Reference]) -> Iterator[tuple[int, int]]:
    """Yield offset and stored bytes of the revisits to be re-pointed, once they have ended."""
    last: Record | None = None
    for record in records:
        if last is not None:
            yield last.offset, last.stored
        last = record if record.offset in chains else None
    if last is not None:
        yield last.offset, last.stored


def _copy(source: BinaryIO, file: BinaryIO, begin: int, end: int) -> None:
    while begin < end:
        piece = os.pread(source.fileno(), min(_PIECE, end - begin), begin)
        if not piece:
            raise NotConverted("it was changed while it was read")
        file.write(piece)
        begin += len(piece)


def _repointed(source: BinaryIO, offset: int, stored: int, reference: Reference) -> bytes:
    """Return a revisit that names another original, as it is stored; raises `NotConverted`."""
    try:
        single = ExactRecord(source, offset, stored)
        if single.head.type != b"revisit" or single.head.repeated:
            raise NotConverted(f"at {offset}: a field occurs twice")
        header = single.header
        kept = _NAMING.sub(b"", header[: -len(b"\r\n")])
        names_id = b"WARC-Refers-To" in single.head.fields and reference.record_id
        record = b"".join((
            kept,
            b"WARC-Refers-To: <%b>\r\n" % reference.record_id if names_id else b"",
            b"WARC-Refers-To-Target-URI: %b\r\n" % reference.url,
            b"WARC-Refers-To-Date: %b\r\n\r\n" % refers_to_date(header, reference.date),
            *single.block(), _END,
        ))  # fmt: skip
        packer = single.packer(len(record), _LEVEL)
    except NotExact as error:
        raise NotConverted(f"at {offset}: {error}") from error
    return packer.compress(record) + packer.flush() if packer else record


def _same(old: CheckedRecord, new: CheckedRecord, reference: Reference | None) -> bool:
    """Whether a record is the same, but for its reference if that is given."""
    if reference is None:
        same = (old.head_size, old.head) == (new.head_size, new.head)
    else:
        same = (
            _other_lines(old) == _other_lines(new)
            and new.head.get(b"warc-refers-to-target-uri") == reference.url
            and new.head.get(b"warc-refers-to-date")
            == refers_to_date(old.head.version, reference.date)
            and new.head.get(b"warc-refers-to") in (b"", b"<%b>" % reference.record_id)
        )
    return same and b"".join(old.pieces()) == b"".join(new.pieces())


def _other_lines(record: CheckedRecord) -> list[bytes]:
    head = record.head
    return [
        line for line, (name, _) in zip(head.lines, head.fields, strict=True)
        if name not in _REFERS_TO
    ]  # fmt: skip
