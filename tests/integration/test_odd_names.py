"""Names and expressions that are not UTF-8 are reported, without a traceback."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from dedupindex.cli import main
from tests.support.commands import typed
from tests.support.paths import DATA

WARC = DATA / "warc" / "example.warc.gz"
ODD = os.fsdecode(b"non\xffutf")
RELATION = "jaccard(k=2) >= 0.5 and title(a) == title(b)"


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    return Path(shutil.copy(WARC, folder / f"{ODD}.warc.gz"))


@pytest.mark.parametrize("as_folder", [False, True])
@pytest.mark.parametrize("ending", ["jsonl", "cdxj", "parquet", "warc.gz"])
def test_sources_of_corpora(
    odd: Path, tmp_path: Path, ending: str, as_folder: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / f"out.{ending}"
    assert main(["corpus", str(odd.parent if as_folder else odd), "-o", str(out)]) == 4
    assert r"non\xffutf.warc.gz: this name is not UTF-8: rename it" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_a_cdx_in_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / f"{ODD}.cdx").write_text(" CDX N b a m s k r M S V g\n")
    assert main(["corpus", str(tmp_path)]) == 4
    assert "this name is not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["jsonl", "cdxj", "parquet", "warc.gz"])
def test_outputs_of_corpora(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["corpus", str(WARC), "-o", str(tmp_path / f"{ODD}.{ending}")]) == 4
    assert "this name is not UTF-8" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def answer(*words: object, status: int = 0) -> str:
    """Return what a command with --json prints; its last line is an object."""
    out, _ = typed(*words, "--json", status=status)
    json.loads(out.splitlines()[-1])
    return out


def test_answers_as_json(odd: Path, tmp_path: Path) -> None:
    """Names that JSON cannot represent are escaped, as in text, wherever they are reported."""
    source, out, again = odd.parent, tmp_path / "out", tmp_path / "again"
    shown = r"non\\udcffutf"
    shutil.copy(odd, source / f"equal{ODD}.warc.gz")
    (source / f"{ODD}.txt").write_text("no archive")
    (source / f"cut{ODD}.warc.gz").write_bytes(odd.read_bytes()[:-900])
    dry = answer("dedup", source, "--out", out, "--dry-run", status=7)
    assert json.loads(dry)["skipped_files"] == [f"{source}/{shown[:4]}udcffutf.txt"]
    for words in (("--out", out), ("--in-place",)):
        found = answer("dedup", source, *words, status=7)
        assert shown in found and found.count(shown) > 3
    assert shown in answer("dedup", source, "--out", out, "--dry-run", "--sample", "100%", status=7)
    assert shown in answer("undedup", out, "--out", again, status=7)
    assert shown in answer("verify", "--against", source, out)
    assert shown in answer("verify", source, status=7)
    answer("index", source, tmp_path / "index", status=7)
    answer("manifest", source, "-o", tmp_path / "manifest", status=7)
    answer("convert", source, "--to", "zstd", "--out", tmp_path / "zstd", status=7)


@pytest.mark.parametrize("how", ["--out", "--in-place", "--to"])
def test_a_cdxj_without_a_file(odd: Path, tmp_path: Path, how: str) -> None:
    """It has all captures of the others; the report, and how to undo the run, are printed."""
    shutil.copy(odd, odd.with_name("other.warc.gz"))
    words = [how] if how == "--in-place" else ["--out", tmp_path / "out"]
    command = "convert" if how == "--to" else "dedup"
    more = ["--to", "zstd"] if how == "--to" else []
    lists = tmp_path / "all.cdxj"
    out, said = typed(command, odd.parent, *words, *more, "--cdxj", lists, status=7)
    assert "utf.warc" in said and "its captures are not in the CDXJ: its name is not UTF-8" in said
    assert "leaves out, also if it was named above:" in said
    assert "files" in out
    lines = lists.read_text().splitlines()
    assert lines and all('"filename":"other.warc' in line for line in lines)


def test_covers(odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for source, name in ((odd, "out.jsonl"), (WARC, f"{ODD}.jsonl")):
        words = ["cover", str(source), "--relation", RELATION, "-o", str(tmp_path / name)]
        assert main(words) == 4
        assert "this name is not UTF-8" in capsys.readouterr().err
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_expressions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["corpus", str(WARC), "--where", f'url == "{ODD}"']) == 4
    assert "not UTF-8, at character 12" in capsys.readouterr().err
    relation = RELATION + f' and title(a) == "{ODD}"'
    words = ["cover", str(WARC), "--relation", relation, "-o", str(tmp_path / "out.jsonl")]
    assert main(words) == 4
    assert "there is a character that is not UTF-8" in capsys.readouterr().err
