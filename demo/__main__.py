"""Deduplicate a small site end to end, on real records. The exit status is 1 if a number is wrong.

First harvest → bin/index → bin/serve → second harvest, which asks the server and writes revisits →
bin/report. Except for the site and the crawler, these are the commands of the product.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from demo.harvest import harvest, now
from demo.site import HOSTS, edition, served
from demo.steps import command, finished, server, step

EXPECTED = {"handled": 12, "exact_url": 8, "canonical_url": 1, "digest": 1, "new": 2}
PER_HOST = {"news.test": 6, "museum.test": 3, "mirror.test": 3}  # captures looked up


def main() -> int:
    """Run the demo; returns the exit status."""
    return finished("bin/demo", __doc__, _run)


def _run(out: Path) -> int:
    first, second, index = out / "first.warc.gz", out / "second.warc.gz", out / "index"

    step(f"1. Harvest a small site ({len(edition(1))} pages on {len(HOSTS)} hosts) into a WARC")
    with served(1) as port:
        harvest(edition(1), port, first)
    ended = now()
    print(f"   {first}: {first.stat().st_size:,} bytes")

    step(f"2. bin/index --all {first} {index}")
    built = json.loads(command("index", "--whitelist", "--mime", ".*", "--json", first, index))
    print(f"   {built['records']} records read (one is the warcinfo record of the file),")
    print(f"   {built['added']} originals in the index")

    step(f"3. bin/serve {index}, and harvest again: the crawler looks up each payload first")
    while now() == ended:  # so that the captures of both differ in date
        time.sleep(0.01)
    with server(index) as address, served(2) as port:
        outcome = harvest(edition(2), port, second, server=address)
        asked = f"{address}/lookup?digest=…&url=…"
    print(f"   the crawler asked {asked}")
    print(f"   {outcome['revisit']} revisits and {outcome['response']} responses written:")
    print("   two pages are new or changed; one is empty and was not looked up")
    print(f"   {second}: {second.stat().st_size:,} bytes")

    step(f"4. bin/report {index} --against {second}")
    print(command("report", index, "--against", second), end="")
    report = json.loads(command("report", index, "--against", second, "--json"))
    wrong = _wrong(built, outcome, report)
    for sentence in wrong:
        print(f"WRONG: {sentence}", file=sys.stderr)
    if not wrong:
        step(f"All numbers are right. The files are in {out}; delete it when done. Next:")
        print(f"   bin/index --stats {index}")
        print(f"   bin/serve {index}          then: curl 'http://127.0.0.1:8484/stats'")
        print(f"   bin/report {index} --against {second} --by mime --format csv")
        print(f"   bin/corpus {first} {second} --revisits once --enrich html.title -o pages.jsonl")
        print(f"   bin/cover {first} {second} --relation conf/cover/earliest.txt -o cover.jsonl")
        print("   bin/index --all DIRECTORY-OF-YOUR-WARCS my-index")
    return 1 if wrong else 0


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
    sys.exit(main())
