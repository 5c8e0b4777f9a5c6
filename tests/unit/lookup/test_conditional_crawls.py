"""Crawls that fetch only what has changed, of a site whose pages change, against a model of both.

No revisit of profile server-not-modified may name an original with another payload than the page
has at that moment, or one that is not kept: as long as servers state true validators.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from email.utils import formatdate
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from flask.testing import FlaskClient
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dedupindex.cli.common import NOTHING_FOUND
from dedupindex.client.answers import Last, read_last
from dedupindex.crawls.merge_crawls import merge
from dedupindex.index import open_index
from dedupindex.index.engine import Load
from dedupindex.index.identity import Identity, Settings
from dedupindex.lookup.policy import parse_policy
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.support.budgets import examples
from tests.support.captures import sha1
from tests.support.commands import ended

START = 1_709_251_200  # 2024-03-01T00:00:00Z
KINDS = ("etag", "both", "date", "restored", "none", "liar")
POLICY = parse_policy([{"host": "liar.example", "distrust_validators": True}])
CRAWLS = {"a": "", "b": "", "n": "names", "m": "names"}  # and their namespaces
Headers = dict[str, str]
Kept = tuple[str, str, str]  # URL, date and digest of a record


class Page:
    """A page of a server of one kind, and how it answers conditions."""

    def __init__(self, kind: str) -> None:
        self.kind, self.url = kind, f"http://{kind}.example/"
        self.body, self.modified = 0, START

    def change(self, body: int, now: int) -> None:
        # A file that is restored has the date that it had; a 304 then needs the same date.
        self.modified = START - 100 * body if self.kind == "restored" else now
        self.body = body

    def digest(self) -> str:
        return str(sha1(self.body + 1))

    def validators(self) -> Headers:
        found = {}
        if self.kind in ("etag", "both"):
            found["ETag"] = f'"{self.body}"'
        if self.kind in ("both", "date", "restored"):
            found["Last-Modified"] = formatdate(self.modified, usegmt=True)
        return {"ETag": '"same"'} if self.kind == "liar" else found

    def status(self, conditions: Headers, dates: dict[str, int]) -> int:
        """RFC 9110 section 13.2.2."""
        stated = self.validators()
        tag, since = conditions.get("If-None-Match"), conditions.get("If-Modified-Since")
        if tag is not None and "ETag" in stated:
            return 304 if tag == stated["ETag"] else 200
        if since is None or "Last-Modified" not in stated:
            return 200
        if self.kind == "restored":
            return 304 if since == stated["Last-Modified"] else 200
        return 304 if self.modified <= dates[since] else 200


class Fetch(NamedTuple):
    """One URL of one crawl."""

    crawl: str
    page: str
    states: bool  # whether a revisit is reported with the validators of the answer
    later: bool  # whether it is reported when the crawl next reports, and then in reverse


class World:
    """Pages, crawls and their WARCs, beside an index."""

    def __init__(self, folder: Path, keep: str) -> None:
        self.index, self.now = folder / "index", START
        self.purges = 0
        self.pages = {kind: Page(kind) for kind in KINDS}
        self.dates = {formatdate(page.modified, usegmt=True): page.modified
                      for page in self.pages.values()}  # fmt: skip
        self.kept: dict[Kept, set[str]] = {}  # with the crawls that have stored it
        self.open: dict[str, str] = {}  # a letter of `CRAWLS` -> name
        self.ended: set[str] = set()  # names of committed crawls
        self.waiting: dict[str, list[dict[str, Any]]] = {}
        self.unchanged = 0
        self.index.mkdir()
        Identity("lmdb", Settings(etag=True, mime=".*", whitelist=True, keep=keep)).write(
            self.index
        )
        with closing(open_index(self.index, write=True)) as engine:
            engine.load(Load([], [], []))
        self.start()

    def start(self) -> None:
        self.live = LiveIndex(self.index, POLICY)
        self.live.refresh()
        self.web: FlaskClient = create_app(
            Config(self.index, policy=POLICY), self.live
        ).test_client()

    def stop(self) -> None:
        self.live.opened().engine.close()  # type: ignore[attr-defined]
        if store := self.live.crawls.store():
            store.close()

    def date(self) -> str:
        days, seconds = divmod(self.now - START, 86_400)
        time = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        return f"2024-{3 + days // 31:02d}-{1 + days % 31:02d}T{time}Z"

    def change(self, kind: str, body: int) -> None:
        page = self.pages[kind]
        page.change(body, self.now)
        self.dates[formatdate(page.modified, usegmt=True)] = page.modified

    def begin(self, letter: str) -> str:
        if letter not in self.open:
            name = self.open[letter] = f"{letter}{len(self.open)}-{len(self.waiting)}"
            more = {"namespace": CRAWLS[letter]} if CRAWLS[letter] else {}
            answer = self.web.post("/crawls", json={"name": name, "seen_by": "all", **more})
            assert answer.status_code == 200, answer.text
            self.waiting[name] = []
        return self.open[letter]

    def fetch(self, what: Fetch) -> None:
        name, page = self.begin(what.crawl), self.pages[what.page]
        asked = {"url": page.url, "crawl": name}
        last: Last = read_last(self.web.get("/last", query_string=asked).get_json())
        status = page.status(dict(last.conditions), self.dates)
        stated = page.validators()
        # Some servers state nothing in a 304, as RFC 9110 section 15.4.5 lets them.
        if last.is_confirmed(status, stated if what.states else {}):
            assert last.original is not None
            self.is_kept(name, last.original.url, last.original.date, last.original.digest)
            assert last.original.digest == page.digest(), (what, last)
            self.unchanged += 1
            revisit = "server-not-modified"
        else:
            found = self.web.get("/lookup", query_string={**asked, "digest": page.digest()})
            content, revisit = found.get_json(), "identical-payload-digest"
            if content["duplicate"] and content["original"].get("committed", True):
                original = content["original"]
                self.is_kept(name, original["url"], original["date"], original["digest"])
            else:
                revisit = ""
                key = (page.url, self.date(), page.digest())
                self.kept.setdefault(key, set()).add(name)
        report: dict[str, Any] = {
            "digest": page.digest(), "url": page.url, "date": self.date(), "status": 200,
            "mime": "text/html", "size": 9, **({"revisit": revisit} if revisit else {}),
        }  # fmt: skip
        if what.states or not revisit:
            report |= {field.lower().replace("-", "_"): text for field, text in stated.items()}
        self.waiting[name].append(report)
        if not what.later:
            self.report(name)

    def is_kept(self, asker: str, *original: str) -> None:
        url, date, digest = original
        assert self.kept.get((url, date, digest), set()) & {asker, *self.ended}, (asker, original)

    def report(self, name: str) -> None:
        items, self.waiting[name] = self.waiting[name][::-1], []
        if items:
            answer = self.web.post(f"/captures?crawl={name}", json={"captures": items})
            assert answer.status_code == 200 and answer.get_json()["bad"] == 0, answer.text

    def end(self, letter: str, how: str) -> None:
        if letter not in self.open:
            return
        name = self.open.pop(letter)
        if how == "commit":
            self.report(name)
            self.ended.add(name)
        answer = self.web.post(
            f"/crawls/{name}/{how}", json={"force": True} if how == "cancel" else {}
        )
        assert answer.status_code == 200, answer.text

    def merge(self, _: str) -> None:
        store = self.live.crawls.store()
        self.live.opened().engine.close()  # type: ignore[attr-defined]
        if store is not None:
            merge(self.index, store)
            store.close()
        self.start()

    def purge(self, kind: str) -> None:
        """Take a URL, or its host, down: its records go from the WARCs, too."""
        url = self.pages[kind].url
        for name, items in self.waiting.items():
            self.waiting[name] = [item for item in items if item["url"] != url]
        self.kept = {key: crawls for key, crawls in self.kept.items() if key[0] != url}
        self.stop()
        self.purges += 1
        named = ("--url", url) if self.purges % 2 else ("--host", f"{kind}.example")
        # Nobody has read the WARCs of the crawls, so revisits in them may depend on it.
        assert ended("purge", self.index, *named, "--force")[0] in (0, NOTHING_FOUND)
        self.start()

    def do(self, what: str, *given: Any) -> None:
        """Take a step other than a fetch."""
        if what == "wait":
            self.now += given[0]
        elif what == "report":
            self.report(self.begin(*given))
        else:
            getattr(self, what)(*given)


letters = st.sampled_from(["a", "a", *CRAWLS])


def steps(kind: str) -> st.SearchStrategy[list[Any]]:
    """Steps that are nearly all of the page of one kind."""
    page = st.sampled_from([kind, kind, kind, "none"])
    fetch = st.builds(Fetch, letters, page, st.booleans(), st.just(False))
    step = st.one_of(
        fetch,
        fetch,
        st.builds(Fetch, letters, page, st.booleans(), st.booleans()),
        st.tuples(st.just("change"), page, st.integers(0, 2)),
        st.tuples(st.just("wait"), st.sampled_from([1, 60, 86_400])),
        st.tuples(st.just("report"), letters),
        st.tuples(st.just("end"), letters, st.sampled_from(["commit", "commit", "cancel"])),
        st.tuples(st.sampled_from(["merge", "purge"]), page),
    )
    return st.lists(step, min_size=15, max_size=30)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_fetched_has_not_changed(kind: str) -> None:
    fetch = Fetch("a", kind, states=True, later=False)

    @settings(max_examples=examples(15))
    @example([fetch, ("change", kind, 1), fetch, ("change", kind, 0), fetch], "earliest")
    @given(steps(kind), st.sampled_from(["earliest", "latest"]))
    def check(done: list[Any], keep: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), keep)
            for step in done:
                if isinstance(step, Fetch):
                    world.fetch(step)
                else:
                    world.do(*step)
            world.stop()

    check()
