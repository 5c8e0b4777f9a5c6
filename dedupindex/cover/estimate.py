"""Estimate the duration of bin/cover from a sample, before it begins.

The sample has all documents of some URLs. Covers of it, of its half and of a few documents show
what a document, a candidate and a pair cost beside the start of each step. Half and whole also show
how candidates and pairs grow: those of one URL with the share of the sample, others with its
square.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.cover.document_lines import document
from dedupindex.cover.find_cover import CoverOptions, CoverReport, run
from dedupindex.cover.load_documents import ArchiveOptions, Line, gather, is_lines, lines_of
from dedupindex.cover.relation import Relation
from dedupindex.errors import BadInput

SAMPLED = 4000  # documents, about
_MAX_BYTES = 256 << 20  # of their lines
_START = 20  # documents of the run that measures how long steps take to start
_CANDIDATES = ("looking for candidates", "comparing candidates")
_PAIRS = ("writing pairs", "covers")


@dataclass
class CoverEstimate:
    """What a run would count and take."""

    documents: int
    sampled: int  # documents that it is estimated from
    candidates: int
    pairs: int
    seconds: dict[str, float]  # of each phase

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "total": round(sum(self.seconds.values()), 1)}


class LineSample(NamedTuple):
    lines: list[tuple[int, Line]]  # each with a hash
    total: int  # lines that it is taken from


def sample_lines(files: Sequence[str], most: int) -> LineSample:
    """Take about `most` lines: all of some URLs, or if a few URLs have most of them, any."""
    sample = _sample(lines_of(files), most, _url)
    if len(sample.lines) >= min(sample.total, most // 4):
        return sample
    return _sample(lines_of(files), most, itemgetter(0))


def _sample(lines: Iterable[Line], most: int, key: Callable[[Line], str]) -> LineSample:
    """Take the lines whose hash is below a limit, which is halved while they are too many."""
    kept: list[tuple[int, Line]] = []
    total = size = 0
    limit = 1 << 64
    for line in lines:
        total += 1
        if (place := _hash(key(line))) < limit:
            kept.append((place, line))
            size += len(line[1])
        while len(kept) > 2 * most or (size > _MAX_BYTES and len(kept) > 1):
            limit //= 2
            kept = [one for one in kept if one[0] < limit]
            size = sum(len(text) for _, (_, text) in kept)
    return LineSample(kept, total)


def _url(line: Line) -> str:
    """Return the URL of a document, without reading the rest; raises `BadSource`."""
    try:
        fields = orjson.loads(line[1])
        url = fields["record"]["originalUrl"] if "record" in fields else fields["url"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        url = None
    return url if isinstance(url, str) else str(document(line[1], line[0])["url"])


def _hash(text: str) -> int:
    digest = blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def grown(half: int, whole: int, times: float) -> float:
    """Return a count in `times` the sample, from those in its half and in all of it.

    It grows as ``a x + b x²`` with a, b >= 0.
    """
    square = min(max(2 * whole - 4 * half, 0), whole)
    return (whole - square) * times + square * times * times


def extrapolated(
    start: CoverReport, half: CoverReport, whole: CoverReport, documents: int
) -> CoverEstimate:
    """Estimate a run from the reports of three runs."""
    sampled = whole.loaded.documents + whole.loaded.repeated
    times = documents / sampled
    candidates = grown(half.found.candidates, whole.found.candidates, times)
    pairs = grown(half.found.pairs, whole.found.pairs, times)
    by_candidates = max(times, candidates / max(whole.found.candidates, 1))
    by_pairs = max(times, pairs / max(whole.found.pairs, 1))
    seconds = {}
    at_start, in_whole = _steps(start), _steps(whole)
    for step, spent in in_whole.items():
        growth = by_candidates if step in _CANDIDATES else by_pairs if step in _PAIRS else times
        fixed = min(at_start.get(step, 0.0), spent)
        seconds[step] = round(fixed + (spent - fixed) * growth, 1)
    return CoverEstimate(documents, sampled, round(candidates), round(pairs), seconds)


def _steps(report: CoverReport) -> dict[str, float]:
    return {
        "reading": report.seconds["reading"], **report.found.steps,
        "covers": report.seconds["covers"],
    }  # fmt: skip


def estimate(
    sources: Sequence[str],
    archives: ArchiveOptions,
    relation: Relation,
    options: CoverOptions,
    home: Path,
    on_progress: OnProgress,
) -> CoverEstimate:
    """Estimate the duration of a run on these sources; raises what the run would.

    Lines of JSON are read in full. Of archives all metadata are read, but only the records of the
    sample.
    """
    began = records = time.monotonic()

    def noted(seen: ProgressUpdate) -> None:
        nonlocal records
        if seen.phase != "reading":  # but still their metadata
            records = time.monotonic()
        on_progress(seen)

    gathered = gather(sources, archives._replace(sample=SAMPLED), home, noted)
    metadata, reading = records - began, time.monotonic() - records
    files, captures = gathered.files, LineSample([], 0)
    if not all(map(is_lines, sources)):
        *files, of_archives = files
        chosen, tried = gathered.report.chosen, gathered.report.tried
        captures = sample_lines([of_archives], SAMPLED)._replace(total=chosen)
        reading *= chosen / max(tried, 1)
    began = time.monotonic()
    lines = sample_lines(files, SAMPLED)
    scan = time.monotonic() - began
    sample = [*lines.lines, *captures.lines]
    if not sample:
        raise BadInput("there is no document in the sources")
    half = [one for one in sample if one[0] % 2] or sample[::2]

    def report_of(part: Iterable[tuple[int, Line]]) -> CoverReport:
        return run((line for _, line in part), relation, options, home, lambda *_: None)

    start, of_half, whole = map(report_of, (sample[:_START], half, sample))
    found = extrapolated(start, of_half, whole, lines.total + captures.total)
    found.seconds["reading"] = round(found.seconds["reading"] + scan, 1)
    if captures.total:
        found.seconds = {"metadata": round(metadata, 1), "records": round(reading, 1),
                         **found.seconds}  # fmt: skip
    return found
