"""What an index holds: every number is that of the captures and revisits that were loaded."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dedupindex.capture import Capture, Evidence, Revisit
from dedupindex.index import open_index, same_payload, summary
from dedupindex.index.summary import COLUMNS, DIMENSIONS, ORDERS, summarize
from dedupindex.urlkey import host_of
from tests.support.captures import capture, sha1
from tests.support.commands import typed
from tests.support.purging import begin, load, revisit_of

URLS = [b"http://h%d.example/" % number for number in range(5)]
MIMES = (b"image/png", b"video/mp4", b"")


def counted(index: Path) -> dict[str, Any]:
    with closing(open_index(index)) as engine:
        return summarize(engine)


def test_a_payload_that_was_stored_with_and_without_chunks_has_two_sizes(tmp_path: Path) -> None:
    """The lists and reports of captures say so, too."""
    index = begin(tmp_path)
    sizes = {b"http://a.example/": 1212, b"http://b.example/": 1200, b"http://c.example/": -1}
    load(
        index, [capture(1, url, day, size=size) for day, (url, size) in enumerate(sizes.items(), 1)]
    )
    total = counted(index)["total"]
    assert (total["captures"], total["bytes"], total["unsized"]) == (3, 2 * 1212 + 1200, 0)
    assert (total["duplicates"], total["duplicate_bytes"]) == (2, 1212 + 1200)


def some(seed: int) -> tuple[list[Capture], list[Revisit]]:
    """Captures of few payloads and URLs, so that there are copies, and revisits of some."""
    choose = random.Random(seed)
    captures = {
        (number, url, day): capture(
            number, url, day, size=choose.choice((-1, 10**number)), mime=MIMES[number % 3],
            status=200 + number % 2, crawl=f"crawl-{day % 3}", container=f"/w/{day}.warc.gz",
        )
        for number, url, day in (
            (choose.randrange(9), URLS[choose.randrange(5)], choose.randrange(1, 29))
            for _ in range(120)
        )
    }  # fmt: skip
    originals = choose.sample(sorted(captures.values()), 30)
    revisits = [
        revisit_of(one, one.url, day, crawl="later") for day, one in enumerate(originals, 1)
    ]
    return list(captures.values()), revisits


def expected(captures: list[Capture], revisits: list[Revisit]) -> dict[str, dict[Any, list[int]]]:
    """The sums by each dimension, added up in the plainest way."""
    sums: dict[str, dict[Any, list[int]]] = {
        name: defaultdict(lambda: [0] * 9) for name in DIMENSIONS
    }
    first: dict[Any, Capture] = {}
    for one in captures:
        known = first.setdefault(one.digest, one)
        first[one.digest] = min(known, one, key=lambda each: (each.date, host_of(each.url)))
    sizes = {one.digest: 0 for one in captures}
    for one in captures:
        sizes[one.digest] = max(sizes[one.digest], one.size)

    def add(one: Capture, mime: bytes, status: int, amounts: tuple[int, ...]) -> None:
        size = summary.size_class_of(sizes[one.digest] or -1)
        headings = {
            "host": host_of(one.url).decode(), "year": one.date[:4].decode(),
            "month": one.date[:7].decode(), "mime": mime.decode() or None, "status": str(status),
            "size": size or None, "crawl": one.crawl or None,
        }  # fmt: skip
        for name, heading in headings.items():
            for column, amount in enumerate(amounts):
                sums[name][heading][column] += amount

    for one in captures:
        size = sizes[one.digest]
        again = one is not first[one.digest]
        amounts = (1, size, int(not size), int(again), again * size, again * int(not size), 0, 0, 0)
        add(one, one.mime, one.status, amounts)
    for revisit in revisits:
        one = revisit.capture
        of = first[one.digest]
        size = sizes[one.digest]
        add(one, of.mime, of.status, (0, 0, 0, 0, 0, 0, 1, size, int(not size)))
    return sums


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("little_memory", [False, True])
def test_every_group_has_the_sums_of_its_captures(
    seed: int, little_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if little_memory:
        monkeypatch.setattr(summary, "_GROUPS", 3)
        monkeypatch.setattr(summary, "_HOSTS_IN_MEMORY", 2)
        monkeypatch.setattr(summary, "_OTHERS_IN_MEMORY", 2)
    captures, revisits = some(seed)
    index = begin(tmp_path)
    load(index, captures[:60], revisits[:10])
    load(index, captures[60:], revisits[10:])
    found, sums = counted(index), expected(captures, revisits)
    for name in DIMENSIONS:
        rows = {row[name]: [row[column] for column in COLUMNS] for row in found["by"][name]["rows"]}
        assert rows == sums[name], name
        assert found["by"][name]["groups"] == len(rows)
        assert [found["total"][column] for column in COLUMNS] == [
            sum(column) for column in zip(*rows.values(), strict=True)
        ]


def test_a_digest_of_many_captures_is_counted_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = begin(tmp_path)
    load(index, [capture(1, b"http://h%d.example/" % n, n % 28 + 1) for n in range(100)])
    whole = counted(index)
    monkeypatch.setattr(summary, "_HELD", 7)
    assert {**counted(index), "made": 0, "seconds": 0} == {**whole, "made": 0, "seconds": 0}
    assert whole["total"]["duplicates"] == 99


def test_the_others_are_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captures, revisits = some(7)
    index = begin(tmp_path)
    load(index, captures, revisits)
    monkeypatch.setattr(summary, "_TOP", 2)
    found, sums = counted(index), expected(captures, revisits)["host"]
    for order in ORDERS:
        shown = summary.ranking(found, "host", order, 2)
        column = COLUMNS.index(order)
        assert [row[order] for row in shown.rows] == sorted(
            (amounts[column] for amounts in sums.values()), reverse=True
        )[:2]
        named = {row["host"] for row in shown.rows}
        rest = [amounts for host, amounts in sums.items() if host not in named]
        assert shown.others == {
            "groups": 3, **{name: sum(row[at] for row in rest) for at, name in enumerate(COLUMNS)}
        }  # fmt: skip


def test_a_record_that_a_cdx_lists_too_is_one_capture(tmp_path: Path) -> None:
    index = begin(tmp_path)
    record = capture(1)
    row = record._replace(evidence=Evidence.ROW, container="/w/x.cdx", record_id=b"")
    load(index, [record, row, capture(1, day=2)])
    total = counted(index)["total"]
    assert (total["captures"], total["duplicates"]) == (2, 1)


def test_a_row_of_a_refused_record_is_not_stored(tmp_path: Path) -> None:
    """The index keeps the row in reserve, and another row in the ledger: neither is counted."""
    index = begin(tmp_path)
    refused = capture(1)._replace(evidence=Evidence.REVISIT, offset=0)
    row = capture(1)._replace(evidence=Evidence.ROW, container="/w/x.cdx", record_id=b"")
    rows = [row, row._replace(container="/w/y.cdx", offset=7)]
    load(index, [refused, *rows])
    assert counted(index)["total"] == dict.fromkeys(COLUMNS, 0)
    with closing(open_index(index)) as engine:
        assert same_payload.of_digest(engine, sha1(1), 100).captures == []
    load(index, [capture(1, day=2)])
    total = counted(index)["total"]
    assert (total["captures"], total["duplicates"]) == (1, 0)


def test_captures_and_revisits_of_one_payload(tmp_path: Path) -> None:
    index = begin(tmp_path)
    first, copy, other = capture(1), capture(1, day=3), capture(1, b"http://other.example/", 2)
    revisit = revisit_of(first, b"http://third.example/", 1, crawl="later")
    load(
        index, [copy, other, first, capture(2)], [revisit, revisit_of(capture(2), b"http://x/", 2)]
    )
    with closing(open_index(index)) as engine:
        found = same_payload.of_digest(engine, sha1(1), 100)
        few = same_payload.of_digest(engine, sha1(1), 1)
    assert [one.date for one in found.captures] == [first.date, other.date, copy.date]
    assert found.originals == {0, 1} and not found.more and few.more
    ((only, place),) = found.revisits
    assert (only.url, only.names_url, place.crawl) == (b"http://third.example/", first.url, "later")


def test_a_url_without_scheme_has_no_host(tmp_path: Path) -> None:
    index = begin(tmp_path)
    load(index, [capture(1, b"example.com/a"), capture(2, b"sha1:AAAA"), capture(3, b"http://a/")])
    rows = {row["host"]: row["captures"] for row in counted(index)["by"]["host"]["rows"]}
    assert rows == {None: 2, "a": 1}
    out, _ = typed("index", "--stats", index)
    assert re.search(r"^ +2 +66.7 % +2.0 kB .* 0 B  not known$", out, re.MULTILINE), out
