"""The HTTP API through Flask's test client: answers, errors, hostile input, documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from werkzeug.test import EnvironBuilder, TestResponse, run_wsgi_app

from dedupindex.capture import Capture, Evidence
from dedupindex.digest import EMPTY, Digest, Spelling
from dedupindex.errors import Damaged, IndexUnavailable
from dedupindex.index.identity import Settings
from dedupindex.lookup.params import PARAMETERS
from server.app import create_app
from server.config import MAX_QUERY, Config
from server.live_index import LiveIndex
from server.openapi import document
from server.responses import ERRORS
from server.routes import ROUTES
from tests.conftest import MakeIndex
from tests.support.budgets import examples
from tests.support.captures import capture, sha1
from tests.support.paths import ROOT

PAGE = b"http://example.com/page"
COUSIN = b"https://www.Example.com/Page/"  # another URL with the same urlkey
DOCS = ROOT / "docs" / "http.md"

Client = Callable[..., FlaskClient]


@pytest.fixture
def client(make_index: MakeIndex) -> Client:
    """``client(captures, settings, hot=False, max_body=…)`` over an index of those captures."""

    def make(
        captures: Iterable[Capture] = (),
        chosen: Settings | None = None,
        engine: str = "lmdb",
        *,
        hot: bool = True,
        **limits: int,
    ) -> FlaskClient:
        index = make_index(captures, chosen, engine)
        live = LiveIndex(index)
        live.refresh()
        return create_app(Config(index, **limits), live, hot=hot).test_client()

    return make


def ask(client: FlaskClient, safe: str = "", **given: str | bytes) -> TestResponse:
    parts = [f"{name}={quote(value, safe)}" for name, value in given.items()]
    return client.get("/lookup?" + "&".join(parts))


def code(response: TestResponse) -> tuple[int, str]:
    assert response.content_type == "application/json"
    assert set(response.get_json()) == {"error"} and set(response.get_json()["error"]) == {
        "code",
        "message",
    }
    return response.status_code, response.get_json()["error"]["code"]


def test_an_original_of_the_same_url(client: Client) -> None:
    response = ask(client([capture(1, PAGE)]), digest=str(sha1(1)), url=PAGE)
    assert response.json == {
        "duplicate": True,
        "match": "exact_url",
        "original": {
            "url": PAGE.decode(),
            "date": "2026-11-01T09:14:17Z",
            "record_id": "urn:uuid:00000000-0000-4000-8000-000000000101",
            "digest": str(sha1(1)),
            "size": 1001,
            "record_size": None,
            "mime": "image/png",
            "status": 200,
            "container": "/warcs/1.warc.gz",
            "offset": 1000,
            "evidence": "record",
        },
    }


def test_match_classes_and_strategies_of_both_manuals(client: Client) -> None:
    web = client([capture(1, PAGE)])
    matches = {}
    for name in ("DIGEST_ANY", "exact_url", "CANONICAL_URL", "URL_EXACT", "DIGEST_URL_PREFERRED"):
        for url in (PAGE, COUSIN, b"http://other.example/"):
            found = ask(web, digest=str(sha1(1)), url=url, strategy=name).json or {}
            matches[name, url] = found.get("match")
    for url, found in ((PAGE, "exact_url"), (COUSIN, "canonical_url")):
        for name in ("DIGEST_ANY", "DIGEST_URL_PREFERRED", "CANONICAL_URL"):
            assert matches[name, url] == found
    assert matches["DIGEST_ANY", b"http://other.example/"] == "digest"
    assert matches["CANONICAL_URL", b"http://other.example/"] is None
    assert matches["URL_EXACT", COUSIN] is matches["exact_url", COUSIN] is None
    assert matches["URL_EXACT", PAGE] == "exact_url"


def test_header_lines_are_ready_to_be_written(client: Client) -> None:
    web = client([capture(1, PAGE)])
    plain = {"Accept": "text/plain"}
    response = web.get(f"/lookup?digest={sha1(1)}", headers=plain)
    assert response.content_type.startswith("text/plain")
    assert response.data == (
        b"WARC-Refers-To: <urn:uuid:00000000-0000-4000-8000-000000000101>\r\n"
        b"WARC-Refers-To-Target-URI: http://example.com/page\r\n"
        b"WARC-Refers-To-Date: 2026-11-01T09:14:17Z\r\n"
    )
    none = web.get(f"/lookup?digest={sha1(2)}", headers=plain)
    assert (none.status_code, none.data) == (204, b"")
    preferred = {"Accept": "text/plain;q=0.5, application/json"}
    assert web.get(f"/lookup?digest={sha1(1)}", headers=preferred).is_json
    assert code(web.get("/lookup?digest=x", headers=plain)) == (400, "bad_digest")


def test_header_lines_need_an_original_with_the_same_spelling(client: Client) -> None:
    """The asker does not see its digest, and replay seeks it by the text of the revisit's."""
    other = b"http://other.example/"
    in_hex = capture(1, PAGE)._replace(spelling=Spelling(1, 2))
    alone, both = client([in_hex]), client([in_hex, capture(1, other, day=2)])
    base32, hexadecimal = str(sha1(1)), f"sha1:{sha1(1).raw.hex()}"

    def target(web: FlaskClient, text: str, **more: str) -> str:
        given = {"digest": text, "url": PAGE.decode(), **more}
        answer = web.get("/lookup", query_string=given, headers={"Accept": "text/plain"})
        shown = web.get("/lookup", query_string=given).get_json()
        assert shown["original"]["digest"] == hexadecimal and shown["match"] == "exact_url"
        lines = dict(line.split(": ", 1) for line in answer.text.splitlines())
        assert answer.status_code == (200 if lines else 204)
        assert answer.headers.get("Dedup-Reason") == (None if lines else "digest-encoding")
        return lines.get("WARC-Refers-To-Target-URI", "")

    assert target(alone, base32) == target(alone, hexadecimal.upper()) == ""
    assert target(alone, base32[5:], unlabelled="sha1") == ""
    assert target(both, base32) == other.decode()
    for web in (alone, both):
        assert target(web, hexadecimal) == target(web, base32, bridge="1") == PAGE.decode()
    refused = alone.get(
        "/lookup", query_string={"digest": base32[5:]}, headers={"Accept": "text/plain"}
    )
    assert code(refused) == (400, "bad_digest")


def test_a_stored_line_end_never_reaches_a_header_line(client: Client) -> None:
    web = client([capture(1, b"http://example.com/\r\nX-Injected: 1")])
    response = web.get(f"/lookup?digest={sha1(1)}", headers={"Accept": "text/plain"})
    assert code(response) == (503, "damaged")
    assert ask(web, digest=str(sha1(1))).get_json()["original"]["url"].endswith("\r\nX-Injected: 1")


def test_conditions(client: Client) -> None:
    web = client([capture(1, PAGE)])
    digest, record = str(sha1(1)), "<urn:uuid:00000000-0000-4000-8000-000000000101>"
    for refused in (
        {"max_age": "1s"},
        {"as_of": "2026-10-31"},
        {"min_size": "1002"},
        {"not_record": record},
        {"not_date": "20261101091417"},
    ):
        found = ask(web, digest=digest, url=PAGE, **refused)
        assert found.json == {"duplicate": False}, refused
    for passed in ({"max_age": "9999d"}, {"as_of": "2026-11-01"}, {"min_size": "1001"}):
        assert ask(web, digest=digest, url=PAGE, **passed).get_json()["duplicate"], passed
    bare = digest.removeprefix("sha1:")
    assert ask(web, digest=bare, unlabelled="sha1").get_json()["duplicate"]


def test_an_explanation_lists_the_considered_captures(client: Client) -> None:
    response = ask(client([capture(1, PAGE)]), digest=str(sha1(1)), url=PAGE, explain="1")
    (considered,) = response.get_json()["considered"]
    assert considered["verdict"] == "chosen"


def test_a_digest_that_cannot_be_found_is_no_error(client: Client) -> None:
    web = client([capture(1, PAGE)])
    assert ask(web, digest="xxh3:abcdef0123456789").json == {
        "duplicate": False,
        "reason": "unknown_algorithm",
    }
    assert ask(web, digest="md5:" + "0" * 31 + "1").json == {"duplicate": False}
    for empty in EMPTY:
        assert ask(web, digest=str(empty)).json == {"duplicate": False}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", (400, "bad_query")),
        ("digest=", (400, "bad_query")),
        ("digest=hello", (400, "bad_digest")),
        ("digest=sha1:xyz", (400, "bad_digest")),
        ("digest=%00%0d%0a", (400, "bad_digest")),
        ("digest=%ff%fe", (400, "bad_digest")),
        ("digest={d}&digest={d}", (400, "bad_query")),
        ("digest={d}&nonsense=1", (400, "bad_query")),
        ("digest={d}&url_base64=AAAA", (400, "bad_query")),
        ("digest={d}&strategy=SOME", (400, "bad_query")),
        ("digest={d}&strategy=EXACT_URL", (400, "bad_query")),
        ("digest={d}&min_size=-1", (400, "bad_query")),
        ("digest={d}&max_age=soon", (400, "bad_query")),
        ("digest={d}&as_of=2026-02-30", (400, "bad_query")),
        ("digest={d}&explain=perhaps", (400, "bad_query")),
        ("digest={d}&url=" + "u" * MAX_QUERY, (414, "uri_too_long")),
    ],
)
def test_refused_queries(client: Client, query: str, expected: tuple[int, str]) -> None:
    assert code(client().get("/lookup?" + query.format(d=sha1(1)))) == expected


def test_a_strategy_that_the_index_cannot_answer(client: Client) -> None:
    web = client([capture(1, PAGE)], Settings(url_index=False, canonical=False))
    response = ask(web, digest=str(sha1(1)), url=PAGE, strategy="EXACT_URL")
    assert code(response) == (409, "strategy_unavailable")
    body = {"strategy": "EXACT_URL", "lookups": []}
    assert code(web.post("/lookup", json=body)) == (409, "strategy_unavailable")
    lines = web.post("/lookup?strategy=EXACT_URL", data=b"{}", content_type="application/x-ndjson")
    assert code(lines) == (409, "strategy_unavailable")


@pytest.mark.parametrize(
    "url",
    [
        b"http://e.example/a b",
        b"http://e.example/a+b",
        b"http://e.example/a;b=1&c=2#f",
        b"http://e.example/%00%zz%",
        b"http://e.example/\x00\r\n",
        b"http://e.example/\xff\xfe",
        "http://e.example/ü".encode(),
        b"http://e.example/" + b"u" * 10_000,
    ],
)
def test_a_url_is_bytes_from_end_to_end(client: Client, url: bytes) -> None:
    web = client([capture(1, url)])
    for hot in (ask(web, digest=str(sha1(1)), url=url), ask(web, url=url, digest=str(sha1(1)))):
        assert hot.json is not None
        assert hot.get_json()["match"] == "exact_url"
    spaced = quote(url, safe="").replace("%20", "+")
    assert web.get(f"/lookup?digest={sha1(1)}&url={spaced}").get_json()["match"] == "exact_url"


def test_urls_that_are_not_utf_8_come_back_exactly(client: Client) -> None:
    web = client([capture(1, b"http://e.example/\xff")])
    original = ask(web, digest=str(sha1(1))).get_json()["original"]
    assert original["url"] == "http://e.example/%FF"
    asked = {"digest": str(sha1(1)), "url_base64": original["url_base64"]}
    batch = web.post("/lookup", json={"lookups": [asked]})
    assert batch.get_json()["answers"][0]["match"] == "exact_url"


def test_a_batch_is_answered_in_order(client: Client) -> None:
    web = client([capture(1, PAGE), capture(2, PAGE)])
    lookups: list[Any] = [
        {"digest": str(sha1(2)), "url": PAGE.decode()},
        {"digest": str(sha1(3)), "url": PAGE.decode()},
        {"digest": sha1(1).raw.hex()},
        {"digest": "xxh3:abcdef"},
        {"digest": 7},
        {"digest": str(sha1(1)), "url": {}},
        None,
        [],
        {"digest": str(sha1(1)), "explain": True, "min_size": 5, "max_age": None},
    ]
    answers = web.post("/lookup", json={"unlabelled": "sha1", "lookups": lookups}).get_json()[
        "answers"
    ]
    said = [
        answer["error"]["code"] if "error" in answer else answer.get("match") for answer in answers
    ]
    refused = ["bad_query"] * 4
    assert said == ["exact_url", None, "digest", None, *refused, "digest"]
    assert answers[-1]["considered"]


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        (b"{", "application/json", (400, "bad_request")),
        (b"[]", "application/json", (400, "bad_request")),
        (b'{"lookups": 3}', "application/json", (400, "bad_request")),
        (b'{"lookups": [], "digests": 1}', "application/json", (400, "bad_query")),
        (b'{"lookups": [], "strategy": 1}', "application/json", (400, "bad_query")),
        (b"[" * 100_000, "application/json", (400, "bad_request")),
        (b'{"lookups": [1, 2, 3]}', "application/json", (413, "too_large")),
        (b" " * 200_001, "application/json", (413, "too_large")),
        (b"digest=x", "application/x-www-form-urlencoded", (415, "unsupported_media_type")),
        (b"", "", (415, "unsupported_media_type")),
    ],
)
def test_refused_bodies(client: Client, body: bytes, kind: str, expected: tuple[int, str]) -> None:
    web = client(max_body=200_000, max_batch=2)
    assert code(web.post("/lookup", data=body, content_type=kind)) == expected


def test_a_form_of_lookups_is_told_how_to_be_sent(client: Client) -> None:
    """As `curl -d` sends whatever it is given."""
    web, kind = client(), "application/x-www-form-urlencoded"
    lookups = '{"lookups": [{"digest": "sha1:...", "url": "http://..."}]}'
    said = web.post("/lookup", data=lookups, content_type=kind).get_json()["error"]["message"]
    assert f"curl -H 'Content-Type: application/json' -d '{lookups}', or JSON lines" in said
    said = web.post("/last", data=lookups, content_type=kind).get_json()["error"]["message"]
    assert """-d '{"lookups": [{"url": "http://..."}]}', or JSON lines""" in said


def test_json_lines_are_answered_line_by_line(client: Client) -> None:
    web = client([capture(1, PAGE)], max_line=1000)
    good = json.dumps({"digest": str(sha1(1)), "url": PAGE.decode()}).encode()
    lines = [good, b"", b"{", b" ", b"x" * 5000, good * 2, b'{"digest": "md5:x"}'] + [good] * 2500
    body = b"\n".join(lines)
    response = web.post("/lookup", data=body, content_type="application/x-ndjson; charset=utf-8")
    assert response.content_type == "application/x-ndjson"
    answers = [json.loads(line) for line in response.data.splitlines()]
    said = [a["error"]["code"] if "error" in a else a["match"] for a in answers]
    assert said[:5] == ["exact_url", "bad_request", "too_large", "bad_request", "bad_digest"]
    assert said[5:] == ["exact_url"] * 2500


def test_an_index_that_is_lost_is_logged_once(
    tmp_path: Path, make_index: MakeIndex, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr("server.live_index.RELOAD_GRACE", 0.0)
    monkeypatch.setattr("server.logs.LOGGER.propagate", True)
    index = make_index([capture(1)])
    live = LiveIndex(index)
    live.refresh()
    monkeypatch.setattr("server.live_index._repeat", lambda *_: None)  # refreshed by hand
    live.watch(lambda: None, logs=True)
    for _ in range(2):
        index.rename(tmp_path / "aside")
        live.refresh()
        live.refresh()
        (tmp_path / "aside").rename(index)
        live.refresh()
    lines = [line.partition(":")[0] for line in caplog.messages if "crawls" not in line]
    assert lines == ["lookups are answered 503", "the index is open again"] * 2


def test_an_index_that_is_gone_is_never_a_miss(client: Client, tmp_path: Path) -> None:
    live = LiveIndex(tmp_path / "none")
    live.refresh()
    web = create_app(Config(tmp_path / "none"), live).test_client()
    for response in (
        ask(web, digest=str(sha1(1))),
        web.post("/lookup", json={"lookups": [{"digest": str(sha1(1))}]}),
        web.get("/readyz"),
        web.get("/stats"),
    ):
        assert code(response) == (503, "index_unavailable")
        assert int(response.headers["Retry-After"]) > 0
    assert web.get("/healthz").status_code == 200
    assert b"dedupindex_ready 0.0" in web.get("/metrics").data


def test_paths_and_methods(client: Client) -> None:
    web = client()
    assert code(web.get("/nothing/here")) == (404, "not_found")
    refused = web.delete("/lookup")
    assert code(refused) == (405, "method_not_allowed")
    assert "GET" in refused.headers["Allow"]
    assert refused.get_json()["error"]["message"] == (
        f"the path takes {refused.headers['Allow']}, not DELETE"
    )
    near = web.get(f"/lookup?digest={sha1(1)}&ulr=http://a/")
    assert near.get_json()["error"]["message"] == "there is no parameter 'ulr'; did you mean url?"
    unknown = web.post("/lookup", json={"lookups": [{"digest": str(sha1(1)), "xyz": "1"}]})
    assert "there is no parameter 'xyz'; there are digest, url, " in unknown.text
    assert web.head(f"/lookup?digest={sha1(1)}").status_code == 200
    stats = web.get("/stats").json
    assert stats is not None
    assert (stats["captures"], stats["engine"]) == (0, "lmdb")


def test_a_defect_is_an_answer_and_one_line_of_the_log(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("server.api.lookups.plain_query", lambda text: 1 / 0)
    monkeypatch.setattr("server.logs.LOGGER.propagate", True)
    response = client().get("/lookup?digest=a%0Ab")
    assert code(response) == (500, "internal")
    assert "ZeroDivisionError" in caplog.text
    assert "Traceback" not in response.text


@pytest.fixture
def outages(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Callable[[], list[str]]:
    """Return the lines of the log that say why requests were answered 503."""
    monkeypatch.setattr("server.logs.LOGGER.propagate", True)
    monkeypatch.setattr("server.logs._logged", {})
    return lambda: [line for line in caplog.messages if "answered 503" in line]


def test_why_writes_are_answered_503_is_logged_once_a_minute(
    client: Client, monkeypatch: pytest.MonkeyPatch, outages: Callable[[], list[str]]
) -> None:
    """On a full disk lookups work, so nothing else would tell the operator."""

    def full(*_: object, **__: object) -> None:
        raise IndexUnavailable("crawls.mdb cannot be opened: No space left on device")

    monkeypatch.setattr("server.worker_crawls.Crawls.write", full)
    now = [0.0]
    monkeypatch.setattr("server.logs.time.monotonic", lambda: now[0])
    web = client()
    for second in (0, 30, 61, 62):
        now[0] = second
        assert code(web.post("/crawls", data={"name": "a"})) == (503, "index_unavailable")
    why = "crawls.mdb cannot be opened: No space left on device"
    assert outages() == [f"POST /crawls answered 503 index_unavailable: {why}"] * 2


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
def test_why_lookups_of_a_batch_are_answered_503_is_logged(
    client: Client, monkeypatch: pytest.MonkeyPatch, outages: Callable[[], list[str]], kind: str
) -> None:
    def damaged(*_: object, **__: object) -> None:
        raise Damaged("an entry has lost bytes")

    monkeypatch.setattr("server.api.lookup_batch.decide.decide", damaged)
    lookups = [{"digest": str(sha1(1)), "url": "http://a.example/", "as_of": "2026"}] * 2
    whole = json.dumps({"lookups": lookups})
    body = whole if kind == "application/json" else "\n".join(map(json.dumps, lookups))
    client().post("/lookup", data=body, content_type=kind)
    assert outages() == ["POST /lookup answered 503 damaged: an entry has lost bytes"]


@pytest.mark.parametrize("url", ["é", "中", "http://a.example/%e9é"])
def test_a_query_string_is_ascii(client: Client, url: str) -> None:
    environ = EnvironBuilder("/lookup").get_environ()
    web = client([capture(1, PAGE)])
    environ["QUERY_STRING"] = f"digest={sha1(1)}&url={url}"  # decoded, as the server gives it
    body, status, _ = run_wsgi_app(web.application, environ)
    assert status == "400 Bad Request" and b'"bad_query"' in b"".join(body)


@pytest.mark.parametrize("url", [["x"], 5, {}, True, None, ""])
@pytest.mark.parametrize("number", [1, 2])
def test_a_url_that_is_not_utf_8(client: Client, url: object, number: int) -> None:
    web = client([capture(1, PAGE)])
    batch = web.post("/lookup", json={"lookups": [{"digest": str(sha1(number)), "url": url}]})
    (answer,) = batch.get_json()["answers"]
    assert ("error" in answer) is (url not in (None, ""))


def test_metrics_of_lookups(client: Client) -> None:
    web = client([capture(1, PAGE)])
    for _ in range(3):
        ask(web, digest=str(sha1(1)), url=PAGE)
    ask(web, digest="hello")
    web.post("/lookup", json={"lookups": [{"digest": str(sha1(5)), "url": "u"}] * 4})
    text = web.get("/metrics").text
    for line in (
        'dedupindex_lookups_total{match="exact_url",strategy="DIGEST_ANY"} 3.0',
        'dedupindex_lookups_total{match="none",strategy="DIGEST_ANY"} 4.0',
        'dedupindex_errors_total{code="bad_digest"} 1.0',
        'dedupindex_request_seconds_count{kind="single"} 3.0',
        'dedupindex_request_seconds_count{kind="batch"} 1.0',
        "dedupindex_index_captures 1.0",
    ):
        assert line in text


QUERY = b"http://example.com/%41?a=b&c=d+e%20f#%"
ODD_PATHS = (b"\xff", b"\xc3\xa9", b"%2F", b"?x=%253A")
ODD = [
    capture(1, PAGE),
    capture(2, COUSIN),
    capture(2, PAGE, day=2),
    capture(2, QUERY, day=3),
    capture(2, b"http://example.com/\xc3\xa9", day=4),
    capture(3, PAGE, status=203),
    capture(4, PAGE, evidence=Evidence.ROW, size=-1, record_id=b"", container="", offset=-1),
    capture(5, PAGE, size_of_record=True, mime=b"x/odd", evidence=Evidence.NAMED),
    capture(6, PAGE, date=b"2026-11-01T09:14:17.123Z", mime=b""),
    capture(7, PAGE)._replace(spelling=Spelling(2, 2)),
    capture(8, PAGE)._replace(spelling=Spelling(1, 2)),
    capture(9, b"http://example.com/\xff", container="/\udcff.warc"),
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(40))
@given(
    st.lists(
        st.tuples(
            st.integers(0, 10).map(sha1),
            st.sampled_from([Spelling(1, 0), Spelling(1, 2), Spelling(2, 0), Spelling(0, 3)]),
            st.sampled_from(
                [b"", PAGE, COUSIN, QUERY, *map(b"http://example.com/%b".__mod__, ODD_PATHS)]
            )
            | st.just(b"<" + PAGE + b">"),
            st.sampled_from(["", *("DIGEST_ANY", "EXACT_URL", "URL_CANONICAL")]),
            st.sampled_from(["", ":/", ":/?="]),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_fast_answers_equal_those_of_the_library(
    made: tuple[FlaskClient, FlaskClient], asked: list[tuple[Digest, Spelling, bytes, str, str]]
) -> None:
    """The hot layer, Flask's route, a batch, and the library with nothing quick about it."""
    hot, slow = made
    for digest, spelling, url, strategy, safe in asked:
        given = {"digest": digest.spelled(spelling), "url": url, "strategy": strategy}
        given = {name: value for name, value in given.items() if value}
        expected = ask(slow, **given)
        answer = ask(hot, safe, **given)
        assert (answer.status_code, answer.data) == (expected.status_code, expected.data)
        if b"\xff" in url:
            continue
        one = {name: v.decode() if isinstance(v, bytes) else v for name, v in given.items()}
        batch = hot.post("/lookup", json={"lookups": [one]})
        assert batch.data == b'{"answers":[' + expected.data + b"]}"


def test_the_fast_path_answers_a_digest_of_many_urls(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [b"http://%c.example/logo" % letter for letter in b"abcdefghi"]  # more than `FEW`
    web = client([capture(1, url) for url in urls])
    monkeypatch.setattr("dedupindex.lookup.decide.decide", lambda *asked: 1 / 0)
    for url in urls:
        for safe, more in (("", {}), (":", {"strategy": "EXACT_URL"}), (":/", {})):
            found = ask(web, safe, digest=str(sha1(1)), url=url, **more).get_json()
            assert found["match"] == "exact_url" and found["original"]["url"] == url.decode()
    assert ask(web, digest=str(sha1(2)), url=PAGE).get_json() == {"duplicate": False}
    other = ask(web, digest=str(sha1(1)), url=PAGE)
    assert code(other) == (500, "internal")  # which shows that only this went the long way


@pytest.fixture
def made(make_index: MakeIndex) -> tuple[FlaskClient, FlaskClient]:
    """The same index twice: as it is, and asked the long way only, through Flask."""
    index = make_index(ODD)
    quick, slow = LiveIndex(index), LiveIndex(make_index(ODD))
    quick.refresh()
    slow.refresh()
    opened = slow.opened()
    assert opened.plain is not None
    slow._opened = opened._replace(plain=None)
    return (
        create_app(Config(index), quick).test_client(),
        create_app(Config(index), slow, hot=False).test_client(),
    )


def test_the_openapi_document_names_every_route_parameter_and_status() -> None:
    content = document()
    for route in ROUTES:
        assert route.method.lower() in content["paths"][route.path]
    assert set(content["components"]["schemas"]["Lookup"]["properties"]) == set(PARAMETERS)
    statuses = {
        int(status)
        for methods in content["paths"].values()
        for operation in methods.values()
        for status in operation["responses"]
    }
    assert {status for status, _ in ERRORS.values()} - statuses == {405, 500}


def test_the_application_answers_every_route(made: tuple[FlaskClient, FlaskClient]) -> None:
    """Also one of a class of views that is new."""
    rules = {(one.endpoint, method) for one in made[1].application.url_map.iter_rules()
             for method in one.methods or ()}  # fmt: skip
    assert {(one.name, one.method) for one in ROUTES} <= rules


def test_the_docs_have_the_tables_of_the_code() -> None:
    text = DOCS.read_text()
    found = re.findall(r"^\| (\d{3}) \| `([a-z_]+)` \| (.*) \|$", text, re.MULTILINE)
    assert {name: (int(status), meaning) for status, name, meaning in found} == ERRORS
    for name in PARAMETERS:
        assert re.search(rf"^\| `{name}` \|", text, re.MULTILINE), name
    for route in ROUTES:
        assert f"`{route.method} {route.path}`" in text


def test_a_short_answer_is_sent_in_one_piece(make_index: MakeIndex) -> None:
    """In two pieces it would wait for the client's acknowledgement of the first."""
    index = make_index([])
    live = LiveIndex(index)
    live.refresh()
    app = create_app(Config(index), live)
    for path in ("/health", "/crawls", "/nowhere"):
        environ = EnvironBuilder(path).get_environ()
        assert type(app.wsgi_app(environ, lambda *given: None)) is list, path  # type: ignore[arg-type]
