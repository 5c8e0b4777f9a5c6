"""``bin/demo`` shows the commands that it runs. `demo_files` runs it as it is typed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import demo.__main__
from tests.support.terminal import on_terminal


def test_the_index_is_built_by_the_command_that_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    def stop(*words: object) -> str:
        raise KeyboardInterrupt(" ".join(map(str, words)))

    monkeypatch.setattr(demo.__main__, "step", shown.append)
    monkeypatch.setattr(demo.__main__, "product", stop)
    with pytest.raises(KeyboardInterrupt) as stopped:
        demo.__main__._run(tmp_path)
    assert shown[-1] == f"2. bin/{str(stopped.value).removesuffix(' --json')}"


@pytest.mark.parametrize(
    ("settings", "bold"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "dumb"}, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
    ],
)
def test_headings_are_bold_where_the_terminal_and_the_user_allow_it(
    settings: dict[str, str], bold: bool
) -> None:
    line = [sys.executable, "-c", "from demo.steps import step; step('1. heading')"]
    settings = {"NO_COLOR": "", **settings}
    assert ("\x1b[" in on_terminal(line, environment=settings)) is bold
