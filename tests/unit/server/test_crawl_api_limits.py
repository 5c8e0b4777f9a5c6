"""What crawls over HTTP may cost others, what is left when they break off, and what is logged."""

from __future__ import annotations

import errno
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from flask.testing import FlaskClient
from werkzeug.test import EnvironBuilder, TestResponse

from dedupindex.crawls import merge_crawls
from dedupindex.errors import IndexUnavailable
from dedupindex.index import tokens
from dedupindex.index.identity import Settings
from dedupindex.index.tokens import Role
from server import services
from server import worker_crawls as server_crawls
from server.api import request_body
from server.api.request_body import BodySlots
from server.app import create_app
from server.config import LINES_BODIES, MAX_SPOOLED, Config
from server.live_index import LiveIndex
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1
from tests.unit.server.test_crawl_api import PAGE, begin, error, report
from tests.unit.server.test_tokens import bearer

LINES = "application/x-ndjson"
RECORD = {"id": "B" * 32, "uri": PAGE, "date": 20200102030405}
WRITES: list[tuple[str, str, Any]] = [
    ("POST", "/crawls", {"name": "a"}),
    ("POST", "/crawls/a/commit", {"exit": "x"}),
    ("POST", "/crawls/a/cancel", {"exit": "x"}),
    ("POST", "/captures", {"crawl": "a", **report()}),
    ("POST", "/claims", {"crawl": "a", "digest": str(sha1(1))}),
    ("DELETE", "/claims", {"digest": str(sha1(1)), "token": "0" * 32}),
    ("POST", "/api/records", [RECORD]),
]


class Broken(io.RawIOBase):
    """Lines of captures, and then a connection that breaks."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces, self.at = list(pieces), 0

    def read(self, size: int = -1) -> bytes:
        if not self.pieces:
            raise OSError("the connection broke")
        return self.pieces.pop(0)

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = 1000 if whence else offset  # the test client measures it
        return self.at

    def tell(self) -> int:
        return self.at


@pytest.fixture
def index(make_index: MakeIndex) -> Path:
    return make_index([capture(90)], Settings(by_url=True))


@pytest.fixture
def live(index: Path) -> LiveIndex:
    found = LiveIndex(index)
    found.refresh()
    return found


@pytest.fixture
def web(live: LiveIndex) -> FlaskClient:
    return served(live)


def served(live: LiveIndex, **how: Any) -> FlaskClient:
    return create_app(Config(live.index, **how), live).test_client()


@pytest.fixture
def audits(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """The lines that writes leave, as they come."""
    found: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("audit"):
                found.append(record.getMessage())

    logger, kept = logging.getLogger("dedupindex.server"), Kept()
    logger.addHandler(kept)
    with caplog.at_level(logging.INFO, "dedupindex.server"):
        yield found
    logger.removeHandler(kept)


def batch(count: int) -> dict[str, Any]:
    return {"crawl": "a", "captures": [report(number) for number in range(count)]}


def test_a_batch_of_captures_is_limited_and_written_in_chunks(
    live: LiveIndex, monkeypatch: pytest.MonkeyPatch, audits: list[str]
) -> None:
    web = served(live, max_batch=2500)
    begin(web)
    assert error(web.post("/captures", json=batch(2501))) == (413, "too_large")
    assert web.get("/crawls/a").get_json()["captures"] == 0
    write, sizes = server_crawls.Crawls.write, list[int]()

    def failing(self: Any, change: Any, **how: Any) -> Any:
        if len(sizes) == 2:
            raise IndexUnavailable("no space left on device")
        done = write(self, change, **how)
        sizes.append(len(done.results))
        return done

    with monkeypatch.context() as patched:
        patched.setattr(server_crawls.Crawls, "write", failing)
        assert error(web.post("/captures", json=batch(2500))) == (503, "index_unavailable")
    assert sizes == [1000, 1000] and web.get("/crawls/a").get_json()["captures"] == 2000
    assert audits[-1].endswith("crawl=a added=2000 unchanged=0 bad=0 broken_off=True")
    done = web.post("/captures", json=batch(2500)).get_json()
    assert (done["added"], done["unchanged"], len(done["results"])) == (500, 2000, 2500)


def test_an_empty_batch_still_needs_a_crawl(web: FlaskClient) -> None:
    assert error(web.post("/captures?crawl=a", json={"captures": []})) == (404, "unknown_crawl")
    begin(web)
    assert web.post("/captures?crawl=a", json={"captures": []}).get_json()["added"] == 0


def send_lines(web: FlaskClient, lines: bytes, length: int) -> TestResponse:
    return web.post(
        "/captures?crawl=a",
        input_stream=io.BytesIO(lines),
        content_type=LINES,
        environ_overrides={"CONTENT_LENGTH": str(length)},
    )


def test_nothing_is_written_of_truncated_lines(
    live: LiveIndex, web: FlaskClient, audits: list[str]
) -> None:
    """Whether they are held in memory, or in a file because a JSON body may not be as large."""
    begin(web)
    lines = b"".join(orjson.dumps(report(number)) + b"\n" for number in range(1000))
    files = sorted(live.index.iterdir())
    for most in (len(lines) + 1, len(lines), len(lines) // LINES_BODIES + 1):
        server = served(live, max_body=most)
        for cut in (1, 2, len(lines) // 2, len(lines) - 1):
            answer = send_lines(server, lines[:-cut], len(lines))
            assert answer.status_code == 400 and f"{cut} bytes early" in answer.text
            assert web.get("/crawls/a").get_json()["captures"] == 0
    assert [line for line in audits if "/captures" in line] == []
    assert send_lines(server, lines, len(lines)).get_json()["added"] == 1000
    assert sorted(live.index.iterdir()) == files


def test_the_size_of_lines_is_limited(live: LiveIndex, web: FlaskClient) -> None:
    begin(web)
    line = orjson.dumps(report()) + b"\n"
    server = served(live, max_body=len(line))
    most = LINES_BODIES * len(line)
    assert error(send_lines(server, b"", most + 1)) == (413, "too_large")
    lines = line * LINES_BODIES
    assert send_lines(server, lines, most).get_json()["unchanged"] == LINES_BODIES - 1


@pytest.mark.parametrize("failing", ["opened", "written", "flushed"])
def test_nothing_is_written_of_lines_that_the_disk_refuses(
    live: LiveIndex, web: FlaskClient, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """/dev/full is a disk without any room; what is short of the buffer is refused at its end."""
    begin(web)
    count = 10 if failing == "flushed" else 1000
    lines = b"".join(orjson.dumps(report(number)) + b"\n" for number in range(count))

    def full(dir: Path) -> Any:
        if failing == "opened":
            raise OSError(errno.ENOSPC, "no space left on device")
        return open("/dev/full", "r+b", buffering=1 << 16 if failing == "flushed" else -1)

    server = served(live, max_body=len(lines) - 1)
    with monkeypatch.context() as patched:
        patched.setattr(request_body, "TemporaryFile", full)
        for _ in range(MAX_SPOOLED + 1):  # each makes room for the next
            answer = send_lines(server, lines, len(lines))
            assert error(answer) == (503, "index_unavailable") and "nothing" in answer.text
    assert web.get("/crawls/a").get_json()["captures"] == 0
    assert send_lines(server, lines, len(lines)).get_json()["added"] == count


def test_the_number_of_bodies_in_files_is_limited(
    live: LiveIndex, web: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(web)
    lines = b"".join(orjson.dumps(report(number)) + b"\n" for number in range(10))
    monkeypatch.setattr(request_body, "MAX_SPOOLED", 0)
    server = served(live, max_body=len(lines) - 1)
    assert error(send_lines(server, lines, len(lines))) == (503, "overloaded")
    assert send_lines(server, lines[:-1], len(lines) - 1).get_json()["added"] == 10


def test_the_audit_of_interrupted_lines_counts_what_was_written(
    live: LiveIndex, web: FlaskClient, monkeypatch: pytest.MonkeyPatch, audits: list[str]
) -> None:
    begin(web)
    lines = b"".join(orjson.dumps(report(number)) + b"\n" for number in range(1000))
    write, done = server_crawls.Crawls.write, list[int]()

    def failing(self: Any, change: Any, **how: Any) -> Any:
        if done:
            raise IndexUnavailable("no space left on device")
        done.append(len((result := write(self, change, **how)).results))
        return result

    monkeypatch.setattr(server_crawls.Crawls, "write", failing)
    assert error(send_lines(web, lines, len(lines))) == (503, "index_unavailable")
    assert 0 < done[0] < 1000 and web.get("/crawls/a").get_json()["captures"] == done[0]
    assert audits[-1].endswith(f"crawl=a added={done[0]} unchanged=0 bad=0 broken_off=True")


def test_the_audit_of_every_write_names_its_crawl(web: FlaskClient, audits: list[str]) -> None:
    begin(web)
    web.post("/captures", json={"crawl": "a", **report()})
    web.post("/claims", json={"crawl": "a", "digest": str(sha1(2))})
    web.post("/api/records", json=[RECORD])
    unfit = [report(3, status=""), report(4, status=404), report(5, url="ftp://a.example/"), {}]
    web.post("/captures", json={"crawl": "a", "captures": unfit})
    web.post("/captures", json={"crawl": "a", **report(), "revisit": "identical-payload-digest"})
    assert [line.partition("token=- ")[2] for line in audits[1:]] == [
        "POST /captures crawl=a added=1 unchanged=0 bad=0",
        "POST /claims crawl=a duplicate=False claimed=True",
        "POST /api/records crawl=doppelganger added=1 unchanged=0",
        "POST /captures crawl=a added=0 unchanged=0 bad=1 refused=status:2,not-http:1",
        "POST /captures crawl=a added=0 unchanged=0 revisits=1 bad=0",
    ]


@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded", LINES])
@pytest.mark.parametrize(("method", "path", "body"), WRITES)
def test_all_kinds_of_bodies_share_the_slots(
    live: LiveIndex, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: Any, kind: str
) -> None:
    monkeypatch.setattr(services, "BodySlots", lambda: BodySlots(0))
    web = served(live)
    response = web.open(path, method=method, data=orjson.dumps(body), content_type=kind)
    assert error(response) == (503, "overloaded") and response.headers["Retry-After"]
    for lookup_kind in ("application/json", LINES):
        response = web.post("/lookup", data=b"{}", content_type=lookup_kind)
        assert error(response) == (503, "overloaded")
    assert web.get(f"/lookup?digest={sha1(90)}").status_code == 200


def test_a_slot_is_released_however_its_body_ends(
    live: LiveIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "BodySlots", lambda: BodySlots(1))
    web = served(live)
    begin(web)
    for body in (b"{", orjson.dumps(report())):
        for kind in ("application/json", LINES):
            for path in ("/captures?crawl=a", "/captures?crawl=b", "/lookup", "/lookup?min_size=x"):
                assert web.post(path, data=body, content_type=kind).status_code != 503


def test_a_slot_is_released_if_the_answer_is_not_read(
    live: LiveIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "BodySlots", lambda: BodySlots(1))
    application = create_app(Config(live.index), live)
    question = EnvironBuilder("/lookup", method="POST", data=b"{}\n", content_type=LINES)
    said = list[str]()

    def start(status: str, *rest: Any) -> Any:
        said.append(status)

    for _ in range(2):
        answer: Any = application.wsgi_app(question.get_environ(), start)
        answer.close()
    assert said == ["200 OK"] * 2


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
def test_no_body_is_read_without_permission_to_write(
    live: LiveIndex, method: str, path: str, body: Any
) -> None:
    reader = tokens.add(live.index, "reader", Role.READ)
    other = tokens.add(live.index, "other", Role.WRITE, "b*")
    web = served(live)
    for headers, expected in (({}, 401), (bearer(reader), 403)):
        response = web.open(
            path,
            method=method,
            input_stream=Broken(),
            content_type="application/json",
            headers=headers,
        )
        assert response.status_code == expected
    response = web.open(path, method=method, json=body, headers=bearer(other))
    assert response.status_code == (403 if method == "POST" else 404)  # no crawl was begun yet


def test_claims_can_be_repeated_and_end_with_their_crawl(web: FlaskClient) -> None:
    begin(web, "a")
    begin(web, "b")

    def claim(crawl: str, number: int = 1, **more: Any) -> Any:
        return web.post("/claims", json={"crawl": crawl, "digest": str(sha1(number)), **more})

    token = "0123456789abcdefABCDEF0123456789"
    first = claim("a", token=token).get_json()
    assert first["claimed"] and first["token"] == token.lower()
    assert claim("a", token=token).get_json() == first
    for crawl, other in (("b", token), ("a", "1" * 32), ("a", ""), ("b", "")):
        held = claim(crawl, token=other).get_json()
        assert held == {"duplicate": False, "claimed": False, "until": first["until"]}
    for bad in ("1" * 31, "g" * 32, "1" * 33, "1" * 32 + "\n", 5):
        assert error(claim("a", token=bad)) == (400, "bad_query")
    freed = web.delete("/claims", json={"digest": str(sha1(1)), "token": "é"})
    assert freed.get_json() == {"released": False}
    assert web.post("/crawls/a/cancel").status_code == 200
    assert error(claim("a", token=token)) == error(claim("a", 90)) == (409, "crawl_ended")
    assert claim("b").get_json()["claimed"]
    web.post("/crawls/b/commit")
    begin(web, "c")
    mine = claim("c", token=token).get_json()
    freed = web.delete("/claims", json={"digest": str(sha1(1)), "token": token})
    assert mine["claimed"] and freed.get_json() == {"released": True}


@pytest.mark.parametrize("kind", ["single", "json", "lines"])
def test_a_merge_during_a_lookup_hides_no_captures(
    live: LiveIndex, web: FlaskClient, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    begin(web)
    web.post("/captures?crawl=a", json=report())
    web.post("/crawls/a/commit")
    engine = live.opened().engine
    view, merged = engine.view, list[bool]()

    @contextmanager
    def overtaken() -> Iterator[Any]:
        """Of the index as it was just before the merge; the crawls are swept at once."""
        with view() as base:
            if not merged:
                merged.append(True)
                store = live.crawls.store()
                assert store is not None
                with store.writing() as writing:
                    crawl = writing.crawl("a")
                merge_crawls.drop_all(store, crawl)
            yield base

    monkeypatch.setattr(engine, "view", overtaken)
    questions = [{"digest": str(sha1(1)), "url": PAGE}] * 2 + [{"digest": str(sha1(1))}]
    if kind == "single":
        query = {**questions[0], "explain": "1"}  # which no fast path answers
        answers = [web.get("/lookup", query_string=query).get_json()]
    elif kind == "json":
        answers = web.post("/lookup", json={"lookups": questions}).get_json()["answers"]
    else:
        body = b"".join(orjson.dumps(one) + b"\n" for one in questions)
        text = web.post("/lookup", data=body, content_type=LINES).data
        answers = [orjson.loads(line) for line in text.splitlines()]
    assert merged and answers and all(answer["duplicate"] for answer in answers)
    # The next one sees that they are gone: in truth they are in the index by then.
    answers = web.post("/lookup", json={"lookups": questions}).get_json()["answers"]
    assert [one["duplicate"] for one in answers] == [False] * 3


def test_batches_see_changes_of_crawls(web: FlaskClient) -> None:
    question = {"lookups": [{"digest": str(sha1(1)), "url": PAGE}]}

    def known(**more: str) -> bool:
        answer = web.post("/lookup", json={**question, **more}).get_json()["answers"][0]
        return bool(answer.get("duplicate", "error"))

    assert not known()
    begin(web)
    web.post("/captures?crawl=a", json=report())
    assert not known() and known(crawl="a")
    web.post("/crawls/a/commit")
    assert known()


def test_lookups_by_url_count_as_lookups_of_the_crawl(web: FlaskClient) -> None:
    begin(web)
    assert web.get(f"/cdx?url={PAGE}&crawl=a").status_code == 200
    shown = web.post("/crawls/a/commit").get_json()
    assert shown["lookups"] == 1 and shown["warning"] is None


def test_records_are_not_stored_in_a_private_crawl(web: FlaskClient) -> None:
    begin(web, "doppelganger")
    assert web.post("/api/records", json=[RECORD]).status_code == 201
    assert web.get(f"/api/records/{RECORD['id']}").get_json() == RECORD
    assert web.get("/crawls/doppelganger").get_json()["captures"] == 0
    assert web.get("/crawls/doppelganger-2").get_json()["seen_by"] == "all"


def test_a_crawl_that_is_ended_under_the_name_of_its_job_is_named(web: FlaskClient) -> None:
    """Heritrix adds the launch to the name of a job; beginning another crawl would not help."""
    for launch in (1, 2, 3):
        begin(web, f"killed-2026113019100{launch}")
    web.post("/crawls/killed-20261130191003/commit")
    meant = (
        "there is no crawl 'killed': did you mean killed-20261130191002 (open), "
        "killed-20261130191001 (open), killed-20261130191003 (committed)?"
    )
    for step, content in (("commit", {"exit": "killed"}), ("cancel", {}), ("counts", {})):
        answer = web.post(f"/crawls/killed/{step}", json=content)
        assert error(answer) == (404, "unknown_crawl")
        assert answer.get_json()["error"]["message"] == meant
        assert "begin it with POST" in web.post(f"/crawls/other/{step}", json=content).text
