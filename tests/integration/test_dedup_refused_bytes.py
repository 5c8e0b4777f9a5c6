"""The bytes of duplicates that stay whole, by reason, as ``bin/dedup`` and its stages say them."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest

from dedupindex.runtime.tables import amount
from tests.support.commands import typed
from tests.support.verifying import page, write
from tests.support.warc_cases import gz

BIG, SMALL = b"<html>" + bytes(range(32, 127)) * 40, b"<html>" + bytes(range(32, 127))
SAME, LITTLE, LEFT = page(1, BIG), page(4, SMALL), page(5, BIG)
EXPECTED = {
    "same-record": len(gz(SAME)),
    "small": len(gz(LITTLE)),
    "file-left-alone": len(gz(LEFT)),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Files with a copy that becomes a revisit, and with three that stay."""
    path = tmp_path / "in"
    write(path / "a.warc.gz", [SAME, page(2, SMALL)])
    write(path / "b.warc.gz", [page(3, BIG), LITTLE, SAME])
    write(path / "c.warc.gz", [LEFT])
    return path


@pytest.mark.parametrize("how", ["--out", "--in-place", "--dry-run"])
def test_a_report_has_the_bytes_of_each_reason(source: Path, tmp_path: Path, how: str) -> None:
    out = () if how == "--in-place" else ("--out", tmp_path / "out")
    words = ("dedup", source, *out, *([] if how == "--out" else [how]), "--min-size", 2000)
    with open(source / "c.warc.gz", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as by a crawler that writes it
        report = json.loads(typed(*words, "--json", status=7)[0])
        text = typed(*words, status=7)[0]
    assert report["revisits"] == 1
    assert report["refused"] == dict.fromkeys(EXPECTED, 1)
    assert report["refused_bytes"] == EXPECTED
    table = text[text.index("Duplicates that ") :]
    assert " in files  " in table
    for size in EXPECTED.values():
        assert f"  {amount(size)}  " in table


def test_the_stages_have_the_bytes_of_their_reasons(source: Path, tmp_path: Path) -> None:
    manifest, plan, out = (tmp_path / name for name in ("manifest", "plan", "out"))
    typed("manifest", source, "-o", manifest)
    resolved = ("resolve", manifest, "-o", plan)
    line = next(one for one in typed(*resolved)[0].splitlines() if "same-record" in one)
    assert line.split("same-record")[1].split() == ["1", *amount(EXPECTED["same-record"]).split()]
    with open(source / "c.warc.gz", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        words = ("rewrite", plan, "--out", out, "--min-size", 2000)
        report = json.loads(typed(*words, "--json", status=7)[0])
        text = typed(*words, status=7)[0]
    assert report["refused_bytes"] == {name: EXPECTED[name] for name in report["refused"]}
    assert report["refused"] == {"small": 1, "file-left-alone": 1}
    assert f"1  {amount(EXPECTED['small']):>10}  " in text


def test_a_repeated_run_has_the_bytes_of_the_first(source: Path, tmp_path: Path) -> None:
    """Its files were replaced, and their journals say what was refused there."""
    manifest, plan = tmp_path / "manifest", tmp_path / "plan"
    typed("manifest", source, "-o", manifest)
    typed("resolve", manifest, "-o", plan)
    words = ("rewrite", plan, "--in-place", "--min-size", 2000, "--json")
    reports = [json.loads(typed(*words)[0]) for _ in range(2)]
    assert [one["refused_bytes"] for one in reports] == [{"small": EXPECTED["small"]}] * 2
