"""`server.api.plain_lookups`: the answers and counts of the full lookup, sooner."""

from __future__ import annotations

import json
from itertools import product
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from dedupindex.capture import Capture, Covers, Evidence
from dedupindex.crawls.stores.lmdb_crawl_store import LmdbStore
from dedupindex.digest import Spelling
from dedupindex.index.format.cells import Keys
from dedupindex.index.format.fast_answer import NONE
from dedupindex.index.identity import Settings
from server.api.plain_lookups import plain_query
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.conftest import MakeIndex
from tests.support.budgets import examples
from tests.support.captures import capture, sha1

PAGE = b"http://example.com/page"
COUSIN = b"https://www.Example.com/Page/"  # another URL with the same urlkey
PORT = b"http://127.0.0.1:8080/a?b=1&c=d e"
OTHER = b"http://example.org/\xc3\xa9"
URLS = [PAGE, COUSIN, PORT, OTHER]

HELD = [
    capture(1, PAGE),
    capture(2, COUSIN),
    capture(3, PORT, covers=Covers.STORED),
    capture(4, OTHER, covers=Covers.ENTITY, size=-1),
    *(capture(5, url, day=day) for day, url in enumerate(URLS[:3], 1)),
    capture(6, PAGE, status=404),
    capture(7, PAGE, date=b"2026-11-01T09:14:17.123Z"),
    capture(8, PAGE, record_id=b"urn:x:y", evidence=Evidence.NAMED),
    capture(9, PAGE)._replace(spelling=Spelling(1, 2)),
    capture(10, PAGE, size_of_record=True, record_id=b"", evidence=Evidence.ROW),
    capture(11, b"http://example.com/a\tb"),
    capture(12, PAGE, mime=b"x/odd"),
    capture(13, PAGE, size=5_000_000_000),
    capture(14, COUSIN),
    *(capture(15, PAGE + b"?%d" % number, day=1) for number in range(12)),
    *(capture(16, url, day=9 - day) for day, url in enumerate(URLS[1:], 1)),
    capture(25, PAGE, day=21),  # merged, and not yet removed from the crawls
    capture(26, PORT, day=22),
    capture(22, PAGE, day=21),  # the second of what a crawl has of another URL
    capture(23, PAGE, status=404),
]
CRAWLS = {  # what begins a crawl, and how it ends
    "own": ({"digest_covers": "stored"}, ""),
    "plain": ({}, ""),
    "shared": ({"seen_by": "all", "digest_covers": "entity"}, ""),
    "done": ({}, "commit"),
    "gone": ({}, "cancel"),
    "strict": ({"strategy": "EXACT_URL"}, ""),
    "news": ({"namespace": "n"}, ""),
}
REPORTED = [  # crawl, digest, URL
    ("own", 20, PAGE),
    ("own", 21, PORT),
    ("own", 1, PAGE),
    ("plain", 22, OTHER),
    ("plain", 20, COUSIN),
    ("shared", 23, PAGE),
    ("shared", 24, PORT),
    ("shared", 21, COUSIN),
    ("done", 25, PAGE),
    ("done", 26, COUSIN),
    ("done", 2, PORT),
    ("gone", 27, PAGE),
    ("strict", 28, PAGE),
    ("news", 29, PAGE),
]


class Pair(NamedTuple):
    """The same index and crawls twice: with the fast path and without."""

    fast: FlaskClient
    full: FlaskClient
    states: tuple[LiveIndex, LiveIndex]

    def ask(self, asked: dict[str, str | bytes], safe: str, accept: str) -> list[TestResponse]:
        path = "/lookup?" + "&".join(f"{name}={quote(v, safe)}" for name, v in asked.items())
        headers = {"Accept": accept} if accept else {}
        return [web.get(path, headers=headers) for web in (self.fast, self.full)]

    def counted(self) -> list[object]:
        """Return what each of the two has counted since the last call, but for times."""
        found: list[object] = []
        for live in self.states:
            counted = live.crawls.counting.take()
            groups = {key[:1] + key[2:]: row for key, row in counted.groups.items()}
            found.append((counted.hosts, groups, dict(counted.others)))
        return found


@pytest.fixture
def pair(make_index: MakeIndex, request: pytest.FixtureRequest) -> Pair:
    webs, states = [], []
    for fast in (True, False):
        index = make_index(HELD, Settings(keep=getattr(request, "param", "earliest")))
        live = LiveIndex(index)
        live.refresh()
        opened = live.opened()
        assert opened.plain is not None
        if not fast:
            live._opened = opened._replace(plain=None)
        web = create_app(Config(index), live, hot=fast).test_client()
        _make_crawls(web)
        live.crawls.counting.take()
        webs.append(web)
        states.append(live)
    return Pair(webs[0], webs[1], (states[0], states[1]))


def _make_crawls(web: FlaskClient) -> None:
    for name, (options, _) in CRAWLS.items():
        assert web.post("/crawls", json={"name": name, **options}).status_code == 200, name
    for name, number, url in REPORTED:
        item = {
            "digest": str(sha1(number)),
            "url": url.decode(),
            "date": "2026-11-21T09:14:17Z",
            "record_id": f"urn:uuid:00000000-0000-4000-9000-{number:012}",
            "mime": "image/gif",
            "status": 200,
            "size": number,
        }
        sent = web.post(f"/captures?crawl={name}", data=json.dumps(item).encode() + b"\n",
                        content_type="application/x-ndjson")  # fmt: skip
        assert sent.get_json()["added"] == 1, sent.data
    for name, (_, end) in CRAWLS.items():
        if end:
            assert web.post(f"/crawls/{name}/{end}").status_code == 200


QUESTIONS = st.fixed_dictionaries(
    {
        "digest": st.tuples(
            st.integers(0, 30).map(sha1),
            st.sampled_from([Spelling(1, 0), Spelling(1, 2), Spelling(1, 1), Spelling(0, 0)]),
        ).map(lambda pair: pair[0].spelled(pair[1])),
        "url": st.sampled_from([*URLS, b"http://example.com/a\tb", b"<" + PAGE + b">", b"\xff"]),
    },
    optional={
        "crawl": st.sampled_from([*CRAWLS, "unknown", ""]),
        "covers": st.sampled_from(["stored", "entity", "both", "none", ""]),
        "mime": st.sampled_from(["text/html", "Text/HTML; charset=x", "", "a+b"]),
        "size": st.sampled_from(["0", "12345", "-1", "1e3", "9" * 19]),
        "strategy": st.sampled_from(["DIGEST_ANY", "EXACT_URL", "URL_CANONICAL", "exact_url", "?"]),
    },
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))
@given(
    st.lists(
        st.tuples(
            QUESTIONS,
            st.sampled_from(["", ":/", ":/?="]),
            st.sampled_from(["", "text/plain", "application/json", "text/plain;q=0.5"]),
            st.randoms(use_true_random=False),
        ),
        min_size=1,
        max_size=15,
    )
)
def test_plain_lookups_are_answered_and_counted_as_full_ones(
    pair: Pair, asked: list[tuple[dict[str, str | bytes], str, str, object]]
) -> None:
    pair.counted()
    for given_, safe, accept, random in asked:
        names = list(given_)
        random.shuffle(names)  # type: ignore[attr-defined]
        fast, full = pair.ask({name: given_[name] for name in names}, safe, accept)
        assert (fast.status, fast.data) == (full.status, full.data)
        added = {"Content-Length"} if full.data else {"Content-Type"}  # by Flask
        assert sorted(fast.headers) == sorted(h for h in full.headers if h[0] not in added)
    first, second = pair.counted()
    assert first == second


@pytest.mark.parametrize("accept", ["text/plain", "application/json"])
@pytest.mark.parametrize(
    ("pair", "strategy"),
    [("earliest", ""), ("earliest", "CANONICAL_URL"), ("latest", "")],
    indirect=["pair"],
)
def test_every_capture_is_found_by_every_crawl(pair: Pair, accept: str, strategy: str) -> None:
    pair.counted()
    for number, url, crawl, covers in product(
        range(30), URLS, ["", "own", "plain", "shared", "strict", "news"], ["", "entity"]
    ):
        asked: dict[str, str | bytes] = {"digest": str(sha1(number)), "url": url}
        if crawl:
            asked |= {"crawl": crawl, "mime": "text/html", "size": "77"}
        asked |= {"covers": covers} if covers else {}
        asked |= {"strategy": strategy} if strategy else {}
        fast, full = pair.ask(asked, "", accept)
        assert (fast.status, fast.data) == (full.status, full.data), asked
        assert fast.headers.get("Dedup-Uncommitted") == full.headers.get("Dedup-Uncommitted")
        first, second = pair.counted()
        assert first == second, asked


@pytest.mark.parametrize("accept", ["text/plain", "application/json"])
@pytest.mark.parametrize(
    ("number", "url", "crawl", "status"),
    [
        (3, PORT, "", 200),  # exact URL, in the index
        (3, PAGE, "", 200),  # by digest
        (3, PAGE, "plain", 200),  # by digest
        (5, COUSIN, "plain", 200),  # one of several URLs
        (14, PAGE, "shared", 200),  # canonical URL
        (0, PAGE, "own", 204),
        (5, OTHER, "plain", 200),  # of another URL than several
        (15, PAGE + b"?7", "plain", 200),  # one of many URLs
        (15, PAGE, "plain", None),  # of another URL than many
        (20, PAGE, "gone", 204),  # of others, not seen
        (1, PAGE, "own", 200),  # its own, and in the index
        (22, COUSIN, "plain", 200),
        (24, PAGE, "own", 200),  # of a shared crawl
        (25, PAGE, "own", 200),  # merged, and still in the crawls
        (23, PAGE, "own", None),  # with one of another status
        (25, PORT, "own", 200),  # of a committed crawl that is not merged
        (24, PORT, "shared", 200),  # its own
    ],
)
def test_what_crawlers_ask_takes_the_fast_path(
    pair: Pair,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    url: bytes,
    crawl: str,
    status: int | None,
    accept: str,
) -> None:
    monkeypatch.setattr("dedupindex.lookup.decide.decide", lambda *given: 1 / 0)
    asked: dict[str, str | bytes] = {"digest": str(sha1(number)), "url": url, "mime": "text/css"}
    asked |= {"crawl": crawl, "covers": "both", "size": "77"} if crawl else {}
    fast, _ = pair.ask(asked, "", accept)
    if status == 204 and accept != "text/plain":
        status = 200
    assert fast.status_code == (status or 500)  # 500: it went the long way


def test_the_order_and_escapes_of_plain_parameters_do_not_matter() -> None:
    digest, url = str(sha1(1)), quote(PORT, safe="")
    rest = "covers=both&size=5&mime=a%2Fb"
    queries = (
        f"digest={digest}&url={url}&crawl=c&covers=both&mime=a%2Fb&size=5",
        f"size=5&mime=a%2Fb&covers=both&crawl=c&url={url}&digest={digest}",
        f"crawl=c&digest={quote(digest)}&url={url}&{rest}",
    )
    found = {plain_query(text) for text in queries}
    assert len(found) == 1 and None not in found
    whole = f"digest={digest}&url=u"
    for text in (
        "digest=sha1:x&url=u",
        f"digest={digest}",
        f"{whole}&url=u",
        f"{whole}&as_of=2026",
    ):
        assert plain_query(text) is None


def test_a_damaged_capture_is_reported_by_the_full_lookup(make_index: MakeIndex) -> None:
    held: list[Capture] = [capture(number, PAGE) for number in range(1, 4)]
    index = make_index(held)
    (file,) = index.glob("data-*.mdb")
    data = bytearray(file.read_bytes())
    at = data.find(sha1(2).raw)
    assert at > 0
    data[at + 40] ^= 1
    file.write_bytes(bytes(data))
    live = LiveIndex(index)
    live.refresh()
    web = create_app(Config(index), live).test_client()
    asked = f"/lookup?digest={sha1(2)}&url={quote(PAGE, safe='')}"
    response = web.get(asked, headers={"Accept": "text/plain"})
    assert response.status_code == 503 and response.get_json()["error"]["code"] == "damaged"
    good = web.get(asked.replace(str(sha1(2)), str(sha1(3))), headers={"Accept": "text/plain"})
    assert good.status_code == 200


@pytest.mark.parametrize("accept", ["text/plain", "application/json"])
def test_what_is_merged_between_index_and_crawls_is_found(
    pair: Pair, accept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A miss is decided by an index that was read after the crawls."""
    live, read = pair.states[0], list[str]()
    plain, store = live.opened().plain, live.crawls.store()
    assert plain is not None and store is not None
    hits, reading = plain.hits, store.reading

    def read_crawls() -> Any:
        read.append("crawls")
        return reading()

    def read_index(*asked: Any) -> Any:
        read.append("index")
        return hits(*asked)

    monkeypatch.setattr(plain, "one", lambda *asked: NONE)  # before the merge
    monkeypatch.setattr(plain, "hits", read_index)
    monkeypatch.setattr(store, "reading", read_crawls)
    fast, full = pair.ask({"digest": str(sha1(14)), "url": COUSIN}, "", accept)
    assert (fast.status, fast.data) == (full.status, full.data)
    assert fast.status_code == 200 and read == ["crawls", "index"]


@pytest.mark.parametrize(
    ("url", "crawl", "status"),
    [
        (PAGE, "own", 200),  # the damaged capture has another URL
        (COUSIN, "plain", 503),
    ],
)
def test_a_damaged_capture_of_a_crawl_is_reported_by_the_full_lookup(
    pair: Pair, url: bytes, crawl: str, status: int
) -> None:
    damaged = Keys().key_of(sha1(20), COUSIN)
    for live in pair.states:
        store = live.crawls.store()
        assert isinstance(store, LmdbStore)
        with store.writing() as writing:
            captures = writing.trees.captures
            for key, stored in list(writing.txn.cursor(db=captures)):
                if bytes(key).startswith(damaged):
                    writing.txn.put(key, stored[:-1] + bytes([stored[-1] ^ 1]), db=captures)
    asked: dict[str, str | bytes] = {"digest": str(sha1(20)), "url": url, "crawl": crawl}
    fast, full = pair.ask(asked, "", "text/plain")
    assert (fast.status_code, fast.data) == (full.status_code, full.data)
    assert full.status_code == status
