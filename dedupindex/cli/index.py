"""``bin/index``: build an index, add to one, maintain one."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from dedupindex.capture import SKIPPED, UNRESOLVED
from dedupindex.cli.common import (
    Command,
    count_lines,
    file_lines,
    is_typed,
    meant,
    print_result,
    say,
    setting_source,
    status_7,
    warn,
)
from dedupindex.cli.index_location import (
    any_engine,
    any_index,
    check_new_index,
    index_name,
    renamed_text,
    sources_and_index,
)
from dedupindex.cli.options import COUNT, flag, option, shared_options
from dedupindex.cli.progress_bar import show_progress
from dedupindex.cli.sent_requests import SentRequests, sent_requests
from dedupindex.crawls.stores import asking_crawl_names, crawl_names, open_store
from dedupindex.crawls.unread_crawls import crawls_without_files, launches_in
from dedupindex.errors import BadInput, Damaged, IndexExists, SettingsConflict, as_called
from dedupindex.index import ENGINES, open_index
from dedupindex.index.address import is_cluster
from dedupindex.index.engine import reread
from dedupindex.index.identity import (
    FILE,
    OPTIONS,
    Settings,
    existing_identity,
    read_identity,
    same_engine,
)
from dedupindex.indexer.pipeline import Build, Built, also_names, build, source_options
from dedupindex.object_store import counted_requests, redacted
from dedupindex.post_crawl.update_index import index_results
from dedupindex.runtime.tables import UNKNOWN, names_text, printable, singular
from dedupindex.sources import KINDS
from dedupindex.sources.discover import NO_ZSTD, unfinished_hint
from dedupindex.sources.source import REMARKS

_OUTCOMES = {
    "added": "URL and digest new to the index",
    "replaced": "better than the capture that the index had",
    "unchanged": "URL and digest already in the index",
}
_BY_NAME = ": {} of the same time, in a file whose path sorts first (docs/operations.md)"
_REMOVED = "originals of the index that the changed files no longer have"
_REVISITS = {"revisits read": "of any response; what they name is counted above, or below"}
_LEFT_OUT = {  # an index keeps its settings
    "mime": "left out by --mime; all: a new index with --all",
    "status": "left out by --status; more: a new index with, for example, --status 2xx,404",
}
_UNRESOLVED_TEXT = "revisits that add no original"
_ACROSS_FILES = "known only when all files are merged, so none is named"
_MAX_NAMED = 5  # crawls in a sentence
_REASONS = "docs/formats.md#what-is-refused"
_DIGITS = re.compile(r"\d+")
EXAMPLES = """
bin/index ~/warcs my-index                     # all but text, of every WARC below ~/warcs
bin/index --all ~/warcs my-index               # all media types
bin/index --add new.warc.gz my-index           # with the settings that the index has
bin/index --replace ~/smaller my-index --instead-of ~/warcs    # of bin/dedup --out ~/smaller
bin/index -i crawllog crawl.log my-index
bin/index --empty my-index                     # for crawls that write to it
bin/index --stats my-index
"""


_BUILD_OPTIONS = ("replace", "resume", "reread", "jobs", "crawl", "spark")
_OF_RESULTS = ("sources", "index", "replace", "instead_of", "jobs", "spark", "verbose")
_SETTINGS = ("etag", "mime", "whitelist", "status", "min_size", "keep", "by_url")
_ACTIONS = ("check", "stats", "compact", "copy", "merge", "digest_filter")
_NAMES = ", ".join(f"--{name.replace('_', '-')}" for name in _ACTIONS)


@click.command(
    cls=Command, examples=EXAMPLES,
    interrupted="run the same command again, a build with --resume to keep what was done",
)  # fmt: skip
@click.argument("sources", nargs=-1, metavar="SOURCE...")
@click.argument("index", type=any_index, required=False)
@flag("-a", "--add", help="Add to an existing index, with its own settings.")
@flag("-e", "--etag", help="Store ETag and Last-Modified.")
@option(
    "-i", "--iterator", metavar="KIND",
    help=f"Force the kind of source: {', '.join(KINDS)} (or a class name of the DeDuplicator, "
    "or a kind that a package adds: docs/sources.md). "
    "Default: recognised by content.",
)  # fmt: skip
@option("-m", "--mime", default="^text/.*", help="Leave these media types out.")
@flag("-w", "--whitelist", help="Index only the media types of --mime.")
@flag("--all", setting=False, help="Index all media types, text too: as -w -m '.*'.")
@flag("-s", "--no-canonicalized", help="Do not index canonical URLs.")
@flag("-u", "--no-url-index", help="Do not index URLs: digests only.")
@flag("--by-url", help="List captures by URL too, for clients of CDX servers.")
@flag("-v", "--verbose", help="Progress every second, and all settings.")
@option(
    "--engine", type=any_engine, default="lmdb", metavar="ENGINE",
    help=f"{', '.join(ENGINES)}, or the address of a cluster; INDEX may then be left out.",
)  # fmt: skip
@option("--status", default="200", help="HTTP statuses to index: 200,203 or 2xx.")
@option("--min-size", type=COUNT, default=0, help="Smallest payload, in bytes.")
@option(
    "--also-digest", default="", metavar="NAMES", help="Further digests to compute: sha256,blake3."
)
@option(
    "--keep", type=click.Choice(["earliest", "latest"]), default="earliest",
    help="Which capture of a URL and digest is kept.",
)  # fmt: skip
@option("--crawl", default="", metavar="NAME", help="The crawl that made these files.")
@shared_options("--jobs", help="Processes that read files.")
@shared_options("--zstd-dictionary")
@shared_options("--spark")
@flag("--replace", help="As --add; changed files replace their old captures.")
@option(
    "--instead-of", multiple=True, metavar="OLD", setting=False,
    help="With --replace: SOURCEs are the results of the files in OLD, whose captures go.",
)  # fmt: skip
@flag("--reread", help="As --add; reads known files again, as a repair or for another --crawl.")
@flag(
    "--resume",
    help="Resume a build that was killed; each process reads at most 1 GiB, or one file, again.",
)
@shared_options("--revisit-annotation", "--columns")
@flag("--empty", setting=False, help="Make an empty index, for crawls to write to.")
@flag(
    "--check",
    setting=False,
    help="Read the whole index and verify it; not the files that it was made of.",
)
@flag("--stats", setting=False, help="Print what the index holds.")
@flag("--compact", setting=False, help="Rewrite the data without unused space.")
@flag("--merge", setting=False, help="Load the captures of committed crawls.")
@flag(
    "--digest-filter", setting=False,
    help="Make the filter with which clients answer misses themselves; later loads add to it.",
)  # fmt: skip
@option(
    "--copy",
    metavar="PATH",
    setting=False,
    help="Copy the index, also while it is in use; PATH may be an address.",
)
@shared_options("--json")
def command(sources: tuple[str, ...], index: Path | None, verbose: bool, **options: Any) -> int:
    """Build an index of originals from SOURCEs, or maintain the one in INDEX.

    A SOURCE is a WARC, ARC, WACZ, CDX, CDXJ, Parquet table or Heritrix crawl.log, a directory of
    them, a glob, - for standard input, a database of warcprox, the redis:// address at which
    Browsertrix keeps its hashes, or outbackcdx+http://host:port/collection. Files, directories and
    globs may be addresses: s3://, https:// and the like (docs/batch.md). INDEX is a directory, or
    the cassandra:// address of a cluster.
    """
    missing = ""
    if not any(options[name] for name in (*_ACTIONS, "empty")):
        missing = "Missing arguments 'SOURCE...' and 'INDEX', as in bin/index ~/warcs my-index"
    sources, where = sources_and_index(sources, index, options, missing)
    if options["all"]:
        _take_all_types(options)
    if actions := [name for name in _ACTIONS if options[name]]:
        if len(actions) > 1:
            raise click.UsageError(f"give one of {_NAMES}")
        if sources:
            raise click.UsageError(f"{_NAMES} take an INDEX only")
        _no_others(actions[0])
        from dedupindex.cli import maintenance  # a build need not wait for it, and for SQLite

        if options["copy"]:
            engine = options["engine"] if setting_source("engine") == "" else ""
            return maintenance.copy(where, options["copy"], engine)
        action = getattr(maintenance, actions[0])
        return int(action(where))
    if options["empty"] and sources:
        raise click.UsageError("--empty takes an INDEX only")
    if not sources and not options["empty"]:
        adds = [f"--{name} " for name in ("add", "replace", "reread") if options[name]]
        named = shlex.quote(str(where))
        typed = f"SOURCE... {named}" if (where / FILE).exists() else f"{named} my-index"
        typed = "".join(adds) + typed
        raise click.UsageError(f"give the sources, then the index: bin/index {typed}")
    if str(where) == "-":
        raise click.UsageError("the index comes last and is a directory, not -")
    check_new_index(sources, where)
    if options["instead_of"]:
        return _put_results(sources, where, options, verbose=verbose)
    job = _job(sources, where, options)
    _warn_of_name(where, options["crawl"])
    if verbose:
        say(f"options: {job.settings.as_options() or 'all at their defaults'}")
    with counted_requests() as requests, show_progress(verbose=verbose) as progress:
        built = build(job, progress)
        sent = sent_requests(requests)
    return _print_result(built, sources, where, options["crawl"], sent)


def _put_results(
    sources: tuple[str, ...], index: Path, options: dict[str, Any], *, verbose: bool
) -> int:
    """Read results into an index in place of other files; return the exit status."""
    if not options["replace"]:
        raise click.UsageError("--instead-of goes with --replace")
    for name in click.get_current_context().params:
        if name == "engine" and is_cluster(options[name]):
            continue  # the address of the index
        if name not in _OF_RESULTS and is_typed(name):
            raise click.UsageError(
                f"--{name.replace('_', '-')} has no effect with --instead-of: an index keeps its "
                "settings, and each file its crawl"
            )
    with counted_requests() as requests, show_progress(verbose=verbose) as progress:
        done = index_results(
            index, sources, options["instead_of"], options["jobs"], progress, options["spark"]
        )
        sent = sent_requests(requests)
    warn(done.problems)
    places = " ".join(map(redacted, options["instead_of"]))
    for text in done.remaining_text():
        say(f"warning: {text}")
    if not (done.remaining or done.replaced):
        say(f"warning: nothing was replaced: the index had no file of these names in {places}")
    content = {
        "read": done.read, "replaced": done.replaced, "problems": len(done.problems),
        "remaining": done.remaining, "unread": done.unread, **sent.as_json(),
    }  # fmt: skip
    read = singular(f"read {done.read:,} files")
    replaced = singular(f"replaced {done.replaced:,} files")
    print_result(
        content,
        [f"{index_name(index)}: {read} in place of those in {places}; {replaced}", *sent.lines()],
    )
    return status_7("damaged or unreadable data was left out") if done.problems else 0


def _take_all_types(options: dict[str, Any]) -> None:
    """Set what --all stands for, as if it had been typed."""
    context = click.get_current_context()
    for name, value in (("mime", ".*"), ("whitelist", True)):
        if setting_source(name) == "":
            raise click.UsageError(f"--all takes all media types; leave --{name} out")
        options[name] = value
        context.set_parameter_source(name, ParameterSource.COMMANDLINE)


def _no_others(action: str) -> None:
    """Raise `UsageError` if an option of builds is given with an action."""
    context = click.get_current_context()
    for name in context.params:
        if name == "engine" and (action == "copy" or is_cluster(context.params[name])):
            continue  # the engine of the copy, or the address of the index
        if is_typed(name) and name not in (action, "index", "sources", "verbose"):
            option = name.replace("_", "-")
            done = action.replace("_", "-")
            raise click.UsageError(f"--{option} is for building and has no effect with --{done}")


def _job(sources: tuple[str, ...], index: Path, options: dict[str, Any]) -> Build:
    if options["by_url"] and (options["no_url_index"] or options["engine"] == "whoosh"):
        raise BadInput("--by-url needs the URLs, and engine lmdb or a cluster")
    settings, engine = _settings(options), options["engine"]
    if options["add"] or options["replace"] or options["reread"]:
        settings, engine = _with_settings_of_index(index, settings, engine)
        if options["all"]:
            _check_all(index, settings)
    else:
        _check_existing(index, settings, options)
    return Build(
        sources=list(sources),
        index=index,
        settings=settings,
        engine=engine,
        kind=options["iterator"],
        options=source_options(settings, options["columns"]),
        add=options["add"] or options["reread"],
        **{name: options[name] for name in _BUILD_OPTIONS},
    )


def _settings(options: dict[str, Any]) -> Settings:
    return Settings(
        url_index=not options["no_url_index"],
        canonical=not (options["no_canonicalized"] or options["no_url_index"]),
        also_digest=also_names(options["also_digest"]),
        revisit_annotation=options["revisit_annotation"],
        **{name: options[name] for name in _SETTINGS},
    )


def _with_settings_of_index(index: Path, settings: Settings, engine: str) -> tuple[Settings, str]:
    """Return the settings and engine for a build that adds: those of the index, unless given.

    Raises `SettingsConflict` if a settings file or the environment has others.
    """
    if not (index / FILE).exists():
        return settings, engine
    identity = read_identity(index)
    if not identity.generation:  # its first build has not finished
        return settings, engine
    chosen, built = {"engine": engine, **asdict(settings)}, asdict(identity.settings)
    built["engine"] = identity.engine
    for name in chosen:
        option = OPTIONS.get(name, "--engine").removeprefix("--")
        place = setting_source(option)
        if place is None:
            chosen[name] = built[name]
        elif place and not same_engine(str(chosen[name]), str(built[name])):
            raise SettingsConflict(
                f"{place} differs from the setting of the index at {index}; leave it out "
                "to use that one"
            )
    engine = chosen.pop("engine")
    return Settings(**chosen), engine


def _warn_of_name(index: Path, crawl: str) -> None:
    """Warn of an unknown name that is like that of a crawl whose files the index waits for.

    A name that differs by digits is the next one in a row.
    """
    identity = existing_identity(index) if crawl else None
    if identity is None or not identity.generation:
        return
    known = crawl_names(index)
    others = {name for name in known if _DIGITS.sub("", name) != _DIGITS.sub("", crawl)} - {""}
    if crawl in known or not meant(crawl, others):
        return
    if question := meant(crawl, others.intersection(_without_files(index))):
        say(
            f"warning: the index knows no crawl {crawl}{question} That one used the server, and "
            "not all of its files were read yet. If these are its files, run the command again "
            "with --reread and that name"
        )


def _without_files(index: Path) -> list[str]:
    """Return the names of crawls that used a server, and whose files were not all read."""
    if (store := open_store(index)) is None:
        return []
    with (
        suppress(Damaged),  # statistics are lost, which does not concern a build
        closing(store),
        store.reading() as reading,
        closing(open_index(index)) as engine,
        engine.view() as view,
    ):
        return crawls_without_files(view, reading)
    return []


def _check_all(index: Path, settings: Settings) -> None:
    """Raise `SettingsConflict` if --all was typed to add to an index that leaves types out."""
    identity = existing_identity(index)
    if identity is None or not identity.generation:
        return
    built = identity.settings
    if (built.mime, built.whitelist) != (settings.mime, settings.whitelist):
        raise SettingsConflict(
            f"the index at {index_name(index)} was built without --all, and an index keeps its "
            "settings: leave --all out, or make a new index with --all"
        )


def _check_existing(index: Path, settings: Settings, options: dict[str, Any]) -> None:
    """Raise `IndexExists` if there is an index to which --add could not add with what was given."""
    identity = existing_identity(index)
    if identity is None or not identity.generation:
        return
    asked, built = asdict(settings), asdict(identity.settings)
    other = [
        "--all" if options["all"] and name in ("mime", "whitelist") else option
        for name, option in OPTIONS.items()
        if asked[name] != built[name] and setting_source(option.removeprefix("--")) is not None
    ]
    if other:
        raise IndexExists(
            f"there is an index at {index} that was built with other settings than "
            f"{', '.join(dict.fromkeys(other))}; an index keeps its settings: "
            "name another directory"
        )


def _print_result(
    built: Built, sources: tuple[str, ...], index: Path, crawl: str, sent: SentRequests
) -> int:
    """Print what a build did; returns the exit status."""
    warn(built.problems)
    content = {
        **built.tally.as_json(),
        "problems": len(built.problems),
        "skipped": built.skipped,
        "skipped_files": built.skipped_files,
        "not_read_zstd": _zstd_files(built),
        "known_of_other_crawls": dict(sorted(built.elsewhere.items())),
        "known_with_defects": built.defective,
        "moved_from_crawls": dict(sorted(built.moved.items())),
        "renamed": built.renamed,
        "reported_by_crawls": built.reported,
        "disproved_reports": built.disproved,
        "removed": built.removed,
        "nothing_taken": built.nothing_taken,
        **sent.as_json(),
    }
    text = _text_of(built, sources, printable(shlex.quote(index_name(index))), sent)
    print_result(content, text, _notes(built, sources, index, crawl))
    return status_7(_left_out(built)) if built.problems else 0


def _notes(built: Built, sources: tuple[str, ...], index: Path, crawl: str) -> Iterator[str]:
    """Yield what is wrong with files, and how they get into the crawl that wrote them."""
    if built.nothing_taken:
        yield _nothing_taken_text(built.nothing_taken)
    if built.renamed:
        yield as_called(renamed_text(built.renamed, index_name(index)))
    read_for = f"crawl {crawl}" if crawl else "no crawl"
    for name, found in list(built.reported.items())[:_MAX_NAMED]:
        one = len(found) == 1
        was = "1 file was" if one else f"{len(found):,} files were"
        shown = found if len(found) <= _MAX_NAMED else ["FILE..."]
        yield (
            f"warning: {was} read for {read_for}, and crawl {name} has captures in "
            f"{'a file of that name' if one else 'files of these names'}; if it wrote "
            f"{'it' if one else 'them'}: {as_called(reread(index_name(index), shown, name))}"
        )
    if (more := len(built.reported) - _MAX_NAMED) > 0:
        yield f"warning: and so for {more:,} more crawls (see --json)"
    if built.tally.containers:
        yield from _launch_notes(built, sources, index, crawl)
    if count := built.elsewhere.total():
        names = [f"crawl {name}" if name else "no crawl" for name in sorted(built.elsewhere)]
        files = "1 known file was not read, and stays in"
        if count > 1:
            files = f"{count:,} known files were not read, and stay in"
        command = as_called(reread(index_name(index), sources, crawl))
        yield (
            f"warning: {files} {names_text(names, _MAX_NAMED)}; if crawl {crawl} wrote "
            f"{'it' if count == 1 else 'them'}: {command}"
        )


def _launch_notes(built: Built, sources: tuple[str, ...], index: Path, crawl: str) -> Iterator[str]:
    """Yield warnings of sources whose paths have the launch of another crawl that used a server.

    A crawl that found only duplicates has reported no file; links such as Heritrix's `latest` are
    followed.
    """
    names: dict[str, str] = {}
    for name in asking_crawl_names(index) if crawl else ():
        names.update(dict.fromkeys(launches_in(name), name))
    found: dict[str, list[str]] = {}
    for source in sources if names else ():
        for launch in names.keys() & launches_in(os.path.realpath(source)) - launches_in(crawl):
            found.setdefault(names[launch], []).append(source)
    for name in sorted(found.keys() - built.reported.keys())[:_MAX_NAMED]:
        command = as_called(reread(index_name(index), found[name], name))
        yield (
            f"warning: files were read for crawl {crawl}, and their path has the launch of crawl "
            f"{name}; if it wrote them: {command}"
        )


def _nothing_taken_text(files: Mapping[str, Mapping[str, int]]) -> str:
    """Return that nothing was taken of files, and why, of the first."""
    name = min(files)
    refused = ", ".join(f"{reason} {count:,}" for reason, count in sorted(files[name].items()))
    more = f"; nor of {len(files) - 1:,} more (see --json)" if len(files) > 1 else ""
    return f"warning: nothing of {printable(name)} was taken, as refused: {refused}{more}"


def _zstd_files(built: Built) -> int:
    """Return how many files were not read that are compressed with zstd."""
    return sum(problem.message.startswith(NO_ZSTD) for problem in built.problems)


def _left_out(built: Built) -> str:
    """Describe what is not in the index because of problems."""
    zstd = _zstd_files(built)
    what = []
    if zstd:
        what.append(f"{zstd:,} {'file was' if zstd == 1 else 'files were'} not read (zstd)")
    if len(built.problems) > zstd:
        what.append("damaged or unreadable data was left out")
    return f"{' and '.join(what)}; all other data was read"


def _with_files(reasons: Iterable[str], files: Mapping[str, str]) -> dict[str, str]:
    """Return what reasons mean, with a file in which such records are."""
    found = {}
    for reason in reasons:
        file = f"as in {printable(files[reason])}" if reason in files else _ACROSS_FILES
        found[reason] = ", ".join(filter(None, (_LEFT_OUT.get(reason, ""), file)))
    return found


def _unresolved_text(count: int, files: Mapping[str, str]) -> str:
    """Return that revisits name no original; whether the index has their payload is not known."""
    file = _with_files([UNRESOLVED], files)[UNRESOLVED]
    kinds = (
        "such as answers 304, and those of wget: they do not state URL and date of their original "
        "(WARC-Refers-To alone names a record id)"
    )
    return f"  {_UNRESOLVED_TEXT}: {count:,}  ({UNRESOLVED}), {kinds}, {file}"


def _known_lines(built: Built) -> Iterator[str]:
    """Yield what became of files that the index knew."""
    for name, count in sorted(built.moved.items()):
        left = f"crawl {printable(name)}" if name else "no crawl"
        yield singular(f"  of these moved from {left}, with all captures: {count:,} files")
    if built.defective:
        yield f"  of these read with defects: {built.defective:,}; --reread names them"
    if built.tally.purged:
        yield f"  of these purged: {built.tally.purged:,}; --replace reads them again"


def _text_of(
    built: Built, sources: tuple[str, ...], index: str, sent: SentRequests
) -> Iterator[str]:
    """Yield what a build did, and last what to do next, or why nothing was added."""
    tally = built.tally
    if not sources:
        yield f"{index} is an empty index; next: bin/serve {index}"
        return
    yield (
        f"files read: {tally.containers:,}, known before: {tally.known:,}; "
        + singular(f"{tally.records:,} records in {tally.seconds:.1f} s")
    )
    yield from _known_lines(built)
    outcomes = {name: getattr(tally, name) for name in _OUTCOMES}
    meanings = dict(_OUTCOMES)
    if count := tally.replaced_by_name:
        meanings["replaced"] += _BY_NAME.format("all" if count == tally.replaced else f"{count:,}")
    skipped = {name: count for name, count in tally.refused.items() if name in SKIPPED}
    refused = tally.refused - Counter(skipped)
    unresolved = refused.pop(UNRESOLVED, 0)
    yield from count_lines("", outcomes, meanings)
    if built.removed is None:
        yield f"  removed: {UNKNOWN}, as the index has further digests: {_REMOVED}"
    elif built.removed:
        yield from count_lines("", {"removed": built.removed}, {"removed": _REMOVED})
    if tally.revisits:
        yield from count_lines("", {"revisits read": tally.revisits}, _REVISITS)
    yield from count_lines("skipped: ", skipped)
    yield from count_lines("refused: ", refused, _with_files(refused, tally.refused_in))
    if unresolved:
        yield _unresolved_text(unresolved, tally.refused_in)
    if refused or unresolved:
        yield f"  what each reason means: {_REASONS}"
    yield from count_lines("remark: ", tally.remarks, REMARKS)
    if built.disproved:
        yield f"  rows and reports that the files do not have: {built.disproved:,}  no originals"
    if zstd := _zstd_files(built):
        yield f"  files not read (zstd): {zstd:,}"
    if built.skipped:
        yield f"  files skipped, not of a known kind: {built.skipped:,}"
        yield from file_lines(built.skipped_files, built.skipped)
        if hint := unfinished_hint(built.skipped_files):
            yield f"  {hint}"
    yield from sent.lines()
    if tally.known or any(outcomes.values()):
        yield f"next: bin/serve {index}    or: bin/index --stats {index}"
    else:
        yield f"nothing was added: {_why_nothing(built, refused, unresolved)}"


def _why_nothing(built: Built, refused: Counter[str], unresolved: int) -> str:
    """Return why nothing was added, and what to do about it."""
    if refused:
        # What the user can change; a new index would have again what was purged.
        chosen = [] if "purged" in refused else [name for name in refused if name in _LEFT_OUT]
        most = max(chosen or refused, key=lambda name: refused[name])
        are = "is" if refused[most] == 1 else "are"
        what = _LEFT_OUT[most] if most in chosen else f"see {_REASONS}"
        return f"{refused[most]:,} of {refused.total():,} refused records {are} {most!r} ({what})"
    if unresolved:
        return f"{_UNRESOLVED_TEXT}: {unresolved:,}"
    if built.problems and not built.tally.records:
        return "no file could be read; the warnings say why"
    return "no record is a response"
