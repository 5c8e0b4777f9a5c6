"""Policies: their syntax, and the originals that they allow, against a simple model."""

from __future__ import annotations

import json
import re
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from time import thread_time
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from dedupindex.capture import Capture
from dedupindex.cli.common import NOTHING_FOUND
from dedupindex.crawls.store import Writing
from dedupindex.digest import Digest
from dedupindex.errors import BadInput
from dedupindex.index.engine import Finder
from dedupindex.index.identity import Settings
from dedupindex.lookup.conditions import LONGEST_AGE
from dedupindex.lookup.decide import Match, Query, as_json, decide
from dedupindex.lookup.explain import explanation_json
from dedupindex.lookup.policy import (
    MAX_RULES,
    NO_POLICY,
    Policy,
    PolicyRule,
    parse_policy,
    policy_from_json,
    read_policy,
)
from dedupindex.timestamps import seconds
from dedupindex.urlkey import urlkey
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1
from tests.support.paths import ROOT
from tests.unit.cli.test_cli import dedupindex

PAGE, NOW = b"http://example.org/a", "2026-11-20T09:14:17Z"


class Held(Finder):
    """Some captures, as a view of an index finds them."""

    def __init__(self, captures: list[Capture]) -> None:
        self._captures = captures

    def exact(self, digest: Digest, url: bytes) -> list[Capture]:
        return [one for one in self._captures if (one.digest, one.url) == (digest, url)]

    def canonical(self, digest: Digest, key: bytes, limit: int) -> list[Capture]:
        return [one for one in self.any(digest, limit) if urlkey(one.url) == key]

    def any(self, digest: Digest, limit: int) -> list[Capture]:
        return [one for one in self._captures if one.digest == digest][:limit]

    def denies(self, digest: Digest, capture: Capture) -> str:
        return ""

    def at_url(self, url: bytes) -> Iterator[Capture]:
        return iter(())

    at_urlkey = at_url


@pytest.mark.parametrize(
    "wrong",
    [
        {}, "never", [[]], [{"host": ""}], [{"host": 1}], [{"never": False}], [{"never": 1}],
        [{"min_size": "1"}], [{"min_size": -1}], [{"min_size": True}], [{"max_age": "1w"}],
        [{"max_age": 1.5}], [{"blackout": -1}], [{"blackout": True}], [{"originals_from": "a"}],
        [{"max_age": "999999999999y"}], [{"blackout": "32000y"}], [{"originals_from": []}],
        [{"originals_from": [1]}], [{"ever": True}], [{"url": "(a"}],
        [{"url": "(?=a)"}], [{"url": "a**"}], [{"url": r"(a)\1"}], [{"url": "x" * 201}],
        [{"mime": "x" * 301}], [{}] * (MAX_RULES + 1), [{"never": True, "min_size": 1}],
        [{"embargo": "soon"}], [{"embargo": 2030}], [{"never": True, "embargo": "2030-01-01"}],
        [{"prefer": "best"}], [{"prefer": "latest", "original_host": "a.example"}],
        [{"original_host": ""}], [{"original_prefix": 1}], [{"prefer": "latest", "never": True}],
    ],
)  # fmt: skip
def test_invalid_policies_are_refused(wrong: Any) -> None:
    with pytest.raises(BadInput):
        parse_policy(wrong)
    if isinstance(wrong, list) and len(wrong) == 1:
        with pytest.raises(BadInput, match="rule 2 of the policy"):
            parse_policy([{}, *wrong])


def test_a_policy_is_read_from_toml_and_json(tmp_path: Path) -> None:
    rules = [{"host": ".Example.org", "mime": "image/*", "never": True}, {"max_age": "30d"}]
    toml = '[[rules]]\nhost = ".Example.org"\nmime = "image/*"\nnever = true\n'
    (tmp_path / "p.toml").write_text(toml + '[[rules]]\nmax_age = "30d"\n')
    (tmp_path / "p.json").write_text(json.dumps({"rules": rules}))
    policy = read_policy(tmp_path / "p.toml")
    assert policy == read_policy(tmp_path / "p.json") == parse_policy(rules)
    assert policy.rules[1] == PolicyRule(max_age=30 * 86400)
    assert parse_policy([rule.as_json() for rule in policy.rules]) == policy
    assert policy_from_json([rule.as_json() for rule in policy.rules]) == policy
    for text in ("rules = 1", "[[rule]]", "rules = [", "\0"):
        (tmp_path / "p.toml").write_text(text)
        with pytest.raises(BadInput):
            read_policy(tmp_path / "p.toml")
    with pytest.raises(BadInput, match="cannot be read"):
        read_policy(tmp_path / "none")


@pytest.mark.parametrize(
    ("host", "url", "met"),
    [
        ("example.org", b"http://EXAMPLE.org:80/", True),
        ("example.org", b"http://www.example.org/", False),
        (".example.org", b"http://example.org/", True),
        (".example.org", b"http://a.b.example.org/", True),
        (".example.org", b"http://badexample.org/", False),
        (".example.org", b"http://example.org.evil.net/", False),
        (".example.org", b"http://user@example.org/", True),
        (".example.org", b"", False),
        (".example.org", b"http://example.org./", True),
        ("example.org.", b"http://example.org:80/", True),
        ("example.org", b"http://example.org..:80/", False),
        ("example.org", b"http://a@b:c@example.org/", True),
        ("b", b"http://a@b@example.org/", False),
        ("example.org", b"http://evil.net/@example.org/", False),
        ("example.org", b"http://evil.net?@example.org/", False),
        ("a", b"http://a@/", False),
    ],
)
def test_hosts(host: str, url: bytes, met: bool) -> None:
    applied = parse_policy([{"host": host, "never": True}]).rules_for(url, b"")
    assert applied.never() is met


def test_a_url_is_matched_whole_and_in_bounded_time() -> None:
    policy = parse_policy([{"url": "http://[a-z]+/.*x", "never": True}])
    assert policy.rules_for(b"http://a/x", b"").never()
    assert not policy.rules_for(b"http://a/xy", b"").never()
    assert not policy.rules_for(b"http://a/" + b"x" * 3000, b"").never()
    start = time.process_time()
    assert not policy.rules_for(b"http://" + b"a" * 1990, b"").never()
    assert time.process_time() - start < 1


def test_policies_in_the_docs_are_valid() -> None:
    text = (ROOT / "docs" / "http.md").read_text()
    written = [one for one in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "rules" in one]
    assert [len(parse_policy(tomllib.loads(one)["rules"]).rules) for one in written] == [2]


def test_the_expressions_of_a_policy_take_bounded_time() -> None:
    """Those of one URL in all, however many rules there are; what is short enough is none of it."""
    slow = {"url": "(.{1,9}){9}b", "never": True}
    with pytest.raises(BadInput, match="take too long"):
        parse_policy([slow] * 90)
    policy = parse_policy(
        [slow] * 10 + [{"url": f"http://{n}.*", "never": True} for n in range(90)]
    )
    for length in (480, 1990):
        start = thread_time()
        assert not policy.rules_for(b"http://" + b"a" * length, b"").never()
        assert thread_time() - start < 2
    assert policy.rules_for(b"http://aaab", b"").never()


CRAWLS, MIMES = ["", "weekly-1", "weekly-2", "other"], [b"", b"image/png", b"text/html"]
URLS = [PAGE, b"http://www.example.org/a", b"http://example.org/b", b"http://x.net/"]

held = st.lists(
    st.builds(
        capture,
        number=st.just(1),
        url=st.sampled_from(URLS),
        day=st.integers(1, 28),
        mime=st.sampled_from(MIMES),
        size=st.sampled_from([-1, 10, 2000]),
        crawl=st.sampled_from(CRAWLS),
    ),
    max_size=6,
    unique_by=lambda one: (one.url, one.date),
)
rules = st.fixed_dictionaries(
    {},
    optional={
        "host": st.sampled_from(["example.org", ".example.org", "x.net"]),
        "mime": st.sampled_from(["image/*", "text/html", "*"]),
        "url": st.sampled_from([".*/a", "http://x.*"]),
        "min_size": st.sampled_from([100]),
        "max_age": st.sampled_from(["3d", "12d"]),
        "blackout": st.sampled_from(["2d"]),
        "originals_from": st.sampled_from([["weekly-*"], ["other", "weekly-1"]]),
        "embargo": st.sampled_from(["2026-11-20", "2026-11-20T09:14:18Z"]),
        "prefer": st.sampled_from(["earliest", "latest", "same_host", "same_crawl"]),
    },
) | st.fixed_dictionaries(
    {"never": st.just(True)},
    optional={
        "mime": st.sampled_from(["image/*", "text/*"]),
        "url": st.sampled_from([".*/a"]),
        "original_host": st.sampled_from(["example.org", ".example.org"]),
        "original_prefix": st.sampled_from(["http://x.net", "http://example.org/b"]),
    },
)
ORIGINAL = {"original_host", "original_prefix"}


def decides(
    given_rules: list[dict[str, Any]], url: bytes, mime: bytes, original: bytes | None = None
) -> dict[str, Any]:
    """The first rule that matches, by the words of docs/http.md.

    Without `original`, the first of those without conditions on the original.
    """
    host = url.split(b"/")[2].decode()
    for rule in given_rules:
        wanted = rule.get("host", host)
        if host != wanted.removeprefix(".") and not (wanted[0] == "." and host.endswith(wanted)):
            continue
        if "mime" in rule and not (mime and fnmatchcase(mime.decode(), rule["mime"])):
            continue
        if rule.get("url") == ".*/a" and not url.endswith(b"/a"):
            continue
        if rule.get("url") == "http://x.*" and not url.startswith(b"http://x"):
            continue
        if original is None and rule.keys() & ORIGINAL:
            continue
        if original is not None:
            if not original.decode().startswith(rule.get("original_prefix", "")):
                continue
            own = original.split(b"/")[2].decode()
            wanted = rule.get("original_host", own)
            if own != wanted.removeprefix(".") and not (wanted[0] == "." and own.endswith(wanted)):
                continue
        return rule
    return {}


def days(text: str) -> int:
    return int(text[:-1]) * 86400


def lets(rule: dict[str, Any], one: Capture) -> bool:
    age = seconds(NOW.encode()) - seconds(one.date)
    return not (
        "never" in rule
        or rule.get("embargo") == "2026-11-20T09:14:18Z"
        or one.size < rule.get("min_size", -1)
        or ("max_age" in rule and age > days(rule["max_age"]))
        or ("originals_from" in rule
            and not any(fnmatchcase(one.crawl, name) for name in rule["originals_from"]))
    )  # fmt: skip


def preferred(captures: list[Capture], prefer: str, query: Query) -> Capture:
    """The best original of a group."""
    host = query.url.split(b"/")[2]

    def rank(one: Capture) -> tuple[bool, int, bytes]:
        other = (
            prefer == "same_host" and one.url.split(b"/")[2] != host
            or prefer == "same_crawl" and one.crawl != query.crawl
        )  # fmt: skip
        moment = seconds(one.date)
        return other, -moment if prefer == "latest" else moment, one.url

    return min(captures, key=rank)


@given(held, st.lists(rules, max_size=3), st.sampled_from(URLS), st.sampled_from(MIMES))
def test_policy_decisions_match_the_model(
    captures: list[Capture], given_rules: list[dict[str, Any]], url: bytes, mime: bytes
) -> None:
    moment = NOW.encode()
    policy = parse_policy(given_rules)
    query = Query(sha1(1), url, as_of=moment, mime=mime, crawl="weekly-1", policy=policy)
    before = Query(sha1(1), url, as_of=moment)
    view, settings = Held(captures), Settings()
    decision = decide(view, settings, query)
    past = [one for one in captures if one.date <= moment]
    rule_for = {id(one): decides(given_rules, url, mime or one.mime, one.url) for one in past}
    passing = [one for one in past if lets(rule_for[id(one)], one)]
    expected = decide(Held(passing), settings, before).answer
    assert (decision.answer and decision.answer.match) == (expected and expected.match)
    if decision.answer is not None:
        match = decision.answer.match
        group = [one for one in passing if match is Match.DIGEST or urlkey(one.url) == urlkey(url)]
        group = [one for one in group if match is not Match.EXACT_URL or one.url == url]
        prefer = decides(given_rules, url, mime or group[0].mime).get("prefer", "")
        assert decision.answer.original == preferred(group, prefer, query)
    skipped = [
        one
        for one in passing
        if one.url == url
        and "blackout" in rule_for[id(one)]
        and seconds(moment) - seconds(one.date) <= days(rule_for[id(one)]["blackout"])
    ]
    assert bool(decision.answer and decision.answer.skip) == bool(skipped)
    if decision.answer is None:
        assert not passing
        never = bool(mime) and "never" in decides(given_rules, url, mime)
        assert bool(decision.policy) or not past
        assert decision.policy == "never" or not never
    verdicts = [one["verdict"] for one in explanation_json(view, settings, query)["considered"]]
    assert ("chosen" in verdicts) == (decision.answer is not None)


def test_without_a_policy_everything_may_answer() -> None:
    view = Held([capture(1, PAGE)])
    for policy in (
        NO_POLICY,
        Policy((PolicyRule(),)),
        Policy((PolicyRule(), PolicyRule(never=True))),
    ):
        decision = decide(view, Settings(), Query(sha1(1), PAGE, policy=policy))
        assert decision.answer is not None and decision.answer.match is Match.EXACT_URL
        assert "skip" not in as_json(decision)


# --- over HTTP -----------------------------------------------------------------------------------


def served(index: Path, policy: Policy = NO_POLICY) -> FlaskClient:
    live = LiveIndex(index, policy)
    live.refresh()
    app = create_app(Config(index), live)
    app.extensions["live"] = live
    return app.test_client()


@pytest.fixture
def web(make_index: MakeIndex) -> FlaskClient:
    return served(make_index([capture(1, PAGE), capture(2, PAGE)]))


def ask(web: FlaskClient, number: int = 1, url: bytes = PAGE, **more: str) -> dict[str, Any]:
    """The answer: the same by query string, in a batch, and as JSON lines."""
    given = {"digest": str(sha1(number)), "url": url.decode(), **more}
    single = web.get("/lookup", query_string=given).get_json()
    if "explain" in given:  # a boolean in JSON
        return dict(single)
    for body in ({"lookups": [given]}, {"lookups": [{**given, **more}], **more}):
        assert web.post("/lookup", json=body).get_json()["answers"] == [single]
    lines = web.post("/lookup", data=json.dumps(given), content_type="application/x-ndjson")
    assert json.loads(lines.data) == single
    return dict(single)


def begin(web: FlaskClient, name: str = "a", **how: Any) -> dict[str, Any]:
    response = web.post("/crawls", json={"name": name, **how})
    assert response.status_code == 200, response.text
    return dict(response.get_json())


def put(web: FlaskClient, crawl: str, number: int, url: bytes = PAGE, date: str = NOW) -> None:
    report = {"digest": str(sha1(number)), "url": url.decode(), "date": date, "status": 200}
    done = web.post(f"/captures?crawl={crawl}", json={**report, "mime": "image/png", "size": 9})
    assert done.get_json()["added"] == 1, done.text


def test_a_crawl_has_a_policy_of_its_own(web: FlaskClient) -> None:
    rules = [{"url": ".*/a", "mime": "image/*", "never": True}]
    assert begin(web, policy=rules)["policy"] == rules
    assert ask(web)["match"] == "exact_url"
    assert ask(web, crawl="a") == {"duplicate": False, "policy": "never"}
    assert ask(web, crawl="a", mime="text/html; charset=utf-8")["match"] == "exact_url"
    assert ask(web, crawl="a", url=b"http://example.org/")["match"] == "digest"
    assert ask(web, 3, crawl="a") == {"duplicate": False}
    text = web.get(
        f"/lookup?digest={sha1(1)}&url={PAGE.decode()}&crawl=a", headers={"Accept": "text/plain"}
    )
    assert (text.status_code, text.headers["Dedup-Policy"]) == (204, "never")
    explained = ask(web, crawl="a", explain="1")
    assert explained["considered"][0]["verdict"] == "a policy says never"
    claim = {"crawl": "a", "digest": str(sha1(1)), "url": PAGE.decode()}
    for _ in range(2):  # nobody waits for what everybody must store
        claimed = web.post("/claims", json=claim).get_json()
        assert (claimed["claimed"], claimed["policy"]) == (True, "never")


def test_a_crawl_whose_ages_an_earlier_version_took_is_listed(web: FlaskClient) -> None:
    refused = web.post("/crawls", json={"name": "a", "policy": [{"max_age": "999999999999y"}]})
    assert (refused.status_code, refused.get_json()["error"]["code"]) == (400, "bad_query")
    assert f"at most {LONGEST_AGE:,} seconds" in refused.get_json()["error"]["message"]
    begin(web)
    ages = {"max_age": 10**12 * 31_557_600, "blackout": 10**12 * 31_557_600}
    live: LiveIndex = web.application.extensions["live"]

    def as_before(writing: Writing) -> None:
        earlier = Policy((PolicyRule(**ages),))
        writing.put_crawl(replace(writing.crawl("a"), policy=earlier))

    live.crawls.write(as_before)
    cut = [{"max_age": LONGEST_AGE, "blackout": LONGEST_AGE}]
    assert web.get("/crawls").get_json()["crawls"][0]["policy"] == cut
    assert web.get("/crawls/a").get_json()["policy"] == cut
    assert ask(web, crawl="a")["duplicate"]


def test_a_crawl_has_a_strategy_of_its_own(web: FlaskClient) -> None:
    begin(web, strategy="URL_EXACT")
    other = b"http://example.org/other"
    assert web.get("/crawls/a").get_json()["strategy"] == "EXACT_URL"
    assert ask(web, crawl="a", url=other) == {"duplicate": False}
    assert ask(web, crawl="a")["match"] == "exact_url"
    assert ask(web, crawl="a", url=other, strategy="DIGEST_ANY")["match"] == "digest"


def test_beginning_a_crawl_again_needs_the_same_settings(web: FlaskClient) -> None:
    how = {"strategy": "EXACT_URL", "policy": [{"never": True}], "namespace": "n"}
    crawl = begin(web, **how)
    assert begin(web, **how) == begin(web) == begin(web, policy=[{"never": True}]) == crawl
    for name, value in (("strategy", "DIGEST_ANY"), ("policy", []), ("namespace", "m")):
        refused = web.post("/crawls", json={"name": "a", name: value})
        assert (refused.status_code, refused.get_json()["error"]["code"]) == (409, "crawl_exists")
    form = {"name": "a", "policy": '[{"never": true}]'}
    assert web.post("/crawls", data=form).status_code == 200
    for wrong in ({"policy": "["}, {"policy": [1]}, {"strategy": "ANY"}, {"namespace": "a b"}):
        assert web.post("/crawls", json={"name": "b", **wrong}).status_code == 400


def test_the_rules_of_a_crawl_come_before_those_of_the_server(make_index: MakeIndex) -> None:
    policy = parse_policy([{"host": "example.org", "min_size": 5000}])
    web = served(make_index([capture(1, PAGE)], Settings(by_url=True)), policy)
    begin(web, policy=[{"mime": "image/*"}])
    begin(web, "b")
    assert ask(web) == ask(web, crawl="b") == {"duplicate": False, "policy": "min_size"}
    assert ask(web, crawl="a")["duplicate"] and ask(web, url=b"http://x.net/")["duplicate"]
    path = f"/cdx?url={PAGE.decode()}"
    assert web.get(path).text == "" and web.get(path + "&crawl=a").text.count("\n") == 1
    record = f"/api/records/{str(sha1(1))[5:]}?uri="
    assert web.get(record + PAGE.decode()).status_code == 404
    assert web.get(record + "http://x.net/").status_code == 200


def test_lookups_within_the_blackout_period_are_skipped(web: FlaskClient) -> None:
    begin(web, policy=[{"blackout": "1h"}])
    now = datetime.now(UTC)
    for number, ago in ((3, timedelta(minutes=5)), (4, timedelta(hours=2))):
        put(web, "a", number, date=(now - ago).strftime("%Y-%m-%dT%H:%M:%SZ"))
    assert ask(web, 3, crawl="a")["skip"] is True
    for number, url in ((3, b"http://example.org/b"), (4, PAGE), (1, PAGE)):
        answer = ask(web, number, crawl="a", url=url)
        assert answer["duplicate"] and "skip" not in answer
    text = web.get(
        f"/lookup?digest={sha1(3)}&url={PAGE.decode()}&crawl=a", headers={"Accept": "text/plain"}
    )
    assert text.headers["Dedup-Skip"] == "1" and b"WARC-Refers-To" in text.data


def test_a_revocable_original_never_causes_a_skip(web: FlaskClient) -> None:
    """If nothing was written, nothing can be repaired later."""
    now = datetime.now(UTC)
    begin(web, "a", policy=[{"blackout": "1h"}], seen_by="all")
    begin(web, "b", policy=[{"blackout": "1h"}])
    put(web, "a", 3, date=now.strftime("%Y-%m-%dT%H:%M:%SZ"))
    assert ask(web, 3, crawl="a")["skip"] is True
    other = ask(web, 3, crawl="b")
    assert other["duplicate"] and "skip" not in other
    web.post("/crawls/a/commit")
    assert ask(web, 3, crawl="b")["skip"] is True
    record = {"id": str(sha1(4))[5:], "uri": PAGE.decode(), "date": now.strftime("%Y%m%d%H%M%S")}
    assert web.post("/api/records", json=[record]).status_code == 201
    web.post("/crawls/doppelganger/commit")
    named = ask(web, 4, crawl="b")
    assert named["original"]["evidence"] == "revisit" and "skip" not in named


@pytest.mark.parametrize(
    ("rules", "mime", "word"),
    [
        ([{"never": True}], "", "never"),
        ([{"min_size": 1}], "image/png", "min_size"),
        ([{"max_age": 0}], "", "max_age"),
        ([{"originals_from": ["weekly-*"]}], "", "originals_from"),
        ([{"mime": "image/*", "never": True}], "", "never"),  # it may be an image
        ([{"mime": "image/*", "never": True}], "text/html", ""),
        ([{"mime": "image/*"}, {"never": True}], "image/png", ""),
        ([{"mime": "image/*"}, {"never": True}], "", "never"),
        ([{}, {"never": True}], "", ""),
        ([{"url": ".*/b", "never": True}], "", ""),
        ([{"host": "example.org.", "max_age": "1d"}], "", "max_age"),
        ([{"blackout": "1h"}], "", ""),
        ([{"embargo": "2099-01-01"}], "", "embargo"),
        ([{"original_host": "x.net", "never": True}], "", "never"),  # its own copy may be there
        ([{"original_host": "x.net"}, {"never": True}], "image/png", "never"),
        ([{"prefer": "latest"}], "", ""),
        ([], "", ""),
    ],
)
def test_claims_are_not_exclusive_where_a_policy_may_refuse_the_payload(
    web: FlaskClient, rules: list[Any], mime: str, word: str
) -> None:
    begin(web, policy=rules)
    asked = {"digest": str(sha1(5)), "url": PAGE.decode(), **({"mime": mime} if mime else {})}
    batch = {"lookups": [asked] * 2, "in_batch": True, "crawl": "a"}
    answers = web.post("/lookup", json=batch).get_json()["answers"]
    free = "policy" in answers[0] or word
    assert [one.get("in_batch") for one in answers] == [None, None if free else 0]
    one = web.post("/claims", json={**asked, "crawl": "a"}).get_json()
    two = web.post("/claims", json={"claims": [asked] * 2, "crawl": "a"}).get_json()["answers"]
    assert [answer["claimed"] for answer in (one, *two)] == [True, bool(word), bool(word)]
    assert {answer.get("policy", "") for answer in (one, *two)} == {word}
    assert [answer.get("in_batch") for answer in two] == [None, None if word else 0]


def test_a_claim_granted_by_a_policy_is_not_the_first_of_a_batch(web: FlaskClient) -> None:
    begin(web, policy=[{"url": ".*/a", "never": True}])
    other = "http://example.org/other"
    some = [{"digest": str(sha1(5)), "url": url} for url in (PAGE.decode(), other, other)]
    answers = web.post("/claims", json={"claims": some, "crawl": "a"}).get_json()["answers"]
    assert [one.get("in_batch") for one in answers] == [None, None, 1]
    assert [one["claimed"] for one in answers] == [True, True, False]


def test_originals_of_certain_crawls(web: FlaskClient) -> None:
    for name in ("weekly-1", "other"):
        begin(web, name)
        put(web, name, 3, b"http://%b.net/" % name.encode())
        web.post(f"/crawls/{name}/commit")
    begin(web, "a", policy=[{"originals_from": ["weekly-*"]}])
    put(web, "a", 4)
    assert ask(web, 3, crawl="a")["original"]["url"] == "http://weekly-1.net/"
    for number in (1, 4):  # of no crawl, and its own
        assert ask(web, number, crawl="a") == {"duplicate": False, "policy": "originals_from"}


def test_originals_under_an_embargo(web: FlaskClient) -> None:
    closed = {"original_prefix": "http://press.example/2026/", "embargo": "2027-01-01"}
    begin(web, "a", policy=[closed])
    put(web, "a", 3, b"http://press.example/2026/closed")
    refused = {"duplicate": False, "policy": "embargo"}
    before, after = "2026-12-31T23:59:59Z", "2027-01-01T00:00:00Z"
    assert ask(web, 3, crawl="a", as_of=before) == refused
    assert ask(web, 3, crawl="a", as_of=after)["duplicate"]
    assert ask(web, 1, crawl="a", as_of=before)["duplicate"]
    put(web, "a", 3, b"http://open.example/")  # a later copy may answer
    found = ask(web, 3, crawl="a", as_of=before, url=b"http://press.example/2026/closed")
    assert found["original"]["url"] == "http://open.example/"
    shown = ask(web, 3, crawl="a", as_of=before, explain="1")["considered"]
    assert "a policy has an embargo until 2027-01-01T00:00:00Z" in [one["verdict"] for one in shown]


def test_a_preference_among_originals(web: FlaskClient) -> None:
    dates = [f"2026-11-1{day}T09:14:17Z" for day in range(3)]
    urls = [b"http://first.example/", b"http://www.example.org/middle", b"http://last.example/"]
    begin(web, "z")
    for url, date in zip(urls, dates, strict=True):
        put(web, "z", 3, url, date)
    web.post("/crawls/z/commit")
    begin(web, "own", policy=[{"prefer": "same_crawl"}])
    put(web, "own", 3, b"http://own.example/", NOW)
    assert ask(web, 3, crawl="own")["original"]["url"] == "http://own.example/"
    url = b"http://www.example.org/other"
    for prefer, expected in (("earliest", 0), ("latest", 2), ("same_host", 1), ("same_crawl", 0)):
        begin(web, prefer, policy=[{"prefer": prefer}])
        found = ask(web, 3, url, crawl=prefer)
        assert found["original"]["url"] == urls[expected].decode(), prefer
    shown = ask(web, 3, url, crawl="same_host", explain="1")["considered"]
    assert [one["verdict"] for one in shown].count("chosen") == 1
    assert "not preferred: a policy prefers the same host" in {one["verdict"] for one in shown}


def test_a_preference_of_the_server_holds_for_lookups_without_a_crawl(
    make_index: MakeIndex,
) -> None:
    first, last = "http://first.example/", "http://last.example/"
    dates = {first: "2026-11-10T09:14:17Z", last: "2026-11-12T09:14:17Z"}
    captures = [capture(3, url.encode(), date=date.encode()) for url, date in dates.items()]
    index = make_index(captures)
    for prefer, expected in (("earliest", first), ("latest", last), ("same_host", last)):
        live = LiveIndex(index, parse_policy([{"prefer": prefer}]))
        live.refresh()
        web = create_app(Config(index), live).test_client()
        assert ask(web, 3, b"http://last.example/b")["original"]["url"] == expected, prefer
        live.opened().engine.close()  # type: ignore[attr-defined]


def test_crawls_of_other_namespaces_are_not_seen(web: FlaskClient) -> None:
    begin(web, "a", namespace="news")
    begin(web, "b", namespace="news")
    begin(web, "c", namespace="base")
    put(web, "a", 3)
    assert ask(web, 3, crawl="a")["original"]["committed"] is False
    assert not ask(web, 3, crawl="b")["duplicate"]
    assert web.post("/crawls/a/commit").status_code == 200
    assert ask(web, 3, crawl="b")["duplicate"] and ask(web, 3, namespace="base,news")["duplicate"]
    assert ask(web, 3, crawl="c", namespace="news")["duplicate"]
    for more in ({}, {"crawl": "c"}, {"namespace": "base"}):
        assert ask(web, 3, **more) == {"duplicate": False}
    assert ask(web, crawl="a")["duplicate"]  # the index answers everybody
    assert web.get("/crawls/a").get_json()["namespace"] == "news"
    for wrong in ("a b", "a,,b", ",".join(map(str, range(21)))):
        question = {"digest": str(sha1(3)), "namespace": wrong}
        assert web.get("/lookup", query_string=question).status_code == 400


def test_a_crawl_of_a_namespace_is_never_merged(make_index: MakeIndex) -> None:
    index = make_index([])
    web = served(index)
    for name in ("a", "b"):
        begin(web, name, namespace="news")
        put(web, name, 3, b"http://%b.net/" % name.encode())
        web.post(f"/crawls/{name}/commit")
    assert "dedupindex_crawls_unmerged 0.0" in web.get("/metrics").text  # nobody waits for it
    assert dedupindex("index", "--merge", index)[0].count(" 0 added") == 1
    assert ask(web, 3, namespace="news")["original"]["url"] == "http://a.net/"
    dedupindex("purge", index, "--crawl", "a")
    assert ask(web, 3, namespace="news")["original"]["url"] == "http://b.net/"
    assert not web.get("/crawls/b").get_json()["merged"]


def test_records_are_never_stored_in_a_namespace(web: FlaskClient) -> None:
    begin(web, "doppelganger", namespace="news", seen_by="all")
    record = {"id": str(sha1(3)), "uri": PAGE.decode(), "date": 20261120091417}
    assert web.post("/api/records", json=[record]).status_code == 201
    assert ask(web, 3)["duplicate"]


def test_the_command_line_uses_the_options_of_its_crawl(make_index: MakeIndex) -> None:
    index = make_index([capture(1, PAGE)])
    web = served(index)
    begin(web, "a", policy=[{"never": True}], digest_covers="stored", namespace="news")
    begin(web, "b", strategy="EXACT_URL", digest_covers="entity")
    begin(web, "c", namespace="news")
    put(web, "a", 3)
    web.post("/crawls/a/commit")

    def lookup_json(*more: str, digest: int = 1, status: int = 0) -> Any:
        words = ["lookup", index, "--digest", str(sha1(digest)), "--url", PAGE.decode(), "--json"]
        return json.loads(dedupindex(*words, *more, status=status)[0])

    refused = {"duplicate": False, "policy": "never"}
    assert lookup_json("--crawl", "a", status=NOTHING_FOUND) == refused
    assert lookup_json("--crawl", "c", digest=3)["duplicate"]
    assert lookup_json("--namespace", "news", digest=3)["duplicate"]
    assert not lookup_json("--crawl", "b", digest=3, status=NOTHING_FOUND)["duplicate"]
    # What a was said to store covers other bytes than b asks for.
    other = lookup_json("--crawl", "b", "--namespace", "news", digest=3, status=NOTHING_FOUND)
    assert not other["duplicate"]
    assert lookup_json("--crawl", "b", "--namespace", "news", "--bridge", digest=3)["duplicate"]
    words = ("lookup", index, "--digest", str(sha1(1)), "--crawl", "a")
    assert "policy never" in dedupindex(*words, status=NOTHING_FOUND)[0]


def test_the_length_of_a_policy_is_limited() -> None:
    rules = [{"host": "h" * 200, "originals_from": ["n" * 290]}] * 100
    assert len(parse_policy(rules).rules) == 100
    with pytest.raises(BadInput, match="50,000 characters"):
        parse_policy([*rules[1:], {"originals_from": ["n" * 300] * 9}])
