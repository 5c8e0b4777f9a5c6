"""Counts in messages: singular for 1, in every command."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest

from dedupindex.cli import main
from dedupindex.runtime.tables import names_text, printable, singular
from tests.support.verifying import page, write

_WRONG = re.compile(r"(?<![\w.,-])1 (?:[a-z]+ies|[a-rt-z]+[a-rt-z]s)\b")


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("1 files: 1 records, 1 copies", "1 file: 1 record, 1 copy"),
        ("11 files, 1,001 copies, 0.1 files", "11 files, 1,001 copies, 0.1 files"),
        ("1 responses of x-1 files", "1 response of x-1 files"),
        ("1 problems, 1 duplicates", "1 problem, 1 duplicate"),
        ("none of 1 filesystem", "none of 1 filesystem"),
    ],
)
def test_singular_of_one(said: str, meant: str) -> None:
    assert singular(said) == meant


def test_the_first_names_and_how_many_more() -> None:
    assert [names_text(["a", "b", "c"], most) for most in (1, 2, 3, 4)] == [
        "a and 2 more", "a, b and 1 more", "a, b, c", "a, b, c",
    ]  # fmt: skip
    assert names_text(["a"], 2, 1_001) == "a and 1,000 more"


def test_stages_print_singulars(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, plan, out = (tmp_path / name for name in ("in", "plan", "out"))
    write(source / "a.warc.gz", [page(1), page(2)])
    stages: list[tuple[str, tuple[object, ...]]] = [
        ("1 original, 1 copy of", ("resolve", tmp_path / "m", "-o", plan)),
        ("1 revisit, ", ("rewrite", plan, "--out", out)),
        ("1 file: 1 record restored; 0 files", ("undedup", out, "--out", tmp_path / "again")),
        ("1 capture would become", ("dedup", source, "--out", tmp_path / "x", "--dry-run")),
        ("1 file, ", ("verify", out)),
    ]
    assert main(["manifest", str(source), "-o", str(tmp_path / "m")]) == 0
    for expected, words in stages:
        assert main([str(word) for word in words]) == 0
        said = "".join(capsys.readouterr())
        assert expected in said
        assert not _WRONG.search(said), said


def test_one_line_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "in/a.warc.gz", [page(1)])
    assert main(["manifest", str(tmp_path / "in"), "-o", str(tmp_path / "m")]) == 0
    assert ": 1 line of " in capsys.readouterr().out
    assert main(["resolve", str(tmp_path / "m"), "-o", str(tmp_path / "plan")]) == 0
    assert "1 line: 1 unique, 0 originals" in capsys.readouterr().out


# Default_Ignorable_Code_Point of Unicode 16, which browsers draw as nothing, ...
IGNORED = (
    *((0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5)),
    *((0x180B, 0x180F), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164)),
    *((0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3)),
    *((0x1D173, 0x1D17A), (0xE0000, 0xE0FFF)),
)
BLANK = (0x2800, 0xFFFC, 0x16FE4, 0x1D159)  # ... and what is blank for other reasons
HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs")


def test_every_character_that_is_not_seen_is_escaped() -> None:
    hidden = {code for first, last in IGNORED for code in range(first, last + 1)} | {*BLANK}
    seen = []
    for code in range(0x110000):
        kind = unicodedata.category(char := chr(code))
        if code not in hidden and (kind not in HIDDEN or char == " "):
            seen.append(char)
        elif kind not in ("Co", "Cn") or code in hidden or code % 100 == 0:
            shown = printable(char)
            assert shown.isascii() and shown.startswith("\\"), f"{code:x}"
    assert printable("".join(seen)) == "".join(seen)
