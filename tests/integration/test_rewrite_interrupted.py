"""``bin/rewrite PLAN --in-place`` that is interrupted, and what may follow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dedupindex.cli import main
from dedupindex.post_crawl.rewrite import rewrite_all
from dedupindex.post_crawl.rewrite.rewrite_outcome import RewriteOutcome
from tests.support.commands import typed
from tests.support.rewriting import content, small_set


def test_an_interrupted_run_of_a_plan_is_not_committed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resumed, it would find that the files which it has replaced are not those that it scanned."""
    source, plan = tmp_path / "in", tmp_path / "plan"
    small_set(source)
    before = content(source)
    typed("manifest", source, "-o", tmp_path / "manifest")
    typed("resolve", tmp_path / "manifest", "-o", plan)

    def stopped(*words: Any) -> Iterator[RewriteOutcome]:
        yield next(outcomes := rewrite_all.rewrite(*words))
        outcomes.close()  # type: ignore[attr-defined]
        raise KeyboardInterrupt

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
    (plan / ".unfinished").unlink()  # as the message says
    assert run("rewrite", plan, "--commit")[1]["files"] == 1
