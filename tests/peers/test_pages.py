"""The pages in a real browser: hostile text, narrow screens, dark mode, no script, keyboard."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dedupindex.index import tokens
from dedupindex.index.tokens import Role
from dedupindex.runtime.tables import printable
from tests.conftest import MakeIndex
from tests.integration.test_server_live import Running, serving
from tests.peers.browser import Browser, axe_script, browser
from tests.peers.test_reports_in_browser import pages_of
from tests.support.captures import capture, sha1
from tests.support.purging import begin, load, revisit_of
from tests.support.verifying import write
from tests.support.warc_cases import response
from tests.unit.cli.test_cli import dedupindex
from tests.unit.server.test_pages import ALL, CDX, DOCS, HOSTILE, hostile_captures

pytestmark = pytest.mark.peer

NAME = "a<script>window.sentinel=1<!--\"'>"  # what a crawl may be called
DEADLINE = 60.0  # seconds


@pytest.fixture
def window(tmp_path: Path) -> Iterator[Browser]:
    with browser(tmp_path / "browser.log") as one:
        yield one


def hostile_warc(directory: Path) -> Path:
    """A container whose name, URLs and headers are hostile, as a crawler may have written it."""
    path = directory / "<img src=x onerror=window.sentinel=1>.warc"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/<script>window.sentinel=1</script>\r\n\r\n"
    path.write_bytes(
        b"".join(
            response(b"payload %d" % number, head=head, Target_URI=url.encode(), number=number)
            for number, url in enumerate(HOSTILE)
            if "\r\n" not in url
        )
    )
    return path


@pytest.fixture
def hostile(make_index: MakeIndex, tmp_path: Path) -> Iterator[Running]:
    """A server over an index of hostile captures, with crawls that report more of them."""
    index = make_index(hostile_captures(), ALL)
    options = shlex.split(ALL.as_options())
    dedupindex("index", "--add", *options, hostile_warc(tmp_path), index)
    dedupindex("index", "--stats", index)
    with serving(index, "--workers", "1") as server:
        post(server, "/crawls", name=NAME, seen_by="all")
        post(server, "/crawls", name="silent")
        for number, url in enumerate(HOSTILE[:6]):
            url = url.replace("\x00", "").replace("\r\n", "")
            one = {"digest": str(sha1(100 + number)), "url": url, "date": "2026-11-20T09:14:17Z"}
            more = {"status": 200, "mime": "<i>x</i>", "size": 9000, "container": url}
            post(server, f"/captures?crawl={quote(NAME)}", **one, **more)
            server.get(f"/lookup?digest={sha1(100)}&url={quote(url)}&crawl={quote(NAME)}")
        yield server


def post(server: Running, path: str, **content: Any) -> None:
    from http.client import HTTPConnection

    connection = HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE)
    body = json.dumps(content)
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    assert connection.getresponse().status == 200
    connection.close()


def at(server: Running, path: str) -> str:
    return f"http://127.0.0.1:{server.port}{path}"


def paths() -> list[str]:
    """Every page with what hostile text can come to it."""
    found = re.findall(r"`GET (/(?:pages/[a-z-]+)?)`", DOCS.read_text())  # which has every page
    for incomplete in ("/pages/crawl", "/pages/capture", "/pages/captures"):
        found.remove(incomplete)
    found += ["/pages/captures?host=x.example", f"/pages/compare?second={quote(NAME)}"]
    found += [f"/pages/content?by={by}&order=captures" for by in ("mime", "crawl", "month")]
    found += [f"/pages/crawl?name={quote(NAME)}{more}" for more in ("", "&by=mime")]
    found += [f"/pages/charts?crawl={quote(NAME)}", "/pages/host?host=x.example"]
    found.append(f"/pages/impact?kind=prefix&name={quote('http://x.example/<')}")
    for number, url in enumerate(HOSTILE):
        sent = quote(url[:2000])
        found.append(f"/pages/lookup?digest={sha1(number)}&url={sent}")
        found.append(f"/pages/lookup?url={sent}")
        found.append(f"/pages/capture?digest={sha1(number)}&url={sent}")
        of_warc = f"sha1:{hashlib.sha1(b'payload %d' % number).hexdigest()}"
        found.append(f"/pages/lookup?digest={of_warc}")
    return found


def until(condition: Callable[[], bool]) -> None:
    """Wait for the page to do something."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)  # the page renews itself by its own clock


def is_quiet(window: Browser) -> None:
    """Nothing ran that came from the web, and the browser had nothing to complain of."""
    assert window.console_messages() == []
    assert window.run("return window.sentinel === undefined && document.scripts.length === 1")


def test_text_from_crawls_is_never_executed_as_script(
    window: Browser, hostile: Running, tmp_path: Path
) -> None:
    window.open(at(hostile, "/pages/containers"))
    assert "<img src=x onerror" in window.text("tbody")
    for path in paths():
        window.open(at(hostile, path))
        is_quiet(window)
    file = tmp_path / "<img src=x onerror=window.sentinel=1>.cdx"
    file.write_bytes(CDX)
    window.open(at(hostile, "/pages/what-if"))
    window.type("#crawl", str(file))
    window.run("document.querySelector('form.form button').click()")
    until(lambda: bool(window.run("return document.querySelector('#answer') !== null")))
    assert window.run("return document.activeElement.id") == "main"
    assert "saved" in window.text("#answer") and "<img src=x" in window.text("#answer")
    is_quiet(window)


def test_no_page_is_wider_than_the_screen(window: Browser, hostile: Running) -> None:
    for width, dark in ((360, True), (320, False), (3840, True)):
        window.show(width, 640, dark=dark)
        for path in paths():
            window.open(at(hostile, path))
            assert window.width() == width, path


def _shows(window: Browser, url: str, text: str) -> bool:
    window.open(url)
    return text in window.text("body")


def test_tables_of_crawls_fit_a_desk_and_a_phone(window: Browser, make_index: MakeIndex) -> None:
    cut = "return [...document.querySelectorAll('.box')].some((b) => b.scrollWidth > b.clientWidth)"
    lines = "return document.querySelector('.state').getClientRects().length"
    with serving(make_index([capture(1)], ALL), "--workers", "1") as server:
        for name in ("weekly-20261120", "weekly-20261121"):
            post(server, "/crawls", name=name)
            server.get(f"/lookup?digest={sha1(1)}&crawl={name}&url=http%3A%2F%2Fexample.com%2Fa")
            post(server, f"/crawls/{name}/commit")
        window.show(1280)
        crawl = "/pages/crawl?name=weekly-20261120"
        until(lambda: _shows(window, at(server, crawl), "example.com"))
        for path in ("/", "/pages/crawls", crawl):
            window.open(at(server, path))
            assert window.run(cut) is False, path
            assert window.run(lines) == 1, path
        captures = "/pages/captures?host=example.com"
        window.show(360)  # a phone: the columns that matter are there without scrolling
        for path in ("/", "/pages/crawls", crawl, "/pages/live", captures):
            window.open(at(server, path))
            assert window.run(cut) is False, path
        window.open(at(server, "/pages/crawls"))  # the newest first: when each began is shown
        begun = "return [...document.querySelectorAll('tbody th')].map((one) => one.innerText)"
        assert all(re.search(r"\d{4}-\d\d-\d\d", one) for one in window.run(begun))


def test_long_names_break_within_their_tables(window: Browser, make_index: MakeIndex) -> None:
    cut = "return [...document.querySelectorAll('.box')].some((b) => b.scrollWidth > b.clientWidth)"
    height = """return [...document.querySelectorAll('tbody th bdi')]
        .find((one) => one.textContent === arguments[0]).getBoundingClientRect().height"""
    url, name, host = f"http://x.example/{'a' * 190}", "x" * 78, "images.museum.example.ac.uk"
    with serving(make_index([capture(1, url.encode())], ALL), "--workers", "1") as server:
        post(server, "/crawls", name=name)
        for one in (f"{'h' * 60}.example", host):
            of_crawl = f"crawl={name}&url={quote(f'http://{one}/')}"
            server.get(f"/lookup?digest={sha1(1)}&{of_crawl}")
        post(server, f"/crawls/{name}/counts", not_looked_up=5, not_reported=3)
        crawl = f"/pages/crawl?name={name}"
        until(lambda: _shows(window, at(server, crawl), host))
        pages = ("/pages/captures?host=x.example", "/pages/crawls", crawl, "/pages/live")
        for width in (1280, 320):
            window.show(width)
            for path in (*pages, "/pages/host", f"/pages/host?host={host}"):
                window.open(at(server, path))
                assert window.run(cut) is False, (width, path)
        wide = """return [...document.querySelectorAll('table')]
            .filter((one) => one.getBoundingClientRect().right > innerWidth)
            .map((one) => one.textContent)"""
        controls = """return [...document.querySelectorAll('nav, form, input, button')]
            .filter((one) => one.offsetHeight).map((one) => one.outerHTML)"""
        window.show(718, media="print")  # A4 with its margins
        for path in (*pages, "/", "/pages/charts", f"/pages/host?host={host}"):
            window.open(at(server, path))
            assert window.run(wide) == [] and window.run(controls) == [], path
            assert (
                window.run("return getComputedStyle(document.querySelector('.box')).overflowX")
                == "visible"
            )
        window.show(1280)
        window.open(at(server, crawl))
        assert window.run(height, host) < 30  # one line: the bar beside it takes less than a third


GAPS = """
    return [...document.querySelectorAll(".gap")].map((gap) => {
      let one = gap;
      while (getComputedStyle(one).backgroundColor === "rgba(0, 0, 0, 0)") one = one.parentElement;
      const {stroke, strokeWidth} = getComputedStyle(gap);
      return [stroke === getComputedStyle(one).backgroundColor, strokeWidth];
    })
"""


def test_parts_of_charts_have_a_gap_between_them(window: Browser, make_index: MakeIndex) -> None:
    with serving(make_index([capture(1)], ALL), "--workers", "1") as server:
        post(server, "/crawls", name="a")
        for number, host in enumerate(("example.com/a", "x.example/", "y.example/", "x.example/")):
            asked = f"digest={sha1(1 + number % 3)}&url={quote(f'http://{host}')}"
            server.get(f"/lookup?{asked}&crawl=a")
        until(lambda: _shows(window, at(server, "/pages/crawl?name=a"), "y.example"))
        for dark in (False, True):
            window.show(1280, dark=dark)
            for path in ("/", "/pages/crawl?name=a", "/pages/charts", "/pages/live"):
                window.open(at(server, path))
                found = window.run(GAPS)
                assert found and all(one == [True, "2px"] for one in found), (path, dark)


def test_every_page_is_accessible(window: Browser, hostile: Running) -> None:
    """axe-core finds nothing: names, roles, order of headings, contrast in the light and dark."""
    axe = axe_script()
    few = [path for path in paths() if "url=" not in path]
    for dark in (False, True):
        window.show(1200 if dark else 360, 900, dark=dark)
        for path in [*few, f"/pages/lookup?digest={sha1(0)}&url=x", "/pages/lookup?digest=x"]:
            window.open(at(hostile, path))
            assert window.violations(axe) == [], (path, dark)


BESIDE = """const [box, label] = [...document.querySelectorAll('#force, [for=force]')]
    .map((one) => one.getBoundingClientRect());
    return box.bottom > label.top && box.right <= label.left"""


def all_is_well(window: Browser, axe: str, name: str) -> None:
    """The page as it stands is accessible in the light and dark, and fits a phone and a desk."""
    for width, dark in ((320, True), (1280, False)):  # no colour depends on the width
        window.show(width, dark=dark)
        assert window.violations(axe) == [], (name, width, dark)
        assert window.width() == width, name
    assert window.console_messages() == [], name


def test_every_answer_is_accessible(window: Browser, tmp_path: Path) -> None:
    """Of the pages that run a command: dry run, comparison, what if, impact and removal."""
    axe, index, url = axe_script(), begin(tmp_path, settings=ALL), b"http://x.example/" + b"a" * 190
    first, later = capture(1, url, crawl="one"), capture(2, url, 2, crawl="two")
    load(index, [first, later], [revisit_of(first, b"http://y.example/", 3)])
    years = [write(tmp_path / "in" / f"{year}.warc.gz", pages_of(year)) for year in (2024, 2025)]
    (tmp_path / "in" / "damaged.warc.gz").write_bytes(years[1].read_bytes()[:-20])
    secret = tokens.add(index, "admin", Role.ADMIN)
    with serving(index, "--workers", "1", "--dry-run-dir", str(tmp_path / "in")) as server:
        window.open(at(server, "/pages/sign-in"))
        window.type("#token", secret)
        window.follow("form.form button")
        window.open(at(server, "/pages/dry-run?root=0&path="))
        assert "no-gain: the revisit would not be smaller" in window.source
        all_is_well(window, axe, "dry run")
        window.open(at(server, "/pages/compare?first=one&second=two"))
        assert window.text("#urls") == "URLs: 1"
        all_is_well(window, axe, "compare")
        window.open(at(server, "/pages/what-if"))
        window.type("#crawl", str(years[1]))
        window.run("document.querySelector('form.form button').click()")
        until(lambda: bool(window.run("return document.querySelector('#answer') !== null")))
        assert "empty: an empty body" in window.source
        all_is_well(window, axe, "what if")
        window.open(at(server, f"/pages/impact?kind=url&name={quote(url)}"))
        assert "revisits that depend on them: 1" in window.text("#answer")
        window.run("document.querySelector('details').open = true")
        all_is_well(window, axe, "impact")
        assert window.run(BESIDE)
        window.run("document.querySelector('#force').click()")
        window.follow(".danger")
        assert "Removed from the index: originals 2" in window.text(".done")
        all_is_well(window, axe, "removal")


def test_pages_do_without_script(window: Browser, make_index: MakeIndex, tmp_path: Path) -> None:
    with serving(make_index([capture(1)], ALL), "--workers", "1") as server:
        window.scripts(on=False)
        window.open(at(server, "/"))
        assert "Keep these numbers current" not in window.text("main")
        window.follow("nav a[href='/pages/lookup']")
        window.type("#digest", str(sha1(1)))
        window.type("#url", "http://example.com/a")
        window.follow("form.form button")
        assert window.text("#answer") == "A duplicate: same URL"
        file = tmp_path / "crawl.cdx"
        file.write_bytes(CDX)
        window.open(at(server, "/pages/what-if"))
        window.type("#crawl", str(file))
        window.follow("form.form button")
        assert window.text("#answer") == "crawl.cdx: 1 of 2 captures saved"


def test_numbers_renew_themselves(window: Browser, make_index: MakeIndex) -> None:
    with serving(make_index([capture(1)], ALL), "--workers", "1") as server:
        post(server, "/crawls", name="a")
        window.open(at(server, "/pages/crawls"))
        window.run("window.same = true")
        assert "begun, no lookup yet" in window.text("#crawls")
        server.get(f"/lookup?digest={sha1(1)}&crawl=a")
        until(lambda: "begun, no lookup yet" not in window.text("#crawls"))
        assert window.run("return window.same") and "renewed" in window.text(".live")
        server.process.terminate()
        server.process.wait(DEADLINE)
        until(lambda: "does not answer" in window.text(".live"))


def _lookups(window: Browser) -> str:
    return str(window.run("return document.querySelector('#now td.n').textContent"))


@pytest.fixture
def watched(window: Browser, make_index: MakeIndex) -> Iterator[Running]:
    """A server whose live page is open, with tables that are wider than their boxes."""
    with serving(make_index([capture(1)], ALL), "--workers", "1") as server:
        post(server, "/crawls", name="a")
        server.get(f"/lookup?digest={sha1(1)}&crawl=a")
        window.open(at(server, "/pages/live"))
        until(lambda: "renewed" in window.text(".live"))
        until(lambda: _lookups(window) == "1")
        narrow = "#now .box { min-width: 0; max-width: 9rem }"
        window.run("document.styleSheets[0].insertRule(arguments[0])", narrow)
        yield server


def test_a_click_into_a_table_does_not_keep_its_numbers_old(
    window: Browser, watched: Running
) -> None:
    window.run("document.querySelector('#now .box').focus()")  # as a click into a cell does
    window.run("document.querySelector('#now .box').scrollLeft = 40")
    watched.get(f"/lookup?digest={sha1(1)}&crawl=a")
    until(lambda: _lookups(window) == "2")
    left = "return document.querySelector('#now .box').scrollLeft"
    assert window.run(left) == 40
    assert window.run("return document.activeElement === document.querySelector('#now .box')")
    assert "renewed" in window.text(".live")


@pytest.mark.parametrize(
    ("use", "leave"),
    [
        ("document.querySelector('#now a').focus()", "document.activeElement.blur()"),
        (
            "getSelection().selectAllChildren(document.querySelector('#now td.n'))",
            "getSelection().removeAllRanges()",
        ),
    ],
    ids=["focus", "selection"],
)
def test_new_numbers_wait_for_who_uses_the_old_ones(
    window: Browser, watched: Running, use: str, leave: str
) -> None:
    window.run(use)
    watched.get(f"/lookup?digest={sha1(1)}&crawl=a")
    until(lambda: "New numbers wait" in window.text(".live"))
    assert _lookups(window) == "1"
    window.run(leave)
    until(lambda: _lookups(window) == "2" and "renewed" in window.text(".live"))


def test_keys_are_enough(window: Browser, make_index: MakeIndex) -> None:
    tab, enter = "\ue004", "\ue007"
    with serving(make_index([capture(1)], ALL), "--workers", "1") as server:
        window.open(at(server, "/pages/lookup"))
        window.press(tab)
        assert window.focused() == "Skip to the content"
        window.press(enter)
        window.press(tab)
        assert window.run("return document.activeElement.id") == "digest"
        for letter in str(sha1(1)):
            window.press(letter)
        window.press(enter)
        until(lambda: "A duplicate" in window.source)


def _is_titled(window: Browser, text: str) -> bool:
    return window.text("h1").startswith(text)


def test_keys_lead_from_a_picture_to_who_refers_to_a_capture(
    window: Browser, tmp_path: Path
) -> None:
    tab, enter = "\ue004", "\ue007"
    index, one = begin(tmp_path, settings=ALL), capture(1, b"http://x.example/")
    load(index, [one, capture(1, b"http://x.example/", 2)], [revisit_of(one, one.url, 3)])
    with serving(index, "--workers", "1") as server:
        window.open(at(server, "/pages/content"))
        until(lambda: _shows(window, at(server, "/pages/content"), "x.example"))
        for text, title in (("x.example", "Captures"), ("http://x.example/", "Capture:")):
            while window.focused() != text:
                window.press(tab)
            window.press(enter)
            until(partial(_is_titled, window, title))
        assert window.run("return document.querySelectorAll('svg.times circle').length") == 3
        is_quiet(window)


def test_headings_that_sort_name_the_note(window: Browser, make_index: MakeIndex) -> None:
    described = (
        "return [...document.querySelectorAll('th button')]"
        ".map((one) => one.getAttribute('aria-describedby'))"
    )
    with serving(make_index([capture(1)], ALL), "--workers", "1") as server:
        window.open(at(server, "/pages/captures?host=example.com"))
        assert window.run(described) == ["sort-note"] * 7
        assert "A heading sorts this page only" in window.text("#sort-note")


def test_keys_sort_the_captures_of_a_page(window: Browser, make_index: MakeIndex) -> None:
    """Only those: the order of the whole list is that of digests, and without script of all."""
    tab, enter = "\ue004", "\ue007"
    sizes = [300, 20, -1, 1000]  # of which one is not known
    some = [
        capture(number, b"http://x.example/%d" % number, size=sizes[number % 4])
        for number in range(1, 151)
    ]
    cells = (
        "return [...document.querySelectorAll('td[data-value]:nth-child(3)')]"
        ".map((one) => one.dataset.value)"
    )
    sorted_by = (
        "return [...document.querySelectorAll('th[aria-sort]')]"
        ".map((one) => [one.textContent, one.getAttribute('aria-sort')])"
    )
    with serving(make_index(some, ALL), "--workers", "1") as server:
        path = at(server, "/pages/captures?host=x.example")
        window.open(path)
        before = window.run(cells)
        assert "A heading sorts this page only" in window.text("main")
        assert "sha1:" in window.text("tbody tr td:last-child")  # in whose order they are
        assert window.run(sorted_by) == []
        while window.focused() != "Payload":
            window.press(tab)
        known = sorted((value for value in before if value), key=int)
        unknown = [""] * before.count("")
        assert 0 < len(unknown) < len(known) and len(before) == 100
        for direction, order in (("ascending", known), ("descending", known[::-1])):
            window.press(enter)
            assert window.run(cells) == order + unknown
            assert window.run(sorted_by) == [["Payload", direction]]
            assert window.focused() == "Payload"
        while window.focused() != "URL":
            window.run("document.activeElement.closest('tr').querySelector('button').focus()")
        window.press(enter)
        assert window.run(sorted_by) == [["URL", "ascending"]]
        rows = window.run(
            "return [...document.querySelectorAll('tbody th')].map((e) => e.innerText)"
        )
        assert rows == sorted(rows)
        is_quiet(window)
        window.scripts(on=False)
        window.open(path)
        assert window.run("return document.querySelectorAll('th button').length") == 0
        assert "A heading sorts" not in window.text("main") and window.run(cells) == before
        window.follow("a[rel=next]")
        assert len(window.run(cells)) == 50
        window.follow(".turn a")  # the first page
        assert window.run(cells) == before
        window.scripts(on=True)


def test_signing_in_and_out(window: Browser, make_index: MakeIndex) -> None:
    index = make_index([capture(1)], ALL)
    secret = tokens.add(index, "reader", Role.READ)
    with serving(index, "--workers", "1", "--private") as server:
        window.open(at(server, "/pages/crawls"))
        assert window.text("h1") == "Sign in"
        window.type("#token", secret + "x")
        window.follow("form.form button")
        assert "not a token of this index" in window.text("#problem")
        window.type("#token", secret)
        window.follow("form.form button")
        assert (window.text("h1"), window.url) == ("Crawls", at(server, "/pages/crawls"))
        (cookie,) = window.cookies()
        assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"
        assert window.run("return document.cookie") == ""
        status = "return fetch('/stats').then((answer) => answer.status)"
        assert window.run(status) == 401  # the API takes no cookie
        window.follow("header button")
        assert window.text("h1") == "Sign in" and window.cookies() == []


def test_a_file_that_is_too_large_is_a_page(
    window: Browser, make_index: MakeIndex, tmp_path: Path
) -> None:
    file = tmp_path / "crawl.cdx"
    file.write_bytes(os.urandom(8 << 20))
    with serving(make_index(), "--workers", "1", "--max-body", "1000000") as server:
        window.open(at(server, "/pages/what-if"))
        window.type("#crawl", str(file))
        window.run("document.querySelector('form.form button').click()")
        assert window.text("[data-upload-state]") == "This file is too large for this page."
        window.scripts(on=False)
        window.open(at(server, "/pages/what-if"))
        window.type("#crawl", str(file))
        window.follow("form.form button")
        assert window.text("h1") == "Too large"


LOOK = """
    const canvas = document.createElement("canvas"), [codes] = arguments;
    [canvas.width, canvas.height] = [120, 60];
    const pen = canvas.getContext("2d", {willReadFrequently: true});
    [pen.font, pen.textBaseline] = ["24px sans-serif", "middle"];
    const drawn = text => {
      pen.clearRect(0, 0, 120, 60);
      pen.fillText(text, 20, 30);
      const dots = pen.getImageData(0, 0, 120, 60).data;
      let sum = 0;
      for (let at = 3; at < dots.length; at += 4) {
        if (dots[at]) sum = (sum * 31 + at * dots[at]) | 0;
      }
      return sum;
    };
    const [nothing, without] = [drawn(""), drawn("AB")];
    return codes.filter(code => {
      const char = String.fromCodePoint(code);
      return drawn(char) === nothing || drawn("A" + char + "B") === without;
    });
"""
LARGE = (  # scripts with a glyph for every letter: one in a hundred of these is tried
    *(
        (0x3400, 0x9FFF),
        (0xAC00, 0xD7A3),
        (0x12000, 0x1467F),
        (0x17000, 0x18CFF),
        (0x20000, 0x3FFFF),
    ),
)


def test_a_browser_shows_every_character_that_is_not_escaped(window: Browser) -> None:
    window.open("data:text/html,<p>x")
    seen = [code for code in range(0x21, 0x110000) if printable(chr(code)) == chr(code)]
    tried = [
        code
        for code in seen
        if code % 100 == 0 or not any(first <= code <= last for first, last in LARGE)
    ]
    for at in range(0, len(tried), 2000):
        invisible = window.run(LOOK, tried[at : at + 2000])
        assert not invisible, [f"{code:x}" for code in invisible]
