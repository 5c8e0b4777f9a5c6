"""The dialect of CDX servers: recorded exchanges to the letter, and every query by brute force."""

from __future__ import annotations

import json
import re
import time
from base64 import b32encode
from collections.abc import Callable
from pathlib import Path
from time import thread_time
from typing import Any
from urllib.parse import quote_plus

import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dedupindex.capture import Capture, Covers, Evidence
from dedupindex.digest import EMPTY, Digest, Spelling
from dedupindex.errors import BadQuery
from dedupindex.index.identity import Settings
from dedupindex.runtime.safe_regex import of_request
from dedupindex.timestamps import digits_of_date
from dedupindex.urlkey import urlkey
from server.api.cdx_query import FIELDS, FILTERS, IGNORED, PARAMETERS, Sieve, filter_of
from server.api.cdx_server_api import PATHS
from tests.conftest import MakeIndex
from tests.support.budgets import examples
from tests.support.captures import capture, sha1
from tests.support.paths import ROOT
from tests.unit.server.test_crawl_api import begin, error, report, served

BY_URL = Settings(by_url=True, status="2xx,3xx,404", min_size=0)
PAGE = b"http://127.0.0.1:19301/b?x=1&y=2"
SPACED = "http://example.org/a b?x=1&y=é".encode()
OLD, NEW = b"2020-01-02T03:04:05Z", b"2021-01-02T03:04:05.678Z"
GO = "http://example.com/a"


def text_of(digest: Digest) -> str:
    return b32encode(digest.raw).decode().rstrip("=")


@pytest.fixture
def web(make_index: MakeIndex) -> FlaskClient:
    """A server over an index with captures of one URL, of its neighbours, and of worse kinds."""
    empty = next(one for one in EMPTY if one.algorithm == "sha1")
    return served(
        make_index(
            [
                capture(1, PAGE, date=OLD, size_of_record=True, size=321),
                capture(2, PAGE, date=NEW, container="/warcs/new one.warc.gz"),
                capture(3, PAGE + b"&z=3"),
                capture(4, b"https://127.0.0.1:19301/b?y=2&x=1", date=NEW),
                capture(5, SPACED, date=OLD),
                capture(6, b"http://bad.org/", status=404),
                capture(7, b"http://bad.org/", status=302),
                capture(8, b"http://bad.org/", size=0),
                capture(9, b"http://bad.org/")._replace(digest=empty),
            ],
            BY_URL,
        )
    )


def lines(web: FlaskClient, query: str, path: str = "/cdx") -> list[str]:
    response = web.get(f"{path}?{query}")
    assert (response.status_code, response.mimetype) == (200, "text/plain"), response.text
    assert response.text == "" or response.text.endswith("\n")
    return response.text.splitlines()


# --- recorded exchanges --------------------------------------------------------------------------


def test_queries_of_warcprox(web: FlaskClient) -> None:
    tail = "&fl=timestamp%2Cdigest&filter=%21mimetype%3Awarc%2Frevisit&limit=-1"
    url = "http%3A%2F%2F127.0.0.1%3A19301%2Fb%3Fx%3D1%26y%3D2"
    assert web.get(f"/cdx?url={url}{tail}").data == b"20210102030405 %b\n" % text_of(
        sha1(2)
    ).encode("ascii")
    spaced = "http%3A%2F%2Fexample.org%2Fa+b%3Fx%3D1%26y%3D%C3%A9"
    assert lines(web, f"url={spaced}{tail}") == [f"20200102030405 {text_of(sha1(5))}"]
    response = web.get(f"/cdx?url=http%3A%2F%2Fnowhere.org%2F{tail}")
    assert (response.status_code, response.data) == (200, b"")
    hexadecimal = [f"20210102030405 {sha1(2).raw.hex()}"]
    assert lines(web, f"url={url}{tail}&bridge=1", "/cdx/hex") == hexadecimal
    assert lines(web, f"url={url}{tail}&bridge=1&digest=hex") == hexadecimal


def test_a_digest_in_another_encoding_is_not_listed(make_index: MakeIndex) -> None:
    spelled = [capture(n, PAGE)._replace(spelling=Spelling(n % 2, n)) for n in range(6)]
    web = served(make_index(spelled, BY_URL))
    query = f"url={quote_plus(PAGE)}&fl=digest"
    assert lines(web, query) == [text_of(sha1(0))]
    assert lines(web, query, "/cdx/hex") == [sha1(2).raw.hex()]
    assert lines(web, f"{query}&filter=digest:{text_of(sha1(2))}") == []
    assert len(lines(web, query + "&bridge=1")) == 6


def test_queries_of_zeno(web: FlaskClient) -> None:
    query = "url=http%3A%2F%2F127.0.0.1%3A19301%2Fb%3Fx%3D1%26y%3D2&limit=-1"
    (line,) = lines(web, query, "/web/timemap/cdx")
    fields = line.split()
    assert fields == [
        "1,0,0,127:19301)/b?x=1&y=2", "20210102030405", PAGE.decode(), "image/png", "200",
        text_of(sha1(2)), "-", "-", "-", "2000", "new%20one.warc.gz",
    ]  # fmt: skip


def test_queries_of_the_wbm_processor(web: FlaskClient) -> None:
    """It takes 14 digits and 32 characters with a space behind, of the last line."""
    response = web.get("/cdx?url=http%3A%2F%2F127.0.0.1%3A19301%2Fb%3Fx%3D1%26y%3D2&limit=-1")
    assert response.status_code == 200
    assert re.fullmatch(rb"\S+ (\d{14}) \S+ \S+ \S+ ([A-Z0-9]{32}) .*\n", response.data)
    response = web.get("/cdx?url=http%3A%2F%2F127.0.0.1%3A18201%2Ffavicon.ico&limit=-1")
    assert (response.status_code, response.data) == (200, b"")


def test_captures_that_cannot_be_originals_are_not_listed(web: FlaskClient) -> None:
    assert lines(web, "url=http://bad.org/") == []


def test_queries_of_ukwa(web: FlaskClient) -> None:
    query = "limit=100&matchType=exact&filter=!mimetype:failure-status-code.*&sort=reverse&url="
    found = lines(web, query + quote_plus(PAGE))
    assert [line.split()[1] for line in found] == ["20210102030405", "20200102030405"]
    assert {line.split()[2] for line in found} == {PAGE.decode()}


def test_queries_of_jwarc(web: FlaskClient) -> None:
    query = "sort=reverse&rows=10&matchType=exact&url=" + quote_plus(PAGE)
    assert [line.split()[5] for line in lines(web, query)] == [text_of(sha1(2)), text_of(sha1(1))]


def test_queries_of_pywb_that_resolve_a_revisit(web: FlaskClient) -> None:
    query = (
        f"url={quote_plus(PAGE)}&closest=20200102030405&filter=!mime:warc/revisit"
        f"&filter=digest:{text_of(sha1(1))}&output=cdxj"
    )
    (line,) = lines(web, query)
    key, timestamp, rest = line.split(" ", 2)
    assert (key, timestamp) == ("1,0,0,127:19301)/b?x=1&y=2", "20200102030405")
    content = json.loads(rest)
    assert content["url"] == PAGE.decode()
    assert content["length"] == "321"
    assert (content["mime"], content["status"]) == ("image/png", "200")


def test_queries_of_pywb_with_a_remote_index(web: FlaskClient) -> None:
    """For one capture the nearest to its date, for its calendar all by time; then by prefix."""
    query = "url=http%3A//127.0.0.1%3A19301/b%3Fx%3D1%26y%3D2"
    tail = "&closest=20200601000000&sort=closest&limit=100&matchType=exact"
    assert [line.split()[1] for line in lines(web, query + tail)] == [
        "20200102030405",
        "20210102030405",
    ]
    found = lines(web, query + "&closest=&sort=closest&matchType=exact")
    assert [line.split()[1] for line in found] == ["20200102030405", "20210102030405"]
    tail = "&closest=&sort=closest&matchType=prefix"
    assert error(web.get(f"/cdx?{query}{tail}")) == (400, "bad_query")


def test_queries_of_archiveteam(web: FlaskClient) -> None:
    tail = "&fl=timestamp,original&filter=!mimetype:warc\\/revisit&limit=100"
    query = f"url={quote_plus(PAGE)}&filter=digest:{text_of(sha1(2))}{tail}"
    path = "/cdx/search"
    assert lines(web, f"{query}&to=20210102030405", path) == [f"20210102030405 {PAGE.decode()}"]
    assert lines(web, f"{query}&to=20210102030404", path) == []
    assert lines(web, f"{query}&to=20210101999999", path) == []  # a time less one


def test_queries_of_outbackcdx_clients(web: FlaskClient) -> None:
    query = f"url={quote_plus(PAGE)}&limit=1&output="
    assert web.get(f"/cdx?{query}json").get_json()[0] == list(FIELDS)
    assert web.get(f"/cdx?{query}json&fl=url,digest").get_json() == [
        ["url", "digest"],
        [PAGE.decode(), text_of(sha1(1))],
    ]
    (only,) = web.get(f"/cdx?{query}jsondict").get_json()
    assert (only["url"], only["timestamp"]) == (PAGE.decode(), "20200102030405")
    nothing = "url=http://nowhere.org/&output="
    assert web.get(f"/cdx?{nothing}json").get_json() == []
    assert web.get(f"/cdx?{nothing}jsondict").get_json() == []


# --- exactness, errors ---------------------------------------------------------------------------


def test_other_urls_are_listed_only_with_match_type_canonical(web: FlaskClient) -> None:
    query = "url=" + quote_plus(PAGE)
    exact = [line.split()[2] for line in lines(web, query)]
    assert set(exact) == {PAGE.decode()}
    canonical = [line.split()[2] for line in lines(web, query + "&matchType=canonical")]
    assert set(canonical) == {PAGE.decode(), "https://127.0.0.1:19301/b?y=2&x=1"}


def test_a_url_that_a_line_cannot_carry_is_left_out(web: FlaskClient) -> None:
    query = "url=" + quote_plus(SPACED)
    assert lines(web, query) == []
    assert lines(web, query + "&fl=timestamp") == ["20200102030405"]
    assert web.get(f"/cdx?{query}&fl=url&output=json").get_json()[1] == [SPACED.decode()]


@pytest.mark.parametrize("path", PATHS)
def test_an_index_without_by_url_is_refused_with_advice(path: str, make_index: MakeIndex) -> None:
    web = served(make_index([capture(1, PAGE)]))
    response = web.get(f"{path}?url={quote_plus(PAGE)}")
    assert error(response) == (409, "strategy_unavailable")
    assert "--by-url" in response.text
    query = f"url={quote_plus(PAGE)}&bridge=1&filter=digest:{text_of(sha1(1))}"
    assert len(lines(web, query, path)) == 1  # a digest finds without a list
    assert len(lines(web, query.replace("=digest", "==digest") + "&matchType=canonical")) == 1
    assert error(web.get(f"/cdx?{query.replace('filter=', 'filter=!')}"))[0] == 409


@pytest.mark.parametrize(
    "query",
    [
        "", "url=", "url=a&url=b", "url=a&limit=x", "url=a&from=2020-01", "url=a&to=x",
        "url=a&sort=up", "url=a&sort=closest", "url=a&closest=20261340", "url=a&output=xml",
        "url=a&matchType=prefix", "url=a&matchType=host", "url=a&matchType=domain",
        "url=http://a/*", "url=*.example.org",
        "url=a&matchType=near", "url=a&fl=color", "url=a&fl=url&fields=url", "url=a&page=2",
        "url=a&filter=x", "url=a&filter=color:red", "url=a&filter=~url:(",
        "url=a&filter=~url:(a{40}){40}", "url=a&filter=~url:(a)\\1", "url=a&filter=~url:a**",
        "url=a&filter=~url:(%3F=a)", "url=a&filter=~url:(%3F<!a)b", "url=a&digest=md4",
        "url=a&filter=~url:" + "a" * 201, "url=a&filter=url:" + "a" * 2001,
    ],
)  # fmt: skip
def test_unanswerable_queries_are_refused(query: str, web: FlaskClient) -> None:
    assert error(web.get(f"/cdx?{query}")) == (400, "bad_query")


def test_regular_expressions_take_bounded_time(make_index: MakeIndex) -> None:
    url = "http://a.org/" + "a" * 1900
    web = served(
        make_index([capture(1, url.encode()), capture(2, b"http://a/" + b"a" * 3000)], BY_URL)
    )
    start = time.process_time()
    assert lines(web, f"url={url}&filter=~url:.*a*b") == []
    assert time.process_time() - start < 5
    assert lines(web, f"url={url}&filter=~url:(?:.*a|b)".replace("?:", "%3F:"))
    long = "http://a/" + "a" * 3000
    assert error(web.get(f"/cdx?url={long}&filter=~url:.*b")) == (400, "bad_query")
    assert lines(web, f"url={long}&filter=!url:b")


def test_the_filters_of_a_query_are_limited(make_index: MakeIndex) -> None:
    """So many, and all their expressions together so many steps."""
    url = "http://a.org/" + "a" * 1900
    stored = [capture(1, url.encode()), *(capture(number, PAGE) for number in range(2, 7))]
    web = served(make_index(stored, BY_URL))
    for plain in ("!mimetype:x", "!~mimetype:x.*"):
        query = f"url={quote_plus(PAGE)}" + f"&filter={plain}" * FILTERS
        assert len(lines(web, query)) == 5
        assert error(web.get(f"/cdx?{query}&filter={plain}")) == (400, "bad_query")
    start = thread_time()
    for worst in ("(" + "." * 190 + ")*b", "(a+)+b", ".*.*.*.*b", "a?a?a?b", "(a|b)(a|b)b"):
        query = f"url={url}" + f"&filter=~url:{quote_plus(worst)}" * FILTERS
        assert lines(web, query) == []
    assert thread_time() - start < 2
    assert lines(web, f"url={url}&filter=~url:.*a.*") == lines(web, f"url={url}")


def test_expressions_are_matched_once_per_value() -> None:
    """What is often the same, as a URL of thousands of captures, costs as much as one."""
    value, asked = "http://a.org/" + "a" * 1900, "url:.*(a.?){40}c"
    met, steps = Sieve((filter_of(asked),)), of_request(".*(a.?){40}c").steps(len(value))
    assert not any(met.passes(sha1(1), lambda field: value) for _ in range(10_000))
    most = int(300e6 // steps)
    different = Sieve((filter_of("!" + asked),))
    for number in range(most):
        assert different.passes(sha1(1), lambda field, n=number: value[:-4] + f"{n:04}")  # type: ignore[misc]
    with pytest.raises(BadQuery, match="take too long"):
        different.passes(sha1(1), lambda field: value[:-4] + "last")


def test_an_outage_is_not_a_miss(tmp_path: Path) -> None:
    web = served(tmp_path / "nowhere")
    assert error(web.get("/cdx?url=a")) == (503, "index_unavailable")


def test_captures_are_listed_only_to_crawls_that_see_them(make_index: MakeIndex) -> None:
    web = served(make_index([capture(1, GO.encode())], BY_URL))
    begin(web)
    begin(web, "shared", seen_by="all")
    query = f"url={GO}&fl=digest"
    for name, number in (("a", 2), ("shared", 3)):
        web.post(f"/captures?crawl={name}", json=report(number, GO))
    assert lines(web, query) == [text_of(sha1(1)), text_of(sha1(3))]
    assert set(lines(web, query + "&crawl=a")) == {text_of(sha1(n)) for n in (1, 2, 3)}
    web.post("/crawls/a/commit")
    assert set(lines(web, query)) == {text_of(sha1(n)) for n in (1, 2, 3)}
    assert error(web.get(f"/cdx?{query}&crawl=b")) == (404, "unknown_crawl")


def test_captures_whose_digest_covers_other_bytes_are_not_listed(make_index: MakeIndex) -> None:
    items = [capture(number, PAGE, covers=covers) for number, covers in enumerate(Covers)]
    web = served(make_index(items, BY_URL))
    begin(web, digest_covers="entity")
    query = f"url={quote_plus(PAGE)}&fl=digest"
    assert len(lines(web, query)) == 4
    assert set(lines(web, query + "&crawl=a")) == {text_of(sha1(n)) for n in (0, 2, 3)}


def test_every_parameter_is_documented() -> None:
    text = (ROOT / "docs" / "crawlers.md").read_text()
    for name in [*PARAMETERS, *IGNORED, *FIELDS, *PATHS]:
        assert f"`{name}`" in text, name


# --- every query, by brute force -----------------------------------------------------------------

URLS = [
    b"http://example.com/a",
    b"https://www.example.com/a",
    b"http://example.com/A",
    b"http://b/",
]
STATUSES = [200, 200, 203, 302, 404, 0]
HELD = [
    capture(
        number,
        url,
        1 + number % 28,
        status=STATUSES[number % 6],
        mime=[b"image/png", b"text/html"][number % 2],
        size=number % 5,
        evidence=[Evidence.RECORD, Evidence.ROW][number % 2],
    )
    for url in URLS
    for number in range(1, 30)
]
NAMES: dict[str, Callable[[Capture], str]] = {
    "mimetype": lambda one: one.mime.decode(),
    "mime": lambda one: one.mime.decode(),
    "statuscode": lambda one: str(one.status) if one.status else "-",
    "status": lambda one: str(one.status) if one.status else "-",
    "digest": lambda one: text_of(one.digest),
    "timestamp": lambda one: digits_of_date(one.date).decode(),
    "original": lambda one: one.url.decode(),
    "url": lambda one: one.url.decode(),
    "urlkey": lambda one: urlkey(one.url).decode(),
}
VALUES = [
    "image/png", "image/.*", "200", "20[03]", "text/html|image/png", text_of(sha1(3)), "A.*",
    "2026110.*", "http://example.com/a", ".*www.*", "com,example\\)/a", "-",
]  # fmt: skip


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> FlaskClient:
    from tests.support.engine_bench import Bench

    bench = Bench(tmp_path_factory.mktemp("cdx"), "lmdb", BY_URL)
    bench.load(HELD)
    return served(bench.index)


def expected(url: bytes, given: dict[str, Any]) -> list[str]:
    found: list[Capture] = []
    for one in HELD:
        alike = urlkey(one.url) == urlkey(url) if given["canonical"] else one.url == url
        digits = digits_of_date(one.date).decode()
        if not alike or one.status in (302, 404) or not one.size:
            continue
        if not (digits[: len(given["from"])] >= given["from"]):
            continue
        if given["to"] and digits[: len(given["to"])] > given["to"]:
            continue
        if all(
            (
                NAMES[name](one) == value
                if how == "="
                else re.fullmatch(value, NAMES[name](one)) is not None
            )
            is not bool(negated)
            for negated, how, name, value in given["filters"]
        ):
            found.append(one)
    found.sort(key=lambda one: (one.date, one.url, one.digest))
    if given["sort"] == "reverse":
        found.reverse()
    if given["sort"] == "closest":
        found.sort(key=lambda one: abs(int(one.date[8:10]) - given["closest"]))
    limit = given["limit"]
    if limit is not None:
        found = found[:limit] if limit >= 0 else found[limit:]
    return [f"{digits_of_date(one.date).decode()} {text_of(one.digest)}" for one in found]


asked = st.fixed_dictionaries(
    {
        "canonical": st.booleans(),
        "from": st.sampled_from(["", "2026", "2026111", "20261115091417", "2027"]),
        "to": st.sampled_from(["", "2026", "2026111", "20261115091417", "2025"]),
        "sort": st.sampled_from(["default", "reverse", "closest"]),
        "closest": st.integers(1, 28),
        "limit": st.one_of(st.none(), st.integers(-40, 40)),
        "filters": st.lists(
            st.tuples(
                st.sampled_from(["", "!"]),
                st.sampled_from(["", "~", "="]),
                st.sampled_from(sorted(NAMES)),
                st.sampled_from(VALUES),
            ),
            max_size=3,
        ),
    }
)


@given(st.sampled_from([*URLS, b"http://nowhere.org/"]), asked)
@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_answers_match_a_scan_of_all_captures(
    full: FlaskClient, url: bytes, given: dict[str, Any]
) -> None:
    query = f"url={quote_plus(url)}&fl=timestamp,digest"
    query += "&matchType=canonical" if given["canonical"] else ""
    for name in ("from", "to"):
        query += f"&{name}={given[name]}" if given[name] else ""
    if given["sort"] == "closest":
        query += f"&closest=202611{given['closest']:02}091417"
    else:
        query += f"&sort={given['sort']}"
    query += "" if given["limit"] is None else f"&limit={given['limit']}"
    for negated, how, name, value in given["filters"]:
        query += f"&filter={quote_plus(negated + how + name + ':' + value)}"
    assert lines(full, query) == expected(url, given)
