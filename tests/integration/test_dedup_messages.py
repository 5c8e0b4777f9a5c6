"""What ``bin/dedup``, ``bin/rewrite`` and ``bin/undedup`` say to a new user."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from dedupindex.errors import BadInput
from tests.support.commands import typed
from tests.unit.post_crawl.test_index_originals import write

BODIES = [Random(number).randbytes(1500) for number in range(3)]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Two files of the same three payloads."""
    for day in (2, 3):
        write(tmp_path / f"archive/crawl{day}.warc.gz", day, BODIES)
    return tmp_path / "archive"


def test_an_undo_of_a_directory_that_was_moved_is_an_error(archive: Path) -> None:
    typed("dedup", archive, "--in-place")
    plan = archive.with_name("archive.dedup") / "plan"
    moved = archive.rename(archive.with_name("moved"))
    said = typed("rewrite", plan, "--undo", status=BadInput.exit_status)[1]
    assert f"{archive}, whose files the plan rewrites, does not exist" in said
    assert "bin/undedup NEWDIR --in-place" in said
    said = typed("rewrite", plan, "--commit", status=BadInput.exit_status)[1]
    assert f"{archive}, " in said and "--root" in said
    out, _ = typed("undedup", moved, "--in-place", "--json")
    assert json.loads(out)["exact"] == 1
    moved.rename(archive)
    assert "there is nothing to undo" in typed("rewrite", plan, "--undo")[1]
