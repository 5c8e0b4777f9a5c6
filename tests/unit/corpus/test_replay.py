"""Payloads from the replay of a Wayback Machine: times, redirects, retries, rate, resumption."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from dedupindex.corpus import Corpus
from dedupindex.corpus import replay as replay_module
from dedupindex.corpus.lineage import read_lineage
from dedupindex.errors import BadInput
from tests.support.commands import typed
from tests.support.corpora import Page, archive, html

Answer = tuple[int, dict[str, str], bytes]
SENT = "Sun, 01 Nov 2026 09:14:17 GMT"
STAMP = "20261101091417"
PAGE = html("title", "some words")


@contextmanager
def replaying(answer: Callable[[str, int], Answer]) -> Iterator[tuple[str, list[str]]]:
    """A server whose answer depends on the path and on how often it was asked for that."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            status, fields, body = answer(self.path, paths.count(self.path))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **fields}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/web/", paths
        finally:
            server.shutdown()
            thread.join()


def capture(body: bytes = PAGE, **fields: str) -> Answer:
    return 200, {"Memento-Datetime": SENT, "Content-Type": "text/html", **fields}, body


def listed(folder: Path, *urls: str) -> Path:
    """A CDX of captures whose WARC file is not there."""
    cdx = archive(folder, *(Page(url, 1, PAGE) for url in urls or ("http://a.org/",)))
    (folder / "a.warc.gz").unlink()
    return cdx


def read(cdx: Path, address: str, **settings: Any) -> list[dict[str, Any]]:
    corpus = Corpus.from_cdx(cdx).enrich("response", "html.title")
    return list(corpus.having(replay=address, rate=1e6, **settings))


def title(entry: dict[str, Any]) -> Any:
    return entry["payload"]["string"]["html"]["title"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_payloads_come_from_the_replay(tmp_path: Path, jobs: int) -> None:
    urls = ["http://a.org/", "http://a.org/x?y=1&z=%20é"]
    with replaying(lambda path, times: capture(html(path))) as (address, paths):
        first, second = read(listed(tmp_path, *urls), address, jobs=jobs)
    assert sorted(paths) == [
        f"/web/{STAMP}id_/http://a.org/", f"/web/{STAMP}id_/http://a.org/x?y=1&z=%20%C3%A9"
    ]  # fmt: skip
    assert title(first) == f"/web/{STAMP}id_/http://a.org/"
    assert first["httpStatusLine"] == "HTTP/1.1 200 OK"
    assert first["httpHeader"]["Content-Type"] == "text/html"
    assert "Memento-Datetime" not in first["httpHeader"]
    assert first["recordHeader"] == {
        "WARC-Target-URI": "http://a.org/", "WARC-Date": "2026-11-01T09:14:17Z"
    }  # fmt: skip


def test_the_header_and_coding_of_the_capture(tmp_path: Path) -> None:
    fields = {
        "X-Archive-Orig-Server": "old",
        "X-Archive-Orig-Content-Encoding": "br",
        "X-Archive-Orig-Content-Type": "text/html; charset=latin-1",
        "Server": "new",
    }
    with replaying(lambda path, times: capture(html("\xe9"), **fields)) as (address, _):
        (entry,) = read(listed(tmp_path), address)
    assert entry["httpHeader"] == {"Server": "old", "Content-Type": "text/html; charset=latin-1"}
    packed = capture(gzip.compress(PAGE), **{"Content-Encoding": "gzip"})
    with replaying(lambda path, times: packed) as (address, _):
        (entry,) = read(listed(tmp_path), address)
    assert title(entry) == "title"
    assert entry["payload"]["_"] == f"bytes(length: {len(packed[2])})"


def test_errors_that_were_captured_are_captures(tmp_path: Path) -> None:
    gone = (503, {"Memento-Datetime": SENT, "Retry-After": "100"}, b"down")
    with replaying(lambda path, times: gone) as (address, paths):
        (entry,) = read(listed(tmp_path), address)
    assert entry["httpStatusLine"].startswith("HTTP/1.1 503")
    assert len(paths) == 1
    moved = (302, {"Memento-Datetime": SENT, "Location": "http://b.org/"}, b"")
    with replaying(lambda path, times: moved) as (address, paths):
        (entry,) = read(listed(tmp_path), address)
    assert entry["httpHeader"]["Location"] == "http://b.org/"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((200, {"Memento-Datetime": "Sun, 01 Nov 2026 09:14:18 GMT"}, PAGE),
         "replays another capture, of 20261101091418"),
        ((200, {"Memento-Datetime": "yesterday"}, PAGE), "another capture, of yesterday"),
        ((302, {"Location": "/web/20200101000000id_/http://a.org/"}, b""), "has it not"),
        ((302, {"Location": f"/web/{STAMP}id_/http://a.org/"}, b""), "redirects 5 times"),
        ((404, {}, b"not found"), "the archive answers HTTP 404: not found"),
        ((200, {}, b"<form>"), "the archive answers HTTP 200"),
        (capture(b"x" * 2000), "more than 1,000 bytes"),
    ],
)  # fmt: skip
def test_what_is_not_the_capture_is_an_error(tmp_path: Path, answer: Answer, message: str) -> None:
    with replaying(lambda path, times: answer) as (address, paths):
        (entry,) = read(listed(tmp_path), address, max_record=1000)
    assert message in entry["error"]
    assert "payload" not in entry
    assert len(paths) == (5 if "5 times" in message else 1)  # it is not asked for again


def test_the_archives_redirect_to_another_spelling_is_followed(tmp_path: Path) -> None:
    def answer(path: str, times: int) -> Answer:
        if "www." not in path:
            return 302, {"Location": f"/web/{STAMP}id_/http://www.a.org/"}, b""
        return capture()

    with replaying(answer) as (address, paths):
        (entry,) = read(listed(tmp_path), address)
    assert title(entry) == "title"
    assert len(paths) == 2


def test_a_busy_archive_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(path: str, times: int) -> Answer:
        if times == 1:
            return 429, {"Retry-After": "0"}, b"slow down"
        if times == 2:
            return 200, capture()[1] | {"Content-Length": str(len(PAGE) + 1)}, PAGE  # cut
        return capture()

    monkeypatch.setattr("dedupindex.object_store.stores.pause", lambda number: None)
    with replaying(answer) as (address, paths):
        (entry,) = read(listed(tmp_path), address, jobs=1)
    assert title(entry) == "title"
    assert len(paths) == 3


def test_the_rate_is_that_of_all_processes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    clock = [100.0]

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(replay_module.time, "sleep", sleep)
    monkeypatch.setattr(replay_module.time, "monotonic", lambda: clock[0])
    source = replay_module.replay("http://rate.test/", 4.0, 2, None)
    for _ in range(2):  # readers of two chunks
        reader = replay_module.ReplayReader(source, 1)
        reader._wait()
        clock[0] += 0.1
        reader._wait()
    assert waits == pytest.approx([0, 0.4, 0.5, 0.4])


def test_a_run_that_was_stopped_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run asks only for what the first has not got."""
    monkeypatch.setenv("DEDUPINDEX_REMOTE_TRIES", "1")
    urls = [f"http://a.org/{n}" for n in range(4)]
    cdx, kept = listed(tmp_path, *urls), tmp_path / "kept"
    down = [True]

    def answer(path: str, times: int) -> Answer:
        return (503, {}, b"") if down[0] and path.endswith(("2", "3")) else capture()

    with replaying(answer) as (address, paths):
        entries = read(cdx, address, answers=kept)
        assert ["error" in entry for entry in entries] == [False, False, True, True]
        down[0] = False
        paths.clear()
        entries = read(cdx, address, answers=kept)
        assert [title(entry) for entry in entries] == ["title"] * 4
        assert sorted(path[-1] for path in paths) == ["2", "3"]
        paths.clear()
        assert read(cdx, address, answers=kept) == entries
        assert paths == []


def test_revisits_are_resolved_by_the_archive(tmp_path: Path) -> None:
    one = Page("http://a.org/", 1, PAGE)
    cdx = archive(tmp_path, Page("http://b.org/", 1, of=one))  # without its original
    with replaying(lambda path, times: capture()) as (address, _):
        (entry,) = read(cdx, address)
    assert title(entry) == "title"


def test_a_replay_on_the_command_line(tmp_path: Path) -> None:
    cdx = listed(tmp_path)
    with replaying(lambda path, times: capture()) as (address, _):
        line = ["corpus", cdx, "--replay", address, "--rate", "1000000"]
        typed(*line, "--enrich", "html.title", "-o", tmp_path / "o.jsonl", "--lineage")
        assert '"title":"title"' in (tmp_path / "o.jsonl").read_text()
        arguments = read_lineage(tmp_path / "o.jsonl")["arguments"]
        assert arguments[arguments.index("--rate") + 1] == "1000000.0"  # it is as polite again
        typed("corpus", "--again", tmp_path / "o.jsonl", "-o", tmp_path / "p.jsonl")
        assert (tmp_path / "p.jsonl").read_text().splitlines()[1:] == (
            (tmp_path / "o.jsonl").read_text().splitlines()[1:]
        )
        _, talk = typed(*line, "-o", tmp_path / "o.warc.gz", status=4)
        assert "no records byte for byte" in talk


def test_what_is_no_replay(tmp_path: Path) -> None:
    corpus = Corpus.from_cdx(listed(tmp_path))
    for settings, message in (
        ({"replay": "http://a.org/web"}, "not the address of a replay"),
        ({"replay": "s3://a/"}, "not the address of a replay"),
        ({"replay": "http://a.org/", "rate": 0}, "more than 0 times a second"),
        ({"replay": "http://a.org/", "answers": tmp_path / "none" / "x"}, "does not exist"),
        ({"replay": "http://a.org/", "answers": listed(tmp_path)}, "is not a directory"),
    ):
        with pytest.raises(BadInput, match=message):
            corpus.having(**settings)
