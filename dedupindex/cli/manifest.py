"""``bin/manifest``: list every response of WARC and ARC files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO

import click

from dedupindex.cli.common import (
    RESUMED,
    UNSOUND,
    Command,
    count_lines,
    print_result,
    say,
    status_7,
    text_output,
    warn,
)
from dedupindex.cli.options import PATH, PATH_OR_DASH, flag, option, shared_options, wants_json
from dedupindex.cli.output_files import TEXT_LINES, check_output
from dedupindex.cli.progress_bar import show_progress
from dedupindex.cli.sent_requests import SentRequests, sent_requests
from dedupindex.digest import SIZES
from dedupindex.errors import BadInput
from dedupindex.object_store import counted_requests
from dedupindex.post_crawl.manifest.make_manifest import ManifestReport, make
from dedupindex.post_crawl.manifest.parquet import DAMAGED, Manifest, open_manifest
from dedupindex.post_crawl.manifest.record_lines import ManifestOptions
from dedupindex.post_crawl.plan.warcsum_format import VERDICTS, TextCheck, text_line
from dedupindex.runtime.tables import amount, printable, singular
from dedupindex.sources.warc_files import find, nothing_found
from dedupindex.warc.record import REMARKS

EXAMPLES = """
bin/manifest ~/warcs -o warcs.manifest             # later runs read new and changed files
bin/manifest ~/warcs -o warcs.manifest --json | jq .records
bin/manifest ~/warcs -o a.manifest --host a        # on each machine, for one plan of all
bin/manifest ~/warcs -o warcs.manifest --text -    # as warcsum writes it, to stdout
bin/manifest ~/warcs -o warcs.manifest --check warcsum.txt
"""
_ALGORITHMS = tuple(name for name in SIZES if name != "blake3")
_SHOWN = 1000  # differences that are named


@click.command(cls=Command, examples=EXAMPLES, interrupted=RESUMED)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@option(
    "-o", "--output", required=True, type=PATH, metavar="MANIFEST",
    help="Directory to make or update.",
)  # fmt: skip
@option(
    "-H", "--hash", "algorithm", type=click.Choice(_ALGORITHMS), default="sha1",
    help="Digest to compute of every payload.",
)  # fmt: skip
@flag("-f", "--force", help="Digest the stored body even if the record's digest covers the entity.")
@flag("-s", "--skip-empty", help="Leave out responses with an empty body.")
@option(
    "--host", default="", metavar="NAME",
    help="The machine that has SOURCEs, for plans of several machines whose files have one path.",
)  # fmt: skip
@option(
    "--text", type=PATH_OR_DASH, metavar="FILE",
    help="Also write them as warcsum does; - is stdout.",
)  # fmt: skip
@option(
    "--check", type=PATH_OR_DASH, metavar="FILE",
    help="Compare lines of warcsum or warccollres with the files; - is stdin.",
)  # fmt: skip
@shared_options("--jobs", help="Processes that read files.")
@shared_options("--zstd-dictionary")
@shared_options("--spark", "--verbose", "--json")
def command(
    sources: tuple[str, ...],
    output: Path,
    algorithm: str,
    force: bool,
    skip_empty: bool,
    host: str,
    text: Path | None,
    check: Path | None,
    jobs: int,
    spark: str,
    verbose: bool,
) -> int:
    """List every response of SOURCEs in the directory MANIFEST.

    A SOURCE is a WARC or ARC file, a directory of them, or a glob, here or at an address such as
    s3://… (docs/batch.md). A later run reads new and changed files and removes the lines of files
    that are gone; an interrupted run is resumed. The sources are not changed.
    """
    if wants_json() and text == Path("-"):
        raise click.UsageError("--json and --text - both write to stdout")
    if text not in (None, Path("-")):
        check_output(text, TEXT_LINES, [check] if check else [])
    lines = ManifestOptions(algorithm, force, skip_empty, host)
    with counted_requests() as requests:
        found = find(sources)
        if not found.files and not found.others:  # a wrong path, or a disk that is not mounted
            raise nothing_found(sources)
        with show_progress(verbose=verbose) as progress:
            made = make(found, output, lines, jobs=jobs, spark=spark, on_progress=progress)
        sent = sent_requests(requests)
    if text is not None:
        with text_output(text) as stream:
            _write_text(open_manifest(output), stream)
    checked = _checked(open_manifest(output), check) if check is not None else None
    status = _print_report(made, output, checked, sent, quiet=text == Path("-"))
    return status or (UNSOUND if checked and not checked.fine else 0)


def _write_text(manifest: Manifest, stream: IO[bytes]) -> None:
    containers = sorted(manifest.containers().values(), key=lambda container: container.path)
    for container in containers:
        for line in manifest.lines(container.number):
            stream.write(text_line(container, line, manifest.algorithm))


def _checked(manifest: Manifest, lines: Path) -> TextCheck:
    """Print the lines that differ from the files, and count all by verdict."""
    checking = TextCheck(manifest)
    try:
        opened = click.open_file(str(lines), "rb")
    except OSError as error:
        raise BadInput(f"--check {lines}: {error.strerror}") from error
    with opened as stream:
        for count, (verdict, file, offset) in enumerate(checking.run(stream)):
            if count < _SHOWN:
                say(f"{lines} differs: {file} at {offset}: {VERDICTS[verdict]}")
            elif count == _SHOWN:
                say("more differences are not listed")
    return checking


def _print_report(
    made: ManifestReport, output: Path, checked: TextCheck | None, sent: SentRequests, *,
    quiet: bool,
) -> int:  # fmt: skip
    """Print what a run did; returns the exit status."""
    warn(made.problems)
    checks = {} if checked is None else {"checked": dict(checked.counted)}
    lines = () if quiet else chain(_text_of(made, output, checked), sent.lines())
    print_result({**made.as_json(), **checks, **sent.as_json()}, lines)
    if made.problems:
        return status_7(
            "damaged files and files being written are named above; all others are listed"
        )
    return 0


def _text_of(made: ManifestReport, output: Path, checked: TextCheck | None) -> Iterator[str]:
    yield (
        f"files read: {made.files:,}, known before: {made.known:,}, changed or gone: "
        f"{made.gone:,}; {made.seconds:.1f} s"
    )
    yield f"{printable(str(output))}: " + singular(
        f"{made.lines:,} lines of {amount(made.bytes)} of files"
    )
    places = {DAMAGED: "places in which no record could be read"}
    yield from count_lines("", made.records, places)
    yield from count_lines("remark: ", made.remarks, REMARKS)
    if made.skipped:
        yield f"  files skipped, neither WARC nor ARC: {made.skipped:,}"
    if checked is not None:
        yield from count_lines("checked: ", checked.counted)
