"""Objects replaced in place: the bytes of a local run, and back, whatever the store does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dedupindex.errors import IndexBusy, StoreUnavailable
from dedupindex.object_store import facts, locked_prefix, replace_object, stores
from tests.integration.test_post_crawl_killed import collection
from tests.support.commands import ended, killable, typed
from tests.support.rewriting import content
from tests.support.stores import Bucket, Fault, allowed, asked

METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE")
ONE = ("--jobs", "1")
FAULTS: dict[str, dict[str, Any]] = {
    "throttled": {"status": 503, "lost": True},
    "throttled-after": {"status": 503},  # carried out, but the reply is lost
    "refused": {"status": 403, "lost": True},
    "refused-after": {"status": 403},
    "failing": {"status": 500, "lost": True},
    "failing-after": {"status": 500},
    "gone": {"status": 404},  # as before there was such an object
    "cut": {"cut": 40},
    "short": {"short": 40},
    "wrong": {"wrong": True},
    "stale": {"earlier": ("/warcs/", "/before/")},  # as before it was replaced
}  # what a store answers once


class Stored:
    """The files of a collection in a bucket, a plan of them, and the local result."""

    def __init__(self, top: Path, bucket: Bucket) -> None:
        self.top, self.bucket = top, bucket
        run = collection(top / "case", 3, 2, 3000)
        self.before = content(run.source)
        for name, data in self.before.items():
            bucket.put(f"before/{name}", data)
        self.reset()
        self.plan = top / "plan"
        typed("manifest", self.warcs, "-o", top / "manifest", *ONE)
        typed("resolve", top / "manifest", "-o", self.plan)
        self.local = run.source
        self.dry = self.run("dedup", run.source, "--in-place", "--dry-run", "--work", top / "dry")
        self.report = self.run("dedup", run.source, "--in-place", "--work", top / "local")
        self.after = content(run.source)
        assert self.report["revisits"] == 4 and self.after != self.before

    @staticmethod
    def run(*words: Any) -> dict[str, Any]:
        output, _ = typed(*words, *ONE, "--json")
        found: dict[str, Any] = json.loads(output)
        return found

    @property
    def warcs(self) -> str:
        return f"{self.bucket.url}/warcs"

    def names(self) -> list[str]:
        listing = self.bucket.client.list_objects_v2(Bucket=self.bucket.name, Prefix="warcs/")
        return [one["Key"] for one in listing.get("Contents", ())]

    def reset(self) -> None:
        """Store the files as they were, and nothing else."""
        self.bucket.server.faults.clear()
        for key in self.names():
            self.bucket.client.delete_object(Bucket=self.bucket.name, Key=key)
        for name, data in self.before.items():
            self.bucket.put(f"warcs/{name}", data)

    def get(self, key: str) -> bytes:
        answer = self.bucket.client.get_object(Bucket=self.bucket.name, Key=key)
        data: bytes = answer["Body"].read()
        return data

    def now(self) -> dict[str, bytes]:
        keys = [key for key in self.names() if "/.rewrite/" not in key]
        return {key.removeprefix("warcs/"): self.get(key) for key in keys}

    def kept(self) -> set[str]:
        """The kinds of the objects below .rewrite/."""
        return {key.rpartition(".")[2] for key in self.names() if "/.rewrite/" in key}

    def check_recoverable(self) -> None:
        """Each object is that before or that after, and with that after is what undoes it."""
        for name, data in self.now().items():
            assert data in (self.before[name], self.after[name]), name
        changed = {name for name, data in self.now().items() if data != self.before[name]}
        dropped = [key for key in self.names() if key.endswith(".dropped")]
        lines = [self.get(key) for key in self.names() if key.endswith(".jsonl")]
        assert len(dropped) >= len(changed)
        assert changed <= {json.loads(one.splitlines()[0])["name"] for one in lines}

    def at_request(self, number: int, **fault: Any) -> None:
        """Let a fault happen at the request of a number, or at the next one that it fits."""
        requests = self.bucket.server.requests
        requests.clear()
        once: list[bool] = []

        def due() -> bool:
            if once or len(requests) <= number:
                return False
            once.append(True)
            return True

        methods = METHODS[:2] if "earlier" in fault else METHODS  # only what is read can be stale
        self.bucket.server.faults[:] = [
            Fault("", 1, method=method, when=due, **fault) for method in methods
        ]

    def requests_of(self, *words: Any) -> int:
        self.bucket.server.requests.clear()
        typed(*words)
        return len(self.bucket.server.requests)

    def rewriting(self) -> tuple[Any, ...]:
        return ("rewrite", self.plan, "--in-place", *ONE)

    def undoing(self) -> tuple[Any, ...]:
        return ("rewrite", self.plan, "--undo", *ONE)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, buckets: Callable[[], Bucket]) -> Stored:
    return Stored(tmp_path_factory.mktemp("stored"), buckets())


@pytest.fixture
def stored(made: Stored, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stored]:
    monkeypatch.setattr(stores, "_FIRST_WAIT", 0.001)
    made.reset()
    yield made
    made.bucket.server.faults.clear()


def test_as_on_one_machine(stored: Stored, tmp_path: Path) -> None:
    words = ("dedup", stored.warcs, "--in-place", "--work", tmp_path / "work")
    dry = stored.run(*words, "--dry-run")
    assert stored.kept() == set() and stored.now() == stored.before
    report = stored.run(*words)
    assert stored.now() == stored.after
    assert stored.kept() == {"jsonl", "dropped"}
    other = {
        "seconds",
        "requests",
        "problems",
        "work",
        "journal_bytes",
        "journal_bytes_added",
        "bytes_saved_committed",
        "bytes_saved_net",
    }
    for here, there in ((stored.dry, dry), (stored.report, report)):
        shared = here.keys() - other
        assert {name: there[name] for name in shared} == {name: here[name] for name in shared}
    sizes = [len(stored.get(key)) for key in stored.names() if "/.rewrite/" in key]
    assert dry["journal_bytes"] == report["journal_bytes"] == sum(sizes)
    sent = report["requests"]
    replaced = [name for name in stored.before if stored.before[name] != stored.after[name]]
    assert sent["put"] >= 4 * len(replaced) and sent["written"] >= sum(sizes) and sent["dollars"]
    assert report["verified"]["files"] == len(replaced)

    text, _ = typed(*words, *ONE)  # again: nothing is to be done
    assert f"undo the earlier runs: bin/rewrite {tmp_path / 'work' / 'plan'} --undo" in text
    assert stored.now() == stored.after
    typed("verify", "--against", f"{stored.bucket.url}/before", stored.warcs)
    output, _ = typed("undedup", stored.warcs, "--in-place", *ONE, "--json")
    assert json.loads(output)["exact"] == len(replaced) and json.loads(output)["requests"]["put"]
    assert stored.now() == stored.before and stored.kept() == set()
    _, messages = typed("undedup", stored.warcs, "--in-place", *ONE)
    assert "nothing to undo" in messages


def test_the_manual_says_what_has_to_be_allowed(stored: Stored) -> None:
    typed(*stored.rewriting())
    typed(*stored.undoing())
    assert asked(stored.bucket.server, "warcs") == allowed("`--in-place`")


def test_in_several_processes(stored: Stored) -> None:
    typed("rewrite", stored.plan, "--in-place", "--jobs", "3")
    assert stored.now() == stored.after
    typed("rewrite", stored.plan, "--undo", "--jobs", "3")
    assert stored.now() == stored.before and stored.kept() == set()


def test_offsets(stored: Stored, tmp_path: Path) -> None:
    typed(*stored.rewriting(), "--offsets", tmp_path / "moved.tsv")
    rows = (tmp_path / "moved.tsv").read_text().splitlines()[1:]
    checked = 0
    for name, old, size, new, new_size in (row.split("\t") for row in rows):
        if size == new_size:
            data = stored.before[name][int(old) : int(old) + int(size)]
            assert stored.after[name][int(new) : int(new) + int(size)] == data
            checked += 1
    assert checked and len(rows) > checked


def test_undoing_is_checked_beforehand(stored: Stored) -> None:
    typed(*stored.rewriting())
    checking = ("undedup", stored.warcs, "--in-place", "--dry-run", *ONE, "--json")
    stored.bucket.server.requests.clear()
    output, _ = typed(*checking)
    assert json.loads(output)["exact"] == 2 and json.loads(output)["dry_run"]
    assert {method for method, *_ in stored.bucket.server.requests} <= {"GET", "HEAD"}
    assert stored.now() == stored.after and stored.kept() == {"jsonl", "dropped"}
    dropped = next(key for key in stored.names() if key.endswith(".dropped"))
    stored.bucket.client.delete_object(Bucket=stored.bucket.name, Key=dropped)
    output, messages = typed(*checking, status=7)
    assert json.loads(output)["left_alone"] == 1 and "cannot be restored" in messages


def test_committed(stored: Stored) -> None:
    typed(*stored.rewriting())
    output, _ = typed("rewrite", stored.plan, "--commit", "--json")
    assert json.loads(output)["left_alone"] == 0 and json.loads(output)["bytes"] > 0
    assert stored.kept() == {"committed"} and stored.now() == stored.after
    typed("rewrite", stored.plan, "--commit")
    typed(*stored.undoing())
    assert stored.now() == stored.after


def test_results_of_what_was_rewritten_before_have_no_undo_data_of_that(
    stored: Stored, tmp_path: Path
) -> None:
    again = ("dedup", stored.warcs, "--out", tmp_path / "out", *ONE)
    assert "undo data" not in typed(*again)[1]
    typed(*stored.rewriting())
    assert f"warning: {stored.warcs} has the undo data of earlier runs" in typed(*again)[1]


def test_a_commit_that_a_record_does_not_survive_is_not_made(stored: Stored) -> None:
    """The original of the revisits is another now."""
    typed(*stored.rewriting())
    name = "00/x.warc"
    data = stored.after[name]
    body = data.index(b"\r\n\r\n", data.index(b"HTTP/1")) + 10
    stored.bucket.put(f"warcs/{name}", data[:body] + bytes([data[body] ^ 1]) + data[body + 1 :])
    _, messages = typed("rewrite", stored.plan, "--commit", status=7)
    assert "keeps its removed records" in messages and stored.kept() == {"jsonl", "dropped"}


def test_damaged_removed_records_in_a_store_are_named(stored: Stored) -> None:
    typed(*stored.rewriting())
    key = next(key for key in stored.names() if key.endswith(".dropped"))
    data = stored.get(key)
    half = len(data) // 2
    stored.bucket.put(key, data[:half] + b"\0\1\2\3" + data[half + 4 :])
    _, messages = typed(*stored.undoing(), status=7)
    assert f"removed records in {stored.bucket.url}/{key} are damaged: put a sound" in messages
    stored.bucket.put(key, data)
    typed(*stored.undoing())
    assert stored.now() == stored.before


@pytest.mark.parametrize("kind", FAULTS)
def test_faults_at_any_request(stored: Stored, kind: str, effort: int) -> None:
    """Nothing is lost; the next run ends with the bytes of a local run, and undoing with the old.

    Requests are drawn, as many as the effort.
    """
    random = Random(kind)
    count = stored.requests_of(*stored.rewriting())
    undo = stored.requests_of(*stored.undoing())
    for number in sorted(random.sample(range(count), min(effort, count))):
        stored.at_request(number, **FAULTS[kind])
        status, _, messages = ended(*stored.rewriting())
        assert "Traceback" not in messages, messages
        stored.check_recoverable()
        assert status or stored.now() == stored.after
        stored.bucket.server.faults.clear()
        typed(*stored.rewriting())
        assert stored.now() == stored.after, number
        assert stored.kept() == {"jsonl", "dropped"}
        stored.at_request(random.randrange(undo), **FAULTS[kind])
        _, _, messages = ended(*stored.undoing())
        assert "Traceback" not in messages, messages
        stored.check_recoverable()
        stored.bucket.server.faults.clear()
        typed(*stored.undoing())
        assert stored.now() == stored.before, number
        assert stored.kept() <= {"rewrite/lock"}


def test_an_interrupted_dedup_is_resumed(stored: Stored, tmp_path: Path) -> None:
    words = ("dedup", stored.warcs, "--in-place", "--work", tmp_path / "work", *ONE, "--json")
    replaced = [name for name in stored.before if stored.before[name] != stored.after[name]]
    fault = Fault(f"/warcs/{replaced[1]}", 9, method="PUT", status=403, lost=True)
    stored.bucket.server.faults[:] = [fault]
    status, _, messages = ended(*words)
    assert status and "Traceback" not in messages
    one = {name: stored.now()[name] == stored.after[name] for name in replaced}
    assert sum(one.values()) <= 1
    stored.bucket.server.faults.clear()
    output, messages = typed(*words)
    assert "resuming the run in place" in messages and stored.now() == stored.after
    report = json.loads(output)
    assert report["revisits"] == 4 and report["verified"] == {"files": 2, "findings": {}}


@pytest.mark.parametrize("words", ["rewriting", "undoing"])
def test_refused_at_any_request(stored: Stored, words: str, effort: int) -> None:
    """As if the run were killed there."""
    command = getattr(stored, words)()
    other = stored.undoing() if words == "rewriting" else stored.rewriting()
    expected = stored.after if words == "rewriting" else stored.before
    if words == "undoing":
        typed(*stored.rewriting())
    count = stored.requests_of(*command)
    tried = min(4 * effort, count)
    for number in sorted(Random(words).sample(range(count), tried)):
        stored.bucket.server.faults.clear()
        typed(*other)
        stored.at_request(number, status=403)
        ended(*command)
        stored.check_recoverable()
        stored.bucket.server.faults.clear()
        typed(*command)
        assert stored.now() == expected, number


@pytest.mark.parametrize("words", ["rewriting", "undoing"])
def test_stale_reads_throughout(stored: Stored, words: str) -> None:
    """A store that answers a whole run with what was there before makes it lose nothing."""
    if words == "undoing":
        typed(*stored.rewriting())
    stored.bucket.server.faults[:] = [
        Fault("", 9999, method=method, earlier=("/warcs/0", "/before/0"))
        for method in ("GET", "HEAD")
    ]
    ended(*getattr(stored, words)(), DEDUPINDEX_REMOTE_TRIES="2")
    stored.check_recoverable()
    stored.bucket.server.faults.clear()
    typed(*getattr(stored, words)())
    assert stored.now() == (stored.after if words == "rewriting" else stored.before)


def test_killed_at_any_request(stored: Stored) -> None:
    random = Random(5)
    counts = [stored.requests_of(*words) for words in (stored.rewriting(), stored.undoing())]
    for count, words, expected in (
        (counts[0], stored.rewriting(), stored.after),
        (counts[1], stored.undoing(), stored.before),
    ):
        for _ in range(4):
            with killable(words) as kill:
                stored.at_request(random.randrange(count), then=kill)
            stored.check_recoverable()
        stored.bucket.server.faults.clear()
        typed(*words)
        assert stored.now() == expected


def test_an_object_that_somebody_replaces_is_not_replaced(stored: Stored) -> None:
    """Neither before it is read nor while it is rewritten, nor one that was rewritten."""
    name, theirs = "01/x.warc.gz", b"something else"
    write = partial(stored.bucket.put, f"warcs/{name}", theirs)
    put = Fault(f"/warcs/{name}", 1, method="PUT", then=write)  # just before it is replaced
    stored.bucket.server.faults[:] = [put]
    _, messages = typed(*stored.rewriting(), status=7)
    assert "it was changed while it was rewritten" in messages
    assert stored.now()[name] == theirs
    assert len([key for key in stored.names() if key.endswith("dropped")]) == 1  # of the other
    _, messages = typed(*stored.rewriting(), status=7)
    assert stored.now()[name] == theirs


def test_a_result_that_somebody_replaces_is_not_undone(stored: Stored) -> None:
    typed(*stored.rewriting())
    stored.bucket.put("warcs/01/x.warc.gz", b"something else")
    _, messages = typed(*stored.undoing(), status=7)
    assert "neither the object before the run nor that after it" in messages
    assert stored.now() == {**stored.before, "01/x.warc.gz": b"something else"}
    assert stored.kept() == {"jsonl", "dropped"}


def test_another_plan_or_other_options_are_refused(stored: Stored, tmp_path: Path) -> None:
    typed(*stored.rewriting())
    status, _, messages = ended(*stored.rewriting(), "--min-size", "1")
    assert status == 5 and "was rewritten in place with" in messages
    typed("manifest", stored.warcs, "-o", tmp_path / "manifest", *ONE)
    typed("resolve", tmp_path / "manifest", "-o", tmp_path / "plan")
    typed("rewrite", tmp_path / "plan", "--in-place", *ONE)
    assert stored.now() == stored.after


def test_two_runs(stored: Stored) -> None:
    """One holds the lock; that of a process that has ended is taken over."""
    lock = f"{stored.warcs}/.rewrite/lock"
    with locked_prefix(lock):
        _, _, messages = ended(*stored.rewriting())
        assert "another run holds" in messages and stored.now() == stored.before
        with pytest.raises(IndexBusy), locked_prefix(lock):
            pass
        held = stored.get("warcs/.rewrite/lock")
    fields = json.loads(held)
    stored.bucket.put("warcs/.rewrite/lock", json.dumps({**fields, "host": "another"}).encode())
    with pytest.raises(IndexBusy, match="remove this object"), locked_prefix(lock):
        pass
    stored.bucket.put("warcs/.rewrite/lock", json.dumps({**fields, "process": 2**22}).encode())
    typed(*stored.rewriting())
    assert stored.now() == stored.after and stored.kept() == {"jsonl", "dropped"}


@contextmanager
def ignoring_conditions(stored: Stored, *, status: int = 0) -> Iterator[None]:
    """The store writes under any condition, or says that it does not know them."""
    server = stored.bucket.server
    if status:
        server.faults[:] = [Fault("", 9999, method="PUT", status=status, lost=True)]
    else:
        server.faults[:] = [Fault("", 9999, method="PUT", unconditional=True)]
    yield
    server.faults.clear()


@pytest.mark.parametrize("status", [0, 501])
def test_a_store_without_conditions_is_refused(stored: Stored, status: int) -> None:
    with ignoring_conditions(stored, status=status):
        _, messages = typed(*stored.rewriting(), status=4)
    assert "does not write under conditions" in messages
    assert stored.now() == stored.before and stored.kept() == set()
    typed(*stored.rewriting())
    with ignoring_conditions(stored, status=status):
        _, messages = typed(*stored.undoing(), status=4)
    assert "does not write under conditions" in messages
    assert stored.now() == stored.after and stored.kept() == {"jsonl", "dropped"}


@pytest.mark.parametrize("size", [100, 17 << 20])
def test_only_what_was_read_is_replaced(stored: Stored, tmp_path: Path, size: int) -> None:
    """Large objects are copied from the candidate in parts."""
    new = Random(size).randbytes(size)
    (tmp_path / "new").write_bytes(new)
    address = stored.bucket.put("large/x", b"old")
    candidate = stored.bucket.put("large/new", new)
    etag = facts(address).stamp
    with open(tmp_path / "new", "rb") as file:
        assert not replace_object(file, address, '"other"', candidate)
        assert stored.get("large/x") == b"old"
        assert replace_object(file, address, etag, candidate)
        assert stored.get("large/x") == new
        assert not replace_object(file, address, etag, candidate)
        stored.bucket.client.delete_object(Bucket=stored.bucket.name, Key="large/x")
        assert not replace_object(file, address, etag, candidate)
    listing = stored.bucket.client.list_multipart_uploads(Bucket=stored.bucket.name)
    begun = [one["Key"] for one in listing.get("Uploads", ())]  # runs that were killed leave some
    assert not [key for key in begun if key.startswith("large/")]
    stored.bucket.server.faults[:] = [Fault("/large/x", 99, method="PUT", status=400, lost=True)]
    with open(tmp_path / "new", "rb") as file, pytest.raises(StoreUnavailable):
        replace_object(file, address, etag, candidate)


def test_refusals(stored: Stored, tmp_path: Path) -> None:
    for words, status, message in (
        (["dedup", stored.warcs, "--in-place"], 4, "with --work"),
        (["dedup", stored.warcs, stored.local, "--in-place", "--work", tmp_path / "w"], 4,
         "cannot be replaced in one run"),
        (["dedup", "gs://b/warcs", "--in-place", "--work", tmp_path / "w"], 4, "speaks S3"),
        (["dedup", stored.warcs, "--in-place", "--work", tmp_path / "w", "--spark", "2"], 2,
         "s3://BUCKET"),
        (["dedup", stored.warcs, "--in-place", "--work", tmp_path / "w", "--cdxj", tmp_path / "c"],
         2, "--cdxj is for results in a directory"),
        (["undedup", stored.warcs, stored.local, "--in-place"], 4, "in one run"),
        ([*stored.rewriting(), "--spark", "2"], 2, "s3://BUCKET"),
    ):  # fmt: skip
        code, _, messages = ended(*words)
        assert code == status and message in messages, messages
    assert not list(tmp_path.iterdir()) and stored.kept() == set()
