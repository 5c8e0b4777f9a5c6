"""A flipped bit in stored data never gives a wrong answer.

The tests flip single bits in the files of an index and compare all answers before and after: over
HTTP, as ``bin/lookup``, and the impact of a file. An answer may become an error. A flipped key is
not found any more: then an answer may lack a capture, or be another stored one, as if the first had
never been stored. The tests print how often.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dedupindex.capture import Capture, Evidence, RefersTo, Revisit
from dedupindex.digest import Digest
from dedupindex.index.identity import Settings
from dedupindex.post_crawl.purge.remove import purge
from dedupindex.post_crawl.purge.target import Target, TargetKind
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.attacks.answering import NUMBERS, stored_originals, url_of
from tests.support.captures import capture, sha1
from tests.support.purging import begin, load
from tests.unit.server.test_crawl_api import begin as begin_crawl
from tests.unit.server.test_crawl_api import report

ROOT = Path(__file__).resolve().parents[2]
REFUSALS = {"damaged", "index_unavailable", "format_from_future", "format_from_past"}
REFUSED, MISSED = "refused", "missed"


def sample_captures() -> list[Capture]:
    """Captures of all kinds: with two URLs, odd record ids and media types, further digests."""
    captures = []
    for number in NUMBERS[:20]:
        fields: dict[str, Any] = {}
        if number % 5 == 0:
            fields = {"mime": b"x-odd/type", "status": 404, "record_id": b"urn:odd:%d" % number}
        if number % 7 == 0:
            fields["also"] = (Digest("sha256", bytes([number]) * 32),)
        if number % 3 == 0:
            fields["crawl"] = "weekly"
        url = url_of(number).encode()
        captures.append(capture(number, url, 1 + number % 9, **fields))
        captures.append(capture(number, url_of(number + 7).encode(), 10 + number % 9))
    return captures


def build_index(directory: Path, engine: str = "lmdb") -> Path:
    """An index that was loaded, added to and purged, with crawls that have written to it."""
    by_url = engine == "lmdb"
    index = begin(directory, engine, Settings(by_url=by_url, status="200,404"))
    captures = sample_captures()
    load(index, captures)
    load(index, [captured._replace(date=b"2026-10-01T00:00:00Z") for captured in captures[::9]])
    claims = [captured._replace(evidence=Evidence.REVISIT, offset=0) for captured in captures[::11]]
    revisits = [
        Revisit(
            captured._replace(container="/warcs/r.warc.gz"), RefersTo(captured.url, captured.date)
        )
        for captured in captures[::4]
    ]
    load(index, claims, revisits)
    load(index, captures[3:30:6], revisits[:1])
    purge(index, Target(TargetKind.CONTAINER, ("/warcs/7.warc.gz",)), force=True)
    live = LiveIndex(index)
    live.refresh()
    web = create_app(Config(index), live).test_client()
    for name, options in (("done", {}), ("going", {"seen_by": "all"})):
        begin_crawl(web, name, **options)
        first = 20 if name == "going" else 15
        reports = [
            report(number, url_of(number), container=f"{name}.warc.gz", offset=number)
            for number in NUMBERS[first : first + 10]
        ]
        assert web.post("/captures", json={"crawl": name, "captures": reports}).status_code == 200
        web.post(
            "/claims", json={"crawl": name, "digest": str(sha1(900 + first)), "url": "http://a/"}
        )
    for number in NUMBERS:
        web.get(f"/lookup?digest={sha1(number)}&url={url_of(number)}&crawl=going")
    web.post("/crawls/done/commit")
    live.close()
    live.opened().engine.close()
    store = live.crawls.store()
    assert store is not None
    store.close()
    return index


@dataclass
class Tally:
    """Counts of flips by their effect, and wrong answers."""

    flips: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)  # what was refused, and --check did not find


@contextmanager
def answering(index: Path) -> Iterator[Any]:
    """Give a function that makes all requests to an index, in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.attacks.answering"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        requests, replies = process.stdin, process.stdout
        assert requests is not None and replies is not None

        def ask() -> dict[str, Any]:
            requests.write(json.dumps({"index": str(index)}) + "\n")
            requests.flush()
            return dict(json.loads(replies.readline()))

        yield ask
        requests.close()
        assert process.wait() == 0


def flip_bit(data: bytes, bit: int) -> bytes:
    """Return the data with one bit flipped."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def error_code(answer: Any) -> str:
    """The code of an error, "" for an answer."""
    status, content = answer
    if status < 400:
        return ""
    return str(content["error"]["code"]) if isinstance(content, dict) else str(status)


def originals_in(content: Any) -> Iterator[str]:
    """Yield all originals, lines and rows of an answer, as text."""
    if isinstance(content, dict):
        if "original" in content:
            yield original_text(content["original"])
        for value in content.values():
            yield from originals_in(value)
    elif isinstance(content, list):
        for value in content:
            if isinstance(value, str) or (isinstance(value, dict) and "name" in value):
                yield json.dumps(value, sort_keys=True)
            yield from originals_in(value)


def original_text(original: dict[str, Any]) -> str:
    """Return an original as text, without what depends on the crawl that asks."""
    return json.dumps({**original, "committed": True, "crawl": ""}, sort_keys=True)


def cdx_fields(original: str) -> tuple[str, str, str, str]:
    """URL, date, offset and container of an original, as a CDX line has them."""
    fields = json.loads(original)
    date = "".join(filter(str.isdigit, fields["date"]))[:14]
    return fields["url"], date, str(fields["offset"]), Path(fields["container"] or "-").name


def is_reduced(before: Any, after: Any) -> bool:
    """Whether an answer only lacks something: no number is greater, and no list longer."""
    if isinstance(before, dict) and isinstance(after, dict):
        return all(is_reduced(value, after.get(name)) for name, value in before.items())
    if isinstance(before, list) and isinstance(after, list):
        return len(after) < len(before) or all(map(is_reduced, before, after))
    if isinstance(before, int | float) and isinstance(after, int | float):
        return after <= before
    return before == after or after in (None, "") or isinstance(before, str | None)


def classify_answer(name: str, before: Any, after: Any, stored: set[str]) -> str:
    """Return the effect on an answer: "" for none, `REFUSED`, `MISSED`, or what is wrong."""
    if after == before:
        return ""
    code = error_code(after)
    if code == "unknown_crawl" or (name == "impact" and code == "bad_input"):
        return MISSED  # the name of a crawl or of a container is not found any more
    if code:
        return REFUSED if code in REFUSALS else f"error {code}"
    if name.startswith("POST /lookup") and "answers" in after[1]:
        kinds = {
            classify_answer(
                "GET /lookup", [200, answer], [503 if "error" in later else 200, later], stored
            )
            for answer, later in zip(before[1]["answers"], after[1]["answers"], strict=True)
        }
        return max(kinds - {""}, key=lambda kind: (kind not in (REFUSED, MISSED), kind == MISSED))
    if name.startswith(("GET /lookup", "DIGEST", "EXACT", "CANON")):
        originals = list(originals_in(after[1]))
        if not after[1]["duplicate"] or stored.issuperset(originals):
            return MISSED
        return "another answer"
    if name.startswith("GET /cdx") and {cdx_fields(original) for original in stored}.issuperset(
        (line.split()[2], line.split()[1], *line.split()[-2:]) for line in after[1]
    ):
        return MISSED  # of two captures of a URL and digest, the other one is listed
    if name.startswith("GET /crawls") and is_reduced(before[1], after[1]):
        return MISSED
    if name == "impact" or set(originals_in(after[1])) < set(originals_in(before[1])):
        return MISSED  # of a list
    return "another answer"


def attack(
    path: Path, bit: int, before: dict[str, Any], stored: set[str], ask: Any, tally: Tally
) -> None:
    """Flip a bit in a file of an index, and make all requests."""
    content, place = path.read_bytes(), f"{path.name} bit {bit}"
    path.write_bytes(flip_bit(content, bit))
    reply = ask()
    path.write_bytes(content)  # who opens it to write may have changed it
    if "answers" not in reply:
        if "signal" not in reply:
            tally.wrong.append(f"{place}: {reply}")
        tally.flips[f"{path.suffix} killed by {reply.get('signal')}"] += 1
        return
    answers = reply["answers"]
    outcomes = {
        name: classify_answer(name, before[name], answers[name], stored)
        for name in answers.keys() & before.keys() - {"check"}
    }
    if path.suffix == ".led" and outcomes.get("impact") == MISSED:
        outcomes["impact"] = "another answer"  # its items have one checksum together
    kinds = set(outcomes.values()) | ({REFUSED} if "library" in answers else set())
    for name, kind in outcomes.items():
        if kind not in ("", REFUSED, MISSED):
            tally.wrong.append(f"{place}: {name}: {kind}: {answers[name]}")
    outcome = MISSED if MISSED in kinds else REFUSED if REFUSED in kinds else "the same"
    tally.flips[f"{path.suffix} {outcome}"] += 1
    is_refused = outcome == REFUSED or (outcome == MISSED and path.name != "crawls.mdb")
    if is_refused and "check" not in answers:
        tally.unseen.append(f"{place}: {[name for name, kind in outcomes.items() if kind][:3]}")


@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
def test_a_flipped_bit_is_never_another_answer(
    engine: str, tmp_path: Path, chance: Random, effort: int
) -> None:
    index = build_index(tmp_path, engine)
    shares = {"data-*.mdb": 14, "crawls.mdb": 8, "ledger/*.led": 2, "index.json": 2}
    if engine == "whoosh":
        shares = {"whoosh/*.seg": 5, "whoosh/*.toc": 2, "crawls.mdb": 1}
    tally, stored = Tally(), {original_text(original) for original in stored_originals(index)}
    with answering(index) as ask:
        before = ask()["answers"]
        assert before["check"] == [200, []]
        for pattern, share in shares.items():
            for _ in range(share * effort):
                path = chance.choice(sorted(index.glob(pattern)))
                bit = chance.randrange(8 * path.stat().st_size)
                attack(path, bit, before, stored, ask, tally)
        assert ask()["answers"] == {}
    print(engine, dict(sorted(tally.flips.items())))
    assert not tally.wrong, "\n".join(tally.wrong[:20])
    assert not tally.unseen, "\n".join(tally.unseen[:20])


def test_check_finds_flips_on_the_way_to_a_key(tmp_path: Path, chance: Random, effort: int) -> None:
    """Of pages that lead to others: who reads in order passes them without a look."""
    index = build_index(tmp_path)
    path = index / "data-1.mdb"
    tally, stored = Tally(), {original_text(original) for original in stored_originals(index)}
    data, size = path.read_bytes(), 4096
    pages = [data[at : at + size] for at in range(0, len(data), size)]
    branches = [n for n, page in enumerate(pages) if n > 1 and page[10] & 1]
    with answering(index) as ask:
        before = ask()["answers"]
        for _ in range(15 * effort):
            number = chance.choice(branches)
            upper = int.from_bytes(pages[number][14:16], sys.byteorder)  # where its keys begin
            bit = 8 * size * number + chance.randrange(8 * upper + 80, 8 * size)
            attack(path, bit, before, stored, ask, tally)
    print(dict(sorted(tally.flips.items())))
    assert not tally.unseen, "\n".join(tally.unseen[:20])
