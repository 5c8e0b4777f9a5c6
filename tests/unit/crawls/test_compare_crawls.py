"""Two crawls compared, in a case whose numbers are known, and against a plain count of any."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dedupindex.capture import Capture, Revisit
from dedupindex.counts import ProgressUpdate
from dedupindex.crawls import compare_crawls, lifecycle
from dedupindex.crawls.compare_crawls import CHANGES, COLUMNS, ORDERS, compare
from dedupindex.crawls.counting import LookupCounter, LookupOutcome, add_counted
from dedupindex.crawls.parse_report import add_self_report
from dedupindex.crawls.store import Store
from dedupindex.crawls.stores import make_store
from dedupindex.errors import BadQuery, UnknownCrawl
from dedupindex.urlkey import host_of
from tests.support.captures import capture
from tests.support.purging import begin, load, revisit_of
from tests.support.warc_cases import gz, response
from tests.unit.cli.test_cli import typed
from tests.unit.post_crawl.test_impact import report
from tests.unit.server.test_pages import served


def made(directory: Path, seed: int) -> tuple[Path, list[Capture], list[Revisit]]:
    """An index with captures of three crawls, and revisits of two."""
    choose = random.Random(seed)
    captures = {
        (n, url, day): capture(
            n, b"http://h%d.example/%d" % (url % 3, url), day, size=100 * n,
            crawl=("old", "new", "other")[day % 3], container=f"/w/{day % 3}.warc.gz",
        )
        for n, url, day in (
            (choose.randrange(1, 6), choose.randrange(12), choose.randrange(1, 28))
            for _ in range(60)
        )
    }  # fmt: skip
    originals = choose.sample(sorted(captures.values()), 8)
    revisits = [
        revisit_of(one, one.url, day, crawl=choose.choice(("old", "new")))
        for day, one in enumerate(originals, 1)
    ]
    index = begin(directory)
    load(index, list(captures.values()), revisits)
    return index, list(captures.values()), revisits


def plain(captures: list[Capture], revisits: list[Revisit]) -> dict[str, int]:
    """The totals of a comparison, counted in the plainest way."""
    total = dict.fromkeys(COLUMNS, 0)
    sizes = {one.digest: one.size for one in captures}
    answers = [(one, "stored") for one in captures]
    answers += [(one.capture, "revisits") for one in revisits]
    last: dict[str, dict[bytes, Capture]] = {"old": {}, "new": {}}
    for one, kind in sorted(answers, key=lambda answer: (answer[0].date, answer[0].digest)):
        if one.crawl not in last:
            continue
        last[one.crawl][one.url] = one
        side = "first" if one.crawl == "old" else "second"
        total[f"{side}_{kind}"] += 1
        total[f"{side}_{kind.removesuffix('s')}_bytes"] += sizes[one.digest]
    old, new = last["old"], last["new"]
    for url in old.keys() | new.keys():
        both = url in old and url in new
        same = both and old[url].digest == new[url].digest
        change = ("same" if same else "changed") if both else "new" if url in new else "gone"
        total[change] += 1
        total[f"{change}_bytes"] += sizes[(new.get(url) or old[url]).digest]
    return total


@pytest.mark.parametrize("seed", range(4))
def test_the_totals_are_those_of_a_plain_count(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, captures, revisits = made(tmp_path, seed)
    found = compare(index, "old", "new", ORDERS[0], 0)
    total = plain(captures, revisits)
    urls = sum(total[change] for change in CHANGES)
    shares = {f"{change}_percent": 100 * total[change] / urls for change in CHANGES}
    assert found.total == {**total, **shares} and found.others is None
    hosts = {host_of(one.url).decode() for one in captures if one.crawl != "other"}
    assert {row["host"] for row in found.rows} == hosts and found.hosts == len(hosts)
    few = compare(index, "old", "new", "changed", 1)
    assert few.others is not None and few.others["hosts"] == few.hosts - 1
    for name in COLUMNS:
        assert few.rows[0][name] + few.others[name] == few.total[name] == found.total[name]
    assert few.rows[0]["changed"] == max(row["changed"] for row in found.rows)
    monkeypatch.setattr(compare_crawls, "_HELD", 2)
    seen = list[ProgressUpdate]()
    assert compare(index, "old", "new", ORDERS[0], 0, seen.append)[:4] == found[:4]
    assert {(one.phase, one.part) for one in seen} == {("reading", 0), ("comparing URLs", 0)}


def test_backwards_new_is_gone(tmp_path: Path) -> None:
    index, _, _ = made(tmp_path, 9)
    there = compare(index, "old", "new", ORDERS[0], 0).total
    back = compare(index, "new", "old", ORDERS[0], 0).total
    for one, other in (("new", "gone"), ("same", "same"), ("first_stored", "second_stored")):
        assert there[one] == back[other] and there[f"{one}_bytes"] == back[f"{other}_bytes"]


def test_crawls_that_run_at_the_same_time_are_counted_separately(tmp_path: Path) -> None:
    """A URL that both fetch in one second is in both."""
    index, original = begin(tmp_path), capture(1, b"http://x.example/1", crawl="other")
    twice = capture(2, b"http://x.example/2", 3, container="/old.warc.gz", crawl="old")
    copies = [twice, twice._replace(container="/new.warc.gz", crawl="new")]
    seen = [revisit_of(original, original.url, 5, f"/{one}.warc.gz", one) for one in ("old", "new")]
    load(index, [original, *copies], seen)
    found = compare(index, "old", "new", ORDERS[0], 0).total
    assert (found["same"], found["new"], found["gone"], found["changed"]) == (2, 0, 0, 0)
    for side in ("first", "second"):
        assert (found[f"{side}_stored"], found[f"{side}_revisits"]) == (1, 1)


def test_the_formats_of_the_command_agree(tmp_path: Path) -> None:
    index, _, _ = made(tmp_path, 2)
    words = ("report", index, "--crawl", "new", "--compare", "old")
    found = json.loads(typed(*words, "--json")[0])
    assert found == compare(index, "old", "new", ORDERS[0], 0).as_json()
    rows = list(csv.DictReader(io.StringIO(typed(*words, "--format", "csv")[0])))
    assert [(row["host"], int(row["changed"])) for row in rows] == [
        (row["host"], row["changed"]) for row in found["rows"]
    ]
    text, page = typed(*words)[0], typed(*words, "--format", "html", "--limit", "1")[0]
    for change in CHANGES:
        share = f"({found['total'][f'{change}_percent']:.1f} %)"
        assert f"URLs {change}:".ljust(22) + f"{found['total'][change]} {share}," in text
    assert "all 2 others" in page and "Earlier crawl old, later crawl new" in page


@pytest.mark.parametrize("others", [False, True])
def test_a_crawl_without_lookups_can_only_be_compared(others: bool, tmp_path: Path) -> None:
    index, _, _ = made(tmp_path, 3)
    if others:
        with closing(make_store(index)) as store:
            store.write(partial(lifecycle.begin, name="live"))
    said = typed("report", index, "--crawl", "new", status=4)[1]
    assert "crawl 'new' is known from its WARCs only" in said and "--compare NAME" in said
    said = typed("report", index, "--crawl", "newest", status=4)[1]
    names = ("new", *(("live",) if others else ()), "other", "old")  # what asked comes first
    assert f"there is no crawl 'newest'; there are {', '.join(names)}\n" in said
    said = typed("report", index, status=2)[1]  # lists the same crawls, by what they are good for
    assert said.endswith("for --crawl NAME --compare OTHER: other, old, new\n")
    assert (f"crawls in {index}: live; known" in said) is others


def test_revisits_that_were_not_read_are_a_warning_and_nothing_is_called_gone(
    tmp_path: Path,
) -> None:
    """A crawl that reports lists what it stored; its WARCs must be read for what it did not."""
    index = begin(tmp_path)
    one, two = (
        capture(n, b"http://x.example/%d" % n, crawl=crawl, container="new.warc.gz", offset=n)
        for n, crawl in ((1, "old"), (2, "new"))
    )
    load(index, [one, two])
    with closing(make_store(index)) as store:
        counter, hit = LookupCounter(), LookupOutcome("exact_url", 10)
        store.write(partial(lifecycle.begin, name="new"))
        store.write(
            lambda writing: add_self_report(writing, writing.crawl("new"), {"not_looked_up": 5})
        )
        counter.count_lookup(("new", "", one.url, hit, -1, 1000))
        store.write(partial(add_counted, counted=counter.take()))
        store.write(lambda writing: lifecycle.commit(writing, "new", ""))
    words = ("report", index, "--crawl", "new", "--compare", "old")
    text, twice = typed(*words)
    says = (
        "crawl new: revisits that were not read: 1, captures that it did not report: 5, files that "
        "have its captures and were not read: 1 (new.warc.gz). Read its WARCs: "
    )
    remedy = "index --add --crawl new WARCS INDEX"
    page = typed(*words, "--format", "html")[0]
    answer, warned = typed(*words, "--json")
    for shown in (text, warned, page, json.loads(answer)["warnings"][0]):
        assert says in shown and remedy in shown
    assert twice == "" and "URLs by what has changed" not in page
    assert "URLs gone:            not known (counted without them: 1)" in text
    by_host = (
        "new, gone, same and changed are not known: they are counted without what was not read or "
        "was purged"
    )
    assert text.count(f"stored, later ({by_host})") == 1 and by_host in warned
    assert page.count(f"<caption>By host, sorted by: stored, later ({by_host})</caption>") == 1
    with closing(make_store(index)) as store:  # four of the five were reported without a lookup
        counter.count_stored("new", [capture(n, b"http://x.example/%d" % n) for n in range(3, 7)])
        store.write(partial(add_counted, counted=counter.take()))
    assert "captures that it did not report: 1, files that" in typed(*words)[0]
    assert by_host in typed(*words, "--format", "csv")[1]
    assert "is not known: the warning says why" in page and ">not known</dd>" in page

    load(index, [two._replace(container="/new.warc.gz", offset=9)])
    text, _ = typed(*words)
    assert "no revisit in the files read: 1. If all its WARCs were read, no revisit is" in text
    third = capture(3, b"http://x.example/3", crawl="new", container="lost.warc.gz", offset=1)
    load(index, [third])
    text, _ = typed(*words)
    assert "files that have its captures and were not read: 1 (lost.warc.gz). Read them:" in text
    load(index, [], [revisit_of(one, one.url, 5, "/newer.warc.gz", "new")])
    text, warned = typed(*words)
    assert "URLs same:            1 (33.3 %)," in text and "Warning" not in text + warned
    assert "not known" not in text
    assert json.loads(typed(*words, "--json")[0])["warnings"] == []


def commit_with_hit(store: Store, url: bytes) -> None:
    """Commit the crawl `new`, which has looked up `url` and found it."""
    counter = LookupCounter()
    counter.count_lookup(("new", "", url, LookupOutcome("exact_url", 10), -1, 1000))
    store.write(partial(add_counted, counted=counter.take()))
    store.write(lambda writing: lifecycle.commit(writing, "new", ""))


def test_the_command_is_named_that_reads_a_crawl_of_revisits_only(tmp_path: Path) -> None:
    """It has stored nothing, so the index has nothing of it before its WARCs are read."""
    index = begin(tmp_path)
    old = capture(1, b"http://x.example/1", crawl="old", container="old.warc.gz", offset=1)
    load(index, [old])
    with closing(make_store(index)) as store:
        store.write(partial(lifecycle.begin, name="new"))
        commit_with_hit(store, old.url)
    said = typed("report", index, "--crawl", "new", "--compare", "old", status=4)[1]
    assert "its lookups found 1 duplicate" in said and "was not read" in said
    assert "index --add --crawl new WARCS INDEX" in said


def test_the_files_that_a_crawl_reported_are_named_before_it_is_merged(tmp_path: Path) -> None:
    index = begin(tmp_path)
    old = capture(1, b"http://x.example/1", crawl="old", container="old.warc.gz", offset=1)
    load(index, [old])
    with closing(make_store(index)) as store:
        stored = [
            capture(n, b"http://x.example/%d" % n, crawl="new", container=f"/w/{n}.warc.gz")
            for n in range(2, 9)
        ]
        report(store, "new", *stored)
        commit_with_hit(store, old.url)
    words = ("report", index, "--crawl", "new", "--compare", "old")
    names = "2.warc.gz, 3.warc.gz, 4.warc.gz, 5.warc.gz, 6.warc.gz and 2 more"
    said = typed(*words, status=4)[1]
    assert f"was not read. Files that it reported: 7 ({names}). Read its WARCs, and" in said
    load(index, [stored[0]])  # one file is read
    [warning] = json.loads(typed(*words, "--json")[0])["warnings"]
    left = f"{names[11:].replace(' and 2', ', 7.warc.gz and 1')}"
    assert f"files that have its captures and were not read: 6 ({left}). Read them:" in warning
    over = served(index).get("/pages/compare?first=old&second=new").text
    assert (
        ", without those that were not read or were purged</h2>" in over.partition('id="hosts"')[2]
    )


def test_files_that_could_not_be_read_whole_are_named(tmp_path: Path) -> None:
    records = (response(b"%d" % n, Target_URI=b"http://a.example/%d" % n) for n in range(2))
    whole = b"".join(map(gz, records))
    for name, content in (("old", whole), ("new", whole[:-20])):
        (tmp_path / f"{name}.warc.gz").write_bytes(content)
        words = ["index", *(["--add"] if name == "new" else ["--all"]), "--crawl", name]
        status = 7 if name == "new" else 0
        typed(*words, tmp_path / f"{name}.warc.gz", tmp_path / "index", status=status)
    words = ("report", tmp_path / "index", "--crawl", "new", "--compare", "old")
    remark = "crawl new: files of which something could not be read: 1 (new.warc.gz). What they"
    text, page = typed(*words)[0], typed(*words, "--format", "html")[0]
    answer, noted = typed(*words, "--json")
    for shown in (text, page, noted, json.loads(answer)["remarks"][0]):
        assert remark in shown
    assert "URLs gone:            1 (50.0 %)," in text and "URLs by what has changed" in page
    web = served(tmp_path / "index")
    assert remark in web.get("/pages/compare?first=old&second=new").text


def test_a_crawl_named_as_the_earlier_one_that_is_the_later_one_is_remarked_on(
    tmp_path: Path,
) -> None:
    for name, day in (("old", b"1"), ("new", b"2")):
        record = response(day, Target_URI=b"http://a.example/", Date=b"2026-01-0%bT00:00:00Z" % day)
        (tmp_path / f"{name}.warc.gz").write_bytes(gz(record))
        mode = "--add" if name == "new" else "--all"
        typed("index", mode, "--crawl", name, tmp_path / f"{name}.warc.gz", tmp_path / "index")
    words = ("report", tmp_path / "index", "--json", "--compare")
    assert json.loads(typed(*words, "old", "--crawl", "new")[0])["remarks"] == []
    answer, noted = typed(*words, "new", "--crawl", "old")
    [remark] = json.loads(answer)["remarks"]
    assert remark in noted and remark == (
        "crawl new, named as the earlier one, began after the last capture of old "
        "(2026-01-01T00:00:00Z). So new means what only the older crawl has. For the usual order "
        "give --crawl new --compare old"
    )


def test_crawls_that_there_are_are_named_the_newest_first(tmp_path: Path) -> None:
    index = begin(tmp_path)
    files = [f"from-files-{n}" for n in range(3)]
    asked = [f"crawl-{(7 * n) % 12}" for n in range(12)]  # not in the order of names
    places = enumerate(files + asked, 1)
    load(index, [capture(n, crawl=name, container=f"/{n}.warc.gz") for n, name in places])
    with closing(make_store(index)) as store:
        for name in asked:
            store.write(partial(lifecycle.begin, name=name))
    newest = [*asked[::-1], *files[::-1]]
    said = typed("report", index, "--crawl", asked[0], "--compare", "x", status=4)[1]
    assert f"it has captures of {', '.join(newest[:10])} and 5 others. A crawl is in it" in said
    said = typed("report", index, "--crawl", "x", status=4)[1]
    assert f"there are {', '.join(newest[:5])} and 10 others\n" in said
    with pytest.raises(UnknownCrawl, match=f"captures of {', '.join(newest[:10])} and 5 others"):
        compare(index, "x", asked[0], ORDERS[0], 0)


def test_comparisons_that_make_no_sense(tmp_path: Path) -> None:
    index, _, _ = made(tmp_path, 1)
    with pytest.raises(UnknownCrawl, match="it has captures of other, old, new"):
        compare(index, "old", "typo", ORDERS[0], 0)
    with pytest.raises(BadQuery, match="these are the same"):
        compare(index, "old", "old", ORDERS[0], 0)
    words = ("report", index, "--crawl", "new", "--compare", "old")
    assert "by host" in typed(*words, "--by", "mime", status=2)[1]
    assert "--status has no effect" in typed(*words, "--status", "200", status=2)[1]
    assert "--order takes one of" in typed(*words, "--order", "lookups", status=2)[1]
    assert "is for --crawl" in typed("report", index, "x", "--compare", "old", status=2)[1]
    words = ("report", index, "--crawl", "x", "--order", "new")
    assert "is for --compare" in typed(*words, status=2)[1]


def test_what_was_purged_is_not_called_gone_and_the_crawl_not_in_the_index(tmp_path: Path) -> None:
    """The files of a purged crawl stay registered, so nothing else says that it has no captures."""
    index, _, _ = made(tmp_path, 5)
    assert typed("purge", index, "--crawl", "new", "--force")[1].startswith("the index forgot")
    for name in ("purge", "impact"):
        said = typed(name, index, "--crawl", "new", status=10)[1]
        assert re.fullmatch(r"nothing found: it was purged at 20\d\d-.*Z\n", said), said
    files = json.loads(typed("index", "--stats", "--json", index)[0])["crawls"]
    purged = {row["crawl"]: (row["purged"], row["files"]) for row in files}
    assert purged["new"][0] == purged["new"][1] > 0 == purged["old"][0] == purged["other"][0]
    text = typed("index", "--stats", index)[0]
    count = purged["new"][0]
    assert f"  (of these purged: {count})\n" in text and f"purged: {count} of the files\n" in text

    warning = f"crawl new: files whose captures were purged: {count} of {count}"
    for earlier, later in (("old", "new"), ("new", "old")):
        words = ("report", index, "--crawl", later, "--compare", earlier)
        assert json.loads(typed(*words, "--json")[0])["warnings"] == [warning]
        text, page = typed(*words)[0], typed(*words, "--format", "html")[0]
        assert warning in text and warning in page and "URLs gone:            not known" in text

    said = typed("report", index, "--crawl", "old", "--compare", "nope", status=4)[1]
    assert "it has captures of other, old. A crawl is in it" in said
    said = typed("report", index, "--crawl", "NEW-1", status=4)[1]
    assert "there are other, old, new (purged)\n" in said
    said = typed("report", index, "--crawl", "new", status=4)[1]
    assert "'new' is known from its WARCs only, and their captures were purged" in said
    said = typed("list", index, "--of-crawl", "new", status=10)[1]
    assert said == "no capture matches; captures of crawl new were purged\n"
    web = served(index)
    page = web.get("/pages/containers").text
    assert page.count("<td>purged</td>") == count and "index --replace</code> reads it" in page
    shown = web.get("/pages/compare?first=old&second=new").text
    assert warning in shown and "changed is not known" in shown


def test_a_purged_crawl_that_only_reported_is_a_warning(tmp_path: Path) -> None:
    index = begin(tmp_path)
    load(index, [capture(1, crawl="old", container="/old.warc.gz")])
    places = [capture(2, crawl="new", container="new.warc.gz")]  # its file was never read
    load(index, places)
    with closing(make_store(index)) as store:
        store.write(partial(lifecycle.begin, name="new"))
        store.write(lambda writing: lifecycle.commit(writing, "new", ""))
        store.write(lambda writing: writing.put_crawl(replace(writing.crawl("new"), merged=True)))
    typed("purge", index, "--crawl", "new")
    found = compare(index, "old", "new", ORDERS[0], 0)
    assert found.warnings == ["crawl new: its captures were purged"]


def test_crawls_whose_captures_were_removed_are_named_last(tmp_path: Path) -> None:
    index, _, _ = made(tmp_path, 6)
    with closing(make_store(index)) as store:
        for name in ("a1", "weekly-1", "cx1", "cx2"):
            store.write(partial(lifecycle.begin, name=name))
        for name in ("cx1", "cx2"):
            store.write(partial(lifecycle.cancel, name=name))
    said = typed("report", index, status=2)[1]
    assert f"crawls in {index}: weekly-1, a1, cx2 (cancelled), cx1 (cancelled); known" in said
    for name in ("Weekly-11", "weekly-11"):
        said = typed("report", index, "--crawl", name, status=4)[1]
        assert "there are weekly-1, a1, other, old, new and 2 others\n" in said
    web = served(index)
    answer = web.get("/crawls/CX3/report")
    assert answer.status_code == 404
    assert "there are weekly-1, a1, cx2 (cancelled), cx1 (cancelled)" in answer.text
    answer = web.get("/crawls/new")
    said = answer.get_json()["error"]["message"]
    assert answer.status_code == 404 and "known from its WARCs only" in said
    assert "list INDEX --of-crawl new lists its originals" in said
    assert "begin it with POST" in web.get("/crawls/newer").text


def test_a_cancelled_crawl_can_be_read_and_compared(tmp_path: Path) -> None:
    index, _, _ = made(tmp_path, 5)
    with closing(make_store(index)) as store:
        store.write(partial(lifecycle.begin, name="xy"))
        store.write(partial(lifecycle.cancel, name="xy"))
    said = typed("report", index, "--crawl", "xy", "--compare", "old", status=4)[1]
    remedy = "If it wrote WARCs, read them: bin/index --add --crawl xy WARCS INDEX\n"
    assert "crawl xy was cancelled: the index has nothing of" in said and said.endswith(remedy)


def test_bytes_of_payloads_of_unknown_size_are_not_known(tmp_path: Path) -> None:
    index, url = begin(tmp_path), b"http://x.example/"
    load(index, [capture(1, url, crawl="old", size=9), capture(2, url, 2, crawl="new", size=-1)])
    found = compare(index, "old", "new", ORDERS[0], 0)
    for row in (found.total, found.rows[0]):
        assert (row["changed"], row["changed_bytes"], row["second_stored_bytes"]) == (1, None, None)
        assert (row["first_stored_bytes"], row["same_bytes"], row["unsized"]) == (9, 0, 1)
    text = typed("report", index, "--crawl", "new", "--compare", "old")[0]
    assert "URLs changed:         1 (100.0 %), bytes of payload: not known" in text
    assert "Later stored:         1, not known; revisits: 0, 0 B" in text
    shown = served(index).get("/pages/compare?first=old&second=new").text
    assert shown.count('<td class="n">not known</td>') >= 2
