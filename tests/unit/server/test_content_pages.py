"""The pages of the index's content: pictures of its summary, lists of captures, one capture."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import threading
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any
from urllib.parse import quote

import orjson
import pytest
from flask.testing import FlaskClient

from dedupindex.crawls.comparison_table import comparison_table
from dedupindex.index import content_table, summary
from dedupindex.index.identity import Settings
from dedupindex.runtime.tables import amount
from server import commands, summaries, wsgi_fast_path
from server.pages import content_pages
from server.pages.blueprint import POLICY
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1
from tests.support.hypertext import Page
from tests.support.purging import begin, load, revisit_of
from tests.unit.cli.test_cli import dedupindex, typed
from tests.unit.indexer.test_pipeline import HEADER, cdx_line
from tests.unit.server.test_pages import HOSTILE, hostile_captures, page, served

ALL = Settings(mime=".*", whitelist=True)
HOST = b"http://x.example/"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """Two payloads: one stored three times and seen again, and one of another host and year."""
    index = begin(tmp_path, settings=ALL)
    one = capture(1, HOST, size=1000, crawl="spring")
    captures = [one, capture(1, HOST, 2, size=1000), capture(1, b"http://y.example/", 3, size=1000)]
    other = capture(2, b"http://z.example/", size=5_000_000, mime=b"video/mp4")
    load(
        index, [*captures, other._replace(date=b"2024-02-01T00:00:00Z")], [revisit_of(one, HOST, 4)]
    )
    return index


def wait_for_summary() -> None:
    for thread in threading.enumerate():
        if thread.name == "summary":
            thread.join()


def counted(web: FlaskClient) -> None:
    """Wait until what the page has begun is done."""
    waits = page(web.get("/pages/content"))
    assert "It is being counted" in waits.text and "content" in waits.ids
    wait_for_summary()


def test_the_content_is_counted_once_and_shown(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = served(index)
    counted(web)
    shown = page(web.get("/pages/content"))
    assert "content" in shown.ids  # by which the script puts it into the page that waits
    for text in ("Nothing has changed since", "5.0 MB", "x.example", "2024-02", "video/mp4"):
        assert text in shown.text, text
    for text in ("Captures stored", "originals and copies of them", "--dry-run says which"):
        assert text in shown.text, text
    lists = [link for link in shown.links if link.startswith("/pages/captures?")]
    assert "/pages/captures?host=z.example" in lists and "/pages/captures?crawl=spring" in lists
    for link in (link for link in shown.links if "/pages/content?" in link):
        page(web.get(link))
    months = 2 * 12 + 11  # February 2024 to December 2026, also those without a capture
    assert web.get("/pages/content").text.count('class="over"') == 2 * months
    again = page(web.get("/pages/content?by=host&order=duplicate_bytes")).text
    assert again.index("x.example") < again.index("z.example")  # of 1,000 bytes each, and none

    more = index.parent / "more.cdx"
    more.write_text(HEADER + cdx_line(3, 1, 1))
    dedupindex("index", "--add", more, index)
    web.application.config["live"].refresh()
    monkeypatch.setattr(summaries, "SHORTEST_REST", 3600.0)
    assert "The index has 1 original more now." in page(web.get("/pages/content")).text
    assert not [one for one in threading.enumerate() if one.name == "summary"]
    monkeypatch.setattr(summaries, "SHORTEST_REST", 0.0)
    monkeypatch.setattr(summaries, "REST", 0)
    assert "is being counted anew" in page(web.get("/pages/content")).text
    wait_for_summary()
    assert "h3.example" in page(web.get("/pages/content")).text


def test_a_month_alone_is_drawn_once_and_does_not_fill_the_chart(tmp_path: Path) -> None:
    index = begin(tmp_path, settings=ALL)
    load(index, [capture(1, HOST, size=1000)])
    web = served(index)
    counted(web)
    shown = web.get("/pages/content").text
    assert shown.count('<figure class="columns">') == 1
    assert '<rect class="first" x="0.0%" y="0.0" width="10%"' in shown


def test_the_numbers_are_those_of_the_command(index: Path) -> None:
    found = orjson.loads(typed("index", "--stats", "--json", index)[0])
    kept = summary.read_summary(index)
    assert kept is not None
    assert kept["total"] == found["total"] and kept["by"] == found["by"]
    assert found["total"]["duplicate_bytes"] == 2000 and found["total"]["revisit_bytes"] == 1000
    lines = typed("index", "--stats", index)[0].splitlines()
    words = {" ".join(line.split()) for line in lines}
    assert words >= {
        "originals 3", "payload digests 2",
        "captures stored 4 (originals and copies; equal records once)",
        "bytes of payload 5,003,000 (of captures stored)", "stored again 2 (2.0 kB of payload)",
        "revisits 1 (of responses that the index takes; 1.0 kB of payload)",
        "hosts: 3", "By host, sorted by: captures stored:",
        "captures stored share payload stored again stored again, % that costs host",
        "2 50.0 % 2.0 kB 1 50.0 % 1.0 kB x.example",
    }  # fmt: skip
    assert not any(line.startswith("size per original") for line in lines)  # it is too small
    heading, *rows = lines[lines.index("By host, sorted by: captures stored:") + 1 :]
    assert len(rows) == 3 and all(" " not in row[heading.index("host") :] for row in rows)
    table = content_table.content_table("host", "captures")
    shown = served(shutil.copytree(index, index.with_name("served")))
    page(shown.get("/pages/content"))
    wait_for_summary()
    drawn = page(shown.get("/pages/content?order=captures")).text
    for column in table.on_page()[1:]:
        assert column.title in drawn
    for row in found["by"]["host"]["rows"]:
        of_page = content_table.content_row(row, "host", "captures", found["total"])
        for column in table.shown()[1:]:
            assert column.text(of_page[column.name]) in drawn
    typed("purge", index, "--url", "http://z.example/")
    assert summary.read_summary(index) is None  # it named the host that is gone


def test_the_page_says_why_nothing_is_counted(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, what: str) -> None:  # root may write anywhere
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(summaries, "exclusive", denied)
        patch.setattr(summaries, "SHORTEST_REST", 0.0)
        web = served(index)
        web.get("/pages/content")
        wait_for_summary()
        shown = page(web.get("/pages/content")).text
        assert f"It cannot be counted: {index} cannot be written to by the user" in shown
        assert "is being counted" not in shown
    wait_for_summary()
    web.get("/pages/content")
    wait_for_summary()
    assert "Nothing has changed since" in page(web.get("/pages/content")).text


def test_a_summary_that_is_purged_while_it_is_read(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed("index", "--stats", index)
    made = (index / summary.FILE).read_bytes()
    web = served(index)
    monkeypatch.setattr(summaries.Summaries, "_begin", lambda self: None)

    def read(directory: Path) -> dict[str, Any] | None:
        content = kept(directory)
        (directory / summary.FILE).unlink(missing_ok=True)
        return content and {**content, "state": "of another index"}

    kept = summary.read_summary
    monkeypatch.setattr(summary, "read_summary", read)
    for path in ("/summary", "/pages/content"):
        assert web.get(path).status_code == 200
        (index / summary.FILE).write_bytes(made)


def test_revisits_and_duplicates_of_unknown_size_are_counted(tmp_path: Path) -> None:
    index = begin(tmp_path, settings=ALL)
    sized, one = capture(1, HOST, size=1000), capture(2, HOST, size=-1)
    unsized = [revisit_of(one, HOST, 4), revisit_of(one, HOST, 5)]
    load(
        index,
        [sized, sized._replace(date=b"2026-11-28T00:00:00Z"), one, capture(2, HOST, 3, size=-1)],
        [revisit_of(sized, HOST, 4), *unsized],
    )
    total = orjson.loads(typed("index", "--stats", "--json", index)[0])["total"]
    assert (total["revisits"], total["revisits_unsized"], total["revisit_bytes"]) == (3, 2, 1000)
    assert (total["duplicates"], total["duplicates_unsized"]) == (2, 1)
    lines = {" ".join(line.split()) for line in typed("index", "--stats", index)[0].splitlines()}
    assert lines >= {
        "stored again 2 (1.0 kB of payload; of 1 the size is not known)",
        "revisits 3 (of responses that the index takes; 1.0 kB of payload; "
        "of 2 the size is not known)",
    }
    shown = served(index).get("/pages/content").text
    assert (
        "<p>Of 2 revisits the size of the payload is not known; they save no bytes here." in shown
    )


def test_bytes_of_captures_without_a_known_size_are_not_known(tmp_path: Path) -> None:
    index = begin(tmp_path, settings=ALL)
    one = capture(1, HOST, size=-1)
    load(index, [one, capture(1, HOST, 2, size=-1)], [revisit_of(one, HOST, 4)])
    found = orjson.loads(typed("index", "--stats", "--json", index)[0])
    web = served(index)
    told = web.get("/summary").get_json()
    for row in (found["total"], found["by"]["host"]["rows"][0], told["total"], told["rows"][0]):
        assert (row["captures"], row["duplicates"], row["revisits"]) == (2, 1, 1)
        assert row["bytes"] is row["duplicate_bytes"] is row["revisit_bytes"] is None
    assert found["payload_bytes"] is found["largest_hosts"][0]["payload_bytes"] is None
    lines = dedupindex("index", "--stats", index)[0].splitlines()
    assert {" ".join(line.split()) for line in lines} >= {
        "bytes of payload not known (of captures stored; of 2 captures not known)",
        "stored again 1 (size not known)", "2 100.0 % not known 1 50.0 % not known x.example",
    }  # fmt: skip
    shown = web.get("/pages/content?order=revisit_bytes").text
    for label in ("Bytes of payload", "What that costs", "Saved by them"):
        assert f"<dt>{label}</dt><dd>not known</dd>" in shown, label


def test_lists_of_captures(index: Path) -> None:
    web = served(index)
    for query, urls in (
        ("host=x.example", 1), ("mime=image/png", 2), ("status=200&mime=", 0),
        ("size=1 MB to 10 MB&status=200", 1), ("crawl=", 2), ("year=2026&crawl=spring", 1),
        ("month=2024-02", 1), ("host=https://x.example:8443/a", 1),
    ):  # fmt: skip
        shown = page(web.get(f"/pages/captures?{query}"))
        listed = [link for link in shown.links if link.startswith("/pages/capture?")]
        assert len(listed) == urls, query
        for link in listed:
            assert "Who refers to it" in page(web.get(link)).text
    for query in ("", "size=x", "year=x"):
        page(web.get(f"/pages/captures?{query}"), 400)
    asked = "/pages/captures?host=x.example"
    foreign = page(web.get(asked, headers={"Sec-Fetch-Site": "cross-site"}))
    assert asked in foreign.links and "http://x.example/" not in foreign.text


def next_of(shown: Page) -> str:
    """Where the link leads to more of a list, "" if it has none."""
    found = [link for link in shown.links if link.startswith("/pages/captures?after=")]
    assert len(found) < 2
    return found[0] if found else ""


def walked(web: FlaskClient, path: str) -> list[list[str]]:
    """The links of each page of a list to its captures."""
    found = []
    while path:
        shown = page(web.get(path))
        found.append([link for link in shown.links if link.startswith("/pages/capture?")])
        assert ("/pages/captures?mime=image/png" in shown.links) is ("after=" in path)  # the first
        path = next_of(shown)
    return found


def test_a_list_is_turned_page_by_page(
    make_index: MakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [capture(number, b"http://h%d.example/" % number) for number in range(1, 8)]
    web = served(make_index([*some, capture(9, HOST, mime=b"text/css")], ALL))
    for day, name in enumerate(("a", "b", "c"), 4):  # of one key, beside the index
        web.post("/crawls", json={"name": name, "seen_by": "all"})
        one = {"digest": str(sha1(3)), "url": "http://h3.example/", "status": 200}
        sent = {**one, "date": f"2026-11-0{day}T00:00:00Z", "mime": "image/png"}
        assert web.post(f"/captures?crawl={name}", json=sent).get_json()["added"] == 1
    whole = walked(web, "/pages/captures?mime=image/png")
    assert [len(links) for links in whole] == [10] and len(set(whole[0])) == 7
    for most in (1, 3, 10):
        monkeypatch.setattr(content_pages, "LISTED", most)
        found = walked(web, "/pages/captures?mime=image/png")
        assert [link for links in found for link in links] == whole[0]
        assert {len(links) for links in found[:-1]} <= {most} and len(found) == -(-10 // most)
    page(web.get("/pages/captures?mime=image/png&after=x"), 400)
    after = f"02{'ff' * 29}.20261101000000.{'00' * 8}"
    assert "There are no more." in page(web.get(f"/pages/captures?status=200&after={after}")).text


def test_a_search_that_took_too_long_goes_on(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    web = served(index)
    monkeypatch.setattr(content_pages, "ENOUGH", 1e-6)  # then each page has read one capture
    texts, path = [], "/pages/captures?mime=video/mp4"
    while path:
        shown = page(web.get(path))
        texts.append(shown.text)
        path = next_of(shown)
        assert ("Search on" in shown.text and "so there may be more" in shown.text) is bool(path)
    assert len(texts) == 4 and "There are no more." in texts[-1]
    assert sum("These 1 were found" in text for text in texts) == 1
    assert sum("None was found" in text for text in texts) == 2
    monkeypatch.setattr(content_pages, "_GRACE", 0.01)  # killed before it says anything
    shown = page(web.get("/pages/captures?mime=video/mp4"))
    assert "so there may be more" in shown.text and not next_of(shown)


def test_a_list_is_downloaded_whole_as_the_command_writes_it(
    make_index: MakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = make_index([*hostile_captures(), capture(50, HOST, mime=b"=cmd()")], ALL)
    web = served(index)
    monkeypatch.setattr(content_pages, "LISTED", 1)
    for ending, option, kind in (
        ("csv", "--csv", "text/csv"), ("jsonl", "--json", "application/x-ndjson"),
    ):  # fmt: skip
        path = f"/pages/captures.{ending}?host=x.example&status=200"
        assert path in page(web.get("/pages/captures?host=x.example&status=200")).links
        with web.get(path) as sent:
            words = ("list", index, "--host", "x.example", "--status", "200", "--limit", "0")
            assert sent.text == dedupindex(*words, option)[0] and len(sent.text.splitlines()) > 5
            assert (sent.status_code, sent.mimetype) == (200, kind)
            named = f'attachment; filename="captures.{ending}"'
            assert sent.headers["Content-Disposition"] == named
            assert sent.headers["Content-Length"] == str(len(sent.data))
            assert sent.headers["Content-Security-Policy"] == POLICY
            assert sent.headers["Cache-Control"] == "no-store"
        foreign = web.get(path, headers={"Sec-Fetch-Site": "cross-site"})
        page(foreign, 403)
        with web.get(f"/pages/captures.{ending}?host=none.example") as sent:
            assert (sent.status_code, sent.data) == (200, b"")
    with web.get("/pages/captures.csv?mime=%3Dcmd()") as sent:
        assert ",'=cmd()," in sent.text
    page(web.get("/pages/captures.csv?size=x"), 400)
    page(web.get("/pages/captures.csv?host=a%00b"), 400)


def test_a_download_is_whole_or_refused(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    web = served(index)
    path = "/pages/captures.csv?status=200"
    monkeypatch.setattr(commands, "LARGEST", 100)
    refused = page(web.get(path), 400).text
    assert "this has more than 100 B: use bin/list itself" in refused
    monkeypatch.undo()
    monkeypatch.setattr(commands, "LONGEST", 0)
    assert "more than 0 seconds: use bin/list itself" in page(web.get(path), 400).text
    monkeypatch.undo()
    monkeypatch.setattr(commands, "AT_ONCE", 0)
    full = served(index)
    assert "are being prepared already" in page(full.get(path), 503).text
    monkeypatch.undo()
    for _ in range(commands.FILES + 1):  # each gives back what it took
        with web.get(path) as sent:
            assert sent.status_code == 200


def test_files_that_are_not_sent_yet_are_few(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "FILES", 2)
    monkeypatch.setattr(wsgi_fast_path, "_SHORT", 0)  # what is short is sent at once
    web = served(index)
    path = "/pages/captures.csv?status=200"
    slow = [web.get(path) for _ in range(2)]
    assert "2 lists are being sent already; try again soon" in page(web.get(path), 503).text
    slow[0].close()  # its client is gone
    with web.get(path) as sent:
        assert sent.data == slow[1].data
    slow[1].close()


def test_head_of_a_download_searches_for_nothing(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = served(index)
    monkeypatch.setattr(commands, "_begin", None)
    sent = web.head("/pages/captures.csv?status=200")
    assert (sent.status_code, sent.mimetype, sent.data) == (200, "text/csv", b"")
    assert "Content-Length" not in sent.headers and "Content-Disposition" in sent.headers
    assert web.head("/pages/captures.csv").status_code == 400


def test_a_full_disk_is_named_and_no_defect(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    web = served(index)
    path = "/pages/captures.csv?status=200"
    with open("/dev/full", "r+b", buffering=0) as full, TemporaryFile() as messages:
        files = iter([full, messages])
        monkeypatch.setattr(commands, "TemporaryFile", lambda: next(files))
        refused = web.get(path)
        assert "No space left on device" in refused.text and "(TMPDIR)" in page(refused, 503).text
    monkeypatch.undo()

    def make() -> IO[bytes]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(commands, "TemporaryFile", make)
    for other in (path, "/pages/captures?status=200"):
        refused = web.get(other)
        assert "No space left on device" in refused.text and "(TMPDIR)" in page(refused, 503).text


def test_filters_of_captures_are_changed_one_by_one(index: Path) -> None:
    web = served(index)
    shown = page(web.get("/pages/captures?host=x.example&mime=&year=2026"))
    held = "host x.example (remove host), year 2026 (remove year) and media type not known"
    assert f"Only captures of {held} (remove media type) are listed." in shown.text
    for without in ("host=x.example&mime=", "year=2026&mime=", "host=x.example&year=2026"):
        assert f"/pages/captures?{without}" in shown.links
    assert "/pages/content?by=host" in page(web.get("/pages/captures?host=x.example")).links
    form = {"filter": "1", "host": "https://x.example/a", "mime": "", "status": " 200 ", "size": ""}
    for more, left in (({}, ""), ({"absent": "mime"}, "&mime=")):
        sent = web.get("/pages/captures", query_string={**form, **more})
        assert sent.status_code == 303
        wanted = sorted(f"host=x.example&status=200{left}".split("&"))
        assert sorted(sent.headers["Location"].partition("?")[2].split("&")) == wanted
    page(web.get("/pages/captures?filter=1&host="), 400)


def test_a_capture_shows_who_refers_to_it(index: Path) -> None:
    web = served(index)
    shown = page(web.get(f"/pages/capture?digest={sha1(1)}&url={quote(HOST)}")).text
    assert "1 of the revisits refer to this URL" in shown and "a copy" in shown
    assert web.get(f"/pages/capture?digest={sha1(1)}").text.count("<circle") == 4
    assert "nothing of this payload" in page(web.get(f"/pages/capture?digest={sha1(9)}")).text
    page(web.get("/pages/capture?digest=x"), 400)


def test_captures_of_one_second_are_said_to_be_one_circle(make_index: MakeIndex) -> None:
    one, other = capture(1, HOST), capture(1, b"http://y.example/")
    web = served(make_index([one, other], ALL))
    shown = page(web.get(f"/pages/capture?digest={sha1(1)}")).text
    assert "Those of the same second are drawn as one circle: 2 originals." in shown
    drawn = web.get(f"/pages/capture?digest={sha1(1)}").text
    assert drawn.count("<circle") == 1
    assert "2 originals in the same second, 2026-11-01</title>" in drawn
    web = served(make_index([one], ALL))
    assert "of the same second" not in web.get(f"/pages/capture?digest={sha1(1)}").text


def test_hostile_captures_are_shown_as_text(make_index: MakeIndex) -> None:
    web = served(make_index(hostile_captures(), ALL))
    counted(web)
    for by in content_pages.BY:
        shown = page(web.get(f"/pages/content?by={by}"))
        lists = [link for link in shown.links if link.startswith(f"/pages/captures?{by}=")]
        if by == "mime":  # each is searched for by a process
            for link in lists[:2]:
                page(web.get(link))
    for number, url in enumerate(HOSTILE):
        page(web.get(f"/pages/capture?digest={sha1(number)}&url={quote(url[:2000])}"))


def test_two_crawls_compared(tmp_path: Path) -> None:
    index = begin(tmp_path, settings=ALL)
    both = capture(1, HOST, crawl="<old>"), capture(2, HOST, 2, crawl="new")
    load(index, [*both, capture(3, b"http://<b>.example/", 3, crawl="new")])
    web = served(index)
    answer = web.get("/crawls/new/compare?with=<old>").get_json()
    assert answer["total"]["changed"] == answer["total"]["new"] == 1
    shown = page(web.get("/pages/compare?first=<old>&second=new"))
    assert "URLs: 2" in shown.text and "<b>.example" in shown.text and "<old>" in shown.text
    command = ("report", index, "--crawl", "new", "--compare", "<old>", "--json")
    assert orjson.loads(dedupindex(*command)[0]) == answer
    assert "nothing of a crawl" in page(web.get("/pages/compare?first=x&second=new"), 400).text
    unknown = page(web.get("/pages/compare?from=x&to=new"), 400).text
    assert "there is no parameter 'from'; there are first, second, order" in unknown
    unknown = page(web.get("/pages/host?name=example.com"), 400).text
    assert "there is no parameter 'name'; there are host" in unknown
    assert web.get("/crawls/x/compare?with=new").status_code == 400
    assert web.get("/crawls/new/compare").status_code == 400
    foreign = {"Sec-Fetch-Site": "cross-site"}
    asked = web.get("/pages/compare?first=<old>&second=new", headers=foreign)
    assert "URLs: 2" not in page(asked).text


@pytest.mark.parametrize("order", ["second_stored_bytes", "changed", "changed_bytes", "gone_bytes"])
def test_compared_crawls_are_shown_with_the_column_that_they_are_sorted_by(
    tmp_path: Path, order: str
) -> None:
    index = begin(tmp_path, settings=ALL)
    load(index, [capture(1, HOST, crawl="one's"), capture(2, HOST, 2, size=4321, crawl="new")])
    found = served(index).get(f"/pages/compare?first=one's&second=new&order={order}")
    (command,) = re.findall(r"bin/report .*", page(found).text)
    row = orjson.loads(dedupindex("report", *shlex.split(command)[1:], "--json")[0])["rows"][0]
    lines = [
        re.findall(r'<t[hd](?: scope="col")? class="n( more)?">([^<]*)', line)
        for line in found.text.partition('id="hosts"')[2].splitlines()
    ]
    heads, cells = list(filter(None, lines))[:2]
    ((place, text),) = ((n, text) for n, (more, text) in enumerate(heads) if not more)
    labels = {column.name: column.title for column in comparison_table(order).shown()}
    assert text == labels[order]
    value = amount(row[order]) if order.endswith("_bytes") else f"{row[order]:,}"
    assert cells[place] == ("", value)


def test_the_summary_over_http(index: Path) -> None:
    web = served(index)
    assert web.get("/summary").get_json()["made"] is None
    wait_for_summary()
    answer = web.get("/summary?by=mime&top=1&order=captures").get_json()
    assert (answer["is_current"], answer["groups"]) == (True, 2)
    assert answer["rows"][0]["mime"] == "image/png" and answer["others"]["captures"] == 1
    assert web.get("/summary?by=x").status_code == 400
