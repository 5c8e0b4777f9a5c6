"""What a list for deletion leaves out: payloads that revisits repeat, wherever these are known."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from dedupindex.cli import main
from dedupindex.errors import BadSource
from tests.support.corpora import Page, archive, html
from tests.support.covering import JOURNALIST, made
from tests.unit.cover.test_cover import BASE, page

URL = "http://a.example/"
FIRST = Page(URL, 1, html("t", BASE), file="first.warc.gz")
NEWER = Page(URL, 2, html("t", BASE + " more"), file="first.warc.gz")
AGAIN = Page(URL, 3, of=FIRST, file="again.warc.gz")


def listed(folder: Path, *words: str | Path) -> list[str]:
    """The timestamps on the list that a run makes."""
    fixed = ["--relation", JOURNALIST, "-o", folder / "out", "--list", folder / "list.csv"]
    assert main(["cover", *map(str, [*words, *fixed, "--json"])]) == 0
    with open(folder / "list.csv", newline="") as stream:
        return [row["timestamp"] for row in csv.DictReader(stream)]


def needed(folder: Path) -> dict[str, str]:
    rows = map(json.loads, (folder / "out").read_text().splitlines())
    return {row["id"]: row["needed_by"] for row in rows if "needed_by" in row}


def at(page: Page) -> str:
    return f"{page.timestamp}/{page.url}"


def test_corpus_lines_name_the_originals_of_revisits(tmp_path: Path) -> None:
    source = archive(tmp_path, FIRST, NEWER, AGAIN)
    pages = tmp_path / "pages.jsonl"
    assert main(["corpus", str(source), "--enrich", "text", "-o", str(pages)]) == 0
    assert listed(tmp_path, pages) == listed(tmp_path, source) == [NEWER.timestamp]
    assert needed(tmp_path) == {at(FIRST): at(AGAIN)}


@pytest.mark.parametrize("name", ["all.cdx", "warcs"])
def test_originals_of_excluded_revisits_are_needed(tmp_path: Path, name: str) -> None:
    source = archive(tmp_path, FIRST, NEWER, AGAIN)
    sources = [source] if name == "all.cdx" else sorted(tmp_path.glob("*.warc.gz"))
    early = "timestamp < '2026-11-03'"
    assert listed(tmp_path, *sources, "--where", early, "--updatable") == []
    assert needed(tmp_path) == {at(FIRST): at(AGAIN)}
    # also for a run that adds something else
    words = ["--where", f"{early} and status == 200", "--update", tmp_path / "out"]
    assert listed(tmp_path, *sources, *words) == []
    assert listed(tmp_path, *sources, "--where", "timestamp < '2026-11-03' or status == 200") == [
        NEWER.timestamp
    ]


def test_originals_of_revisits_with_too_few_versions_are_needed(tmp_path: Path) -> None:
    """A revisit at a URL with a single version is no document, but its original stays needed."""
    elsewhere = Page("http://a.example/other", 3, of=FIRST, file="again.warc.gz")
    source = archive(tmp_path, FIRST, NEWER, elsewhere)
    assert listed(tmp_path, source, "--where", "versions >= 2") == []
    assert needed(tmp_path) == {at(FIRST): at(elsewhere)}
    assert len((tmp_path / "out").read_text().splitlines()) == 2


@pytest.mark.parametrize("known_by", ["name", "digest"])
def test_an_update_may_add_revisits_of_earlier_documents(tmp_path: Path, known_by: str) -> None:
    archive(tmp_path / "a", FIRST, NEWER)
    source = archive(tmp_path / "b", AGAIN)  # says nothing of its original but the digest
    out = tmp_path / "out"
    assert listed(tmp_path, tmp_path / "a" / FIRST.file, "--updatable") == [FIRST.timestamp]
    added = source if known_by == "digest" else tmp_path / "b" / AGAIN.file
    words = ["cover", added, "--relation", JOURNALIST, "--update", out, "-o", out]
    assert main([*map(str, words), "--list", str(tmp_path / "list.csv")]) == 7  # it has no text
    assert (tmp_path / "list.csv").read_text().count("\n") == 1
    assert needed(tmp_path) == {at(FIRST): at(AGAIN)}


def test_originals_of_an_earlier_run_are_in_an_index(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A revisit that is added has the text of what it repeats, which is not read as a SOURCE."""
    archive(tmp_path / "a", FIRST)
    source = archive(tmp_path / "b", AGAIN)
    out, index = tmp_path / "out", tmp_path / "index"
    warc = str(tmp_path / "a" / FIRST.file)
    assert main(["index", "--whitelist", "--mime", ".*", warc, str(index)]) == 0
    assert listed(tmp_path, tmp_path / "a" / FIRST.file, "--updatable") == []
    words = [source, "--update", out, "--originals", index]
    assert listed(tmp_path, *words) == []
    rows = list(map(json.loads, out.read_text().splitlines()))
    assert [(row["id"], row["kept"]) for row in rows] == [(at(FIRST), False), (at(AGAIN), True)]
    assert needed(tmp_path) == {at(FIRST): at(AGAIN)}
    capsys.readouterr()
    fixed = ["--relation", JOURNALIST, "-o", str(tmp_path / "o")]
    assert main(["cover", str(source), *fixed]) == 7
    assert "response failed for 1 capture: no text here" in capsys.readouterr().err
    assert main(["cover", str(source), *fixed, "--originals", str(tmp_path / "none")]) == 6
    assert "none" in capsys.readouterr().err
    (tmp_path / "x.jsonl").write_text("")
    assert main(["cover", str(tmp_path / "x.jsonl"), *fixed, "--originals", str(index)]) == 4
    assert "--originals are of archives" in capsys.readouterr().err


@pytest.mark.parametrize("lines", [False, True])
def test_the_named_original_is_needed_even_if_another_is_read(tmp_path: Path, lines: bool) -> None:
    """An index finds the payload by its digest, in its first capture."""
    first, named = (
        Page(f"{URL}{name}", day, FIRST.body, file="first.warc.gz")
        for name, day in (("x", 1), ("y", 2))
    )
    again = Page(f"{URL}y", 5, of=named, file="again.warc.gz")
    archive(tmp_path / "a", first, named)
    archive(tmp_path / "b", again)
    warc, out, index = tmp_path / "a" / first.file, tmp_path / "out", tmp_path / "index"
    assert main(["index", "--whitelist", "--mime", ".*", str(warc), str(index)]) == 0
    listed(tmp_path, warc, "--updatable")
    more, where = tmp_path / "b" / again.file, ["--originals", index]
    if lines:
        words = [more, *where, "--enrich", "text", "-o", tmp_path / "more.jsonl"]
        assert main(["corpus", *map(str, words)]) == 0
        more, where = tmp_path / "more.jsonl", []
    found = listed(tmp_path, more, "--update", out, *where)
    assert named.timestamp not in found
    assert needed(tmp_path)[at(named)] == at(again)
    if not lines:
        assert found == [] and needed(tmp_path)[at(first)] == at(again)  # whose bytes were read


def later(day: int, text: str = BASE, **more: Any) -> dict[str, Any]:
    return page(f"p{day}", f"202001{day:02}000000", text, url=URL, **more)


def of(day: int, url: str = URL) -> dict[str, str]:
    return {"originalUrl": url, "timestamp": f"2020-01-{day:02}T00:00:00Z"}


def test_a_revisit_of_a_revisit_needs_both(tmp_path: Path) -> None:
    chain = [later(1), later(2, revisitOf=of(1)), later(3, "else", revisitOf=of(2)), later(4)]
    by = {row["id"]: row.get("needed_by") for row in made(chain, JOURNALIST, tmp_path).rows}
    assert by == {"p1": "p2", "p2": "p3", "p3": None, "p4": None}
    chain[2] = later(3, revisitOf=of(2))  # is covered itself
    assert not any("needed_by" in row for row in made(chain, JOURNALIST, tmp_path).rows)


def test_a_place_selects_one_of_several_captures(tmp_path: Path) -> None:
    one, other = later(1, container="a", offset=5), later(1, container="b", offset=5)
    other["id"] = "copy"
    again = later(2, "else", of=["b", 5], revisitOf=of(1))
    rows = made([one, other, again], JOURNALIST, tmp_path).rows
    assert [row.get("needed_by") for row in rows] == [None, "p2", None]
    moved = later(2, "else", of=["elsewhere", 5], revisitOf=of(1))
    rows = made([one, other, moved], JOURNALIST, tmp_path).rows
    assert [row.get("needed_by") for row in rows] == ["p2", "p2", None]


@pytest.mark.parametrize(
    ("digest", "named", "needs"),
    [
        ("sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN", {}, True),
        ("2aae6c35c94fcfb415dbe95f408b9ce91ee846ed", {}, True),
        ("2aae6c35c94fcfb415dbe95f408b9ce91ee846ed", {"of": ["c", 1]}, True),
        ("2aae6c35c94fcfb415dbe95f408b9ce91ee846ee", {}, False),
        ("none", {}, False),
    ],
)
def test_the_digest_is_used_if_no_original_is_named(
    digest: str, named: dict[str, Any], needs: bool, tmp_path: Path
) -> None:
    original = later(1, digest="FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN")
    rows = made([original, later(2, "", ofDigest=digest, **named)], JOURNALIST, tmp_path).rows
    assert ("needed_by" in rows[0]) == needs


def test_a_chain_of_revisits_needs_all_of_them(tmp_path: Path) -> None:
    chain = [later(1), *(later(n, "else" if n == 5 else BASE, revisitOf=of(n - 1))
                         for n in range(2, 6)), later(6)]  # fmt: skip
    by = {row["id"]: row.get("needed_by") for row in made(chain, JOURNALIST, tmp_path).rows}
    assert by == {"p1": "p2", "p2": "p3", "p3": "p4", "p4": "p5", "p5": None, "p6": None}


def test_nothing_is_needed_for_itself(tmp_path: Path) -> None:
    """Though a revisit has the digest of what it repeats."""
    digest = "FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN"
    repeat = {"digest": digest, "ofDigest": digest}
    pages = [later(1, digest=digest), later(2, **repeat), later(3, "else", **repeat), later(4)]
    by = {row["id"]: row.get("needed_by") for row in made(pages, JOURNALIST, tmp_path).rows}
    assert (by["p1"], by["p2"]) == ("p2", "p3")


def test_a_renamed_file(tmp_path: Path) -> None:
    source = archive(tmp_path, FIRST, NEWER, AGAIN)
    lines = []
    for one in (FIRST, NEWER, AGAIN):
        key, stamp = one.cdx().split(" ")[:2]
        fields = {"url": one.url, "mime": "warc/revisit" if one.of else one.mime,
                "digest": one.digest, "offset": one.offset, "length": len(one.stored),
                "filename": one.file}  # fmt: skip
        if one.of:
            fields |= {"orig.filename": "old.warc.gz", "orig.offset": FIRST.offset}
        lines.append(f"{key} {stamp} {json.dumps(fields)}\n")
    cdxj = source.with_suffix(".cdxj")
    cdxj.write_text("".join(lines))
    words = ["cover", cdxj, "--relation", JOURNALIST, "-o", tmp_path / "out"]
    assert main([*map(str, words), "--list", str(tmp_path / "list.csv")]) == 7  # it has no text
    assert (tmp_path / "list.csv").read_text().count("\n") == 1
    assert needed(tmp_path) == {at(FIRST): at(AGAIN)}


def test_sources_that_may_lack_revisits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = archive(tmp_path, FIRST, NEWER)
    warc = tmp_path / FIRST.file
    assert listed(tmp_path, warc) == [FIRST.timestamp]
    assert "leaves out revisits" not in capsys.readouterr().err
    assert listed(tmp_path, source) == [FIRST.timestamp]
    assert "leaves out revisits" in capsys.readouterr().err
    assert main(["index", str(warc), str(tmp_path / "index")]) == 0
    words = ["cover", tmp_path / "index", "--relation", JOURNALIST, "-o", tmp_path / "o"]
    assert main([*map(str, words), "--list", str(tmp_path / "l.csv")]) == 4
    assert "an index knows no revisits" in capsys.readouterr().err
    assert not (tmp_path / "o").exists() and not (tmp_path / "l.csv").exists()


def test_a_record_that_comes_again_with_its_text_is_one_document(tmp_path: Path) -> None:
    """As a revisit does whose original an earlier run did not have."""
    place = {"container": "c", "offset": 7}
    first, empty, full = later(1), later(2, "", **place), later(2, BASE + " more", **place)
    for pages in ([first, empty, full], [first, full, empty]):
        found = made(pages, JOURNALIST, tmp_path)
        assert (found.report.loaded.documents, found.report.loaded.repeated) == (2, 1)
        assert found.kept == {"p2"}


def test_invalid_references_of_revisits(tmp_path: Path) -> None:
    wrong = later(2, "else", revisitOf={"originalUrl": URL, "timestamp": "20201399000000"})
    rows = made([later(1), wrong], JOURNALIST, tmp_path).rows
    assert not any("needed_by" in row for row in rows)
    with pytest.raises(BadSource, match="is not an originalUrl with a timestamp"):
        made([later(1, revisitOf=[URL])], JOURNALIST, tmp_path)
