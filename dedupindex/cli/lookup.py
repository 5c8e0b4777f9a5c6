"""``bin/lookup``: look up one digest or a batch in an index."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import click
import orjson

from dedupindex.api import IndexSnapshot, open_snapshot
from dedupindex.cli.common import NOTHING_FOUND, Command, is_file, is_typed, print_result, say
from dedupindex.cli.index_location import index_or_engine, optional_index
from dedupindex.cli.list import (
    Search,
    captures_at,
    no_scheme,
    opened_to_list,
    print_captures,
    suggesting_crawls,
    why_none,
    without_positions,
)
from dedupindex.cli.list import command as list_command
from dedupindex.cli.options import COUNT, flag, option, shared_options
from dedupindex.cli.progress_bar import show_progress
from dedupindex.counts import ProgressUpdate
from dedupindex.digest import SIZES, no_label
from dedupindex.errors import BadDigest, BadInput, BadQuery, StrategyUnavailable, as_called
from dedupindex.lookup import decide, explain
from dedupindex.lookup.conditions import parse_age
from dedupindex.lookup.decide import Query
from dedupindex.lookup.last_capture import LastCapture, last_as_json, why_in_full
from dedupindex.lookup.params import (
    LAST_PARAMETERS,
    UnknownAlgorithm,
    params_from_json,
    parse_query,
    query_digests,
)
from dedupindex.lookup.render_json import original_as_json
from dedupindex.runtime.tables import json_bytes, printable
from dedupindex.urlkey import with_path

Given = dict[str, bytes]
_CHUNK = 1000  # lines answered from one state of index and crawls

EXAMPLES = """
bin/lookup my-index --digest sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN
bin/lookup my-index --digest FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN --unlabelled sha1 \\
    --url http://example.com/ --strategy EXACT_URL --explain
bin/lookup my-index --batch queries.jsonl      # lines of {"digest": ..., "url": ...}
bin/lookup my-index --last --url http://example.com/
"""


@click.command(cls=Command, examples=EXAMPLES, like=("list", list_command))
@optional_index
@option("--digest", help="Hex, base32 or base64, as sha1:…, or without a label with --unlabelled.")
@option("--url", default="", help="The URL that was fetched.")
@option(
    "--strategy", default="", show_default="the crawl's, or DIGEST_ANY",
    help=f"{', '.join(decide.Strategy.__members__)}; DIGEST_ANY prefers the same URL.",
)  # fmt: skip
@option(
    "--unlabelled", type=click.Choice(list(SIZES)), help="Algorithm of digests without a label."
)
@option("--max-age", metavar="AGE", help="Oldest original: seconds, or 12h, 30d, 2y.")
@option(
    "--as-of", metavar="DATE",
    help="Only originals captured then or before: a year, month, day or second.",
)  # fmt: skip
@option("--min-size", type=COUNT, default=0, help="Smallest payload, in bytes.")
@option(
    "--not-record",
    metavar="ID",
    help="Record id of the capture itself, which is not its own original.",
)
@option("--not-date", metavar="DATE", help="WARC-Date of the capture itself, likewise.")
@option(
    "--covers", type=click.Choice(["stored", "entity", "both"]),
    help="What the digest covers: the body with its transfer coding, without, or both.",
)  # fmt: skip
@flag("--bridge", help="Accept originals of other digest algorithms or coverage.")
@option("--crawl", metavar="NAME", help="The crawl that asks; it sees what it reported.")
@option("--namespace", metavar="NAMES", help="Namespaces whose crawls may answer too.")
@option("--mime", metavar="TYPE", help="Media type that was served, for the crawl's policy.")
@flag(
    "--last", setting=False,
    help="Show the last capture of --url, and on which conditions to fetch it.",
)  # fmt: skip
@flag("--explain", help="List the captures considered, with verdicts.")
@option("--batch", type=click.File("rb"), help="JSON lines to answer in order; - for stdin.")
@shared_options("--json")
def command(index: Path | None, engine: str, batch: BinaryIO | None, **options: Any) -> int:
    """Look up the original of a payload digest in INDEX, or with --url alone list a URL's captures.

    The exit status is 10 if there is none.
    """
    if options["max_age"]:
        parse_age(options["max_age"], "--max-age")
    index = index_or_engine(index, engine)
    if options.pop("last"):
        return _last(index, batch, options)
    given = _given(options)
    if batch is None and options["digest"] is None and options["url"]:
        return _list(index, given, options)
    if (batch is None) == (options["digest"] is None):
        raise click.UsageError("give either --digest or --batch; --url alone lists a URL")
    if batch is not None:
        return _lookups(index, given, batch)
    with suggesting_crawls(index, options["crawl"] or ""), open_snapshot(index) as state:
        return _one(state, given)


def _list(index: Path, given: Given, options: dict[str, Any]) -> int:
    """List the captures of --url; returns the exit status."""
    others = [
        f"--{name.replace('_', '-')}" for name in given.keys() - {"url", "crawl"} if is_typed(name)
    ]
    if others:
        needs = f"{', '.join(sorted(others))} {'needs' if len(others) == 1 else 'need'} --digest"
        raise click.UsageError(f"{needs}; --url alone lists the captures of a URL")
    url, crawl = options["url"], options["crawl"] or ""
    with opened_to_list(index, crawl) as (opened, progress):
        why = partial(why_none, opened, crawl, url=url)
        captures = captures_at(opened, url, crawl, progress)
        return print_captures(Search(without_positions(captures)), 0, why)


def _given(options: dict[str, Any]) -> Given:
    """Return the options that were given, as `params.parse_query` takes them."""
    return {
        name: str(value).lower().encode()
        if isinstance(value, bool | int)
        else value.encode("utf-8", "surrogateescape")
        for name, value in options.items()
        if value not in (None, False, "")
    }


def _lookups(index: Path, given: Given, batch: BinaryIO) -> int:
    """Answer a batch of lookups, with the options as defaults; returns the exit status."""
    return _batch(index, batch, partial(_prefetch, given=given), partial(_answer, given=given))


def _last(index: Path, batch: BinaryIO | None, options: dict[str, Any]) -> int:
    """Show the last capture of a URL, or of each URL of a batch."""
    given = _given(options)
    for name in given.keys() - LAST_PARAMETERS.keys():
        if is_typed(name):
            raise click.UsageError(f"--{name.replace('_', '-')} has no effect with --last")
        del given[name]  # of a settings file
    if (batch is None) == ("url" not in given):
        raise click.UsageError("give either --url or --batch with --last")
    if batch is not None:
        return _batch(index, batch, lambda state, own: None, partial(_last_answer, given=given))
    with suggesting_crawls(index, options["crawl"] or ""), open_snapshot(index) as state:
        last = state.last_capture(given)
        if last is None and (full := with_path(given["url"])) != given["url"]:
            last = state.last_capture({**given, "url": full})
    print_result(last_as_json(last), _last_text(last))
    return 0 if last is not None else NOTHING_FOUND


def _last_answer(state: IndexSnapshot, own: dict[str, Any], given: Given) -> dict[str, Any]:
    return last_as_json(state.last_capture({**given, **params_from_json(own, LAST_PARAMETERS)}))


def _last_text(last: LastCapture | None) -> Iterator[str]:
    if last is None:
        yield "not known"
        return
    for name, value in last_as_json(last).items():
        if value is not None and name not in ("known", "original", "conditions"):
            shown = {True: "yes", False: "no"}.get(value, value) if name == "revisit" else value
            yield f"{name:<14}{printable(str(shown))}"
    if last.original is not None:
        original = original_as_json(last.original)
        yield f"{'original':<14}{original['date']}  {original['record_id'] or 'no record id'}"
    for name, text in last.conditions.items():
        yield f"send {name}: {text}"
    if not last.conditions:
        yield f"fetch it in full: {why_in_full(last)}"


def _batch(
    index: Path,
    batch: BinaryIO,
    prefetch: Callable[[IndexSnapshot, Iterable[Any]], None],
    answered: Callable[[IndexSnapshot, dict[str, Any]], dict[str, Any]],
) -> int:
    """Answer JSON lines in order, and show progress; returns the exit status.

    Crawls and index are reopened for each chunk: a batch may take hours, and captures that are
    merged meanwhile must be found.
    """
    number = failed = read = 0
    of = os.fstat(batch.fileno()).st_size if is_file(batch) else 0
    numbered = enumerate(batch, 1)
    chunk = [(0, b"")]  # an index that cannot be opened is an error for an empty batch, too
    with show_progress(prints=True) as progress:
        while chunk:
            with open_snapshot(index) as state:
                parsed = [(number, _parsed(line)) for number, line in chunk if line.strip()]
                prefetch(state, [own for _, own in parsed])
                for number, own in parsed:
                    answer = _answer_to(state, own, answered)
                    if "error" in answer:
                        failed += 1
                        answer["error"]["line"] = number
                    sys.stdout.buffer.write(json_bytes(answer) + b"\n")
            read += sum(len(line) for _, line in chunk)
            progress(ProgressUpdate("looking up", read, of, number))
            chunk = list(islice(numbered, _CHUNK))
        sys.stdout.buffer.flush()
    if failed:
        say(f"{failed:,} of {number:,} lines could not be answered; their answers say why")
    return BadInput.exit_status if failed else 0


def _parsed(line: bytes) -> Any:
    """Return the content of a line, or the error that answers it."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return BadQuery("the line is not JSON")


def _decide(state: IndexSnapshot, given: Given) -> tuple[decide.Decision, dict[str, Any], Query]:
    """Look up one digest; returns the answer also as JSON, with its explanation if asked for."""
    query, explained, _ = parse_query(given)
    query, view = state.for_query(query, given)
    decision = decide.decide(view, state.settings, query)
    answer = decide.as_json(decision)
    if explained:
        answer |= explain.explanation_json(view, state.settings, query)
    return decision, answer, query


def _prefetch(state: IndexSnapshot, own: Iterable[Any], given: Given) -> None:
    state.view.prefetch(query_digests(own, given))


def _answer(state: IndexSnapshot, own: dict[str, Any], given: Given) -> dict[str, Any]:
    try:
        return _decide(state, {**given, **params_from_json(own)})[1]
    except UnknownAlgorithm:
        return {"duplicate": False, "reason": "unknown_algorithm"}


def _answer_to(
    state: IndexSnapshot,
    own: Any,
    answered: Callable[[IndexSnapshot, dict[str, Any]], dict[str, Any]],
) -> dict[str, Any]:
    try:
        if isinstance(own, BadQuery):
            raise own
        if not isinstance(own, dict):
            raise BadQuery("a line of a batch is a JSON object")
        return answered(state, own)
    except (BadInput, StrategyUnavailable) as error:
        return {"error": {"code": error.code, "message": str(error)}}


def _one(state: IndexSnapshot, given: Given) -> int:
    digest = given.get("digest", b"").decode("utf-8", "replace")
    if digest and ":" not in digest and "unlabelled" not in given:
        raise BadDigest(
            f"{no_label(digest)}, or add --unlabelled sha1 "
            f"(or {', '.join(name for name in SIZES if name != 'sha1')})"
        )
    try:
        decision, answer, query = _decide(state, given)
    except UnknownAlgorithm:
        raise BadDigest(
            f"no known algorithm in digest {digest!r}; known are {', '.join(SIZES)}"
        ) from None
    notes: list[str] = []
    if decision.answer is None:
        hint = explain.algorithm_hint(state.view, query, state.engine.identity.engine)
        notes += [as_called(hint), explain.purged_hint(state.view, query)]
        if "considered" not in answer and not decision.reason:
            notes.append(explain.left_out_hint(state.view, state.settings, query))
    notes.append(no_scheme(query.url.decode("utf-8", "backslashreplace")))
    notes = [note for note in notes if note]
    print_result(answer, _text_of(decision, answer, query), notes)
    return 0 if decision.answer is not None else NOTHING_FOUND


def _text_of(decision: decide.Decision, answer: dict[str, Any], query: Query) -> Iterator[str]:
    found = decision.answer
    if found is not None:
        skipped = "; a policy says: write nothing" if found.skip else ""
        yield f"duplicate, match {found.match.value}{skipped}"
        for name, value in answer["original"].items():
            if value is not None:
                yield f"  {name + ' ':<12}{printable(str(value))}"
    elif decision.reason:
        yield f"no duplicate: {decision.reason}, so the digest identifies no payload"
    else:
        yield f"no duplicate: policy {decision.policy}" if decision.policy else "no duplicate"
    if answer.get("considered") == [] and not decision.reason:
        yield f"considered: nothing has the digest {query.digest}"
    for entry in answer.get("considered", ()):
        original = f"{entry['original']['date']}  {printable(entry['original']['url'])}"
        yield f"considered: {entry['match']}  {original}  {entry['verdict']}"
    if answer.get("more"):
        yield "considered: more than are listed"
