"""Results in a store: what they share with their sources is copied there, not sent again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dedupindex.object_store import stores
from tests.integration.test_post_crawl_killed import date
from tests.support.commands import ended, typed
from tests.support.post_crawl import Case
from tests.support.rewriting import content
from tests.support.stores import Bucket, Fault

ONE = ("--jobs", "1")
SHORT = 200_000  # bytes that may be sent of a result: its revisit, and what is beside it
TRIED = 3  # bytes that each run sends to see that the store writes under conditions
MIXED, ALONE, SMALL = "00/mixed.warc", "01/alone.warc", "02/small.warc"


class Large:
    """Sources in a bucket: with a duplicate between long records, without one, and a short one."""

    def __init__(self, top: Path, bucket: Bucket) -> None:
        random, self.top, self.bucket = Random(5), top, bucket
        body = random.randbytes(3000)

        def write(number: int, name: str, *bodies: bytes) -> None:
            case = Case(f"{number:02}", 500 + number, packed=False)
            case.file(name, *(
                case.kept("", case.record(1, body, number=number * 1000 + at, Date=date(number, at),
                                          Target_URI=b"http://f%d.test/%d" % (number, at)))
                for at, body in enumerate(bodies)
            ))  # fmt: skip
            case.write(top / "warcs")

        write(0, "mixed.warc", body, random.randbytes(21 << 20), body, random.randbytes(17 << 20))
        write(1, "alone.warc", random.randbytes(18 << 20))
        write(2, "small.warc", random.randbytes(900))
        self.before = content(top / "warcs")
        for name, data in self.before.items():
            bucket.put(f"warcs/{name}", data)
        typed("dedup", top / "warcs", "--out", top / "local", *ONE)
        self.expected = content(top / "local")
        assert len(self.expected[MIXED]) < len(self.before[MIXED])
        typed("manifest", f"{bucket.url}/warcs/", "-o", top / "manifest", *ONE)
        typed("resolve", top / "manifest", "-o", top / "plan")

    def rewriting(self, prefix: str) -> list[Any]:
        out, state = f"{self.bucket.url}/{prefix}", self.top / f"state-{prefix}"
        return ["rewrite", self.top / "plan", "--out", out, "--state", state, *ONE]

    def rewritten(self, prefix: str) -> dict[str, Any]:
        """Rewrite, check the results, and return the requests."""
        output, _ = typed(*self.rewriting(prefix), "--json")
        assert self.results(prefix) == self.expected
        sent: dict[str, Any] = json.loads(output.splitlines()[-1])["requests"]
        return sent

    def results(self, prefix: str) -> dict[str, bytes]:
        return self.bucket.content(prefix)

    def parts_left(self) -> int:
        uploads = self.bucket.client.list_multipart_uploads(Bucket=self.bucket.name)
        return len(uploads.get("Uploads", ()))

    def at_copy(
        self, times: int = 1, name: str = ".warc", part: str = "partNumber=", **fault: Any
    ) -> None:
        """Let a fault happen when the store is asked to copy a part to a result of a name."""
        self.bucket.server.faults[:] = [Fault(name, times, method="PUT", query=part, **fault)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, buckets: Callable[[], Bucket]) -> Large:
    return Large(tmp_path_factory.mktemp("large"), buckets())


@pytest.fixture
def large(made: Large, monkeypatch: pytest.MonkeyPatch) -> Large:
    monkeypatch.setattr(stores, "_FIRST_WAIT", 0.001)
    made.bucket.server.faults.clear()
    return made


def test_what_stays_is_copied_within_the_store(large: Large) -> None:
    sent = large.rewritten("copied")
    # The mixed file: before the copy is a long record, which is copied, and so is the one after it.
    assert sent["copy"] >= 3 and sent["part"] >= 1
    assert sent["written"] < len(large.expected[SMALL]) + (10 << 20)
    # What is without duplicates is read once, to compare it; the others are read before, too.
    sizes = {name: len(data) for name, data in large.before.items()}
    read = 2 * sizes[MIXED] + sizes[ALONE] + 2 * sizes[SMALL]
    assert read - SHORT <= sent["read"] <= read + SHORT
    again = large.rewritten("copied")
    assert not again["copy"] and again["written"] == TRIED
    assert not large.parts_left()


def test_from_a_disk_all_is_sent(large: Large) -> None:
    out, state = f"{large.bucket.url}/sent", large.top / "state-sent"
    output, _ = typed("dedup", large.top / "warcs", "--out", out, "--state", state, *ONE, "--json")
    sent = json.loads(output)["requests"]
    assert large.results("sent") == large.expected and not sent["copy"]
    assert sent["written"] == TRIED + sum(map(len, large.expected.values()))


@pytest.mark.parametrize("status", [403, 501])
def test_a_store_that_does_not_copy(large: Large, status: int) -> None:
    large.at_copy(2, status=status)  # of both files
    sent = large.rewritten(f"refused-{status}")
    assert sent["written"] > len(large.before[ALONE]) and not large.parts_left()


@pytest.mark.parametrize("fault", [{"status": 503}, {"cut": 20}])
def test_a_copy_that_fails_once(large: Large, fault: dict[str, int]) -> None:
    large.at_copy(**fault)
    large.rewritten(f"failed-{next(iter(fault))}")
    assert not large.parts_left()


@pytest.mark.parametrize("name", [MIXED, ALONE])
def test_a_source_that_changes_before_it_is_copied(large: Large, name: str) -> None:
    """The store may ignore the condition: this one does."""
    key, before, at = f"warcs/{name}", large.before[name], 10 << 20  # in the first part
    prefix = f"changed-{name.partition('/')[0]}"

    def change() -> None:
        large.bucket.put(key, before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :])

    # Two parts are copied at a time: the second may be first.
    large.at_copy(name=f"{prefix}/{name}", part=r"\bpartNumber=1\b", then=change)
    status, _, messages = ended(*large.rewriting(prefix))
    large.bucket.put(key, before)
    assert status and name in messages, messages
    assert large.results(prefix).items() <= large.expected.items()  # nothing wrong is left there
    assert large.rewritten(prefix)["copy"]
