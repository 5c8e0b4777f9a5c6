"""``bin/impact`` and ``bin/purge``: what depends on captures, and taking them out of an index."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import closing
from difflib import get_close_matches
from functools import partial
from glob import has_magic
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import click
import orjson

from dedupindex.cli.common import (
    NOTHING_FOUND,
    Command,
    is_typed,
    print_json,
    print_result,
    say,
)
from dedupindex.cli.index_location import any_index
from dedupindex.cli.options import flag, option, shared_options
from dedupindex.cli.progress_bar import show_progress
from dedupindex.crawls.store import suggestion
from dedupindex.crawls.stores import crawl_names, removed_crawls
from dedupindex.digest import Digest
from dedupindex.errors import BadInput, DedupError, as_called
from dedupindex.index import open_index
from dedupindex.index.format.file_names import last_name
from dedupindex.post_crawl.purge.impact import LABELS, Amount, Item
from dedupindex.post_crawl.purge.remove import (
    PurgeSurvey,
    fingerprint,
    impact_as_json,
    item_as_json,
    outdated_as_text,
    purge,
    survey,
    unread_as_text,
)
from dedupindex.post_crawl.purge.remove import history as purges_of
from dedupindex.post_crawl.purge.target import CaptureTarget, Target, TargetKind
from dedupindex.runtime.tables import amount, printable, singular
from dedupindex.timestamps import check_date
from dedupindex.urlkey import counted_host, lacks_scheme, meant_host, meant_url

_Command = TypeVar("_Command", bound=Callable[..., Any])
_SHOWN = 20  # containers and crawls, without --json
_SEVERAL = "several may be given"
_CONSIDERED = 10_000  # files whose names may be like one that was not found
_SUFFIX = re.compile(r"\.(w?arc(\.(gz|zst))?|wacz)$", re.IGNORECASE)
IMPACT_EXAMPLES = """
bin/impact my-index --container crawl-1.warc.gz    # which revisits depend on its records
bin/impact my-index --crawl weekly-7 --json
bin/impact my-index --url http://example.com/secret/ --prefix --list    # and all files with them
bin/impact my-index --host example.com             # and all hosts below it
"""
PURGE_EXAMPLES = """
bin/impact my-index --crawl weekly-7               # first: what depends on these captures?
bin/purge my-index --crawl weekly-7
bin/purge my-index --container s3://bucket/warcs/2020/    # all files below it
bin/purge my-index --host example.com --list > files.jsonl    # which files still have them
bin/purge my-index --url http://example.com/secret --force
bin/purge my-index --history                       # what was purged when, and by whom
"""


def _target_options(command: _Command) -> _Command:
    """Add INDEX, the options that name captures, --list and --json."""
    once = partial(option, setting=False)  # a file of settings must not remove anything
    for add in reversed(
        (
            click.argument("index", type=any_index),
            once(
                "--container", multiple=True, metavar="NAME",
                help="Captures of this file, or with / at its end of all files below this "
                f"directory; {_SEVERAL}.",
            ),
            once(
                "--crawl", multiple=True, metavar="NAME",
                help=f"Captures of this crawl; {_SEVERAL}.",
            ),
            once(
                "--host", multiple=True, metavar="NAME",
                help=f"Captures of this host and its subdomains; {_SEVERAL}.",
            ),
            once("--url", multiple=True, help=f"Captures of exactly this URL; {_SEVERAL}."),
            once("--prefix", is_flag=True, help="With --url: all URLs that begin with it."),
            once(
                "--captures", type=click.File("rb"), metavar="FILE",
                help="JSON lines with digest, url and optionally date; - for stdin.",
            ),
            once(
                "--list", "listed", is_flag=True,
                help="First print a JSON line for each original, copy and revisit, with its file. "
                "Without --json, the counts go to stderr.",
            ),
            shared_options("--json"),
        )
    ):  # fmt: skip
        command = add(command)
    return command


@click.command(cls=Command, examples=IMPACT_EXAMPLES)
@_target_options
def impact(index: Path, listed: bool, **options: Any) -> int:
    """Report what removing captures from INDEX would change, and which revisits depend on them.

    A revisit depends on what it refers to, or, if that is not stored, on the last stored copy of
    its payload. Captures of what is named that are revisits themselves are counted apart.

    Changes nothing. Reads the whole index once; for single captures usually only their digests.
    Only captures in the index and revisits are counted, not requests, resources and refused
    responses.
    """
    target = _target(options)
    with show_progress(prints=listed) as progress:
        found = survey(index, target, _print_item if listed else None, progress)
    return _report(index, target, found, listed=listed, purged=False)


@click.command(cls=Command, examples=PURGE_EXAMPLES)
@_target_options
@flag("--force", setting=False, help="Remove them even if revisits depend, or may depend, on them.")
@flag(
    "--history", setting=False, help="Print the last 1000 purges of INDEX, oldest first, and end."
)
@option(
    "--expect", default="", setting=False, metavar="FINGERPRINT",
    help="Remove nothing unless bin/impact --json has this fingerprint still.",
)  # fmt: skip
def command(
    index: Path, force: bool, history: bool, expect: str, listed: bool, **options: Any
) -> int:
    """Remove captures from INDEX; the next copies that it knows become the originals.

    The WARC files are not changed: whoever can read them can still read the payload. To take it
    down, remove or rewrite the files of each original, copy and unmerged capture that bin/impact
    --list names before the purge (or bin/purge --list).

    Fails if revisits depend on these captures, or may do so, unless --force is given: in files that
    changed since they were indexed, or in the WARCs of a crawl that was answered with originals and
    not indexed yet. Purged captures do not come back when their files are read again. Captures
    that INDEX does not know yet are added with their files, also earlier ones of the same URL:
    purge again then. With --crawl the statistics of the crawl are
    removed, too. INDEX remembers what was purged, when and by whom: --history.
    """
    if history:
        return _print_history(index)
    target = _target(options)
    on_item = _print_item if listed else None
    with show_progress(prints=listed) as progress:
        found = purge(
            index, target, force=force, expected=expect, on_item=on_item, on_progress=progress
        )
    return _report(index, target, found, listed=listed, purged=True)


def _print_history(index: Path) -> int:
    """Print the purges that an index remembers; returns the exit status."""
    for name in click.get_current_context().params:
        if is_typed(name) and name not in ("index", "history", "json"):
            raise click.UsageError(f"--history takes no --{name.replace('listed', 'list')}")
    found = purges_of(index)
    print_result({"purges": found}, map(_purge_as_text, found))
    if not found:
        say("nothing was purged from this index")
    return 0


def _purge_as_text(purge: dict[str, Any]) -> str:
    names = ", ".join(purge["names"])
    if more := purge["of"] - len(purge["names"]):
        names += f" and {more:,} more"
    counts = [f"{purge[name]:,} {label}" for name, label in LABELS.items()]
    forced = ""
    if purge["forced"]:
        forced = f"; --force: {purge['dependents']:,} revisits depended on them"
    what = f"{purge['time']}  {purge['by']}  {purge['kind']} {names}"
    return f"{what}: {singular(', '.join(counts) + forced)}"


def _target(options: dict[str, Any]) -> Target:
    """Return what the options name, and remove them from `options`."""
    names = ("container", "crawl", "host", "url", "captures")
    given = {name: options.pop(name) for name in names}
    prefix = options.pop("prefix")
    chosen = [name for name, value in given.items() if value]
    if len(chosen) != 1:
        one = "only one" if chosen else "one"
        raise click.UsageError(f"give {one} of --container, --crawl, --host, --url and --captures")
    if prefix and chosen != ["url"]:
        raise click.UsageError("--prefix is for --url")
    if given["captures"]:
        return Target(TargetKind.CAPTURE, captures=_captures(given["captures"]))
    kind = TargetKind.PREFIX if prefix else TargetKind(chosen[0])
    return Target(kind, tuple(given[chosen[0]]))


def _captures(stream: BinaryIO) -> tuple[CaptureTarget, ...]:
    found = []
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            content = orjson.loads(line)
            date = (content.get("date") or "").encode()
            digest, url = Digest.parse(content["digest"]), content["url"].encode()
            found.append(CaptureTarget(digest, url, check_date(date) if date else b""))
        except (ValueError, KeyError, TypeError, AttributeError, DedupError) as error:
            raise BadInput(f"line {number} is not a capture: {error}") from error
    if not found:
        raise BadInput("there are no captures to look for")
    return tuple(found)


def _print_item(item: Item) -> None:
    print_json(item_as_json(item))


def _not_found(target: Target, found: PurgeSurvey) -> list[Any]:
    """Return the captures, URLs or names of a target that the index does not have, for JSON."""
    names: list[Any] = [url.decode("utf-8", "backslashreplace") for url in target.urls]
    if target.kind is TargetKind.CAPTURE:
        names = [
            {"digest": str(capture.digest), "url": capture.url.decode("utf-8", "replace")}
            for capture in target.captures
        ]
    return [name for number, name in enumerate(names) if number not in found.found]


def _report(index: Path, target: Target, found: PurgeSurvey, *, listed: bool, purged: bool) -> int:
    """Print what a purge has done, or would do; return the exit status.

    If captures were `listed`, text goes to stderr, so that stdout has nothing but lines of JSON.
    """
    absent = _not_found(target, found)
    for warning in filter(None, (unread_as_text(found), outdated_as_text(found))):
        say(f"warning: {warning}")
    for path, other in found.elsewhere.items():
        say(
            f"warning: the index has not read {printable(path)}: it counts what crawls and CDX "
            f"files list by that name only. It has read {printable(other)}"
        )
    notes = _notes(index, target.kind, absent, found)
    counts = {"found": len(found.found), "not_found": absent, **impact_as_json(found)}
    content = {**counts, "fingerprint": fingerprint(found)}
    text = _text_of(found, len(absent), purged=purged)
    print_result(content, () if listed else text, chain(text, notes) if listed else notes)
    if found.found and found.is_empty:
        times = _purged_at(index, target.kind)
        before = [times.get(printable(text), "") for text in target.texts]
        if not all(before):
            say("the index has no capture of it: it was purged before, or never had any")
        else:
            say(f"nothing found: it was purged at {max(before)}")
            return NOTHING_FOUND
    elif purged and found.found:
        say("the index forgot these captures; the WARC files are unchanged and still have them")
    return 0 if found.found else NOTHING_FOUND


def _text_of(found: PurgeSurvey, absent: int, *, purged: bool) -> Iterator[str]:
    if not found.found:
        yield f"nothing found: the index has nothing of {'it' if absent == 1 else 'them'}"
        return
    impact = found.impact
    verb = "were removed" if purged else "would be removed"
    yield _line("originals", impact.originals, verb)
    yield _line("  same URL", impact.left["same_url"], "of them have another copy of their URL")
    yield _line("  other URL", impact.left["other_url"], "are stored under other URLs only")
    yield _line("  nowhere", impact.left["nowhere"], "are stored nowhere else")
    yield _line(LABELS["copies"], impact.copies, f"store these payloads, too; they {verb}")
    yield _line(LABELS["revisits"], impact.revisits, f"of what was named; they {verb}")
    for crawl in found.open_crawls:
        yield f"crawl {printable(crawl)} is open: it {'was' if purged else 'would be'} ended"
    if found.live:
        yield f"{'of crawls':<15}{found.live:>11,}  captures not merged yet {verb}"
    yield _line(
        "dependents", impact.dependents, "are revisits of other captures that depend on these"
    )
    yield _line("  broken", impact.broken, "of them have their payload nowhere else")
    if impact.by_digest.captures:
        yield _line("  by digest", impact.by_digest, "of these refer to what is not stored")
    for title, sums in (("file", impact.by_container), ("crawl", impact.by_crawl)):
        largest = list(sums.largest(_SHOWN, 0))
        if title == "crawl" and [name for name, _ in largest] == [b""]:
            continue  # no file has the name of a crawl: that would repeat what the files add up to
        for name, amounts in largest:
            shown = printable(name.decode("utf-8", "backslashreplace"))
            shown = shown or ("(not named)" if title == "crawl" else "(not known)")
            count = singular(f"{amounts[0]:,} revisits")
            yield f"  in {title} {shown}: {count}, {_size(Amount(*amounts))}"
    if not purged:
        yield "a capture that two files have is two records; bin/list and --stats count it once"
        yield (
            "only captures in the index are counted, and revisits, also of payloads that it "
            "refuses; not the requests, resources and refused responses of a file"
        )


def _notes(index: Path, kind: TargetKind, absent: list[Any], found: PurgeSurvey) -> Iterator[str]:
    """Yield a line for each name that was not found, with what may be wrong with it."""
    crawls, files, removed = set[str](), dict[str, bool](), dict[str, str]()
    purged = _purged_at(index, kind) if absent else {}
    for name in absent:
        hint = _hint(index, kind, name, found)
        if at := _when(name, purged):
            hint = f" (it was purged at {at})"
        elif not hint and kind is TargetKind.CRAWL:
            if not crawls:
                crawls, removed = crawl_names(index) - {""}, removed_crawls(index)
            hint = f" ({suggestion(name, sorted(crawls), removed)})"
        elif not hint and kind is TargetKind.CONTAINER:
            files = files or _files(index)
            below = (f"{name}/", f"{os.path.abspath(name)}/")
            if any(file.startswith(below) for file in files):
                near = [f"{name}/"]
            else:
                stems = {_stem(file): file for file, purged in files.items() if not purged}
                near = [stems[stem] for stem in get_close_matches(_stem(name), stems)]
            hint = f" (did you mean {' or '.join(near)}?)" if near else ""
        shown = f"{name['digest']} {name['url']}" if isinstance(name, dict) else name
        yield f"not found: {shown}{hint}"


def _when(name: Any, purged: dict[str, str]) -> str:
    """Return when one of `_not_found` was purged, "" if it was not."""
    if isinstance(name, dict):  # of a capture the history has the date, too, if it was given
        begin = f"{name['digest']} {name['url']}"
        return next((at for one, at in purged.items() if f"{one} ".startswith(f"{begin} ")), "")
    return purged.get(name, "")


def _purged_at(index: Path, kind: TargetKind) -> dict[str, str]:
    """Return the names of one kind that were purged, each with the time of the last purge."""
    purges = [purge for purge in purges_of(index) if purge["kind"] == kind.value]
    return {name: purge["time"] for purge in purges for name in purge["names"]}


def _files(index: Path) -> dict[str, bool]:
    """Return the names of some files of an index, and whether they were purged."""
    with closing(open_index(index)) as engine, engine.view() as view:
        return {one.name: one.purged for one in islice(view.containers(), _CONSIDERED)}


def _stem(name: str) -> str:
    return _SUFFIX.sub("", last_name(name))


def _hint(index: Path, kind: TargetKind, name: Any, found: PurgeSurvey) -> str:
    """Return what may be wrong with a name that was not found; nothing is guessed."""
    if kind is TargetKind.CONTAINER and name in found.unindexed:
        return " (it was read, and nothing of it is in the index: only responses are)"
    if kind is TargetKind.URL and "*" in name:
        return " (no wildcards: with --prefix, all URLs that begin so)"
    if kind in (TargetKind.URL, TargetKind.PREFIX) and lacks_scheme(name):
        return f" (it has no scheme: did you mean {meant_url(name)}?)"
    if kind is TargetKind.URL and (full := meant_url(name)) != name:
        return f" (did you mean {full}?)"
    if kind is TargetKind.URL and (found_host := counted_host(name.encode())):
        host = printable(found_host.decode("utf-8", "backslashreplace"))
        command = f"bin/list {shlex.quote(str(index))} --host {host}"
        return as_called(f" (URLs are exact: {command} lists those of its host)")
    if kind is TargetKind.HOST and (host := meant_host(name)):
        return f" (--host takes {host})"
    if kind in (TargetKind.CONTAINER, TargetKind.CRAWL) and has_magic(name):
        return f" (no wildcards: give --{kind.value} for each)"
    return ""


def _line(title: str, what: Amount, about: str) -> str:
    return f"{title:<15}{what.captures:>11,}  {_size(what):>12}  {about}"


def _size(what: Amount) -> str:
    if what.known_bytes is None:
        return "size unknown"
    size = amount(what.known_bytes)
    return (
        f"{size} and {what.unsized:,} of unknown size" if 0 < what.unsized < what.captures else size
    )
