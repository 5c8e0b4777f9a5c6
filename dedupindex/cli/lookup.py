"""``bin/lookup``: ask an index, one digest or a batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

import click
import orjson

from dedupindex import lookup
from dedupindex.cli.common import Command, print_json, printable
from dedupindex.digest import SIZES, Digest
from dedupindex.errors import BadInput, BadQuery
from dedupindex.index import open_index
from dedupindex.index.identity import Settings
from dedupindex.index.protocol import View
from dedupindex.lookup import Query, Strategy
from dedupindex.original import original_as_json

EXAMPLES = """
bin/lookup my-index --digest sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN
bin/lookup my-index --digest FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN --unlabelled sha1 \\
    --url http://example.com/ --strategy EXACT_URL --explain
bin/lookup my-index --batch queries.jsonl      lines of {"digest": ..., "url": ...}
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("index", type=click.Path(path_type=Path))
@click.option("--digest", help="In any spelling: hex, base32 or base64, with or without label.")
@click.option("--url", default="", help="The URL that was fetched.")
@click.option(
    "--strategy",
    default="DIGEST_ANY",
    show_default=True,
    help="DIGEST_ANY (prefers the same URL), EXACT_URL or CANONICAL_URL.",
)
@click.option(
    "--unlabelled",
    type=click.Choice(list(SIZES)),
    help="The algorithm of digests that carry no label.",
)
@click.option("--max-age", metavar="AGE", help="Oldest original: seconds, or 12h, 30d, 2y.")
@click.option("--as-of", metavar="DATE", help="Only originals captured then or before.")
@click.option("--min-size", type=click.IntRange(0), default=0, help="Smallest payload, in bytes.")
@click.option("--not-record", metavar="ID", help="Record id of the asking record: never itself.")
@click.option("--not-date", metavar="DATE", help="WARC-Date of the asking record: never itself.")
@click.option("--explain", is_flag=True, help="Say what was considered, and why it was refused.")
@click.option("--batch", type=click.File("rb"), help="JSON lines to answer in order; - for stdin.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(index: Path, batch: BinaryIO | None, as_json: bool, **asked: Any) -> int:
    """Look up the original of a payload digest in INDEX."""
    if (batch is None) == (asked["digest"] is None):
        raise click.UsageError("give either --digest or --batch")
    with closing(open_index(index)) as engine, engine.view() as view:
        settings = engine.identity.settings
        if batch is None:
            _one(view, settings, asked, as_json)
            return 0
        failed = False
        for line in batch:
            answer = _line(view, settings, asked, line)
            failed = failed or "error" in answer
            sys.stdout.buffer.write(orjson.dumps(answer) + b"\n")
        return BadInput.exit_status if failed else 0


def query_of(asked: dict[str, Any]) -> Query:
    """A query of options or of a batch's line; raises `BadInput`."""
    for name in ("digest", "url", "strategy", "max_age", "as_of", "not_record", "not_date"):
        if asked.get(name) is not None and not isinstance(asked[name], str):
            raise BadQuery(f"{name} must be a string")
    if not asked.get("digest"):
        raise BadQuery("a lookup needs a digest")
    url = (asked.get("url") or "").encode("utf-8", "surrogateescape")
    min_size = asked.get("min_size") or 0
    if not isinstance(min_size, int):
        raise BadQuery("min_size must be a whole number")
    return Query(
        digest=Digest.parse(asked["digest"], unlabelled=asked.get("unlabelled") or ""),
        url=url.removeprefix(b"<").removesuffix(b">"),
        strategy=Strategy.parse(asked.get("strategy") or "DIGEST_ANY"),
        max_age=lookup.parse_age(asked["max_age"]) if asked.get("max_age") else None,
        as_of=lookup.parse_moment(asked["as_of"]) if asked.get("as_of") else b"",
        min_size=min_size,
        not_record=lookup.parse_record_id(asked.get("not_record") or ""),
        not_date=lookup.parse_moment(asked["not_date"]) if asked.get("not_date") else b"",
    )


def _line(view: View, settings: Settings, asked: dict[str, Any], line: bytes) -> dict[str, Any]:
    """The answer to one line of a batch; what it does not say, the options do."""
    try:
        own = orjson.loads(line)
        if not isinstance(own, dict):
            raise BadQuery("a line of a batch is a JSON object")
        query = query_of({**asked, **own})
        answer = lookup.as_json(lookup.find(view, settings, query))
        if asked["explain"]:
            answer["considered"] = list(_considered(view, settings, query))
        return answer
    except orjson.JSONDecodeError as error:
        return {"error": {"code": BadQuery.code, "message": f"not JSON: {error}"}}
    except BadInput as error:
        return {"error": {"code": error.code, "message": str(error)}}


def _considered(view: View, settings: Settings, query: Query) -> Iterator[dict[str, Any]]:
    for match, capture, verdict in lookup.explain(view, settings, query):
        yield {
            "match": match.value,
            "verdict": verdict,
            "original": original_as_json(capture),
        }


def _one(view: View, settings: Settings, asked: dict[str, Any], as_json: bool) -> None:
    query = query_of(asked)
    found = lookup.find(view, settings, query)
    answer = lookup.as_json(found)
    considered = list(_considered(view, settings, query)) if asked["explain"] else []
    if as_json:
        print_json({**answer, "considered": considered} if asked["explain"] else answer)
        return
    if found is None:
        click.echo("no duplicate")
    else:
        click.echo(f"duplicate, match {found.match.value}")
        for name, value in answer["original"].items():
            if value is not None:
                click.echo(f"  {name:<12}{printable(str(value))}")
    if asked["explain"]:
        if not considered:
            click.echo(f"considered: nothing has the digest {query.digest}")
        for entry in considered:
            original = entry["original"]
            click.echo(
                f"considered: {entry['match']}  {original['date']}  "
                f"{printable(original['url'])}  {entry['verdict']}"
            )
