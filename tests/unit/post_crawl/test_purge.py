"""Purges against a model that keeps everything: the index is as if built from what survives."""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.capture import Capture, Evidence
from dedupindex.crawls import lifecycle, merge_crawls
from dedupindex.crawls.stores import make_store
from dedupindex.crawls.stores.lmdb_crawl_store import LmdbStore
from dedupindex.errors import BadInput, HasDependents
from dedupindex.index.format.file_names import ContainerNames, is_container
from dedupindex.index.identity import Settings
from dedupindex.post_crawl.purge.remove import purge, survey
from dedupindex.post_crawl.purge.target import CaptureTarget, Target, TargetKind
from dedupindex.timestamps import digits_of_date
from tests.conftest import ENGINES, On
from tests.support.budgets import examples
from tests.support.captures import capture, sha1
from tests.support.commands import typed
from tests.support.purging import READ, UNREAD, begin, held, load, revisit_of
from tests.unit.post_crawl.test_impact import report

URLS = (b"http://example.com/a", b"http://www.example.com/a", b"http://example.com/b")
FILES = ("/w/a.warc.gz", "/w/b.warc.gz", "/copy/a.warc.gz", "a.warc.gz", "")

stored = st.builds(
    lambda number, url, day, evidence, container, crawl: capture(
        number,
        url,
        day,
        evidence=evidence,
        container=container,
        crawl="" if container.startswith("/") else crawl,
    ),
    st.integers(1, 2),
    st.sampled_from(URLS),
    st.integers(1, 3),
    st.sampled_from([Evidence.RECORD, Evidence.RECORD, Evidence.ROW]),
    st.sampled_from(FILES),
    st.sampled_from(["", "", "weekly"]),
)
told = st.builds(
    lambda number, url, day, evidence, offset: capture(
        number, url, day, evidence=evidence, container="", offset=offset
    ),
    st.integers(1, 2),
    st.sampled_from(URLS),
    st.integers(1, 3),
    st.sampled_from([Evidence.NAMED, Evidence.NAMED, Evidence.REVISIT]),
    st.sampled_from([READ, UNREAD]),
)
targets = st.one_of(
    st.builds(lambda name: Target(TargetKind.CONTAINER, (name,)), st.sampled_from(FILES[:-1])),
    st.just(Target(TargetKind.CRAWL, ("weekly",))),
    st.builds(lambda url: Target(TargetKind.URL, (url.decode(),)), st.sampled_from(URLS)),
    st.just(Target(TargetKind.PREFIX, ("http://example.com/",))),
    st.builds(
        lambda host: Target(TargetKind.HOST, (host,)),
        st.sampled_from(["example.com", "www.example.com"]),
    ),
    st.builds(
        lambda number, url, day: Target(
            TargetKind.CAPTURE,
            captures=(CaptureTarget(sha1(number), url, b"2026-11-%02dT09:14:17Z" % day),),
        ),
        st.integers(1, 2),
        st.sampled_from(URLS),
        st.integers(1, 3),
    ),
)
listed = st.sampled_from(["", "weekly"])  # a CDX of all that came, indexed under that crawl
steps = st.one_of(st.lists(st.one_of(stored, stored, told), max_size=8), targets, listed)

Place = tuple[str, bytes, bytes]  # digest, URL, second


@dataclass
class Model:
    """All loaded captures that were not purged, and the purged places."""

    items: list[Capture] = field(default_factory=list)
    gone: set[tuple[Place, str, str]] = field(default_factory=set)  # of a file and crawl, or "*"

    def load(self, captures: Iterable[Capture]) -> None:
        self.items += [one for one in captures if not self._was_purged(one)]

    def _was_purged(self, one: Capture) -> bool:
        place = _place(one)
        if one.evidence is Evidence.NAMED:
            return any(
                other == place or (where == "*" and other[:2] == place[:2])
                for other, where, _ in self.gone
            )
        if one.evidence is Evidence.REVISIT:
            return False
        return any(
            other == place and (where == "*" or _may_belong_to(one, where, crawl))
            for other, where, crawl in self.gone
        )

    def _chained(self, one: Capture) -> bool:
        """Return whether it is a claim that was never admitted: the index does not have it."""
        return one.evidence is Evidence.NAMED and any(
            mark.evidence is Evidence.REVISIT
            and _place(mark)[:2] == _place(one)[:2]
            and mark.date <= one.date
            for mark in self.items
        )

    def purge(self, target: Target) -> None:
        gone = [one for one in self.items if _takes(target, one) and not self._chained(one)]
        whole = target.kind in (TargetKind.CONTAINER, TargetKind.CRAWL)
        self.gone |= {
            (_place(one), *((one.container, one.crawl) if whole else ("*", ""))) for one in gone
        }
        self.items = [one for one in self.items if one not in gone and not self._was_purged(one)]


def _may_belong_to(one: Capture, container: str, crawl: str) -> bool:
    """Return whether a capture is of a container, as far as its evidence names one."""
    if one.evidence is Evidence.ROW:
        return not one.container or is_container(container, one.container)
    return (one.container, one.crawl) in ((container, crawl), ("", ""))


def _rows(came: list[Capture], crawl: str) -> list[Capture]:
    """What a CDX file says of captures: the last names of their files."""
    return [
        one._replace(evidence=Evidence.ROW, crawl=crawl, container=one.container.rpartition("/")[2])
        for one in came
        if one.container
    ]


def _place(one: Capture) -> Place:
    return str(one.digest), one.url, digits_of_date(one.date)


def _takes(target: Target, one: Capture) -> bool:
    if one.evidence is Evidence.REVISIT:
        return False
    if target.kind is TargetKind.CRAWL:
        return one.crawl in target.texts
    if target.kind is TargetKind.CONTAINER:
        named = one.evidence is Evidence.NAMED or not one.container
        return not named and is_container(target.texts[0], one.container)
    if target.kind is TargetKind.CAPTURE:
        (wanted,) = target.captures
        return (one.digest, one.url, one.date) == (wanted.digest, wanted.url, wanted.date)
    url = one.url.decode()
    if target.kind is TargetKind.HOST:
        return url.startswith((f"http://{target.texts[0]}/", "http://www.example.com/"))
    return url.startswith(target.texts) if target.kind is TargetKind.PREFIX else url in target.texts


EXAMPLES = {"lmdb": 60, "whoosh": 20, "cassandra": 6}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("keep", ["earliest", "latest"])
def test_after_any_loads_and_purges_an_index_is_as_if_built_from_what_survives(
    engine: str, keep: str, on: On
) -> None:
    rebuilding = "lmdb" if engine == "cassandra" else engine

    @settings(max_examples=examples(EXAMPLES[engine]))
    @given(st.lists(steps, min_size=2, max_size=6), st.booleans())
    def check(made: list[list[Capture] | Target | str], canonical: bool) -> None:
        chosen = Settings(keep=keep, canonical=canonical)
        model, came = Model(), list[Capture]()
        with tempfile.TemporaryDirectory() as name, on(engine) as new:
            index = begin(Path(name), new(), chosen)
            for step in made:
                if isinstance(step, Target):
                    model.purge(step)
                    before = survey(index, step)
                    done = purge(index, step, force=True)
                    assert done.impact.originals == before.impact.originals
                    again = purge(index, step, force=False).impact
                    assert not (again.originals.captures or again.copies.captures)
                else:
                    came += step if isinstance(step, list) else []
                    step = _rows(came, step) if isinstance(step, str) else step
                    model.load(step)
                    load(index, step)
                rebuilt = begin(Path(name) / "fresh", rebuilding, chosen)
                load(rebuilt, model.items)
                assert held(index) == held(rebuilt)
                for path in sorted((Path(name) / "fresh").rglob("*"), reverse=True):
                    path.rmdir() if path.is_dir() else path.unlink()
                (Path(name) / "fresh").rmdir()

    check()


OF_HOST = (
    b"http://example.com/a", b"https://www.example.com:8443/", b"HTTP://user:pw@EXAMPLE.com./b?c",
)  # fmt: skip
OF_OTHERS = (
    b"http://example.com.org/", b"http://notexample.com/", b"dns:example.com", b"urn:example.com",
    b"http://other.org/?u=http://example.com/", b"http://example.com@other.org/",
)  # fmt: skip


@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
def test_a_host_goes_with_its_subdomains_whatever_scheme_and_port(
    tmp_path: Path, engine: str
) -> None:
    index, host = begin(tmp_path, engine), Target(TargetKind.HOST, ("Example.com",))
    captures = [capture(number, url, 1) for number, url in enumerate(OF_HOST + OF_OTHERS)]
    load(index, captures)
    with closing(LmdbStore(index)) as store:
        for url in (OF_HOST[0], OF_OTHERS[0]):
            report(store, "open", capture(99, url, 2))
    found = purge(index, host, force=False)
    assert (found.found, found.live) == ({0}, 1)
    with closing(LmdbStore(index)) as store:
        merged = {one.url for _, one in held(index)}
        with store.writing() as writing:
            lifecycle.commit(writing, "open")
        merge_crawls.merge(index, store)
    assert {one.url for _, one in held(index)} == merged  # the other host was reported, too
    assert {one.url for _, one in held(index)} == {*OF_OTHERS}
    load(index, captures)  # it stays away
    assert {one.url for _, one in held(index)} == {*OF_OTHERS}
    assert not purge(index, host, force=False).found


def test_a_host_takes_its_revisits_and_keeps_what_those_of_others_need(tmp_path: Path) -> None:
    index, host = begin(tmp_path), Target(TargetKind.HOST, ("www.example.com",))
    kept, gone = capture(1, URLS[0], 1), capture(2, URLS[1], 1)
    load(index, [kept, gone], [revisit_of(kept, URLS[1], 2), revisit_of(gone, URLS[2], 3)])
    impact = survey(index, host).impact
    assert (impact.originals.captures, impact.revisits.captures) == (1, 1)
    assert impact.broken.captures == 1
    with pytest.raises(HasDependents):
        purge(index, host, force=False)


@pytest.mark.parametrize(
    ("name", "taken", "others"),
    [
        ("10.0.0.1", [b"http://10.0.0.1:80/"], [b"http://110.0.0.1/"]),
        ("0.1", [b"http://a.0.1.example/"][:0], [b"http://10.0.0.1/"]),
        ("[::1]", [b"http://[::1]:8080/"], [b"http://[fe80::1]/"]),
        (
            "bücher.example",
            ["http://www.Bücher.example/".encode(), b"http://b%C3%BCcher.example/",
             b"http://xn--bcher-kva.example/"],
            [b"http://bucher.example/"],
        ),
        ("EXAMPLE.com.", [b"http://a.b.example.COM./"], [b"http://example.community/"]),
    ],
)  # fmt: skip
def test_spellings_of_hosts(
    tmp_path: Path, name: str, taken: list[bytes], others: list[bytes]
) -> None:
    index = begin(tmp_path)
    load(index, [capture(number, url, 1) for number, url in enumerate(taken + others)])
    found = purge(index, Target(TargetKind.HOST, ("no.example", name)), force=False)
    assert found.found == ({1} if taken else set())
    assert [one.url for _, one in held(index)] == others
    listed = typed("list", index, "--host", name, "--json", status=10)[1]
    assert "no capture matches" in listed and "wildcards" not in listed


@pytest.mark.parametrize("name", [".", "a..b", "...", "straße.example", "a" * 64])
def test_what_is_no_host_name_purges_nothing(tmp_path: Path, name: str) -> None:
    index = begin(tmp_path)
    load(index, [capture(1, b"dns:example.com", 1)])
    with pytest.raises(BadInput, match="is not a host name|in the DNS"):
        purge(index, Target(TargetKind.HOST, (name,)), force=True)
    assert held(index)


@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
@pytest.mark.parametrize("below", ["s3://bucket/warcs/2020/", "/w/2020/"])
def test_a_directory_means_all_files_below_it(tmp_path: Path, engine: str, below: str) -> None:
    index = begin(tmp_path, engine)
    goes = [f"{below}{name}" for name in ("a.warc.gz", "01/b.warc.gz")]
    stays = [f"{below.rstrip('/')}1/a.warc.gz", "/other/2020/c.warc.gz", "s3://bucket/warcs/d.warc"]
    load(index, [capture(n, URLS[0], 1, container=name) for n, name in enumerate(goes + stays)])
    rows = [("b.warc.gz", 11), ("c.warc.gz", 12)]  # of CDX files, which name no directory
    load(index, [capture(n, URLS[0], 1, container=name, evidence=Evidence.ROW) for name, n in rows])
    with closing(LmdbStore(index)) as store:
        report(store, "open", capture(21, URLS[0], 1, container=f"{below}new.warc.gz"))
    target = ("--container", below, "--container", f"{below}none/")
    output, _ = typed("impact", index, *target, "--json")
    assert json.loads(output)["originals"]["captures"] == 3
    assert json.loads(output)["not_found"] == [f"{below}none/"]
    typed("purge", index, *target)
    assert {one.container for _, one in held(index)} == {*stays, "c.warc.gz"}
    with closing(LmdbStore(index)) as store, store.reading() as reading:
        assert not list(reading.cells())
    messages = typed("purge", index, "--container", below.rstrip("/"), status=10)[1]
    assert f"did you mean {below}?" in messages


@pytest.mark.parametrize("text", ["/", "//", "/w/../", "s3://", "s3:///", "here/root/"])
def test_the_root_is_no_directory_to_purge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """As of `--container "$DIR/"` with a variable that is not set."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here/root").symlink_to("/")
    monkeypatch.chdir(tmp_path)
    index = begin(tmp_path)
    names = ("/w/a.warc.gz", "s3://bucket/b.warc.gz", "c.warc.gz")
    load(index, [capture(n, URLS[0], 1, container=name) for n, name in enumerate(names)])
    before = held(index)
    for words in (["impact"], ["purge"], ["purge", "--force"]):
        said = typed(words[0], index, *words[1:], "--container", text, status=4)[1]
        assert "name a directory below /" in said, words
    assert held(index) == before and len(before) == 3
    assert not any(map(ContainerNames(("/", "//")).meaning, names))


def test_names_of_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    texts = ("/w/a.gz", "a.gz", "link/b.gz", "link/", "s3://bucket/x/")
    names = ContainerNames(texts)
    for name, meant in (
        ("/w/a.gz", {0, 1}), ("a.gz", {0, 1}), ("/x/a.gz", {1}), ("b.gz", {2}), ("c.gz", set()),
        (f"{tmp_path}/real/b.gz", {2, 3}), (f"{tmp_path}/link/b.gz", {2, 3}),
        (f"{tmp_path}/real/below/c.gz", {3}), (f"{tmp_path}/realm/c.gz", set()),
        ("s3://bucket/x/c.gz", {4}), ("s3://bucket/xy/c.gz", set()), ("s3://bucket/x", set()),
    ):  # fmt: skip
        assert names.meaning(name) == meant, name


def test_links_are_followed_once_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A purge asks for the file of each capture, while it writes."""
    asked, realpath = Counter[str](), os.path.realpath

    def counted(path: str) -> str:
        asked[path] += 1
        return realpath(path)

    (tmp_path / "link").symlink_to("real")
    monkeypatch.setattr(os.path, "realpath", counted)
    files = [f"{tmp_path}/link/{number}.gz" for number in range(3)]
    names = ContainerNames([f"{tmp_path}/real/"])
    asked.clear()
    names.note_below(files)
    assert [names.meaning(file) for file in files * 5] == [{0}] * 15
    assert asked == Counter(files)
    names = ContainerNames(["s3://bucket/warcs/", "s3://bucket/0.gz"])
    asked.clear()
    names.note_below(files)
    assert not any(map(names.meaning, files)) and not asked


def test_a_directory_and_a_file_in_it_are_both_found_in_crawls(tmp_path: Path) -> None:
    index, file = begin(tmp_path), "/w/2020/new.warc.gz"
    with closing(LmdbStore(index)) as store:
        report(store, "open", capture(21, URLS[0], 1, container=file))
    target = ("--container", "/w/2020/", "--container", file)
    found = json.loads(typed("impact", index, *target, "--json")[0])
    assert found["unmerged"] == 1 and found["not_found"] == []


@pytest.mark.parametrize("engine", ENGINES)
def test_an_index_remembers_what_was_purged(on: On, tmp_path: Path, engine: str) -> None:
    with on(engine) as new:
        index = begin(tmp_path, new())
        captures = [capture(n, url, n, container=FILES[0]) for n, url in enumerate(URLS, 1)]
        load(index, captures, [revisit_of(captures[0], URLS[1], 4)])
        said = "nothing was purged from this index\n"
        assert typed("purge", index, "--history") == ("", said)
        url = URLS[0].decode()
        typed("purge", index, "--url", url, status=5)  # a revisit depends on it
        typed("purge", index, "--url", "http://example.com/none", status=10)
        assert typed("purge", index, "--history")[1] == said
        typed("purge", index, "--url", url, "--force")
        again = typed("purge", index, "--url", url, status=10)[1]
        more = [capture(n, URLS[2], n % 9 + 1, container=FILES[0]) for n in range(2, 32) if n != 3]
        load(index, more)
        lines = "".join(
            orjson.dumps({"digest": str(sha1(n)), "url": URLS[2].decode()}).decode() + "\n"
            for n in range(2, 33)  # of the last one there is nothing
        )
        said = typed("purge", index, "--captures", "-", text=lines)[1]
        assert f"not found: {sha1(32)} {URLS[2].decode()}\n" in said and "it was purged" not in said
        said = typed("purge", index, "--captures", "-", text=lines, status=10)[1]
        assert f"not found: {sha1(4)} {URLS[2].decode()} (it was purged at " in said
        first, second = json.loads(typed("purge", index, "--history", "--json")[0])["purges"]
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", first["time"])
        assert again == f"not found: {url} (it was purged at {first.pop('time')})\n"
        assert first.pop("by").endswith(f"@{socket.gethostname()}")
        assert first == {
            "kind": "url", "names": [url], "of": 1, "forced": True, "originals": 1, "copies": 0,
            "revisits": 0, "unmerged": 0, "dependents": 1,
        }  # fmt: skip
        assert (second["kind"], second["of"], len(second["names"])) == ("capture", 30, 20)
        assert second["names"][1] == f"{sha1(3)} {URLS[2].decode()}" and second["originals"] == 30
        one, other = typed("purge", index, "--history")[0].splitlines()
        assert one.endswith(
            f"url {url}: 1 original, 0 other records, 0 revisit records, 0 unmerged; "
            "--force: 1 revisit depended on them"
        )
        assert other.endswith(
            f"{second['names'][-1]} and 10 more: 30 originals, 0 other records, 0 revisit records, "
            "0 unmerged"
        )
        said = typed("purge", index, "--history", "--url", url, "--list", status=2)[1]
        assert "--history takes no --url" in said


def test_a_purge_of_captures_that_are_not_merged_is_remembered(tmp_path: Path) -> None:
    index = begin(tmp_path)
    with closing(LmdbStore(index)) as store:
        report(store, "open", capture(21, URLS[0], 1, container="new.warc.gz"))
    typed("purge", index, "--host", "example.com")
    [found] = json.loads(typed("purge", index, "--history", "--json")[0])["purges"]
    assert (found["originals"], found["unmerged"]) == (0, 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_purge_ends_an_open_crawl_and_says_so(on: On, tmp_path: Path, engine: str) -> None:
    with on(engine) as new:
        index = begin(tmp_path, new())
        with closing(make_store(index, create=True)) as store:
            store.write(partial(lifecycle.begin, name="weekly"))
        said = typed("impact", index, "--crawl", "weekly")[0]
        assert "crawl weekly is open: it would be ended\n" in said
        out, said = typed("purge", index, "--crawl", "weekly")
        assert "crawl weekly is open: it was ended\n" in out and "never had any" not in said
        [found] = json.loads(typed("purge", index, "--history", "--json")[0])["purges"]
        assert (found["kind"], found["names"]) == ("crawl", ["weekly"])
        again = json.loads(typed("purge", index, "--crawl", "weekly", "--json", status=10)[0])
        assert again["open_crawls"] == []
        assert len(typed("purge", index, "--history")[0].splitlines()) == 1


def test_a_directory_without_its_slash_is_hinted_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = begin(tmp_path)
    files = [f"{tmp_path}/{name}/a.warc.gz" for name in ("h1", "z/h1")]  # of one last name
    load(index, [capture(n, URLS[0], n, container=file) for n, file in enumerate(files, 1)])
    monkeypatch.chdir(tmp_path)
    for name in ("h1", f"{tmp_path}/h1"):
        said = typed("impact", index, "--container", name, status=10)[1]
        assert f"not found: {name} (did you mean {name}/?)" in said


def test_many_containers_are_found_in_many() -> None:
    """Not each name is compared with each."""
    files = [f"s3://bucket/warcs/{number:05}.warc.gz" for number in range(40_000)]
    names, started = ContainerNames(files), time.process_time()
    assert all(names.meaning(file) == {at} for at, file in enumerate(files))
    assert time.process_time() - started < 30
