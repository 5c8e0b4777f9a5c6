"""``bin/corpus``: extract a corpus from an archive, selected by metadata first."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack, chdir
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import click

from dedupindex.cli.common import Command, print_result, say, warn, warn_of_lines
from dedupindex.cli.index_location import any_index
from dedupindex.cli.options import (
    FILE,
    flag,
    option,
    parse_size,
    require_parent,
    shared_options,
    wants_json,
)
from dedupindex.cli.progress_bar import show_progress
from dedupindex.corpus import corpus_page
from dedupindex.corpus.archive import Corpus
from dedupindex.corpus.extract import nested, spark_extractor
from dedupindex.corpus.extract_report import CorpusReport
from dedupindex.corpus.lineage import changed_sources, read_lineage
from dedupindex.corpus.output import WARC
from dedupindex.corpus.select import KEYS, REVISITS
from dedupindex.corpus.url_join import JOINED_BY
from dedupindex.corpus.values import Groups, Values
from dedupindex.errors import BadInput, Damaged
from dedupindex.runtime import html_page
from dedupindex.runtime.spark import spark_session
from dedupindex.runtime.tables import amount, printable, singular

EXAMPLES = """
bin/corpus my.cdx --where "hostname == 'example.com' and status == 200" -o example.jsonl.gz
bin/corpus my-warcs --where "mime == 'text/html'" --latest url --enrich html.title -o p.parquet
bin/corpus my.cdxj --containers /data/warcs --revisits once -o once.warc.gz     # and once.cdxj
bin/corpus 'http://HOST/cdx?url=http://example.com/' --containers http://HOST/warcs/ --enrich text
bin/corpus my-index --matching payload.string.text '(?i)flood' --enrich text | head
bin/corpus my-warcs --select images 'img::url(src)' --values payload.string.html.images
bin/corpus my.cdx --group hostname --group year --sum length     # counts, without reading a record
bin/corpus 'http://HOST/all/cdx?url=example.com/*' --replay http://HOST/all/ --enrich text
bin/corpus my-warcs --map payload.string.text words my_module:count -o words.jsonl
"""
_DECISIVE = frozenset(
    ("containers", "columns", "where", "urls", "urls_by", "matching", "latest", "first", "embeds",
     "enrich", "maps", "select", "select_first", "drop_failed", "distinct", "values", "group",
     "sum", "publisher", "max_record", "on_error", "replay", "rate", "revisits", "originals",
     "lineage")
)  # fmt: skip
_FROM_FILES = {
    f"--{name.replace('_', '-')}" for name in _DECISIVE - {"maps"}
}  # --map would run code
_HINT = "write module:function, of a module on PYTHONPATH"


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("sources", metavar="SOURCE...", nargs=-1)
@shared_options("--containers", "--columns", "--where")
@option(
    "--urls", type=FILE, metavar="FILE",
    help="Only captures of the URLs in FILE, one a line, plain or gzipped, of any length.",
)  # fmt: skip
@option(
    "--urls-by", type=click.Choice(JOINED_BY), default="url",
    help="Compare these URLs as they are written, or in their canonical form.",
)  # fmt: skip
@option(
    "--matching", multiple=True, nargs=2, metavar="PATH REGEX",
    help="Only captures whose value at PATH matches REGEX.",
)  # fmt: skip
@option(
    "--latest", type=click.Choice(list(KEYS)),
    help="Only the latest selected capture of each URL, canonical URL or payload.",
)  # fmt: skip
@option(
    "--first",
    type=click.Choice(list(KEYS)),
    help="Only the first selected capture of each.",
)
@flag(
    "--embeds",
    help="Instead of the selected pages, what they embed, as images and styles: of each URL the "
    "capture that is nearest in time. --enrich and --map are of these.",
)
@option(
    "--enrich", multiple=True, metavar="NAMES",
    help="What to derive, separated by commas: response, string, text, html.title, language, …",
)  # fmt: skip
@option(
    "--map", "maps", multiple=True, nargs=3, metavar="PATH NAME FUNCTION",
    help="Add the result of module:function for the value at PATH, as NAME below it.",
)  # fmt: skip
@option(
    "--select", multiple=True, nargs=2, metavar="NAME SELECTOR",
    help="Add the texts of the elements of pages that a selector of CSS finds, as NAME; with "
    "a::attr(title) an attribute of each, with img::url(src) an absolute URL.",
)  # fmt: skip
@option(
    "--select-first", multiple=True, nargs=2, metavar="NAME SELECTOR",
    help="The same of the first element only.",
)  # fmt: skip
@flag("--drop-failed", help="Leave out, and count, captures of which something failed.")
@option("--distinct", metavar="PATH", help="Only the first capture of each value at PATH.")
@option(
    "--values", metavar="PATH",
    help="Write only the values at PATH, one a line, the items of a list one by one.",
)  # fmt: skip
@option(
    "--group", multiple=True, metavar="NAME",
    help="Write the number of captures by hostname, mime, year or another name of the metadata, "
    "or by the value at a PATH.",
)  # fmt: skip
@option(
    "--sum", multiple=True, metavar="NAME",
    help="With --group: also the sum of length, or of the whole numbers at a PATH.",
)  # fmt: skip
@option(
    "--revisits", type=click.Choice(REVISITS), default="resolve",
    help="Read revisits as their originals, leave them out, or take each payload once.",
)  # fmt: skip
@option("--originals", type=any_index, metavar="INDEX", help="Where to look up other originals.")
@option(
    "--replay", metavar="ADDRESS",
    help="Request payloads from a Wayback Machine in place of WARC files: https://HOST/web/",
)  # fmt: skip
@option(
    "--rate", type=float, default=2.0, metavar="NUMBER",
    help="Requests to --replay in a second.",
)  # fmt: skip
@option(
    "--answers", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Keep answers of --replay in DIR, so that the next run does not ask again.",
)  # fmt: skip
@option(
    "--max-record", default="64MiB", callback=parse_size, metavar="SIZE",
    help="The largest record, as stored or inflated; a larger one is an error of its capture.",
)  # fmt: skip
@option(
    "--on-error", type=click.Choice(["report", "stop"]), default="report",
    help="Report errors and go on, or end with the first and write nothing.",
)  # fmt: skip
@option(
    "-o", "--out", type=FILE, metavar="FILE",
    help="Output file; its ending selects the format: .jsonl, .parquet, .cdxj, .cdx or .warc.gz, "
    "with .gz or .zst compressed. Default: stdout.",
)  # fmt: skip
@option(
    "--publisher", default="", metavar="TEXT", help="Who makes a WARC, for its warcinfo record."
)
@flag("--lineage", help="Begin lines of JSON with a line that says how they were made.")
@option(
    "--again", type=FILE, metavar="FILE", setting=False,
    help="Make the corpus in FILE once more, as it says that it was made; only with -o.",
)  # fmt: skip
@shared_options(
    "--jobs",
    help="Processes that read records; with 1, a page that crashes the reader ends the run.",
)
@shared_options("--memory", help="Memory for DuckDB; the rest goes to disk.")
@shared_options("--html", "--zstd-dictionary")
@shared_options("--spark", "--verbose")
@shared_options("--json", help="Print the report as one JSON object.")
def command(sources: tuple[str, ...], **options: Any) -> int:
    """Extract a corpus from SOURCE: CDX, CDXJ, Parquet, WARC, ARC, WACZ, an index, a CDX server.

    Captures are selected by their metadata; then only the selected records are read, by byte
    range. A derived value is nested below the value it was derived from. A failure is reported for
    its capture and stops nothing, and CDX lines that are not captures are counted; the exit status
    is then 7.
    """
    if options["again"] is not None:
        return _make_again(options["again"], options["out"], options["html"], *sources)
    if not sources:
        raise click.UsageError("name a SOURCE")
    if wants_json() and options["out"] is None:
        raise click.UsageError("--json needs -o")
    if options["out"] is not None:
        require_parent(options["out"])
    corpus = _corpus(sources, options)
    shown = show_progress(verbose=options["verbose"], prints=options["out"] is None)
    with shown as progress, ExitStack() as session:
        if options["spark"]:
            cluster = session.enter_context(spark_session(options["spark"]))
            corpus = corpus.having(run=spark_extractor(cluster), jobs=cluster.cores)
        corpus = corpus.having(on_progress=progress)
        if rows := _rows(corpus, options):
            report = _save_rows(rows, options["out"])
        else:
            report = _save(corpus, options["out"])
    if rows:
        failed = "; they are left out"
    else:
        failed = "; each has an error in its place" if _has_errors(options["out"]) else ""
    status = _print_report(report, options["out"], failed)
    if options["html"] is not None:  # last: the result is printed even if it cannot be written
        html_page.save(options["html"], corpus_page.lines(report, sources, options["out"]))
    return status


def _corpus(sources: tuple[str, ...], options: dict[str, Any]) -> Corpus:
    if "-" in sources:
        raise BadInput(
            "a corpus cannot be read from stdin, because sources are read twice: name a file"
        )
    corpus = Corpus.of(
        *sources, containers=options["containers"], columns=options["columns"]
    ).having(
        revisits=options["revisits"],
        originals=options["originals"],
        jobs=options["jobs"],
        memory=options["memory"],
        arguments=_arguments(),
        say_how=options["lineage"],
        max_record=options["max_record"],
        publisher=options["publisher"],
        stop=options["on_error"] == "stop",
        replay=options["replay"] or "",
        rate=options["rate"],
        answers=options["answers"],
    )
    for condition in options["where"]:
        corpus = corpus.where(condition)
    if options["urls"]:
        corpus = corpus.urls(options["urls"], options["urls_by"])
    for path, pattern in options["matching"]:
        corpus = corpus.filter(path, partial(_found, _compiled(pattern)))
    if options["latest"]:
        corpus = corpus.latest(options["latest"])
    if options["first"]:
        corpus = corpus.first(options["first"])
    if options["embeds"]:
        corpus = corpus.embeds()
    for names in options["enrich"]:
        corpus = corpus.enrich(*filter(None, map(str.strip, names.split(","))))
    for path, name, function in options["maps"]:
        corpus = corpus.map(path, name, _function(function))
    for name, selector in options["select"]:
        corpus = corpus.select(name, selector)
    for name, selector in options["select_first"]:
        corpus = corpus.select(name, selector, first=True)
    if options["drop_failed"]:
        corpus = corpus.drop_failed()
    if options["distinct"]:
        corpus = corpus.distinct(options["distinct"])
    return corpus


def _rows(corpus: Corpus, options: dict[str, Any]) -> Values | Groups | None:
    """Return what is written instead of captures, if anything."""
    values, group, sums = options["values"], options["group"], options["sum"]
    if values and group:
        raise click.UsageError("--values and --group are two kinds of output: name one")
    if sums and not group:
        raise click.UsageError("--sum needs --group")
    if group:
        return corpus.group(*group, sums=sums)
    return corpus.flat_map(values) if values else None


def _save_rows(rows: Values | Groups, out: Path | None) -> CorpusReport:
    if out is None:
        report = CorpusReport()
        for line in rows.lines(report):
            sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()
        return report
    if not _is_json(out):
        raise BadInput(f"{out}: --values and --group are written to .jsonl, .jsonl.gz, .jsonl.zst")
    return rows.save_as_json(out)


def _is_json(out: Path) -> bool:
    name = out.name.removesuffix(".gz").removesuffix(".zst")
    return name.endswith((".jsonl", ".json", ".ndjson"))


def _arguments() -> tuple[str, ...]:
    """Return the words of this command that decide what is in the corpus."""
    context = click.get_current_context()
    words: list[str] = []
    for param in context.command.params:
        value = context.params.get(param.name or "")
        if not isinstance(param, click.Option) or param.name not in _DECISIVE or not value:
            continue
        name = max(param.opts, key=len)
        if param.is_flag:
            words.append(name)
        elif isinstance(value, dict):  # of --columns
            words += [name, ",".join(f"{key}={column}" for key, column in value.items())]
        else:
            for one in value if param.multiple else [value]:
                words += [name, *(map(str, one) if param.nargs > 1 else [str(one)])]
    return (*words, "--", *context.params["sources"])


def _make_again(made_file: Path, out: Path | None, html: Path | None, *sources: str) -> int:
    """Make the corpus of a file once more, in the directory where it was made."""
    if out is None or sources:
        raise click.UsageError("--again takes -o and no SOURCE")
    made = read_lineage(made_file)
    if not made["arguments"]:
        raise BadInput(f"{made_file} was made by a program, in the steps {made['steps']}")
    _check_words(made["arguments"], made_file)
    for change in changed_sources(made):
        say(f"warning: {change}")
    page = ["--html", str(html.absolute())] if html is not None else []
    words = ["--out", str(out.absolute()), *page, *made["arguments"]]
    try:
        with chdir(made["directory"]):
            return int(command.main(words, "corpus", standalone_mode=False) or 0)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise BadInput(f"{error.filename}: {error.strerror}; {made_file} was made there") from error


def _check_words(words: list[str], made_file: Path) -> None:
    """Raise `BadInput` for options that must not come from a file, which may be a stranger's."""
    end = words.index("--") if "--" in words else len(words)
    options = (word for word in words[:end] if word.startswith("-"))
    if others := sorted({option.partition("=")[0] for option in options} - _FROM_FILES):
        typed = printable(shlex.join(["bin/corpus", *words]))
        raise BadInput(
            f"{made_file} was made with {', '.join(others)}, which is not taken from a file: type "
            f"the command yourself, if you trust it: {typed}"
        )


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise BadInput(f"--matching: {pattern!r} is not a regular expression: {error}") from error


def _found(pattern: re.Pattern[str], value: object) -> bool:
    return pattern.search(value if isinstance(value, str) else str(value)) is not None


def _function(text: str) -> Callable[[Any], Any]:
    """Import ``module:function``; raises `BadInput`."""
    module, _, name = text.partition(":")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # anything, from a module of the user
        reason = f"{type(error).__name__}: {error}"
        raise BadInput(f"--map: {text!r} cannot be loaded: {reason}; {_HINT}") from error
    if not callable(found):
        raise BadInput(f"--map: {text!r} is not a function")
    return cast("Callable[[Any], Any]", found)


def _save(corpus: Corpus, out: Path | None) -> CorpusReport:
    if out is None:
        report = CorpusReport()
        for kept in corpus.kept(report, nested):
            sys.stdout.buffer.write(kept.rendered + b"\n")
        sys.stdout.buffer.flush()
        return report
    name = out.name.removesuffix(".gz").removesuffix(".zst")
    if _is_json(out):
        return corpus.save_as_json(out)
    if out.name.endswith(".parquet"):
        return corpus.save_as_parquet(out)
    if name.endswith((".cdx", ".cdxj")) or out.name.endswith(WARC):
        if corpus.paths:
            raise BadInput(f"{out} cannot hold what --enrich and --map derive: leave them out, "
                           "or write .jsonl or .parquet")  # fmt: skip
        if name.endswith(".cdx"):
            return corpus.save_as_cdx(out)
        return corpus.save_as_cdxj(out) if name.endswith(".cdxj") else corpus.save_as_warc(out)
    raise BadInput(f"{out}: its ending says what to write: .jsonl, .parquet, .cdxj, .cdx, {WARC}; "
                   ".jsonl.gz, .jsonl.zst")  # fmt: skip


def _has_errors(out: Path | None) -> bool:
    return out is None or _is_json(out) or out.name.endswith(".parquet")


def _print_report(report: CorpusReport, out: Path | None, failed: str) -> int:
    """Print the report; `failed` says where captures are that have failed."""
    warn(report.problems)
    if out is not None:
        sums = singular(
            f"{report.chosen:,} captures matched the filter; {report.records:,} records "
            f"read, {amount(report.bytes_read)}; {report.entries:,} captures written, "
            f"{amount(report.bytes)} in "
        )
        print_result(report.as_json(), [sums + printable(str(out))])
    if not report.chosen:
        say("no capture matched the filter")
    warn_of_lines(report.refused)
    if report.dropped:
        say(f"{report.dropped:,} captures of which something failed are left out")
    for name, count in sorted(report.errors.items()):
        say(singular(f"{name} failed for {count:,} captures") + failed)
    return 0 if report.whole else Damaged.exit_status
