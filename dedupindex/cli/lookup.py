"""``bin/lookup``: ask an index, one digest or a batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import click
import orjson

from dedupindex.api import Seen, seen
from dedupindex.cli.common import Command, print_json, say
from dedupindex.cli.index_location import ENGINE_HELP, any_engine, any_index, asked_index
from dedupindex.cli.options import json_option
from dedupindex.crawls.stores import open_store
from dedupindex.digest import SIZES
from dedupindex.errors import BadDigest, BadInput, BadQuery, DedupError, StrategyUnavailable
from dedupindex.index import open_index
from dedupindex.lookup import decide, explain
from dedupindex.lookup.params import UnknownAlgorithm, digests_of, of_json, query_of
from dedupindex.runtime.tables import printable

Given = dict[str, bytes]
_STRETCH = 1000  # lines that are answered from one state of index and crawls

EXAMPLES = """
bin/lookup my-index --digest sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN
bin/lookup my-index --digest FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN --unlabelled sha1 \\
    --url http://example.com/ --strategy EXACT_URL --explain
bin/lookup my-index --batch queries.jsonl      lines of {"digest": ..., "url": ...}
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("index", type=any_index, required=False)
@click.option("--engine", type=any_engine, default="", metavar="ADDRESS", help=ENGINE_HELP)
@click.option("--digest", help="Hex, base32 or base64, as sha1:…, or bare with --unlabelled.")
@click.option("--url", default="", help="The URL that was fetched.")
@click.option(
    "--strategy", default="", show_default="the crawl's, or DIGEST_ANY",
    help="DIGEST_ANY (prefers the same URL), EXACT_URL or CANONICAL_URL.",
)  # fmt: skip
@click.option(
    "--unlabelled", type=click.Choice(list(SIZES)),
    help="The algorithm of digests that carry no label.",
)  # fmt: skip
@click.option("--max-age", metavar="AGE", help="Oldest original: seconds, or 12h, 30d, 2y.")
@click.option("--as-of", metavar="DATE", help="Only originals captured then or before.")
@click.option("--min-size", type=click.IntRange(0), default=0, help="Smallest payload, in bytes.")
@click.option("--not-record", metavar="ID", help="Record id of the asking record: never itself.")
@click.option("--not-date", metavar="DATE", help="WARC-Date of the asking record: never itself.")
@click.option(
    "--covers", type=click.Choice(["stored", "entity", "both"]), help="What the digest is of."
)
@click.option("--bridge", is_flag=True, help="Take originals of other digest algorithms or bytes.")
@click.option("--crawl", metavar="NAME", help="The crawl that asks: it sees what it has reported.")
@click.option("--namespace", metavar="NAMES", help="Namespaces whose crawls may answer too.")
@click.option("--mime", metavar="TYPE", help="Media type that was served, for the crawl's policy.")
@click.option("--explain", is_flag=True, help="Say what was considered, and why it was refused.")
@click.option("--batch", type=click.File("rb"), help="JSON lines to answer in order; - for stdin.")
@json_option
def command(
    index: Path | None, engine: str, batch: BinaryIO | None, as_json: bool, **asked: Any
) -> int:
    """Look up the original of a payload digest in INDEX."""
    if (batch is None) == (asked["digest"] is None):
        raise click.UsageError("give either --digest or --batch")
    index, given = asked_index(index, engine), _given(asked)
    if batch is not None:
        return _batch(index, given, batch)
    with _opened(index) as state:
        _one(state, given, as_json)
    return 0


@contextmanager
def _opened(index: Path) -> Iterator[Seen]:
    """One state of crawls and index, as askers see it."""
    with ExitStack() as stack:
        store = open_store(index)
        if store is not None:
            stack.enter_context(closing(store))
        engine = stack.enter_context(closing(open_index(index)))
        yield stack.enter_context(seen(engine, store))


def _given(options: dict[str, Any]) -> Given:
    """The options that were given, as `asking` takes parameters."""
    return {
        name: str(value).lower().encode()
        if isinstance(value, bool | int)
        else value.encode("utf-8", "surrogateescape")
        for name, value in options.items()
        if value not in (None, False, "")
    }


def _batch(index: Path, given: Given, batch: BinaryIO) -> int:
    """Answer JSON lines in order; what a line does not say, the options do.

    Crawls and index are opened anew for each stretch: a batch may take hours, and captures that are
    merged meanwhile must not go missing.
    """
    number = failed = 0
    numbered = enumerate(batch, 1)
    stretch = [(0, b"")]  # nothing asked yet: an index that cannot be opened is an error even so
    while stretch:
        with _opened(index) as state:
            state.view.prefetch(digests_of(map(_object, (line for _, line in stretch)), given))
            for number, line in stretch:
                if not line.strip():
                    continue
                answer = _line(state, given, line)
                if "error" in answer:
                    failed += 1
                    answer["error"]["line"] = number
                sys.stdout.buffer.write(orjson.dumps(answer) + b"\n")
        stretch = list(islice(numbered, _STRETCH))
    sys.stdout.buffer.flush()
    if failed:
        say(f"{failed:,} of {number:,} lines could not be answered; their answers say why")
    return BadInput.exit_status if failed else 0


def _object(line: bytes) -> Any:
    """What is on a line, None if that cannot be read."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def _line(state: Seen, given: Given, line: bytes) -> dict[str, Any]:
    try:
        own = orjson.loads(line)
        if not isinstance(own, dict):
            raise BadQuery("a line of a batch is a JSON object")
        asked = {**given, **of_json(own)}
        query, explained = query_of(asked)
        query, view = state.by(query, asked)
        answer = decide.as_json(decide.decide(view, state.settings, query))
        if explained:
            answer |= explain.explained(view, state.settings, query)
        return answer
    except UnknownAlgorithm:
        return {"duplicate": False, "reason": "unknown_algorithm"}
    except orjson.JSONDecodeError:
        return {"error": {"code": BadQuery.code, "message": "the line is not JSON"}}
    except DedupError as error:
        if isinstance(error, BadInput | StrategyUnavailable):
            return {"error": {"code": error.code, "message": str(error)}}
        raise


def _said_of_none(decision: decide.Decision) -> str:
    if decision.reason:
        return f"no duplicate: {decision.reason}, so it says of no payload which it is"
    return f"no duplicate: policy {decision.policy}" if decision.policy else "no duplicate"


def _one(state: Seen, given: Given, as_json: bool) -> None:
    try:
        query, explained = query_of(given)
    except UnknownAlgorithm:
        raise BadDigest(
            f"no known algorithm in digest {given['digest'].decode()!r}; "
            f"known are {', '.join(SIZES)}"
        ) from None
    query, view = state.by(query, given)
    decision = decide.decide(view, state.settings, query)
    found, answer = decision.answer, decide.as_json(decision)
    if explained:
        answer |= explain.explained(view, state.settings, query)
    if as_json:
        print_json(answer)
        return
    if found is None:
        click.echo(_said_of_none(decision))
    else:
        skipped = "; a policy says: write nothing" if found.skip else ""
        click.echo(f"duplicate, match {found.match.value}{skipped}")
        for name, value in answer["original"].items():
            if value is not None:
                click.echo(f"  {name:<12}{printable(str(value))}")
    if explained and not answer["considered"] and not decision.reason:
        click.echo(f"considered: nothing has the digest {query.digest}")
    for entry in answer.get("considered", ()):
        original = entry["original"]
        click.echo(
            f"considered: {entry['match']}  {original['date']}  "
            f"{printable(original['url'])}  {entry['verdict']}"
        )
    if answer.get("more"):
        click.echo("considered: and more than are shown")
