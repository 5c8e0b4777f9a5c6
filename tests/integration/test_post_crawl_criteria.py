"""The edge cases that an option decides, by their numbers, through all stages (48, 49)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from dedupindex.cli import main
from dedupindex.errors import BadInput
from dedupindex.post_crawl.plan.plan_file import open_plan
from tests.support import post_crawl
from tests.support.post_crawl import Case, Run
from tests.support.post_crawl_odd import http

HTML, PNG = http(b"Content-Type: text/html"), http(b"Content-Type: image/png")
NOT_FOUND = http(b"Content-Type: text/html", status=b"404 Not Found")
Make = Callable[[Case], None]


def types(one: Case) -> None:
    one.file(
        "x.warc", one.original(head=HTML), one.kept("type-differs", one.record(2, head=PNG)),
        one.kept("type-differs", one.record(3, head=http())), one.copy(4, head=HTML),
    )  # fmt: skip


def originals_of_types(one: Case) -> None:
    html, of_html = one.original(head=HTML), one.copy(4, head=HTML)
    png, of_png = one.original(year=2, head=PNG), one.copy(3, head=PNG)
    one.file("x.warc", html, png, of_png)
    one.file("y.warc", of_html)


def alone(one: Case) -> None:
    one.file(
        "x.warc", one.kept("unique", one.record(1, head=HTML)),
        one.kept("type-differs", one.record(2, head=PNG)),
    )  # fmt: skip


def spelled(one: Case) -> None:
    one.file(
        "x.warc", one.original(head=http(b"Content-Type: Text/HTML;charset=UTF-8")),
        one.copy(2, head=http(b"content-type :  text/html; charset=utf-8 ")),
        one.copy(3, head=http(b"X: y", b"CONTENT-TYPE: text/html;", b"\tcharset=utf-8")),
        one.kept("type-differs", one.record(4, head=http(b"Content-Type: text/html"))),
        one.kept("type-differs", one.record(5, head=http(b'Content-Type: text/html;charset="x"'))),
        one.kept("type-differs", one.record(6, head=http(b"Content-Type: text/html\t;\tq=\x01"))),
    )  # fmt: skip


def two_fields(one: Case) -> None:
    """Two fields: it is not known which one replay shows."""
    twice = http(b"Content-Type: text/html", b"Content-Type: image/png")
    one.file("x.warc", one.original(head=twice), one.copy(2, head=twice),
             one.kept("type-differs", one.record(3, head=HTML)))  # fmt: skip


def statuses(one: Case) -> None:
    one.remarks.add("status")
    one.file("x.warc", one.original(head=HTML), one.copy(2, head=NOT_FOUND),
             one.copy(3, head=HTML))  # fmt: skip


def first_not_found(one: Case) -> None:
    one.remarks.add("status")
    one.file("x.warc", one.original(head=NOT_FOUND), one.copy(2, head=HTML),
             one.copy(3, head=NOT_FOUND))  # fmt: skip


def without_a_body(one: Case) -> None:
    """Redirects and responses without a body are kept in any case, though they are equal now."""
    heads = http(b"Location: /x", status=b"302 Found"), http(status=b"204 No Content")
    words = "redirect", "status"
    one.remarks.add("status")
    pieces = [
        one.kept(word, one.record(year, head=head))
        for year, head, word in zip((1, 2), heads, words, strict=True)
    ]
    one.file("x.warc", *pieces, one.original(year=3, head=HTML), one.copy(4, head=NOT_FOUND))


def status_of_a_type(one: Case) -> None:
    """Both options: another status, the same type."""
    one.remarks.add("status")
    one.file("x.warc", one.original(head=HTML), one.copy(2, head=NOT_FOUND),
             one.kept("type-differs", one.record(3, head=PNG)))  # fmt: skip


def same_under_every_option(one: Case) -> None:
    one.file("x.warc", one.original(head=HTML), one.copy(2, head=PNG),
             one.kept("unique", one.record(3, head=NOT_FOUND)))  # fmt: skip


CASES: dict[tuple[str, ...], dict[str, Make]] = {
    (): {"48 and 49 without options": same_under_every_option},
    ("--same-type",): {
        "48 other types": types,
        "48 each type has its original": originals_of_types,
        "48 the first of all is unique": alone,
        "48 how it is spelled": spelled,
        "48 two fields": two_fields,
    },
    ("--any-status",): {
        "49 another status": statuses,
        "49 the first is not found": first_not_found,
        "51 redirect, 54 no content": without_a_body,
    },
    ("--any-status", "--same-type"): {"48 and 49": status_of_a_type, "48 types": types},
}


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("chosen", CASES, ids=" ".join)
def test_an_option_decides(
    tmp_path_factory: pytest.TempPathFactory, chosen: tuple[str, ...], packed: bool
) -> None:
    run = Run(tmp_path_factory.mktemp("run"))
    cases = [Case(name, at, packed) for at, name in enumerate(CASES[chosen], 1)]
    for one in cases:
        CASES[chosen][one.name](one)
        one.write(run.source)
    run.prepare(*chosen)
    run.to_directory()
    run.in_place()
    resolved = run.results["resolve"].totals
    for way in ("out", "placed"):
        for one in cases:
            one.check(run.top / way)
        rewritten = run.results[way].totals
        counted = Counter(resolved["kept"])
        counted.update(
            unique=resolved["unique"], original=resolved["originals"], revisit=rewritten["revisits"]
        )
        assert +counted == sum((one.words() for one in cases), Counter())
        assert rewritten["refused"] == {}
        assert run.results[f"{way} dry"].totals == {**rewritten, "dry_run": True}
        assert run.results[f"{way} verify"].status == run.results[f"{way} against"].status == 0
        found = post_crawl.findings(run.results[f"{way} verify"], run.top / way)
        remarks = set[str]().union(*(one.remarks for one in cases))
        assert {reason for file in found.values() for reason, _ in file} == remarks
    assert run.results["undo"].status == 0
    assert post_crawl.tree(run.source) == post_crawl.tree(run.top / "before")
    said = [
        run.do(name, "dedup", run.source, "--out", run.top / "dedup", *chosen, *more).totals
        for name, more in (("dedup dry", ["--dry-run"]), ("dedup", []))
    ]
    for key in ("revisits", "bytes_before", "bytes_after", "refused"):
        assert said[0][key] == said[1][key], key
    assert said[0]["refused"] == resolved["kept"]
    assert post_crawl.tree(run.top / "dedup") == post_crawl.tree(run.out)


def test_a_revisit_of_another_status_is_restored(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of its own header and the other's body, when what was dropped is gone for ever."""
    run = Run(tmp_path_factory.mktemp("run"))
    one = Case("49", 1, packed=False)
    statuses(one)
    one.write(run.source)
    run.prepare("--any-status")
    before = post_crawl.tree(run.source)
    assert run.do("in place", "rewrite", run.plan, "--in-place").totals["revisits"] == 2
    assert main(["rewrite", str(run.plan), "--commit"]) == 0
    again = run.top / "again"
    assert main(["undedup", str(run.source), "--out", str(again)]) == 0
    assert post_crawl.tree(again) == before != post_crawl.tree(run.source)


@pytest.mark.parametrize("option", ["--any-status", "--same-type"])
def test_parts_of_other_options_are_no_plan(
    tmp_path_factory: pytest.TempPathFactory, option: str
) -> None:
    run = Run(tmp_path_factory.mktemp("run"))
    one = Case("48", 1)
    types(one)
    one.write(run.source)
    run.do("manifest", "manifest", run.source, "-o", run.manifest)
    for part, more in (("1/2", []), ("2/2", [option])):
        words = ["resolve", run.manifest, "-o", run.plan, "--partition", part, *more]
        assert main([*map(str, words)]) == 0
    with pytest.raises(BadInput, match="other options"):
        open_plan(run.plan)
