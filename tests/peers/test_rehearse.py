"""pywb replays the sample of a rehearsal, before and after."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dedupindex.cli import main
from tests.peers.environments import PYWB, environment
from tests.support.rewriting import small_set


def test_the_sample_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = environment("pywb", PYWB)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    small_set(tmp_path / "in")
    argv = ["rehearse", str(tmp_path / "in"), "--work", str(tmp_path / "work"), "--json"]
    capsys.readouterr()
    assert main(argv) == 0
    steps = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (compared,) = [step for step in steps if step["step"] == "compare"]
    assert compared["replayed"] == compared["sample"] == 19
