"""``bin/report --against`` with ages, policies and namespaces: what a server would answer."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from dedupindex.index.identity import Settings
from dedupindex.lookup.policy import parse_policy
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1
from tests.support.commands import typed
from tests.support.paths import DATA
from tests.unit.cli.test_cli import dedupindex
from tests.unit.indexer.test_pipeline import HEADER, cdx_line

RULES: list[dict[str, Any]] = [
    {"host": "never.example", "never": True},
    {"host": "old.example", "max_age": "5d"},
    {"host": "large.example", "min_size": 1003},
    {"host": "weekly.example", "originals_from": ["weekly-*"]},
    {"mime": "text/*", "url": ".*secret.*", "never": True},
    {"host": "again.example", "blackout": "36h"},
]
CRAWL = [  # digest, day, URL, media type
    (1, 9, "http://never.example/a", "image/png"),
    (2, 9, "http://old.example/b", "image/png"),  # its original is eight days old
    (3, 5, "http://old.example/c", "image/png"),
    (4, 9, "http://large.example/d", "image/png"),
    (2, 9, "http://large.example/e", "image/png"),
    (1, 9, "http://weekly.example/f", "image/png"),
    (1, 9, "http://a.example/secret", "text/html"),
    (1, 9, "http://a.example/secret", "image/png"),
    (5, 9, "http://again.example/g", "image/png"),
    (9, 9, "http://new.example/", "image/png"),
]


@pytest.fixture
def index(make_index: MakeIndex) -> Path:
    captures = [capture(n, b"http://original.example/%d" % n) for n in range(1, 5)]
    again = capture(5, b"http://again.example/g", day=8)
    return make_index([*captures, again], Settings(mime=".*", whitelist=True))


@pytest.fixture
def crawl(tmp_path: Path) -> Path:
    path = tmp_path / "new.cdx"
    lines = [
        cdx_line(n, digest, day, url, mime) for n, (digest, day, url, mime) in enumerate(CRAWL)
    ]
    path.write_text(HEADER + "".join(lines))
    return path


def client(index: Path, rules: list[dict[str, Any]]) -> FlaskClient:
    live = LiveIndex(index, parse_policy(rules))
    live.refresh()
    return create_app(Config(index), live).test_client()


def report(index: Path, crawl: Path, *words: str | Path) -> dict[str, Any]:
    out, _ = dedupindex("report", index, "--against", crawl, "--json", *words)
    content: dict[str, Any] = json.loads(out)
    return content


def test_a_policy_decides_as_a_server_does(index: Path, crawl: Path, tmp_path: Path) -> None:
    policy = tmp_path / "rules.json"
    policy.write_text(json.dumps({"rules": RULES}))
    content = report(index, crawl, "--policy", policy, "--by", "host")
    web, found, refused, skipped = client(index, RULES), 0, dict[str, int](), 0
    for digest, day, url, mime in CRAWL:
        date = f"2026-11-{day:02}T09:14:17Z"
        asked = {"digest": str(sha1(digest)), "url": url, "mime": mime, "as_of": date}
        answer = web.get("/lookup", query_string=asked).get_json()
        found += answer["duplicate"]
        skipped += answer.get("skip", False)
        if word := answer.get("policy"):
            refused[word] = refused.get(word, 0) + 1
    assert (content["handled"], content["duplicates"]) == (len(CRAWL), found)
    assert content["refused_by_policy"] == dict(sorted(refused.items()))
    assert refused == {"never": 2, "max_age": 1, "min_size": 1, "originals_from": 1}
    assert content["skipped_by_policy"] == skipped == 1
    groups = {group["host"]: group["duplicates"] for group in content["groups"]}
    assert groups["never.example"] == 0 and groups["a.example"] == 1
    text, _ = dedupindex("report", index, "--against", crawl, "--policy", policy)
    assert "Stored by a policy:   2 (never)" in text
    assert "Not even a revisit:   1 (blackout)" in text


def test_ages_are_compared(index: Path, crawl: Path) -> None:
    ages = [words for age in ("", "7d", "36h") for words in ("--max-age", age)]
    rows = report(index, crawl, *ages)["filters"]
    saved = [(row["max_age"], row["strategies"]["DIGEST_ANY"]["captures"]) for row in rows]
    # of nine duplicates two have an original of at most a week, one of at most 36 hours
    assert saved == [(None, 9), (7 * 86_400, 2), (36 * 3600, 1)]
    sizes = report(index, crawl, *ages, "--min-size", "0", "--min-size", "501")["filters"]
    assert [(row["min_size"], row["max_age"]) for row in sizes] == [
        (size, age) for size in (0, 501) for age in (None, 604_800, 129_600)
    ]
    words = ("--max-age", "36h", "--max-age", "2y")
    text, _ = typed("report", index, "--against", crawl, *words)
    lines = [line for line in text.splitlines() if line.startswith("  all media types")]
    first, second = (
        f"  all media types, from 0 bytes, originals at most {age} old" for age in ("36h", "2y")
    )
    assert lines == [f"{first} (all other figures are of these)", second]
    assert "Duplicates:           1 " in text


def test_namespaces_answer_where_they_are_named(index: Path, crawl: Path) -> None:
    web = client(index, [])
    for name, namespace, digest in (("one", "news", 9), ("two", "other", 8)):
        assert web.post("/crawls", json={"name": name, "namespace": namespace}).status_code == 200
        sent = {
            "digest": str(sha1(digest)),
            "url": "http://new.example/",
            "date": "2026-11-02T09:14:17Z",
        }
        assert web.post(f"/captures?crawl={name}", json={**sent, "status": 200}).status_code == 200
        assert web.post(f"/crawls/{name}/commit").status_code == 200
    assert report(index, crawl)["new"] == 1
    assert report(index, crawl, "--namespace", "other")["new"] == 1
    assert report(index, crawl, "--namespace", "other,news")["new"] == 0


def test_a_committed_crawl_answers_before_it_is_merged(index: Path, crawl: Path) -> None:
    web = client(index, [])
    web.post("/crawls", json={"name": "one"})
    sent = {"digest": str(sha1(9)), "url": "http://new.example/", "date": "2026-11-02T09:14:17Z"}
    web.post("/captures?crawl=one", json={**sent, "status": 200})
    assert report(index, crawl)["new"] == 1
    web.post("/crawls/one/commit")
    assert report(index, crawl)["new"] == 0


def test_revisits_of_the_crawl_are_judged_too(index: Path, tmp_path: Path) -> None:
    """One whose original is known, but too old, would have been stored."""
    log = tmp_path / "crawl.log"
    log.write_text(
        "2026-11-09T09:14:17.000Z 200 500 http://old.example/b - - image/png #001 "
        f"20261109091416000+10 {sha1(2)} - duplicate:digest\n"
    )
    content = report(index, log, "--max-age", "5d")
    assert (content["already_revisits"], content["duplicates"], content["new"]) == (1, 0, 1)
    assert content["refused"] == {}
    assert report(index, log)["duplicates"] == 1
    text, _ = typed("report", index, "--against", log, "--max-age", "5d")
    assert "  of these stored as revisits: 0, bytes: 0\n" in text


def test_reasons_for_not_looking_up_are_explained(index: Path) -> None:
    log = DATA / "text" / "heritrix.log"
    text, _ = typed("report", index, "--against", log, status=7)  # a line of it is cut
    html, _ = typed("report", index, "--against", log, "--format", "html", status=7)
    for code, words in (("fetch-failed", "the fetch failed"), ("not-http", "no HTTP response")):
        assert re.search(rf"not looked up: {code} +\d+  {words}\n", text)
        assert f'<th scope="row">{code}: {words}</th>' in html
    assert "docs/formats.md#what-is-refused says more about each reason." in html


def test_duplicates_that_the_crawl_has_stored_are_counted_apart(
    index: Path, tmp_path: Path
) -> None:
    log = tmp_path / "crawl.log"
    line = (
        "2026-11-09T09:14:17.000Z 200 {} http://old.example/{} - - image/png #001 "
        "20261109091416000+10 {} - {}\n"
    )
    log.write_text(
        line.format(1002, "b", sha1(2), "duplicate:digest")
        + line.format(1003, "c", sha1(3), "-")
        + line.format(1004, "d", sha1(4), "duplicate:digest")
        + line.format(70, "e", sha1(70), "-")
    )
    content = report(index, log)
    assert (content["duplicates"], content["already_revisits"], content["new"]) == (3, 2, 1)
    assert content["stored_duplicates"] == 1
    size = content["stored_duplicates_bytes"]
    assert 0 < size < content["duplicate_bytes"]
    text, _ = typed("report", index, "--against", log)
    saved = content["duplicate_bytes"] - size
    assert f"  of these stored as revisits: 2, bytes: {saved:,}\n" in text
    assert f"  of these stored in full:     1, bytes: {size:,}\n" in text
    page, _ = typed("report", index, "--against", log, "--format", "html")
    assert "<dt>Duplicates stored in full</dt><dd>1</dd>" in page


def test_wrong_words_are_refused(index: Path, crawl: Path, tmp_path: Path) -> None:
    policy = tmp_path / "rules.json"
    policy.write_text('{"rules": [{"maximum": 1}]}')
    _, said = typed("report", index, crawl, "--policy", policy, status=4)
    assert "rule 1 of the policy" in said
    _, said = typed("report", index, crawl, "--max-age", "soon", status=4)
    assert "--max-age takes a number" in said
    _, said = typed("report", index, "--crawl", "a", "--max-age", "1d", status=2)
    assert "are for --against" in said


def test_bytes_are_the_same_from_every_source(tmp_path: Path) -> None:
    """Of WARC files sizes are stated, of a CDX or CDXJ those of duplicates are their originals'."""
    first, second = DATA / "warc" / "example.warc.gz", tmp_path / "second.warc.gz"
    shutil.copy(first, second)
    typed("index", "--all", first, tmp_path / "index")
    later = tmp_path / "later"
    typed("index", "--all", second, later)
    forms = {"cdx": tmp_path / "second.cdx", "cdxj": tmp_path / "second.cdxj"}
    for form, path in forms.items():
        typed("export", f"--{form}", later, "--out", path)
        # A day later, so that no capture is its own original.
        path.write_text(re.sub(r"2017(\d{10})", r"2018\1", path.read_text()))
    found = {
        form: json.loads(typed("report", tmp_path / "index", "--against", path, "--json")[0])
        for form, path in forms.items()
    }
    stated = json.loads(typed("report", tmp_path / "index", "--against", first, "--json")[0])
    assert stated["sizes"] == {"stated": 1, "of_original": 1, "unknown": 0}  # it has a revisit
    (original,) = map(json.loads, typed("list", later, "--json")[0].splitlines())
    assert stated["handled_bytes"] == 2 * original["size"]
    for report in found.values():
        assert report["sizes"]["of_original"] == report["duplicates"] == report["handled"] > 0
        assert report["duplicate_bytes"] == original["size"]
        assert report["duplicate_bytes_percent"] == 100.0


def test_what_is_not_known_is_not_nought(index: Path, tmp_path: Path) -> None:
    path = tmp_path / "new.cdx"
    lines = [cdx_line(n, n, 9, f"http://a.example/{n}") for n in (1, 2, 50, 51)]
    path.write_text(HEADER + "".join(lines))
    report = json.loads(typed("report", index, "--against", path, "--json")[0])
    assert (report["duplicates"], report["duplicate_bytes"]) == (2, 1001 + 1002)
    assert (report["handled_bytes"], report["new_bytes"]) == (2003, None)
    assert report["duplicate_bytes_percent"] is None
    assert report["sizes"] == {"stated": 0, "of_original": 2, "unknown": 2}
    path.write_text(HEADER + lines[-1])
    report = json.loads(typed("report", index, "--against", path, "--json")[0])
    (group,) = report["groups"]
    assert report["handled_bytes"] is group["handled_bytes"] is group["new_bytes"] is None
    assert report["duplicate_bytes"] == 0  # there is none
    assert "not known" in typed("report", index, "--against", path, "--format", "html")[0]
    assert ",,0" in typed("report", index, "--against", path, "--format", "csv")[0]
    text = typed("report", index, "--against", path)[0]
    assert "By host, those with the most captures first:" in text


def test_a_match_class_without_a_known_size_has_no_bytes(
    make_index: MakeIndex, tmp_path: Path
) -> None:
    index = make_index([
        capture(1, b"http://a.example/1", size_of_record=True), capture(2, b"http://a.example/2"),
    ])  # fmt: skip
    path = tmp_path / "new.cdx"
    path.write_text(
        HEADER
        + cdx_line(1, 1, 9, "http://a.example/1")
        + "".join(cdx_line(n, 2, 9, f"http://b.example/{n}") for n in range(2, 300))
    )
    content = report(index, path)
    assert (content["exact_url"], content["exact_url_bytes"]) == (1, None)
    assert content["digest_bytes"] == content["duplicate_bytes"] == 298 * 1002
    assert content["duplicate_bytes_percent"] == 100.0  # one of three hundred is not known
    exact = content["filters"][0]["strategies"]["EXACT_URL"]
    assert (exact["captures"], exact["bytes"]) == (1, None)
    text, _ = typed("report", index, "--against", path)
    assert "Same URL:             1 (0.3 %), bytes: not known\n" in text
    assert "Duplicates:           299 (100.0 %)\n" in text and "(298.6 kB), 100.0 %\n" in text
    page, _ = typed("report", index, "--against", path, "--format", "html")
    assert ">same URL: not known<" in page and "another URL: 298.6 kB<" in page


@pytest.mark.parametrize("by", ["host", "mime"])
def test_a_heading_that_is_not_known_is_null(by: str, index: Path, tmp_path: Path) -> None:
    path = tmp_path / "new.cdx"
    path.write_text(HEADER + cdx_line(1, 1, 9, "http:///1", "-"))
    words = ("report", index, "--against", path, "--by", by)
    (group,) = json.loads(typed(*words, "--json")[0])["groups"]
    assert group[by] is None and group["handled"] == 1
    assert typed(*words, "--format", "csv")[0].splitlines()[1].startswith("not known,")
    assert typed(*words)[0].split("first:\n")[1].splitlines()[1].endswith("  not known")
    page, _ = typed(*words, "--format", "html")
    assert '<th scope="row">not known</th>' in page and "None" not in page
