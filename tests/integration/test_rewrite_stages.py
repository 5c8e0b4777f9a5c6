"""The stages one after the other, as they are typed: manifest, resolve, rewrite, verify, undo."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator as FastIterator
from warcio.archiveiterator import ArchiveIterator

from dedupindex.cli import main
from tests.support.commands import run_json
from tests.support.rewriting import content, records_of, small_set
from tests.unit.post_crawl.test_rewrite_in_place import Failing


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """A set in ``in``, its manifest in ``m`` and the plan in ``plan``."""
    small_set(tmp_path / "in")
    assert main(["manifest", str(tmp_path / "in"), "-o", str(tmp_path / "m")]) == 0
    assert main(["resolve", str(tmp_path / "m"), "-o", str(tmp_path / "plan")]) == 0
    return tmp_path


def test_to_a_directory(planned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out, plan = planned / "in", planned / "out", planned / "plan"
    dry = run_json(capsys, "rewrite", plan, "--out", out, "--dry-run")
    done = run_json(capsys, "rewrite", plan, "--out", out, "--cdxj", planned / "x")
    assert {**done, "dry_run": True} == dry and done["revisits"] == 19
    compared = run_json(capsys, "verify", "--against", source, out)
    skipped = {"not_compared": 0, "not_compared_files": []}
    assert compared == {"files": 3, "revisits_rebuilt": 19, "findings": {}, **skipped}
    assert run_json(capsys, "verify", out)["findings"] == {}
    assert len((planned / "x").read_bytes().splitlines()) == 26
    run_json(capsys, "undedup", out, "--out", planned / "back")
    for name in content(source):
        assert records_of(planned / "back" / name) == records_of(source / name)


def test_in_place_twice_and_back(planned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, plan = planned / "in", planned / "plan"
    before = content(source)
    assert run_json(capsys, "rewrite", plan, "--in-place")["revisits"] == 19
    after = content(source)
    assert run_json(capsys, "verify", source)["findings"] == {}
    # The originals of the second set were moved by the first run; its journal says where to.
    assert run_json(capsys, "rewrite", plan, "--in-place")["revisits"] == 19
    assert content(source) == after
    run_json(capsys, "manifest", source, "-o", planned / "m2")
    run_json(capsys, "resolve", planned / "m2", "-o", planned / "plan2")
    assert run_json(capsys, "rewrite", planned / "plan2", "--in-place")["revisits"] == 0
    assert content(source) == after
    assert run_json(capsys, "rewrite", plan, "--undo")["exact"] == 2
    assert content(source) == before
    assert run_json(capsys, "rewrite", plan, "--in-place")["revisits"] == 19


@pytest.mark.parametrize("at", [3, 9, 20])
def test_sigterm_leaves_nothing_behind(planned: Path, at: int) -> None:
    """118: the file at hand is dropped, those before it are done."""
    source = planned / "in"
    before = content(source)
    child = os.fork()
    if not child:
        with Failing(at, lambda: os.kill(os.getpid(), signal.SIGTERM)):
            status = main(["rewrite", str(planned / "plan"), "--in-place", "--jobs", "1"])
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    now = content(source)
    assert set(now) == set(before)  # no file that is not whole
    assert main(["rewrite", str(planned / "plan"), "--undo"]) == 0
    assert content(source) == before


def test_others_read_the_results(planned: Path) -> None:
    out = planned / "out"
    assert main(["rewrite", str(planned / "plan"), "--out", str(out)]) == 0
    for name in content(planned / "in"):
        with open(out / name, "rb") as file:
            kinds = [record.rec_type for record in ArchiveIterator(file, check_digests=True)]
        with open(out / name, "rb") as file:
            records = FastIterator(file, parse_http=False)
            seen = []
            for record in records:
                seen.append(record.headers["WARC-Type"])
                assert "WARC-Block-Digest" not in record.headers or record.verify_block_digest()
        assert len(kinds) == len(records_of(planned / "in" / name))
        assert seen == kinds
