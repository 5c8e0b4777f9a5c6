"""One label has one meaning: whatever the format of a harvest, and wherever a number is shown."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from dedupindex.crawls.crawl_report import group_table as crawl_table
from dedupindex.lookup.savings_report import group_table
from dedupindex.runtime.report_table import Unit
from dedupindex.runtime.tables import amount
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.support.commands import typed
from tests.support.verifying import HOST, copy_of, page, write

HERE = {"Origin": "http://localhost"}
HOSTILE = "<script>alert(1)</script>"
HOSTS = ("one.example", "two.example", HOSTILE + ".example", "all-new.example")
FORMATS = ("warc", "cdx", "cdxj", "log")
COLUMNS = group_table({"by": "host", "handled_bytes": 0, "unsized": 0}).columns
SHOWN = {column.name for column in COLUMNS}


def body(number: int) -> bytes:
    return b"<html>" + b"%04d" % number * (100 + number) + b"</html>"


def record(number: int, url: str, day: int) -> bytes:
    date = b"2026-11-%02dT09:14:%02dZ" % (day, number)
    return page(day * 100 + number, body(number), Target_URI=url.encode(), Date=date)


@pytest.fixture(scope="module")
def harvest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An index of an earlier crawl, and a later crawl without duplicates in it, in every format."""
    home = tmp_path_factory.mktemp("harvest")
    before = [record(n, f"http://{HOSTS[n % 3]}/{n}", 1) for n in range(12)]
    same = [record(n, f"http://{HOSTS[n % 3]}/{n}", 9) for n in range(5)]
    moved = [record(n, f"http://{HOSTS[n % 3]}/moved/{n}", 9) for n in range(5, 10)]
    new = [record(n, f"http://{HOSTS[n % 2 * 2 + 1]}/new/{n}", 9) for n in range(20, 27)]
    found = {"index": home / "index", "warc": home / "new.warc.gz"}
    write(home / "before.warc.gz", before)
    write(found["warc"], [*same, *moved, *new])
    typed("index", "--all", home / "before.warc.gz", found["index"])
    typed("index", "--all", found["warc"], home / "later")
    captures = list(map(json.loads, typed("list", home / "later", "--json")[0].splitlines()))
    assert len(captures) == 17
    found["captures"] = home / "captures.json"
    found["captures"].write_text(json.dumps(captures))
    for form in ("cdx", "cdxj"):
        found[form] = home / f"new.{form}"
    typed("export", "--cdxj", home / "later", "--out", found["cdxj"])
    found["cdx"].write_text(
        " CDX a b a m s k r M V g u\n" + "".join(_as_wget(capture) for capture in captures)
    )
    found["log"] = home / "crawl.log"
    found["log"].write_text("".join(map(_as_log, captures)))
    return found


def _as_wget(capture: dict[str, Any]) -> str:
    digits, digest = re.sub(r"\D", "", capture["date"]), capture["digest"].split(":")[1]
    url = capture["url"]
    return f"{url} {digits} {url} text/html 200 {digest} - - {capture['offset']} new.warc.gz -\n"


def _as_log(capture: dict[str, Any]) -> str:
    second = re.sub(r"\D", "", capture["date"]) + "000"
    return (
        f"{capture['date'][:-1]}.000Z 200 {capture['size']} {capture['url']} - - text/html #001 "
        f"{second}+10 {capture['digest']} - -\n"
    )


def report(harvest: dict[str, Path], form: str, *words: object) -> str:
    return typed("report", harvest["index"], "--against", harvest[form], "--limit", "0", *words)[0]


@pytest.mark.parametrize("form", FORMATS[1:])
def test_every_format_of_a_harvest_has_the_same_numbers(
    harvest: dict[str, Path], form: str
) -> None:
    """A sum is that of the WARC, less than it by captures that are said to be of unknown size."""
    truth, found = (json.loads(report(harvest, name, "--json")) for name in ("warc", form))
    assert truth["sizes"] == {"stated": 17, "of_original": 0, "unknown": 0}
    assert truth["duplicates"] == 10 and truth["exact_url"] == 5
    assert sum(found["sizes"].values()) == 17
    groups = {group["host"]: group for group in found["groups"]}
    assert groups.keys() == {group["host"] for group in truth["groups"]}
    for right, shown in [(truth, found), *((one, groups[one["host"]]) for one in truth["groups"])]:
        for name in SHOWN - {"host", "unsized", "unsized_duplicates"}:
            if shown[name] != right[name]:
                assert name.startswith(("handled_bytes", "new_bytes", "duplicate_bytes_percent"))
                assert shown["unsized"] and (shown[name] is None or 0 < shown[name] < right[name])
        assert shown["duplicate_bytes"] == right["duplicate_bytes"]  # their originals say it
        if shown["unsized"] == shown["new"]:
            assert shown["new_bytes"] is None or not shown["new"]
    assert found["sizes"]["unknown"] == (0 if form == "log" else 7)


@pytest.mark.parametrize("form", FORMATS)
def test_every_output_has_the_same_table(
    harvest: dict[str, Path], form: str, tmp_path: Path
) -> None:
    head = json.loads(report(harvest, form, "--json"))
    table, groups = group_table(head), head["groups"]
    assert [list(group) for group in groups] == [[column.name for column in table.columns]] * 4
    rows = csv.DictReader(io.StringIO(report(harvest, form, "--format", "csv")))
    for row, group in zip(rows, groups, strict=True):
        assert row == {name: "" if value is None else str(value) for name, value in group.items()}
    sizes = [group["handled_bytes"] or 0 for group in groups]
    assert sizes == sorted(sizes, reverse=True) and table.order == "handled_bytes"

    target = tmp_path / f"{HOSTILE.replace('/', '')}.html"
    text = report(harvest, form, "--html", target)
    lines = text.split(f"{table.title}:\n")[1].splitlines()[: len(groups) + 1]
    shown = [column for column in table.shown() if column.unit is not Unit.TEXT]
    assert re.split("  +", lines[0].strip()) == [*(one.label for one in shown), "host"]
    for line, group in zip(lines[1:], groups, strict=True):
        cells = [column.text(group[column.name]) for column in shown]
        assert re.split("  +", line.strip()) == [*cells, group["host"]]

    html = target.read_text()
    again = report(harvest, form, "--format", "html")  # only the time of a lookup differs
    assert re.sub(r"[\d.]+ ms", "", html) == re.sub(r"[\d.]+ ms", "", again)
    drawn = "Captures" if head["sizes"]["unknown"] else "Payload"  # without bars of what is unknown
    assert f"<figcaption>{drawn} by host<" in html
    expected = [[column.text(group[column.name]) for column in table.on_page()] for group in groups]
    assert table_in(html, table.title) == [[one.title for one in table.on_page()], *expected]
    assert (
        "<script" not in html
        and "&lt;script&gt;" in html
        and "default-src 'none'" in unescape(html)
    )
    if form != "warc":
        client, _ = serving(harvest["index"], tmp_path)
        sent = {"by": "host", "crawl": (io.BytesIO(harvest[form].read_bytes()), "new")}
        answer = client.post("/pages/what-if", data=sent, headers=HERE)
        assert f">{drawn} by what was found</th>" in answer.text
        numbers = [row[: len(shown) + 1] for row in table_in(answer.text, "Groups by host")]
        everywhere = [[one.text(group[one.name]) for one in table.shown()] for group in groups]
        assert numbers == [[one.title for one in table.shown()], *everywhere]


def test_a_crawl_that_asked_has_the_numbers_of_its_files(
    harvest: dict[str, Path], tmp_path: Path
) -> None:
    """What a server counts while a crawl runs, and what its WARCs say afterwards, is the same."""
    client, live = serving(harvest["index"], tmp_path)
    assert client.post("/crawls", json={"name": "a"}).status_code == 200
    for capture in json.loads(harvest["captures"].read_text()):
        asked = {name: capture[name] for name in ("url", "digest")}
        answer = client.get("/lookup", query_string={**asked, "crawl": "a"}).get_json()
        if not answer["duplicate"]:
            more = {name: capture[name] for name in ("date", "size", "mime", "status")}
            sent = client.post("/captures?crawl=a", json={**asked, **more})
            assert sent.status_code == 200
    live.crawls.write_counts()
    counted = client.get("/crawls/a/report?by=host").get_json()
    truth = json.loads(report(harvest, "warc", "--json"))
    by_host = {group["host"]: group for group in counted["groups"]}
    labels = {column.label: column.name for column in COLUMNS}
    pairs = [
        (column.name, labels[column.label])
        for column in crawl_table("host").columns
        if column.label in labels and column.name not in ("host", "unsized")
    ]
    assert len(pairs) == 12  # a crawl counts its payload in another way
    for right, shown in [
        (truth, counted),
        *((one, by_host[one["host"]]) for one in truth["groups"]),
    ]:
        assert {name: shown[name] for name, _ in pairs} == {one: right[same] for one, same in pairs}
    assert counted["sizes"] == {"stated": 7, "of_original": 10, "unknown": 0}


def test_a_capture_that_two_files_have_is_counted_alike(tmp_path: Path) -> None:
    """Where captures are counted it is one; where records go, the labels are others."""
    url = HOST + b"1"
    write(tmp_path / "a.warc.gz", [page(1), copy_of(2, 1, Target_URI=url)])
    shutil.copy(tmp_path / "a.warc.gz", tmp_path / "b.warc.gz")
    index = tmp_path / "index"
    typed("index", "--all", tmp_path / "a.warc.gz", tmp_path / "b.warc.gz", index)
    stats = json.loads(typed("index", "--stats", index, "--json")[0])["total"]
    assert (stats["captures"], stats["duplicates"], stats["revisits"]) == (1, 0, 1)
    [capture] = map(json.loads, typed("list", index, "--json")[0].splitlines())
    client, _ = serving(index, tmp_path)
    asked = {"digest": capture["digest"]}, {"kind": "url", "name": url.decode()}
    drawn, impact = (
        cards_in(client.get(f"/pages/{name}", query_string=query).text)
        for name, query in zip(("capture", "impact"), asked, strict=True)
    )
    assert (drawn["Originals"], drawn["Copies"], drawn["Revisits"]) == ("1", "0", "1")
    records = {"Originals": "1", "Other records": "1", "Revisit records": "2"}
    assert impact.items() >= records.items() and not impact.keys() & {"Copies", "Revisits"}
    lines = typed("impact", index, "--url", url.decode())[0]
    for label, count in records.items():
        assert re.search(rf"^{label.lower()} +{count} ", lines, re.MULTILINE)
    assert "a capture that two files have is two records" in lines


def test_the_size_on_disk_is_that_of_the_files(harvest: dict[str, Path], tmp_path: Path) -> None:
    size = json.loads(typed("index", "--stats", harvest["index"], "--json")[0])["bytes"]
    files = [path for path in harvest["index"].rglob("*") if path.is_file()]
    locks = {path for path in files if path.name.endswith("lock")}
    assert locks and size == sum(path.stat().st_size for path in files if path not in locks)
    client, _ = serving(harvest["index"], tmp_path)
    assert f"<dt>Size on disk</dt><dd>{amount(size)}</dd>" in client.get("/").text


def serving(index: Path, home: Path) -> tuple[FlaskClient, LiveIndex]:
    """A server of a copy: a process opens an index once, and commands run in this one."""
    live = LiveIndex(shutil.copytree(index, home / "served"))
    live.refresh()
    return create_app(Config(home / "served"), live).test_client(), live


def table_in(html: str, title: str) -> list[list[str]]:
    """Return the cells of the table with a caption, its titles first."""
    found = re.search(rf"<caption[^>]*>{re.escape(title)}</caption>(.*?)</table>", html, re.DOTALL)
    assert found, title
    rows = re.findall(r"<tr>(.*?)</tr>", found[1], re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[unescape(re.sub("<[^>]*>", "", cell)).strip() for cell in row] for row in cells]


def cards_in(html: str) -> dict[str, str]:
    """Return the numbers at the top of a page by their titles."""
    found = re.findall(r"<div><dt>(.*?)</dt><dd>(.*?)</dd>", html, re.DOTALL)
    return {re.sub("<[^>]*>", "", title).strip(): number.strip() for title, number in found}
