"""An index on a cluster as its users meet it: commands, copies, a server, an outage."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from base64 import b32encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from hashlib import sha1
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from dedupindex.capture import Capture
from dedupindex.cli import main
from dedupindex.crawls import lifecycle
from dedupindex.crawls.crawl_captures import add
from dedupindex.crawls.store import Writing
from dedupindex.crawls.stores import make_store
from dedupindex.errors import BadInput, Damaged, IndexExists, IndexUnavailable, SettingsConflict
from dedupindex.index import home_of, open_index, refer_to
from dedupindex.index.address import Address
from dedupindex.index.engine import retry
from dedupindex.index.engines.cassandra.cql import Call, Row, Session, Statement, connect
from dedupindex.index.identity import Settings, read_identity
from dedupindex.indexer.admission import admission_filter
from dedupindex.lookup.decide import Query, find
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.benchmarks.test_benchmarks import bench
from tests.conftest import MakeIndex
from tests.integration.test_server_live import serving, until
from tests.peers.cassandra import PATIENCE, Keyspaces, Ring
from tests.support.captures import capture
from tests.support.captures import sha1 as sha1_of

pytestmark = pytest.mark.peer
JSON = {"Content-Type": "application/json"}
LINES = {"Content-Type": "application/x-ndjson"}

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def address(keyspaces: Keyspaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an index that is not there yet; homes are in a directory of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with keyspaces.some() as address:
        yield address()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: object) -> tuple[int, str, str]:
        status = main([str(word) for word in words])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def label(number: int) -> str:
    return b32encode(sha1(b"%d" % number).digest()).decode()


def cdx(folder: Path, first: int, last: int, name: str = "rows") -> Path:
    """A CDX of captures, each of a digest of its own."""
    path = folder / f"{name}-{first}.cdx"
    rows = [
        f"com,example)/{n} 20261101091417 http://example.com/{n} image/png 200 {label(n)} - - "
        f"{1000 + n} {n * 100} {name}.warc.gz"
        for n in range(first, last)
    ]
    path.write_text("\n".join([" CDX N b a m s k r M S V g", *rows, ""]))
    return path


def warc(folder: Path, name: str, first: int, last: int) -> Path:
    """A WARC of responses, each of a payload of its own."""
    path, records = folder / name, []
    for n in range(first, last):
        http = f"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n{n}"
        fields = [
            "WARC/1.1",
            "WARC-Type: response",
            "WARC-Date: 2026-11-01T09:14:17Z",
            f"WARC-Target-URI: http://example.com/{n}",
            f"WARC-Record-ID: <urn:uuid:00000000-0000-4000-8000-{n:012}>",
            f"WARC-Payload-Digest: sha1:{label(n)}",
            "Content-Type: application/http; msgtype=response",
            f"Content-Length: {len(http)}",
        ]
        records.append("\r\n".join([*fields, "", f"{http}\r\n\r\n"]))
    path.write_text("".join(records), newline="")
    return path


def asked(number: int) -> dict[str, str]:
    return {"digest": f"sha1:{label(number)}", "url": f"http://example.com/{number}"}


def test_an_index_is_built_added_to_and_asked_by_its_address(
    address: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (["--add", address], ["--replace", address], ["--add", "--engine", address]):
        status, _, talk = run("index", cdx(tmp_path, 0, 20), *words)
        assert status == 6 and f"there is no index at {address} to add to" in talk
    status, out, _ = run("index", cdx(tmp_path, 0, 20), address)
    assert status == 0 and f"bin/serve {shlex.quote(address)}" in out
    assert run("index", cdx(tmp_path, 20, 30), address)[0] == IndexExists.exit_status
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))  # as on another machine
    assert run("index", "--add", cdx(tmp_path, 20, 30), address)[0] == 0
    assert run("index", "--add", cdx(tmp_path, 20, 30), "--engine", address)[0] == 0
    stats = json.loads(run("index", "--stats", "--json", address)[1])
    assert (stats["captures"], stats["digests"], stats["containers"]) == (30, 30, 2)
    assert (stats["engine"], stats["bytes"]) == (address, None)
    assert "originals                           30\n" in run("index", "--stats", address)[1]
    assert json.loads(run("index", "--check", "--json", "--engine", address)[1])["ok"]
    for words in ([address], ["--engine", address], [address + "&driver=acsylla"]):
        out = run("lookup", *words, "--digest", f"sha1:{label(25)}", "--json")[1]
        assert json.loads(out)["duplicate"] is True, words
    (tmp_path / "state.txt").write_text("".join(json.dumps(asked(n)) + "\n" for n in range(40)))
    out = run("lookup", address, "--batch", tmp_path / "state.txt")[1]
    assert [json.loads(line)["duplicate"] for line in out.splitlines()] == [True] * 30 + [
        False
    ] * 10
    out = run("report", "--engine", address, "--against", cdx(tmp_path, 10, 50, "new"), "--json")[1]
    assert '"records":40' in out.replace(" ", "")


def test_a_directory_may_stand_for_it(address: str, run: Run, tmp_path: Path) -> None:
    index = tmp_path / "index"
    assert run("index", cdx(tmp_path, 0, 5), index, "--engine", address)[0] == 0
    assert read_identity(index).engine == address
    assert run("index", "--add", cdx(tmp_path, 5, 9), index)[0] == 0
    other = tmp_path / "other"
    other.mkdir()
    words = ["--digest", f"sha1:{label(7)}", "--json"]
    assert run("lookup", other, *words)[0] == IndexUnavailable.exit_status
    assert json.loads(run("lookup", other, "--engine", address, *words)[1])["duplicate"]
    assert json.loads(run("lookup", other, *words)[1])["duplicate"]
    elsewhere = address.replace("/k", "/other_k")
    assert run("lookup", index, "--engine", elsewhere, *words)[0] == SettingsConflict.exit_status
    assert run("lookup", index, "--engine", "lmdb", *words)[0] == SettingsConflict.exit_status
    words = ["index", "--add", cdx(tmp_path, 5, 9), index]
    assert run(*words, "--engine", elsewhere)[0] == SettingsConflict.exit_status
    assert run(*words, "--engine", "lmdb")[0] == SettingsConflict.exit_status
    assert run(*words, "--keep", "latest")[0] == SettingsConflict.exit_status
    assert run(*words)[0] == 0


def test_a_new_directory_adds_with_the_settings_that_the_index_has(
    address: str, run: Run, tmp_path: Path
) -> None:
    assert run("index", "--keep", "latest", cdx(tmp_path, 0, 5), address)[0] == 0
    index = tmp_path / "new" / "index"
    assert run("index", "--add", cdx(tmp_path, 5, 9), index, "--engine", address)[0] == 0
    assert read_identity(index).settings == Settings(keep="latest")
    assert json.loads(run("index", "--check", "--json", index)[1])["captures"] == 9


def test_an_index_of_nothing(address: str, run: Run) -> None:
    assert run("lookup", address, "--digest", f"sha1:{label(1)}")[0] == IndexUnavailable.exit_status
    assert run("index", "--empty", address)[0] == 0
    assert run("lookup", address, "--digest", f"sha1:{label(1)}")[:2] == (10, "no duplicate\n")


def test_changed_files_take_their_place(address: str, run: Run, tmp_path: Path) -> None:
    path, stays = warc(tmp_path, "a.warc", 0, 50), warc(tmp_path, "b.warc", 30, 45)
    assert run("index", path, stays, address)[0] == 0
    warc(tmp_path, "a.warc", 40, 60)
    assert run("index", "--add", path, address)[0] == SettingsConflict.exit_status
    assert run("index", "--replace", path, stays, address)[0] == 0
    found = json.loads(run("index", "--check", "--json", address)[1])
    assert found == {"ok": True, "problems": [], "captures": 30, "digests": 30, "containers": 2}


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["index", "--compact"], BadInput.exit_status, "nodetool compact"),
        (["search", "a"], SettingsConflict.exit_status, "whoosh"),
    ],
)
def test_unsupported_commands_on_a_cluster_are_refused(
    words: list[str], status: int, said: str, address: str, run: Run
) -> None:
    assert run("index", "--empty", address)[0] == 0
    found = run(words[0], address, *words[1:])
    assert found[0] == status and said in found[2]


def test_more_copies_than_nodes_are_refused(address: str, run: Run, tmp_path: Path) -> None:
    many = address.replace("/k", "/more_k").replace("replication=1", "replication=3")
    status, _, err = run("index", cdx(tmp_path, 0, 1), many)
    assert status == BadInput.exit_status and "?replication=1" in err


def held(index: Path) -> list[Any]:
    with closing(open_index(index)) as engine, engine.view() as view:
        assert engine.check() == []
        return [list(view.cells()), list(view.containers()), sorted(view.places())]


def test_an_index_is_copied_to_a_cluster_and_back(
    address: str, run: Run, tmp_path: Path, make_index: MakeIndex
) -> None:
    index, back = tmp_path / "index", tmp_path / "back"
    for first in (0, 150):
        path = cdx(tmp_path, first, first + 200, f"rows{first}")
        words = ["--add"] * (first > 0) + ["--crawl", f"weekly{first}"]
        assert run("index", *words, path, index)[0] == 0
    there = json.loads(run("index", "--copy", address, index, "--json")[1])
    assert (there["copy"], there["captures"], there["digests"]) == (address, 350, 350)
    status, out, _ = run("index", "--copy", back, address)
    assert status == 0 and f"content hash of both: {there['content']}" in out
    assert held(back) == held(index)
    assert read_identity(back).settings == read_identity(index).settings
    assert run("index", "--copy", address, index)[0] == IndexExists.exit_status
    searched = tmp_path / "searched"
    assert run("index", "--copy", searched, index, "--engine", "whoosh")[0] == 0
    assert held(searched)[:2] == held(index)[:2]


@pytest.mark.parametrize("form", ["cdx", "cdxj"])
def test_an_index_of_a_cluster_is_exported_as_one_in_a_file(
    form: str, address: str, run: Run, tmp_path: Path
) -> None:
    index, moved = tmp_path / "index", tmp_path / "moved"
    path = cdx(tmp_path, 0, 350)
    for where in (index, address):
        assert run("index", path, where)[0] == 0
    status, _, talk = run("export", f"--{form}", address, "-o", moved)
    assert status == 0 and "350 originals written" in talk
    assert run("export", f"--{form}", index, "-o", tmp_path / "same")[0] == 0
    assert moved.read_bytes() == (tmp_path / "same").read_bytes()
    assert moved.read_bytes().count(b"\n") == 350 + (form == "cdx")


def test_a_copy_has_committed_captures_of_crawls(address: str, run: Run, tmp_path: Path) -> None:
    assert run("index", cdx(tmp_path, 0, 10), address)[0] == 0
    [home] = (tmp_path / "state" / "dedupindex").iterdir()
    judge = admission_filter(Settings())

    def report(name: str, items: list[Capture], writing: Writing) -> None:
        add(writing, writing.crawl(name), items, Settings(), judge)

    with closing(make_store(home)) as store:
        for number, name in enumerate(("done", "open"), 50):
            store.write(partial(lifecycle.begin, name=name))
            items = [capture(number), capture(7)]
            store.write(partial(report, name, items))
        store.write(partial(lifecycle.commit, name="done"))
    for back in ("back", "searched"):
        words = [tmp_path / back, address, "--engine", "whoosh" if back == "searched" else "lmdb"]
        status, _, err = run("index", "--copy", *words)
        assert status == 0 and "crawls are not copied" in err
        with closing(open_index(tmp_path / back)) as engine, engine.view() as view:
            assert len(list(view.captures())) == view.counts().captures == 12
            assert {one.crawl for one in view.any(sha1_of(50), 9)} == {"done"}
            assert view.any(sha1_of(51), 9) == []


def test_a_batch_waits_for_the_cluster_a_few_times_only(
    address: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("index", cdx(tmp_path, 0, 2500), address)[0] == 0
    [index] = (tmp_path / "state" / "dedupindex").iterdir()
    execute, execute_many = Session.execute, Session.execute_many
    waits: list[str] = []  # of single statements, and of streams of them

    def waiting(session: Session, statement: Statement, *values: Any) -> list[Row]:
        waits.append(statement.text)
        return execute(session, statement, *values)

    def streaming(session: Session, calls: Iterable[Call]) -> Iterator[list[Row]]:
        waits.append("stream")
        return execute_many(session, calls)

    monkeypatch.setattr(Session, "execute", waiting)
    monkeypatch.setattr(Session, "execute_many", streaming)
    live = LiveIndex(index)
    live.refresh()
    web = create_app(Config(index), live).test_client()
    numbers = range(1, 3000, 2)
    for kind, headers in (("json", JSON), ("lines", LINES)):
        waits.clear()
        if kind == "json":
            data = json.dumps({"lookups": [asked(n) for n in numbers]})
            body = web.post("/lookup", data=data, headers=headers)
            found = [one["duplicate"] for one in body.get_json()["answers"]]
        else:
            data = "".join(json.dumps(asked(n)) + "\n" for n in numbers)
            body = web.post("/lookup", data=data, headers=headers)
            found = [json.loads(line)["duplicate"] for line in body.get_data().splitlines()]
        assert found == [n < 2500 for n in numbers]
        assert "stream" in waits and len(waits) < 50, kind


KILLED = """
import os, signal, sys
from dedupindex.cli import main
from dedupindex.index.engines.cassandra.metadata import Lease
looks = int(sys.argv[1])
def check(lease):
    global looks
    looks -= 1
    if not looks:
        os.kill(os.getpid(), signal.SIGKILL)
Lease.check = check
sys.exit(main(sys.argv[2:]))
"""


def killed(look: int, *words: object) -> None:
    """A command that dies when its load looks at its lease for the `look`-th time."""
    line = [sys.executable, "-c", KILLED, str(look), *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


def all_answered(address: str, run: Run, numbers: range) -> None:
    """Every capture is found by a lookup, and the index is sound."""
    with closing(open_index(home_of(address))) as engine, engine.view() as view:
        for number in numbers:
            query = Query(sha1_of(0)._replace(raw=sha1(b"%d" % number).digest()))
            answer = find(view, engine.identity.settings, query)
            assert answer is not None and answer.original.url.endswith(b"/%d" % number)
    found = json.loads(run("index", "--check", "--json", address)[1])
    assert found["problems"] == []
    assert found["captures"] == found["digests"] == len(numbers)


@pytest.mark.parametrize("look", [1, 2, 3])  # before the first capture, after the last, at the end
def test_a_first_load_that_was_killed_is_run_again_as_typed(
    look: int, address: str, run: Run, tmp_path: Path
) -> None:
    source = cdx(tmp_path, 0, 1500)
    killed(look, "index", cdx(tmp_path, 5000, 5600, "wrong"), address)  # of which nothing stays
    killed(look, "index", source, address)
    status = run("lookup", address, "--digest", f"sha1:{label(1)}")[0]
    assert status == IndexUnavailable.exit_status
    status, out, _ = run("index", source, address)
    assert status == 0 and "1,500  URL and digest new to the index" in out
    all_answered(address, run, range(1500))


@pytest.mark.parametrize("look", [1, 2, 3])
def test_a_load_that_was_killed_is_run_again_as_typed(
    look: int, address: str, run: Run, tmp_path: Path
) -> None:
    assert run("index", cdx(tmp_path, 0, 200), address)[0] == 0
    more = cdx(tmp_path, 200, 900, "more")
    killed(look, "index", "--add", more, address)
    status, out, _ = run("index", "--check", address)
    assert status == Damaged.exit_status and "run its command again" in out
    assert run("index", "--add", more, address)[0] == 0
    all_answered(address, run, range(900))


@pytest.mark.parametrize("look", [1, 2, 3])
def test_a_copy_that_was_killed_is_run_again_as_typed(
    look: int, address: str, run: Run, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    for first in (0, 50, 200):
        words = ["--add"] * (first > 0)
        assert run("index", *words, warc(tmp_path, f"{first}.warc", first, 300), index)[0] == 0
    assert run("purge", index, "--container", tmp_path / "0.warc", "--force")[0] == 0
    killed(look, "index", "--copy", address, index)
    status, _, err = run("index", "--copy", address, index)
    assert status == 0, err  # also of the marks of what was purged
    all_answered(address, run, range(50, 300))
    assert not list(home_of(address).glob("copying*"))


def lose_names(address: str, *tables: str) -> None:
    """Empty tables of names, as a load did that was killed and run again."""
    keyspace = Address.parse(address).keyspace
    with closing(connect(Address.parse(address))) as session:
        for table in tables:
            session.define(f"TRUNCATE {keyspace}.{table}")


@pytest.mark.parametrize("tables", [["place", "number"], ["place"], ["number"]])
def test_check_names_lost_containers_and_reread_repairs_them(
    tables: list[str], address: str, run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "two words"
    folder.mkdir()
    for first in (0, 50):
        words = ["--add", "--crawl", "a&week"] if first else []
        assert run("index", *words, cdx(folder, first, first + 50), address)[0] == 0
    lose_names(address, *tables)
    status, out, _ = run("index", "--check", address)
    if tables != ["number"]:
        assert status == Damaged.exit_status
        assert "100 captures are of containers whose names are lost" in out
        copied = run("index", "--copy", tmp_path / "copied", address)
        assert copied[0] == Damaged.exit_status and "has no name" in copied[2]
    commands = re.findall(r"bin/(index --reread .*?)(?:; |\n)", out)
    assert len(commands) == 2
    for command in commands:
        assert run(*shlex.split(command))[0] == 0
    all_answered(address, run, range(100))
    with closing(open_index(home_of(address))) as engine, engine.view() as view:
        crawls = {capture.crawl for _, capture in view.captures()}
    assert crawls == {"", "a&week"}


def test_an_index_whose_keyspace_was_dropped_is_built_anew_as_typed(
    address: str, run: Run, tmp_path: Path, keyspaces: Keyspaces
) -> None:
    keyspaces.spoiled.add(address)
    source = cdx(tmp_path, 0, 50)
    assert run("index", source, address)[0] == 0
    where = Address.parse(address)
    with closing(connect(where)) as session:
        session.define(f"DROP KEYSPACE {where.keyspace}")
    assert run("index", source, address)[0] == 0
    all_answered(address, run, range(50))


def with_short_timeout(address: str, folder: Path) -> tuple[Path, str]:
    """A directory that refers to an index, and the index's address with a timeout of 3 seconds."""
    home = folder / "short-timeout"
    home.mkdir()
    soon = address.replace(f"timeout={PATIENCE}", "timeout=3")
    assert soon != address
    retry(partial(refer_to, home, Address.parse(soon)))
    return home, soon


def test_no_outage_is_answered_as_new(
    address: str, run: Run, tmp_path: Path, cassandra: Ring
) -> None:
    assert run("index", cdx(tmp_path, 0, 300), address)[0] == 0
    index, address = with_short_timeout(address, tmp_path)
    live = LiveIndex(index)
    live.refresh()
    web = create_app(Config(index), live).test_client()
    query = f"/lookup?digest=sha1:{label(7)}&url=http://example.com/7"
    lookups = {"lookups": [asked(n) for n in range(310)]}
    lines = "".join(json.dumps(asked(n)) + "\n" for n in range(290, 310))

    def answers() -> bool:
        """Whether all is answered; a busy node may be too slow, but nothing is ever wrong."""
        one = web.get(query)
        many = web.post("/lookup", data=json.dumps(lookups), headers=JSON)
        body = web.post("/lookup", data=lines, headers=LINES).get_data(as_text=True)
        if 503 in (one.status_code, many.status_code) or "index_unavailable" in body:
            return False
        assert one.get_json()["match"] == "exact_url"
        found = many.get_json()["answers"]
        assert [one["duplicate"] for one in found] == [True] * 300 + [False] * 10
        assert body.count('"duplicate":true') == body.count('"duplicate":false') == 10
        return True

    assert until(answers)
    with cassandra.nodes[0].hanging():
        for path in (query, "/readyz", "/lookup?digest=sha1:" + label(999)):
            response = web.get(path)
            assert response.status_code == 503, response.get_data()
            assert response.get_json()["error"]["code"] == "index_unavailable"
        response = web.post("/lookup", data=json.dumps(lookups), headers=JSON)
        assert response.status_code == 503
        body = web.post("/lookup", data=lines, headers=LINES).get_data(as_text=True)
        assert body.count("index_unavailable") == 20 and "duplicate" not in body
        words = ["--digest", f"sha1:{label(999)}"]
        assert run("lookup", address, *words)[0] == IndexUnavailable.exit_status
        live.refresh()
    assert until(answers)  # the driver has given the node up


def test_a_server_on_a_cluster(address: str, run: Run, tmp_path: Path, cassandra: Ring) -> None:
    """As a process with workers of its own, which take crawls' reports, too."""
    assert run("index", cdx(tmp_path, 0, 50), address)[0] == 0
    home, soon = with_short_timeout(address, tmp_path)
    with serving(home, "--workers", "2", "--engine", soon) as server:
        assert server.ready["captures"] == 50

        def once(number: int) -> tuple[int, Any]:
            status, body = server.get("/lookup?" + urlencode(asked(number)))
            return status, json.loads(body)

        def get(number: int) -> tuple[int, Any]:
            """The first answer that is one: a busy node may be too slow."""
            found = [once(number)]
            assert found[0][0] != 503 or until(
                lambda: found.append(once(number)) or found[-1][0] != 503  # type: ignore[func-returns-value]
            )
            return found[-1]

        assert get(7)[1]["match"] == "exact_url"
        assert get(60)[1] == {"duplicate": False}
        assert run("index", "--add", cdx(tmp_path, 50, 70), address)[0] == 0
        assert get(60)[1]["match"] == "exact_url"  # at once, in every worker
        assert json.loads(server.get("/stats")[1])["captures"] == 70
        with cassandra.nodes[0].hanging():
            assert [once(number)[0] for number in (7, 99)] == [503, 503]
            assert server.get("/healthz")[0] == 200
        assert until(lambda: all(once(7)[0] == 200 for _ in range(20)))  # of both workers
        assert get(99)[1] == {"duplicate": False}


def test_lookups_of_a_cluster_are_measured(cassandra: Ring, tmp_path: Path) -> None:
    address = cassandra.address()
    words = ["cassandra", "--size", "tiny", "--runs", "1", "--json", "--cluster", address]
    done = bench(*words, "--dir", tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    jobs = ["cassandra-load", "cassandra-lookup", "cassandra-batch", "cassandra-filtered"]
    assert [line["job"] for line in lines] == jobs
    assert all(line["ours"] > 0 and line["ratio"] > 0 for line in lines)
