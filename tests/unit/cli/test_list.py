"""``bin/list``, and ``bin/lookup --url`` alone: what an index has."""

from __future__ import annotations

import csv
import io
import json
import re
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dedupindex.crawls import lifecycle
from dedupindex.crawls.stores import make_store
from dedupindex.digest import Spelling
from dedupindex.index import ENGINES
from dedupindex.index.identity import Settings
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1
from tests.support.commands import typed
from tests.unit.indexer.test_pipeline import HEADER, cdx_line

HEADING = "DATE "
URLS = [b"http://example.com/a", b"http://www.example.com/b", b"http://other.example/c"]


@pytest.fixture
def index(make_index: MakeIndex) -> Path:
    later = capture(4, URLS[0], date=b"2026-11-22T00:00:00Z")
    return make_index([later, *(capture(number, url) for number, url in enumerate(URLS, 1))])


def listed(index: Path, *options: object, status: int = 0) -> list[tuple[str, str]]:
    """Dates and URLs that are listed as JSON."""
    lines = typed("list", index, *options, "--json", status=status)[0].splitlines()
    return [(one["date"], one["url"]) for one in map(json.loads, lines)]


def urls(index: Path, *options: object) -> set[str]:
    return {url for _, url in listed(index, *options)}


def test_captures_are_chosen_by_url_host_and_digest(index: Path) -> None:
    names = [url.decode() for url in URLS]
    assert urls(index) == set(names) and len(listed(index)) == 4
    assert urls(index, "--host", "Example.COM.") == set(names[:2])
    assert urls(index, "--prefix", "http://w") == {names[1]}
    assert urls(index, "--digest", sha1(3)) == {names[2]}
    dates = [date for date, _ in listed(index, "--url", names[0])]
    assert len(dates) == 2 and dates == sorted(dates)
    assert listed(index, "--host", "ample.com", status=10) == []
    assert listed(index, "--digest", sha1(9), status=10) == []


@pytest.mark.parametrize("by_url", [False, True])
def test_a_url_without_a_path_is_looked_for_with_one(by_url: bool, make_index: MakeIndex) -> None:
    pages = [b"http://example.com/", b"http://example.com/?q=1", b"http://bare.example"]
    held = [*pages, b"http://bare.example/"]
    index = make_index(
        [capture(number, url) for number, url in enumerate(held, 1)], Settings(by_url=by_url)
    )
    for given, found in (
        ("http://example.com", pages[0]),
        ("HTTP://example.com", None),
        ("http://example.com?q=1", pages[1]),
        ("http://bare.example", pages[2]),
    ):
        for words in (("list", index), ("lookup", index)):
            out, _ = typed(*words, "--url", given, status=0 if found else 10)
            assert re.findall(r"http\S+", out) == ([found.decode()] if found else [])


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("list --url example.com", "example.com has no scheme: did you mean http://example.com/?"),
        ("list --prefix example.com/a", "did you mean http://example.com/a?"),
        ("lookup --url example.com", "did you mean http://example.com/?"),
        ("list --host http://example.com/", "scheme, port and path: example.com\n"),
        ("list --host example.com:80", "scheme, port and path: example.com\n"),
        ("list --host www.example.com/x", "scheme, port and path: www.example.com\n"),
        ("list --mime html", "all of a media type: did you mean text/html?"),
        ("list --mime nonsense", "--mime takes all of a media type\n"),
        ("list --mime text/html", "no capture matches\n"),
        ("list --mime text/*", "no capture matches\n"),
        ("list --host none.example", "no capture matches\n"),
    ],
)
def test_what_is_typed_amiss_is_answered_with_what_was_meant(
    words: str, hint: str, index: Path
) -> None:
    name, *options = words.split()
    assert hint in typed(name, index, *options, status=10)[1]


def test_all_media_types_of_a_kind_are_listed(make_index: MakeIndex) -> None:
    types = (b"image/png", b"image/gif", b"text/html", b"imagery/x", b"")
    urls = [b"http://a.test/%d" % number for number in range(len(types))]
    index = make_index(
        [capture(n, url, mime=one) for n, (url, one) in enumerate(zip(urls, types, strict=True), 1)]
    )
    rows = typed("list", index, "--mime", "image/*", "--json")[0].splitlines()
    assert {json.loads(row)["url"] for row in rows} == {url.decode() for url in urls[:2]}


def test_a_crawl_that_is_typed_amiss_is_answered_with_those_that_there_are(
    make_index: MakeIndex,
) -> None:
    index = make_index([capture(1, crawl="weekly", container="w.warc.gz")])
    said = typed("list", index, "--of-crawl", "wekly", status=10)[1]
    assert "no capture matches; there is no crawl 'wekly'; there are weekly\n" in said
    with closing(make_store(index)) as store:
        for name in ("monthly", "daily"):
            store.write(partial(lifecycle.begin, name=name))
    said = typed("list", index, "--of-crawl", "montly", status=10)[1]
    assert "there is no crawl 'montly'; there are monthly, daily, weekly\n" in said
    for name, words in (("monthly", ()), ("weekly", ("--status", "404"))):  # there is such a crawl
        said = typed("list", index, "--of-crawl", name, *words, status=10)[1]
        assert said == "no capture matches\n"
    url = ("--url", "http://x/")
    commands = ("list",), ("lookup", *url), ("lookup", *url, "--digest", sha1(1))
    for command in commands:
        said = typed(command[0], index, *command[1:], "--crawl", "montly", status=4)[1]
        assert "there is no crawl 'montly'; there are monthly, daily\n" in said


def test_an_empty_index_is_said_to_be_empty(make_index: MakeIndex) -> None:
    index = make_index()
    for words in (("list",), ("list", "--url", "x"), ("lookup", "--url", "http://x/")):
        out = typed(words[0], index, *words[1:], status=10)
        assert out == ("", "no capture matches; the index is empty\n")


def test_dates_are_years_days_or_seconds(index: Path) -> None:
    (later,) = [date for date, _ in listed(index) if date.startswith("2026-11-22")]
    assert [date for date, _ in listed(index, "--from", "2026-11-22")] == [later]
    assert later not in {date for date, _ in listed(index, "--to", "20261121")}
    assert len(listed(index, "--from", "2026", "--to", "2026")) == 4
    assert "a date is written" in typed("list", index, "--from", "February", status=4)[1]
    for none in ("2026-02-30", "2026-13", "20261120250000"):
        assert f"no such date as '{none}'" in typed("list", index, "--date", none, status=4)[1]


def test_one_date_is_all_of_its_year_or_day(index: Path) -> None:
    assert len(listed(index, "--date", "2026")) == 4
    assert listed(index, "--date", "2026-11-22") == listed(index, "--from", "2026-11-22")
    assert listed(index, "--date", "2025", status=10) == []
    assert "either --date" in typed("list", index, "--date", "2026", "--to", "2026", status=2)[1]


def test_a_table_says_that_there_is_more(index: Path) -> None:
    out, messages = typed("list", index, "--limit", "3")
    assert out.startswith(HEADING) and len(out.splitlines()) == 4
    assert "only the first 3 are listed; --limit 0 lists all" in messages
    assert "only the first is listed; --limit 0" in typed("list", index, "--limit", "1")[1]
    assert typed("list", index, "--limit", "4")[1] == ""
    assert len(typed("list", index, "--limit", "0")[0].splitlines()) == 5


def test_csv_has_the_fields_of_json_and_no_formulas(make_index: MakeIndex) -> None:
    index = make_index([capture(1, URLS[0], mime=b"=cmd()")])
    (row,) = csv.DictReader(io.StringIO(typed("list", index, "--csv")[0]))
    shown = json.loads(typed("list", index, "--json")[0])
    assert row.keys() == shown.keys()
    assert row["url"] == shown["url"] and row["mime"] == "'=cmd()"


def test_lookups_take_the_digests_that_are_listed(make_index: MakeIndex) -> None:
    """Rows of CDX files spell digests without a label."""
    index = make_index([capture(1, URLS[0])._replace(spelling=Spelling(0, 0))])
    (row,) = csv.DictReader(io.StringIO(typed("list", index, "--csv")[0]))
    shown = json.loads(typed("list", index, "--json")[0])
    assert row["digest"] == shown["digest"] == str(sha1(1))
    assert f" {shown['digest']} " in typed("list", index)[0]
    typed("lookup", index, "--digest", shown["digest"])


def pages(index: Path, *options: object, most: int = 2) -> list[list[dict[str, Any]]]:
    """The captures of a list, page by page, each from where the one before says."""
    found: list[list[dict[str, Any]]] = []
    after: str | None = ""
    while after is not None:
        words = ("list", index, *options, "--json", "--next", "--limit", most, "--after", after)
        out = typed(*words)[0]
        *rows, last = map(json.loads, out.splitlines())
        after = last["next"]
        found.append(rows)
    return found


@pytest.mark.parametrize("settings", [Settings(), Settings(url_index=False, canonical=False)])
@pytest.mark.parametrize("engine", ENGINES)
def test_pages_of_a_list_are_the_list(
    settings: Settings, engine: str, make_index: MakeIndex
) -> None:
    held = [capture(1, b"http://h%d.example/" % number) for number in range(6)]  # one digest
    held += [capture(number, URLS[number % 3]) for number in range(2, 7)]
    index = make_index(held, settings, engine)
    whole = [json.loads(line) for line in typed("list", index, "--json")[0].splitlines()]
    for most in (1, 2, 3, len(whole), 50):
        found = pages(index, most=most)
        assert [row for rows in found for row in rows] == whole
        assert [len(rows) for rows in found[:-1]] == [most] * (len(found) - 1)
    chosen = [row for row in whole if row["url"].endswith(".example/c")]
    for how in (("--host", "other.example"), ("--prefix", "http://other.")):
        assert [row for rows in pages(index, *how, most=1) for row in rows] == chosen


def test_a_list_goes_on_though_the_index_has_changed(index: Path, tmp_path: Path) -> None:
    (first,), *_ = pages(index, most=1)
    out, _ = typed("list", index, "--json", "--next", "--limit", "1")
    after = json.loads(out.splitlines()[-1])["next"]
    rest = listed(index, "--after", after)
    typed("purge", index, "--url", first["url"])  # what the position names is gone
    gone = [one for one in rest if one[1] != first["url"]]
    assert listed(index, "--after", after) == gone and len(gone) > 1


def test_a_search_ends_in_time_and_says_where_to_go_on(index: Path) -> None:
    whole, after = [], ""
    for _ in range(4):  # each reads one capture, whatever it is asked for
        words = ("list", index, "--seconds", "1e-9", "--after", after)
        out, said = typed(*words, "--json", "--next")
        *rows, last = map(json.loads, out.splitlines())
        whole += rows
        assert f"the search ended after 1e-09 s; --after {last['next']} goes on\n" in said
        assert typed(*words, "--json", "--next", "--status", "404")[
            0
        ] == f"{json.dumps(last)}\n".replace(" ", "")
        after = last["next"]
    assert [(one["date"], one["url"]) for one in whole] == listed(index)
    assert typed(*words[:2], "--after", after, status=10)[1] == "no further capture matches\n"
    out, said = typed("list", index, "--limit", "3")
    assert re.search(r"--limit 0 lists all, --after [\w.]+ lists the next\n", said)
    assert typed("list", index, "--seconds", "600") == typed("list", index)


def test_positions_that_are_none_are_refused(index: Path) -> None:
    for none in ("x", "00ff.1", "02.1", "", ".", "02" + "00" * 29, "02" + "00" * 29 + ".1"):
        status = 4 if none else 0
        said = typed("list", index, "--after", none, status=status)[1]
        assert not none or f"no list of captures has a position {none!r}" in said
    for words in (("--after", "02.1"), ("--seconds", "1"), ("--json", "--next")):
        for kind in (("--url", "http://x/"), ("--url", ""), ("--digest", sha1(1))):
            assert "are not for --url" in typed("list", index, *words, *kind, status=2)[1]
    for none in ("nan", "-nan", "NaN", "x"):
        said = typed("list", index, f"--seconds={none}", status=2)[1]
        assert f"{none!r} is not a number of at least 0" in said
    assert "-inf is not in the range" in typed("list", index, "--seconds=-inf", status=2)[1]
    assert typed("list", index, "--seconds=inf") == typed("list", index)  # as long as it takes
    assert "--next needs --json" in typed("list", index, "--next", status=2)[1]


def test_wrong_choices_are_refused(index: Path) -> None:
    assert "one of --url" in typed("list", index, "--url", "x", "--prefix", "y", status=2)[1]
    words = ("list", index, "--from", "2021-02", "--to", "2021")
    typed(*words, status=10)  # a part of it
    message = typed("list", index, "--from", "2021", "--to", "2020", status=2)[1]
    assert "--from 2021 is after --to 2020" in message
    message = typed("list", index, "--min-size", "2", "--max-size", "1", status=2)[1]
    assert "--min-size 2 is more than --max-size 1" in message
    assert "one of --csv" in typed("list", index, "--csv", "--json", status=2)[1]
    assert "is not a host name" in typed("list", index, "--host", "a..b", status=4)[1]
    words = ("export", "--self-contained", index, "--host", "a..b", "-o", index / "x.warc.gz")
    assert "is not a host name" in typed(*words, status=4)[1]
    bare = str(sha1(1)).removeprefix("sha1:")
    message = typed("list", index, "--digest", bare, status=4)[1]
    assert message.endswith(f"write sha1:{bare}\n")
    message = typed("list", index, "--digest", "nonsense", status=4)[1]
    assert message.endswith("write sha1:…\n")
    message = typed("lookup", index, "--digest", bare, status=4)[1]
    assert f"write sha1:{bare}, or add --unlabelled sha1 (or" in message
    assert "no index" in typed("list", index / "none", status=6)[1]


def test_lookup_with_a_url_alone_lists_it(index: Path) -> None:
    url = URLS[0].decode()
    out, _ = typed("lookup", index, "--url", url)
    assert out == typed("list", index, "--url", url)[0] and len(out.splitlines()) == 3
    typed("lookup", index, "--url", "http://none.example/", status=10)
    wrong = ("lookup", index, "--digest", "sha1:X", "--max-age", "30days")
    assert (
        "--max-age takes a number and one of s m h d y, not '30days'" in typed(*wrong, status=4)[1]
    )
    message = typed("lookup", index, "--url", url, "--max-age", "1d", status=2)[1]
    assert "--max-age needs --digest; --url alone lists" in message
    message = typed("lookup", index, "--url", url, "--explain", "--strategy=x", status=2)[1]
    assert "--explain, --strategy need --digest; --url alone lists" in message
    config = index.parent / "settings.toml"
    config.write_text("[lookup]\nstrategy = 'EXACT_URL'\n")  # for lookups
    assert typed("lookup", index, "--url", url, "--config", config)[0] == out


@pytest.mark.parametrize("engine", ENGINES)
def test_all_indexes_every_media_type(engine: str, tmp_path: Path) -> None:
    source, index = tmp_path / "x.cdx", tmp_path / "index"
    source.write_text(HEADER + cdx_line(1, 1, 1).replace("image/png", "text/html"))
    out, _ = typed("index", "--engine", engine, source, tmp_path / "without")
    assert "nothing was added: 1 of 1 refused records is 'mime' (left out by --mime;" in out
    assert listed(tmp_path / "without", status=10) == []
    typed("index", "--all", "--engine", engine, source, index)
    assert len(listed(index)) == 1
    assert "--all" in json.loads(typed("index", "--stats", "--json", index)[0])["options"]
    typed("index", "--add", source, index)  # with the settings of the index
    typed("index", "--add", "--all", source, index)  # the same settings
    typed("index", "--add", "--all", source, tmp_path / "without", status=5)
    assert "leave --mime out" in typed("index", "--all", "-m", "x", source, index, status=2)[1]
