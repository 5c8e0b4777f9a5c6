"""The last capture of a URL: from WARC files and reports, and when a crawler may rely on it."""

from __future__ import annotations

import json
import re
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given, settings
from hypothesis import strategies as st

import dedupindex
from dedupindex.capture import Capture
from dedupindex.crawls import lifecycle
from dedupindex.crawls.merge_crawls import merge, sweep
from dedupindex.crawls.parse_report import REVISITS
from dedupindex.crawls.stores.lmdb_crawl_state import LmdbWriting
from dedupindex.crawls.stores.lmdb_crawl_store import LmdbStore
from dedupindex.errors import StrategyUnavailable
from dedupindex.index import tokens
from dedupindex.index.format.visits import CODE, Visit, latest
from dedupindex.index.identity import Settings
from dedupindex.index.tokens import Role
from dedupindex.lookup.policy import parse_policy
from dedupindex.lookup.validator_report import COLUMNS
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.conftest import MakeIndex
from tests.support.budgets import examples
from tests.support.captures import capture, captures, sha1
from tests.support.commands import typed
from tests.support.warc_cases import gz, request, response, revisit
from tests.support.warc_cases import sha1 as stated_sha1

URL = "http://example.org/page"
OLD, NEW = b"Mon, 02 Jan 2023 03:04:05 GMT", b"Tue, 03 Jan 2023 03:04:05 GMT"
ETAG = Settings(etag=True, mime=".*", whitelist=True)
NOT_MODIFIED = b"http://netpreserve.org/warc/1.0/revisit/server-not-modified"


def head(status: bytes = b"200 OK", **fields: bytes) -> bytes:
    lines = [b"HTTP/1.1 " + status, b"Content-Type: text/html"]
    lines += [name.replace("_", "-").encode() + b": " + text for name, text in fields.items()]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def page(
    body: bytes, day: int, *, url: str = URL, status: bytes = b"200 OK", **fields: bytes
) -> bytes:
    """A response record of a day of March 2024."""
    date = b"2024-03-%02dT00:00:00Z" % day
    options = {"Target_URI": url.encode(), "Date": date, "number": 100 + day}
    return response(body, head=head(status, **fields), **options)


def revisited(body: bytes, day: int, first: int, block: bytes = b"", **options: Any) -> bytes:
    return revisit(
        block,
        Target_URI=URL.encode(),
        Date=b"2024-03-%02dT00:00:00Z" % day,
        number=100 + day,
        Payload_Digest=stated_sha1(body),
        Refers_To_Target_URI=URL.encode(),
        Refers_To_Date=b"2024-03-%02dT00:00:00Z" % first,
        **options,
    )


class Site:
    """An index of WARC files, and its server."""

    def __init__(self, folder: Path, *files: list[bytes], **settings: Any) -> None:
        self.index = folder / "index"
        chosen = {"etag": True, "mime": ".*", "whitelist": True, **settings}
        for number, records in enumerate(files):
            path = folder / f"{number}.warc.gz"
            path.write_bytes(b"".join(map(gz, records)))
            if number:
                typed("index", "--add", path, self.index)
            else:
                dedupindex.build([path], self.index, **chosen)

    def get(self, url: str = URL, more: str = "", accept: str = "*/*", **config: Any) -> Any:
        """An answer of a server, which is closed then: LMDB opens a file once."""
        made = Config(self.index, **config)
        live = LiveIndex(self.index, made.policy)
        live.refresh()
        answer = (
            create_app(made, live)
            .test_client()
            .get(f"/last?url={url}{more}", headers={"Accept": accept})
        )
        live.opened().engine.close()  # type: ignore[attr-defined]
        return answer

    def last(self, url: str = URL, more: str = "", **config: Any) -> dict[str, Any]:
        answer = self.get(url, more, **config)
        assert answer.status_code == 200, answer.text
        return dict(answer.get_json())


def web_of(index: Path) -> FlaskClient:
    live = LiveIndex(index)
    live.refresh()
    app = create_app(Config(index), live)
    app.extensions["live"] = live
    return app.test_client()


def sent(answer: dict[str, Any]) -> list[str]:
    return list(answer["conditions"].values())


# --- from WARC files -----------------------------------------------------------------------------


def test_the_last_capture_has_its_validators_and_what_a_revisit_needs(tmp_path: Path) -> None:
    site = Site(tmp_path, [page(b"one", 1, ETag=b'"1"', Last_Modified=OLD)])
    answer = site.last()
    assert answer["known"] and not answer["revisit"]
    assert (answer["date"], answer["status"]) == ("2024-03-01T00:00:00Z", 200)
    assert (answer["etag"], answer["last_modified"]) == ('"1"', OLD.decode())
    assert answer["digest"] == stated_sha1(b"one").decode() == answer["original"]["digest"]
    assert answer["conditions"] == {"If-None-Match": '"1"', "If-Modified-Since": OLD.decode()}
    assert answer["original"]["etag"] == '"1"'
    words = ("lookup", site.index, "--digest", answer["digest"], "--url", URL)
    assert f"  last_modified {OLD.decode()}\n" in typed(*words)[0]
    text = site.get(accept="text/plain").text
    lines = dict(line.split(": ", 1) for line in text.splitlines())
    assert lines == {
        "If-None-Match": '"1"',
        "If-Modified-Since": OLD.decode(),
        "WARC-Payload-Digest": stated_sha1(b"one").decode(),
        "WARC-Refers-To": "<urn:uuid:00000000-0000-4000-8000-000000000101>",
        "WARC-Refers-To-Target-URI": URL,
        "WARC-Refers-To-Date": "2024-03-01T00:00:00Z",
        "Dedup-Original-Type": "text/html",
        "Dedup-Original-Size": "3",
    }
    assert site.last("http://example.org/other") == {"known": False}
    assert site.get("http://x.example/", accept="text/plain").status_code == 204


@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
@pytest.mark.parametrize("apart", [False, True])
def test_a_page_that_changed_back_is_what_it_was_last(
    tmp_path: Path, engine: str, apart: bool
) -> None:
    """The index keeps the first capture of each payload, and no revisit: /last knows the rest."""
    records = [
        page(b"one", 1, ETag=b'"1"', Last_Modified=OLD),
        page(b"two", 2, ETag=b'"2"', Last_Modified=NEW),
        revisited(b"one", 3, 1, head(ETag=b'"1b"', Last_Modified=OLD)),
    ]
    files = [[item] for item in reversed(records)] if apart else [records]
    answer = Site(tmp_path, *files, engine=engine).last()
    assert (answer["date"], answer["revisit"]) == ("2024-03-03T00:00:00Z", True)
    assert answer["original"]["date"] == "2024-03-01T00:00:00Z"
    assert sent(answer) == ['"1b"', OLD.decode()]


def test_a_copy_in_full_counts_as_the_last_capture(tmp_path: Path) -> None:
    records = [page(b"one", 1, ETag=b'"1"'), page(b"two", 2), page(b"one", 3, ETag=b'"3"')]
    answer = Site(tmp_path, records).last()
    assert (answer["date"], sent(answer)) == ("2024-03-03T00:00:00Z", ['"3"'])
    assert answer["original"]["date"] == "2024-03-01T00:00:00Z"


def test_a_revisit_that_states_no_validators_leaves_them_as_they_were(tmp_path: Path) -> None:
    records = [
        page(b"one", 1, ETag=b'"1"', Last_Modified=OLD),
        revisited(b"one", 2, 1, Profile=NOT_MODIFIED),
    ]
    answer = Site(tmp_path, records).last()
    assert (answer["revisit"], answer["date"]) == (True, "2024-03-02T00:00:00Z")
    assert sent(answer) == ['"1"', OLD.decode()]


@pytest.mark.parametrize(
    "later",
    [
        page(b"two", 2),
        page(b"two", 2, status=b"404 Not Found", ETag=b'"404"'),
        page(b"", 2),
        page(b"two", 1),
    ],
    ids=["changed", "gone", "empty", "in the same second"],
)
def test_an_earlier_validator_is_never_used_after_another_payload(
    tmp_path: Path, later: bytes
) -> None:
    records = [page(b"one", 1, ETag=b'"1"', Last_Modified=OLD), later]
    answer = Site(tmp_path, records, status="2xx").last()
    assert sent(answer) in ([], ['"1"']) and "If-Modified-Since" not in answer["conditions"]
    if b"2024-03-02" in later and b"Content-Length: 0" not in later:
        assert answer["conditions"] == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"ETag": b"*"},
        {"ETag": b"1"},
        {"ETag": b'"1", "2"'},
        {"ETag": b'"1\xe9"'},
        {"Last_Modified": b"yesterday"},
        {"Last_Modified": b"Mon, 32 Jan 2023 03:04:05 GMT"},
        {"Last_Modified": b"2023-01-02T03:04:05Z"},
        {"Last_Modified": b"Thu, 29 Feb 2024 23:59:01 GMT"},  # 59 seconds before the capture
        {"Last_Modified": b"Fri, 01 Mar 2030 00:00:00 GMT"},
        {},
    ],
    ids=str,
)
def test_what_is_no_validator_is_not_sent(tmp_path: Path, fields: dict[str, bytes]) -> None:
    answer = Site(tmp_path, [page(b"one", 1, **fields)]).last()
    assert answer["known"] and answer["conditions"] == {}


@pytest.mark.parametrize(
    ("first", "kept"),
    [
        ({"ETag": b'"1"', "Last_Modified": NEW}, [OLD]),
        ({"ETag": b'W/"1"'}, [OLD]),
        ({"ETag": b'"0"', "Last_Modified": OLD}, ['"1"']),
        ({"ETag": b'"1"', "Last_Modified": OLD}, []),
        ({"ETag": b'"0"', "Last_Modified": NEW}, ['"1"', OLD]),
        ({}, ['"1"', OLD]),
    ],
    ids=str,
)
def test_a_validator_of_two_payloads_has_lied_and_is_not_used_again(
    tmp_path: Path, first: dict[str, bytes], kept: list[Any]
) -> None:
    records = [page(b"one", 1, **first), page(b"two", 2, ETag=b'"1"', Last_Modified=OLD)]
    answer = Site(tmp_path, *[[item] for item in records]).last()
    assert (answer["etag"], answer["last_modified"]) == ('"1"', OLD.decode())
    assert sent(answer) == [item if isinstance(item, str) else item.decode() for item in kept]


def test_a_refused_record_leaves_no_earlier_validators(tmp_path: Path) -> None:
    """Its digest is what it states, its bytes are others: nobody knows what the URL answered."""
    lie = page(b"two", 2, Last_Modified=NEW).replace(stated_sha1(b"two"), stated_sha1(b"one"))
    assert lie.count(stated_sha1(b"one")) == 1
    answer = Site(tmp_path, [page(b"one", 1, Last_Modified=OLD), lie]).last()
    assert (answer["date"], answer["revisit"]) == ("2024-03-02T00:00:00Z", False)
    assert answer["conditions"] == {}


def test_digests_of_revisits_are_labelled_if_that_of_the_original_is_not(tmp_path: Path) -> None:
    rows, digest = tmp_path / "rows.cdx", stated_sha1(b"one").decode()
    row = f"- 20240201000000 {URL} text/html 200 {digest.removeprefix('sha1:')} - 0 0.warc.gz"
    rows.write_text(f" CDX N b a m s k r V g\n{row}\n")
    site = Site(tmp_path, [revisited(b"one", 3, 2, head(ETag=b'"1"'))])
    typed("index", "--add", rows, site.index)
    assert site.last()["digest"] == digest
    assert f"WARC-Payload-Digest: {digest}\r\n" in site.get(accept="text/plain").text


def test_a_row_of_the_same_capture_hides_no_validators(tmp_path: Path) -> None:
    record = page(b"one", 1, ETag=b'"1"')
    site = Site(tmp_path, [record])
    digest = stated_sha1(b"one").decode().removeprefix("sha1:")
    rows = tmp_path / "rows.cdx"
    row = f"org,example)/page 20240301000000 {URL} text/html 200 {digest} - 0 0.warc.gz"
    rows.write_text(f" CDX N b a m s k r V g\n{row}\n")
    typed("index", "--add", rows, site.index)
    assert sent(site.last()) == ['"1"']


def test_weak_validators_are_sent_as_they_are(tmp_path: Path) -> None:
    site = Site(tmp_path, [page(b"one", 1, ETag=b'W/"1"', Last_Modified=OLD)])
    assert sent(site.last()) == ['W/"1"', OLD.decode()]


def test_canonical_urls_are_found_but_have_no_conditions(tmp_path: Path) -> None:
    www = "http://www.example.org/page"
    site = Site(tmp_path, [page(b"one", 1, url=www, ETag=b'"1"')])
    assert site.last() == {"known": False}
    answer = site.last(more="&strategy=CANONICAL_URL")
    assert (answer["url"], answer["etag"], answer["conditions"]) == (www, '"1"', {})
    assert answer["original"]["url"] == www
    assert sent(site.last(www, "&strategy=CANONICAL_URL")) == ['"1"']


def test_a_revisit_of_another_url_has_no_conditions_until_its_own_is_stored(tmp_path: Path) -> None:
    """The record whose validators would be sent is a revisit, and nothing may refer to that one."""
    other = "http://example.org/first"
    first = page(b"one", 1, url=other, ETag=b'"1"', Last_Modified=OLD)
    named = {"Refers_To_Target_URI": other.encode(), "Refers_To_Date": b"2024-03-01T00:00:00Z"}
    copy = revisit(
        head(ETag=b'"2"', Last_Modified=OLD),
        Target_URI=URL.encode(),
        Date=b"2024-03-02T00:00:00Z",
        Payload_Digest=stated_sha1(b"one"),
        **named,
    )
    site = Site(tmp_path, [first, copy])
    answer = site.last()
    assert (answer["known"], answer["revisit"], answer["etag"]) == (True, True, '"2"')
    assert (answer["original"], answer["conditions"]) == (None, {})
    assert site.get(accept="text/plain").status_code == 204
    assert sent(site.last(other)) == ['"1"', OLD.decode()]
    stored = tmp_path / "stored.warc.gz"
    stored.write_bytes(gz(page(b"one", 3, ETag=b'"2"')))
    typed("index", "--add", stored, site.index)
    assert sent(site.last()) == ['"2"']


def test_what_was_posted_is_no_visit(tmp_path: Path) -> None:
    posted = page(b"two", 2, ETag=b'"2"')
    asked = request(b"POST", 7, Target_URI=URL.encode(),
                    Concurrent_To=b"<urn:uuid:00000000-0000-4000-8000-000000000102>")  # fmt: skip
    answer = Site(tmp_path, [page(b"one", 1, ETag=b'"1"'), asked, posted]).last()
    assert sent(answer) == ['"1"']


def test_refused_originals_have_no_conditions(tmp_path: Path) -> None:
    site = Site(tmp_path, [page(b"one", 1, ETag=b'"1"')], mime="^text/.*", whitelist=False)
    answer = site.last()
    assert (answer["known"], answer["original"], answer["conditions"]) == (True, None, {})


def test_policies_decide_and_may_distrust_validators(tmp_path: Path) -> None:
    site = Site(tmp_path, [page(b"one", 1, ETag=b'"1"')])
    rules = [
        {"host": ".example.org", "distrust_validators": True},
        {"never": True},
        {"max_age": "1d"},
        {"originals_from": ["other"]},
    ]
    for rule in rules:
        answer = site.last(policy=parse_policy([rule]))
        assert answer["known"] and answer["conditions"] == {}
    elsewhere = parse_policy([{"host": "a.example", "distrust_validators": True}])
    assert sent(site.last(policy=elsewhere)) == ['"1"']
    assert site.last(more="&max_age=1d")["conditions"] == {}


def test_a_purged_original_leaves_no_conditions(tmp_path: Path) -> None:
    site = Site(tmp_path, [page(b"one", 1, ETag=b'"1"'), page(b"x", 1, url="http://b.example/")])
    file = str(tmp_path / "0.warc.gz")
    typed("purge", site.index, "--container", file)
    assert site.last()["conditions"] == {}


def test_purging_a_url_purges_what_it_answered(tmp_path: Path) -> None:
    other = "http://b.example/"
    site = Site(tmp_path, [page(b"one", 1, ETag=b'"1"'), page(b"x", 1, url=other, ETag=b'"2"')])
    typed("purge", site.index, "--url", URL)
    assert site.last() == {"known": False}
    assert sent(site.last(other)) == ['"2"']


def test_bin_lookup_finds_the_last_capture_of_a_url_without_a_path(tmp_path: Path) -> None:
    url = "http://b.example/"
    site = Site(tmp_path, [page(b"one", 1, url=url, ETag=b'"1"')])
    shown, _ = typed("lookup", site.index, "--last", "--url", "http://b.example")
    assert f"{url}\n" in shown and 'If-None-Match: "1"' in shown


def test_indexes_without_validators_or_urls_say_so(make_index: MakeIndex) -> None:
    for chosen in (Settings(), Settings(etag=True, url_index=False, canonical=False)):
        answer = web_of(make_index([capture()], chosen)).get(f"/last?url={URL}")
        assert (answer.status_code, answer.get_json()["error"]["code"]) == (
            409,
            "strategy_unavailable",
        )


def test_bin_lookup_shows_it(tmp_path: Path) -> None:
    site = Site(tmp_path, [page(b"one", 1, ETag=b'"1"')])
    shown, _ = typed("lookup", site.index, "--last", "--url", URL)
    assert "2024-03-01T00:00:00Z" in shown and 'If-None-Match: "1"' in shown
    shown, _ = typed("lookup", site.index, "--last", "--url", URL, "--json")
    assert json.loads(shown) == site.last()
    shown, _ = typed("lookup", site.index, "--last", "--url", "http://b.example/", status=10)
    assert shown == "not known\n"
    lines = json.dumps({"url": URL}) + "\n" + json.dumps({"url": "http://b.example/"})
    shown, _ = typed("lookup", site.index, "--last", "--batch", "-", text=lines)
    assert [json.loads(line)["known"] for line in shown.splitlines()] == [True, False]
    typed("lookup", site.index, "--last", status=2)
    typed("lookup", site.index, "--last", "--url", URL, "--digest", "sha1:X", status=2)


# --- from the reports of crawls ------------------------------------------------------------------


def reported(number: int, day: int, **more: Any) -> dict[str, Any]:
    date = f"2024-03-{day:02d}T00:00:00Z"
    return {"digest": str(sha1(number)), "url": URL, "date": date, "status": 200,
            "mime": "text/html", "size": 100, **more}  # fmt: skip


@pytest.fixture
def web(make_index: MakeIndex) -> FlaskClient:
    return web_of(make_index([capture(90)], ETAG))


def tell(web: FlaskClient, crawl: str, *items: dict[str, Any]) -> dict[str, Any]:
    answer = web.post(f"/captures?crawl={crawl}", json={"captures": items})
    assert answer.status_code == 200, answer.text
    return dict(answer.get_json())


def ask(web: FlaskClient, more: str = "") -> dict[str, Any]:
    return dict(web.get(f"/last?url={URL}{more}").get_json())


def test_a_crawl_sees_its_own_visits_and_others_those_of_committed_crawls(
    web: FlaskClient,
) -> None:
    web.post("/crawls", json={"name": "a"})
    web.post("/crawls", json={"name": "b", "namespace": "n"})
    tell(web, "a", reported(1, 1, etag='"1"', last_modified=OLD.decode()))
    assert ask(web) == {"known": False}
    assert sent(ask(web, "&crawl=a")) == ['"1"', OLD.decode()]
    web.post("/crawls/a/commit")
    assert sent(ask(web)) == ['"1"', OLD.decode()]
    tell(web, "b", reported(2, 2, etag='"2"'))
    web.post("/crawls/b/commit")
    assert sent(ask(web)) == ['"1"', OLD.decode()]
    assert sent(ask(web, "&namespace=n")) == ['"2"']


def test_a_reported_revisit_is_the_last_capture(web: FlaskClient) -> None:
    web.post("/crawls", json={"name": "a"})
    tell(web, "a", reported(1, 1, etag='"1"'), reported(2, 2, etag='"2"'))
    done = tell(
        web, "a",
        reported(1, 3, etag='"3"', revisit="identical-payload-digest"),
        reported(1, 4, revisit="server-not-modified"),
        reported(1, 4, revisit="none"),
    )  # fmt: skip
    assert (done["revisits"], done["added"], done["bad"]) == (2, 0, 1)
    assert done["results"][:2] == ["revisit", "revisit"]
    answer = ask(web, "&crawl=a")
    assert (answer["revisit"], answer["status"], answer["date"]) == (
        True,
        304,
        "2024-03-04T00:00:00Z",
    )
    assert answer["original"]["date"] == "2024-03-01T00:00:00Z"
    assert sent(answer) == ['"3"']  # which the 304 leaves as they were
    tell(web, "a", reported(1, 5, etag='"5"', revisit="server-not-modified"))
    assert sent(ask(web, "&crawl=a")) == ['"5"']


@pytest.mark.parametrize("crawls", ["x", "xy"])
def test_a_validator_of_two_payloads_is_not_used_again_whichever_crawl_saw_them(
    make_index: MakeIndex, crawls: str
) -> None:
    index = make_index([capture(90)], ETAG)
    live = LiveIndex(index)
    live.refresh()
    web = create_app(Config(index), live).test_client()
    first, second = (reported(number, number, last_modified=OLD.decode()) for number in (1, 2))
    same = {"revisit": "identical-payload-digest"}
    left = reported(3, 1, url=f"{URL}/3", etag='"3"'), reported(3, 2, url=f"{URL}/3", **same)
    for crawl in crawls:
        web.post("/crawls", json={"name": crawl})
    tell(web, crawls[0], first, left[0])
    tell(web, crawls[-1], second, left[1])
    for crawl in crawls:
        web.post(f"/crawls/{crawl}/commit")

    def both(web: FlaskClient) -> list[list[str]]:
        asked = {"lookups": [{"url": URL}, {"url": f"{URL}/3"}]}
        return list(map(sent, web.post("/last", json=asked).get_json()["answers"]))

    assert both(web) == [[], ['"3"']]
    merge_all(index, live)
    assert both(web_of(index)) == [[], ['"3"']]


def test_a_revisit_is_never_an_original_and_a_cancelled_crawl_leaves_nothing(
    web: FlaskClient,
) -> None:
    web.post("/crawls", json={"name": "a"})
    tell(web, "a", reported(1, 1, etag='"1"', revisit="identical-payload-digest"))
    answer = ask(web, "&crawl=a")
    assert (answer["known"], answer["original"], answer["conditions"]) == (True, None, {})
    assert web.get(f"/lookup?digest={sha1(1)}&url={URL}&crawl=a").get_json() == {"duplicate": False}
    web.post("/crawls/a/cancel")
    assert ask(web) == {"known": False}


def test_an_open_crawl_of_others_is_not_relied_on(web: FlaskClient) -> None:
    web.post("/crawls", json={"name": "a", "seen_by": "all"})
    tell(web, "a", reported(1, 1, etag='"1"'))
    assert ask(web)["conditions"] == {}
    assert sent(ask(web, "&crawl=a")) == ['"1"']


def test_a_crawl_that_conditions_rely_on_is_not_dropped_unasked(web: FlaskClient) -> None:
    web.post("/crawls", json={"name": "a"})
    web.post("/crawls", json={"name": "b"})
    tell(web, "a", reported(1, 1, etag='"1"'))
    web.post("/crawls/a/commit")
    assert sent(ask(web, "&crawl=b"))
    refused = web.delete("/crawls/a", json={})
    assert refused.status_code == 409
    assert refused.get_json()["error"]["code"] == "has_dependents"
    assert web.delete("/crawls/a", json={"force": True}).status_code == 200
    assert ask(web, "&crawl=b") == {"known": False}


def merge_all(index: Path, live: LiveIndex) -> None:
    """Merge the committed crawls, and remove what they have beside the index."""
    live.opened().engine.close()  # type: ignore[attr-defined]
    store = live.crawls.store()
    assert store is not None
    merge(index, store)
    store.close()
    (index / "crawls.mdb").unlink()


def test_merging_keeps_the_visits(make_index: MakeIndex) -> None:
    index = make_index([capture(90)], ETAG)
    live = LiveIndex(index)
    live.refresh()
    web = create_app(Config(index), live).test_client()
    web.post("/crawls", json={"name": "a", "strategy": "DIGEST_ANY"})
    tell(web, "a", reported(1, 1, etag='"1"'), reported(2, 2), reported(1, 3, etag='"3"',
         revisit="identical-payload-digest"))  # fmt: skip
    web.post("/crawls/a/commit")
    before = ask(web)
    assert sent(before) == ['"3"']
    merge_all(index, live)
    after = web_of(index).get(f"/last?url={URL}").get_json()
    assert after == before


def test_a_validator_that_is_too_long_costs_no_capture(web: FlaskClient) -> None:
    web.post("/crawls", json={"name": "a"})
    fields = {"etag": f'"{"x" * 5000}"', "last_modified": OLD.decode()}
    assert tell(web, "a", reported(1, 1, **fields))["added"] == 1
    assert sent(ask(web, "&crawl=a")) == [OLD.decode()]


def test_reports_count_what_was_not_fetched(web: FlaskClient) -> None:
    web.post("/crawls", json={"name": "a"})
    unchanged, same = ({"revisit": name} for name in REVISITS[::-1])
    revisits = [
        reported(1, 3, **unchanged, size=100),
        reported(1, 2, **unchanged, url="http://b.example/", size=None),
        reported(1, 4, **same, url="http://c.example/"),
    ]
    tell(web, "a", *revisits)
    tell(web, "a", *revisits)  # as if the answer had been lost
    counting = web.application.extensions["live"].crawls
    counting.write_counts()
    report = web.get("/crawls/a/report?by=host").get_json()
    assert (report["not_modified"], report["not_modified_bytes"], report["lookups"]) == (2, 100, 0)
    hosts = {group["host"]: group["not_modified"] for group in report["groups"]}
    assert hosts == {"example.org": 1, "b.example": 1}
    text = web.get("/crawls/a/report?by=host&format=text").text
    assert re.search(r"looked up .* not modified \(304\) +payload not fetched", text), text
    page = web.get("/pages/crawl?name=a").text
    assert "<dt>Not modified (304), not fetched</dt><dd>2<" in page and "100 B of payload" in page


def test_rules_on_validators_do_not_concern_lookups() -> None:
    distrust = {"host": "a.example", "distrust_validators": True}
    assert not parse_policy([distrust]).concerns_lookups()
    assert parse_policy([distrust, {"blackout": 5}]).concerns_lookups()
    assert parse_policy([{**distrust, "min_size": 5}]).concerns_lookups()


def test_purging_a_url_purges_what_crawls_keep_of_it(make_index: MakeIndex) -> None:
    index = make_index([capture(90)], ETAG)
    live = LiveIndex(index)
    live.refresh()
    web = create_app(Config(index), live).test_client()
    web.post("/crawls", json={"name": "a"})
    other = "http://b.example/"
    tell(web, "a", reported(1, 1, revisit="server-not-modified"), reported(2, 1, url=other),
         reported(3, 2), reported(4, 3))  # fmt: skip
    store = live.crawls.store()
    assert store is not None
    live.opened().engine.close()  # type: ignore[attr-defined]
    store.close()
    typed("purge", index, "--url", URL)
    found = web_of(index).post("/last?crawl=a", json={"lookups": [{"url": URL}, {"url": other}]})
    assert [answer["known"] for answer in found.get_json()["answers"]] == [False, True]


def test_last_captures_are_for_those_who_may_look_up(make_index: MakeIndex) -> None:
    index = make_index([capture(90)], ETAG)
    reader = tokens.add(index, "r", Role.READ, namespaces="a*")
    live = LiveIndex(index)
    live.refresh()
    web = create_app(Config(index, private=True), live).test_client()
    may = {"Authorization": f"Bearer {reader}"}
    expected = [("", {}, 401), ("", may, 200), ("a", may, 200), ("b", may, 403)]
    for namespace, headers, status in expected:
        asked = {"url": URL, **({"namespace": namespace} if namespace else {})}
        assert web.get("/last", query_string=asked, headers=headers).status_code == status
        answer = web.post("/last", json={"lookups": [asked]}, headers=headers)
        if status == 401:
            assert answer.status_code == 401
        else:
            (only,) = answer.get_json()["answers"]
            assert ("error" in only) is (status == 403)


@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
def test_a_crawl_of_revisits_alone_is_merged(make_index: MakeIndex, engine: str) -> None:
    index = make_index([capture(90, URL.encode())], ETAG, engine)
    live = LiveIndex(index)
    live.refresh()
    web = create_app(Config(index), live).test_client()
    web.post("/crawls", json={"name": "a"})
    tell(web, "a", reported(90, 1, etag='"1"', revisit="server-not-modified"))
    web.post("/crawls/a/commit")
    before = ask(web)
    assert sent(before) == ['"1"']
    merge_all(index, live)
    assert web_of(index).get(f"/last?url={URL}").get_json() == before


def test_batches_answer_in_order(web: FlaskClient) -> None:
    web.post("/crawls", json={"name": "a"})
    tell(web, "a", reported(1, 1, etag='"1"'))
    web.post("/crawls/a/commit")
    lookups: list[Any] = [{"url": URL}, {"url": "http://b.example/"}, {"url": 1}, {}, 7]
    answers = web.post("/last", json={"lookups": lookups}).get_json()["answers"]
    assert [answer.get("known") for answer in answers] == [True, False, None, None, None]
    assert all("error" in answer for answer in answers[2:])
    lines = "\n".join(map(json.dumps, [*lookups, {"url": URL, "crawl": "none"}])) + "\nno JSON"
    again = web.post("/last", data=lines, content_type="application/x-ndjson")
    parsed = [json.loads(line) for line in again.text.splitlines()]
    assert [item["error"].pop("line") for item in parsed[2:]] == [3, 4, 5, 6, 7]
    assert parsed[:5] == answers
    assert [item["error"]["code"] for item in parsed[5:]] == ["unknown_crawl", "bad_request"]
    assert web.post("/last", data="x", content_type="text/plain").status_code == 415
    assert web.post("/last", json=[]).status_code == 400
    for query in ("", f"url={URL}&strategy=DIGEST_ANY", f"url={URL}&digest=sha1:X"):
        assert web.get(f"/last?{query}").status_code == 400


# --- how well validators predict changes ---------------------------------------------------------


@pytest.fixture
def recrawled(tmp_path: Path) -> tuple[Path, Path]:
    """An index of a crawl, and the WARC of the next one."""

    def records(day: int, second: bool) -> list[bytes]:
        changed = b"new" * second or b"old"
        pages = {  # URL -> body, ETag, Last-Modified
            "/same": (b"same", b'"s"', OLD),
            "/weak": (b"same", b'W/"s"' if second else b'"s"', b""),
            "/changes": (changed, b'"%b"' % changed, NEW if second else OLD),
            "/lies": (changed, b'"l"', OLD),
            "/needless": (b"same", b'"%b"' % changed, OLD),
            "/states": (changed, b"", b""),
            f"/only-{day}": (b"x", b'"x"', OLD),
        }
        return [
            page(body, day, url=f"http://a.example{path}", ETag=etag, Last_Modified=modified)
            for path, (body, etag, modified) in pages.items()
        ]

    site = Site(tmp_path, records(1, False))
    (tmp_path / "next.warc.gz").write_bytes(b"".join(map(gz, records(2, True))))
    return site.index, tmp_path / "next.warc.gz"


def test_the_report_says_what_each_validator_would_have_kept_and_lost(
    recrawled: tuple[Path, Path],
) -> None:
    index, crawl = recrawled
    words = ("report", index, "--against", crawl, "--validators")
    found = json.loads(typed(*words, "--json")[0])
    (group,) = found.pop("groups")
    assert found == {
        "records": 7, "first": 1, "other_digest": 0, "by": "host", "compared": 6, "changed": 3,
        "etag_stated": 5, "etag_kept": 2, "etag_kept_bytes": 8, "etag_lost": 1,
        "etag_needless": 1, "last_modified_stated": 4, "last_modified_kept": 2,
        "last_modified_kept_bytes": 8, "last_modified_lost": 1, "last_modified_needless": 0,
    }  # fmt: skip
    assert group == {"host": "a.example", **{name: found[name] for name in COLUMNS}}
    text, _ = typed(*words, "--by", "mime")
    assert "wrongly unchanged:  1 (changes that would be lost)" in text
    assert text.rstrip().endswith("text/html")
    table, _ = typed(*words, "--format", "csv")
    assert table.splitlines()[1] == ",".join(["a.example", *(str(found[name]) for name in COLUMNS)])
    assert "a.example" in typed(*words, "--format", "html")[0]


def test_an_index_with_the_crawl_itself_compares_with_what_was_before(
    recrawled: tuple[Path, Path],
) -> None:
    index, crawl = recrawled
    typed("index", "--add", crawl, index)
    found = json.loads(typed("report", index, crawl, "--validators", "--json")[0])
    assert (found["compared"], found["changed"], found["etag_lost"]) == (3, 3, 1)


def test_the_report_needs_visits_and_files(make_index: MakeIndex, tmp_path: Path) -> None:
    index = make_index([capture()])
    words = ("report", index, "--validators")
    _, message = typed(*words, "--against", tmp_path, status=StrategyUnavailable.exit_status)
    assert "built without --etag" in message
    assert "reads the files" in typed(*words, "--crawl", "a", status=2)[1]
    assert "no effect" in typed(*words, tmp_path, "--max-age", "1d", status=2)[1]


# --- visits as bytes -----------------------------------------------------------------------------


@given(captures, st.booleans())
def test_visits_are_read_as_they_were_written(item: Capture, revisit: bool) -> None:
    visit = Visit.of(item)._replace(revisit=revisit)
    keys = Settings().keys()
    read = Visit.parse(visit.item(keys)[1 + len(keys.tail(item.url)) :])
    second = item.date[:19] + b"Z"
    assert read == visit._replace(date=second)


def test_a_status_without_room_is_not_known() -> None:
    visit = Visit(URL.encode(), b"2024-03-01T00:00:00Z", sha1(1), 65_736, b'"x"')
    assert Visit.parse(visit.body()).status == 0


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9), st.booleans()), max_size=12))
def test_the_last_visit_and_the_last_with_validators_are_kept(
    seen: list[tuple[int, int, bool]],
) -> None:
    keys = Settings().keys()
    visits = [
        Visit(URL.encode(), b"2024-03-%02dT00:00:00Z" % day, sha1(number), 200, b'"x"' * stated)
        for number, day, stated in seen
    ]
    items = sorted({visit.item(keys) for visit in visits})
    length = 1 + len(keys.tail(b""))
    kept = [Visit.parse(item[length:]) for item in latest([*items, b"\x02rest"], length)
            if item != b"\x02rest"]  # fmt: skip
    assert set(kept) <= set(visits)
    for number in {number for number, _, _ in seen}:
        mine = [visit for visit in visits if visit.digest == sha1(number)]
        for some in (mine, [visit for visit in mine if visit.etag]):
            if some:
                newest = max(visit.date for visit in some)
                assert any(
                    v.digest == sha1(number) and v.date == newest and (v.etag or some == mine)
                    for v in kept
                )
    assert len(kept) <= 2 * len({number for number, _, _ in seen})


SEEN = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 5), st.booleans(), st.booleans()), max_size=12
)


@settings(max_examples=examples(30))
@given(SEEN)
def test_a_crawl_keeps_the_visits_that_an_index_keeps_in_any_order(
    seen: list[tuple[int, int, bool, bool]],
) -> None:
    keys = Settings().keys()
    tail = keys.tail(URL.encode())
    bodies = [
        Visit(URL.encode(), b"2024-03-%02dT00:00:00Z" % day, sha1(number), 200,
              b'"x"' * stated, b"", revisit).body()
        for number, day, stated, revisit in seen
    ]  # fmt: skip
    needed = {item[1 + len(tail) :] for item in latest(
        sorted({CODE + tail + body for body in bodies}), 1 + len(tail))}  # fmt: skip
    with TemporaryDirectory() as folder, closing(LmdbStore(Path(folder))) as store:
        for name in ("other", "a"):
            store.write(partial(lifecycle.begin, name=name))
        with store.writing() as writing:
            crawl, last = writing.crawl("a"), b""
            for body in bodies:
                is_last = not last or body < last
                assert writing.put_visit(tail, crawl, body) is is_last
                assert writing.put_visit(tail, crawl, body) is False
                last = body if is_last else last
            kept = dict(writing.visits(crawl.number, tail))
            assert needed <= set(kept.values()) <= set(bodies)
            assert len(kept) <= 1 + 2 * len({number for number, *_ in seen})
            assert all(key.startswith(tail) for key in kept)
            assert not list(writing.visits(crawl.number - 1))
        assert store.check() == []
        for key in list(kept)[:2]:
            store.write(partial(LmdbWriting.drop_visit, key=key, crawl=crawl.number))
        store.write(partial(lifecycle.cancel, name="a"))
        sweep(store, 0, {})
        with store.reading() as reading:
            assert not list(reading.visits(crawl.number))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"Last_Modified": b"Thu, 29 Feb 2024 23:59:30 GMT"}, "less than 60 s before the capture"),
        ({}, "it stated neither ETag nor Last-Modified"),
        ({"ETag": b"no quotes"}, "its validators are malformed, of two payloads"),
        ({"status": b"404 Not Found"}, "its last answer has no original"),
    ],
)
def test_the_command_says_why_to_fetch_in_full(
    fields: dict[str, bytes], why: str, tmp_path: Path
) -> None:
    site = Site(tmp_path, [page(b"one", 1, **fields)])  # type: ignore[arg-type]
    shown = typed("lookup", site.index, "--last", "--url", URL)[0].splitlines()
    assert shown[-1].startswith("fetch it in full: ") and why in shown[-1]
