"""Man pages: one for each command, in troff without faults, for an installed package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from dedupindex.cli import COMMANDS, group
from dedupindex.cli.man_pages import write_man_pages
from tests.conftest import need
from tests.support.paths import ROOT


def test_each_command_has_a_page(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "dedupindex.cli.man_pages", tmp_path / "man"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    pages = {Path(line).name: Path(line) for line in made.stdout.splitlines()}
    assert set(pages) == {"dedupindex.1", *(f"dedupindex-{name}.1" for name in COMMANDS)}
    for page in pages.values():
        text = page.read_text()
        assert "bin/" not in text.replace("/usr/bin/", ""), page
        assert all(f".SH {title}" in text for title in ("NAME", "SYNOPSIS", "EXIT STATUS"))
    groff = shutil.which("groff")
    need("groff", found=groff is not None)
    checked = subprocess.run(
        [str(groff), "-man", "-ww", "-Kutf8", "-Tutf8", "-P-c", *pages.values()],
        capture_output=True,
    )
    assert (checked.returncode, checked.stderr) == (0, b"")
    shown = checked.stdout.decode()
    assert "dedupindex index -i crawllog crawl.log my-index" in shown


@pytest.mark.parametrize("width", [64, 70, 78])
def test_no_name_is_broken_over_two_lines_of_a_help_page(width: int) -> None:
    """Where the package is installed, docs/post-crawl.md becomes the place of that page."""
    for name in COMMANDS:
        command = group.get_command(click.Context(group), name)
        assert command is not None
        written = command.get_help(
            command.context_class(command, info_name=name, terminal_width=width)
        )
        assert not re.search(r"(docs|conf)/[\w/-]*\n|--[\w-]*-\n", written), name
        assert "\N{NON-BREAKING HYPHEN}" not in written


def test_the_pages_that_a_package_installs_are_of_todays_help(tmp_path: Path) -> None:
    made = {page.name: page.read_text() for page in write_man_pages(tmp_path)}
    kept = {page.name: page.read_text() for page in (ROOT / "docs" / "man").iterdir()}
    assert kept == made, "run: .venv/bin/python -m dedupindex.cli.man_pages docs/man"
