"""Maintenance actions of ``bin/index``: --check, --stats, --compact, --merge, --copy and so on."""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

from dedupindex.cli.common import check_no_address, print_result, say
from dedupindex.cli.index_location import index_name
from dedupindex.cli.progress_bar import show_progress
from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.crawls import merge_crawls as crawls
from dedupindex.crawls.stores import open_store
from dedupindex.errors import BadInput, Damaged, DedupError, IndexExists
from dedupindex.index import home_of, open_index, stats_of, summary, tokens
from dedupindex.index.address import Address, is_cluster
from dedupindex.index.content_table import content_row, content_table
from dedupindex.index.engine import Engine, IndexCounts, Load, View
from dedupindex.index.filter_store import FilterStore
from dedupindex.index.format.cells import sealed_text, unsealed_text
from dedupindex.index.identity import FILE, read_identity
from dedupindex.index.load.merge_rule import MergeOutcome
from dedupindex.index.load.runs import SORTING
from dedupindex.indexer import disproved_reports, spot_check
from dedupindex.indexer.copy_index import Copied, copy_to_engine
from dedupindex.runtime.files import data_files, exclusive, size_on_disk
from dedupindex.runtime.progress import measured
from dedupindex.runtime.tables import amount, number, printable, singular
from dedupindex.runtime.workers import Count, read_all
from dedupindex.sources.warc_files import is_index

_HOSTS_SHOWN = 20
_MANY = 10_000  # originals; the pages and tables of a smaller index take most of its size
_COUNTED = {  # as the page Overview calls it
    "captures": "originals",
    "digests": "payload digests",
    "containers": "containers read",
    "bytes": "size on disk",
}
_PARTS = 1000  # of an index whose check is shown
UNFINISHED = ".unfinished-copy"  # in the directory of a copy until it is complete


def check(index: Path) -> int:
    """Read and verify the whole index; returns the exit status.

    Another process reads, because a damaged page may kill the reader.
    """
    try:
        with show_progress() as progress:
            shown = partial(_show_checked, progress)
            ((wrong, counts),) = read_all(read_back, [index], 1, _PARTS, shown, apart=True)
    except DedupError as error:
        if not isinstance(error.__cause__, BrokenExecutor):
            raise
        wrong, counts = ["a page is damaged: reading it killed the process"], None
    counted = dict.fromkeys(IndexCounts._fields) if counts is None else counts._asdict()
    result = singular(f"{len(wrong):,} problems") if wrong else "no problem found"
    checked = "" if counts is None else singular(f"{counts.captures:,} originals checked, ")
    lines = [*wrong, f"{index_name(index)}: {checked}{result}"]
    print_result({"ok": not wrong, "problems": wrong, **counted}, map(printable, lines))
    return Damaged.exit_status if wrong else 0


def _show_checked(progress: OnProgress, seen: ProgressUpdate) -> None:
    """Show what `read_back` has counted, in another process."""
    progress(ProgressUpdate("checking", records=seen.records, part=seen.share or None))


def read_back(
    index: Path, count: Count = lambda parts, captures: None
) -> tuple[list[str], IndexCounts | None]:
    """Return the problems of an index and its crawls, and its counts if they can be read.

    `count` gets how many of `_PARTS` of the index, and how many captures, have been read.
    """
    counts, done = None, [0, 0]

    def update(seen: ProgressUpdate) -> None:
        now = [round((seen.share or 0) * _PARTS), seen.records]
        count(now[0] - done[0], now[1] - done[1])
        done[:] = now

    with closing(open_index(index)) as engine:
        wrong = engine.check(update) + _filter_problems(engine, FilterStore(index))
        with engine.view() as view, suppress(Damaged):
            counts = view.counts()
    try:
        if (store := open_store(index)) is not None:
            with closing(store):
                wrong += store.check()
    except Damaged as error:
        wrong.append(str(error))
    try:
        tokens.read_tokens(index)
    except Damaged as error:
        wrong.append(str(error))
    return wrong, counts


def _filter_problems(engine: Engine, store: FilterStore) -> list[str]:
    wrong = store.problems()
    if not wrong and store.exists() and engine.filter_parts() is None:
        wrong = [
            "the digest filter is of another state of the index, so clients get none; "
            "bin/index --digest-filter makes it anew"
        ]
    return wrong


def stats(index: Path) -> int:
    """Print what the index holds; reads all of it once, and keeps the result for the pages."""
    with closing(open_index(index)) as engine:
        with show_progress() as progress:
            found = summary.summarize(engine, progress)
        with suppress(OSError):  # an index on a medium that cannot be written to
            summary.write_summary(index, found)  # it counts for the size on disk
        content = _stats(engine, index, found)
    print_result(content, _stats_lines(content))
    return 0


def _stats_lines(content: dict[str, Any]) -> Iterator[str]:
    """Yield what the index holds, in the words of the pages Overview and Content."""
    purged = sum(row["purged"] for row in content["crawls"])
    notes = {"bytes": "  (bytes)"}
    if purged:
        notes["containers"] = f"  (of these purged: {purged:,})"
    for name, label in _COUNTED.items():
        if content[name] is not None:
            yield f"{label:<22}{content[name]:>16,}{notes.get(name, '')}"
    if content["bytes_per_capture"] is not None and content["captures"] >= _MANY:
        yield f"{'size per original':<22}{content['bytes_per_capture']:>16,}  (bytes)"
    total = content["total"]
    counted = "originals and copies; equal records once"
    yield f"{'captures stored':<22}{total['captures']:>16,}  ({counted})"
    unsized = f"; of {total['unsized']:,} captures not known" if total["unsized"] else ""
    size = number(total["bytes"])
    yield singular(f"{'bytes of payload':<22}{size:>16}  (of captures stored{unsized})")
    yield _payload_line("stored again", "", total, "duplicates")
    yield _payload_line("revisits", "of responses that the index takes; ", total, "revisits")
    made = f"engine {content['engine']}, format {content['format']}"
    yield f"{made}, urlkeys of {content['canonicaliser']}"
    yield f"options: {content['options'] or 'all at their defaults'}"
    for row in content["crawls"]:
        counts = singular(f"{row['files']:,} files, {row['records']:,} records")
        gone = f"; purged: {row['purged']:,} of the files" if row["purged"] else ""
        yield f"crawl {printable(row['crawl']) or '(not named)'}: {counts}{gone}"
    if not content["largest_hosts"]:
        yield "hosts: 0"
        return
    table = content_table("host", "captures")
    yield f"hosts: {content['hosts']:,}"
    yield f"{table.title}:"
    largest = _by_captures(content["by"]["host"]["rows"])
    yield from table.text_lines(content_row(row, "host", "captures", total) for row in largest)


def _by_captures(hosts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the hosts with the most captures, of those that the summary has by name."""
    most = sorted(hosts, key=lambda row: (-row["captures"], row["host"] or ""))
    return most[:_HOSTS_SHOWN]


def _payload_line(label: str, what: str, total: dict[str, Any], name: str) -> str:
    """Return how many captures there are, with their payload, and of how many it is not known."""
    size, unsized = total[f"{name.removesuffix('s')}_bytes"], total[f"{name}_unsized"]
    payload = "size not known" if size is None else f"{amount(size)} of payload"
    if unsized and size is not None:
        payload += f"; of {unsized:,} the size is not known"
    return f"{label:<22}{total[name]:>16,}  ({what}{payload})"


def _stats(engine: Engine, index: Path, found: dict[str, Any]) -> dict[str, Any]:
    held = stats_of(engine)
    with engine.view() as view:
        crawls = _crawls(view)
    stored = None if is_cluster(held["engine"]) else _size(index)
    total = summary.known_bytes(found["total"])
    by = {
        name: {**groups, "rows": [summary.known_bytes(row) for row in groups["rows"]]}
        for name, groups in found["by"].items()
    }
    return {
        **held,
        "bytes": stored,
        "bytes_per_capture": stored and round(stored / max(held["captures"], 1), 1),
        "payload_bytes": total["bytes"],
        "options": engine.identity.settings.as_options(),
        "crawls": crawls,
        "hosts": found["by"]["host"]["groups"],
        "largest_hosts": [
            {"host": row["host"], "captures": row["captures"], "payload_bytes": row["bytes"]}
            for row in _by_captures(by["host"]["rows"])
        ],
        "total": total,
        "by": by,
        **{name: found[name] for name in ("made", "seconds")},
    }


def _crawls(view: View) -> list[dict[str, Any]]:
    """Return files and records by crawl; "" stands for files indexed without --crawl.

    `purged` of the files are those that the index has nothing of any more.
    """
    files, records, purged = Counter[str](), Counter[str](), Counter[str]()
    for container in view.containers():
        files[container.crawl] += 1
        records[container.crawl] += container.records
        purged[container.crawl] += container.purged
    return [
        {
            "crawl": crawl,
            "files": files[crawl],
            "records": records[crawl],
            "purged": purged[crawl],
        }
        for crawl in sorted(files)
    ]


def compact(index: Path) -> int:
    """Rewrite the index with full pages; running servers switch to the new file."""
    read_identity(index)  # raises before a lock file is made where there is no index
    with (
        exclusive(index / "lock", f"the index at {index}"),
        closing(open_index(index, write=True)) as engine,
        show_progress() as progress,
    ):
        before = _size(index)
        engine.compact(progress)
    after = _size(index)
    line = f"{printable(str(index))}: {amount(before)} before, {amount(after)} now"
    print_result({"bytes_before": before, "bytes_after": after}, [line])
    return 0


def merge(index: Path) -> int:
    """Load the captures of committed crawls into the index."""
    read_identity(index)
    outcome = MergeOutcome()
    if (store := open_store(index)) is not None:
        with closing(store), show_progress() as progress:
            outcome = crawls.merge(index, store, progress) or outcome
    reasons = {name: count for name, count in outcome.refused().items() if count}
    kept = {name: getattr(outcome, name) for name in ("added", "replaced", "unchanged")}
    counts = {**kept, "refused": sum(reasons.values())}
    text = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    if reasons:
        why = ", ".join(f"{name} {count:,}" for name, count in reasons.items())
        text = f"{text} ({why})"
    print_result({**counts, "reasons": reasons}, [f"{printable(str(index))}: {text}"])
    return 0


def digest_filter(index: Path) -> int:
    """Make the digest filter of an index; it replaces one that is there."""
    read_identity(index)
    with (
        exclusive(index / "lock", f"the index at {index}"),
        closing(open_index(index, write=True)) as engine,
        show_progress() as progress,
    ):
        engine.make_filter(progress)
    parts = FilterStore(index).manifest().parts
    digests, size = sum(part.digests for part in parts), sum(part.size for part in parts)
    line = f"{printable(str(index))}: a filter of {digests:,} digests, {amount(size)} to download"
    print_result({"digests": digests, "bytes": size}, [line])
    return 0


def copy(index: Path, to: str, engine: str) -> int:
    """Copy one consistent state, while the index is read and written.

    Files are copied to a directory; between engines captures are copied one by one.
    """
    if not is_cluster(to):
        check_no_address(Path(to))
        if is_index(to) and not is_index(index):
            line = f"bin/index --copy {shlex.quote(str(index))} {shlex.quote(to)}"
            raise BadInput(f"{index} is no index, and {to} is: the copy is named first: {line}")
    mine = read_identity(index).engine
    if is_cluster(to) or is_cluster(mine) or engine not in ("", mine):
        return _copy_to_engine(index, to, engine)
    target = Path(to)
    of = _size(index)
    with (
        _new_copy(index, target),
        show_progress() as progress,
        measured(lambda: ProgressUpdate("copying", _size(target), of), progress),
    ):
        _copy_files(index, target)
    note = f"copied {index} to {target} ({amount(_size(target))})"
    print_result({"copy": printable(str(target)), "bytes": _size(target)}, notes=[note])
    return 0


def _copy_files(index: Path, target: Path) -> None:
    """Copy one consistent state as files."""
    with closing(open_index(index)) as source, source.view() as view:
        sample = spot_check.sample_index(view)
    before = spot_check.check_source(index, sample)
    if (store := open_store(index)) is not None:
        with closing(store):  # first, so that what is merged meanwhile is in both, not in neither
            store.copy(target)
    tokens.copy(index, target)
    disproved_reports.copy_note(index, target)
    with closing(open_index(index)) as source:
        source.copy(target)
    if (copied := open_store(target)) is not None:
        with closing(copied):
            crawls.mark_as_merging(copied)
    spot_check.confirm_copy(index, target, sample, before, _copy_again(index, str(target)))


def _copy_again(index: Path, to: str, engine: str = "") -> str:
    """Return the sentence and command that repair a copy."""
    chosen = ["--engine", engine] if engine and not is_cluster(to) else []
    again = shlex.join(["bin/index", "--copy", to, *chosen, str(index_name(index))])
    if is_cluster(to):
        return f"Copy it into another keyspace: {again}"
    return f"Remove it and copy again: rm -r {shlex.quote(to)} && {again}"


@contextmanager
def _new_copy(index: Path, target: Path) -> Iterator[bool]:
    """Make a new or empty directory for a copy; what a killed copy left is removed.

    Yields False: such a copy never resumes.
    """
    if target.resolve().is_relative_to(index.resolve()):
        raise IndexExists(f"the copy cannot be inside the index; name a directory beside {index}")
    marker = target / UNFINISHED
    if target.exists() and (not target.is_dir() or (any(target.iterdir()) and not marker.exists())):
        raise IndexExists(f"{target} is not an empty directory; name a new one")
    target.mkdir(parents=True, exist_ok=True)
    with exclusive(marker, f"the copy at {target}"):
        for path in target.iterdir():
            if path.is_dir():
                rmtree(path)
            elif path != marker:
                path.unlink()
        yield False
        marker.unlink()


def _copy_to_engine(index: Path, to: str, engine: str) -> int:
    """Copy to an index on another engine, and print the counts and the hash of both."""
    if is_cluster(to):
        target, engine = home_of(to), str(Address.parse(to))
        new = new_on_cluster(target, engine)
    else:
        target, engine = Path(to), engine or "lmdb"
        new = _new_copy(index, target)
    with new as again:
        repair = _copy_again(index, to, engine)
        copied, taken = _copied_to_engine(index, target, engine, repair, again=again)
    name, counts = printable(engine if is_cluster(to) else str(target)), copied.counts
    lines = [
        singular(f"{counts.captures:,} captures of {counts.digests:,} digests in ")
        + f"{counts.containers:,} containers copied and read back",
        f"content hash of both: {copied.content}",
    ]
    if taken:
        lines.append(f"then {taken:,} captures of committed crawls were added")
    content = {"copy": name, **counts._asdict(), "content": copied.content, "of_crawls": taken}
    print_result(content, lines)
    return 0


@contextmanager
def new_on_cluster(home: Path, engine: str) -> Iterator[bool]:
    """Yield whether an earlier copy to this cluster is unfinished; raises `IndexExists`.

    What a killed copy was sorting in the local directory is removed.
    """
    marker = home / UNFINISHED
    resumed = marker.exists()
    if not resumed and (home / FILE).exists() and read_identity(home).generation:
        raise IndexExists(f"there is an index at {engine}; name another keyspace")
    with exclusive(marker, f"the copy at {engine}"):
        for path in home.glob(f"{SORTING}*"):
            rmtree(path)
        yield resumed
        marker.unlink()


def _copied_to_engine(
    index: Path, target: Path, engine: str, repair: str, *, again: bool
) -> tuple[Copied, int]:
    """Copy entries and committed crawls; returns the counts of both."""
    sample: list[spot_check.SampledEntry] = []
    writable = os.access(index, os.W_OK)  # otherwise nothing can be merged into it
    # No crawl may be merged meanwhile: its captures could be missed in both places.
    with exclusive(index / "lock", f"the index at {index}") if writable else nullcontext():
        with closing(open_index(index)) as source:
            if is_cluster(engine) and source.identity.settings.etag:
                say("what URLs answered last, for GET /last, is not copied")
            if gap := source.ledger_gap():
                say(f"warning: the copy is no better: {gap}")
            keys = source.identity.settings.keys()

            def draw(load: Load) -> None:
                sample.extend(spot_check.sample_load(load, keys))

            copied = compared_before(target) if again else None
            if copied is None:
                with show_progress() as progress:
                    copied = copy_to_engine(source, target, engine, draw, progress, again=again)
        spot_check.confirm(target, sample, repair)
        note_compared(target, copied)
        taken = _crawls_too(index, target, repair)
    tokens.copy(index, target)
    disproved_reports.copy_note(index, target)
    return copied, taken


def note_compared(target: Path, copied: Copied) -> None:
    """Record in the marker of an unfinished copy that only crawls are missing."""
    (target / UNFINISHED).write_text(sealed_text(b"", json.dumps(copied)))


def compared_before(target: Path) -> Copied | None:
    """Return what a killed copy had completed, None if the copy must be compared again."""
    with suppress(ValueError, Damaged):
        counts, content = json.loads(unsealed_text(b"", (target / UNFINISHED).read_text()))
        return Copied(IndexCounts(*counts), content)
    return None


def _crawls_too(index: Path, target: Path, repair: str) -> int:
    """Load committed crawls into a copy; returns the number of captures added."""
    if (store := open_store(index)) is None:
        return 0
    with closing(store):
        with store.reading() as reading:
            if any(not crawl.swept and not crawl.merged for crawl in reading.crawls()):
                say("crawls are not copied, but the captures of committed crawls are")
        outcome = crawls.merge_into_copy(store, target, repair)
    return 0 if outcome is None else outcome.added


def _size(index: Path) -> int:
    return sum(size_on_disk(status) for _, status in data_files(index))
