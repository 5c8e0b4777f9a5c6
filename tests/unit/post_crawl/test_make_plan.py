"""Resolving: every plan equals that of a simple model of the rule, by every way to make it."""

from __future__ import annotations

import json
import random
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dedupindex.post_crawl.manifest.parquet import Line, ManifestContainer
from dedupindex.post_crawl.plan import plan_file
from dedupindex.post_crawl.plan.group_duplicates import GroupingRule
from dedupindex.post_crawl.plan.make_plan import ResolveOptions, resolve
from dedupindex.post_crawl.plan.plan_file import (
    MatchCriteria,
    Plan,
    open_plan,
)
from tests.support.budgets import examples
from tests.support.manifests import container, line, write_manifest

NAMES = ("b/x.warc.gz", "a.warc.gz", "b.warc.gz")
PLACES = [container(number, name) for number, name in enumerate(NAMES)]
DATES = (
    b"2026-01-01T00:00:00Z",
    b"2026-01-01T00:00:00.5Z",
    b"2026-01-01T00:00:00.25Z",
    b"2025-12-31T23:59:60Z",
    b"2026-01-01T00:00:01Z",
    b"1996-05-01T00:00:00Z",
    b"2026-01",
    b"9998-12-31T23:59:59.999999999Z",
    b"0002-01-01T00:00:00Z",
    b"9999-01-01T00:00:00Z",
    b"0000-01-01T00:00:00Z",
)
DEFAULT = MatchCriteria()
BAD = (b"2026-01", b"9999-01-01T00:00:00Z", b"0000-01-01T00:00:00Z")  # fmt: skip


@st.composite
def lines(draw: st.DrawFn) -> list[Line]:
    """Lines of three containers, with many equal fields."""
    found = []
    for place in range(3):
        for offset in sorted(draw(st.sets(st.integers(0, 9), max_size=6))):
            body = draw(st.sampled_from([b"one", b"two", b"six"]))
            digest = draw(st.sampled_from([b"sha1:A", b"sha1:A", b"sha1:a", b"sha1:B", b""]))
            date = draw(st.sampled_from(DATES))
            bad = "bad-date" if date in BAD else ""
            found.append(
                line(
                    place, offset, body, digest=digest, date=date,
                    status=draw(st.sampled_from([200, 200, 404])),
                    content_type=draw(st.sampled_from([b"text/html", b"text/html", b""])),
                    coding=draw(st.sampled_from([b"\n", b"\n", b"\ngzip"])),
                    replay_key=0 if bad else draw(st.integers(1, 12)),
                    url=draw(st.sampled_from([b"http://a.test/", b"http://A.test/"])),
                    record_id=draw(st.sampled_from([b"urn:1", b"urn:%d-%d" % (place, offset)])),
                    not_rewritable_reason=draw(st.sampled_from([bad, bad, bad or "not-exact"])),
                    not_original_reason=draw(st.sampled_from([bad, bad, bad or "truncated"])),
                )
            )  # fmt: skip
    return found


def instant(line: Line) -> tuple[bytes, bytes]:
    date = line.date[:-1].replace(b"2025-12-31T23:59:60", b"2026-01-01T00:00:00")
    return (date[:19], date[20:].ljust(9, b"0")) if line.replay_key else (b"", b"")


def order(line: Line) -> tuple[Any, ...]:
    return instant(line), f"/set/{NAMES[line.container]}".encode(), line.offset


Key = tuple[str, int]


def where(line: Line) -> Key:
    return NAMES[line.container], line.offset


def kind(one: Line, criteria: MatchCriteria) -> tuple[Any, ...]:
    status = 0 if criteria.any_status else one.status
    content_type = one.content_type if criteria.same_type else b""
    return one.digest, one.strong, one.length, one.coding, status, content_type


def model(
    lines: list[Line], later: bool = False, criteria: MatchCriteria = DEFAULT
) -> dict[Key, tuple[int, Key]]:
    """What is to be rewritten: its copy number and its original. One line at a time."""
    strongs, twins, classes = defaultdict(set), defaultdict(set), defaultdict(list)
    for one in lines:
        strongs[one.replay_key].add(one.strong)
        twins[one.replay_key, one.url].add((one.record_id, one.strong))
        classes[kind(one, criteria)].append(one)
    plan = {}
    for members in classes.values():
        members.sort(key=order)
        fit = [
            one
            for one in members
            if not one.not_original_reason and len(strongs[one.replay_key]) == 1
        ]
        if not fit:
            continue
        first, copy = fit[0], 1
        for one in members:
            known = one is first or one.not_rewritable_reason
            known = known or (one.replay_key and len(twins[one.replay_key, one.url]) > 1)
            same = one.record_id == first.record_id or one.replay_key == first.replay_key
            if not (known or same or (order(one) < order(first) and not later)):
                copy += 1
                plan[where(one)] = copy, where(first)
    return plan


def planned(plan: Plan) -> dict[Key, tuple[int, Key]]:
    found = {}
    for number, place in plan.containers().items():
        offsets = []
        for one in plan.copies(number):
            offsets.append(one.line.offset)
            original = plan.container(one.original.container).name, one.original.offset
            found[place.name, one.line.offset] = one.copy, original
            assert one.line.container == number and one.line._replace(
                container=one.original.container, offset=one.original.offset,
                stored=one.original.stored, record_id=one.original.record_id,
                url=one.original.url, date=one.original.date, covers=one.original.covers,
                status=one.original.status, content_type=one.original.content_type,
                replay_key=one.original.replay_key, payload=one.original.payload,
            ) == one.original  # fmt: skip
            assert one.original.offset in set(plan.protected(one.original.container))
        assert offsets == sorted(offsets)
        assert not set(offsets) & set(plan.protected(number))
    return found


def made(top: Path, lines: list[Line], shuffled: random.Random | None = None, **rule: Any) -> Plan:
    """The plan of lines, from one manifest or, `shuffled`, from several in another order."""
    shutil.rmtree(top, ignore_errors=True)
    of: dict[ManifestContainer, list[Line]] = {place: [] for place in PLACES}
    for one in lines:
        of[PLACES[one.container]].append(one)
    groups = [of]
    if shuffled is not None:
        places = shuffled.sample(PLACES, 3)
        groups = [{place: of[place] for place in places[:1]}, {p: of[p] for p in places[1:]}]
    paths = [write_manifest(top / f"m{n}", group) for n, group in enumerate(groups)]
    parts = rule.pop("parts", 1)
    for part in range(1, parts + 1):
        resolve(paths, top / "plan", ResolveOptions(GroupingRule((part, parts), **rule), threads=1))
    return open_plan(top / "plan")


few = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=examples(15),
)


def of_other_types(lines: list[Line], criteria: MatchCriteria) -> int:
    """How many are equal only to lines of other types, and not the first of these."""
    count = 0
    for one in lines if criteria.same_type else ():
        equal = [
            other for other in lines
            if kind(other, criteria)[:-1] == kind(one, criteria)[:-1]
        ]  # fmt: skip
        mine = [other for other in equal if kind(other, criteria) == kind(one, criteria)]
        count += bool(
            len(mine) == 1 < len(equal)
            and not one.not_rewritable_reason
            and one != min(equal, key=order)
        )
    return count


@few
@given(lines(), st.booleans(), st.builds(MatchCriteria, st.booleans(), st.booleans()))
def test_a_plan_is_what_the_rule_says(
    tmp_path: Path, lines: list[Line], later: bool, criteria: MatchCriteria
) -> None:
    plan = made(tmp_path / "run", lines, later=later, criteria=criteria)
    expected = model(lines, later, criteria)
    assert plan.criteria == criteria
    assert plan.totals.kept["type-differs"] == of_other_types(lines, criteria)
    assert planned(plan) == expected
    totals = plan.totals
    assert totals.copies == len(expected)
    assert totals.originals == len({original for _, original in expected.values()})
    accounted = totals.unique + totals.originals + totals.copies + totals.kept.total()
    assert accounted == totals.lines == len(lines)


@settings(few, max_examples=examples(6))
@given(lines(), st.randoms(use_true_random=False))
def test_neither_order_nor_partition_matters(
    tmp_path: Path, lines: list[Line], order: random.Random
) -> None:
    whole = made(tmp_path / "whole", lines)
    parts = made(tmp_path / "parts", lines, order, parts=3)
    assert planned(parts) == planned(whole)
    assert parts.containers() == whole.containers()
    assert replace(parts.totals) == whole.totals


def test_plans_of_an_earlier_version_with_the_old_names_of_reasons_are_read(tmp_path: Path) -> None:
    plan = made(tmp_path / "run", [line(0, 1), line(0, 2)])
    file = next(plan.path.glob("**/part.json"))
    about = json.loads(file.read_text())
    kept = ("same-moment", "earlier", "others-stay", "referred", "unlike", "no-original")
    del about["totals"]["kept"]
    about["totals"]["stayed"] = dict.fromkeys(kept, 2)
    file.write_text(json.dumps(about))
    renamed = (
        "same-second", "no-earlier-original", "unused-original", "referred-to",
        "hash-collision", "no-original",
    )  # fmt: skip
    totals = open_plan(plan.path).totals
    assert totals.kept == dict.fromkeys(renamed, 2) and totals.copies == plan.totals.copies


@pytest.mark.parametrize("parts", [1, 2])
def test_copies_of_a_container_are_read_from_the_files_that_may_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    """A plan of an archive has thousands of files, and is asked for each of its containers."""
    monkeypatch.setattr(plan_file, "BATCH", 1)  # a file for each container
    bodies = [b"%d" % number for number in range(20)]
    lines = [
        line(at % 3, at // 3, bodies[at % 20], digest=b"sha1:" + bodies[at % 20])
        for at in range(60)
    ]
    plan = made(tmp_path / "run", lines, parts=parts)
    expected = planned(plan)
    files = sorted(plan.path.glob("**/copies-*"))
    assert len(files) == 3 * parts and len({name for name, _ in expected}) == 3
    found: dict[Key, tuple[int, Key]] = {}
    for number, place in plan.containers().items():
        away = [file for file in files if file.name != f"copies-{number}-{number}.parquet"]
        for file in away:
            file.rename(f"{file}.away")
        offsets = {one.line.offset for one in plan.copies(number)}
        for file in away:
            Path(f"{file}.away").rename(file)
        assert offsets == {offset for name, offset in expected if name == place.name}
        found |= {(place.name, offset): expected[place.name, offset] for offset in offsets}
    assert found == expected
    for number, file in enumerate(files):  # as earlier versions named them
        file.rename(file.with_name(f"copies-{number:06d}.parquet"))
    assert planned(open_plan(plan.path)) == expected
