"""Group the lines that have equal payloads, and choose the original of each group, in SQL.

Lines are equal if they have the same digest (text), BLAKE3, length, status and coding, or what
else `MatchCriteria` says. Digests that only one line has are dropped first. The others are grouped
by a hash of 64 bits; `plan_file` compares the values themselves. Lines are ordered by a number of
128 bits: nanoseconds, then the place of the record among all bytes of the set.
"""

from __future__ import annotations

from dataclasses import dataclass

from dedupindex.post_crawl.plan.manifest_input import ANY_DIGEST
from dedupindex.post_crawl.plan.plan_file import MatchCriteria
from dedupindex.runtime.duckdb import Database, number

_LABEL = "if(covers = 0 OR digest = '', hash(payload), hash(digest))"
_MINUTES = "epoch_us(TRY_CAST(date[:17] || '00' AS TIMESTAMP)) // 1000000 + 62135596800"
_NANOSECONDS = "if(length(date) > 20, TRY_CAST(rpad(date[21:-2], 9, '0') AS BIGINT), 0)"
_INSTANT = f"""if(replay_key = 0, 0::UHUGEINT, coalesce(
  ({_MINUTES} + TRY_CAST(date[18:19] AS BIGINT))::UHUGEINT * 1000000000::UHUGEINT
  + {_NANOSECONDS}::UHUGEINT, 0::UHUGEINT))"""  # a bad date may be of any year, even before 1
_PLACE_BITS = 59  # half an exabyte; the instants of 9998 years take the other 69
_ALGORITHM = "lower(replace(split_part(lines.digest, ':', 1), '-', ''))"
_PLACES = f"{1 << _PLACE_BITS}::UHUGEINT"
_KEY = f"({_INSTANT} * {_PLACES} + place::UHUGEINT)"
_FIRSTS = """
SELECT class, min(key) FILTER (fit) AS first, arg_min(place, key) FILTER (fit) AS first_place,
  arg_min(replay_key, key) FILTER (fit) AS first_replay_key,
  arg_min(record, key) FILTER (fit) AS first_record
FROM equal WHERE {where} GROUP BY class HAVING count(*) > 1"""


@dataclass(frozen=True)
class GroupingRule:
    """The options of a run that decide which records become revisits."""

    partition: tuple[int, int] = (1, 1)  # which part, of how many
    later: bool = False  # whether an original may be later than its copies
    criteria: MatchCriteria = MatchCriteria()

    def of_partition(self) -> str:
        """Return SQL that is true for the lines of this part; equal digests are in one part."""
        part, parts = self.partition
        if parts == 1:
            return "true"
        label = "if(covers = 0 OR digest = '', hex(payload), digest)"
        return f"md5_number_lower({label}) % {parts} = {part - 1}"


def group(database: Database, rule: GroupingRule) -> None:
    """Create tables from ``lines``, ``part``, ``referred``, ``standing`` and ``answered``.

    ``equal`` has the lines whose digests other lines have, too; texts are hashed, since a table of
    all texts would not fit. ``outcomes`` has `place`, `key` and `outcome` of each line that has an
    equal: "original", "copy" or the reason why it stays, and the place of its original if there is
    one. ``colliding`` has the labels of several payloads, and ``extensions`` numbers these.
    """
    twin = "same-second" if rule.criteria.other_second else "twin"
    wider_class = ""
    if rule.criteria.same_type:
        wider_class = f"{_hash(rule.criteria._replace(same_type=False))} AS wider, "
    database.execute(f"""
        CREATE TABLE labels AS
        SELECT {_LABEL} AS label FROM part GROUP BY 1 HAVING count(*) > 1""")
    database.execute(f"""
        CREATE TABLE equal AS
        SELECT place, {_LABEL} AS label, hash(strong) AS form, {_KEY} AS key, replay_key,
          hash(record_id) AS record, {_hash(rule.criteria)} AS class,
          {wider_class}covers = 2 AS reframed, not_original_reason = '' AS fit,
          not_rewritable_reason AS reason
        FROM part WHERE {_LABEL} IN (SELECT label FROM labels)""")
    database.execute("DROP TABLE labels")
    database.execute("""
        UPDATE equal SET reason = 'indexed'
        WHERE reason = '' AND replay_key IN (SELECT replay_key FROM answered)""")
    _keep_referred(database)
    database.execute(f"CREATE TABLE firsts AS {_FIRSTS.format(where='true')}")
    _choose_unambiguous(database)
    database.execute(f"""
        CREATE TABLE outcomes AS
        SELECT equal.place, equal.key, replay_key, first_place AS original, CASE
          WHEN first IS NULL THEN if(reason = '', 'no-original', reason)
          WHEN key = first THEN 'original'
          WHEN reason <> '' THEN reason
          WHEN record = first_record THEN 'same-record'
          WHEN replay_key = first_replay_key AND key < first AND NOT {rule.later} THEN 'same-second'
          WHEN replay_key = first_replay_key THEN '{twin}'
          WHEN key < first AND NOT {rule.later} THEN 'no-earlier-original'
          ELSE 'copy' END AS outcome
        FROM equal JOIN firsts USING (class)""")
    database.execute("DROP TABLE firsts")
    if rule.criteria.same_type:
        _keep_types(database)
    _keep_twins(database)
    _number_extensions(database)


def _hash(criteria: MatchCriteria) -> str:
    return f"hash({', '.join(criteria.columns())})"


def _keep_types(database: Database) -> None:
    """Count lines that differ from all their equals in type; the earliest of them is unique."""
    database.execute("""
        INSERT INTO outcomes
        SELECT place, key, replay_key, NULL, 'type-differs' FROM equal JOIN (
          SELECT wider, min(key) AS earliest FROM equal
          GROUP BY wider HAVING min(class) <> max(class)) USING (wider)
        WHERE key <> earliest AND reason = '' AND place NOT IN (SELECT place FROM outcomes)""")


def _keep_referred(database: Database) -> None:
    """Keep what a revisit of the set refers to: replay tools would no longer find it.

    That is found by record id, or by urlkey and second. A revisit that names neither, or none that
    exists, protects all records of its URL and digest, since pywb takes the nearest of them; one
    that an index knows, also those whose digest is spelled otherwise or of another algorithm.
    """
    if not number(database, "SELECT count(*) FROM referred"):
        return
    database.execute("""
        CREATE TABLE met AS
        SELECT place, replay_key, record_id FROM lines
        WHERE replay_key <> 0 AND replay_key IN (SELECT replay_key FROM referred)
          OR record_id <> '' AND record_id IN (SELECT record_id FROM referred)""")
    database.execute("""
        CREATE TABLE missed AS
        SELECT DISTINCT url, digest, payload FROM referred
        WHERE replay_key NOT IN (SELECT replay_key FROM met WHERE replay_key <> 0)
          AND record_id NOT IN (SELECT record_id FROM met WHERE record_id <> '')""")
    database.execute(f"""
        UPDATE equal SET reason = 'referred-to'
        WHERE reason = '' AND place IN (
          SELECT place FROM met
          UNION ALL SELECT place FROM lines SEMI JOIN missed USING (url, digest)
          UNION ALL SELECT place FROM lines SEMI JOIN (
            SELECT * FROM missed WHERE starts_with(digest, '{ANY_DIGEST}')) AS known
          ON lines.url = known.url AND (
            lines.payload = known.payload OR '{ANY_DIGEST}' || {_ALGORITHM} <> known.digest))""")
    database.execute("DROP TABLE met")
    database.execute("DROP TABLE missed")


def _choose_unambiguous(database: Database) -> None:
    """Rule out originals that share urlkey and second with another payload.

    Replay tools that look up by these alone, as OpenWayback, could show the other payload. The
    originals are tested first, then all candidates of the groups whose original is ruled out.
    """
    _find_ambiguous(database, "SELECT first_replay_key FROM firsts")
    database.execute("""
        CREATE TABLE affected AS
        SELECT class FROM firsts WHERE first_replay_key IN (SELECT replay_key FROM ambiguous)""")
    if not number(database, "SELECT count(*) FROM affected"):
        return
    affected = "class IN (SELECT class FROM affected)"
    _find_ambiguous(database, f"SELECT replay_key FROM equal WHERE fit AND {affected}")
    database.execute(f"""
        UPDATE equal SET fit = false
        WHERE {affected} AND replay_key IN (SELECT replay_key FROM ambiguous)""")
    database.execute(f"DELETE FROM firsts WHERE {affected}")
    database.execute(f"INSERT INTO firsts {_FIRSTS.format(where=affected)}")


def _find_ambiguous(database: Database, keys: str) -> None:
    """Create ``ambiguous``: those of the replay keys under which the set has several payloads."""
    database.execute(f"""
        CREATE OR REPLACE TABLE ambiguous AS
        SELECT replay_key FROM lines WHERE replay_key IN ({keys}) AND replay_key <> 0
        GROUP BY replay_key HAVING min(hash(strong)) <> max(hash(strong))
        UNION
        SELECT replay_key FROM lines JOIN (
          SELECT replay_key, digest AS other FROM standing
          WHERE replay_key IN ({keys}) AND replay_key <> 0) USING (replay_key)
        WHERE digest <> other""")


def _keep_twins(database: Database) -> None:
    """Decide about copies that share their URL and second with other records.

    Replay tools choose among these by media type before digest, so a revisit would be shown in
    another order. A copy therefore stays ('same-second') if another record of its URL and second
    has another payload, status, coding or HTTP header, or is a revisit already; the same record
    again does not count. A "twin", whose original has its own urlkey and second, becomes a copy if
    all are equal and of one URL.
    """
    chosen = "outcome IN ('copy', 'twin')"
    database.execute(f"""
        CREATE TABLE crowded AS
        SELECT replay_key FROM lines
        WHERE replay_key IN (SELECT replay_key FROM outcomes WHERE {chosen} AND replay_key <> 0)
        GROUP BY replay_key HAVING count(*) > 1""")
    if number(database, "SELECT count(*) FROM crowded"):
        database.execute("""
            CREATE TABLE twins AS
            SELECT place, replay_key, url, hash(record_id, strong) AS record,
              hash(strong, length, status, coding, header) AS shown,
              content_type < 'warc/revisit' AS before
            FROM lines WHERE replay_key IN (FROM crowded)""")
        database.execute(f"""
            UPDATE outcomes SET outcome = 'same-second'
            WHERE {chosen} AND place IN (
              SELECT place FROM twins SEMI JOIN (
                SELECT replay_key, url FROM twins GROUP BY replay_key, url
                HAVING min(record) <> max(record) AND min(shown) <> max(shown))
              USING (replay_key, url))""")
        # OpenWayback finds the original of a revisit of its own URL among the captures before it,
        # which its CDX sorts by second, URL and media type.
        database.execute("""
            UPDATE outcomes SET outcome = 'copy'
            WHERE outcome = 'twin' AND place IN (
              SELECT outcomes.place FROM outcomes
              JOIN twins AS own ON own.place = outcomes.place
              JOIN twins AS first ON first.place = original
              WHERE own.url = first.url AND first.before)""")
        database.execute("DROP TABLE twins")
    database.execute("DROP TABLE crowded")
    database.execute("UPDATE outcomes SET outcome = 'same-second' WHERE outcome = 'twin'")
    database.execute("""
        UPDATE outcomes SET outcome = 'same-second'
        WHERE outcome = 'copy' AND place IN (
          SELECT place FROM lines JOIN (
            SELECT replay_key, url, record_id AS other FROM standing
            WHERE replay_key <> 0
              AND replay_key IN (SELECT replay_key FROM outcomes WHERE outcome = 'copy')
          ) USING (replay_key, url)
          WHERE record_id <> other)""")


def _number_extensions(database: Database) -> None:
    """Number the payloads of digests that have several, in the order of their first lines."""
    database.execute("""
        CREATE TABLE colliding AS
        SELECT label, bool_or(reframed) AS reframed FROM equal
        GROUP BY label HAVING min(form) <> max(form)""")
    database.execute("""
        CREATE TABLE extensions AS
        SELECT label, form, row_number() OVER (PARTITION BY label ORDER BY min(key)) AS extension
        FROM equal WHERE label IN (SELECT label FROM colliding)
        GROUP BY label, form""")
