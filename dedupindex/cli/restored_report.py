"""What is printed of files whose records were restored: by undoing in place, or elsewhere."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dedupindex.cli.common import print_result, say
from dedupindex.cli.sent_requests import SentRequests, sent_requests
from dedupindex.errors import Damaged, as_called
from dedupindex.object_store import CountedRequests
from dedupindex.post_crawl.undo import Restored
from dedupindex.runtime.tables import names_text, singular
from dedupindex.verify.issues import BROKEN, DAMAGE, LOSS
from dedupindex.verify.walk_file import is_named

_MOST_NAMED = 1000  # records that are not restored, or not proven; all are counted
_NAMED = 5  # files in a sentence
_DEFECTS = {DAMAGE: "its damage", LOSS: "its loss", BROKEN: "what is broken in it"}


def was_committed(directory: Path | str) -> str:
    """Say why a file below a directory cannot be restored in place, and what restores it."""
    place = shlex.quote(str(directory))
    return f"its removed records were discarded: bin/undedup {place} --out OTHER rebuilds them"


def _print_records(result: Restored, counts: dict[str, int], most: int) -> list[dict[str, Any]]:
    """Count the records that are not restored, or not proven; name some, and return these."""
    found = []
    for number, one in enumerate(result.findings):
        counts["records_unproven" if one.restored else "records_not_restored"] += 1
        if number >= most:
            continue
        what = "restored, but not proven" if one.restored else "NOT RESTORED"
        where = f" at {one.offset}" if one.offset >= 0 else ""
        say(f"warning: {result.name}{where}: {what}: {one.message}")
        found.append({"file": result.name, **one._asdict()})
    return found


def print_restored(
    results: Iterator[Restored], requests: CountedRequests | None = None, *, dry: bool = False
) -> int:
    """Print what was restored, or can be, and the requests for it; returns the exit status."""
    counts = dict.fromkeys(
        ("files", "archives", "records", "exact", "rebuilt", "partial", "copied", "existing",
         "unproven", "left_alone", "damaged", "defective", "records_existing", "records_unproven",
         "records_not_restored"), 0,
    )  # fmt: skip
    named_records: list[dict[str, Any]] = []
    problems: list[dict[str, Any]] = []
    alone: dict[str, list[str]] = {}  # reason -> the files that were left alone for it
    for result in results:
        counts["files"] += 1
        counts["archives"] += is_named(Path(result.name))
        if result.state != "left_alone":  # else nothing was written of its records
            existed = result.state == "existing"
            counts["records_existing" if existed else "records"] += result.records
        counts[result.state] += 1
        if result.state == "partial" and all(one.restored for one in result.findings):
            counts["unproven"] += 1
        named_records += _print_records(result, counts, _MOST_NAMED - len(named_records))
        if result.problem:
            problems.append({"file": result.name, "message": result.problem})
        if result.note:
            say(f"{result.name}: {result.note}")
        if result.state == "left_alone":
            files = alone.setdefault(result.problem, [])
            files.append(result.name)
            if len(files) == 1:  # the others of this reason follow in one line
                became = "cannot be restored" if dry else "was left alone"
                say(f"warning: {result.name} {became}: {result.problem}")
        elif result.problem:
            level = result.level or DAMAGE
            counts["damaged" if level == DAMAGE else "defective"] += 1
            became = "would be copied" if dry else "was copied"
            if result.state == "existing":
                became = "is there already"
            say(f"warning: {result.name} {became} with {_DEFECTS[level]}: {result.problem}")
    for first, *others in filter(lambda files: len(files) > 1, alone.values()):
        many = "1 more file" if len(others) == 1 else f"{len(others):,} more files"
        say(f"warning: the same is true of {many} as of {first}: {names_text(others, _NAMED)}")
    findings = {"findings": named_records, "problems": problems, "dry_run": dry}
    sent = sent_requests(requests) if requests else SentRequests({})
    lines = [*_restored_lines(counts, dry=dry), *sent.lines()]
    print_result({**counts, **findings, **sent.as_json()}, lines)
    wrong = any(counts[one] for one in ("left_alone", "damaged", "defective")) or named_records
    return Damaged.exit_status if wrong else 0


def _restored_lines(counts: dict[str, int], *, dry: bool) -> Iterator[str]:
    before = f" with {counts['records_existing']:,} records" if counts["records_existing"] else ""
    there = f"{counts['existing']:,} there already{before}, " if counts["existing"] else ""
    others = counts["files"] - counts["archives"]
    named = f", {others:,} of them not named as archives" if others else ""
    unproven, cut = counts["unproven"], counts["partial"] - counts["unproven"]
    partial = f"{unproven:,} rebuilt, not proven to be as before, " if unproven else ""
    partial += f"{cut:,} in part, " if cut else ""
    line = (
        f"{counts['files']:,} files{named}: {counts['records']:,} records "
        f"{'can be restored' if dry else 'restored'}; "
        f"{counts['exact']:,} files bit for bit, {counts['rebuilt']:,} record for record, "
        f"{partial}{counts['copied']:,} {'would be ' if dry else ''}copied as they are, {there}"
        f"{counts['left_alone']:,} left alone"
    )
    yield singular(line)
    if counts["records_unproven"] or counts["records_not_restored"]:
        yield (
            f"records that are not proven to be as they were: {counts['records_unproven']:,}; "
            f"records that {'cannot be' if dry else 'are not'} restored: "
            f"{counts['records_not_restored']:,}"
        )
        yield as_called("if originals are elsewhere: bin/undedup DIR --out OTHER --originals PLACE")
