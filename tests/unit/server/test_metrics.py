"""What Prometheus scrapes, and that the dashboard and the alerts ask for it by its names."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from dedupindex.crawls import lifecycle
from dedupindex.crawls.crawl import Crawl
from dedupindex.crawls.store import Writing
from dedupindex.crawls.stores.lmdb_crawl_state import LmdbReading
from dedupindex.lookup import policy
from dedupindex.lookup.policy import parse_policy
from server.api.crawls import CRAWLS_PAGE
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from server.metrics import READ
from tests.conftest import MakeIndex
from tests.integration.test_crawls_live import report
from tests.support.captures import capture, sha1
from tests.support.paths import ROOT

CONF = ROOT / "conf"
Samples = dict[tuple[str, frozenset[str]], float]
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')


@pytest.fixture
def web(make_index: MakeIndex) -> Any:
    """A server in this process that was asked for everything once."""
    live = LiveIndex(make_index([capture(1)]))
    live.refresh()
    web = create_app(Config(live.index), live).test_client()
    assert web.get(f"/lookup?digest={sha1(1)}").status_code == 200
    assert web.get(f"/lookup?digest={sha1(2)}&strategy=EXACT_URL&url=u").status_code == 200
    for name in "ab":
        assert web.post("/crawls", json={"name": name}).status_code == 200
    captures = [report(3), report(3), {**report(4), "status": 404}, {"digest": "-"}]
    assert web.post("/captures?crawl=a", json={"captures": captures}).status_code == 200
    for digest in (sha1(1), sha1(5), sha1(5)):
        claim = {"crawl": "a", "digest": str(digest)}
        assert web.post("/claims", json=claim).status_code == 200
    assert web.get("/nowhere").status_code == 404
    return web


def samples(web: Any) -> Samples:
    """Every sample by its name and its labels' values."""
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(web.get("/metrics").text)
        for sample in family.samples
    }


def test_lookups_have_a_histogram_by_strategy_and_match(web: Any) -> None:
    found = samples(web)
    name = "dedupindex_lookup_seconds"
    for labels in (("DIGEST_ANY", "digest"), ("EXACT_URL", "none")):
        assert found[f"{name}_count", frozenset(labels)] == 1
        assert 0 < found[f"{name}_sum", frozenset(labels)] < 5
        assert found[f"{name}_bucket", frozenset((*labels, "+Inf"))] == 1
        steps = [
            value
            for (metric, has), value in found.items()
            if metric == f"{name}_bucket" and has.issuperset(labels)
        ]
        assert steps == sorted(steps) and len(steps) == 16
    assert found[f"{name}_count", frozenset(("DIGEST_ANY", "none"))] == 0
    total = sum(value for (metric, _), value in found.items() if metric == f"{name}_sum")
    assert found["dedupindex_request_seconds_sum", frozenset(("single",))] == pytest.approx(total)


def of(found: Samples, name: str) -> dict[str, float]:
    """A metric of no label or one, by its value."""
    return {"".join(labels): value for (metric, labels), value in found.items() if metric == name}


def test_metrics_of_writes_and_crawls(web: Any) -> None:
    found = samples(web)
    counted = of(found, "dedupindex_captures_total")
    assert counted == {"added": 1, "unchanged": 1, "refused": 1, "bad": 1}
    counted = of(found, "dedupindex_claims_total")
    assert counted == {"duplicate": 1, "claimed": 1, "taken": 1, "bad": 0}
    assert of(found, "dedupindex_crawls") == {"open": 2, "committed": 0, "cancelled": 0}
    assert of(found, "dedupindex_crawls_open_captures") == {"": 1}
    requests = of(found, "dedupindex_route_seconds_count")
    assert (requests["claim"], requests["begin_crawl"], requests["page"]) == (3, 2, 1)
    # Lookups of crawls are written down once a second, by a thread that does not run here.
    assert of(found, "dedupindex_crawls_without_lookup") == {"": 2}
    web.post("/crawls/a/commit")
    web.post("/crawls/b/cancel")
    found = samples(web)
    assert of(found, "dedupindex_crawls_without_lookup") == {"": 0}
    assert of(found, "dedupindex_crawls_unmerged") == {"": 1}
    assert of(found, "dedupindex_crawls") == {"open": 0, "committed": 1, "cancelled": 1}


def check(expression: str, found: dict[str, set[str]]) -> None:
    """That an expression asks for metrics, labels and values that there are."""
    plain = _STRINGS.sub('""', expression)
    for opening, closing in ("()", "{}", "[]"):
        assert plain.count(opening) == plain.count(closing), expression
    names = re.findall(r"\bdedupindex_\w+", plain)
    assert names or "up{" in plain, expression
    for name in names:
        assert name in found, f"{name} in {expression}"
    labels = set().union(*(found[name] for name in names)) | {"job", "instance"}
    for name in re.findall(r"(\w+)=~?\"", plain):
        assert name in labels, f"{name} in {expression}"
    for group in re.findall(r"\bby \(([^)]*)\)", plain):
        assert {one.strip() for one in group.split(",")} <= labels, expression
    if "code=~" in expression:
        from server.responses import ERRORS

        (codes,) = re.findall(r'code=~"([^"]*)"', expression)
        assert set(codes.split("|")) <= ERRORS.keys()


def labels_by_name(web: Any) -> dict[str, set[str]]:
    """The labels of every metric."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(web.get("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_the_dashboard_uses_existing_metrics(web: Any) -> None:
    dashboard = json.loads((CONF / "grafana" / "dedupindex.json").read_text())
    found = labels_by_name(web)
    variables = {one["name"] for one in dashboard["templating"]["list"]}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"]) >= 10
    places = []
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            check(target["expr"], found)
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= variables
        at = panel["gridPos"]
        places += [(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])]
        assert at["x"] + at["w"] <= 24
    assert len(places) == len(set(places)), "panels lie on each other"


def test_the_alerts_use_existing_metrics(web: Any) -> None:
    (group,) = yaml.safe_load((CONF / "prometheus" / "alerts.yml").read_text())["groups"]
    found = labels_by_name(web)
    for rule in group["rules"]:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        check(rule["expr"], found)


def test_every_metric_is_documented(web: Any) -> None:
    text = (CONF.parent / "docs" / "operations.md").read_text()
    for family in text_string_to_metric_families(web.get("/metrics").text):
        names = {sample.name for sample in family.samples} | {family.name}
        short = family.name.replace("dedupindex_index", "…")
        assert any(f"`{name}`" in text for name in (*names, short)), family.name
        for sample in family.samples:
            for label in sample.labels.keys() - {"le"}:
                assert f"`{label}`" in text, label


def test_a_scrape_reads_a_limited_number_of_crawls(
    web: Any, make_index: MakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists come in pages, and a scrape has the same samples and reads the same rows."""
    live = LiveIndex(make_index([capture(1)]))
    live.refresh()
    web = create_app(Config(live.index), live).test_client()
    read = Counter[str]()

    def counted(name: str, of: Any) -> None:
        before = getattr(of, name)

        def count(*given: Any, **more: Any) -> Any:
            read[name] += 1
            return before(*given, **more)

        monkeypatch.setattr(of, name, count)

    def begun(first: int, count: int) -> None:
        rules = [{"url": f"http://{n}[.]example/.*", "min_size": n} for n in range(1, 20)]

        def begin(writing: Writing) -> None:
            for number in range(first, first + count):
                lifecycle.begin(writing, f"crawl-{number}", policy=parse_policy(rules))

        live.crawls.write(begin, make=True)

    def cost(path: str) -> Counter[str]:
        web.get(path)  # what has changed is read once
        read.clear()
        assert web.get(path).status_code == 200
        return read.copy()

    for name in ("counts", "statistic", "statistics"):
        counted(name, LmdbReading)
    counted("restored", Crawl)
    counted("of_request", policy)  # the expressions of policies are not made anew for a list
    paths = ("/metrics", "/crawls", "/", "/pages/crawls")
    begun(0, 250)
    before, names = {path: cost(path) for path in paths}, samples(web).keys()
    begun(250, 750)
    assert {path: cost(path) for path in paths} == before and samples(web).keys() == names
    assert all(sum(before[path].values()) <= 5 * READ for path in paths), before
    assert not any(found["of_request"] for found in before.values())
    assert samples(web)["dedupindex_crawls", frozenset(["open"])] == 1000
    page = web.get("/crawls").json
    assert len(page["crawls"]) == CRAWLS_PAGE and page["crawls"][0]["name"] == "crawl-999"
    assert web.get(page["next"]).json["crawls"][0]["name"] == "crawl-899"
    assert web.get("/crawls?limit=1001").status_code == 400
