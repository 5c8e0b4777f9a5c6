"""Deduplicate a small site end to end, on real records. The exit status is 1 if a number is wrong.

First harvest → bin/index → bin/serve → second harvest, which asks the server and writes revisits →
bin/report; then the same two harvests stored in full → bin/dedup → bin/verify → bin/undedup. Except
for the site and the crawler, these are the commands of the product.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click
from warcio.archiveiterator import ArchiveIterator

from dedupindex import Corpus, __version__
from dedupindex.errors import help_as_called
from demo.harvest import await_second_after, harvest, now
from demo.site import HOSTS, edition, served
from demo.steps import OUT, finished, product, server, show, step

EXPECTED = {"handled": 12, "exact_url": 8, "canonical_url": 1, "digest": 1, "new": 2}
MADE = 12  # revisits, of two harvests that were stored in full
PER_HOST = {"news.test": 6, "museum.test": 3, "mirror.test": 3}  # captures looked up


@click.command("demo", help=help_as_called(__doc__))
@OUT
@click.version_option(__version__, message="dedupindex %(version)s")
@click.pass_context
def command(context: click.Context, out: Path | None) -> None:
    """Run the demo, and exit with its status."""
    context.exit(finished(_run, out))


def _run(out: Path) -> int:
    first, second, index = out / "first.warc.gz", out / "second.warc.gz", out / "index"

    step(f"1. Harvest a small site ({len(edition(1))} pages on {len(HOSTS)} hosts) into a WARC")
    with served(1) as port:
        harvest(edition(1), port, first)
    ended = now()
    print(f"   {first}: {first.stat().st_size:,} bytes")

    step(f"2. bin/index --all {first} {index}")
    built = json.loads(product("index", "--all", first, index, "--json"))
    print(f"   {built['records']} records read (one is the warcinfo record of the file),")
    print(f"   {built['added']} originals in the index")

    step(f"3. bin/serve {index}, and harvest again: the crawler looks up each payload first")
    await_second_after(ended)
    with server(index) as address, served(2) as port:
        outcome = harvest(edition(2), port, second, server=address)
        asked = f"{address}/lookup?digest=…&url=…"
    print(f"   the crawler asked {asked}")
    print(f"   {outcome['revisit']} revisits and {outcome['response']} responses written:")
    print("   two pages are new or changed; one is empty and was not looked up")
    print(f"   {second}: {second.stat().st_size:,} bytes")
    print("   A response of the first harvest, and the revisit that stands for it in the second:\n")
    url = _show_pair(first, second)
    again = _replayed(second, index, url)
    print(f"\n   A corpus reads the revisit as its original: {len(again):,} bytes of {url}")

    step(f"4. bin/report {index} --against {second}")
    print(product("report", index, "--against", second), end="")
    report = json.loads(product("report", index, "--against", second, "--json"))
    wrong = _wrong(built, outcome, report)
    if again != edition(2)[url].body:
        wrong.append(f"the payload of {url} that is read through its revisit")

    with served(2) as port:
        wrong += _post_crawl(out, port)
    for sentence in wrong:
        print(f"WRONG: {sentence}", file=sys.stderr)
    if not wrong:
        step(f"All numbers are right. The files are in {out}; delete it when done. Next:")
        show(f"   bin/list {index}")
        show(f"   bin/serve {index}          then: curl 'http://127.0.0.1:8484/stats'")
        show(f"   bin/report {index} --against {second} --by mime --format csv")
        show(f"   bin/corpus {first} {second} --revisits once --enrich html.title -o pages.jsonl")
        show(f"   bin/cover {first} {second} --relation conf/cover/earliest.txt -o cover.jsonl")
        show("   bin/index --all DIRECTORY-OF-YOUR-WARCS my-index")
    return 1 if wrong else 0


def _headers(path: Path, kind: str, **wanted: str) -> dict[str, str]:
    """Return the WARC headers of the first record of a type with these headers."""
    with path.open("rb") as stream:
        for record in ArchiveIterator(stream):
            headers = dict(record.rec_headers.headers)
            named = {name.replace("_", "-"): value for name, value in wanted.items()}
            if record.rec_type == kind and named.items() <= headers.items():
                return headers
    raise SystemExit(f"there is no {kind} in {path}")


def _show_pair(first: Path, second: Path) -> str:
    """Print a revisit beside the response that it stands for; returns its URL."""
    revisit = _headers(second, "revisit")
    original = _headers(first, "response", WARC_Record_ID=revisit["WARC-Refers-To"])
    sides = [
        [part for item in headers.items() for part in textwrap.wrap(": ".join(item), 56)]
        for headers in (original, revisit)
    ]
    for left, right in zip_longest(*sides, fillvalue=""):
        print(f"   {left:<57} {right}".rstrip())
    return revisit["WARC-Target-URI"]


def _replayed(path: Path, index: Path, url: str) -> bytes:
    """Return the payload that a reader gets of a revisit, through the index.

    It is that of `bin/corpus`, whose values of pages need packages of an extra.
    """
    corpus = Corpus.from_warcs(path).having(originals=index).where(f"url == '{url}'")
    (payload,) = corpus.map_values("payload", bytes.decode)
    return str(payload).encode()


def _post_crawl(out: Path, port: int) -> list[str]:
    """Deduplicate two harvests that were stored in full; returns what is wrong."""
    full, smaller, restored = out / "full", out / "smaller", out / "restored"
    step(f"5. The archive you have: harvest without asking, then bin/dedup {full} --out {smaller}")
    full.mkdir()
    shutil.copy(out / "first.warc.gz", full)
    harvest(edition(2), port, full / "second.warc.gz")
    done = json.loads(product("dedup", full, "--out", smaller, "--json"))
    found = json.loads(product("verify", "--against", full, smaller, "--json"))
    product("undedup", smaller, "--out", restored)
    product("verify", "--against", full, restored, "--records", "--json")
    again = "bin/undedup brings every record back, compressed anew"
    for place, what in ((full, "before"), (smaller, f"after, {done['revisits']} revisits"),
                        (restored, again)):  # fmt: skip
        size = sum(path.stat().st_size for path in place.glob("*.warc.gz"))
        show(f"   {size:>9,} bytes  {what}")
    checks = {"revisits made": (done["revisits"], MADE), "findings": (found["findings"], {})}
    return [f"{what}: {got}, not {must}" for what, (got, must) in checks.items() if got != must]


def _wrong(built: dict[str, Any], outcome: Counter[str], report: dict[str, Any]) -> list[str]:
    """Return the numbers that are wrong, as sentences."""
    found = {name: report[name] for name in EXPECTED}
    hosts = {group["host"]: group["handled"] for group in report["groups"]}
    revisits = sum(EXPECTED[name] for name in ("exact_url", "canonical_url", "digest"))
    saved = sum(
        len(_sent(page.body, chunked=page.chunked))
        for url, page in edition(2).items()
        if page.body and url not in ("http://news.test/today", "http://news.test/new")
    )
    checks = {
        "originals indexed": (built["added"], len(edition(1))),
        "the report's classes": (found, EXPECTED),
        "captures by host": (hosts, PER_HOST),
        "revisits written": (outcome["revisit"], revisits),
        "revisits that the report sees": (report["already_revisits"], revisits),
        "bytes saved": (report["duplicate_bytes"], saved),
        "lookups that failed": (outcome["not-looked-up"], 0),
    }
    return [f"{what}: {got}, not {must}" for what, (got, must) in checks.items() if got != must]


def _sent(body: bytes, *, chunked: bool) -> bytes:
    """Return a body with its transfer coding, as it is stored."""
    if not chunked:
        return body
    pieces = [body[at : at + 1000] for at in range(0, len(body), 1000)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


if __name__ == "__main__":
    command(prog_name="bin/demo")
