"""Real executors: a cluster gives the result of one machine, also when an executor is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from dedupindex.documents.dedup_shards import dedup_hashes
from dedupindex.post_crawl.manifest.make_manifest import make
from dedupindex.post_crawl.manifest.parquet import open_manifest
from dedupindex.post_crawl.manifest.record_lines import ManifestOptions
from dedupindex.post_crawl.plan.make_plan import ResolveOptions, resolve
from dedupindex.post_crawl.plan.plan_file import COLUMNS, open_plan
from tests.integration.test_post_crawl_store import Stored
from tests.integration.test_spark_tasks import built, collection
from tests.peers.spark import Session, spark_session
from tests.peers.spark import spark as spark_environment
from tests.support.commands import typed
from tests.support.corpora import Page, archive, html
from tests.support.paths import ROOT
from tests.support.ports import refusing_port
from tests.support.rewriting import EARLY, LATE, content, members
from tests.support.stores import Bucket, Fault, web
from tests.support.warc_cases import response
from tests.unit.cli.test_cli import dedupindex
from tests.unit.object_store.test_object_store import captures, containers

pytestmark = pytest.mark.peer
__all__ = ["collection"]
EXECUTOR = "CoarseGrainedExecutorBackend"


def test_all_commands_give_the_same_result_on_spark(
    spark: Session, tmp_path: Path, collection: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    told = built(here / "index", collection).tally
    made = make([str(collection)], here / "manifest", ManifestOptions())
    resolved = resolve([here / "manifest"], here / "plan", ResolveOptions())
    hashed = tmp_path / "hashes"
    hashed.mkdir()
    for number in range(600):
        digest = sha256(b"%d" % (number % 400)).hexdigest()
        with open(hashed / f"{digest[0]}_run.csv", "a") as shard:
            shard.write(f"{digest},/p/{number}\n")
    unique = dedup_hashes(str(hashed), here / "unique.csv")
    tally, listed, planned, deduplicated = (
        spark.run(*words)
        for words in (
            ("index", "--whitelist", "--mime", ".*", collection, there / "index"),
            ("manifest", collection, "-o", there / "manifest"),
            ("resolve", there / "manifest", "-o", there / "plan"),
            ("dedup_hashes", hashed, there / "unique.csv"),
        )
    )
    assert (tally["added"], tally["records"], tally["refused"]) == (
        told.added, told.records, dict(told.refused),
    )  # fmt: skip
    assert captures(there / "index", "") == captures(here / "index", "")
    assert containers(there / "index") == containers(here / "index")
    assert listed["lines"] == made.lines
    assert lines(there / "manifest") == lines(here / "manifest")
    assert planned["copies"] == resolved.totals.copies > 50
    assert open_plan(there / "plan").totals == resolved.totals
    copies = [
        sorted(open_plan(one / "plan")._rows("copies-*.parquet", COLUMNS)) for one in (here, there)
    ]
    assert [row[1:] for row in copies[0]] == [row[1:] for row in copies[1]]
    assert deduplicated["unique_files"] == unique.unique_files == 400
    rows = [sorted((one / "unique.csv").read_text().split()) for one in (here, there)]
    assert rows[0] == rows[1]


def test_a_corpus_is_the_same(spark: Session, tmp_path: Path) -> None:
    """Also where a page kills the process that reads it."""
    one = Page("http://a.org/", body=html("original"))
    pages = [one, Page("http://b.org/", 2, of=one)]
    pages += [Page(f"http://c.org/{n}", 3 + n % 5, html(f"page {n}")) for n in range(60)]
    cdx = archive(tmp_path / "in", *pages, Page("http://d.org/", body=html("x"), file="d.warc.gz"))
    (tmp_path / "in" / "d.warc.gz").unlink()
    (spark.folder / "deadly.py").write_text(
        "import os, signal\n\ndef big(title):\n    if title == 'page 17':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n    return title.upper()\n"
    )
    words = (
        f"--enrich html.title,text,language --map payload.string.html.title big deadly:big {cdx}"
    )
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    path = os.pathsep.join(filter(None, [str(spark.folder), os.environ.get("PYTHONPATH", "")]))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", path)
        dedupindex("corpus", *words.split(), "-o", here, status=7)
        report = spark.run("corpus", *words.split(), "-o", there)
    assert report["entries"] == 63
    assert report["errors"] == {"process": 1, "response": 1}
    assert here.read_bytes() == there.read_bytes()


def test_operations_on_a_corpus_are_the_same(spark: Session, tmp_path: Path) -> None:
    """Values, groups, what is distinct, and what pages embed; one WARC file is missing."""
    pages = [Page(f"http://a.org/{n}", 1 + n % 5, html(f"t{n % 7}", f"<img src=i{n % 3}.png> {n}"))
             for n in range(60)]  # fmt: skip
    images = [Page(f"http://a.org/i{n}.png", day, b"P", "image/png")
              for n in range(3) for day in (2, 4)]  # fmt: skip
    cdx = archive(tmp_path / "in", *pages, *images, Page("http://d.org/", file="d.warc.gz"))
    (tmp_path / "in" / "d.warc.gz").unlink()
    title = "payload.string.html.title"
    for number, words in enumerate((
        ["--enrich", "html.title", "--drop-failed", "--distinct", title],
        ["--values", title],
        ["--group", "month", "--group", title, "--sum", "length"],
        ["--where", "timestamp == '2026-11-01'", "--embeds", "--enrich", "mime"],
    )):  # fmt: skip
        here, there = (tmp_path / f"{number}.{name}.jsonl" for name in ("here", "there"))
        dedupindex("corpus", cdx, *words, "-o", here, status=7)
        spark.run("corpus", cdx, *words, "-o", there)
        assert here.read_bytes() == there.read_bytes() != b"", words


def lines(manifest: Path) -> dict[str, list[tuple[object, ...]]]:
    opened = open_manifest(manifest)
    return {
        place.path: [line[1:] for line in opened.lines(place.number)]
        for place in opened.containers().values()
    }


def test_an_executor_is_killed(tmp_path: Path, collection: Path) -> None:
    """In the middle of a run, by a server that answers it no more: another does its work again.

    The session is new, so that there are no executors yet when the driver asks.
    """
    killed: list[int] = []
    with web(collection) as server, spark_session(tmp_path) as own:
        words = ("--whitelist", "--mime", ".*", f"{server.url}/*.w*", f"{server.url}/*.cdx")
        kill = partial(_killed_one, own.pid, killed)
        server.faults.append(Fault("w3.warc.gz", 1, cut=0, when=kill))
        report = own.run("index", *words, tmp_path / "there")
        assert len(killed) == 1
        assert report["records"] == built(tmp_path / "here", collection).tally.records
        assert captures(tmp_path / "there", f"{server.url}/") == captures(
            tmp_path / "here", f"{collection}/"
        )


def test_archives_in_a_store_are_rewritten_though_an_executor_is_killed(
    tmp_path: Path, buckets: Callable[[], Bucket]
) -> None:
    """It dies while it reads a file to rewrite it: another one has its own work, and the rest."""
    stored = Stored(tmp_path, buckets())
    killed: list[int] = []
    with spark_session(tmp_path) as own:
        into = ("--out", f"{stored.bucket.url}/spark", "--state", tmp_path / "state")
        reading = own.run("dedup", stored.warcs, *into, "--dry-run")
        assert reading["revisits"] == 9
        kill = partial(_killed_one, own.pid, killed)
        stored.bucket.server.faults.append(Fault("02/x.warc.gz", 1, cut=0, when=kill))
        report = own.run("dedup", stored.warcs, *into)
    assert len(killed) == 1
    assert stored.results("spark") == stored.expected
    for name in ("captures", "revisits", "refused", "verified", "bytes_after", "hosts"):
        assert report[name] == stored.report[name]
    sent = report["requests"]
    tried = 2  # of `check_conditions`
    assert isinstance(sent, dict) and sent["get"] > 8 and sent["put"] == tried + 5
    back = ("--state", tmp_path / "state", "--jobs", "1", "--out", tmp_path / "back")
    typed("undedup", f"{stored.bucket.url}/spark", *back, status=7)
    typed("verify", "--against", stored.source, tmp_path / "back", "--records")


def test_archives_in_a_store_are_verified_though_executors_are_killed(
    tmp_path: Path, buckets: Callable[[], Bucket]
) -> None:
    """One dies while it lists the records of a result, one while it compares another."""
    stored = Stored(tmp_path, buckets())
    for name, data in stored.expected.items():
        stored.bucket.put(f"smaller/{name}", data)
    words = ("verify", "--against", stored.warcs, f"{stored.bucket.url}/smaller")
    expected = json.loads(typed(*words, "--json")[0])
    killed: list[int] = []
    with spark_session(tmp_path) as own:
        kill = partial(_killed_one, own.pid, killed)
        for path in ("smaller/02/x.warc.gz", "warcs/00/x.warc"):
            stored.bucket.server.faults.append(Fault(path, 1, cut=0, when=kill))
        report = own.run(*words)
    assert len(killed) == 2
    sent = report.pop("requests")
    assert isinstance(sent, dict) and sent["get"] >= expected.pop("requests")["get"] > 8
    assert report == expected and report["revisits_rebuilt"] == 9


def test_a_large_file_is_divided_though_an_executor_is_killed(
    tmp_path: Path, buckets: Callable[[], Bucket]
) -> None:
    """6,000 copies are three tasks, for which the file is read by range; one is done twice."""
    source, bucket, copies = tmp_path / "in", buckets(), 6_000
    source.mkdir()
    bodies = [Random(number).randbytes(3000) for number in range(20)]
    for name, count, date in (("a", 20, EARLY), ("b", copies, LATE)):
        records = (
            response(
                bodies[at % 20], number=count + at, Target_URI=b"http://%d.test/" % at, Date=date
            )
            for at in range(count)
        )
        (source / f"{name}.warc.gz").write_bytes(members(*records))
    for path in source.iterdir():
        bucket.put(f"warcs/{path.name}", path.read_bytes())
    expected = json.loads(typed("dedup", source, "--out", tmp_path / "local", "--json")[0])
    assert expected["revisits"] == copies
    work, requests, killed = tmp_path / "work", bucket.server.requests, list[int]()

    def begun() -> bool:  # in the midst of the file, when there is a plan
        planned = list(work.glob("plan/*/part.json"))
        in_midst = requests[-1][2] and not requests[-1][2].startswith("bytes=0-")
        return bool(planned and in_midst) and _killed_one(own.pid, killed)

    with spark_session(tmp_path) as own:
        bucket.server.faults.append(Fault("b.warc.gz", 1, cut=0, when=begun))
        out = ("--out", f"{bucket.url}/smaller", "--state", tmp_path / "state", "--work", work)
        report = own.run("dedup", f"{bucket.url}/warcs/", *out)
    assert len(killed) == 1
    for name in ("revisits", "refused", "verified", "bytes_after", "hosts"):
        assert report[name] == expected[name]
    assert bucket.content("smaller") == content(tmp_path / "local")
    plan = open_plan(work / "plan")
    (parts,) = plan.task_parts(2, plan.containers().keys()).values()
    assert len(parts) == 3


def _killed_one(session: int, killed: list[int]) -> bool:
    """Kill an executor of the session, if there is one yet; before, the driver asks."""
    mine = [
        pid
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))
        if _session(pid) == session and EXECUTOR in _words(pid)
    ]
    if mine:
        os.kill(mine[0], signal.SIGKILL)
        killed.append(mine[0])
    return bool(mine)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def test_the_cluster_of_the_docs(tmp_path: Path, buckets: Callable[[], Bucket]) -> None:
    """Master and worker by the documented commands, on this machine: an archive is read."""
    text = (ROOT / "docs" / "batch.md").read_text()
    lines = re.findall(r"^    (export SPARK_HOME.*|\$SPARK_HOME/bin/.*)$", text, re.MULTILINE)
    home, master, worker = lines
    with refusing_port() as free:
        port = free
    for old, new in (
        (".venv/bin/python", sys.executable), ("master.example.org", "127.0.0.1"),
        ("7077", str(port)), ("/scratch", str(tmp_path)),
    ):  # fmt: skip
        home, master, worker = (line.replace(old, new) for line in (home, master, worker))
    bucket = buckets()
    for path in (ROOT / "tests" / "data" / "warc").glob("example.warc*"):
        bucket.put(f"warcs/{path.name}", path.read_bytes())
    env = spark_environment() | {"SPARK_MASTER_WEBUI_PORT": "0", "SPARK_WORKER_WEBUI_PORT": "0"}
    url = f"spark://127.0.0.1:{port}"
    words = [sys.executable, "-m", "dedupindex", "manifest", f"{bucket.url}/warcs/"]
    words += ["-o", str(tmp_path / "manifest"), "--spark", url, "--json"]
    with ExitStack() as stack:
        for line in (master, f"{worker} --cores 1 --host 127.0.0.1"):
            script = f"{home}\nexec {line}"
            stack.enter_context(in_background(["bash", "-c", script], env, tmp_path / "log"))
            until_it_listens(port)
        done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr + (tmp_path / "log").read_text()[-3000:]
    assert json.loads(done.stdout)["lines"] > 0
    assert "WARN " not in done.stderr


@contextmanager
def in_background(words: list[str], env: dict[str, str], log: Path) -> Iterator[None]:
    """Run a program until the block ends."""
    with (
        open(log, "ab") as out,
        subprocess.Popen(words, env=env, stdout=out, stderr=out, start_new_session=True) as process,
    ):
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def until_it_listens(port: int) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port), 1)):
            return
        time.sleep(0.2)
    raise AssertionError(f"nothing listens at {port}")
