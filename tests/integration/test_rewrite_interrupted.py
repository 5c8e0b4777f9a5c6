"""``bin/rewrite PLAN --in-place`` that is interrupted, and what may follow."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dedupindex.cli import main
from dedupindex.post_crawl.rewrite import rewrite_all
from dedupindex.post_crawl.rewrite.rewrite_outcome import RewriteOutcome
from tests.support.commands import typed
from tests.support.rewriting import content, small_set


def stopped(*words: Any) -> Iterator[RewriteOutcome]:
    yield next(outcomes := rewrite_all.rewrite(*words))
    outcomes.close()  # type: ignore[attr-defined]
    raise KeyboardInterrupt


def test_an_interrupted_run_of_a_plan_is_not_committed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resumed, it would find that the files which it has replaced are not those that it scanned."""
    source, plan = tmp_path / "in", tmp_path / "plan"
    small_set(source)
    before = content(source)
    typed("manifest", source, "-o", tmp_path / "manifest")
    typed("resolve", tmp_path / "manifest", "-o", plan)

    def run(*words: object) -> tuple[int, dict[str, Any]]:
        status = main([*map(str, words), "--json"])
        return status, json.loads(capsys.readouterr().out)

    def interrupt() -> None:
        with monkeypatch.context() as patch:
            patch.setattr("dedupindex.cli.rewrite.rewrite", stopped)
            assert main(["rewrite", str(plan), "--in-place", "--jobs", "1"]) == 130
        capsys.readouterr()
        assert main(["rewrite", str(plan), "--commit"]) == 5
        said = capsys.readouterr().err
        assert f"bin/rewrite {plan} --in-place was interrupted" in said and "; nothing was" in said

    interrupt()
    assert content(source) != before
    status, done = run("rewrite", plan, "--in-place")
    assert (status, done["revisits"]) == (0, 19)
    assert run("rewrite", plan, "--undo")[0] == 0 and content(source) == before
    interrupt()
    assert run("rewrite", plan, "--undo")[0] == 0 and content(source) == before
    assert run("rewrite", plan, "--commit")[1]["files"] == 0  # there is nothing
    interrupt()
    (mark,) = plan.glob(".unfinished-*")
    mark.unlink()  # as the message says
    assert run("rewrite", plan, "--commit")[1]["files"] == 1


def test_a_run_on_a_copy_does_not_finish_that_on_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, plan, copy = (tmp_path / name for name in ("in", "plan", "copy"))
    small_set(source)
    shutil.copytree(source, copy)
    typed("manifest", source, "-o", tmp_path / "manifest")
    typed("resolve", tmp_path / "manifest", "-o", plan)
    with monkeypatch.context() as patch:
        patch.setattr("dedupindex.cli.rewrite.rewrite", stopped)
        assert main(["rewrite", str(plan), "--in-place", "--jobs", "1"]) == 130
    there = ("--root", f"{source}={copy}")
    typed("rewrite", plan, "--in-place", *there)
    typed("rewrite", plan, "--commit", *there)
    assert "was interrupted" in typed("rewrite", plan, "--commit", status=5)[1]
    typed("rewrite", plan, "--in-place")
    typed("rewrite", plan, "--commit")
