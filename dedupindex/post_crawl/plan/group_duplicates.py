"""Who is equal to whom, and which of the equal is the original: out of core, in SQL.

Lines are equal that have the same digest (text), BLAKE3, length, status and coding, or what else
`MatchCriteria` says. First the digests are found that stand on several lines, so that the rest is
never looked at again. Lines are then grouped by a hash of
64 bits; `write` compares the values. The
order of lines is one number of 128 bits: nanoseconds, then the place of the record among all bytes
of the set.
"""

from __future__ import annotations

from dataclasses import dataclass

from dedupindex.post_crawl.plan.plan_file import MatchCriteria
from dedupindex.runtime.duckdb import Database, number

_LABEL = "if(covers = 0 OR digest = '', hash(payload), hash(digest))"
_MINUTES = "epoch_us(TRY_CAST(date[:17] || '00' AS TIMESTAMP)) // 1000000 + 62135596800"
_NANOSECONDS = "if(length(date) > 20, TRY_CAST(rpad(date[21:-2], 9, '0') AS BIGINT), 0)"
_INSTANT = f"""if(moment = 0, 0::UHUGEINT, coalesce(
  ({_MINUTES} + TRY_CAST(date[18:19] AS BIGINT))::UHUGEINT * 1000000000::UHUGEINT
  + {_NANOSECONDS}::UHUGEINT, 0::UHUGEINT))"""  # a bad date may be of any year, before 1 and all
_PLACE_BITS = 59  # half an exabyte; the instants of 9998 years take the other 69
_PLACES = f"{1 << _PLACE_BITS}::UHUGEINT"
_KEY = f"({_INSTANT} * {_PLACES} + place::UHUGEINT)"
_FIRSTS = """
SELECT class, min(key) FILTER (fit) AS first, arg_min(place, key) FILTER (fit) AS first_place,
  arg_min(moment, key) FILTER (fit) AS first_moment,
  arg_min(record, key) FILTER (fit) AS first_record
FROM equal WHERE {where} GROUP BY class HAVING count(*) > 1"""


@dataclass(frozen=True)
class GroupingRule:
    """What a run is asked to do, as far as it matters for the plan."""

    partition: tuple[int, int] = (1, 1)  # this part, of so many
    later: bool = False  # whether an original may be later than its copies
    alike: MatchCriteria = MatchCriteria()

    def of_partition(self) -> str:
        """SQL for the lines that are this part's: equal digests are never split."""
        part, parts = self.partition
        if parts == 1:
            return "true"
        label = "if(covers = 0 OR digest = '', hex(payload), digest)"
        return f"md5_number_lower({label}) % {parts} = {part - 1}"


def group(database: Database, rule: GroupingRule) -> None:
    """From ``lines``, ``part``, ``referred``, ``standing`` and the table ``named`` make tables.

    ``equal`` has the lines whose digests others have, too, as numbers: texts are hashed, for a
    table of all that they say would not fit. ``outcomes`` has `place`, `key` and `outcome` of each
    of them that has an equal, with the place of the original where there is one: "original", "copy"
    or the reason why it stays. ``colliding`` has the labels of several payloads, and ``extensions``
    numbers these.
    """
    twin = "same-moment" if rule.alike.other_second else "twin"
    of_any_type = ""
    if rule.alike.same_type:
        of_any_type = f"{_hash(rule.alike._replace(same_type=False))} AS wider, "
    database.execute(f"""
        CREATE TABLE labels AS
        SELECT {_LABEL} AS label FROM part GROUP BY 1 HAVING count(*) > 1""")
    database.execute(f"""
        CREATE TABLE equal AS
        SELECT place, {_LABEL} AS label, hash(strong) AS form, {_KEY} AS key, moment,
          hash(record_id) AS record, {_hash(rule.alike)} AS class,
          {of_any_type}covers = 2 AS reframed, unfit = '' AS fit, stay
        FROM part WHERE {_LABEL} IN (SELECT label FROM labels)""")
    database.execute("DROP TABLE labels")
    database.execute("""
        UPDATE equal SET stay = 'indexed'
        WHERE stay = '' AND place IN (
          SELECT base + "offset" FROM named JOIN places ON number = container)""")
    _keep_referred(database)
    database.execute(f"CREATE TABLE firsts AS {_FIRSTS.format(where='true')}")
    _choose_unambiguous(database)
    database.execute(f"""
        CREATE TABLE outcomes AS
        SELECT equal.place, equal.key, moment, first_place AS original, CASE
          WHEN first IS NULL THEN if(stay = '', 'no-original', stay)
          WHEN key = first THEN 'original'
          WHEN stay <> '' THEN stay
          WHEN record = first_record THEN 'same-record'
          WHEN moment = first_moment AND key < first AND NOT {rule.later} THEN 'same-moment'
          WHEN moment = first_moment THEN '{twin}'
          WHEN key < first AND NOT {rule.later} THEN 'earlier'
          ELSE 'copy' END AS outcome
        FROM equal JOIN firsts USING (class)""")
    database.execute("DROP TABLE firsts")
    if rule.alike.same_type:
        _keep_types(database)
    _keep_twins(database)
    _number_extensions(database)


def _hash(alike: MatchCriteria) -> str:
    return f"hash({', '.join(alike.columns())})"


def _keep_types(database: Database) -> None:
    """What is equal only to others of other types stays, but for the first of all of these."""
    database.execute("""
        INSERT INTO outcomes
        SELECT place, key, moment, NULL, 'type-differs' FROM equal JOIN (
          SELECT wider, min(key) AS earliest FROM equal
          GROUP BY wider HAVING min(class) <> max(class)) USING (wider)
        WHERE key <> earliest AND stay = '' AND place NOT IN (SELECT place FROM outcomes)""")


def _keep_referred(database: Database) -> None:
    """What a revisit of the set refers to stays, or no replay tool would find it any more.

    That is found by record id, and by urlkey and second. For one that names none, or none that is
    there, it is every record of its URL and digest: pywb takes the nearest of them.
    """
    if not number(database, "SELECT count(*) FROM referred"):
        return
    database.execute("""
        CREATE TABLE met AS
        SELECT place, moment, record_id FROM lines
        WHERE moment <> 0 AND moment IN (SELECT moment FROM referred)
          OR record_id <> '' AND record_id IN (SELECT record_id FROM referred)""")
    database.execute("""
        CREATE TABLE missed AS
        SELECT DISTINCT url, digest FROM referred
        WHERE moment NOT IN (SELECT moment FROM met WHERE moment <> 0)
          AND record_id NOT IN (SELECT record_id FROM met WHERE record_id <> '')""")
    database.execute("""
        UPDATE equal SET stay = 'referred'
        WHERE stay = '' AND place IN (
          SELECT place FROM met
          UNION ALL SELECT place FROM lines SEMI JOIN missed USING (url, digest))""")
    database.execute("DROP TABLE met")
    database.execute("DROP TABLE missed")


def _choose_unambiguous(database: Database) -> None:
    """Pass over originals that share urlkey and second with another payload.

    Replay tools that look up by those alone would show that one (OpenWayback does). The first
    look is at all originals; the second, at all that could take the place of those it rules out,
    is the last.
    """
    _find_ambiguous(database, "SELECT first_moment FROM firsts")
    database.execute("""
        CREATE TABLE affected AS
        SELECT class FROM firsts WHERE first_moment IN (SELECT moment FROM ambiguous)""")
    if not number(database, "SELECT count(*) FROM affected"):
        return
    affected = "class IN (SELECT class FROM affected)"
    _find_ambiguous(database, f"SELECT moment FROM equal WHERE fit AND {affected}")
    database.execute(f"""
        UPDATE equal SET fit = false
        WHERE {affected} AND moment IN (SELECT moment FROM ambiguous)""")
    database.execute(f"DELETE FROM firsts WHERE {affected}")
    database.execute(f"INSERT INTO firsts {_FIRSTS.format(where=affected)}")


def _find_ambiguous(database: Database, moments: str) -> None:
    """Those of the moments at which the set has several payloads, of whatever digest.

    Of the payload of a revisit no more is known than its digest.
    """
    database.execute(f"""
        CREATE OR REPLACE TABLE ambiguous AS
        SELECT moment FROM lines WHERE moment IN ({moments}) AND moment <> 0
        GROUP BY moment HAVING min(hash(strong)) <> max(hash(strong))
        UNION
        SELECT moment FROM lines JOIN (
          SELECT moment, digest AS other FROM standing
          WHERE moment IN ({moments}) AND moment <> 0) USING (moment)
        WHERE digest <> other""")


def _keep_twins(database: Database) -> None:
    """Decide what becomes of records that share their URL and second with others.

    Which of them replay tools show is told by what their index says of each, type before digest: a
    revisit would change places with the other. So a copy stays ('same-moment') if another record of
    its URL and second has another payload, status, coding or HTTP header, or is a revisit already,
    of which no header is known; the same record again is no other one. A "twin", whose original is
    of its own urlkey and second, becomes a copy where all are equal and of one URL.
    """
    chosen = "outcome IN ('copy', 'twin')"
    database.execute(f"""
        CREATE TABLE crowded AS
        SELECT moment FROM lines
        WHERE moment IN (SELECT moment FROM outcomes WHERE {chosen} AND moment <> 0)
        GROUP BY moment HAVING count(*) > 1""")
    if number(database, "SELECT count(*) FROM crowded"):
        database.execute("""
            CREATE TABLE twins AS
            SELECT place, moment, url, hash(record_id, strong) AS record,
              hash(strong, length, status, coding, header) AS shown,
              content_type < 'warc/revisit' AS before
            FROM lines WHERE moment IN (FROM crowded)""")
        database.execute(f"""
            UPDATE outcomes SET outcome = 'same-moment'
            WHERE {chosen} AND place IN (
              SELECT place FROM twins SEMI JOIN (
                SELECT moment, url FROM twins GROUP BY moment, url
                HAVING min(record) <> max(record) AND min(shown) <> max(shown))
              USING (moment, url))""")
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
    database.execute("UPDATE outcomes SET outcome = 'same-moment' WHERE outcome = 'twin'")
    database.execute("""
        UPDATE outcomes SET outcome = 'same-moment'
        WHERE outcome = 'copy' AND place IN (
          SELECT place FROM lines JOIN (
            SELECT moment, url, record_id AS other FROM standing
            WHERE moment IN (SELECT moment FROM outcomes WHERE outcome = 'copy' AND moment <> 0)
          ) USING (moment, url)
          WHERE record_id <> other)""")


def _number_extensions(database: Database) -> None:
    """The payloads of digests that have several, in the order of their first lines."""
    database.execute("""
        CREATE TABLE colliding AS
        SELECT label, bool_or(reframed) AS reframed FROM equal
        GROUP BY label HAVING min(form) <> max(form)""")
    database.execute("""
        CREATE TABLE extensions AS
        SELECT label, form, row_number() OVER (PARTITION BY label ORDER BY min(key)) AS extension
        FROM equal WHERE label IN (SELECT label FROM colliding)
        GROUP BY label, form""")
