"""``bin/demo`` shows the commands that it runs. `demo_files` runs it as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest

import demo.__main__


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
