"""docs/features.md names all statements, and only what exists answers them."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, NamedTuple

import click

import server.app  # noqa: F401  # registers all routes
from dedupindex.cli import COMMANDS, group
from dedupindex.corpus import Corpus
from server.openapi import document
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "features.md"
SYSTEMS = {"DD": 47, "BA": 24, "AS": 22, "RL": 15, "UD": 19, "N": 20}
"""The prefix of the ids of each section, in the order of the page, and its number of statements."""
STATES = ("yes", "in part", "no")
_REASON = re.compile(r"\*\*(?:Missing|Declined|Differs)(?:\*\*|:\*\*)")


class Statement(NamedTuple):
    """A row of the page."""

    id: str
    text: str
    state: str
    answer: str
    reason: str


def statements() -> list[Statement]:
    rows = re.findall(r"^\| ([A-Z]+-[0-9]+) \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    return [Statement(name, *(cell.strip() for cell in rest.split("|"))) for name, rest in rows]


ROWS = statements()


def test_every_statement_has_one_row_in_order() -> None:
    expected = [f"{name}-{n:02}" for name, count in SYSTEMS.items() for n in range(1, count + 1)]
    assert [row.id for row in ROWS] == expected


def test_the_page_counts_its_states() -> None:
    yes, in_part, no = ([row.state for row in ROWS].count(state) for state in STATES)
    counted = f"{len(ROWS)} statements: {yes} yes, {in_part} in part, {no} no.\n"
    assert counted in PAGE.read_text(), counted


def test_every_row_has_an_answer_or_a_reason() -> None:
    for row in ROWS:
        assert row.text, row.id
        assert row.state in STATES, row.id
        assert row.answer or row.state == "no", row.id
        if row.state == "yes":
            assert not row.reason, row.id
        else:
            assert _REASON.match(row.reason), row.id
            assert len(row.reason) > 60, row.id


def options_of(command: click.Command) -> set[str]:
    """Return the long and short options of a command."""
    context = click.Context(command, help_option_names=["-h", "--help"])
    return {
        option
        for parameter in command.get_params(context)
        for option in (*parameter.opts, *parameter.secondary_opts)
    }


def unknown_options(cells: str) -> list[str]:
    """Return the options that the command named last before them does not have."""
    known: set[str] = set()
    script = ""  # the text of a command that is not of Click
    unknown = []
    for span in re.findall(r"`([^`]+)`", cells):
        words = span.split()
        if words[0].startswith("bin/"):
            name = words[0].removeprefix("bin/")
            command = group.get_command(click.Context(group), name) if name in COMMANDS else None
            known = options_of(command) if command else set()
            script = "" if command else (ROOT / "bin" / name).read_text()
        unknown += [
            word
            for word in words
            if re.fullmatch(r"--?[a-z][a-z-]*", word) and word not in known and word not in script
        ]
    return unknown


def test_options_exist_in_the_command_named_before_them() -> None:
    for row in ROWS:
        assert unknown_options(f"{row.answer} {row.reason}") == [], row.id


def test_an_option_of_another_command_is_found() -> None:
    assert unknown_options("`bin/dedup --out`, `--dry-run`; `bin/index --out`") == ["--out"]


def test_routes_of_the_page_exist() -> None:
    paths: dict[str, dict[str, Any]] = document()["paths"]
    named = re.findall(r"`(GET|POST|DELETE) (/[^`?]*)", PAGE.read_text())
    assert len(named) > 10
    for method, path in named:
        assert method.lower() in paths[path], f"{method} {path}"


def test_names_of_the_library_exist() -> None:
    text = PAGE.read_text()
    for name in re.findall(r"`Corpus\.(\w+)`", text):
        assert hasattr(Corpus, name), name
    for name in re.findall(r"`(dedupindex(?:\.\w+)+)`", text):
        import_module(name)


def test_jobs_of_the_benchmarks_exist() -> None:
    """Rows of results that the page names, and jobs that it says to run."""
    results = (ROOT / "docs" / "performance.md").read_text()
    text = PAGE.read_text()
    jobs = [job for span in re.findall(r"`bin/bench ([^`]+)`", text) for job in span.split()]
    for row in re.findall(r"rows? ((?:`[a-z-]+`(?:, | and )?)+)", text):
        jobs += re.findall(r"`([a-z-]+)`", row)
    assert len(jobs) > 5
    for job in jobs:
        assert f"| `{job}`" in results, job
