"""``bin/export``: an index as CDX, wget's or Browsertrix'; a self-contained part of archives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from dedupindex.cli.common import (
    UNSOUND,
    Command,
    count_lines,
    print_result,
    say,
    text_output,
    warn,
)
from dedupindex.cli.index_location import any_index
from dedupindex.cli.options import (
    COUNT,
    cores,
    flag,
    option,
    path_or_address,
    require_parent,
    shared_options,
    wants_json,
)
from dedupindex.cli.output_files import CDX, CDXJ, WGET_CDX, check_output
from dedupindex.cli.progress_bar import captures_of, show_progress
from dedupindex.cli.sent_requests import sent_requests
from dedupindex.counts import OnProgress
from dedupindex.errors import BadInput, Damaged
from dedupindex.export import cdx_file, warcprox_dedup, wget_cdx
from dedupindex.export.browsertrix_redis import (
    ENCODINGS,
    BrowsertrixExport,
    ExportChoice,
    originals,
    writing,
)
from dedupindex.export.cdx_file import NO_PLACE, CdxExport, CdxForm
from dedupindex.export.warcprox_dedup import WarcproxExport
from dedupindex.index import open_index
from dedupindex.index.engine import View
from dedupindex.index.identity import check_outside_index
from dedupindex.object_store import (
    CountedRequests,
    check_conditions,
    check_creatable,
    counted_requests,
    create_object,
)
from dedupindex.post_crawl.self_contained import SubsetFilter, SubsetReport, is_single
from dedupindex.post_crawl.self_contained import export as export_subset
from dedupindex.runtime.files import atomic_path
from dedupindex.runtime.tables import amount, printable, singular
from dedupindex.timestamps import first_digits, last_digits
from dedupindex.urlkey import host_name
from dedupindex.verify.issues import DAMAGE, REASONS, REMARK, Finding

_Command = Callable[..., int]
_LEFT_OUT = {
    "spelled-otherwise": "their records state the digest in another form; --bridge includes them",
    "chunked": "their digests cover the chunks of the transfer coding",
    "not-sha1": "wget knows SHA-1 only",
    "no-record-id": "no revisit could name them",
    "url-with-spaces": "a line cannot hold them",
}
EXAMPLES = """
bin/export --cdx my-index --out my-index.cdx
curl --data-binary @my-index.cdx http://outbackcdx.example:8080/my-collection
bin/export --cdxj my-index --out collections/mine/indexes/my-index.cdxj
bin/export --wget my-index --seeds seeds.txt --out dedup.cdx
wget --warc-file=harvest --warc-dedup=dedup.cdx --input-file=seeds.txt
bin/export --warcprox my-index --out warcprox.sqlite
warcprox --dedup-db-file warcprox.sqlite
bin/export --redis redis://127.0.0.1:6379/0 my-index
bin/export --redis redis://127.0.0.1:6379/0 --cancel my-index
bin/export --self-contained my-warcs --url http://example.org/docs/ -o docs.warc.gz
bin/export --self-contained new-crawl --originals my-warcs --from 2026-11 -o november
"""

_SUBSET_OPTIONS = ("urls", "host", "begin", "end", "originals", "jobs")


def _subset(*names: str, help: str, **details: Any) -> Callable[[_Command], _Command]:
    return option(*names, setting=False, help=f"--self-contained: {help}", **details)


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("sources", nargs=-1, metavar="[INDEX | SOURCE...]")
@flag("--cdx", setting=False, help="Write a sorted CDX of 11 columns.")
@flag("--cdxj", setting=False, help="Write a sorted CDXJ.")
@flag("--wget", setting=False, help="Write the CDX that wget --warc-dedup reads.")
@flag("--warcprox", setting=False, help="Write a database for warcprox --dedup-db-file.")
@option(
    "--redis", metavar="URL",
    help="Write the keys of Browsertrix to a Redis: redis://[USER:PASSWORD@]HOST:PORT/DATABASE.",
)  # fmt: skip
@flag("--self-contained", setting=False, help="Copy records, with the originals of their revisits.")
@option(
    "-o", "--out", type=path_or_address, setting=False, metavar="PATH",
    help="Where to write. --cdx, --cdxj, --wget: a file, which replaces only an earlier export "
    "of the same form; default: standard output. --warcprox: a new file. --self-contained: a new "
    "NAME.warc.gz, or a directory, where files keep their names; or s3://….",
)  # fmt: skip
@_subset(
    "--url",
    "urls",
    multiple=True,
    metavar="PREFIX",
    help="records whose URL begins so; repeatable.",
)
@_subset("--host", multiple=True, metavar="NAME", help="records of this host and its subdomains.")
@_subset("--from", "begin", metavar="DATE", help="records from this year, day or second on.")
@_subset("--to", "end", metavar="DATE", help="records up to this year, day or second.")
@_subset("--originals", multiple=True, metavar="SOURCE", help="further places of originals.")
@_subset(
    "--jobs", type=COUNT, default=0, show_default="number of cores",
    help="processes that read files side by side.",
)  # fmt: skip
@option(
    "--seeds", "--seed", type=click.File("rb"),
    help="URLs, one a line: if a digest has several URLs, one of these is written.",
)  # fmt: skip
@option(
    "--hosts", type=click.File("rb"),
    help="Hosts, one a line: a URL of these or of their subdomains is preferred, after seeds.",
)  # fmt: skip
@flag(
    "--bridge",
    help="Also originals whose own record states another digest; --cdx, --cdxj: write every SHA-1 "
    "in base32.",
)
@flag("--placeless", setting=False, help="--cdxj: also originals whose file or offset is unknown.")
@option("--crawl", "crawls", multiple=True, metavar="NAME", help="--redis: only these crawls.")
@option(
    "--as", "other", metavar="NAME",
    help="--redis: name for captures without a crawl. Default: the name of INDEX.",
)  # fmt: skip
@option(
    "--algorithm", type=click.Choice(list(ENCODINGS)), default="sha256",
    help="--redis: digest algorithm of the crawler.",
)  # fmt: skip
@option("--commit", metavar="CRAWL", setting=False, help="--redis: commit this crawl.")
@option("--cancel", metavar="CRAWL", setting=False, help="--redis: remove this crawl.")
@shared_options("--zstd-dictionary")
@shared_options("--json")
def command(
    sources: tuple[str, ...], redis: str | None, self_contained: bool, **options: Any
) -> int:
    """Write the originals in INDEX: as --cdx or --cdxj, or for a crawler, as the others say.

    Or, with --self-contained, copy records of SOURCEs byte for byte, and the originals that their
    revisits need. The exit status is 8 if an original is missing, or if the check of the result,
    which is that of bin/verify, finds a record that will not replay (level broken or loss).
    """
    files = [name for name in _FILES if options[name]]
    if len(files) + bool(redis) + self_contained > 1:
        raise click.UsageError(f"give only one of {_FORMS}")
    if options["placeless"] and files != ["cdxj"]:
        raise click.UsageError("--placeless takes --cdxj")
    if self_contained:
        return _self_contained(sources, options["out"], options)
    if isinstance(options["out"], str):
        raise click.UsageError("only --self-contained writes to an object store")
    _check_no_subset_options(options)
    if len(sources) > 1:
        raise click.UsageError("name one INDEX")
    index = any_index(sources[0]) if sources else None
    ended = [name for name in ("commit", "cancel") if options[name]]
    if not files and not redis:
        raise click.UsageError(f"give one of {_FORMS}")
    if ended and (files or index or len(ended) > 1):
        raise click.UsageError(f"--{ended[0]} takes --redis and a crawl, and no INDEX")
    if ended:
        return _end(redis or "", ended[0], options[ended[0]])
    if index is None:
        raise click.UsageError("name an INDEX")
    if files:
        return _FILES[files[0]](index, _output_file(files[0], options), options)
    if options["out"]:
        raise click.UsageError("--out is not for --redis")
    return _redis(index, redis or "", options)


def _output_file(form: str, options: dict[str, Any]) -> Path:
    """Return the file to write, ``-`` for standard output.

    Raises `UsageError`, and `BadInput` if it would replace another file than an earlier export.
    """
    out = options["out"]
    if out is not None and out.is_dir():
        raise click.UsageError(f"{out} is a directory")
    if wants_json() and out in (None, Path("-")):
        raise click.UsageError("--json needs --out: standard output carries the rows")
    if out is not None and out != Path("-"):
        require_parent(out)
        if form == "warcprox":
            check_outside_index(out)
        else:
            inputs = [options[name].name for name in ("seeds", "hosts") if options[name]]
            check_output(out, _FORM_OF[form], inputs)
    return out or Path("-")


@contextmanager
def _reading(index: Path, out: Path | None = None) -> Iterator[tuple[View, OnProgress]]:
    """Open an index; yield a view, and what shows how far it is read."""
    with (
        closing(open_index(index)) as engine,
        engine.view() as view,
        show_progress(prints=out == Path("-")) as progress,
    ):
        yield view, progress


def _cdx(index: Path, out: Path, options: dict[str, Any]) -> int:
    form = CdxForm(options["cdxj"], options["bridge"], options["placeless"])
    exported = CdxExport()
    with _reading(index, out) as (view, progress), text_output(out) as stream:
        stream.writelines(cdx_file.rows(view, form, exported, progress))
        stream.flush()
    print_result(exported, notes=_cdx_notes(exported, form))
    return 0


def _cdx_notes(exported: CdxExport, form: CdxForm) -> Iterator[str]:
    yield singular(f"{exported.written:,} originals written")
    if exported.no_size:
        yield f"  {exported.no_size:,} without the size of the record: the index does not know it"
    if exported.placeless:
        yield f"  {exported.placeless:,} without file and offset: replay cannot open these"
    if exported.full_names:
        yield f"  {exported.full_names:,} with the full name of a file, because another ends alike"
    if exported.not_base32:
        yield (
            f"  {exported.not_base32:,} whose digest is no SHA-1 in base32: OutbackCDX damages it"
            + ("" if form.base32 else " (--bridge writes every SHA-1 in base32)")
        )
    if exported.not_ascii:
        yield f"  {exported.not_ascii:,} whose URL or file name is not ASCII: OutbackCDX damages it"
    yield from count_lines("left out: ", exported.left_out, _LEFT_OUT)
    if exported.left_out[NO_PLACE]:
        yield (
            "no-place: the index does not know the file and offset of these originals, because "
            "revisits, logs or rows without them name them; --cdxj --placeless writes them, for "
            "lookups"
        )


def _wget(index: Path, out: Path, options: dict[str, Any]) -> int:
    wanted = wget_cdx.read_scope(options["seeds"] or (), options["hosts"] or ())
    exported = wget_cdx.WgetExport()
    with _reading(index, out) as (view, progress), text_output(out) as stream:
        captures, bridge = captures_of(view, "reading", progress), options["bridge"]
        stream.writelines(wget_cdx.lines(captures, wanted, exported, bridge=bridge))
        stream.flush()
    print_result(exported, notes=_wget_notes(exported, asked=bool(wanted.seeds or wanted.hosts)))
    return 0


def _warcprox(index: Path, out: Path, options: dict[str, Any]) -> int:
    if out == Path("-"):
        raise click.UsageError("--warcprox needs --out")
    if out.exists():
        raise BadInput(f"{out} exists, and warcprox may have written to it: name another file")
    exported = WarcproxExport()
    with _reading(index, out) as (view, progress):
        captures = captures_of(view, "reading", progress)
        found = warcprox_dedup.rows(captures, exported, bridge=options["bridge"])
        with atomic_path(out, new=True) as beside:
            warcprox_dedup.write_database(beside, found)
    notes = [f"{exported.written:,} digests written"]
    print_result(exported, notes=[*notes, *count_lines("left out: ", exported.left_out, _LEFT_OUT)])
    return 0


_FORM_OF = {"cdx": CDX, "cdxj": CDXJ, "wget": WGET_CDX}
_FILES = {"cdx": _cdx, "cdxj": _cdx, "wget": _wget, "warcprox": _warcprox}
_FORMS = "--cdx, --cdxj, --wget, --warcprox, --redis and --self-contained"


def _wget_notes(exported: wget_cdx.WgetExport, *, asked: bool) -> Iterator[str]:
    written = singular(f"{exported.written:,} originals written")
    other_urls = singular(f"{exported.other_urls:,} captures at other URLs")
    if not asked:
        yield written
        if exported.other_urls:
            yield (
                f"  {other_urls} left out: wget takes one URL for a digest. To choose it, give "
                "the URLs that wget will fetch with --seeds FILE, one a line, or their hosts with "
                "--hosts FILE"
            )
        yield from count_lines("left out: ", exported.left_out, _LEFT_OUT)
        return
    yield (
        f"{written}, {exported.for_seeds:,} of them with the URL of a seed, "
        f"{exported.for_hosts:,} of a wanted host"
    )
    if exported.other_urls:
        yield f"  {other_urls}: wget takes one URL for a digest"
    yield from count_lines("left out: ", exported.left_out, _LEFT_OUT)


def _redis(index: Path, address: str, options: dict[str, Any]) -> int:
    home = index.resolve()
    crawls, algorithm = frozenset(options["crawls"]), options["algorithm"]
    choice = ExportChoice(options["other"] or home.name, crawls, algorithm, options["bridge"])
    exported = BrowsertrixExport()
    with _reading(index) as (view, progress), writing(address) as database:
        captures = captures_of(view, "reading", progress)
        found = originals(captures, view.container, choice, exported)
        database.export(found, os.fsencode(home), crawls)
    print_result(exported, notes=_redis_notes(exported, algorithm))
    return 0


def _redis_notes(exported: BrowsertrixExport, algorithm: str) -> Iterator[str]:
    yield singular(f"{exported.written:,} originals written and committed")
    for crawl, count in sorted(exported.crawls.items()):
        yield f"  crawl {crawl}: {count:,}"
    if exported.bridged:
        yield (
            f"  {exported.bridged:,} are bridged: their revisits state another digest than the "
            "original, and replay by digest (pywb) does not find it"
        )
    yield from count_lines("left out: ", exported.left_out, _LEFT_OUT)
    if not exported.written and exported.left_out["spelled-otherwise"]:
        yield f"their records state other digests than {algorithm}; --bridge includes them"
    elif not exported.written:
        yield (
            f"the index may have no {algorithm} digests: bin/index --also-digest {algorithm} "
            "computes them from WARCs"
        )


def _end(address: str, action: str, crawl: str) -> int:
    """Commit or cancel a crawl in a Redis."""
    with writing(address) as database:
        if action == "commit":
            database.commit(crawl)
        else:
            database.cancel(crawl)
    state = "committed" if action == "commit" else "cancelled"
    print_result({"crawl": crawl, "state": state}, notes=[f"crawl {printable(crawl)} is {state}"])
    return 0


def _check_no_subset_options(options: dict[str, Any]) -> None:
    """Raise `UsageError` if an option of --self-contained is given without it."""
    for name in _SUBSET_OPTIONS:
        if options[name]:
            raise click.UsageError(f"--{name.removesuffix('s')} takes --self-contained")


def _self_contained(
    sources: tuple[str, ...], out: Path | str | None, options: dict[str, Any]
) -> int:
    """Write a subset of a collection; returns the exit status."""
    if out is None or not sources:
        raise click.UsageError("--self-contained takes a SOURCE, and -o for where to write")
    with counted_requests() as requests:
        if isinstance(out, Path):
            return _report_subset(_export_subset(sources, out, options), out, requests)
        return _export_to_store(sources, out, options, requests)


def _export_to_store(
    sources: tuple[str, ...], out: str, options: dict[str, Any], requests: CountedRequests
) -> int:
    check_creatable(out)
    top, _, name = out.rstrip("/").rpartition("/")
    check_conditions(top if is_single(name) else out)
    with TemporaryDirectory(prefix="dedupindex-export-") as beside:
        exported = _export_subset(sources, Path(beside, name), options)
        for path in sorted(filter(Path.is_file, Path(beside).rglob("*"))):
            try:
                with open(path, "rb", buffering=0) as file:
                    create_object(file, f"{top}/{path.relative_to(beside)}")
            except FileExistsError as error:
                raise BadInput(str(error)) from error
        return _report_subset(exported, out, requests)


def _export_subset(sources: tuple[str, ...], out: Path, options: dict[str, Any]) -> SubsetReport:
    chosen = SubsetFilter(
        tuple(map(os.fsencode, options["urls"])),
        tuple(map(host_name, options["host"])),
        first_digits(options["begin"]),
        last_digits(options["end"]),
    )
    jobs = options["jobs"] or cores()
    with show_progress() as progress:
        exported = export_subset(
            sources, options["originals"], chosen, out, jobs, _warn_of, progress
        )
    warn(exported.problems)
    return exported


def _warn_of(finding: Finding) -> None:
    say(f"warning: {finding.file} at {finding.offset}: {finding.reason}: {finding.message}")


def _report_subset(exported: SubsetReport, out: Path | str, requests: CountedRequests) -> int:
    if not exported.records:
        say("nothing was written: no record that was read matches")
    sums = singular(
        f"{exported.records:,} records, and {exported.originals:,} originals added; "
        f"{exported.revisits:,} revisits, {exported.dangling:,} of them without an original; "
        f"{amount(exported.bytes)} in "
    )
    found = [
        f"  {REASONS[reason]}: {reason:<24}{count:>12,}"
        for reason, count in sorted(exported.findings.items())
    ]
    lines = [sums + printable(str(out)), *found] if exported.records else []
    sent = sent_requests(requests)
    print_result({**exported.as_json(), **sent.as_json()}, [*lines, *sent.lines()])
    if exported.dangling:
        say("some originals are in none of the SOURCEs: name where they may be with --originals")
    levels = {REASONS[reason] for reason in exported.findings}
    if exported.dangling or levels - {REMARK, DAMAGE}:
        return UNSOUND
    return Damaged.exit_status if exported.problems or levels - {REMARK} else 0
