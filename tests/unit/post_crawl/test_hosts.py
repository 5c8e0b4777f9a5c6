"""Manifests of machines that have different files under one path, and one plan of all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from dedupindex.cli import main
from dedupindex.object_store import stores
from dedupindex.post_crawl.manifest.parquet import FILE, open_manifest
from dedupindex.post_crawl.plan.plan_file import PART, open_plan
from dedupindex.runtime.duckdb import one_thread
from tests.conftest import need
from tests.support.paths import ROOT
from tests.support.range_server import serving
from tests.support.rewriting import content, members, records_of
from tests.support.warc_cases import gz, response
from tests.support.zstd_files import dictionary_frame, trained, zst

BODIES = [Random(number).randbytes(1500) for number in range(8)]
NAME = "x.warc.gz"
NAMESPACE = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--user", "--map-root-user"])]
Run = Callable[..., tuple[int, dict[str, object]]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def typed(*words: object) -> tuple[int, dict[str, object]]:
        status = main([*map(str, words), "--json"])
        found = capsys.readouterr()
        return status, json.loads(found.out) if found.out else {"err": found.err}

    return typed


def records(host: int, bodies: list[bytes], year: int) -> list[bytes]:
    """A response for each body, of a URL, a record id and a second of its own."""
    return [
        response(
            body, number=100 * host + at, Target_URI=b"http://h%d.test/%d" % (host, at),
            Date=b"%d-01-01T00:00:%02dZ" % (year, at),
        )
        for at, body in enumerate(bodies)
    ]  # fmt: skip


class Machines:
    """Two machines, `a` with the older captures; only one of them at a time is this one."""

    def __init__(self, top: Path, run: Run) -> None:
        self.top, self.run, self.path = top, run, top / "warcs"
        self.aside = {host: top / f"disk-{host}" for host in "ab"}
        self.here = ""

    def be(self, host: str) -> None:
        """Mount the files of a host, and of no other, at the path."""
        if self.here:
            self.path.rename(self.aside[self.here])
        if host:
            self.aside[host].rename(self.path)
        self.here = host

    def fill(self) -> None:
        files = {"a": members(*records(1, BODIES[:6], 2020))}
        files["b"] = members(*records(2, [*BODIES[:4], BODIES[6], BODIES[6]], 2024))
        for host, data in files.items():
            self.aside[host].mkdir()
            (self.aside[host] / NAME).write_bytes(data)

    def plan(self) -> Path:
        for host in "ab":
            self.be(host)
            assert self.run("manifest", self.path, "-o", self.top / host, "--host", host)[0] == 0
        self.be("")
        plan = self.top / "plan"
        assert self.run("resolve", self.top / "a", self.top / "b", "-o", plan)[0] == 0
        return plan


@pytest.fixture
def machines(tmp_path: Path, run: Run) -> Machines:
    made = Machines(tmp_path, run)
    made.fill()
    return made


def test_one_plan_of_two_machines_with_one_layout(
    machines: Machines, run: Run, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    top, plan = machines.top, machines.plan()
    opened = open_plan(plan)
    assert [(one.host, one.name) for one in opened.containers().values()] == [
        ("a", NAME), ("b", NAME),
    ]  # fmt: skip
    assert opened.totals.copies == 5  # four of the other machine, and one within `b`
    hosts = {number: one.host for number, one in opened.containers().items()}
    assert [hosts[one.original.container] for one in opened.copies(2)] == ["a"] * 4 + ["b"]

    machines.be("b")
    assert main(["rewrite", str(plan), "--host", "b", "--out", str(top / "whole"), "--json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert (found["revisits"], found["refused"]) == (1, {"original-elsewhere": 4})
    assert "warning: 4 captures stay whole: their originals are on" in printed.err
    monkeypatch.setattr(stores, "_FIRST_WAIT", 0.001)
    assert main(["rewrite", str(plan), "--host", "b", "--out", str(top / "none"),
                 "--base-url", "http://127.0.0.1:1/warcs"]) == 4  # fmt: skip
    error = capsys.readouterr().err
    assert "dedupindex: a:" in error and "Connection refused (tried 5 times)" in error
    assert "http://127.0.0.1:1/warcs/" in error and not list((top / "none").glob("*.gz"))
    with serving(machines.aside["a"]) as store:
        status, found = run("rewrite", plan, "--host", "b", "--out", top / "b.out",
                            "--base-url", store)  # fmt: skip
        assert (status, found["revisits"], found["files"]) == (0, 5, 1)
        status, found = run("rewrite", plan, "--host", "b", "--in-place", "--base-url", store,
                            "--dry-run")  # fmt: skip
    assert (found["revisits"], found["refused"]) == (1, {"original-elsewhere": 4})
    machines.be("a")
    status, found = run("rewrite", plan, "--host", "a", "--out", top / "a.out")
    assert (status, found["revisits"], found["files"]) == (0, 0, 1)
    assert content(top / "a.out") == content(machines.path)

    status, found = run("verify", "--against", machines.aside["b"], top / "b.out",
                        "--originals", top / "a.out")  # fmt: skip
    assert status == 0, found
    # Every record can be had back, once the results of the other machine can be read.
    status, found = run("undedup", top / "b.out", "--out", top / "again")
    assert (status, found["left_alone"]) == (7, 1)
    status, found = run("undedup", top / "b.out", "--out", top / "again",
                        "--host", f"a={top / 'a.out'}")  # fmt: skip
    assert (status, found["rebuilt"], found["records"]) == (0, 1, 5)
    assert records_of(top / "again" / NAME) == records_of(machines.aside["b"] / NAME)


def test_what_other_machines_refer_to_is_protected_there(machines: Machines, run: Run) -> None:
    """A later plan of `a` alone, with an even earlier capture, does not replace the originals."""
    plan = machines.plan()
    machines.be("a")
    assert run("rewrite", plan, "--host", "a", "--in-place")[0] == 0
    (machines.path / "older.warc.gz").write_bytes(members(*records(3, BODIES[:6], 2010)))
    top = machines.top
    assert run("manifest", machines.path, "-o", top / "later")[0] == 0
    assert run("resolve", top / "later", "-o", top / "later.plan")[0] == 0
    status, found = run("rewrite", top / "later.plan", "--in-place")
    assert (status, found["revisits"]) == (0, 2)  # what nobody else refers to
    assert found["refused"] == {"protected-original": 4}


def test_hosts_are_told_apart_or_the_run_is_refused(machines: Machines, run: Run) -> None:
    top, plan = machines.top, machines.plan()
    for words in ([], ["--host", "c"]):
        status, found = run("rewrite", plan, "--out", top / "out", *words)
        assert status == 4 and "of a, b" in str(found["err"])
    for what in ("--undo", "--commit"):
        assert run("rewrite", plan, what)[0] == run("rewrite", plan, what, "--host", "c")[0] == 4
    status, found = run("resolve", top / "a", top / "b", "-o", top / "p", "--host", "c")
    assert status == 4 and "of a, b" in str(found["err"])
    machines.be("b")
    for name in "ab":
        assert run("manifest", machines.path, "-o", top / f"none-{name}")[0] == 0
        machines.be("a")
    status, found = run("resolve", top / "none-a", top / "none-b", "-o", top / "p")
    assert status == 4 and "--host NAME" in str(found["err"])  # one path, two contents
    status, found = run("resolve", top / "none-a", top / "b", "-o", top / "p")
    assert status == 4 and "others of none" in str(found["err"])
    status, found = run("manifest", machines.path, "-o", top / "a", "--host", "b")
    assert status == 5 and "was made with host a, not b" in str(found["err"])
    status, found = run("manifest", machines.path, "-o", top / "a")
    assert status == 5 and "was made with host a, not none" in str(found["err"])
    status, found = run("index", "--whitelist", "--mime", ".*", machines.path, top / "index")
    assert status == 0
    status, found = run("resolve", top / "a", "-o", top / "p", "--index", top / "index")
    assert status == 4 and "does not know the hosts" in str(found["err"])
    machines.be("b")
    with serving(machines.path) as store:  # the wrong machine: bytes are compared
        status, found = run("rewrite", plan, "--host", "b", "--out", top / "out",
                            "--base-url", store)  # fmt: skip
    assert found["revisits"] == 1
    assert sum(found["refused"].values()) == 4  # type: ignore[attr-defined]


def test_originals_of_zstd_and_plain_files_are_read_elsewhere(machines: Machines, run: Run) -> None:
    dictionary = trained()
    first, second = records(1, BODIES[:6], 2020), records(2, BODIES[:6], 2024)
    (machines.aside["a"] / NAME).write_bytes(
        dictionary_frame(dictionary) + b"".join(zst(one, dictionary) for one in first[:3])
    )
    (machines.aside["a"] / "y.warc").write_bytes(b"".join(first[3:]))
    (machines.aside["b"] / NAME).write_bytes(b"".join(map(gz, second)))
    plan = machines.plan()
    machines.be("b")
    with serving(machines.aside["a"]) as store:
        status, found = run("rewrite", plan, "--host", "b", "--out", machines.top / "out",
                            "--base-url", store, "--jobs", 2)  # fmt: skip
    assert (status, found["revisits"], found["refused"]) == (0, 6, {})


def test_manifests_and_plans_without_hosts_are_read_as_before(machines: Machines, run: Run) -> None:
    """Those of the earlier format have no hosts, and runs of one may be resumed with the other."""
    top = machines.top
    machines.be("a")
    (machines.path / "y.warc.gz").write_bytes(members(*records(2, BODIES[:6], 2024)))
    assert run("manifest", machines.path, "-o", top / "new")[0] == 0
    assert run("resolve", top / "new", "-o", top / "new.plan")[0] == 0
    about = json.loads((top / "new" / FILE).read_bytes())
    del about["host"]
    (top / "new" / FILE).write_text(json.dumps({**about, "format": 5}))
    for path in (top / "new" / "containers.jsonl", top / "new.plan/part-1-of-1/containers.jsonl"):
        path.write_text(path.read_text().replace(', "host": ""', ""))
        assert "host" not in path.read_text()
    part = top / "new.plan/part-1-of-1" / PART
    part.write_text(part.read_text().replace('"format": 5', '"format": 4'))
    assert {one.host for one in open_manifest(top / "new").containers().values()} == {""}
    assert run("resolve", top / "new", "-o", top / "again")[0] == 0
    assert open_plan(top / "again").made_of == open_plan(top / "new.plan").made_of
    assert run("rewrite", top / "new.plan", "--in-place")[1]["revisits"] == 6
    assert run("manifest", machines.path, "-o", top / "new")[0] == 0  # continued


@pytest.mark.parametrize("in_place", [False, True])
def test_a_second_copy_is_rewritten_by_the_same_plan(
    machines: Machines, run: Run, in_place: bool
) -> None:
    """Under another path, with other times and inodes; the results have the same bytes."""
    top = machines.top
    machines.be("a")
    (machines.path / "deep").mkdir()
    (machines.path / "deep" / "y.warc.gz").write_bytes(members(*records(2, BODIES[:6], 2024)))
    (machines.path / "z.warc.gz").write_bytes(members(*records(3, BODIES[:3], 2025)))
    assert run("manifest", machines.path, "-o", top / "m")[0] == 0
    assert run("resolve", top / "m", "-o", top / "plan")[0] == 0
    assert run("rewrite", top / "plan", "--out", top / "first")[1]["revisits"] == 9
    copy = top / "mnt" / "copy"
    shutil.copytree(machines.path, copy, copy_function=shutil.copy)
    machines.be("")
    where = ("--root", f"{machines.path}={copy}")
    out = copy if in_place else top / "second"
    how = ("--in-place",) if in_place else ("--out", out)
    before = content(copy)
    status, found = run("rewrite", top / "plan", *how, *where)
    assert (status, found["revisits"]) == (0, 9)
    assert content(out) == content(top / "first")
    if in_place:
        assert run("rewrite", top / "plan", "--undo", *where)[0] == 0
        assert content(copy) == before
    # What differs from the first copy is left alone, and named.
    shutil.rmtree(top / "second", ignore_errors=True)
    damaged = copy / "z.warc.gz"
    damaged.write_bytes(damaged.read_bytes()[:-9] + b"\0" * 9)
    status, found = run("rewrite", top / "plan", *how, *where)
    assert (status, found["left_alone"]) == (7, 1)
    assert run("rewrite", top / "plan", *how, "--root", f"/none={copy}")[0] == 4
    assert run("rewrite", top / "plan", *how, "--root", str(copy))[0] == 2


def test_manifests_are_trusted_by_choice_only(machines: Machines, run: Run) -> None:
    """Nothing of `a` can be read on `b`; the result is that of reading it."""
    top, plan = machines.top, machines.plan()
    machines.be("b")
    words = ("rewrite", plan, "--host", "b", "--out")
    with serving(machines.aside["a"]) as store:
        assert run(*words, top / "read", "--base-url", store)[1]["trusted"] == 0
        for more in (["--base-url", store], ["--urls", top / "table.tsv"]):
            assert run(*words, top / "none", "--trust-manifests", *more)[0] == 2
    for bad in (words[:2], [*words[:4], "--in-place"]):
        assert run(*bad, "--trust-manifests")[0] == 2
    status, found = run(*words, top / "trusted", "--trust-manifests")
    assert (status, found["revisits"], found["trusted"]) == (0, 5, 4)
    assert content(top / "trusted") == content(top / "read")
    status, found = run("undedup", top / "trusted", "--out", top / "again",
                        "--host", f"a={machines.aside['a']}")  # fmt: skip
    assert (status, found["records"]) == (0, 5)
    assert records_of(top / "again" / NAME) == records_of(machines.path / NAME)


@pytest.mark.parametrize("what", ["body", "date", "url", "record_id", "covers", "strong"])
def test_what_manifests_do_not_prove_is_kept(machines: Machines, run: Run, what: str) -> None:
    """A plan that is wrong, or a copy that has changed since its manifest was made."""
    top, plan = machines.top, machines.plan()
    machines.be("b")
    wrong = {
        "date": "'2020'", "url": "'http://h/\nX: y'", "record_id": "''", "covers": "0",
        "strong": "'x'::BLOB",
    }  # fmt: skip
    if what == "body":
        path = machines.path / NAME
        status = path.stat()
        path.write_bytes(members(*records(2, [*BODIES[4:8], BODIES[6], BODIES[6]], 2024)))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        column = what if what == "strong" else f"original_{what}"
        for path in plan.glob("part-*/copies-*.parquet"):
            changed = path.with_suffix(".new")
            with one_thread() as database:
                database.execute(
                    f"COPY (SELECT * REPLACE ({wrong[what]} AS {column}) FROM "
                    f"read_parquet('{path}')) TO '{changed}' (FORMAT parquet)"
                )
            changed.replace(path)
    words = ("rewrite", plan, "--host", "b", "--out", top / "out", "--trust-manifests")
    status, found = run(*words)
    assert (status, found["trusted"]) == (7 if what == "body" else 0, 0), found
    assert what == "body" or sum(found["refused"].values()) >= 4  # type: ignore[attr-defined]


def test_two_hosts_with_their_own_disks(tmp_path: Path) -> None:
    """Each command in the mount namespace of its host: it cannot read the files of the other."""
    made = Machines(tmp_path, lambda *words: (0, {}))
    made.fill()
    made.path.mkdir()

    def on(host: str, *words: object) -> str:
        disk = made.aside[host]
        inside = f"mount --bind {disk} {made.path} && mount -t tmpfs none {disk} && "
        other = made.aside["b" if host == "a" else "a"]
        inside += f'mount -t tmpfs none {other} && exec "$@"'
        line = [*NAMESPACE, "sh", "-c", inside, "sh", ROOT / "bin" / words[0], *words[1:], "--json"]
        done = subprocess.run(list(map(str, line)), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    tried = subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"])
    need("unshare with a mount namespace", found=not tried.returncode)
    plan = tmp_path / "plan"
    for host in "ab":
        on(host, "manifest", made.path, "-o", tmp_path / host, "--host", host)
    assert main(["resolve", str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(plan)]) == 0
    table = tmp_path / "files.tsv"
    for number, ask in enumerate(("base-url", "urls", "trust-manifests")):
        out = tmp_path / str(number)
        with serving(made.aside["a"]) as store:
            table.write_text(f"name\turl\thost\n{NAME}\t{store}{NAME}\ta\n")
            more = {"base-url": [store], "urls": [table]}.get(ask, [])
            found = on("b", "rewrite", plan, "--host", "b", "--out", out / "b", f"--{ask}", *more)
        assert json.loads(found)["revisits"] == 5
        on("a", "rewrite", plan, "--host", "a", "--out", out / "a")
        assert content(out / "b") == content(tmp_path / "0" / "b")
        assert main(["verify", "--against", str(made.aside["b"]), str(out / "b"),
                     "--originals", str(out / "a")]) == 0  # fmt: skip
