"""``bin/verify``: find what is damaged or lost in archives, or will not replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from dedupindex.cli import verify_page
from dedupindex.cli.common import UNSOUND, Command, print_item, print_json, say
from dedupindex.cli.options import flag, option, shared_options, wants_json
from dedupindex.cli.progress_bar import show_progress
from dedupindex.cli.sent_requests import SentRequests, sent_requests
from dedupindex.errors import Damaged
from dedupindex.object_store import counted_requests, is_remote, task_rows
from dedupindex.post_crawl.rewrite.result_place import StoredPath, check_in_stores
from dedupindex.runtime import html_page
from dedupindex.runtime.spark import CREDENTIALS, spark_session
from dedupindex.runtime.tables import printable, singular
from dedupindex.sources.warc_files import nothing_found
from dedupindex.verify.collection import Collection, ExecutorRows
from dedupindex.verify.compare_collections import Against
from dedupindex.verify.compare_files import REBUILT
from dedupindex.verify.file_bytes import Place
from dedupindex.verify.issues import BROKEN, DAMAGE, LOSS, REASONS, REMARK, Finding, level_words

EXAMPLES = """
bin/verify my-warcs                                # damaged, lost, or will not replay
bin/verify new-crawl --originals my-warcs          # with originals elsewhere
bin/verify --against my-warcs rewritten            # every record is there or can be rebuilt
bin/verify --against my-warcs again --records      # after bin/undedup: the same records
bin/verify --against s3://bucket/warcs s3://bucket/smaller
bin/verify --against s3://bucket/warcs s3://bucket/smaller --spark spark://master:7077
bin/verify --remarks my-warcs                      # also list what is unusual but replays
"""
RECOMPRESSED = "recompressed"
_OTHERS = 20  # files that were not compared and are named
_ABSENT = {"dangling", "original-missing"}
_ELSEWHERE = (  # without and with --originals
    "name originals that are elsewhere with --originals",
    "originals may be in further places: --originals is repeatable",
)
_ON_SCREEN = 20  # findings that leave what was printed before them on the screen


class _Anywhere(click.Path):
    """A file or directory here, or in a store."""

    def convert(self, value: Any, *more: Any) -> Any:
        if is_remote(str(value)):
            return StoredPath(str(value))
        return super().convert(value, *more)


PLACE = _Anywhere(path_type=Path, readable=False)  # `verify` says what cannot be read


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("places", metavar="PLACE...", nargs=-1, required=True, type=PLACE)
@option(
    "--against",
    type=PLACE,
    help="What PLACE was made from: a directory, a glob in quotes, or one file.",
)
@option(
    "--originals",
    multiple=True,
    type=PLACE,
    help="Where originals may be besides PLACE: files, or directories with all below; repeatable.",
)
@flag(
    "--records", help="With --against: compare records, not gzip members (after bin/undedup --out)."
)
@flag(
    "--remarks", "list_remarks", help="List remarks (unusual, but replays), not only their counts."
)
@shared_options("--html", "--zstd-dictionary", "--spark")
@shared_options("--json", help="JSON on stdout, a line for each finding.")
def command(
    places: tuple[Place, ...],
    against: Place | None,
    originals: tuple[Place, ...],
    records: bool,
    list_remarks: bool,
    html: Path | None,
    spark: str,
) -> int:
    """Read WARC and ARC files with an independent reader, and report their defects.

    Each finding is a line: level, reason, file, offset, record id, explanation. Remarks are counted
    by reason. A PLACE may be an address, s3://…. docs/verify.md explains the reasons. Changes
    nothing.
    """
    if records and against is None:
        raise click.UsageError("--records goes with --against")
    reasons: Counter[str] = Counter()
    recompressed = 0
    first: list[Finding] = []
    elsewhere = _ELSEWHERE[bool(originals)]
    executors = _executors(spark, (*places, *originals, *((against,) if against else ())))
    with counted_requests() as requests, show_progress() as progress, executors as rows:
        collection: Against | Collection = Collection(places, originals, progress, rows)
        if against:
            collection = Against(against, places, originals, progress, rows)
        for finding in collection.findings():
            if records and finding.reason == RECOMPRESSED:
                recompressed += 1
                continue
            if finding.reason in _ABSENT and not reasons.keys() & _ABSENT:
                say(elsewhere)  # first: there may be as many such lines as revisits
            reasons[finding.reason] += 1
            if list_remarks or finding.level != REMARK:
                _show(finding)
                if len(first) < verify_page.NAMED:
                    first.append(finding)
        sent = sent_requests(requests)
    if not collection.files and not reasons.keys() - {"file-extra"}:
        raise nothing_found(map(str, places))
    others = collection.not_compared if isinstance(collection, Against) else []
    totals = {**collection.totals(), **({RECOMPRESSED: recompressed} if records else {})}
    _print_totals(totals, reasons, sent, against, others, list_remarks=list_remarks)
    for hint in _hints(reasons, against, collection, elsewhere, on_spark=bool(spark)):
        say(hint)
    if html is not None:  # last: the result is printed even if the page cannot be written
        page = verify_page.lines(places, collection.totals(), reasons, first, against, others)
        html_page.save(html, page)
    return _status(reasons.keys(), compared=against is not None)


def _hints(
    reasons: Counter[str], against: Place | None, read: Against | Collection, elsewhere: str,
    *, on_spark: bool,
) -> Iterator[str]:  # fmt: skip
    """Yield what may be meant, by the findings and by what was read."""
    if isinstance(read, Collection) and (links := read.other_names):
        names = "1 name" if links == 1 else f"{links:,} names"
        yield f"{names} more of these files, as links: a file is read once"
    if {reason for reason in reasons if REASONS[reason] != REMARK} == {RECOMPRESSED}:
        yield "only the compressed bytes of records differ; --records compares the records"
    if isinstance(read, Against) and read.swapped:
        yield singular(f"{read.swapped:,} revisits of {against} ") + (
            "are whole records in PLACE: name the source with --against, and the result as PLACE"
        )
    if isinstance(read, Against) and not read.files and reasons["file-missing"]:
        yield (
            f"no file of PLACE has the name of one below {against}: files are compared by their "
            "names below both, so name directories of the same level"
        )
    if on_spark and reasons["unreadable"]:
        yield CREDENTIALS
    if sum(reasons[reason] for reason in _ABSENT) > _ON_SCREEN:
        yield elsewhere  # once more


@contextmanager
def _executors(master: str, places: tuple[Place, ...]) -> Iterator[ExecutorRows | None]:
    """Open a session on Spark, if wanted; raises `BadInput` for places that are not in stores."""
    if not master:
        yield None
        return
    check_in_stores("verifies", places)
    with spark_session(master) as cluster:
        yield partial(task_rows, cluster)


def _status(reasons: Set[str], *, compared: bool) -> int:
    """Return the exit status: loss is worse than damage, which scripts may take for known.

    In a comparison damage is loss, too: the file before is sound there. Only of what cannot be
    read at all nobody knows whether something is lost.
    """
    levels = {REASONS[reason] for reason in reasons}
    new_damage = compared and any(REASONS[one] == DAMAGE for one in reasons - {"unreadable"})
    if new_damage or levels & {LOSS, BROKEN}:
        return UNSOUND
    return Damaged.exit_status if DAMAGE in levels else 0


def _print_totals(
    totals: dict[str, int], reasons: Counter[str], sent: SentRequests, against: Place | None,
    others: Sequence[str], *, list_remarks: bool,
) -> None:  # fmt: skip
    if wants_json():
        more = {"not_compared": len(others), "not_compared_files": others[:_OTHERS]}
        found = dict(sorted(reasons.items()))
        print_json({**totals, "findings": found, **sent.as_json(), **(more if against else {})})
        return
    read = [
        f"{count:,} {what.replace('_', ' ')}"
        for what, count in totals.items()
        if what != RECOMPRESSED and (count or what != REBUILT)
    ]
    if recompressed := totals.get(RECOMPRESSED):
        read.append(f"{recompressed:,} records unchanged in other members or frames")
    sound = verify_page.sound({REASONS[reason] for reason in reasons}, against, others)
    _say_counts(", ".join(read), reasons, sound, list_remarks=list_remarks)
    if others:
        say(verify_page.not_compared(others))
    for line in sent.lines():
        say(line)


def _say_counts(totals: str, reasons: Counter[str], sound: str, *, list_remarks: bool) -> None:
    """Print what was read, and the number of findings by level and reason."""
    levels: Counter[str] = Counter()
    for reason, count in reasons.items():
        levels[REASONS[reason]] += count
    found = ", ".join(level_words(levels))
    say(f"{singular(totals)}: {'; '.join(filter(None, (found, sound)))}")
    if reasons:
        for line in verify_page.BY_REASON.text_lines(verify_page.rows(reasons)):
            say(line)
    if levels[REMARK] and not list_remarks:
        say("remarks are listed with --remarks")


def _show(finding: Finding) -> None:
    finding = finding._replace(
        file=printable(finding.file),
        record_id=printable(finding.record_id),
        message=printable(finding.message),
    )
    line = "\t".join(map(str, (finding.level, *finding)))
    print_item({"level": finding.level, **finding._asdict()}, [line])
