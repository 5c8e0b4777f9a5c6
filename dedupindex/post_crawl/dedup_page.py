"""The report of bin/dedup as a page: what became smaller, where, and what was left as it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dedupindex.post_crawl.dedup_report import (
    REASONS,
    DedupReport,
    hosts_table,
    hosts_without_revisits,
    refused_table,
    unique_text,
)
from dedupindex.post_crawl.rewrite.result_place import EARLIER
from dedupindex.runtime import html_page
from dedupindex.runtime.html_page import ChartPart, Figure
from dedupindex.runtime.report_table import ReportColumn, Table, Unit, exact_percent, share_text
from dedupindex.runtime.tables import amount, names_text, number, singular
from dedupindex.verify.issues import level_words

_CAPTURES, _BYTES = ReportColumn("captures", "captures"), ReportColumn("bytes", "bytes", Unit.BYTES)
_NAMED = 200  # files with problems
_SKIPPED = 20  # files that are no archives and are named
_PROBLEMS = Table(
    "Files that were left alone, and damage that was kept",
    (
        ReportColumn("file", "file", Unit.TEXT),
        ReportColumn("there", "in the result", Unit.TEXT),
        ReportColumn("why", "why", Unit.TEXT),
    ),
    order="file",
)
_FINDINGS = Table(
    "What verification found",
    (ReportColumn("reason", "reason", Unit.TEXT), ReportColumn("findings", "findings")),
    order="reason",
)


def lines(
    report: DedupReport, sources: Sequence[str], commands: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the page of a run that read `sources`; `commands` are its last lines."""
    title = f"Duplicates in {names_text(sources, 2)}"
    return html_page.page(
        title, _headline(report), _figures(report), _body(report, commands), _footer(report)
    )


def _headline(report: DedupReport) -> str:
    if not report.proof.sound:
        return "Verification failed: do not use the result, and keep what it was made from."
    if report.revisits_before and not report.revisits:
        other = "would become" if report.dry_run else "became"
        return (
            f"{report.revisits_before:,} records were revisits before this run, and no other "
            f"capture {other} one."
        )
    smaller = report.bytes_on_disk - report.bytes_after
    share = exact_percent(abs(smaller), report.bytes_on_disk)
    would = "would be" if report.dry_run else "are"
    become = "could become" if report.dry_run else "became"
    captures = f"{report.revisits:,} of {report.captures:,} captures {become} revisits"
    than = "smaller" if smaller >= 0 else "larger"
    files = f"{would} {share_text(share)} {than}: {captures}"
    if report.in_place and report.revisits:
        is_free = "would be" if report.dry_run else "is"
        today = "Until it is committed, the files and" if report.dry_run else "Today the files and"
        take = "would take" if report.dry_run else "take"
        then = "would then take" if report.dry_run else "then take"
        return (
            f"{today} what is kept to undo the run {take} {report.net_text()}. "
            f"The space of the removed records {is_free} free only after bin/rewrite --commit. "
            f"With what is kept even so, the files {then} {report.committed_text()}. "
            f"The files alone {files}."
        )
    net = f" With what is kept to undo it, {report.net_text()}." if report.journal else ""
    links = f" {linked}." if (linked := report.linked_text()) else ""
    return f"The files {files}.{net}{links}"


def _figures(report: DedupReport) -> Iterator[Figure]:
    smaller = report.bytes_on_disk - report.bytes_after
    before, after = amount(report.bytes_on_disk), amount(report.bytes_after)
    commit = ""
    if report.in_place and report.revisits:
        commit = f"; after --commit, with what is still kept, {report.committed_text()}"
        now = "Would be on disk until --commit" if report.dry_run else "On disk now"
        both = amount(report.bytes_after + report.journal)
        yield Figure(now, both, f"{report.net_text()}: the files, and what undoes the run")
    saved = "Would be saved in files" if report.dry_run else "Saved in files"
    less = amount(smaller) if smaller >= 0 else f"-{amount(-smaller)}"
    on_disk = " on disk" if report.linked_bytes else ""
    yield Figure(saved, less, f"{before}{on_disk} before, {after} after{commit}")
    share = exact_percent(report.revisits, report.captures)
    revisits = "Would become revisits" if report.dry_run else "Revisits"
    yield Figure(revisits, number(report.revisits), f"{share_text(share)} of the captures")
    if report.journal:
        until = " until --commit" if report.in_place else ""
        kept = "Would be kept to undo it" if report.dry_run else "Kept to undo it"
        notes = (f"in {report.journal_place}{until}", report.net_text(), report.earlier_text())
        yield Figure(kept, amount(report.journal), "; ".join(filter(None, notes)))
    if report.left:
        names = {problem.container for problem in report.left}
        yield Figure("Files with problems", number(len(names)), "named below")
    if not report.dry_run and (report.proof.files or report.revisits or not report.in_place):
        files = singular(f"{report.proof.files:,} files")
        words = ["no new defects"] if report.proof.sound and report.proof.files else []
        found = ", ".join(words + level_words(report.proof.levels))
        words = [found, report.not_verified_text()]
        yield Figure("Verified", files, "; ".join(filter(None, words)))


def _pictures(report: DedupReport) -> Iterator[str]:
    smaller = max(report.bytes_on_disk - report.bytes_after, 0)
    dry = report.dry_run
    saved = ChartPart("saved", "would be saved" if dry else "saved")
    sizes = [
        (saved, smaller),
        (ChartPart("rest", "would stay" if dry else "stays"), report.bytes_on_disk - smaller),
    ]
    yield from html_page.split("Bytes in files", sizes, _BYTES)
    rewritten = "would not be rewritten" if dry else "not rewritten"
    captures = [
        (saved._replace(label="would be revisits" if dry else "revisits"), report.revisits),
        (ChartPart("exact_url", "originals of revisits"), report.originals),
        (ChartPart("new", unique_text(report)), report.unique),
        (ChartPart("loss", f"duplicates, {rewritten}"), report.refused.total()),
    ]
    yield from html_page.split("Captures", captures, _CAPTURES)
    hosts = [
        (host.host, [max(host.bytes_saved, 0)],
         f"{amount(host.bytes_saved)}, {host.revisits:,} of {host.captures:,} captures")
        for host in report.hosts[: html_page.MOST]
        if host.bytes_saved
    ]  # fmt: skip
    what = "Bytes that would be saved in files" if dry else "Bytes saved in files"
    yield from html_page.ranking(f"{what}, by host", [saved], hosts)


def _body(report: DedupReport, commands: Sequence[str]) -> Iterator[str]:
    yield from _pictures(report)
    dry = report.dry_run
    saving = [host for host in report.hosts if host.saves]
    if saving:
        yield from hosts_table(dry_run=dry).html_lines(host.as_row() for host in saving)
    if saving and (shared := report.hosts_text()):
        yield html_page.note(shared)
    if others := hosts_without_revisits(report.hosts):
        made = "would have" if dry else "has" if others == 1 else "have"
        yield html_page.note(singular(f"{others:,} hosts") + f" that {made} no revisit: not shown.")
    if report.refused:
        rows = report.refused_rows()
        yield from refused_table(rows, dry_run=dry).html_lines(rows)
        yield html_page.note(f"{REASONS}.")
    yield from _problems(report)
    if report.proof.findings:
        found = sorted(report.proof.findings.items())
        yield from _FINDINGS.html_lines({"reason": name, "findings": n} for name, n in found)
    if lacking := report.absent_text():
        copied = f"{'Would not be' if dry else 'Not'} copied, so keep the source"
        yield f"<p>{copied}: {lacking}.</p>\n"
    if earlier := report.earlier_results_text():
        yield f"<p>{EARLIER[0].upper()}{EARLIER[1:]}: {earlier}.</p>\n"
    for text in filter(None, (report.referring_text(), report.zstd_text())):
        yield html_page.note(f"{text[0].upper()}{text[1:]}.")
    if outside := +report.outside:
        files = singular(f"in {len(outside):,} files to be kept")
        refer = singular(f"{outside.total():,} revisits of originals outside, {files}")
        where = report.protected_text()
        named = names_text(sorted(outside), _SKIPPED)
        yield html_page.note(f"{refer} ({named}){where and '; '}{where}.")
    if hint := report.gain_text():
        yield html_page.note(f"{hint[0].upper()}{hint[1:]}.")
    if report.revisits_before:
        before = report.revisits_before_text()
        yield html_page.note(f"{before[0].upper()}{before[1:]}.")
    if report.file_copies:
        equal = [one.in_words() for one in report.equal_files]
        yield html_page.note(
            f"{report.copies_text()} ({names_text(equal, _SKIPPED, report.file_copies)})."
        )
    if report.skipped:
        yield html_page.note(_skipped(report))
    if commands:
        yield f"<p>{'<br>'.join(map(html_page.text, commands))}</p>\n"


def _problems(report: DedupReport) -> Iterator[str]:
    """Yield the table of files that were left alone, and of damage."""
    if report.left:
        problems = sorted(report.left[:_NAMED])
        absent = {missing.file: missing.existing_bytes for missing in report.absent}
        would = "Files that would be left alone, and damage that would be kept"
        table = replace(_PROBLEMS, title=would) if report.dry_run else _PROBLEMS
        if report.in_place:  # all files are where they were
            columns = tuple(column for column in table.columns if column.name != "there")
            table = replace(table, columns=columns)
        yield from table.html_lines(
            {
                "file": file,
                "there": _there(absent.get(file)),
                "why": why if offset < 0 else f"at {offset}: {why}",
            }
            for file, offset, why in problems
        )
    if len(report.left) > _NAMED:
        yield f"<p>and {len(report.left) - _NAMED:,} more, which --json names.</p>\n"


def _there(existing: int | None) -> str:
    """Say whether a file is in the result, from the size of what an earlier run left there."""
    if existing is None:
        return "yes"
    return "of an earlier run" if existing else "no"


def _skipped(report: DedupReport) -> str:
    """Name files that are neither WARC nor ARC."""
    copied = "" if report.in_place else ", not copied"
    names = names_text(report.skipped_files, _SKIPPED, report.skipped)
    return f"Files skipped, neither WARC nor ARC{copied}: {report.skipped:,} ({names})."


def _footer(report: DedupReport) -> str:
    what = "This run made no revisit."
    if report.dry_run:
        what = "A dry run: nothing was changed."
    elif not report.proof.sound:
        what = "Verification failed."
    elif report.revisits:
        what = "Every revisit that this run made was verified."
    return f"{what} {singular(f'{report.files:,} files of {report.records:,} records')}."
