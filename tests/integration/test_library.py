"""``import dedupindex``: its names, its examples, and the same answers as the server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from flask.testing import FlaskClient

import dedupindex
from dedupindex import errors
from dedupindex.api import LOOK_EVERY, Index, _Files
from dedupindex.api import open as open_to_ask
from dedupindex.capture import Capture, Uncommitted
from dedupindex.errors import BadDigest, BadQuery, IndexUnavailable, UnknownCrawl
from dedupindex.index import open_index
from dedupindex.index.identity import Settings
from dedupindex.indexer.pipeline import build_index
from dedupindex.lookup.decide import Strategy
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.conftest import MakeIndex
from tests.integration.test_server_live import serving, until
from tests.support.captures import capture, sha1
from tests.support.paths import ROOT
from tests.unit.server.test_crawl_api import begin, report

A, B, WWW = "http://example.com/a", "http://example.com/b", "http://www.example.com/a"
STATED = {  # what crawls have reported: URLs by the number of the payload
    "merged": {1: A, 2: B},
    "committed": {2: A, 3: WWW},
    "apart": {4: A},
    "shared": {5: A},
    "open": {6: A, 90: B},
    "cancelled": {7: A},
}


@pytest.fixture(params=[False, True], ids=["plain", "by-url"])
def harvested(request: pytest.FixtureRequest, make_index: MakeIndex) -> Path:
    """An index with crawls in every state."""
    index = make_index([capture(90), capture(91, A.encode(), 9)], Settings(by_url=request.param))
    live, web = web_of(index)
    how = {"apart": {"namespace": "x"}, "shared": {"seen_by": "all"}}
    for name, captures in STATED.items():
        begin(web, name, **how.get(name, {"strategy": "EXACT_URL"} if name == "committed" else {}))
        some = [report(number, url=url) for number, url in captures.items()]
        assert web.post("/captures", json={"crawl": name, "captures": some}).status_code == 200
        if name in ("merged", "committed", "apart"):
            assert web.post(f"/crawls/{name}/commit").status_code == 200
        if name == "merged":
            words = [sys.executable, "-m", "dedupindex", "index", "--merge", str(index)]
            subprocess.run(words, check=True, capture_output=True)
    assert web.post("/crawls/cancelled/cancel").status_code == 200
    live.crawls.store().close()  # a process may open an index once
    live.opened().engine.close()
    return index


def web_of(index: Path) -> tuple[Any, FlaskClient]:
    live = LiveIndex(index)
    live.refresh()
    return live, create_app(Config(index), live).test_client()


def asked() -> Iterator[dict[str, str]]:
    """Lookups of all payloads, URLs and strategies, by every crawl and by none."""
    who: list[dict[str, str]] = [{}, {"crawl": "open"}, {"crawl": "committed"}, {"namespace": "x"}]
    for number in (*range(1, 9), 90, 91):
        for url in ("", A, B, WWW):
            for strategy in ("", *(one.value for one in Strategy if url)):
                for asker in who:
                    yield {"digest": str(sha1(number)), "url": url, "strategy": strategy, **asker}
    yield {"digest": "crc32:12345678"}
    yield {"digest": str(sha1(90)), "max_age": "1"}
    yield {"digest": "sha1:" + "A" * 32}


def test_the_library_answers_as_the_server(harvested: Path) -> None:
    with serving(harvested, "--workers", "1") as server, open_to_ask(harvested) as index:
        found = 0
        for one in asked():
            wanted = json.loads(server.get(f"/lookup?{urlencode(one)}")[1])
            digest, url, strategy = (one.get(name) for name in ("digest", "url", "strategy"))
            more = {n: v for n, v in one.items() if n not in ("digest", "url", "strategy")}
            assert digest
            try:
                result = index.lookup(digest, url, strategy, **more)
            except errors.DedupError as error:
                assert wanted == {"error": {"code": error.code, "message": str(error)}}, one
                continue
            assert result.as_json() == wanted, one
            assert bool(result) is wanted["duplicate"]
            found += bool(result)
        assert found > 100
        assert index.stats() == json.loads(server.get("/stats")[1])


def test_captures_are_those_that_lookups_find(harvested: Path) -> None:
    """Merged ones once, committed ones before they are merged, others only for who sees them."""

    def pairs(some: Iterator[Capture]) -> list[tuple[str, str]]:
        return [(one.url.decode(), str(one.digest)) for one in some]

    own = {(A, 90), (A, 91), (A, 1), (B, 2), (A, 2), (WWW, 3), (A, 5)}
    with open_to_ask(harvested) as index:
        for more, how in (
            (set(), {}),
            ({(A, 6), (B, 90)}, {"crawl": "open"}),
            ({(A, 4)}, {"namespaces": ["x"]}),
        ):
            wanted = {(url, str(sha1(number))) for url, number in own | more}
            for found in (index.captures(**how), index.captures(prefix="http", **how)):  # type: ignore[arg-type]
                listed = pairs(found)
                assert set(listed) == wanted and len(listed) == len(wanted)
            whole = list(index.captures_after(**how))  # type: ignore[arg-type]
            assert [one for _, one in whole] == list(index.captures(**how))  # type: ignore[arg-type]
            for at, (position, _) in enumerate(whole, 1):
                assert list(index.captures_after(position, **how)) == whole[at:]  # type: ignore[arg-type]
            for url in (A, B, WWW):
                some = list(index.captures(url, **how))  # type: ignore[arg-type]
                assert {one.url.decode() for one in some} <= {url}
                assert set(pairs(iter(some))) == {one for one in wanted if one[0] == url}
                assert [one.date for one in some] == sorted(one.date for one in some)
        assert {type(one) is Uncommitted for one in index.captures(B, crawl="open")} == {
            True,
            False,
        }
        with pytest.raises(UnknownCrawl):
            list(index.captures(crawl="nobody"))
        with pytest.raises(BadQuery):
            index.captures(A, A)


def test_an_open_index_sees_changes(make_index: MakeIndex, tmp_path: Path) -> None:
    """A first crawl, a merge, another index in its place, and none."""
    index = make_index([capture(90)])
    with open_to_ask(str(index)) as asked:
        assert not asked.lookup(sha1(1))
        with serving(index, "--workers", "1") as server:
            for path, body in (
                ("/crawls", {"name": "c"}),
                ("/captures?crawl=c", report(1)),
                ("/crawls/c/commit", {}),
            ):
                assert posted(server.port, path, body) == 200
            assert until(lambda: bool(asked.lookup(sha1(1))))
            while asked.stats()["captures"] < 2:  # until the server has merged it
                assert asked.lookup(sha1(1))
        index.rename(tmp_path / "old")
        with pytest.raises(IndexUnavailable):
            until(lambda: not asked.lookup(sha1(90)))
        make_index([capture(5)]).rename(index)
        assert until(lambda: bool(asked.lookup(sha1(5)))) and not asked.lookup(sha1(90))
    with pytest.raises(IndexUnavailable, match="was closed"):
        asked.lookup(sha1(5))


def posted(port: int, path: str, body: Any) -> int:
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse().status


def test_invalid_lookups(make_index: MakeIndex) -> None:
    with Index(make_index([], Settings(url_index=False, canonical=False))) as index:
        for wrong, kind in (
            ({"digest": "sha1:short"}, BadDigest),
            ({"digest": str(sha1(1)), "color": "red"}, BadQuery),
            ({"digest": str(sha1(1)), "strategy": "any"}, BadQuery),
            ({"digest": str(sha1(1)), "min_size": "-1"}, BadQuery),
            ({"digest": str(sha1(1)), "explain": True}, BadQuery),
            ({"digest": str(sha1(1)), "crawl": "c"}, UnknownCrawl),
            (
                {"digest": str(sha1(1)), "url": A, "strategy": "EXACT_URL"},
                errors.StrategyUnavailable,
            ),
        ):
            with pytest.raises(kind):
                index.lookup(**wrong)  # type: ignore[arg-type]


def test_urls_are_bytes(make_index: MakeIndex) -> None:
    url = b"http://example.com/caf\xe9"
    with open_to_ask(make_index([capture(1, url)])) as index:
        for asked in (url, url.decode("utf-8", "surrogateescape")):
            assert index.lookup(sha1(1), asked).match == "exact_url"
            assert [one.url for one in index.captures(asked)] == [url]


def test_builds(tmp_path: Path) -> None:
    warc = ROOT / "tests" / "data" / "warc" / "example.warc.gz"
    index = tmp_path / "index"
    built = build_index([], index, mime=".*", whitelist=True, also_digest="SHA-256")
    assert (built.tally.records, built.problems) == (0, [])
    assert build_index(warc, index, add=True, crawl="c").tally.added == 1
    with open_to_ask(index) as opened:
        (found,) = opened.captures()
        assert found.crawl == "c" and opened.lookup(found.digest)
        assert opened.stats()["settings"]["also_digest"] == "sha256"
    with pytest.raises(errors.SettingsConflict):
        build_index(warc, index, add=True, mime="^image/.*")
    with pytest.raises(errors.IndexExists):
        build_index([warc], index)
    with pytest.raises(errors.BadInput):
        build_index([warc], tmp_path / "other", also_digest="crc32")
    with pytest.raises(TypeError):
        build_index([warc], tmp_path / "other", color="red")
    digests = build_index(warc, tmp_path / "digests", mime=".*", whitelist=True, url_index=False)
    assert digests.tally.added == 1
    with closing(open_index(tmp_path / "digests")) as engine:
        assert not engine.identity.settings.canonical


RUN = """
import doctest, inspect, sys
import dedupindex
assert not {"lmdb", "duckdb", "dedupindex.index"} & set(sys.modules)
port, page = sys.argv[1:]
names = [getattr(dedupindex, name) for name in dedupindex.__all__]
assert callable(dedupindex.build) and dedupindex.errors and dedupindex.client
from dedupindex.client import AsyncClient, Client
if page:
    texts = {"library.md": open(page).read()}
else:
    texts = {}
    for one in (*names, Client, AsyncClient):
        texts[one.__name__] = inspect.getdoc(one)
        for name, method in vars(one).items() if inspect.isclass(one) else ():
            own = one.__module__ in ("dedupindex.api", "dedupindex.digest") or one is Client
            if not name.startswith("_") and own and callable(getattr(one, name)):
                texts[f"{one.__name__}.{name}"] = inspect.getdoc(method) or ""
runner = doctest.DocTestRunner()
for name, text in texts.items():
    assert text, f"{name} has no docstring"
    given = vars(dedupindex) | {"dedupindex": dedupindex, "Client": Client}
    test = doctest.DocTestParser().get_doctest(text.replace("8484", port), given, name, name, 0)
    runner.run(test)
    print(name, len(test.examples))
sys.exit(bool(runner.failures))
"""


@pytest.mark.parametrize("page", ["", "docs/library.md"])
def test_the_examples(tmp_path: Path, page: str) -> None:
    """In a process of its own, as a user has it."""
    (tmp_path / "warcs").mkdir()
    shutil.copy(ROOT / "tests" / "data" / "warc" / "example.warc.gz", tmp_path / "warcs")
    build_index(tmp_path / "warcs", tmp_path / "served", mime=".*", whitelist=True)
    if not page:
        build_index(tmp_path / "warcs", tmp_path / "my-index", mime=".*", whitelist=True)
    with serving(tmp_path / "served") as server:
        words = [sys.executable, "-c", RUN, str(server.port), str(ROOT / page) if page else ""]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    count = {name: int(n) for name, n in map(str.split, done.stdout.splitlines())}
    if page:
        assert count == {"library.md": 14}
    else:
        assert len(count) >= 30 and all(count.values()), count


def test_an_index_is_opened_twice(make_index: MakeIndex, tmp_path: Path) -> None:
    """All users of a path share its files, see another index in its place, and close alone."""
    index = make_index([capture(90)])
    with open_to_ask(index) as first:
        second = open_to_ask(str(index))
        assert first.lookup(sha1(90)) and second.lookup(sha1(90))
        first.close()
        first.close()
        with pytest.raises(IndexUnavailable, match="closed"):
            first.lookup(sha1(90))
        assert second.lookup(sha1(90))
        third = open_to_ask(index)
        index.rename(tmp_path / "old")
        make_index([capture(91)]).rename(index) if not index.exists() else None
        time.sleep(2 * LOOK_EVERY)
        assert second.lookup(sha1(91)) and third.lookup(sha1(91)) and not third.lookup(sha1(90))
        second.close()
        third.close()
        assert not _Files._shared
    forgotten = open_to_ask(index)
    assert forgotten.lookup(sha1(91))
    del forgotten
    with closing(open_index(index)) as engine, engine.view() as view:
        assert view.counts().captures == 1


def test_every_public_name_exists_and_is_documented() -> None:
    for name in dedupindex.__all__:
        assert getattr(dedupindex, name)
        assert name in (ROOT / "docs" / "library.md").read_text(), name
    with pytest.raises(AttributeError):
        dedupindex.nothing  # noqa: B018
