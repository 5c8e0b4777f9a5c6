"""The planned requests beside those that the commands send, for files of three sizes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dedupindex.capacity.post_crawl_plan import traffic_of_runs
from dedupindex.capacity.rates import load
from tests.support.commands import typed
from tests.support.stores import Bucket
from tests.support.warc_cases import gz, response

GETS = BYTES = 0.08  # tolerance: an original may be in a block that was read for another
HEADS = 0.06  # likewise: how many files have originals of a file is an expectation
VERIFY = 0.15  # of `bin/verify --against`, which looks at some blocks again
FEW = 8  # requests of a run that do not depend on the files
PUTS = ("put", "part", "copy", "post")  # fewer than planned if a store copies long ranges


@dataclass
class Case:
    """An archive in a bucket, and the rates of a plan for it."""

    bucket: Bucket
    size: int
    inputs: dict[str, Any]


def archive(files: int, captures: int, copies: int, body: int) -> list[bytes]:
    """Return files of captures; of each so many repeat a random one of another file."""
    random, own = Random(1), captures - copies
    originals = {(file, number): random.randbytes(body) for file in range(files)
                 for number in range(own)}  # fmt: skip

    def member(number: int, data: bytes, second: int) -> bytes:
        date = b"2026-11-20T%02d:%02d:%02dZ" % (second // 3600, second // 60 % 60, second % 60)
        url = b"http://a.test/%d" % number
        return gz(response(data, number=number, Target_URI=url, Date=date), 1)

    made = []
    for file in range(files):
        members = [member(file * captures + n, originals[file, n], n) for n in range(own)]
        for n in range(own, captures):
            other = random.choice([one for one in originals if one[0] != file])
            members.append(member(file * captures + n, originals[other], 40_000 + n))
        random.shuffle(members)
        made.append(b"".join(members))
    return made


def stored(bucket: Bucket, files: int, captures: int, copies: int, body: int) -> Case:
    data = archive(files, captures, copies, body)
    for number, one in enumerate(data):
        bucket.put(f"warcs/{number:03}.warc.gz", one)
    inputs, size = load(), sum(map(len, data))
    inputs["post_crawl"].update(
        bytes_per_capture=size / files / captures, bytes_per_file=size / files,
        duplicates=copies / captures,
    )  # fmt: skip
    return Case(bucket, size, inputs)


def agree(sent: dict[str, int], planned: Any, gets: float = GETS) -> None:
    assert sent["get"] == pytest.approx(planned.gets, rel=gets)
    assert sent["head"] == pytest.approx(planned.heads, rel=HEADS, abs=FEW)
    assert sent["list"] == pytest.approx(planned.lists, abs=FEW)
    assert planned.puts / 2 <= sum(sent[kind] for kind in PUTS) <= planned.puts
    if "read" not in sent:
        return
    assert sent["read"] == pytest.approx(planned.bytes_read, rel=max(BYTES, gets))
    if not sent["copy"]:  # what the store copies is not sent
        assert sent["written"] == pytest.approx(planned.bytes_written, rel=BYTES)


def asked(bucket: Bucket) -> dict[str, int]:
    """Return the requests that the server has had, by kind."""
    counts = dict.fromkeys((*PUTS, "get", "head", "list", "delete"), 0)
    for method, path, _ in bucket.server.requests:
        counts["list" if "list-type=" in path else method.lower()] += 1
    return counts


@pytest.mark.parametrize(
    ("files", "captures", "copies", "body"),
    [(8, 60, 12, 25_000), (24, 10, 3, 6_000), (4, 10, 3, 950_000), (3, 5, 1, 7_000_000)],
    ids=["1.5 MB", "60 kB", "9.5 MB", "35 MB"],
)
def test_planned_requests_are_those_that_are_sent(
    buckets: Callable[[], Bucket], tmp_path: Path, files: int, captures: int, copies: int,
    body: int,
) -> None:  # fmt: skip
    case = stored(buckets(), files, captures, copies, body)
    url = case.bucket.url

    def sent(*words: Any) -> dict[str, int]:
        found: dict[str, int] = json.loads(typed(*words, "--json")[0].splitlines()[-1])["requests"]
        return found

    def dedup(name: str, *more: str) -> Any:
        where = ("--out", f"{url}/{name}", "--state", tmp_path / name, "--jobs", "1")
        found = json.loads(typed("dedup", f"{url}/warcs/", *where, *more, "--json")[0])
        assert found["revisits"] == files * copies
        return found

    dry, run = dedup("dry", "--dry-run"), dedup("smaller")
    case.inputs["post_crawl"]["bytes_saved"] = run["bytes_saved"] / case.size
    planned = traffic_of_runs(case.size, case.inputs)
    agree(dry["requests"], planned["dry_run"])
    agree(run["requests"], planned["run"])
    words = ("verify", "--against", f"{url}/warcs", f"{url}/smaller")
    agree(sent(*words), planned["verify_again"], VERIFY)
    words = ("undedup", f"{url}/smaller", "--state", tmp_path / "smaller", "--out", f"{url}/back")
    case.bucket.server.requests.clear()
    typed(*words)
    agree(asked(case.bucket), planned["undo"])
    agree(sent("index", f"{url}/warcs/", tmp_path / "index", "--jobs", "1"), planned["index"])
