"""``bin/manifest``: a line for every response of WARC and ARC files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from dedupindex.cli.common import UNSOUND, Command, print_json, say, warn
from dedupindex.cli.options import jobs_option, json_option, spark_option, verbose_option
from dedupindex.cli.progress_bar import show_progress
from dedupindex.digest import SIZES
from dedupindex.errors import BadInput, Damaged
from dedupindex.post_crawl.manifest.make_manifest import ManifestReport, make
from dedupindex.post_crawl.manifest.parquet import Manifest, open_manifest
from dedupindex.post_crawl.manifest.record_lines import ManifestOptions
from dedupindex.post_crawl.manifest.warcsum_format import text_line
from dedupindex.post_crawl.plan.warccollres_format import VERDICTS, Checking
from dedupindex.runtime.files import atomic_file
from dedupindex.runtime.tables import amount, printable, singular
from dedupindex.sources.warc_files import NOTHING, find
from dedupindex.warc.record import REMARKS

if TYPE_CHECKING:
    from dedupindex.post_crawl.plan.warccollres_format import Checking

EXAMPLES = """
bin/manifest ~/warcs -o warcs.manifest             list them; run again, what is new or has changed
bin/manifest ~/warcs -o warcs.manifest --json | jq .records
bin/manifest ~/warcs -o warcs.manifest --text -    as warcsum writes it, to stdout
bin/manifest ~/warcs -o warcs.manifest --check warcsum.txt
"""
_ALGORITHMS = tuple(name for name in SIZES if name != "blake3")
_SHOWN = 1000  # differences that are named


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="MANIFEST",
    help="Directory to make, or to go on with.",
)  # fmt: skip
@click.option(
    "-H", "--hash", "algorithm", type=click.Choice(_ALGORITHMS), default="sha1", show_default=True,
    help="Digest to take of every payload.",
)  # fmt: skip
@click.option(
    "-f", "--force", is_flag=True,
    help="Take it of the body as stored, even where the record's own digest is of the entity.",
)  # fmt: skip
@click.option("-s", "--skip-empty", is_flag=True, help="Leave responses with an empty body out.")
@click.option(
    "--text", type=click.Path(path_type=Path, allow_dash=True), metavar="FILE",
    help="Write the lines as warcsum does, too; - is stdout.",
)  # fmt: skip
@click.option(
    "--check", type=click.Path(path_type=Path, allow_dash=True), metavar="FILE",
    help="Say whether what lines of warcsum or warccollres name is there; - is stdin.",
)  # fmt: skip
@jobs_option("Processes that read files side by side.")
@spark_option
@verbose_option
@json_option
def command(
    sources: tuple[str, ...],
    output: Path,
    algorithm: str,
    force: bool,
    skip_empty: bool,
    text: Path | None,
    check: Path | None,
    jobs: int,
    spark: str,
    verbose: bool,
    as_json: bool,
) -> int:
    """List every response of SOURCEs in the directory MANIFEST.

    A SOURCE is a WARC or ARC file, a directory of them, or a glob, here or at an address such as
    s3://… (docs/batch.md). Run again, it reads what is new or has changed, and takes out what is
    gone; a run that was killed goes on where it was. Nothing is written to the sources.
    """
    if as_json and text == Path("-"):
        raise click.UsageError("--json and --text - both write to stdout")
    options = ManifestOptions(algorithm, force, skip_empty)
    found = find(sources, elsewhere=True)
    if not found.files and not found.others:  # a wrong path, or a disk that is not mounted
        raise BadInput(NOTHING)
    with show_progress(verbose=verbose) as progress:
        made = make(
            found, output, options,
            jobs=jobs, spark=spark, on_progress=progress,
        )  # fmt: skip
    if text is not None:
        manifest = open_manifest(output)
        if text == Path("-"):
            _write_text(manifest, sys.stdout.buffer)
        else:
            with atomic_file(text) as stream:
                _write_text(manifest, stream)
    checked = _checked(open_manifest(output), check) if check is not None else None
    status = _tell(made, output, checked, as_json=as_json, quiet=text == Path("-"))
    return status or (UNSOUND if checked and not checked.fine else 0)


def _write_text(manifest: Manifest, stream: IO[bytes]) -> None:
    containers = sorted(manifest.containers().values(), key=lambda container: container.path)
    for container in containers:
        for line in manifest.lines(container.number):
            stream.write(text_line(container, line, manifest.algorithm))


def _checked(manifest: Manifest, lines: Path) -> Checking:
    """Name what lines of text say that is not so, and count what came of all."""
    checking = Checking(manifest)
    try:
        opened = click.open_file(str(lines), "rb")
    except OSError as error:
        raise BadInput(f"--check {lines}: {error.strerror}") from error
    with opened as stream:
        for count, (verdict, file, offset) in enumerate(checking.run(stream)):
            if count < _SHOWN:
                say(f"not as {lines} has it: {file} at {offset}: {VERDICTS[verdict]}")
            elif count == _SHOWN:
                say("and more of them")
    return checking


def _tell(
    made: ManifestReport, output: Path, checked: Checking | None, *, as_json: bool, quiet: bool
) -> int:
    """Print what a run did; returns the exit status."""
    warn(made.problems)
    if as_json:
        said = {} if checked is None else {"checked": dict(checked.counted)}
        print_json({**made.as_json(), **said})
    elif not quiet:
        click.echo(
            f"files read: {made.files:,}, known before: {made.known:,}, changed or gone: "
            f"{made.gone:,}; {made.seconds:.1f} s"
        )
        click.echo(
            f"{printable(str(output))}: "
            + singular(f"{made.lines:,} lines of {amount(made.bytes)} of files")
        )
        for kind, count in sorted(made.records.items()):
            click.echo(f"  {kind:<28}{count:>12,}")
        for remark, count in sorted(made.remarks.items()):
            click.echo(f"  remark: {remark:<20}{count:>12,}  read; {REMARKS[remark]}")
        if made.skipped:
            click.echo(f"  files passed over, neither WARC nor ARC: {made.skipped:,}")
        for verdict, count in sorted(checked.counted.items()) if checked is not None else ():
            click.echo(f"  checked: {verdict:<19}{count:>12,}")
    if not made.problems:
        return 0
    say(
        "status 7: what is damaged or was being written is named above; all else is in the manifest"
    )
    return Damaged.exit_status
