"""Purges one after another: no revisit loses the last copy of its payload unreported."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.capture import Capture, Evidence, Revisit
from dedupindex.crawls.stores import make_store
from dedupindex.digest import Digest
from dedupindex.errors import HasDependents
from dedupindex.index.identity import Settings
from dedupindex.index.load import runs
from dedupindex.post_crawl.purge.impact import (
    Amount,
    DependentRevisit,
    Impact,
    Item,
    RemovedCopy,
    RemovedOriginal,
    RemovedRevisit,
)
from dedupindex.post_crawl.purge.remove import PurgeSurvey, purge, survey
from dedupindex.post_crawl.purge.target import CaptureTarget, Target, TargetKind
from tests.conftest import ENGINES, On
from tests.support.budgets import examples
from tests.support.captures import capture, sha1
from tests.support.commands import typed
from tests.support.paths import ROOT
from tests.support.purging import begin, held, load, revisit_of
from tests.unit.post_crawl.test_impact import (
    BACKUP,
    FIRST,
    SECOND,
    A,
    B,
    C,
    container,
    report_captures,
)

# --- a model -------------------------------------------------------------------------------------

revisits = st.builds(
    lambda number, url, day, own, own_day, where, names: (
        (found := revisit_of(capture(number, url, day), own, own_day, where))
        and (found if names else Revisit(found.capture, None))
    ),
    st.integers(1, 2),
    st.sampled_from([A, B]),
    st.integers(1, 2),
    st.sampled_from([A, B, C]),
    st.integers(1, 3),
    st.sampled_from([FIRST, SECOND]),
    st.sampled_from([True, True, True, False]),
)
records = st.builds(
    lambda number, url, day, where: capture(number, url, day, container=where),
    st.integers(1, 2),
    st.sampled_from([A, B]),
    st.integers(1, 2),
    st.sampled_from([FIRST, SECOND, BACKUP]),
)
loads = st.tuples(
    st.lists(records, max_size=6),
    st.lists(revisits, max_size=4),
    st.sets(st.sampled_from([FIRST, SECOND, BACKUP]), max_size=2),  # files that are replaced
)
targets = st.one_of(
    st.builds(container, st.sampled_from([FIRST, SECOND, BACKUP])),
    st.builds(container, st.just(FIRST), st.sampled_from([SECOND, BACKUP])),
    st.builds(lambda url: Target(TargetKind.URL, (url.decode(),)), st.sampled_from([A, B])),
)
purges = st.lists(st.tuples(targets, st.booleans()), min_size=1, max_size=4)


@pytest.mark.parametrize("engine", ENGINES)
def test_counts_of_purges_are_those_of_a_model(engine: str, on: On) -> None:
    """Of each file as it is now, and of the revisits that are in it now."""

    @settings(max_examples=examples({"lmdb": 120, "whoosh": 15, "cassandra": 8}[engine]))
    @given(st.lists(loads, min_size=1, max_size=3), purges)
    def check(
        steps: list[tuple[list[Capture], list[Revisit], set[str]]],
        removals: list[tuple[Target, bool]],
    ) -> None:
        known, named = set[Capture](), set[Revisit]()
        with tempfile.TemporaryDirectory() as name, on(engine) as new:
            index = begin(Path(name), new())
            for captures, revisits_, replaced in steps:
                known = {one for one in known if one.container not in replaced}
                again = sorted(known) if replaced else []  # as a build offers the other files
                load(index, captures + again, revisits_, replaced)
                known |= {*captures}
                named = {one for one in named if one.capture.container not in replaced}
                named |= {*revisits_}
            for target, force in removals:
                known, named = purge_and_compare(index, target, force, known, named)

    check()


def purge_and_compare(
    index: Path, target: Target, force: bool, known: set[Capture], named: set[Revisit]
) -> tuple[set[Capture], set[Revisit]]:
    """Purge an index of these captures and revisits; return what is left of them."""
    items: list[Item] = []
    impact = survey(index, target, items.append).impact
    depending = [one for one in items if isinstance(one, DependentRevisit)]
    compare(impact, target, held(index), known, named, depending)
    compare_items(impact, items, {one for one in known if takes(target, one)})
    if impact.dependents.captures and not force:
        with pytest.raises(HasDependents):
            purge(index, target, force=False)
        return known, named
    purge(index, target, force=force)
    left = {one for one in known if not takes(target, one)}
    revisits = {one for one in named if not takes(target, one.capture)}
    stored = {str(one.digest) for one in left}
    assert {digest for digest, _ in held(index)} == stored
    if not force:
        had = {one.digest for one in known} & {one.capture.digest for one in revisits}
        assert {str(digest) for digest in had} <= stored
    return left, revisits


def compare_items(impact: Impact, items: list[Item], gone: set[Capture]) -> None:
    """The list has what is counted, each capture that goes with its own file."""
    copies = [one.capture for one in items if isinstance(one, RemovedCopy)]
    originals = [one.capture for one in items if isinstance(one, RemovedOriginal)]
    assert sorted(copies + originals) == sorted(gone)
    assert impact.copies == amount_of([one.size for one in copies])
    assert impact.originals == amount_of([one.size for one in originals])
    revisits = [one.size for one in items if isinstance(one, RemovedRevisit)]
    assert impact.revisits == amount_of(revisits)
    depending = [one for one in items if isinstance(one, DependentRevisit)]
    sizes = {revisit_in(one): one.size for one in depending if not one.by_digest}
    listed = {(digest, url, date) for digest, _, url, date in sizes}
    nameless = {revisit_in(one): one.size for one in depending if one.by_digest}
    sizes |= {one: size for one, size in nameless.items() if (one[0], *one[2:]) not in listed}
    assert impact.dependents == amount_of([*sizes.values()])
    files = Counter(one.container.encode() for one in depending)
    assert {name: count for name, (count, *_) in impact.by_container.items()} == files


def revisit_in(item: DependentRevisit) -> tuple[Digest, bytes, bytes, bytes]:
    """Digest, the URL that it names if that counts, its own URL and date."""
    one = item.dependent
    return item.digest, b"" if item.by_digest else one.names_url, one.url, one.date


def amount_of(sizes: list[int]) -> Amount:
    amount = Amount()
    for size in sizes:
        amount.add(size)
    return amount


def takes(target: Target, one: Capture) -> bool:
    text = one.container if target.kind is TargetKind.CONTAINER else one.url.decode()
    return text in target.texts


def compare(
    impact: Impact,
    target: Target,
    answering: list[tuple[str, Capture]],
    known: set[Capture],
    named: set[Revisit],
    depending: list[DependentRevisit],
) -> None:
    """The impact of a target on an index of these captures and revisits."""
    gone = {one for one in known if takes(target, one)}
    stay = known - gone
    originals = [one for _, one in answering if takes(target, one)]
    assert impact.originals.captures == len(originals)
    assert impact.copies.captures == len(gone) - len(originals)
    urls = {(one.digest, one.url) for one in stay}
    digests = {one.digest for one in stay}
    same = sum((one.digest, one.url) in urls for one in originals)
    nowhere = sum(one.digest not in digests for one in originals)
    assert impact.left["same_url"].captures == same
    assert impact.left["nowhere"].captures == nowhere
    assert impact.left["other_url"].captures == len(originals) - same - nowhere
    dates = {(one.digest, one.url, one.date) for one in stay}
    left = {(one.digest, one.url, one.date) for one in gone} - dates
    of_url = {(one.digest, one.url) for one in gone} - urls
    by_name, by_digest = set[tuple[object, ...]](), set[tuple[object, ...]]()
    files, nameless = set[tuple[object, ...]](), set[tuple[object, ...]]()
    for one in named:
        if takes(target, one.capture):
            continue
        digest, url, date = one.capture.digest, one.capture.url, one.capture.date
        names = one.refers_to.url if one.refers_to else url
        if (
            (digest, *one.refers_to[:2]) in left
            or (target.kind is TargetKind.URL and (digest, names) in of_url)
            if one.refers_to
            else (digest, url) in of_url
        ):
            by_name.add((digest, names, url, date))
            files.add((digest, names, url, date, one.capture.container))
        elif digest in {one.digest for one in gone} - digests:
            by_digest.add((digest, url, date))
            nameless.add((digest, b"", url, date, one.capture.container))
    listed = {(digest, *rest) for digest, _, *rest in files}
    files |= {one for one in nameless if (one[0], *one[2:]) not in listed}
    assert len(depending) == len(files)  # one for each file that holds the revisit
    assert {(*revisit_in(one), one.container) for one in depending} == files
    by_digest -= {(digest, url, date) for digest, _, url, date in by_name}
    assert impact.by_digest.captures == len(by_digest)
    assert impact.dependents.captures == len(by_name) + len(by_digest)
    broken = sum(one[0] not in digests for one in by_name)
    assert impact.broken.captures == broken + len(by_digest)


# --- one payload in two places -------------------------------------------------------------------

ORIGINAL = capture(1, A, 1, container=FIRST)
LAST = capture(1, B, 2, container=SECOND, crawl="second")
TARGETS = {
    "container": container(SECOND),
    "crawl": Target(TargetKind.CRAWL, ("second",)),
    "url": Target(TargetKind.URL, (B.decode(),)),
    "prefix": Target(TargetKind.PREFIX, (B.decode(),)),
    "capture": Target(TargetKind.CAPTURE, captures=(CaptureTarget(sha1(1), B),)),
}
of_each_kind = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
of_files = pytest.mark.parametrize("engine", ["lmdb", "whoosh"])


def orphan(day: int = 9, url: bytes = C, where: str = "/w/r.warc.gz") -> Revisit:
    """A revisit that names the original."""
    return revisit_of(ORIGINAL, url, day, where, crawl="weekly")


def dependents(index: Path, target: Target) -> tuple[PurgeSurvey, list[DependentRevisit]]:
    seen: list[Item] = []
    found = survey(index, target, seen.append)
    return found, [one for one in seen if isinstance(one, DependentRevisit)]


def check_protected(index: Path, target: Target, count: int = 1, *, files: int = 1) -> None:
    """Check that revisits depend on a target by their digest, and that they protect it.

    `files` is how many hold each of them.
    """
    found, depending = dependents(index, target)
    impact, before = found.impact, held(index)
    assert impact.dependents.captures == impact.broken.captures == count
    assert impact.by_digest.captures == count
    assert len(depending) == count * files
    assert {(one.left, one.by_digest) for one in depending} == {("nowhere", True)}
    with pytest.raises(HasDependents, match=f"{count} revisits? of other captures depend"):
        purge(index, target, force=False)
    assert held(index) == before
    purge(index, target, force=True)
    assert held(index) == []


def check_free(index: Path, target: Target) -> None:
    """Check that nothing protects a target."""
    found, depending = dependents(index, target)
    assert not depending and not found.impact.dependents.captures
    purge(index, target, force=False)


@of_files
@of_each_kind
def test_a_revisit_of_a_purged_original_protects_the_last_copy(
    tmp_path: Path, engine: str, target: Target
) -> None:
    index = begin(tmp_path, engine)
    load(index, [ORIGINAL, LAST], [orphan()])
    found, (one,) = dependents(index, container(FIRST))
    assert (one.left, one.by_digest) == ("other_url", False)
    assert not found.impact.by_digest.captures
    purge(index, container(FIRST), force=True)
    _, (one,) = dependents(index, target)
    assert (one.dependent.url, one.dependent.names_url, one.size) == (C, A, LAST.size)
    assert (one.container, one.crawl) == ("/w/r.warc.gz", "weekly")
    check_protected(index, target)


@of_files
@of_each_kind
def test_a_revisit_that_names_nothing_protects_the_last_copy(
    tmp_path: Path, engine: str, target: Target
) -> None:
    index = begin(tmp_path, engine)
    load(index, [ORIGINAL, LAST], [Revisit(orphan().capture, None)])
    check_free(index, container(FIRST))
    check_protected(index, target)


@of_each_kind
def test_what_only_a_revisit_says_of_an_original_is_not_stored(
    tmp_path: Path, target: Target
) -> None:
    index = begin(tmp_path)
    claim = ORIGINAL._replace(evidence=Evidence.NAMED, container="")
    load(index, [claim, LAST], [orphan()])
    found, (one,) = dependents(index, target)
    assert one.by_digest and found.impact.left["nowhere"].captures == 1
    with pytest.raises(HasDependents):
        purge(index, target, force=False)


@of_each_kind
@pytest.mark.parametrize(
    "other",
    [
        capture(1, C, 3, container=BACKUP),
        capture(1, C, 3, container="backup.warc.gz", evidence=Evidence.ROW),
        ORIGINAL._replace(container=BACKUP),
    ],
    ids=["another URL", "row", "copy of the original"],
)
def test_another_stored_copy_needs_no_protection(
    tmp_path: Path, target: Target, other: Capture
) -> None:
    index = begin(tmp_path)
    load(index, [ORIGINAL, LAST, other], [orphan(url=b"http://example.com/d")])
    purge(index, container(FIRST), force=True)
    check_free(index, target)
    assert [one for _, one in held(index)] == [other]
    check_last(index, other)


def check_last(index: Path, other: Capture) -> None:
    """Check that the copy that is left is protected, now that it is the last one."""
    target = Target(TargetKind.URL, (other.url.decode(),))
    assert survey(index, target).impact.broken.captures == 1
    with pytest.raises(HasDependents):
        purge(index, target, force=False)


@pytest.mark.parametrize("keep", ["earliest", "latest"])
def test_copies_in_the_ledger_and_in_reserve_are_stored(tmp_path: Path, keep: str) -> None:
    """A copy that lost to another one, and a record behind what a revisit says of its URL."""
    index = begin(tmp_path, settings=Settings(keep=keep))
    later = LAST._replace(date=b"2026-11-05T00:00:00Z", container=BACKUP, crawl="")
    claim = capture(1, C, 1, evidence=Evidence.NAMED, container="")
    hidden = capture(1, C, 3, container="/w/hidden.warc.gz")
    load(index, [ORIGINAL, LAST, later, claim, hidden], [orphan(url=b"http://example.com/d")])
    purge(index, container(FIRST), force=True)
    check_free(index, container(SECOND))
    check_free(index, container(BACKUP))
    assert survey(index, container("/w/hidden.warc.gz")).impact.broken.captures == 1


def test_a_revisit_that_goes_too_or_went_before_protects_nothing(tmp_path: Path) -> None:
    index = begin(tmp_path)
    load(index, [ORIGINAL, LAST], [orphan(where=SECOND)])
    purge(index, container(FIRST), force=True)
    assert not survey(index, container(SECOND)).impact.dependents.captures
    load(index, [], [orphan(8, B)])
    assert survey(index, TARGETS["url"]).impact.dependents.captures == 1  # that in SECOND
    assert survey(index, container(SECOND)).impact.dependents.captures == 1
    purge(index, container("/w/r.warc.gz"), force=False)
    check_free(index, container(SECOND))


def test_a_revisit_whose_url_was_purged_protects_nothing_when_it_is_read_again(
    tmp_path: Path,
) -> None:
    index = begin(tmp_path)
    load(index, [ORIGINAL, LAST], [orphan()])
    purge(index, container(FIRST), force=True)
    purge(index, Target(TargetKind.URL, (C.decode(),)), force=False)
    load(index, [], [orphan(), orphan(where=BACKUP)])
    assert not survey(index, container(SECOND)).impact.dependents.captures
    load(index, [], [orphan(10)])  # another revisit of that URL
    check_protected(index, container(SECOND))


def test_a_revisit_in_a_log_and_in_its_file_is_counted_once(tmp_path: Path) -> None:
    """A log may not know the original that a record names."""
    index = begin(tmp_path)
    in_log = Revisit(orphan(where="r.warc.gz").capture, None)
    load(index, [ORIGINAL, LAST], [orphan(), orphan(where=BACKUP), in_log])
    assert survey(index, container(FIRST, SECOND)).impact.dependents.captures == 1
    purge(index, container(FIRST), force=True)
    check_protected(index, container(SECOND), files=2)


@pytest.mark.parametrize("named", [True, False])
def test_each_warc_that_holds_a_dependent_is_listed(tmp_path: Path, *, named: bool) -> None:
    """A takedown rewrites them all; a log, and a name without a directory, are no further file."""
    index = begin(tmp_path)
    read = [
        orphan(where=where) for where in ("/log/crawl.log", "r.warc.gz", BACKUP, "/w/r.warc.gz")
    ]
    load(index, [ORIGINAL, LAST], [read[0]])
    load(index, [], read if named else [Revisit(one.capture, None) for one in read])
    if not named:
        purge(index, container(FIRST), force=True)
    target = container(FIRST, SECOND) if named else container(SECOND)
    found, depending = dependents(index, target)
    impact, files = found.impact, ["/copy/backup.warc.gz", "/w/r.warc.gz"]
    assert sorted(one.container for one in depending) == files
    assert impact.dependents.captures == impact.broken.captures == 1
    assert {name.decode(): one[0] for name, one in impact.by_container.items()} == dict.fromkeys(
        files, 1
    )
    assert {name: one[0] for name, one in impact.by_crawl.items()} == {b"weekly": 1}


def test_what_only_logs_know_of_a_dependent_is_listed(tmp_path: Path) -> None:
    index = begin(tmp_path)
    load(index, [ORIGINAL], [orphan(where="/log/crawl.log")])
    _, depending = dependents(index, container(FIRST))
    assert [one.container for one in depending] == ["/log/crawl.log"]


def test_commands_name_each_copy_of_a_file_with_a_dependent(tmp_path: Path) -> None:
    """Its original is in both files, too."""
    names = [
        ROOT / "tests" / "data" / "warc" / name for name in ("example.warc", "example.warc.gz")
    ]
    index, asked = tmp_path / "index", tmp_path / "asked.jsonl"
    typed("index", "--all", *names, index)
    digest = "sha1:G7HRM7BGOKSKMSXZAHMUQTTV53QOFSMK"
    asked.write_text(json.dumps({"digest": digest, "url": "http://example.com/"}))
    out, counts = typed("impact", index, "--captures", asked, "--list")
    lines = list(map(json.loads, out.splitlines()))
    files = [line["dependent"]["container"] for line in lines if "dependent" in line]
    assert sorted(files) == [str(name) for name in names]
    assert "dependents               1  " in counts
    for name in names:
        assert f"  in file {name}: 1 revisit, 606 B\n" in counts


def test_many_revisits_are_sorted_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_SORTED_BYTES", 100_000)
    index, count = begin(tmp_path), runs.CHUNK + 1000
    made = [orphan(1 + at % 20, b"http://example.com/%d" % at) for at in range(count)]
    load(index, [ORIGINAL, LAST], [*made, *(Revisit(one.capture, None) for one in made)])
    purge(index, container(FIRST), force=True)
    impact = survey(index, container(SECOND)).impact
    assert impact.by_digest.captures == impact.dependents.captures == count


def test_three_purges_of_different_kinds_in_a_row(tmp_path: Path) -> None:
    index = begin(tmp_path)
    middle = capture(1, C, 3, container=BACKUP)
    load(index, [ORIGINAL, middle, LAST], [orphan(), revisit_of(middle, A, 7)])
    purge(index, Target(TargetKind.URL, (A.decode(),)), force=True)  # and the revisit of A
    check_free(index, container(BACKUP))
    check_protected(index, TARGETS["crawl"])


def test_commands_name_the_revisits(tmp_path: Path) -> None:
    index = begin(tmp_path)
    load(index, [ORIGINAL, LAST], [orphan()])
    words = (index, "--crawl", "second")
    assert "by digest" not in typed("impact", *words)[0]
    purge(index, container(FIRST), force=True)
    report = json.loads(typed("impact", *words, "--json")[0])
    one = {"captures": 1, "bytes": LAST.size, "unsized": 0}
    assert report["dependents"] == report["broken"] == report["by_digest"] == one
    lines = map(json.loads, typed("impact", *words, "--list")[0].splitlines()[:2])
    (listed,) = (line for line in lines if "dependent" in line)
    assert (listed["payload"], listed["by_digest"]) == ("nowhere", True)
    assert listed["dependent"]["container"] == "/w/r.warc.gz"
    assert listed["dependent"]["refers_to"]["url"] == A.decode()
    assert "  by digest              1" in typed("impact", *words)[0]
    _, said = typed("purge", *words, status=HasDependents.exit_status)
    assert "1 revisit of other captures depends on what would be removed" in said
    typed("purge", *words, "--force")


# --- crawls that are not merged ------------------------------------------------------------------


def report_to(index: Path, name: str, *captures: Capture) -> None:
    with closing(make_store(index)) as store:
        store.write(partial(report_captures, name=name, captures=captures))


@of_each_kind
def test_the_last_copy_may_be_of_a_crawl_that_is_not_merged(
    engine: str, tmp_path: Path, target: Target
) -> None:
    index = begin(tmp_path, engine)
    load(index, [ORIGINAL], [orphan(), Revisit(orphan(8).capture, None)])
    last = LAST._replace(container="second.warc.gz", crawl="")
    report_to(index, "second", last, last._replace(url=B + b"/2"), capture(2, B, 2))
    report_to(index, "third", last._replace(date=b"2026-11-07T00:00:00Z"))
    assert survey(index, target).live and not survey(index, target).impact.dependents.captures
    purge(index, container(FIRST), force=True)  # the crawls may be dropped: nothing is stored
    found, depending = dependents(index, target)
    assert found.impact.by_digest.captures == len(depending) == 2
    with pytest.raises(HasDependents):
        purge(index, target, force=False)
    purge(index, target, force=True)
    assert not survey(index, target).live


def test_revisits_of_what_a_crawl_has_reported_are_counted_once(
    engine: str, tmp_path: Path
) -> None:
    """The one that names what goes of a crawl, and one that has the payload by its digest."""
    index = begin(tmp_path, engine)
    url = Target(TargetKind.PREFIX, ("http://example.com/",))
    live = capture(1, A, 4, container="x.warc.gz")
    away = b"http://example.net/"
    named, other = revisit_of(live, away, 9), Revisit(orphan(url=away + b"2").capture, None)
    load(index, [LAST], [named, other])
    report_to(index, "a", live)
    found, depending = dependents(index, url)
    assert len(depending) == found.impact.dependents.captures == found.impact.broken.captures == 2
    purge(index, container(SECOND), force=True)
    found, depending = dependents(index, url)
    assert {(one.dependent.url, one.by_digest) for one in depending} == {
        (named.capture.url, False), (other.capture.url, True),
    }  # fmt: skip
    with pytest.raises(HasDependents, match="2 revisits"):
        purge(index, url, force=False)


def test_claims_that_go_with_a_crawl_are_not_counted_again(engine: str, tmp_path: Path) -> None:
    index = begin(tmp_path, engine)
    live = capture(1, A, 4, container="x.warc.gz")
    load(index, [live._replace(evidence=Evidence.NAMED, container="")], [revisit_of(live, C, 9)])
    report_to(index, "a", live, live._replace(url=B))
    target = Target(TargetKind.URL, (A.decode(), B.decode()))
    found, depending = dependents(index, target)
    assert len(depending) == found.impact.dependents.captures == 1
