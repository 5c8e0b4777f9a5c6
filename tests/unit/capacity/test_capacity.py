"""Plans: the published table to the cent, and the arithmetic of ours done by hand."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from dedupindex.capacity import estimates
from dedupindex.capacity import estimates as documents
from dedupindex.capacity import rates as measure
from dedupindex.capacity.markdown import picture
from dedupindex.capacity.measure_post_crawl import make_archive, measure_post_crawl
from dedupindex.capacity.post_crawl_plan import PostCrawlPlan, post_crawl_costs, post_crawl_plans
from dedupindex.capacity.rates import load
from dedupindex.capacity.store_traffic import StoredArchive
from dedupindex.counts import ProgressUpdate
from dedupindex.errors import BadInput
from dedupindex.runtime.tables import dollars
from tests.support.commands import typed
from tests.support.paths import ROOT

SCALINGS = [(1, 1), (4, 1), (16, 1), (32, 1), (32, 4), (48, 4)]
PUBLISHED = {  # hours of the first and last row of the published plan, and its costs
    ("m5.8xlarge", 10): ("233.02/0.07", "4.85/0.02", 358.95),
    ("m6g.12xlarge", 20): ("116.51/0.05", "2.43/0.01", 215.63),
    ("m5zn.6xlarge", 50): ("46.6/0.05", "0.97/0.01", 92.37),
    ("m5zn.12xlarge", 100): ("23.3/0.05", "0.49/0.01", 92.46),
}


def shown(row: documents.FleetPlan) -> str:
    return f"{round(row.hash_hours, 2)}/{round(row.dedup_hours, 2)}"


def test_the_published_table_comes_out_to_the_cent() -> None:
    rows = documents.published_fleets(load())
    assert len(rows) == 24
    for at, (instance, (first, last, cost)) in enumerate(PUBLISHED.items()):
        some = rows[6 * at : 6 * at + 6]
        assert {(row.instance, row.gbps) for row in some} == {instance}
        assert [(row.hashing, row.deduping) for row in some] == SCALINGS
        assert (shown(some[0]), shown(some[-1])) == (first, last)
        assert [round(row.cost, 2) for row in some] == [cost] * 6
        hours = 1024**5 / (instance[1] * 1024**3 / 8) / 3600
        for row in some:
            assert row.hash_hours == pytest.approx(hours / row.hashing)
            assert row.dedup_hours == pytest.approx(some[0].dedup_hours / row.deduping)


def test_cores_of_the_instances() -> None:
    """As many as the provider states; the published plan counts others for one of them."""
    cores = {one["name"]: one["cores"] for one in load()["instance"]}
    assert cores == {"m5.8xlarge": 32, "m6g.12xlarge": 48, "m5zn.6xlarge": 24, "m5zn.12xlarge": 48}
    rows = {row.instance: row.dedup_hours for row in documents.measured_fleets(load())[::6]}
    assert rows["m5zn.6xlarge"] == pytest.approx(2 * rows["m5zn.12xlarge"])


def test_hashing_is_limited_by_cores_or_network() -> None:
    inputs = load()
    inputs["documents"].update(hash_mb_per_core_s=50, rows_per_core_s=275000)
    inputs["published"]["cores"] = {}
    rows, published = documents.measured_fleets(inputs), documents.published_fleets(inputs)
    assert [row.hash_hours for row in rows[:6]] == [row.hash_hours for row in published[:6]]
    assert rows[-6].hash_hours == pytest.approx(1024**5 / (48 * 50e6) / 3600)
    assert rows[-6].cost > published[-6].cost
    assert all(
        row.dedup_hours == other.dedup_hours for row, other in zip(rows, published, strict=True)
    )


def test_requests_and_storage() -> None:
    inputs = load()
    inputs["documents"].update(
        gets_per_document=1, price_per_1000_gets=0.0004, documents_per_list=1000,
        price_per_1000_lists=0.005, duplicates=0.1, price_per_gb_month=0.02,
    )  # fmt: skip
    rest = documents.fixed_costs(inputs)
    assert (rest.gets, rest.lists) == (2.2e9, 2.2e6)
    assert rest.request_cost == pytest.approx(880 + 11)
    assert rest.saved_per_month == pytest.approx(1024**5 / 1e9 * 0.1 * 0.02)


def test_plan_of_a_cluster() -> None:
    """The figures that were worked out by hand when the engine was chosen."""
    inputs = load()
    ten, hundred = (estimates.plan_cluster(count, inputs) for count in (1e10, 1e11))
    assert (round(ten.compacted_tb, 2), round(ten.replicated_tb, 1), round(ten.disk_tb, 1)) == (
        1.08, 3.2, 5.2,
    )  # fmt: skip
    assert (ten.nodes, ten.node) == (3, "i4i.2xlarge")
    assert (round(hundred.compacted_tb, 1), round(hundred.replicated_tb, 1)) == (10.8, 32.3)
    assert (hundred.nodes, round(hundred.disk_tb)) == (17, 52)
    assert hundred.cost_per_month == pytest.approx(17 * 1.373 * 730)
    assert round(hundred.asked_s) == 3171
    assert hundred.load_hours == pytest.approx(3e11 / (17 * 16 * 8700) / 3600)
    assert estimates.plan_cluster(1e9, inputs).nodes == 3
    inputs["captures"]["tb_per_node"] = 100.0
    with pytest.raises(BadInput, match="name a larger one"):
        estimates.plan_cluster(1e11, inputs)


def test_rates_of_a_file(tmp_path: Path) -> None:
    rates = tmp_path / "rates.toml"
    rates.write_text("[documents]\nhash_mb_per_core_s = 1\n[published]\ndocuments = 1000\n")
    report = json.loads(typed("plan", "--documents", "--rates", rates, "--json")[0])
    assert report["documents"]["gets"] == 2000
    assert report["documents"]["measured"][0]["hash_hours"] == pytest.approx(1024**5 / 32e6 / 3600)
    rates.write_text("[[instance]]\nname = 'mine'\ncores = 1\ngbps = 1\nprice_per_hour = 0.5\n")
    assert len(documents.published_fleets(load(rates))) == 6


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[documents]\nspeed = 1\n", "no speed"),
        ("[other]\n", "only published"),
        ("[documents]\nduplicates = 'many'\n", "like 0.05"),
        ("[documents]\nduplicates = -1\n", "like 0.05"),
        ("published = 1\n", "must be like"),
        ("[documents", "not TOML"),
    ],
)
def test_bad_rates_are_refused(tmp_path: Path, text: str, word: str) -> None:
    rates = tmp_path / "rates.toml"
    rates.write_text(text)
    assert word in typed("plan", "--documents", "--rates", rates, status=4)[1]


def test_wrong_usage() -> None:
    for words in (
        [], ["--captures", "many"], ["--captures", "0"], ["--captures", "1e9", "--measure"],
        ["--documents", "--save", "x"], ["--captures", "nan"], ["--post-crawl", "0"],
        ["--post-crawl", "1", "--svg", "x"], ["--post-crawl", "40XB"], ["--post-crawl", "1e12,"],
        ["--captures", "40TB"],
    ):  # fmt: skip
        assert "Usage:" in typed("plan", *words, status=2)[1]


def test_sizes_may_have_units() -> None:
    sizes = "40TB,40e12,40tb,40000 GB,40T,1TiB,2PB"
    found = json.loads(typed("plan", "--post-crawl", sizes, "--json")[0])["post_crawl"]
    assert [one["bytes"] for one in found] == [*[40e12] * 5, 1024**4, 2e15]
    assert "numbers of bytes" in typed("plan", "--post-crawl", "40XB", status=2)[1]
    assert "needs its unit" in typed("plan", "--post-crawl", "40", status=2)[1]
    assert "numbers of captures" in typed("plan", "--captures", "40TB", status=2)[1]


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``--measure`` hash a megabyte and sort 5,000 rows, which takes no minute."""
    monkeypatch.setattr(measure.measure, "__kwdefaults__", {
        **measure.measure.__kwdefaults__, "size": 1 << 20, "rows": 5000,
    })  # fmt: skip


@pytest.mark.usefixtures("little")
def test_rates_are_measured(tmp_path: Path) -> None:
    save = tmp_path / "rates.toml"
    out, err = typed("plan", "--documents", "--measure", "--work", tmp_path, "--save", save)
    found = tomllib.loads(save.read_text())["documents"]
    assert found["hash_mb_per_core_s"] > 0 < found["rows_per_core_s"]
    assert found["measured"] in out and "5,000 rows" in err
    assert list(tmp_path.iterdir()) == [save]
    assert typed("plan", "--documents", "--rates", save)[0] == out


def test_a_plan_of_rewriting_is_worked_out_by_hand(tmp_path: Path) -> None:
    """A terabyte on machines of one core, limited by the core, then by the network."""
    rates = tmp_path / "rates.toml"
    rates.write_text(
        "[[instance]]\nname = 'mine'\ncores = 1\ngbps = 800\nprice_per_hour = 0.36\n"
        "[documents]\nprice_per_1000_gets = 0.001\nprice_per_gb_month = 0.01\n"
        "price_per_1000_puts = 0.01\nprice_per_1000_lists = 0.01\n"
        "[post_crawl]\nmanifest_mb_per_core_s = 50\nrewrite_mb_per_core_s = 40\n"
        "verify_mb_per_core_s = 90\nresolve_rows_per_core_s = 1000\nbytes_per_capture = 1e5\n"
        "bytes_per_file = 1e9\nduplicates = 0.5\nbytes_saved = 0.2\nbytes_per_get = 4e6\n"
        "bytes_per_first_get = 4e6\nbytes_per_put = 8e6\nmachines = [1, 10]\n"
        "manifest_bytes_per_capture = 100\nplan_bytes_per_revisit = 100\n"
        "journal_bytes_per_revisit = 300\ngrouping_bytes_per_capture = 200\n"
        "grouping_bytes_per_revisit = 300\n"
    )
    found = json.loads(typed("plan", "--post-crawl", "1e12", "--rates", rates, "--json")[0])
    (costs,) = found["post_crawl"]
    one, ten = costs.pop("plans")
    assert one["hours"] == {
        "manifest": pytest.approx(1e12 / 50e6 / 3600),
        "resolve": pytest.approx(1e7 / 1000 / 3600),
        "rewrite": pytest.approx(1e12 / 40e6 / 3600),
        "verify": pytest.approx(1.8e12 / 90e6 / 3600),
    }
    assert one["machine_cost"] == pytest.approx(75_000 / 3600 * 0.36)
    assert ten["machine_cost"] == pytest.approx((65_000 + 10 * 10_000) / 3600 * 0.36)  # nine wait
    assert ten["cost"] == ten["machine_cost"] + costs["request_cost"]
    assert ten["hours"] == {
        step: pytest.approx(hour if step == "resolve" else hour / 10)
        for step, hour in one["hours"].items()
    }
    # A file and its result; three times the rows of 64 files, each of 10,000 captures.
    assert one["node_disk"] == ten["node_disk"] == pytest.approx(2e9 + 3 * 64 * 2e6)
    assert costs["driver_disk"] == pytest.approx(1e7 * (100 + 50 + 200 + 150 + 150))
    # Of a thousand files each has 5,000 copies: each refers to all 999 others, or nearly so.
    pairs = 999e3 * (1 - (998 / 999) ** 5000)
    openings = 5e6 * (1 - 64 / 999)  # the last 64 are open
    # Read: by manifest 1 TB and 1,000 first blocks, rewriting 1 TB, originals 0.2, read back 0.8,
    # by verification 1.8, a first block of 4 MB at each opening, and one for each original; of
    # 116 kB, so that 2.9 % take another block.
    share, first = (100_000 + 16_384) / 4e6, 4e6
    originals = openings * first + 5e6 * (1 + share) * first
    assert costs["bytes_read"] == pytest.approx(4.8e12 + 4e9 + originals)
    assert costs["dry_run_bytes_read"] == pytest.approx(2.2e12 + 4e9)
    assert costs["rerun_bytes_read"] == pytest.approx(3.8e12 + originals)
    compared, verified = 5e6, openings + 5e6 * (1 + share)
    gets = 1000 * (1 + 250 + 250 + 200 + 450) + compared + verified
    assert costs["gets"] == pytest.approx(gets)
    heads = 1000 * (2 + 6 + 2 + 1) + pairs
    assert costs["heads"] == pytest.approx(heads)
    assert costs["hours_of_requests"] == pytest.approx((gets + heads) / 5500 / 3600)
    assert costs["puts"] == 0.8e12 / 8e6 + 2000 + 6
    assert costs["lists"] == 2000 + 3
    assert costs["request_cost"] == pytest.approx((gets + heads) * 1e-6 + 104_009 * 1e-5)
    assert costs["saved_per_month"] == pytest.approx(2.0)
    assert costs["both_per_month"] == pytest.approx(18.0)
    dry, index, undo = (ten["runs"][name] for name in ("dry_run", "index", "undo"))
    assert dry["hours"] == pytest.approx((2000 + 10_000 + 2500) / 3600)
    assert costs["runs"]["dry_run"]["gets"] == pytest.approx(1000 * (1 + 250 + 250) + compared)
    assert dry["cost"] == pytest.approx(
        dry["hours"] * 3.6 + costs["runs"]["dry_run"]["request_cost"]
    )
    assert index["hours"] == pytest.approx((2000 + 1e7 * 11.1e-6) / 3600)
    assert undo["hours"] == pytest.approx(1e12 / 40e6 / 3600)  # on one machine
    assert undo["cost"] == pytest.approx(
        undo["hours"] * 0.36 + costs["runs"]["undo"]["request_cost"]
    )

    slow = rates.read_text().replace("gbps = 800", "gbps = 0.08")
    rates.write_text(slow)
    network = 0.08 * 1e9 / 8
    found = json.loads(typed("plan", "--post-crawl", "1e12", "--rates", rates, "--json")[0])
    hours = found["post_crawl"][0]["plans"][0]["hours"]
    assert hours["rewrite"] == pytest.approx(2.8e12 / network / 3600)
    assert hours["manifest"] == pytest.approx((1e12 + 4e9) / network / 3600)


def test_disk_of_the_driver_depends_on_the_share_of_duplicates() -> None:
    """Manifest, plan, grouping and journals: a run that is repeated groups while it has these."""
    inputs = load()
    rates = inputs["post_crawl"]

    def disk(share: float) -> float:
        rates["duplicates"] = share
        return post_crawl_costs(4e13, inputs).driver_disk / 1.6e9

    assert [disk(share) for share in (0, 0.3, 0.9)] == pytest.approx([250, 775, 1825])


def _same(one: PostCrawlPlan, other: PostCrawlPlan) -> bool:
    return (one.instance, one.machines) == (other.instance, other.machines)


def test_hours_and_dollars_of_a_store_that_limits_requests() -> None:
    """Each step takes the longer of its hours and those of its requests, and all machines wait."""
    costs = post_crawl_costs(4e13, load())
    plans = post_crawl_plans(4e13, load())
    (plan,) = (one for one in plans if (one.machines, one.instance) == (12, "m5.8xlarge"))
    assert plan.total_hours < 7 < 70 < costs.hours_of_requests < plan.one_prefix_hours
    waiting = plan.one_prefix_hours - plan.total_hours
    assert plan.one_prefix_cost == pytest.approx(plan.cost + waiting * 12 * 1.54)
    enough = load()
    enough["post_crawl"]["gets_per_prefix_s"] *= plan.prefixes
    (spread,) = (one for one in post_crawl_plans(4e13, enough) if _same(one, plan))
    assert spread.one_prefix_hours == pytest.approx(plan.total_hours)
    enough["post_crawl"]["gets_per_prefix_s"] *= 1 - 1 / plan.prefixes
    (spread,) = (one for one in post_crawl_plans(4e13, enough) if _same(one, plan))
    assert spread.one_prefix_hours > plan.total_hours
    text = typed("plan", "--post-crawl", "40TB")[0]
    assert (
        f"| {plan.prefixes} | {plan.one_prefix_hours:.2f} h | ${plan.one_prefix_cost:,.2f} |"
        in text
    )


def test_a_table_has_the_numbers_of_the_json() -> None:
    (found,) = json.loads(typed("plan", "--post-crawl", "40TB", "--json")[0])["post_crawl"]
    text = typed("plan", "--post-crawl", "40TB")[0]
    for plan in found["plans"]:
        assert plan["cost"] == pytest.approx(plan["machine_cost"] + found["request_cost"])
        assert f"| {plan['total_hours']:.2f} h | ${plan['cost']:,.2f} |" in text or (
            f"{plan['total_hours'] * 60:.1f} min | ${plan['cost']:,.2f} |" in text
        )
    for run in found["runs"].values():
        assert f"| {run['gets']:,.0f} | {run['heads']:,.0f} | {run['lists']:,.0f} |" in text
    assert "Not included: " in text and "both, until the old files are deleted | 72.0 TB |" in text
    documents = json.loads(typed("plan", "--documents", "--json")[0])["documents"]
    assert documents["measured"][0]["cost"] == pytest.approx(
        documents["measured"][0]["machine_cost"] + documents["request_cost"]
    )
    assert documents["published"][0]["cost"] == documents["published"][0]["machine_cost"]


def test_a_pilot_has_digits_and_units(tmp_path: Path) -> None:
    rates = tmp_path / "rates.toml"
    rates.write_text("[post_crawl]\nbytes_per_file = 589050\nmachines = [1]\n")
    text = typed("plan", "--post-crawl", "7.0686MB", "--rates", rates)[0]
    assert text.startswith("7.1 MB of WARC files, 283 captures.")
    for small in ("0.0 TB", "$0.00 ", "<0.01", "| 0 GB", "0.0 GB"):
        assert small not in text
    assert dollars(0.00003361) == "0.000034" and dollars(0) == "0.00"
    assert (dollars(0.5), dollars(1234.5)) == ("0.50", "1,234.50")


def test_time_to_load_is_said_to_be_without_reading() -> None:
    text = typed("plan", "--captures", "1.6e9")[0]
    assert "| one machine with LMDB: time to load, plus reading | 4.9 h |" in text
    assert "Not included: reading the archives" in text


def test_a_quarter_of_the_measured_captures_becomes_revisits(tmp_path: Path) -> None:
    make_archive(tmp_path / "warcs", 2 << 20)
    words = ("--out", tmp_path / "smaller", "--json")
    found = json.loads(typed("dedup", tmp_path / "warcs", *words)[0])
    assert found["captures"] / 5 < found["revisits"] < found["captures"] / 4
    assert found["verified"]["findings"] == {} == found["refused"]


def test_rates_of_rewriting_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measure_post_crawl.__kwdefaults__, "size", 1 << 20)
    save = tmp_path / "rates.toml"
    words = ["--measure", "--work", tmp_path, "--save", save]
    out, _ = typed("plan", "--post-crawl", "1e12", *words)
    found = tomllib.loads(save.read_text())["post_crawl"]
    assert "resolve 122,500 rows/s (the default, not measured there)" in out
    assert min(found[f"{step}_mb_per_core_s"] for step in ("manifest", "rewrite", "verify")) > 0
    assert found["measured"] in out
    assert list(tmp_path.iterdir()) == [save]
    assert typed("plan", "--post-crawl", "1e12", "--rates", save)[0] == out


def test_measuring_shows_its_progress(tmp_path: Path) -> None:
    seen = list[ProgressUpdate]()
    measure_post_crawl(tmp_path, 2, size=1 << 20, on_progress=seen.append)
    made, *steps = seen
    assert made.phase == "making WARC files" and made.share == 1.0
    assert [one.phase for one in steps] == [
        "measuring bin/manifest", "running bin/resolve", "measuring bin/rewrite",
        "measuring bin/verify",
    ]  # fmt: skip
    seen.clear()
    measure.measure(tmp_path, 2, size=1 << 20, rows=1000, on_progress=seen.append)
    phases = {one.phase: one.share for one in seen}
    assert phases["generating"] is not None and phases["grouping"] == 1.0 and "hashing" in phases


def test_the_picture_is_svg_with_a_line_for_each_kind(tmp_path: Path) -> None:
    typed("plan", "--documents", "--svg", tmp_path / "plan.svg")
    rows = documents.measured_fleets(load())
    text = (tmp_path / "plan.svg").read_text()
    assert text == picture(rows)
    top = ET.fromstring(text)
    lines = [one for one in top.iter("{http://www.w3.org/2000/svg}path") if one.get("stroke")]
    assert len(lines) == 8
    for line in lines:
        points = [tuple(map(float, p.split())) for p in line.get("d", "")[1:].split(" L")]
        assert len(points) == 5 and points == sorted(points)
        assert all(40 <= y <= 300 for _, y in points)
    assert all(name in text for name in ("m5.8xlarge", "m5zn.12xlarge", "Hours", "Dollars"))


def test_the_file_of_the_docs_is_taken(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "scale.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "rates.toml").write_text(example)
    out, _ = typed("plan", "--post-crawl", "40TB", "--rates", tmp_path / "rates.toml")
    assert "| 12 | ours | 25 |" in out and "not measured there" not in out
    assert "Assumed: 40.0 kB a capture, 45% of them duplicates" in out


@pytest.mark.usefixtures("little")
def test_the_commands_of_the_docs_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "scale.md").read_text()
    lines = re.findall(r"^bin/(plan .*)$", text, re.MULTILINE)
    assert len(lines) == 6
    for line in lines:
        typed(*shlex.split(line, comments=True))
    assert {path.name for path in tmp_path.iterdir()} == {"rates.toml", "plan.svg"}


def test_prose_of_the_docs_has_the_figures_of_the_tables() -> None:
    text = " ".join((ROOT / "docs" / "scale.md").read_text().split())
    inputs = load()
    rates, costs = inputs["post_crawl"], post_crawl_costs(4e13, inputs)
    plans = {one.machines: one for one in post_crawl_plans(4e13, inputs)
             if one.instance == "m5.8xlarge"}  # fmt: skip
    one, twelve = plans[1], plans[12]
    revisit = rates["plan_bytes_per_revisit"] + rates["journal_bytes_per_revisit"]
    again, alone = twelve.runs["verify_again"], one.runs["verify_again"]
    sent, written = costs.runs["verify_again"], costs.bytes_written
    by_host = ((sent.bytes_read - written) / 12 + written) / (10e9 / 8) / 3600
    before = twelve.total_hours - twelve.hours["verify"]
    archive = StoredArchive(4e13, inputs)
    revisits = archive.copies / 1e9
    manifests = archive.captures / 1e9 * rates["manifest_bytes_per_capture"]
    plan = revisits * rates["plan_bytes_per_revisit"]
    journals = revisits * rates["journal_bytes_per_revisit"]
    grouping = costs.driver_disk / 1e9 - manifests - plan - journals
    first = manifests + plan + max(grouping, journals)  # of a run that is not repeated
    requests = (archive.manifest() + archive.rewrite()).cost(inputs["documents"])
    for said in (
        f"takes {twelve.one_prefix_hours:.1f} hours with twelve `m5.8xlarge`, where the table has "
        f"{twelve.total_hours:.1f} hours",
        f"${twelve.one_prefix_cost:,.0f} and not ${twelve.cost:,.0f}. ",
        f"for the shorter time, {twelve.prefixes} for these: ",
        f"Its disk ({costs.driver_disk / 1e9:,.0f} GB for 40 TB; {first:.0f} GB ",
        f"for 40 TB on twelve hosts {manifests:.0f} GB, {plan:.0f} GB and "
        f"{journals / 12:.0f} GB, and {grouping / 12:.0f} GB for a twelfth of the grouping",
        f"keeps {rates['manifest_bytes_per_capture']} bytes for each capture and {revisit:,} for",
        f"takes {rates['grouping_bytes_per_capture']} and {rates['grouping_bytes_per_revisit']} b",
        f"takes {one.runs['undo'].hours:.0f} hours with 10 Gbit/s",
        f"{costs.dry_run_bytes_read / 1e12:.0f} TB (2.2 times) for the dry run and "
        f"{costs.rerun_bytes_read / 1e12:.0f} TB (6.4 times)",
        f"as there: {before:.1f} hours for 40 TB with twelve `m5.8xlarge`, "
        f"${before * 12 * 1.54 + requests:.0f}. ",
        f"takes {alone.hours:.1f} hours and ${alone.cost:.0f} on one of them, and {by_host:.1f} "
        f"hours and ${by_host * 12 * 1.54 + sent.request_cost:,.0f} by host",
        f"be done in {again.hours:.1f} hours, for ${again.cost:.0f}, ",
    ):
        assert said in text


def test_docs_have_the_output_of_the_command() -> None:
    """To renew them: bin/plan … for each block, and bin/plan --documents --svg docs/scale.svg."""
    text = (ROOT / "docs" / "scale.md").read_text()
    blocks = re.findall(r"<!-- bin/(plan [^>]*) -->\n(.*?)\n<!-- end -->", text, re.DOTALL)
    assert len(blocks) == 3
    for command, block in blocks:
        assert typed(*shlex.split(command))[0].rstrip("\n") == block.strip("\n")
    rows = documents.measured_fleets(load())
    drawn = picture(rows)
    assert (ROOT / "docs" / "scale.svg").read_text() == drawn
