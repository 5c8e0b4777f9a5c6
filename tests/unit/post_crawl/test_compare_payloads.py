"""Resolving: bytes compared in files and by HTTP range, and digests that collide."""

from __future__ import annotations

import csv
import gzip
import json
import threading
from collections.abc import Iterator
from hashlib import md5, sha1
from pathlib import Path
from urllib.parse import quote

import duckdb
import pytest
from flask import Flask, Response, redirect, send_from_directory
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.serving import make_server
from werkzeug.wrappers import Response as WerkzeugResponse

from dedupindex.cli import main
from dedupindex.errors import BadInput
from dedupindex.post_crawl.manifest.parquet import Line, ManifestContainer
from dedupindex.post_crawl.plan.compare_payloads import HELD, Compare, same_bytes
from dedupindex.post_crawl.plan.make_plan import ResolveOptions, resolve
from dedupindex.post_crawl.plan.plan_file import open_plan
from dedupindex.post_crawl.plan.record_reader import container_urls
from tests.support.manifests import line, write_manifest
from tests.support.paths import ROOT
from tests.support.range_server import serving
from tests.support.warc_cases import gz, response

SHATTERED = [
    bytes.fromhex(text)
    for text in ((ROOT / "tests") / "data/sha1-collision.txt").read_text().split("\n")
    if text and text[0] != "#"
]
WANG = [  # Wang and Yu, How to Break MD5 and Other Hash Functions, 2005
    bytes.fromhex(
        "d131dd02c5e6eec4693d9a0698aff95c2fcab58712467eab4004583eb8fb7f8955ad340609f4b302"
        "83e488832571415a085125e8f7cdc99fd91dbdf280373c5bd8823e3156348f5bae6dacd436c919c6"
        "dd53e2b487da03fd02396306d248cda0e99f33420f577ee8ce54b67080a80d1ec69821bcb6a88393"
        "96f9652b6ff72a70"
    ),
    bytes.fromhex(
        "d131dd02c5e6eec4693d9a0698aff95c2fcab50712467eab4004583eb8fb7f8955ad340609f4b302"
        "83e4888325f1415a085125e8f7cdc99fd91dbd7280373c5bd8823e3156348f5bae6dacd436c919c6"
        "dd53e23487da03fd02396306d248cda0e99f33420f577ee8ce54b67080280d1ec69821bcb6a88393"
        "96f965ab6ff72a70"
    ),
]


def harvest(
    root: Path, name: str, number: int, bodies: list[bytes], *, plain: bool = False
) -> tuple[ManifestContainer, list[Line]]:
    """A file of responses, second by second, and its lines."""
    lines: list[Line] = []
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as stream:
        for at, body in enumerate(bodies):
            date = b"2026-01-%02dT00:00:%02dZ" % (number + 1, at)
            data = response(body, Date=date, number=100 * number + at)
            stored = data if plain else gz(data)
            record_id = b"urn:uuid:00000000-0000-4000-8000-%012d" % (100 * number + at)
            lines.append(
                line(
                    number, stream.tell(), body, stored=len(stored), date=date,
                    record_id=record_id, replay_key=1 + 100 * number + at,
                )
            )  # fmt: skip
            stream.write(stored)
    now = path.stat()
    place = ManifestContainer(
        number, str(root), name, now.st_size, now.st_mtime_ns, now.st_ino, now.st_dev, name
    )
    return place, lines


BODIES = [b"a" * 4000, b"b" * 300, b"a" * 4000, b"c"]
LONG = bytes(range(256)) * (HELD // 256 + 5)


@pytest.mark.parametrize("plain", [False, True])
def test_payloads_that_differ_now_are_not_rewritten(tmp_path: Path, plain: bool) -> None:
    first = harvest(tmp_path / "set", "a b/x.warc", 1, [*BODIES, LONG], plain=plain)
    again = harvest(tmp_path / "set", "y.warc", 2, [*BODIES, LONG], plain=plain)
    manifest = write_manifest(tmp_path / "manifest", dict([first, again]))
    sound = resolve([manifest], tmp_path / "sound", ResolveOptions(compare=Compare.parse("always")))
    assert sound.totals.copies == 6
    assert sound.totals.compared["equal"] == 6
    assert sound.totals.compared["bytes"] == 3 * 4000 + 300 + 1 + len(LONG)

    lie = list(BODIES)
    lie[1] = b"B" * 300  # a file that has changed behind our back
    harvest(tmp_path / "set", "y.warc", 2, [*lie, LONG[:-1] + b"!"], plain=plain)
    changed = resolve(
        [manifest], tmp_path / "changed", ResolveOptions(compare=Compare.parse("always"))
    )
    assert changed.totals.copies <= 4
    assert changed.totals.kept["differs"] + changed.totals.kept["unreadable"] >= 2
    dropped = {one.line.offset for one in open_plan(tmp_path / "changed").copies(2)}
    assert not dropped & {again[1][1].offset, again[1][4].offset}

    (tmp_path / "set/a b/x.warc").unlink()
    gone = resolve([manifest], tmp_path / "gone", ResolveOptions(compare=Compare.parse("always")))
    assert gone.totals.copies == 0
    assert gone.totals.kept["original-unreadable"] == 6

    some = resolve([manifest], tmp_path / "some", ResolveOptions(compare=Compare.parse("sample 2")))
    assert some.totals.compared["clusters"] == 2


def test_members_come_by_range_from_the_first_server_that_has_them(tmp_path: Path) -> None:
    first = harvest(tmp_path / "set", "a b/x.warc.gz", 1, BODIES)
    again = harvest(tmp_path / "set", "y.warc.gz", 2, BODIES)
    manifest = write_manifest(tmp_path / "manifest", dict([first, again]))
    (tmp_path / "set").rename(tmp_path / "served")
    (tmp_path / "nothing").mkdir()
    always = Compare.parse("always")
    ports: set[int] = set()
    with (
        serving(tmp_path / "nothing") as none,
        serving(tmp_path / "served", ranges=False) as whole,
        serving(tmp_path / "served", met=ports) as good,
        serving(tmp_path / "served", wrong=b"?") as bad,
    ):
        options = ResolveOptions(compare=always, base_urls=(none, whole, good))
        found = resolve([manifest], tmp_path / "plan", options)
        options = ResolveOptions(compare=always, base_urls=(bad,))
        refused = resolve([manifest], tmp_path / "refused", options)
    assert found.totals.copies == found.totals.compared["equal"] == 5
    assert found.totals.compared["fetched"] == 3 + 5
    assert len(ports) == 1  # one connection, that is kept
    assert refused.totals.copies == 0
    assert refused.totals.kept["original-unreadable"] == 5


def test_http_ranges_of_a_real_server_and_after_a_redirect(tmp_path: Path) -> None:
    contents = dict(harvest(tmp_path / "set", f"a #%?/{n}.warc.gz", n, BODIES) for n in (1, 2, 3))
    manifest = write_manifest(tmp_path / "manifest", contents)
    (tmp_path / "set").rename(tmp_path / "served")
    app = Flask("store")

    @app.get("/files/<path:name>")
    def files(name: str) -> Response:
        return send_from_directory(tmp_path / "served", name)

    @app.get("/moved/<path:name>")
    def moved(name: str) -> WerkzeugResponse:
        return redirect(f"/files/{quote(name)}")

    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        at = f"http://127.0.0.1:{server.server_port}"
        always = Compare.parse("always")
        for name, bases in (
            ("there", (f"{at}/none/", f"{at}/files")),
            ("moved", (f"{at}/moved/",)),
        ):
            found = resolve(
                [manifest], tmp_path / name, ResolveOptions(compare=always, base_urls=bases)
            )
            assert found.totals.copies == found.totals.compared["equal"] == 9
            assert found.totals.compared["fetched"] == 3 + 9
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("form", ["tsv", "csv", "tsv.gz", "parquet"])
def test_urls_of_a_table(tmp_path: Path, form: str) -> None:
    """A row for a path, a name below the source or a file name; several are tried in turn."""
    names = ("a b/x.warc.gz", "deep/y.warc.gz", "z.warc.gz")
    contents = dict(harvest(tmp_path / "set", name, n, BODIES) for n, name in enumerate(names, 1))
    manifest = write_manifest(tmp_path / "manifest", contents)
    (tmp_path / "set").rename(tmp_path / "served")
    (tmp_path / "nothing").mkdir()
    table = tmp_path / f"urls.{form}"
    with serving(tmp_path / "served") as good, serving(tmp_path / "nothing") as none:
        rows = [
            ("name", "url"),
            *((f"other-{at}.warc.gz", f"{none}{at}") for at in range(3000)),
            (f"{tmp_path}/set/{names[0]}", f"{good}a%20b/x.warc.gz"),
            (names[1], f"{none}gone"),
            (names[1], f"{good}{names[1]}"),
            (names[2], f"{good}{names[2]}"),
        ]
        _write_table(table, rows)
        options = ResolveOptions(compare=Compare.parse("always"), url_table=table)
        found = resolve([manifest], tmp_path / "plan", options)
    assert found.totals.copies == found.totals.compared["equal"] == 9
    assert found.totals.compared["fetched"] == 3 + 9


def _write_table(table: Path, rows: list[tuple[str, ...]]) -> None:
    if table.suffix == ".parquet":
        with duckdb.connect() as database:
            columns = ", ".join(f"{name} VARCHAR" for name in rows[0])
            database.execute(f"CREATE TABLE t ({columns})")
            marks = ", ".join("?" for _ in rows[0])
            database.executemany(f"INSERT INTO t VALUES ({marks})", rows[1:])
            database.execute(f"COPY t TO '{table}'")
        return
    with (gzip.open if table.suffix == ".gz" else open)(table, "wt", newline="") as stream:
        csv.writer(
            stream, delimiter="," if table.suffix == ".csv" else "\t", quoting=csv.QUOTE_MINIMAL
        ).writerows(rows)


def test_rows_of_a_table_are_for_one_file(tmp_path: Path) -> None:
    """A name that two files have is taken for neither, unless the table has their hosts."""
    a, b, other = (
        ManifestContainer(n, "/warcs", name, 9, 0, 0, 0, "", host)
        for n, (name, host) in enumerate((("x", "a"), ("x", "b"), ("deep/x", "b")), 1)
    )
    table = tmp_path / "urls.tsv"
    _write_table(table, [("url", "name"), ("http://one/", "x"), ("http://two/", "deep/x")])
    urls = container_urls([a, b, other], ("https://{host}.test/w/",), table, "a")
    assert urls.of(a) == ["https://a.test/w/x"] and urls.of(b) == ["https://b.test/w/x"]
    assert urls.of(other) == ["http://two/", "https://b.test/w/deep/x"]
    assert [urls.is_here(one) for one in (a, b)] == [True, False]
    _write_table(
        table,
        [("url", "name", "host"), ("http://three/", "/warcs/x", "b"), ("http://two/", "x", "a")],
    )
    urls = container_urls([a, b, other], (), table, "a")
    assert (urls.of(a), urls.of(b), urls.of(other)) == (["http://two/"], ["http://three/"], [])
    for rows, message in (
        ([("file", "url"), ("x", "http://a/")], "no column name"),
        ([("name", "url"), ("deep/x", "/etc/passwd")], "/etc/passwd is not a URL"),
    ):
        _write_table(table, rows)
        with pytest.raises(BadInput, match=message):
            container_urls([a, b, other], (), table, "")
    for name in ("none.tsv", "urls.txt", "none.parquet"):
        with pytest.raises(BadInput, match="--urls"):
            container_urls([a], (), tmp_path / name, "")
    with pytest.raises(BadInput, match="neither with http"):
        container_urls([a], ("ftp://x/",), None, "")


@pytest.mark.parametrize("pair, algorithm", [(SHATTERED, sha1), (WANG, md5)])
@pytest.mark.parametrize("mode", ["strong-digest", "always", "sample 10"])
@pytest.mark.parametrize("stated", [True, False])
def test_payloads_that_collide_are_two_originals(
    tmp_path: Path, pair: list[bytes], algorithm: object, mode: str, stated: bool
) -> None:
    one, other = pair
    raw = algorithm(one).digest()  # type: ignore[operator]
    assert raw == algorithm(other).digest()  # type: ignore[operator]
    contents = {}
    for number in (1, 2):
        place, lines = harvest(tmp_path / "set", f"{number}.warc.gz", number, [other, one])
        text = b"x:" + raw.hex().encode() if stated else b""
        contents[place] = [line._replace(digest=text, payload=raw) for line in lines]
    manifest = write_manifest(tmp_path / "manifest", contents)
    totals = resolve(
        [manifest], tmp_path / "plan", ResolveOptions(compare=Compare.parse(mode))
    ).totals
    assert (totals.collisions, totals.collided) == (1, 2)
    assert (totals.originals, totals.copies) == (2, 2)
    planned = list(open_plan(tmp_path / "plan").copies(2))
    assert [found.extension for found in planned] == [1, 2]
    for found in planned:
        assert found.line.strong == found.original.strong
        assert found.copy == 2


@given(st.binary(), st.binary(), st.lists(st.integers(1, 9)), st.lists(st.integers(1, 9)))
def test_streams_are_compared_whatever_their_pieces(
    left: bytes, right: bytes, cuts: list[int], others: list[int]
) -> None:
    def cut(data: bytes, sizes: list[int]) -> Iterator[bytes]:
        for size in sizes:
            if data[:size]:
                yield data[:size]
            data = data[size:]
        if data:
            yield data

    assert same_bytes(cut(left, cuts), cut(left, others))
    assert same_bytes(cut(left, cuts), cut(right, others)) == (left == right)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contents = dict(harvest(tmp_path / "set", f"{n}.warc.gz", n, BODIES) for n in (1, 2))
    manifest = str(write_manifest(tmp_path / "manifest", contents))
    for part in ("1/2", "2/2"):
        argv = ["resolve", manifest, "-o", str(tmp_path / "plan"), "--partition", part]
        assert main([*argv, "--compare", "sample", "5", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["copies"] == said["compared"].get("equal", 0)
        if part == "1/2":
            with pytest.raises(BadInput, match="not whole"):
                open_plan(tmp_path / "plan")
    assert open_plan(tmp_path / "plan").totals.copies == 5
    assert main(argv) == 5  # it is there already
    assert main(["resolve", manifest, "-o", str(tmp_path / "p"), "--partition", "3/2"]) == 2
    assert main(["resolve", manifest, "-o", str(tmp_path / "p"), "--compare", "never"]) == 4
    assert main(["resolve", str(tmp_path), "-o", str(tmp_path / "p")]) == 4
    assert main(["resolve", manifest, "-o", str(tmp_path / "p"), "--memory", "much"]) == 2
    assert main(["resolve", manifest, "-o", str(tmp_path / "p")]) == 0
    assert "5 copies" in capsys.readouterr().out
