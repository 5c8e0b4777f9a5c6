"""The documentation says what the code does."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from pathlib import Path

import click
import pytest

from dedupindex import errors
from dedupindex.cli import COMMANDS
from dedupindex.cli.common import Command
from dedupindex.crawls.stores.lmdb_crawl_state import CrawlTrees
from dedupindex.errors import DedupError
from dedupindex.index.identity import FORMAT
from dedupindex.sources.refusal_reasons import WORDS
from tests.support.documented import PAGES, run_page
from tests.support.paths import ROOT
from tests.unit.cli.test_cli import commands

DOCS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])

README_WORDS = 900  # it has been halved twice, and has grown again each time

ELSEWHERE = {  # of every command, of curl, of the crawlers that the docs set up
    "--help",
    "--data-binary",
    "--data-urlencode",
    "--base",  # 32
    "--cache-size",
    "--minimum-size",
    "--primary",
    "--threads",
    "--archives",  # spark-submit
    "--work-dir",  # a worker of Spark
    "--cdx-server",
    "--cdxserver-dedup",
    "--cdxserver-dedup-cookies",
    "--warc-cdx-cookie",
    "--warc-cdx-dedupe-server",
    "--warc-dedupe-size",
    "--warc-digest-algorithm",
    "--warc-doppelganger-dedupe-server",
}


def reasons_in_code() -> set[str]:
    """Every name under which a record is refused, as the code spells it."""
    patterns = (
        r'Refusal\("([a-z-]+)"',
        r'refusal\(record, "([a-z-]+)"',
        r'Refused\("([a-z-]+)"',
        r'refused\["([a-z-]+)"\]',
        r'(?:CHAINED|CONTRADICTED) = "([a-z-]+)"',
        r': "([a-z]+-record|segmented)"',
        r'reason = "([a-z-]+)"',
    )
    found: set[str] = set()
    for path in (ROOT / "dedupindex").rglob("*.py"):
        if path.parent.name == "verify":  # whose reasons are of findings, in docs/verify.md
            continue
        for pattern in patterns:
            found.update(re.findall(pattern, path.read_text()))
    for room in ("indexer", "sources"):
        for path in (ROOT / "dedupindex" / room).glob("*.py"):
            found.update(re.findall(r'return "([a-z-]+)"', path.read_text()))
    return found - {
        "warc",
        "cdx",
        "cdxj",
        "parquet",
        "crawllog",
        "wacz",
        "warcprox",
    }  # kinds of sources


def test_every_reason_of_refusal_is_documented() -> None:
    text = (ROOT / "docs" / "formats.md").read_text()
    table = set(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE))
    code = reasons_in_code()
    assert code - table - {"revisit-of-unknown"} == set()
    assert "`revisit-of-unknown`" in text
    # Those of bin/index alone are the rules of an index, and what is known when files are merged.
    of_index = {"behind-damage", "contradicted", "mime", "purged", "refers-to-revisit", "too-small"}
    section = text.split("\n## What is refused\n")[1].split("\n## ")[0]
    rows = set(re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE))
    assert WORDS.keys() - {"revisit-of-unknown"} == rows - of_index


def all_errors() -> list[type[DedupError]]:
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, DedupError)
    ]


def test_the_error_tree_is_drawn_as_it_is() -> None:
    drawing = errors.__doc__ or ""
    for error in all_errors():
        line = next(
            line for line in drawing.splitlines() if re.search(rf"\b{error.__name__}\b", line)
        )
        if "exit" in line:
            assert f"exit {error.exit_status}," in line
            assert f"HTTP {error.http_status}" in line
    assert len({error.code for error in all_errors()}) == len(all_errors())


def test_every_exit_status_is_documented() -> None:
    operations = (ROOT / "docs" / "operations.md").read_text()
    for status in {error.exit_status for error in all_errors()} | {0, 1, 2, 130, 141}:
        assert re.search(rf"^\| {status} \|", operations, re.MULTILINE)


def test_every_http_error_code_is_documented() -> None:
    http = (ROOT / "docs" / "http.md").read_text()
    for error in all_errors():
        assert f"`{error.code}`" in http, error.code


@pytest.mark.parametrize("path", [*DOCS, ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[)#]", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
    for target, section in re.findall(r"\]\(([^):#]*)#([^)]+)\)", path.read_text()):
        there = (path.parent / target if target else path).read_text()
        titles = [title.lower() for title in re.findall(r"^#+ (.*)$", there, re.MULTILINE)]
        assert section in [re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles]


def test_paths_of_the_docs_exist() -> None:
    for path in (*DOCS, ROOT / "CONTRIBUTING.md"):
        text = path.read_text()
        for name in re.findall(r"`((?:bin|conf|dedupindex|demo|docs|server|tests)/[^`\s]*)`", text):
            pattern = re.sub(r"<.*?>", "*", name.removesuffix("/"))
            assert any(ROOT.glob(pattern)), f"{path.name} names {name}"


def test_contributing_has_a_line_for_each_room() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rooms = [path.parent for path in (ROOT / "dedupindex").glob("*/__init__.py")]
    for room in (*rooms, ROOT / "server", ROOT / "demo"):
        assert re.search(rf"^\| `{room.relative_to(ROOT)}` \|", text, re.MULTILINE), room


def test_commands_of_the_readme_exist() -> None:
    for path in DOCS:
        for name in re.findall(r"(?<![\w./-])bin/([a-z][a-z_-]*)", path.read_text()):
            assert (ROOT / "bin" / name).exists(), f"{path.name} names bin/{name}"
    for name in COMMANDS:
        assert f"bin/{name}" in (ROOT / "README.md").read_text() or name == "search"


def test_the_readme_is_short() -> None:
    """A new user reads it to the end only then; details belong into the pages that it links to."""
    assert len((ROOT / "README.md").read_text().split()) < README_WORDS


def test_options_of_the_docs_exist() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "dedupindex" / "cli").glob("*.py"))
    for name in ("setup", "lock", "test"):
        pages += (ROOT / "bin" / name).read_text()
    # Options of crawlers are those that they are really run with.
    for folder in ("conf", "demo", "tests/peers"):
        pages += "".join(p.read_text() for p in (ROOT / folder).rglob("*") if _is_text(p))
    benchmarks = "".join(path.read_text() for path in (ROOT / "tests/benchmarks").glob("*.py"))
    for path in DOCS:
        for option in re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", path.read_text()):
            assert option in pages + benchmarks or option in ELSEWHERE, f"{path.name}: {option}"


def test_options_of_a_shown_command_are_its_own() -> None:
    shown = {path.name: path.read_text() for path in DOCS}
    known = commands()
    for name, command in known.items():
        assert isinstance(command, Command)
        assert not re.search(r"\S {2,}[^#\s]", command.examples), "a remark begins with #"
        shown[f"bin/{name} --help"] = f"```\n{command.examples.strip()}\n```"
    seen = 0
    for place, page in shown.items():
        blocks = re.findall(r"^```.*?^```|^    [^\n]*", page, re.MULTILINE | re.DOTALL)
        code = "\n".join(blocks).replace("\\\n", " ")
        for name, rest in re.findall(r"(?<![\w./-])bin/([a-z_-]+)((?: .*)?)$", code, re.MULTILINE):
            if name not in known or "`" in rest:
                continue
            words = shlex.shlex(rest, posix=True, punctuation_chars="|&;<>")
            words.whitespace_split = True
            typed = list(takewhile(lambda word: not word or word[0] not in "|&;<>", words))
            try:
                known[name].make_parser(click.Context(known[name])).parse_args(typed)
            except click.UsageError as error:
                pytest.fail(f"{place}: bin/{name} {' '.join(typed)}: {error.format_message()}")
            seen += 1
    assert seen > 250


def _is_text(path: Path) -> bool:
    return path.suffix in (".py", ".sh", ".toml", ".groovy", ".xml", ".cxml", ".lua", ".yaml")


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_works_as_typed(page: str, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for folder in ("bin", "conf"):
        (checkout / folder).symlink_to(ROOT / folder)
    run_page(page, tmp_path, checkout)
    assert {path.name for path in checkout.iterdir()} == {"bin", "conf"}  # nothing was left there


def test_the_docs_have_the_number_of_the_format_and_all_trees_of_crawls() -> None:
    page = (ROOT / "docs/formats.md").read_text()
    assert re.findall(r"\bnow (\d+)\)", page) == [str(FORMAT)] * 2
    listed = page.partition("## Crawls on disk\n")[2].partition("The trees are")[0]
    assert sorted(re.findall(r"`(\w+)`", listed)) == sorted(CrawlTrees._fields)
