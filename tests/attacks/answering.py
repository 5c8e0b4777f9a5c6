"""The answers of an index to many requests, made in a child process that may crash.

As a program it reads ``{"index": …}`` lines, forks, and prints the answers that the child got, from
the second line on only those that changed: ``{"answers": …}``; or ``{"signal": …}`` if the child
died, because a flipped bit may make LMDB read beyond a page.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import traceback
from contextlib import ExitStack, closing, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from werkzeug.test import EnvironBuilder, run_wsgi_app

from dedupindex.cli.maintenance import read_back
from dedupindex.crawls.combined_view import CrawlSnapshot
from dedupindex.crawls.crawl_captures import of_crawl
from dedupindex.crawls.stores import open_store
from dedupindex.errors import DedupError
from dedupindex.index import open_index
from dedupindex.index.engines.whoosh.whoosh_engine import WhooshEngine
from dedupindex.lookup import decide
from dedupindex.lookup.decide import Query, Strategy
from dedupindex.lookup.render_json import original_as_json
from dedupindex.post_crawl.purge.remove import impact_as_json, survey
from dedupindex.post_crawl.purge.target import Target, TargetKind
from dedupindex.urlkey import urlkey
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.support.captures import sha1

DEADLINE = 120  # seconds that all answers may take: more is a hang
URLS = [f"http://example.com/{name}/{'x' * length}" for name in "abcd" for length in (1, 30, 90)]
HOSTS = [
    "https://www.Example.com/a/x",
    "http://bad.org/?q=Ä",
]  # the first has the urlkey of another
NUMBERS = range(30)
_CRAWLS = ("done", "going")
_PATHS = [
    "/stats", "/crawls", "/crawls/done", "/crawls/going",
    *(f"/crawls/{name}/report" for name in _CRAWLS),
    *(f"/crawls/{name}/report?by={by}" for name in _CRAWLS for by in ("host", "mime", "hour")),
]  # fmt: skip


def url_of(number: int) -> str:
    """The URL of a capture."""
    known = [*URLS, *HOSTS]
    return known[number % len(known)]


def http_requests() -> dict[str, dict[str, Any]]:
    """HTTP requests: the name and the WSGI environment of each."""
    requests: dict[str, dict[str, Any]] = {}
    lookups = []
    for number in NUMBERS:
        for url in (url_of(number), url_of(number + 1)):
            query = f"digest={sha1(number)}&url={quote(url, safe='')}"
            lookups.append({"digest": str(sha1(number)), "url": url})
            requests[f"GET /lookup?{query}"] = {}
        requests[f"GET /lookup?{query}&crawl=going"] = {}
        requests[f"GET /lookup?digest={sha1(number)}&explain=1"] = {}
    for crawl in ("", "going"):
        requests[f"POST /lookup?crawl={crawl}"] = {"json": {"lookups": lookups}}
    for url in (*URLS, *HOSTS):
        requests[f"GET /cdx?url={quote(url, safe='')}"] = {}
    for path in _PATHS:
        requests[f"GET {path}"] = {}
    return {name: _environ(name, **options) for name, options in requests.items()}


def _environ(name: str, **given: Any) -> dict[str, Any]:
    method, _, target = name.partition(" ")
    path, _, query = target.partition("?")
    return EnvironBuilder(path, method=method, query_string=query, **given).get_environ()


def _response(environ: dict[str, Any], app: Any) -> Any:
    """Return status and content of an answer."""
    if "wsgi.input" in environ:
        environ["wsgi.input"].seek(0)
    chunks, status, _ = run_wsgi_app(app, environ.copy())
    body = b"".join(chunks)
    try:
        return [int(status[:3]), json.loads(body)]
    except ValueError:
        return [int(status[:3]), body.decode("utf-8", "replace").splitlines()]


@cache
def _app(index: Path) -> tuple[LiveIndex, Any]:
    """The application; nothing is open yet."""
    live = LiveIndex(index)
    return live, create_app(Config(index), live).wsgi_app


def _http_answers(index: Path, requests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    live, app = _app(index)
    live.refresh()
    answers = {name: _response(environ, app) for name, environ in requests.items()}
    with suppress(DedupError):
        live.opened().engine.close()  # LMDB wants a file open once in a process
        if (store := live.crawls.store()) is not None:
            store.close()
    return answers


def _library_answers(index: Path) -> dict[str, Any]:
    """Return the answers to lookups as ``bin/lookup`` makes them."""
    with ExitStack() as stack:
        store = open_store(index)
        assert store is not None
        stack.enter_context(closing(store))
        reading = stack.enter_context(store.reading())
        engine = stack.enter_context(closing(open_index(index)))
        view, settings = stack.enter_context(engine.view()), engine.identity.settings
        return _decisions(CrawlSnapshot(reading).view_for(view, settings.keys(), "going"), settings)


def _decisions(view: Any, settings: Any) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for number in NUMBERS:
        for strategy in (Strategy.DIGEST_ANY, Strategy.EXACT_URL):
            query = Query(sha1(number), url_of(number).encode(), strategy)
            name = f"{strategy.value} {number}"
            answers[name] = _answer_or_error(
                lambda q=query: decide.as_json(decide.decide(view, settings, q))
            )
    return answers


def _answer_or_error(ask: Any) -> Any:
    """The answer, or the code of the error."""
    try:
        return [200, ask()]
    except DedupError as error:
        return [error.http_status, {"error": {"code": error.code}}]


def _impact_answer(index: Path) -> Any:
    def ask() -> Any:
        found = survey(index, Target(TargetKind.CONTAINER, ("/warcs/1.warc.gz",)))
        return json.loads(json.dumps(impact_as_json(found)))

    return _answer_or_error(ask)


def _check_answer(index: Path) -> Any:
    def ask() -> Any:
        return read_back(index)[0]

    return _answer_or_error(ask)


def answers(index: Path, requests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """All answers of an index."""
    found = _http_answers(index, requests)
    try:
        found |= _library_answers(index)
    except DedupError as error:
        found["library"] = [error.http_status, {"error": {"code": error.code}}]
    found["impact"] = _impact_answer(index)
    found["check"] = _check_answer(index)
    return found


def stored_originals(index: Path) -> list[dict[str, Any]]:
    """Return all originals that an index and its crawls hold, as in answers."""
    with ExitStack() as stack:
        store = open_store(index)
        assert store is not None
        stack.enter_context(closing(store))
        reading = stack.enter_context(store.reading())
        engine = stack.enter_context(closing(open_index(index)))
        view = stack.enter_context(engine.view())
        captures = [capture for _, capture in view.captures()]
        for crawl in reading.crawls():
            captures += [
                capture.capture(reading, crawl.name) for capture in of_crawl(reading, crawl)
            ]
        return [original_as_json(capture) for capture in captures]


def _in_child(
    index: Path, requests: dict[str, dict[str, Any]], before: dict[str, Any]
) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        signal.alarm(DEADLINE)
        gc.disable()  # it does not live long
        status = 1
        try:
            with os.fdopen(writing, "wb") as stream:
                found = answers(index, requests)
                changed = {
                    name: answer for name, answer in found.items() if before.get(name) != answer
                }
                stream.write(json.dumps(changed).encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    if os.WEXITSTATUS(status):
        return {"status": os.WEXITSTATUS(status)}
    return {"answers": json.loads(text)}


def main() -> None:
    """Print the answers of the index in each line, from the second on only those that changed."""
    requests, before = http_requests(), dict[str, Any]()
    urlkey(b"http://[::1]:1/")
    assert WhooshEngine
    for line in sys.stdin:
        index = Path(json.loads(line)["index"])
        _app(index)
        reply = _in_child(index, requests, before)
        before = before or reply.get("answers", {})
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
