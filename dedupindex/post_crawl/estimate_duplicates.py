"""Estimate how much of a set is duplicates, from a simple random sample of its files.

The share of duplicates within a sample is too low, because most copies of a payload are in files
that were not drawn. What is missing is how many payloads are in no file of the sample, which is the
number of unseen species of ecology. Let Q1 and Q2 be the payloads, weighted by their bytes, that
are in one and in two of the n files drawn, and q the share that was drawn. Then

    Q1² / (2 Q2 n / (n - 1) + Q1 q / (1 - q))

is at most the weight of the unseen payloads, in expectation, whatever the numbers of copies are; it
is their weight if all payloads have equally many (A. Chao and C.-W. Lin, "Nonparametric lower
bounds for species richness and shared species richness under sampling without replacement",
Biometrics 68, 2012). With it the share of duplicates is at most too high; without, at most too low.
No sample can say more without assumptions (M. Charikar et al., "Towards estimation error guarantees
for distinct values", PODS 2000). For deduplication D. Harnik et al., "Estimating unseen
deduplication - from theory to practice", FAST 2016, use the same facts.

Standard errors are those of the jackknife over groups of files (W. G. Cochran, "Sampling
Techniques", 1977), since payloads of one file were not drawn independently. The interval has as
many of them as Student's distribution demands.

They say nothing if few files, or none, have a payload that a file drawn before them has: then no
estimate without a group differs from another. Such repeats are rare events, and their number is
about Poisson distributed (the rule of three is the case of none). If each file is repeated in k - 1
others of N, n files have (k - 1) n² / 2N repeats on average, and the share of duplicates is
1 - 1 / k; if some files are repeated once, 1/2 at most, the average is the share times n² / N. So
the greatest average that the repeats are compatible with gives an upper end of the share, and the
least one a lower end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import sqrt
from random import Random
from typing import Any, NamedTuple

from dedupindex.capture import Problem
from dedupindex.errors import BadInput
from dedupindex.post_crawl.plan.plan_file import MatchCriteria
from dedupindex.runtime.duckdb import Database, insert
from dedupindex.sources.warc_files import SourceFile

_CONFIDENCE = 1.96  # standard errors on each side: 95 per cent
_FEW = 10  # repeats: with fewer the upper end is that of their number, too
_ROWS = 10_000  # that are fetched at once
_GROUPS = 50  # of files, for standard errors
_LEAST = 2  # files of a sample
_SAMPLE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(%?)")


def parse_sample(size: str) -> tuple[float, bool]:
    """Return a number of files, or per cent of them and true; raises `BadInput`."""
    match = _SAMPLE.fullmatch(size)
    number = float(match[1]) if match else 0.0
    if match is None or not number or (number > 100 if match[2] else "." in match[1]):
        raise BadInput(f"--sample {size}: give a number of files, or a share of them such as 10%")
    return number, bool(match[2])


def draw(files: Sequence[SourceFile], size: str, seed: int) -> list[SourceFile]:
    """Return a random sample of files; `size` is a number, or a share as ``10%``.

    Raises `BadInput` if that is neither, or less than two files.
    """
    number, is_share = parse_sample(size)
    count = min(round(len(files) * number / 100) if is_share else int(number), len(files))
    if count < _LEAST:
        several = f"--sample {size} of {len(files):,} files: it has {count}"
        raise BadInput(f"{several}, and an estimate needs at least two")
    return Random(seed).sample(sorted(files), count)


class SampledFile(NamedTuple):
    container: int  # its number in the manifest; 0 if it could not be read
    size: int  # bytes


@dataclass
class DuplicateEstimate:
    """Shares are of the bytes of all files; duplicates are whole records but the first of each."""

    files: int  # of the set
    bytes_before: int  # of these files
    sampled_files: int
    sampled_bytes: int
    sampled_captures: int = 0
    sampled_duplicates: int = 0  # captures with a payload that another one has, but one of each
    at_most: float = 0.0  # of duplicates in the set, if all payloads have equally many copies
    at_most_error: float = 0.0  # standard error
    at_least: float = 0.0  # of duplicates within the sample
    at_least_error: float = 0.0
    repeats: int = 0  # sampled files with a payload of a file drawn before
    low: float = 0.0  # the interval in which the share is, with 95 per cent confidence
    high: float = 1.0
    left: list[Problem] = field(default_factory=list)  # files of the set, damage in the sample

    def as_json(self) -> dict[str, Any]:
        content = asdict(self)
        del content["left"]
        return {**content, "problems": [one.as_json() for one in self.left]}


class _Weights(NamedTuple):
    """Sums over the payloads of some sampled files, in bytes as stored, and over the files."""

    files: float
    size: float
    all: float  # of all records
    payloads: float  # of one record of each payload
    once: float  # of one record of each payload that is in one file
    twice: float

    def shares(self, total: float) -> tuple[float, float]:
        """Return the share of duplicates in files of `total` bytes, and that in these files."""
        rate = self.size / total if total else 1.0
        if not self.size:
            return 0.0, 0.0
        unseen = 0.0
        if self.once and rate < 1:
            seen_twice = 2 * self.twice * self.files / max(self.files - 1, 1)
            unseen = self.once**2 / (seen_twice + self.once * rate / (1 - rate))
        whole = (self.all / rate - self.payloads - unseen) / total
        return whole, (self.all - self.payloads) / self.size


def estimate_duplicates(
    database: Database, sample: Sequence[SampledFile], files: int, size: int,
    criteria: MatchCriteria = MatchCriteria(),  # noqa: B008 (immutable)
) -> DuplicateEstimate:  # fmt: skip
    """Estimate the duplicates of a set of `files` files of `size` bytes.

    ``lines`` are the lines of a manifest that has the sample, in random order.
    """
    found = DuplicateEstimate(files, size, len(sample), sum(file.size for file in sample))
    groups = min(_GROUPS, len(sample))
    database.execute("CREATE TABLE drawn (container INTEGER, part INTEGER)")
    rows = [(file.container, at % groups) for at, file in enumerate(sample)]
    insert(database, "drawn", [row for row in rows if row[0]])
    database.execute(f"""
        CREATE TABLE present AS
        SELECT part, container, hash({", ".join(criteria.columns())}) AS payload,
          count(*) AS records, sum(stored) AS bytes
        FROM lines JOIN drawn USING (container)
        WHERE not_rewritable_reason = '' AND digest <> '' GROUP BY ALL""")
    database.execute("""
        CREATE TABLE payloads AS
        SELECT payload, count(*) AS files, sum(bytes) / sum(records) AS weight
        FROM present GROUP BY payload""")
    whole = _weights(database, sample)
    counts = "(SELECT coalesce(sum(records), 0) FROM present), (SELECT count(*) FROM payloads)"
    records, payloads = database.execute(f"SELECT {counts}").fetchall()[0]
    found.sampled_duplicates = int(records) - int(payloads)
    found.at_most, found.at_least = (max(0.0, share) for share in whole.shares(size))
    without = [part.shares(size) for part in _without_each(database, sample, groups, whole)]
    left = 1 - found.sampled_bytes / size if size else 0.0
    found.at_most_error, found.at_least_error = (
        _jackknife([shares[at] for shares in without], left) for at in range(2)
    )
    found.repeats, events = _repeats(database)
    errors = _student(groups - 1)
    found.low = max(0.0, found.at_least - errors * found.at_least_error)
    found.high = min(1.0, found.at_most + errors * found.at_most_error)
    if len(sample) < files:
        part = _average_of_repeats(events)[0] / events if events else 0.0
        found.low = min(found.low, found.at_least * part)
        if found.repeats < _FEW:
            others = _highest_share(found, [file.size for file in sample])
            found.high = max(found.high, found.at_least + (1 - found.at_least) * others)
    return found


def _repeats(database: Database) -> tuple[int, int]:
    """Return how many sampled files have a payload of another one, but the first of each group.

    Files that have payloads in common, directly or through others, are a group. The second number
    is that of these files and all that have a payload twice.
    """
    inner = database.execute("SELECT DISTINCT container FROM present WHERE records > 1").fetchall()
    database.execute("""
        SELECT DISTINCT first, container
        FROM (SELECT container, min(container) OVER (PARTITION BY payload) AS first FROM present)
        WHERE first <> container""")
    groups = dict[int, int]()  # a file to another of its group

    def first_of(file: int) -> int:
        while (other := groups.get(file, file)) != file:
            groups[file] = groups.get(other, other)
            file = other
        return file

    while rows := database.fetchmany(_ROWS):
        for first, file in rows:
            one, other = first_of(first), first_of(file)
            if one != other:
                groups[other] = one
    return len(groups), len(groups.keys() | {container for (container,) in inner})


def _average_of_repeats(count: int) -> tuple[float, float]:
    """Return the least and the greatest average of a Poisson distribution that has `count` events.

    Each with 97.5 per cent confidence, by the formula of Byar (N. Breslow and N. Day, "Statistical
    Methods in Cancer Research", volume 2, 1987).
    """

    def end(events: int, errors: float) -> float:
        return events * (1 - 1 / (9 * events) + errors / (3 * sqrt(events))) ** 3

    least = end(count, -_CONFIDENCE) if count else 0.0
    return max(0.0, least), end(count + 1, _CONFIDENCE)


def _highest_share(found: DuplicateEstimate, sizes: list[int]) -> float:
    """Return the greatest share of files of other ones that so few repeats are compatible with.

    A few large files count as few files.
    """
    if not found.sampled_bytes:
        return 1.0
    effective = min(
        found.sampled_bytes**2 / sum(size * size for size in sizes),
        found.files * found.sampled_bytes / found.bytes_before,
    )
    share = _average_of_repeats(found.repeats)[1] * found.files / found.sampled_files / effective
    return share if share <= 0.5 else 2 * share / (2 * share + 1)


def _student(degrees: int) -> float:
    """Return 97.5 per cent of Student's distribution (Abramowitz and Stegun 26.7.5)."""
    x = _CONFIDENCE
    second = (5 * x**5 + 16 * x**3 + 3 * x) / 96
    return x + (x**3 + x) / (4 * degrees) + second / degrees**2


def _weights(database: Database, sample: Sequence[SampledFile]) -> _Weights:
    row = database.execute("""
        SELECT (SELECT sum(bytes) FROM present), sum(weight),
          sum(weight) FILTER (files = 1), sum(weight) FILTER (files = 2)
        FROM payloads""").fetchall()[0]
    size = sum(file.size for file in sample)
    return _Weights(len(sample), size, *(float(value or 0) for value in row))


def _without_each(
    database: Database, sample: Sequence[SampledFile], groups: int, whole: _Weights
) -> list[_Weights]:
    """Return the sums without each group of files."""
    rows = database.execute("""
        SELECT part, sum(bytes), sum(weight) FILTER (files = here),
          sum(weight * ((files - here = 1)::INT - (files = 1)::INT)),
          sum(weight * ((files - here = 2)::INT - (files = 2)::INT))
        FROM (SELECT part, payload, count(*) AS here, sum(bytes) AS bytes
              FROM present GROUP BY part, payload)
        JOIN payloads USING (payload) GROUP BY part""").fetchall()
    changes = {part: [float(value or 0) for value in sums] for part, *sums in rows}
    found = []
    for part in range(groups):
        group = sample[part::groups]
        stored, only, once, twice = changes.get(part, [0.0] * 4)
        found.append(
            _Weights(
                whole.files - len(group), whole.size - sum(file.size for file in group),
                whole.all - stored, whole.payloads - only, whole.once + once, whole.twice + twice,
            )
        )  # fmt: skip
    return found


def _jackknife(values: list[float], left: float) -> float:
    """Return a standard error from values without each group; `left` of the set was not drawn."""
    count, mean = len(values), sum(values) / len(values)
    return sqrt(left * (count - 1) / count * sum((value - mean) ** 2 for value in values))
