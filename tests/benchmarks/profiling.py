"""Profiles of what crawlers ask: where the time of an answer goes, in the process of the server.

Three things are measured of the application, without HTTP: its processor time, the modules in which
a sampling timer finds it, and the bytecodes that it executes. What a bytecode takes is measured of
a loop beside it.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from io import BytesIO
from itertools import count, islice
from pathlib import Path
from types import CodeType, FrameType, MappingProxyType
from typing import Any

from tests.benchmarks.asking import ASKED, BATCH
from tests.benchmarks.captures import Captures
from tests.benchmarks.crawl_requests import (
    PORT,
    REPORT,
    TEXT,
    begin_crawls,
    crawl_lookups,
    own_index,
)
from tests.benchmarks.load import batches, paths, serving
from tests.benchmarks.measure import ROOT, Failed
from tests.benchmarks.suite import Bench, Line
from tests.benchmarks.writing import reports

LEAST = 0.05  # seconds of processor time: some systems count it by their clock's ticks
INTERVAL = 0.001  # seconds of processor time between two samples
COUNTED = 200  # requests whose bytecodes are counted, which takes a hundred times as long
SHOWN = 6  # modules of a profile
Request = dict[str, Any]  # a WSGI environment
Answering = Callable[[Request], None]
Passes = Callable[[int], Iterator[Request]]  # the requests of a pass, by its number


def profile(bench: Bench) -> Iterator[Line]:
    """Where a lookup and a report spend their time, in the process; no load from outside."""
    index, served, asked = own_index(bench), bench.size.served, bench.size.client
    with serving(bench, index) as server:
        begin_crawls(server, range(1), served)
    rows = Captures().sample(served, ASKED)

    def new(number: int) -> Iterator[Request]:
        first = served + (1 + number) * ASKED  # captures that nobody else reports
        captures = Captures().rows(first, first + asked)
        return map(_posted, reports("crawl-0", captures, REPORT))

    def same(requests: Iterator[Request]) -> Passes:
        kept = list(islice(requests, asked))
        return lambda _: iter(kept)

    kinds: dict[str, tuple[int, Passes]] = {
        "crawl-lookup": (1, same(_gets(crawl_lookups(served, 1), TEXT))),
        "ports": (1, same(_gets(crawl_lookups(served, 1, PORT), TEXT))),
        "json": (1, same(_gets(paths(rows)))),
        "batch": (BATCH, same(_post("/lookup", body) for body in batches(rows, BATCH))),
        "report": (REPORT, new),
    }
    with _application(index) as answer:
        for name, (each, passes) in kinds.items():
            yield _profiled(bench, name, each, passes, answer)


def _profiled(bench: Bench, name: str, each: int, passes: Passes, answer: Answering) -> Line:
    """Return the processor time of one of the `each` lookups or captures of a request."""
    _run(answer, passes(0))  # fills caches
    codes, calls, counted = _executed(answer, islice(passes(1), max(COUNTED // each, 1)))
    found: Counter[str] = Counter()
    requests = list(passes(2))
    with _sampled(found):  # apart, as a signal each millisecond takes a little time
        _run(answer, requests)
    spent = []
    numbers = count(3)
    for _ in range(bench.runs):
        took, answered = 0.0, 0
        while took < LEAST:
            requests = list(passes(next(numbers)))
            began = time.process_time()
            _run(answer, requests)
            took += time.process_time() - began
            answered += len(requests)
        spent.append(took / answered / each * 1e6)
    total = found.total() or 1
    shares = ", ".join(f"{module} {n / total:.0%}" for module, n in found.most_common(SHOWN))
    note = (
        f"{codes / counted / each:,.0f} bytecodes at {_bytecode():.4f} us in a bare loop, "
        f"{calls / counted / each:,.0f} calls of C functions; {shares}"
    )
    return Line(f"profile-{name}", "us each", min(spent), note=note)


def _run(answer: Answering, requests: Iterable[Request]) -> None:
    for request in requests:
        answer(request)


def _executed(answer: Answering, requests: Iterable[Request]) -> tuple[int, int, int]:
    """Return the bytecodes that requests execute, their calls of C functions, and their number.

    A request is answered twice, the second time for the calls: no trace function sees both.
    """
    codes = calls = answered = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal codes
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        codes += event == "opcode"
        return trace

    def note_call(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "c_call"

    for request in requests:
        answered += 1
        sys.settrace(trace)
        try:
            answer(request)
        finally:
            sys.settrace(None)
        sys.setprofile(note_call)
        try:
            answer(request)
        finally:
            sys.setprofile(None)
    return codes, calls, answered


@contextmanager
def _sampled(found: Counter[str]) -> Iterator[None]:
    """Count the modules in which the main thread is, each millisecond of processor time."""
    names: dict[CodeType, str] = {}

    def sample(_: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_filename != __file__:
            code = frame.f_code
            if code not in names:
                names[code] = _module(Path(code.co_filename))
            found[names[code]] += 1

    before = signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _module(path: Path) -> str:
    if path.is_relative_to(ROOT) and ".venv" not in path.parts:
        return str(path.relative_to(ROOT))
    return path.name


def _bytecode() -> float:
    """Return the microseconds of a bytecode in a loop of additions, comparisons and lookups."""
    values = {number: number for number in range(100)}

    def loop() -> int:
        total = 0
        for number in range(100):
            if number in values:
                total = total + values[number]
        return total

    codes, _, _ = _executed(lambda _: None if loop() else None, [{}])
    times = []
    for _ in range(50):
        began = time.perf_counter()
        loop()
        times.append(time.perf_counter() - began)
    return min(times) / codes * 1e6


@contextmanager
def _application(index: Path) -> Iterator[Answering]:
    """The application of the server on an index, as a function that takes a request."""
    from server.app import create_app
    from server.config import Config
    from server.live_index import LiveIndex

    live = LiveIndex(index)
    with closing(live):
        live.refresh()
        app = create_app(Config(index), live).wsgi_app
        yield partial(_answered, app)


def _answered(app: Any, request: Request) -> None:
    environ = dict(request)
    if "body" in environ:
        environ["wsgi.input"] = BytesIO(environ["body"])
    status = ""

    def start(line: str, *_: object) -> None:
        nonlocal status
        status = line

    b"".join(app(environ, start))
    if not status.startswith("20"):
        raise Failed(f"{environ['PATH_INFO']} was answered {status}")


def _gets(
    lines: Iterator[str], headers: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Request]:
    sent = {f"HTTP_{name.upper()}": text for name, text in headers.items()}
    return (_environ("GET", line) | sent for line in lines)


def _posted(line: str) -> Request:
    """Return the request of a line of `reports`: path, size and body."""
    path, _, body = line.partition(" ")
    return _post(path, body)


def _post(path: str, body: str) -> Request:
    data = body.encode()
    more = {"CONTENT_TYPE": "application/json", "CONTENT_LENGTH": str(len(data)), "body": data}
    return _environ("POST", path) | more


def _environ(method: str, path: str) -> Request:
    path, _, query = path.partition("?")
    return {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "REMOTE_ADDR": "127.0.0.1",
        "HTTP_HOST": "127.0.0.1",
        "wsgi.url_scheme": "http",
    }
