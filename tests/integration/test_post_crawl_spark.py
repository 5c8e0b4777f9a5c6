"""Verifying on Spark: the answers of one machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from dedupindex.object_store import stores
from dedupindex.verify.locate_originals import KnownOriginals, OriginalsIndex
from tests.integration.test_post_crawl_store import Stored
from tests.support.commands import ended
from tests.support.local_spark import run_spark_here
from tests.support.stores import Bucket

SPARK = ("--spark", "2")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, buckets: Callable[[], Bucket]) -> Stored:
    stored = Stored(tmp_path_factory.mktemp("stored"), buckets())
    for name, data in stored.expected.items():
        stored.bucket.put(f"smaller/{name}", data)
    return stored


@pytest.fixture
def stored(made: Stored, monkeypatch: pytest.MonkeyPatch) -> Stored:
    monkeypatch.setattr(stores, "_FIRST_WAIT", 0.001)
    made.bucket.server.faults.clear()
    run_spark_here(monkeypatch, 3000)
    return made


def answer(*words: Any) -> tuple[int, list[Any], dict[str, int]]:
    """The status of a command, what it prints with ``--json``, and the requests that it sent."""
    status, output, _ = ended(*words, "--json")
    printed = [json.loads(line) for line in output.splitlines()]
    return status, printed, printed[-1].pop("requests")


def same(*words: Any) -> tuple[int, list[Any]]:
    """The answer of a command, which is the same on Spark."""
    status, printed, sent = answer(*words)
    on_spark, printed_there, sent_there = answer(*words, *SPARK)
    assert (on_spark, printed_there) == (status, printed)
    assert sent_there == sent
    return status, printed


def test_sound_archives(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """References are found with the records: nothing is compared twice."""
    asked = count_asked(monkeypatch)
    smaller = f"{stored.bucket.url}/smaller"
    status, printed = same("verify", "--against", stored.warcs, smaller)
    assert (status, printed[-1]["revisits_rebuilt"]) == (0, 9)
    assert asked == [0] * 5
    status, printed = same("verify", smaller)
    assert (status, printed[-1]["revisits"]) == (7, 9)  # a file is empty


def count_asked(monkeypatch: pytest.MonkeyPatch, *, unknown: bool = False) -> list[int]:
    """Return a list to which each task adds the originals that the one before it was lacking.

    With `unknown` no task knows what the revisits of its file refer to.
    """
    really, asked = OriginalsIndex.known_to, list[int]()

    def known_to(index: OriginalsIndex, number: int, more: set[bytes]) -> KnownOriginals:
        asked.append(len(more))
        return really(index, -1 if unknown else number, more)

    monkeypatch.setattr(OriginalsIndex, "known_to", known_to)
    return asked


@pytest.mark.parametrize("seed", range(6))
def test_damaged_archives(stored: Stored, seed: int) -> None:
    """Bytes are changed, cut and lost at random; findings come in the same order."""
    random, url, prefix = Random(seed), stored.bucket.url, f"damaged-{seed}"
    for name, data in stored.expected.items():
        kind = random.randrange(4)
        at = random.randrange(len(data)) if data else 0
        if kind == 0 and data:
            data = data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at]
        elif kind == 2:
            continue
        stored.bucket.put(f"{prefix}/{name}", data)
    damaged = f"{url}/{prefix}"
    statuses = {
        same("verify", "--against", stored.warcs, damaged, "--remarks")[0],
        same("verify", "--against", f"{url}/smaller", damaged, "--originals", stored.warcs)[0],
        same("verify", damaged, "--remarks")[0],
        same("verify", damaged, "--originals", stored.warcs)[0],
    }
    assert statuses & {7, 8}


def test_originals_that_were_not_sent_with_a_file(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor asks for them, and compares the file again."""
    words = ("verify", "--against", stored.warcs, f"{stored.bucket.url}/smaller")
    status, printed, _ = answer(*words)
    asked = count_asked(monkeypatch, unknown=True)
    assert answer(*words, *SPARK)[:2] == (status, printed)
    assert sum(asked) > 1 and len(asked) > 5


def test_what_is_on_this_machine_is_refused(stored: Stored) -> None:
    smaller = f"{stored.bucket.url}/smaller"
    for words in (
        (stored.local,),
        (smaller, "--originals", stored.source),
        (smaller, "--against", stored.source),
    ):
        status, output, messages = ended("verify", *words, *SPARK)
        assert (status, output) == (4, "")
        assert "--spark verifies files of object stores: " in messages
        assert "is on this machine" in messages
