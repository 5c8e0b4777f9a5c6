"""Post-crawl commands on an object store: the bytes of a local run, whatever the store does."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import pytest

from dedupindex.capacity.rates import load
from dedupindex.capture import Problem
from dedupindex.errors import DedupError
from dedupindex.object_store import check_conditions, create_object, stores, with_retries
from dedupindex.post_crawl.manifest import make_manifest
from dedupindex.post_crawl.manifest.record_lines import FileRead, ManifestTask
from dedupindex.post_crawl.rewrite import rewrite_on_spark
from dedupindex.runtime import spark as clusters
from tests.integration.test_post_crawl_killed import collection
from tests.support.commands import ended, killable, typed
from tests.support.local_spark import run_spark_here
from tests.support.paths import ROOT
from tests.support.rewriting import content
from tests.support.stores import Bucket, Fault, allowed, asked

METHODS = ("GET", "HEAD", "PUT")
ONE = ("--jobs", "1")
FAULTS = {
    "throttled": {"status": 503},
    "refused": {"status": 403},
    "cut": {"cut": 40},
    "short": {"short": 40},
    "wrong": {"wrong": True},
    "stale": {"status": 404},  # as before there was such an object
}  # what a store answers once
TRIED_NAME = ".dedupindex-tried-to-write"
TRIED, TRIED_BYTES = 2, 3  # PUTs of an object that shows whether the store keeps conditions


class Stored:
    """The files of a collection in a bucket, a plan of them, and the local result."""

    def __init__(self, top: Path, bucket: Bucket) -> None:
        self.top, self.bucket = top, bucket
        run = collection(top / "case", 4, 3, 3000)
        (run.source / "empty.warc.gz").touch()
        self.source, self.local = run.source, top / "local"
        for name, data in content(run.source).items():
            bucket.put(f"warcs/{name}", data)
        output, _ = typed("dedup", run.source, "--out", self.local, *ONE, "--json", status=7)
        self.report = json.loads(output)
        self.expected = content(self.local)
        self.plan = top / "plan"
        typed("manifest", self.warcs, "-o", top / "manifest", *ONE, status=7)
        typed("resolve", top / "manifest", "-o", self.plan)
        self.planned = {name: data for name, data in self.expected.items() if data}
        assert len(self.planned) == 4

    @property
    def warcs(self) -> str:
        return f"{self.bucket.url}/warcs/"

    def results(self, prefix: str) -> dict[str, bytes]:
        return self.bucket.content(prefix)

    def rewriting(self, prefix: str) -> list[Any]:
        out, state = f"{self.bucket.url}/{prefix}", self.top / f"state-{prefix}"
        return ["rewrite", self.plan, "--out", out, "--state", state]

    def at_request(self, number: int, **fault: Any) -> None:
        """Let a fault happen at the request of a number, or at the next one that it fits."""
        requests = self.bucket.server.requests
        requests.clear()
        once: list[bool] = []

        def due() -> bool:
            if once or len(requests) < number:
                return False
            once.append(True)
            return True

        self.bucket.server.faults[:] = [
            Fault("", 1, method=method, when=due, **fault) for method in METHODS
        ]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, buckets: Callable[[], Bucket]) -> Stored:
    return Stored(tmp_path_factory.mktemp("stored"), buckets())


@pytest.fixture
def stored(made: Stored, monkeypatch: pytest.MonkeyPatch) -> Stored:
    monkeypatch.setattr(stores, "_FIRST_WAIT", 0.001)
    made.bucket.server.faults.clear()
    made.bucket.server.requests.clear()
    return made


def test_as_on_one_machine(stored: Stored) -> None:
    url, state, before = stored.bucket.url, stored.top / "state", stored.results("warcs")
    into = ("--out", f"{url}/smaller", "--state", state, *ONE)
    output, _ = typed("dedup", stored.warcs, *into, "--json", "--dry-run", status=7)
    dry = json.loads(output)
    output, _ = typed("dedup", stored.warcs, *into, "--json", status=7)
    report, sent = json.loads(output), json.loads(output)["requests"]
    assert stored.results("smaller") == stored.expected
    files = {path.name: path.stat().st_size for path in (state / ".rewrite").iterdir()}
    kept = sum(files.values()) - files["store"]  # the address, which undoes nothing
    assert dry["journal_bytes"] == report["journal_bytes"] == kept
    assert (
        report["journal_bytes_added"] == kept == report["bytes_saved"] - report["bytes_saved_net"]
    )
    other = {"seconds", "requests", "problems", "work"}  # times, and paths
    assert {name: report[name] for name in report.keys() - other} == {
        name: stored.report[name] for name in stored.report.keys() - other
    }
    assert report["revisits"] == 9 and report["verified"] == {"files": 4, "findings": {}}
    assert sent["written"] == sum(map(len, stored.expected.values())) + TRIED_BYTES
    assert sent["put"] == 5 + TRIED and sent["get"] > 8 and sent["list"] and sent["dollars"] > 0
    assert {path.parts[-2] for path in state.rglob("*") if path.is_file()} == {".rewrite"}
    page = stored.top / "page.html"  # again: nothing is written
    text, said = typed("dedup", stored.warcs, *into, "--html", page, status=7)
    assert "empty" in said
    for shown in (text, page.read_text()):
        assert f"bin/undedup {url}/smaller --state {state} --out OTHER" in shown
        assert f"bin/verify --against {stored.warcs} {url}/smaller" in shown
        assert "requests to stores: " in shown and " dollars at " in shown

    against = ("verify", "--against", stored.warcs, f"{url}/smaller")
    _, messages = typed(*against)
    assert "5 files, 9 revisits rebuilt: all that" in messages
    assert "requests to stores" in messages
    smaller = stored.results("smaller")
    broken = smaller["00/x.warc"]
    stored.bucket.put("smaller/00/x.warc", broken[:700] + bytes([broken[700] ^ 1]) + broken[701:])
    assert ended(*against)[0] == 8
    stored.bucket.put("smaller/00/x.warc", smaller["00/x.warc"])

    back = ("--state", state, *ONE)
    undoing = ("undedup", f"{url}/smaller", "--out", f"{url}/back", *back)
    output, _ = typed(*undoing, "--json", status=7)
    sent = json.loads(output)["requests"]
    assert sent["put"] == len(stored.results("back")) + TRIED and sent["get"] and sent["dollars"]
    typed("undedup", stored.local, "--out", stored.top / "back", *ONE, status=7)
    assert stored.results("back") == content(stored.top / "back")
    typed("verify", "--against", stored.warcs, f"{url}/back", "--records")
    shown, _ = typed(*undoing, status=7)
    assert "requests to stores: " in shown  # all exist
    assert stored.results("warcs") == before


def test_the_manual_says_what_has_to_be_allowed(stored: Stored, tmp_path: Path) -> None:
    url, state, server = stored.bucket.url, tmp_path / "state", stored.bucket.server
    typed("dedup", stored.warcs, "--out", f"{url}/iam", "--state", state, *ONE, status=7)
    typed("verify", "--against", stored.warcs, f"{url}/iam")
    typed("undedup", f"{url}/iam", "--state", state, "--out", f"{url}/iam-back", *ONE, status=7)
    typed("index", "--all", f"{url}/iam/", tmp_path / "index", status=7)
    assert asked(server, "warcs") == allowed("sources") == {"s3:ListBucket", "s3:GetObject"}
    results = allowed("results: `--out")
    assert asked(server, "iam") == results and "s3:DeleteObject" in results
    assert asked(server, "iam-back") == results


def test_the_facts_of_an_object_are_requested_once_for_a_task(
    stored: Stored, tmp_path: Path
) -> None:
    """A few times for each file, and once for each file of originals that a file refers to."""
    into = ("--out", f"{stored.bucket.url}/counted", "--state", tmp_path / "state", *ONE)
    output, _ = typed("dedup", stored.warcs, *into, "--json", status=7)
    pairs = {
        (path.name, original)
        for path in (tmp_path / "state" / ".rewrite").glob("*.jsonl")
        for line in path.read_text().splitlines()[1:-1]
        if (original := json.loads(line).get("name"))
    }
    assert len(pairs) > 2
    sent = json.loads(output)["requests"]
    fixed = load()["post_crawl"]["per_file"]  # and one for each result with originals
    each = 1 + sum(fixed[step]["heads"] for step in ("manifest", "rewrite", "verify"))
    heads = each * 5 + len(pairs)
    assert heads - 10 < sent["head"] <= heads


@pytest.mark.parametrize("more", [ONE, ("--spark", "2")], ids=["here", "spark"])
@pytest.mark.parametrize("command", ["manifest", "index"])
def test_requests_of_commands_that_read_sources(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, more: Any
) -> None:
    run_spark_here(monkeypatch)
    names = sorted(name for name in stored.planned if "empty" not in name)
    sources = [f"{stored.warcs}{name}" for name in names]

    def words(name: str) -> list[Any]:
        target = tmp_path / name
        where = ["-o", target] if command == "manifest" else ["--all", target]
        return [command, *sources, *where, *more]

    sent = json.loads(typed(*words("a"), "--json")[0])["requests"]
    asked = [method for method, *_ in stored.bucket.server.requests]
    assert (sent["head"], sent["get"] + sent["list"]) == (asked.count("HEAD"), asked.count("GET"))
    assert sent["read"] >= sum(map(len, stored.results("warcs").values())) > 0 < sent["dollars"]
    assert f"requests to stores: {sent['get']:,} GET, {sent['head']} HEAD" in typed(*words("b"))[0]


def test_damaged_undo_data_of_results_in_a_store(stored: Stored, tmp_path: Path) -> None:
    """Originals are found in the store, also where the originals are named by an address."""
    url, state = stored.bucket.url, tmp_path / "state"
    typed("dedup", stored.warcs, "--out", f"{url}/cut", "--state", state, *ONE, status=7)
    for path in (state / ".rewrite").glob("*.jsonl"):
        first, entry, *rest = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join((first, b"x" + entry, *rest)))
    words = ("undedup", f"{url}/cut", "--state", state, *ONE, "--json")
    count = len(list((state / ".rewrite").glob("*.jsonl")))
    for more in ((), ("--originals", stored.warcs)):
        out = f"{url}/cut-back{len(more)}"
        output, said = typed(*words, "--out", out, *more, status=7)
        report = json.loads(output)
        assert (report["records"], report["records_unproven"]) == (9, count), said
        assert report["records_not_restored"] == 0
        typed("verify", "--against", stored.warcs, out, "--records")
    output, _ = typed(*words, "--dry-run", status=7)
    assert json.loads(output)["records_unproven"] == count


def restored(stored: Stored, top: Path, address: str, *, status: int = 0) -> dict[str, bytes]:
    """What an undo of an address makes, with the state of the module's results `whole`."""
    state = stored.top / "state-whole"
    if not state.exists():
        into = ("--out", f"{stored.bucket.url}/whole", "--state", state, *ONE)
        typed("dedup", stored.warcs, *into, status=7)
    words = ("undedup", address, "--state", state, "--out", top, *ONE)
    typed(*words, "--dry-run", status=status)
    typed(*words, status=status)
    return content(top)


def test_a_part_of_results_in_a_store_is_restored(stored: Stored, tmp_path: Path) -> None:
    """A prefix or an object, whose originals are in other parts; names are those in the whole."""
    url = f"{stored.bucket.url}/whole"
    whole = restored(stored, tmp_path / "all", f"{url}/", status=7)  # an empty file is named
    for number, part in enumerate(("01", "01/", "01/x.warc.gz", "03/x.warc")):
        found = restored(stored, tmp_path / str(number), f"{url}/{part}")
        assert found == {name: data for name, data in whole.items() if name.startswith(part)} != {}
    for part in ("0", "01/x.warc", "none/"):
        words = ("undedup", f"{url}/{part}", "--state", stored.top / "state-whole", "--out", "x")
        status, _, messages = ended(*words, *ONE)
        assert status == 4 and "nothing is there" in messages


@pytest.mark.parametrize("part", ["01/", "03", "01/x.warc.gz"])
def test_the_commands_after_undoing_a_part_name_that_part(
    stored: Stored, tmp_path: Path, part: str
) -> None:
    restored(stored, tmp_path / "first", f"{stored.bucket.url}/whole/{part}")
    words = ("--state", stored.top / "state-whole", "--out", tmp_path / "again", *ONE)
    output, _ = typed("undedup", f"{stored.bucket.url}/whole/{part}", *words)
    compare, index = output.splitlines()[-2:]
    line = compare.partition("bin/verify ")[2].replace("BEFORE", stored.warcs.rstrip("/"))
    name = part.rstrip("/")
    assert line == f"--against {stored.warcs}{name} {tmp_path}/again/{name} --records"
    typed("verify", *line.split())
    before = f"--instead-of {stored.bucket.url}/whole/{part[:2]}"
    assert index.endswith(f"bin/index --replace {tmp_path}/again/{name} INDEX {before}")


def test_results_that_were_copied_to_another_address_are_restored(
    stored: Stored, tmp_path: Path
) -> None:
    url = stored.bucket.url
    whole = restored(stored, tmp_path / "all", f"{url}/whole", status=7)
    for name, data in stored.results("whole").items():
        stored.bucket.put(f"moved/{name}", data)
    assert restored(stored, tmp_path / "moved", f"{url}/moved/", status=7) == whole
    words = ("undedup", f"{url}/moved", "--state", stored.top / "state-whole", "--out", "x", *ONE)
    _, said = typed(*words, "--dry-run", status=7)
    assert f"has the journals of {url}/whole: taking {url}/moved for a copy" in said
    stored.bucket.put("moved/01/x.warc.gz", b"something else")
    for address in (f"{url}/moved", f"{url}/nothing"):
        status, _, messages = ended("undedup", address, *words[2:])
        assert status == 4 and f"has the journals of {url}/whole, not of {address}" in messages
        assert "of 3 are not there, such as 0" in messages


def test_a_state_is_found_however_it_is_written(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    smaller = f"{stored.bucket.url}/states"
    typed("dedup", stored.warcs, "--out", smaller, "--state", "st", *ONE, status=7)
    (tmp_path / "link").symlink_to("st")
    typed("undedup", stored.local, "--out", "local", *ONE, status=7)
    expected = content(tmp_path / "local")
    for number, state in enumerate(("st", "./st/", tmp_path / "st", "link")):
        for out in (f"{stored.bucket.url}/states-{number}", tmp_path / f"back-{number}"):
            words = ("undedup", smaller, "--state", state, "--out", out, *ONE, "--json")
            output, _ = typed(*words, status=7)  # an empty file is named
            assert json.loads(output)["records"] == 9
        assert stored.results(f"states-{number}") == content(out) == expected  # type: ignore[arg-type]
    (tmp_path / "empty").mkdir()
    for state, why in (("none", "none is no directory"), ("empty", "empty has no journals")):
        status, _, messages = ended("undedup", smaller, "--state", state, "--out", "x", *ONE)
        assert (status, why in messages) == (4, True)


def journals_of(state: Path) -> dict[str, list[object]]:
    """The lines of all journals by the name of the file, without times."""
    found = {}
    for path in (state / ".rewrite").glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found[lines[0].pop("name")] = lines
        del lines[0]["mtime_ns"]
    return found


def references_of(state: Path) -> dict[str, set[bytes]]:
    """The keys of records that revisits refer to, by the file that records them."""
    return {
        path.name: {data[at : at + 16] for at in range(0, len(data), 32)}
        for path in (state / ".rewrite").glob("*.pins")
        for data in [path.read_bytes()]
    }


def test_on_spark_as_in_one_process(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_spark_here(monkeypatch)
    monkeypatch.setattr(clusters, "ROUND", 1)  # bytes: each file is a job of its own
    for name, more in (("here", ()), ("spark", ("--spark", "2"))):
        state = tmp_path / name
        words = ("dedup", stored.warcs, "--out", f"{stored.bucket.url}/{name}", "--state", state)
        output, _ = typed(*words, *ONE, *more, "--dry-run", "--json", status=7)
        assert json.loads(output)["revisits"] == 9 and not (state / ".rewrite").exists()
        output, _ = typed(*words, *ONE, *more, "--json", status=7)
        report = json.loads(output)
        other = {"seconds", "requests", "problems", "work", "journal_bytes"}
        assert {key: report[key] for key in report.keys() - other} == {
            key: stored.report[key] for key in stored.report.keys() - other
        }
        written = sum(map(len, stored.expected.values())) + TRIED_BYTES
        assert report["requests"]["written"] == written
        assert stored.results(name) == stored.expected
    states = tmp_path / "here", tmp_path / "spark"
    assert journals_of(states[0]) == journals_of(states[1]) != {}
    assert references_of(states[0]) == references_of(states[1]) != {}
    assert not list(states[1].glob(".rewrite-*"))
    back = ("--state", states[1], *ONE, "--out", tmp_path / "back")
    typed("undedup", f"{stored.bucket.url}/spark", *back, status=7)
    typed("verify", "--against", stored.source, tmp_path / "back", "--records")


@pytest.mark.parametrize("more", [("--spark", "2"), ()], ids=["spark", "here"])
def test_results_whose_journals_were_lost_with_the_driver(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    """The next run, there or on one machine, finds the objects and makes the same journals."""
    run_spark_here(monkeypatch)
    name = f"orphans{len(more)}"
    words, state = [*stored.rewriting(name), *ONE], stored.top / f"state-{name}"
    with monkeypatch.context() as patched:
        patched.setattr(rewrite_on_spark, "adopt", fail)
        assert ended(*words, "--spark", "2")[0]
    assert stored.results(name) == stored.planned and not journals_of(state)
    undoing = ("undedup", f"{stored.bucket.url}/{name}", "--state", state, *ONE, "--out")
    results = [stored.top / f"{name}-{proven}" for proven in ("unproven", "proven")]
    _, said = typed(*undoing, results[0], status=7)
    assert "restored record by record: an interrupted run on Spark may have written it" in said
    assert said.count("restored, but not proven") == 9
    if more:
        (state / ".rewrite-killed" / "x").mkdir(parents=True)
    output, _ = typed(*words, *more, "--json")
    assert json.loads(output)["revisits"] == 9
    assert not list(state.glob(".rewrite-*"))
    assert not (state / ".rewrite" / "awaited").exists()
    assert len(journals_of(state)) == 3 and stored.results(name) == stored.planned
    typed(*undoing, results[1])
    for result in results:
        (result / "empty.warc.gz").touch()  # is in no plan
        typed("verify", "--against", stored.source, result, "--records")


def test_copies_of_what_is_in_the_way_are_kept_whole_on_spark(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_spark_here(monkeypatch)
    for name in ("taken", "taken-spark"):
        for original in stored.planned:
            if original.endswith(".warc"):
                stored.bucket.put(f"{name}/{original}", b"something else")
    found = []
    for name, more in (("taken", ()), ("taken-spark", ("--spark", "2"))):
        output, said = typed(*stored.rewriting(name), *ONE, *more, "--json", status=7)
        assert "exists already, with other content" in said
        found.append((json.loads(output)["revisits"], stored.results(name)))
    assert found[0] == found[1] and found[0][0] < 9


def test_originals_of_other_hosts_are_read_at_their_addresses(
    stored: Stored, tmp_path: Path
) -> None:
    """A store is one for all hosts that share the work."""
    sources = {"a": ("00/",), "b": ("01/", "03/")}
    for host, names in sources.items():
        own = [f"{stored.warcs}{name}" for name in names]
        typed("manifest", *own, "--host", host, "-o", tmp_path / host, *ONE)
    typed("resolve", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "plan")
    out, state = f"{stored.bucket.url}/hosts-b", ("--state", tmp_path / "state")
    words = ("rewrite", tmp_path / "plan", "--host", "b", "--out", out, *state, *ONE)
    output, said = typed(*words, "--json")
    assert json.loads(output)["revisits"] == 6 and "other hosts" not in said
    originals = ("--originals", f"{stored.warcs}00/")
    _, said = typed("undedup", out, *state, "--out", tmp_path / "without", *ONE, status=7)
    assert "it is on the host a: name the address of its results" in said
    assert "bin/undedup --originals s3://BUCKET/PREFIX" in said and "--host" not in said
    _, said = typed("undedup", out, *state, *originals, "--out", tmp_path / "back", *ONE)
    assert "record by record: its originals on other hosts were found elsewhere" in said
    assert "cannot be restored" not in said
    for source, name in (("01/", "x.warc.gz"), ("03/", "x.warc")):
        assert (tmp_path / "back" / name).is_file()
        against = ("--against", f"{stored.warcs}{source}{name}", tmp_path / "back" / name)
        typed("verify", *against, "--records")


def test_each_host_has_a_state_of_its_own(stored: Stored, tmp_path: Path) -> None:
    """What docs/scale.md says of a host that is gone, of merged states and of a wrong --out."""
    for host, names in {"a": ("00/",), "b": ("01/", "03/")}.items():
        own = [f"{stored.warcs}{name}" for name in names]
        typed("manifest", *own, "--host", host, "-o", tmp_path / host, *ONE)
    typed("resolve", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "plan")
    url = stored.bucket.url

    def rewritten(host: str, out: str, state: str) -> tuple[int, str]:
        words = ("rewrite", tmp_path / "plan", "--host", host, "--out", f"{url}/{out}", *ONE)
        return ended(*words, "--state", tmp_path / state)[::2]

    assert rewritten("a", "hosts/a", "a-state")[0] == 0
    for state in ("b-state", "b-elsewhere"):
        assert rewritten("b", "hosts/b", state)[0] == 0
    for state in ("b-state", "b-elsewhere"):
        words = ("undedup", f"{url}/hosts/b", "--state", tmp_path / state, "--originals", url)
        typed(*words, "--out", tmp_path / f"{state}-back", *ONE)
        against = ("--against", f"{stored.warcs}03/x.warc", tmp_path / f"{state}-back" / "x.warc")
        typed("verify", *against, "--records")
    shutil.copytree(tmp_path / "a-state", tmp_path / "merged")
    shutil.copytree(tmp_path / "b-state", tmp_path / "merged", dirs_exist_ok=True)
    words = (
        "undedup",
        f"{url}/hosts/a",
        "--state",
        tmp_path / "merged",
        "--out",
        tmp_path / "back",
    )
    status, _, said = ended(*words, *ONE)
    assert status == 4 and f"has the journals of {url}/hosts/b, not of {url}/hosts/a" in said

    assert rewritten("a", "hosts-same", "a-same")[0] == 0
    before = stored.results("hosts-same")
    status, said = rewritten("b", "hosts-same", "b-same")
    assert status == 7 and "x.warc exists already, with other content" in said
    own = stored.results("hosts/b")
    assert stored.results("hosts-same") == before | {"x.warc.gz": own["x.warc.gz"]}
    assert rewritten("b", "hosts-right", "b-same")[0] == 5
    assert rewritten("b", "hosts-right", "b-right")[0] == 0
    assert stored.results("hosts-right") == own


def fail(*_: object) -> None:
    raise DedupError("the driver ends here")


def test_a_store_that_fails_on_spark(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    run_spark_here(monkeypatch)
    words = [*stored.rewriting("faults"), *ONE, "--spark", "2"]
    random = Random(11)
    for fault in FAULTS.values():
        stored.at_request(random.randrange(40), **fault)
        status, _, messages = ended(*words)
        assert "Traceback" not in messages
        assert stored.results("faults").items() <= stored.planned.items()
        assert status or stored.results("faults") == stored.planned
    stored.bucket.server.faults.clear()
    typed(*words)
    assert stored.results("faults") == stored.planned


@pytest.mark.parametrize("more", [[], ["--spark", "2"]], ids=["here", "spark"])
@pytest.mark.parametrize("command", [["dedup"], ["dedup", "--dry-run"], ["manifest"]])
def test_store_that_refuses_every_object(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str],
    more: list[str],
) -> None:  # fmt: skip
    """That is an error, not a report of nothing."""
    run_spark_here(monkeypatch)
    out = ("--out", f"{stored.bucket.url}/nothing", "--state", tmp_path / "state")
    words = [*command, stored.warcs, *(out if "dedup" in command else ("-o", tmp_path / "m"))]
    if more:  # the driver may read, executors may not
        monkeypatch.setattr(make_manifest, "read_container", refuse)
    else:
        stored.bucket.server.faults[:] = [Fault(name, 99, status=403) for name in stored.planned]
    status, output, messages = ended(*words, *ONE, *more)
    assert (status, output) == (4, "")
    assert messages.count("\n") == 1 and "cannot read any of the 4 files: s3://" in messages
    why = "Forbidden (executors need credentials of their own" if more else "Forbidden"
    assert why in messages
    assert not stored.results("nothing")


def test_requests_for_an_estimate_are_counted(stored: Stored, tmp_path: Path) -> None:
    """One GET for each file, to recognise it, and those for the files that are drawn."""
    out = ("--out", f"{stored.bucket.url}/sampled", "--state", tmp_path / "state")
    words = ("dedup", stored.warcs, *out, "--dry-run", "--sample", "2", *ONE)
    output, _ = typed(*words, "--json", status=7)
    sent, asked = json.loads(output)["requests"], stored.bucket.server.requests
    gets = [path for method, path, _ in asked if method == "GET" and "list-type=" not in path]
    assert sent["get"] == len(gets) > len(stored.planned)
    assert len({path.partition("?")[0] for path in gets}) >= len(stored.planned)
    assert sent["list"] and sent["read"] and not sent["written"]
    assert "requests to stores: " in typed(*words, status=7)[0]


@pytest.mark.parametrize("storage", ["GLACIER", "DEEP_ARCHIVE"])
def test_an_object_in_an_archive_class_is_left_alone_until_it_is_restored(
    stored: Stored, tmp_path: Path, storage: str
) -> None:
    bucket, cold = stored.bucket, min(stored.planned)
    top = f"cold-{storage.lower()}"
    for name in stored.planned:
        data, kept = (stored.source / name).read_bytes(), storage if name == cold else "STANDARD"
        bucket.client.put_object(
            Bucket=bucket.name, Key=f"{top}/{name}", Body=data, StorageClass=kept
        )
    out = ("--out", f"{bucket.url}/{top}-smaller", "--state", tmp_path / "state")
    words = ("dedup", f"{bucket.url}/{top}/", *out, *ONE)
    for more in (["--dry-run", "--sample", "2"], []):  # an estimate names it, whatever it draws
        said = typed(*words, *more, status=7)[1]
        assert f"{top}/{cold}: cannot be read: " in said and "restore it first" in said
    assert stored.results(f"{top}-smaller").keys() == stored.planned.keys() - {cold}
    bucket.client.restore_object(
        Bucket=bucket.name, Key=f"{top}/{cold}", RestoreRequest={"Days": 1}
    )
    again = ("--out", f"{bucket.url}/{top}-again", "--state", tmp_path / "again")
    typed("dedup", f"{bucket.url}/{top}/", *again, *ONE)
    assert stored.results(f"{top}-again") == stored.planned


def refuse(task: ManifestTask, count: object) -> FileRead:
    path = task.file.path
    return FileRead(None, [Problem(path, -1, f"{path} cannot be read: Forbidden")])


def test_an_executor_without_credentials_ends_the_run(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A plan without its files would be written as if it were of all."""
    run_spark_here(monkeypatch)
    really, read = make_manifest.read_container, list[str]()

    class NoCredentialsError(Exception):
        """As that of botocore."""

    def read_container(task: ManifestTask, count: Any) -> FileRead:
        read.append(task.file.path)
        if len(read) < 3:
            return really(task, count)

        def locate() -> NoReturn:
            raise NoCredentialsError("Unable to locate credentials")

        return with_retries(task.file.path, locate)

    monkeypatch.setattr(make_manifest, "read_container", read_container)
    out = ("--out", f"{stored.bucket.url}/partly", "--state", tmp_path / "state")
    messages = ended("dedup", stored.warcs, *out, *ONE, "--spark", "2")[2]
    said = f"cannot be read: Unable to locate credentials, on {socket.gethostname()}: each machine"
    assert said in messages and not stored.results("partly")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_credentials_that_the_store_refuses_end_the_run(
    stored: Stored, tmp_path: Path, method: str
) -> None:
    """They are wrong on a machine, maybe one of many, and say nothing about the object."""
    code = "<Code>InvalidAccessKeyId</Code><Message>The key does not exist.</Message>"
    body = f'<?xml version="1.0"?><Error>{code}</Error>'.encode()
    name = f"/warcs/{min(stored.planned)}"
    stored.bucket.server.faults[:] = [Fault(name, 99, status=403, body=body)]
    if method == "GET":
        out = ("--out", f"{stored.bucket.url}/refused", "--state", tmp_path / "state")
        status, _, messages = ended("dedup", stored.warcs, *out, *ONE)
    else:  # an answer without body: the reason is asked for
        stored.bucket.server.faults.append(Fault(name, 99, status=403, method="HEAD"))
        status, _, messages = ended("index", f"{stored.bucket.url}{name}", tmp_path / "index")
    assert f"The key does not exist, on {socket.gethostname()}: each machine" in messages
    assert status == 4 and not stored.results("refused")


def test_a_prefix_that_cannot_be_written_to_is_named_before_anything_is_read(
    stored: Stored, tmp_path: Path
) -> None:
    """With the machine, as its credentials may be other ones than those of the rest."""
    body = b"<Error><Code>AccessDenied</Code><Message>Access Denied.</Message></Error>"
    server, out = stored.bucket.server, f"{stored.bucket.url}/denied"
    server.faults[:] = [
        Fault("", 9999, status=403, body=body, method=method, lost=True)
        for method in ("PUT", "POST")
    ]
    words = ("dedup", stored.warcs, "--out", out, "--state", tmp_path / "state", *ONE)
    status, output, messages = ended(*words)
    assert (status, output) == (4, "")
    said = f"{out} cannot be written: Access Denied, on {socket.gethostname()}: each machine needs"
    assert said in messages and "what-has-to-be-allowed" in messages
    assert not (tmp_path / "state.dedup" / "manifest").exists()
    typed(*words, "--dry-run", status=7)  # which writes nothing
    server.faults.clear()
    typed(*words, status=7)
    assert stored.results("denied") == stored.expected
    uploads = stored.bucket.client.list_multipart_uploads(Bucket=stored.bucket.name)
    assert not uploads.get("Uploads")


def test_parts_of_large_objects(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of two writers one wins, with parts as well."""
    ours, theirs = (Random(seed).randbytes(17 << 20) for seed in (1, 2))
    (tmp_path / "large").write_bytes(ours)
    bucket, path = stored.bucket, "/large"
    write = partial(bucket.client.put_object, Bucket=bucket.name, Key="large", Body=theirs)
    with open(tmp_path / "large", "rb") as file:
        bucket.server.faults[:] = [Fault(path, 1, method="PUT", then=write)]  # at the first part
        with pytest.raises(FileExistsError):
            create_object(file, f"{bucket.url}{path}")
        assert stored.results("")["large"] == theirs
        bucket.client.delete_object(Bucket=bucket.name, Key="large")
        assert create_object(file, f"{bucket.url}{path}")
        assert not create_object(file, f"{bucket.url}{path}")
    assert stored.results("")["large"] == ours
    assert not bucket.client.list_multipart_uploads(Bucket=bucket.name).get("Uploads")
    bucket.client.delete_object(Bucket=bucket.name, Key="large")


@pytest.mark.parametrize("more", [[], ["--spark", "2"]], ids=["here", "spark"])
def test_an_object_that_does_not_come_ends_the_run_before_it_plans(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    """A plan without it would be another one, whose results could not be completed."""
    run_spark_here(monkeypatch)
    prefix = "away-spark" if more else "away"
    out = ("--out", f"{stored.bucket.url}/{prefix}", "--state", stored.top / f"state-{prefix}")
    words = ["dedup", stored.warcs, *out, *ONE, *more]
    name = min(stored.planned)
    stored.bucket.server.faults[:] = [Fault(f"/warcs/{name}", 99, status=503)]
    status, output, messages = ended(*words, DEDUPINDEX_REMOTE_TRIES="2")
    assert (status, output) == (4, "") and "(tried 2 times)" in messages
    assert not stored.results(prefix)
    stored.bucket.server.faults.clear()
    typed(*words, status=7)  # one file is empty
    assert stored.results(prefix) == stored.expected


def test_an_original_of_an_index_that_does_not_come_ends_the_run(
    stored: Stored, tmp_path: Path
) -> None:
    """Nothing is planned as if it were no duplicate."""
    names = sorted(stored.planned)
    typed("index", "--all", f"{stored.warcs}{names[0]}", tmp_path / "index")
    (tmp_path / "set").mkdir()
    for name in names[1:]:
        source = stored.source / name
        (tmp_path / "set" / name.replace("/", "-")).write_bytes(source.read_bytes())
    stored.bucket.server.faults[:] = [
        Fault(f"/warcs/{names[0]}", 99, status=503, method=method) for method in ("GET", "HEAD")
    ]
    words = ["dedup", tmp_path / "set", "--index", tmp_path / "index", "--out", tmp_path / "out"]
    status, output, messages = ended(*words, *ONE, DEDUPINDEX_REMOTE_TRIES="2")
    assert (status, output) == (4, "") and "(tried 2 times)" in messages
    assert not list((tmp_path / "out").rglob("*.warc*"))
    for fault in stored.bucket.server.faults:
        fault.status = 404
    dry = ("--dry-run", "--json", *ONE)
    found, said = typed(*words, *dry)  # it is gone, which is known without another request
    assert (lost := json.loads(found)["unread_originals"])
    assert f"originals cannot be read: {lost}. Files that are not where the index has them" in said
    assert f"1 ({stored.warcs}{names[0]})" in said
    stored.bucket.server.faults.clear()
    assert json.loads(typed(*words, *dry)[0])["unread_originals"] == 0
    typed(*words, *ONE)


@pytest.mark.parametrize("command", ["verify", "against", "dedup", "export"])
def test_a_store_that_fails_late_is_no_finding(
    stored: Stored, tmp_path: Path, command: str
) -> None:
    """From any request on: the command ends, and says nothing of the archive."""
    if not stored.results("late"):
        out = ("--out", f"{stored.bucket.url}/late", "--state", stored.top / "state-late")
        typed("dedup", stored.warcs, *out, *ONE, status=7)
    late = f"{stored.bucket.url}/late"
    again = ("--out", late, "--state", stored.top / "state-late", *ONE)
    subset = ("--self-contained", "--host", "f2.test", "--out")
    words: dict[str, list[Any]] = {
        "verify": ["verify", late],
        "against": ["verify", "--against", stored.warcs, late],
        "dedup": ["dedup", stored.warcs, *again],
        "export": ["export", *subset],
    }
    requests = stored.bucket.server.requests
    for number in (3, 7, 14, 23):
        requests.clear()

        def is_down(after: int = number) -> bool:
            return len(requests) > after

        stored.bucket.server.faults[:] = [
            Fault("", 999, status=503, method=method, when=is_down) for method in ("GET", "HEAD")
        ]
        more = [tmp_path / f"subset-{number}", late] if command == "export" else []
        status, _, messages = ended(*words[command], *more, DEDUPINDEX_REMOTE_TRIES="2")
        if len(requests) > number:
            assert status == 4 and "(tried 2 times)" in messages
    assert len(requests) > 14  # it does not end before


def test_no_index_is_made_without_an_object_that_does_not_come(
    stored: Stored, tmp_path: Path
) -> None:
    name = min(stored.planned)
    stored.bucket.server.faults[:] = [Fault(f"/warcs/{name}", 99, status=503)]
    words = ("index", "--all", stored.warcs, tmp_path / "index")
    status, output, messages = ended(*words, DEDUPINDEX_REMOTE_TRIES="2")
    assert (status, output) == (4, "") and "(tried 2 times)" in messages
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("kind", FAULTS)
def test_faulty_store(stored: Stored, kind: str) -> None:
    """Faults at any request: no wrong object, and the next run completes the results."""
    random = Random(kind)
    count = requests_of(stored, [*stored.rewriting(f"{kind}-whole"), *ONE])
    for number in range(2):
        name = f"{kind}{number}"
        words = [*stored.rewriting(name), *ONE]
        stored.at_request(random.randrange(count), **FAULTS[kind])
        status, _, messages = ended(*words)
        assert "Traceback" not in messages
        there = stored.results(name)
        stored.bucket.server.faults.clear()
        if status == 7:  # a source that seemed to be gone was left alone: its copies are whole
            sources = stored.results("warcs")
            assert all(data in (stored.planned[one], sources[one]) for one, data in there.items())
            continue
        assert there.items() <= stored.planned.items()
        assert status or there == stored.planned
        typed(*words)
        assert stored.results(name) == stored.planned


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_object_that_reads_back_wrong(stored: Stored, method: str) -> None:
    """It is removed, and the run ends."""
    wrong = f"wrong{method}"
    fault = Fault(f"/{wrong}/01/x.warc.gz", 99, wrong=True, method=method)
    stored.bucket.server.faults[:] = [fault]
    status, _, messages = ended(*stored.rewriting(wrong), *ONE, DEDUPINDEX_REMOTE_TRIES="2")
    assert status and "01/x.warc.gz" in messages and "checksum" in messages, messages
    assert "01/x.warc.gz" not in stored.results(wrong)
    stored.bucket.server.faults.clear()
    typed(*stored.rewriting(wrong), *ONE)
    assert stored.results(wrong) == stored.planned


@pytest.mark.parametrize("more", [[], ["--spark", "2"]], ids=["here", "spark"])
def test_changed_objects_are_left_alone(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    run_spark_here(monkeypatch)
    out = f"out{len(more)}"
    key, before = "warcs/00/x.warc", stored.results("warcs")  # it has the originals
    data = before["00/x.warc"]
    stored.bucket.put(key, data.replace(b"2020-01-01", b"2020-01-02"))
    status, _, messages = ended(*stored.rewriting(out), *ONE, *more)
    assert status == 7 and "it has changed since it was scanned" in messages
    results = stored.results(out)
    stored.bucket.put(key, data)
    assert set(results) == set(stored.planned) - {"00/x.warc"}
    assert all(results[name] == before[name] for name in results)


def test_somebody_elses_object_stays(stored: Stored) -> None:
    stored.bucket.put("theirs/00/x.warc", b"something else")
    status, _, messages = ended(*stored.rewriting("theirs"), *ONE)
    assert status == 7 and "exists already, with other content" in messages
    assert stored.results("theirs")["00/x.warc"] == b"something else"


def requests_of(stored: Stored, words: list[Any]) -> int:
    """Run a command; return how many requests it sends."""
    stored.bucket.server.requests.clear()
    ended(*words)
    return len(stored.bucket.server.requests)


def check_killed(
    stored: Stored, words: Callable[[str], list[Any]], name: str, expected: dict[str, bytes]
) -> None:
    """Kill a command at some of its requests: no object is wrong; run again, all are there.

    `words` returns the command that writes below a prefix, of which `name` is one.
    """
    random, count = Random(name), requests_of(stored, words(f"{name}-whole"))
    for _ in range(3):
        with killable(words(name)) as kill:
            stored.at_request(random.randrange(count), then=kill)
        there = stored.results(name).items()
        assert {one for one in there if TRIED_NAME not in one[0]} <= expected.items()
    stored.bucket.server.faults.clear()
    ended(*words(name))
    assert stored.results(name) == expected


def test_killed_at_any_request(stored: Stored) -> None:
    check_killed(stored, stored.rewriting, "killed", stored.planned)
    name = "killed-first"
    with killable(stored.rewriting(name)) as kill:
        deleted = {"method": "DELETE", "query": "^(?!.*uploadId)", "status": 503, "lost": True}
        stored.bucket.server.faults[:] = [Fault("", 9, then=kill, **deleted)]
    assert [one for one in stored.results(name) if TRIED_NAME in one]  # until the next run
    stored.bucket.server.faults.clear()
    typed(*stored.rewriting(name))
    assert stored.results(name) == stored.planned


@pytest.mark.parametrize(
    "fault",
    [{"method": "PUT", "unconditional": True}, {"method": "PUT", "status": 501, "lost": True},
     {"method": "POST", "unconditional": True}],
    ids=["ignored", "unknown", "ignored-in-parts"],
)  # fmt: skip
def test_a_store_without_conditions_is_refused(
    stored: Stored, arcs: Path, tmp_path: Path, fault: dict[str, Any]
) -> None:
    """What another writer creates at the same time would be lost."""
    url, server = stored.bucket.url, stored.bucket.server
    typed(*stored.rewriting("conditions"))
    into, state = f"{url}/unconditional", tmp_path / "state"
    for words in (
        stored.rewriting("unconditional"),
        ["dedup", stored.warcs, "--out", into, "--state", state],
        ["undedup", f"{url}/conditions", "--state", stored.top / "state-conditions", "--out", into],
        ["convert", f"{url}/arcs", "--out", into],
        ["export", "--self-contained", stored.warcs, "--out", into],
        ["export", "--self-contained", stored.warcs, "--out", f"{into}/one.warc.gz"],
    ):
        server.faults[:] = [Fault("", 9999, **fault)]
        status, output, messages = ended(*words)
        server.faults.clear()
        assert (status, output) == (4, "") and "does not write under conditions" in messages
        assert "write the results to a directory, and upload that" in messages
        assert not stored.results("unconditional"), words
    assert not (tmp_path / "state.dedup" / "manifest").exists()  # nothing was read for that
    uploads = stored.bucket.client.list_multipart_uploads(Bucket=stored.bucket.name)
    assert not [one for one in uploads.get("Uploads", ()) if "unconditional/" in one["Key"]]


def test_runs_that_begin_at_once_take_no_store_for_one_without_conditions(stored: Stored) -> None:
    """Another one of this machine may have created the object, or remove it."""
    address = f"{stored.bucket.url}/at-once"
    remove = partial(remove_all, stored.bucket, "at-once")
    put = Fault("", 2, method="PUT", then=remove, query="^(x-id=PutObject)?$")
    stored.bucket.server.faults[:] = [put]
    check_conditions(address)
    assert not put.times and not stored.results("at-once")


def remove_all(bucket: Bucket, prefix: str) -> None:
    for key in bucket.content(prefix):
        bucket.client.delete_object(Bucket=bucket.name, Key=f"{prefix}/{key}")


def test_refusals(stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, state = stored.bucket.url, tmp_path / "state"
    monkeypatch.chdir(tmp_path)
    for words, status, message in (
        (["dedup", stored.warcs, "--in-place", "--dry-run"], 4, "with --work"),
        (["dedup", f"{url}/none/", "--in-place", "--dry-run", "--sample", "10%"], 4, "with --work"),
        (["rewrite", stored.plan, "--out", f"{url}/x"], 2, "goes with --state"),
        (["rewrite", stored.plan, "--out", f"{url}/warcs/x", "--state", state], 4, "next scan"),
        (["rewrite", stored.plan, "--out", f"{url}/warcs/", "--state", state], 4, "source itself"),
        (["dedup", stored.warcs, "--out", url.replace("s3:", "S3:") + "/x", "--state", state], 4,
         "did you mean s3://"),
        (["dedup", stored.warcs, "--out", url.replace("//", "/") + "/x", "--state", state], 2,
         "did you mean s3://"),
        (["rewrite", stored.plan, "--out", "gs://b/x", "--state", state], 4, "speaks S3"),
        (["rewrite", stored.plan, "--out", tmp_path / "x", "--state", state], 2, "--state goes"),
        (["undedup", f"{url}/x", "--out", tmp_path / "x"], 2, "with --state DIR"),
        (["dedup", stored.warcs, "--out", tmp_path / "x", "--spark", "2"], 2, "s3://BUCKET"),
        (["rewrite", stored.plan, "--in-place", "--spark", "2"], 2, "s3://BUCKET"),
        (["convert", stored.warcs, "--to", "gzip", "--out", "gs://b/x"], 4, "speaks S3"),
        (["convert", stored.warcs, "--to", "gzip", "--out", f"{url}/x", "--cdxj", state], 2,
         "--cdxj is for results in a directory"),
        (["export", "--cdx", tmp_path, "--out", f"{url}/x"], 2, "only --self-contained"),
        (["dedup", stored.warcs, "--out", f"{url}-typo/x", "--state", state, "--dry-run"], 4,
         "-typo/x cannot be listed: The specified bucket does not exist"),
    ):  # fmt: skip
        code, _, messages = ended(*words)
        assert code == status and message in messages, messages
    assert not list(tmp_path.iterdir())


ARCS = ("example.arc.gz", "example.arc", "bad.arc")  # the last one is damaged


@pytest.fixture(scope="module")
def arcs(made: Stored) -> Path:
    """ARC files, here and in the bucket."""
    folder = made.top / "arcs"
    folder.mkdir()
    for name in ARCS:
        data = (ROOT / "tests" / "data" / "warc" / name).read_bytes()
        (folder / name).write_bytes(data)
        made.bucket.put(f"arcs/{name}", data)
    return folder


def test_archives_are_converted_where_they_are(stored: Stored, arcs: Path, tmp_path: Path) -> None:
    """From a store, into one, or both: the same bytes; again, existing objects are compared."""
    url = stored.bucket.url
    chains = [
        (["convert"], arcs, f"{url}/arcs", "converted", 7),
        (["convert", "--back"], tmp_path / "converted", f"{url}/converted", "as-arc", 0),
        (["convert", "--to", "zstd"], stored.source, stored.warcs, "zstd", 7),
        (["convert", "--to", "gzip"], tmp_path / "zstd", f"{url}/zstd", "gzip", 0),
    ]
    for words, here, there, name, status in chains:
        local, _ = typed(*words, here, "--out", tmp_path / name, *ONE, "--json", status=status)
        output, _ = typed(*words, there, "--out", f"{url}/{name}", *ONE, "--json", status=status)
        report = json.loads(output)
        sent = report.pop("requests")
        assert report == json.loads(local)
        assert stored.results(name) == content(tmp_path / name) != {}
        assert sent["put"] == len(stored.results(name)) + TRIED and sent["get"] > 0
        output, _ = typed(*words, there, "--out", f"{url}/{name}", *ONE, "--json", status=status)
        assert json.loads(output)["existing"] == len(stored.results(name))
        assert json.loads(output)["requests"]["put"] == TRIED
    assert content(tmp_path / "as-arc").keys() == {*ARCS[:2]}
    typed("convert", f"{url}/arcs/{ARCS[0]}", "--out", tmp_path / "one", *ONE)
    typed("convert", arcs / ARCS[0], "--out", f"{url}/one", *ONE)
    assert content(tmp_path / "one") == stored.results("one")


@pytest.mark.parametrize("kind", FAULTS)
def test_a_faulty_store_loses_nothing_of_a_conversion(
    stored: Stored, arcs: Path, kind: str, tmp_path: Path
) -> None:
    """No object but a right one; the next run makes what is missing."""
    random, name = Random(kind), f"converted-{kind}"
    typed("convert", arcs, "--out", tmp_path, *ONE, status=7)
    into = ["convert", f"{stored.bucket.url}/arcs", *ONE, "--out"]
    count = requests_of(stored, [*into, f"{stored.bucket.url}/{name}-whole"])
    words = (*into, f"{stored.bucket.url}/{name}")
    for _ in range(2):
        stored.at_request(random.randrange(count), **FAULTS[kind])
        _, _, messages = ended(*words)
        assert "Traceback" not in messages
        assert stored.results(name).items() <= content(tmp_path).items()
    stored.bucket.server.faults.clear()
    typed(*words, status=7)
    assert stored.results(name) == content(tmp_path)


def test_a_conversion_killed_at_any_request(stored: Stored, arcs: Path, tmp_path: Path) -> None:
    typed("convert", arcs, "--out", tmp_path, *ONE, status=7)
    url, name = stored.bucket.url, "converted-killed"

    def words(name: str) -> list[Any]:
        return ["convert", f"{url}/arcs", "--out", f"{url}/{name}", *ONE]

    check_killed(stored, words, name, content(tmp_path))


def test_somebody_elses_object_is_not_replaced_by_a_conversion(stored: Stored, arcs: Path) -> None:
    stored.bucket.put("mine/example.warc.gz", b"something else")
    address = f"{stored.bucket.url}/arcs/{ARCS[0]}"
    output, messages = typed(
        "convert", address, "--out", f"{stored.bucket.url}/mine", *ONE, "--json", status=7
    )
    assert json.loads(output)["left_alone"] == 1 and "exists already" in messages
    assert f"{stored.bucket.url}/mine/example.warc.gz" in messages
    assert stored.results("mine") == {"example.warc.gz": b"something else"}


def test_a_rehearsal_of_what_is_in_a_store(stored: Stored, arcs: Path, tmp_path: Path) -> None:
    before = stored.results("")
    steps = []
    for name, sources in (
        ("here", (stored.source, arcs)), ("there", (stored.warcs, f"{stored.bucket.url}/arcs")),
    ):  # fmt: skip
        words = ("rehearse", *sources, "--work", tmp_path / name, *ONE, "--json")
        output, _ = typed(*words, status=7)  # an empty file, and damage
        steps.append([json.loads(line) for line in output.splitlines()])
    assert len(steps[0]) == 7
    sent = [step.pop("requests", {}) for step in steps[1]]
    assert sum(one.get("get", 0) for one in sent) > 5 and any(one.get("dollars") for one in sent)
    for one, other in zip(*steps, strict=True):
        left = [len(step.pop("left", ())) for step in (one, other)]
        assert left[0] == left[1]
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert content(tmp_path / "here" / "out") == content(tmp_path / "there" / "out") != {}
    assert stored.results("") == before


def test_a_subset_is_written_from_a_store_into_it(stored: Stored, tmp_path: Path) -> None:
    url, host = stored.bucket.url, "f2.test"
    sources = f"{url}/all"
    for name, data in stored.expected.items():
        stored.bucket.put(f"all/{name}", data)
    for name in ("subset", "one.warc.gz"):
        words = ("export", "--self-contained", "--host", host)
        local, _ = typed(*words, stored.local, "-o", tmp_path / name, "--json", status=7)
        into = ("-o", f"{url}/exports/{name}")
        report, _ = typed(*words, sources, *into, "--json", status=7)
        found = json.loads(report)
        sent = found.pop("requests")
        assert found == json.loads(local) and found["originals"] > 0
        assert sent["put"] == TRIED + (
            len(stored.results("exports/subset")) if name == "subset" else 1
        )
        assert sent["get"] > 0 < sent["dollars"]
        made = content(tmp_path / name) if name == "subset" else (tmp_path / name).read_bytes()
        there = stored.results(f"exports/{name}" if name == "subset" else "exports")
        assert made == (there if name == "subset" else there[name])
    typed(*words, sources, *into, "--json", status=7)  # the same object exists
    stored.bucket.put("exports/one.warc.gz", b"something else")
    status, _, messages = ended(*words, sources, *into)
    assert status == 4 and "exists already, with other content" in messages


@pytest.mark.parametrize("name", ["subset-killed", "one-killed.warc.gz"])
def test_an_export_killed_at_any_request(stored: Stored, name: str, tmp_path: Path) -> None:
    url, prefix = stored.bucket.url, name.partition(".")[0]
    for key, data in stored.expected.items():
        stored.bucket.put(f"all/{key}", data)
    export = ["export", "--self-contained", "--host", "f2.test"]
    typed(*export, stored.local, "-o", tmp_path / prefix / name, status=7)

    def words(prefix: str) -> list[Any]:
        return [*export, f"{url}/all", "-o", f"{url}/{prefix}/{name}"]

    check_killed(stored, words, prefix, content(tmp_path / prefix))
