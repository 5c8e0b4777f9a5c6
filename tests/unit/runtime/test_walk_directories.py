"""Walking directories: links are followed, but never before directories themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from dedupindex.runtime.walk_directories import walk_visible


def refuse(error: OSError) -> None:
    raise error


def found(top: Path) -> list[str]:
    return [str(Path(path).relative_to(top)) for path in walk_visible(top, refuse)]


@pytest.fixture
def top(tmp_path: Path) -> Path:
    for name in ("top/m/deep/one", "top/z/two", "outside/below/three"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.touch()
    return tmp_path / "top"


def test_a_directory_has_its_own_name_and_not_that_of_a_link(top: Path) -> None:
    """Whatever sorts first, and however deep it is: its journal is found there."""
    (top / "a").symlink_to(top / "m" / "deep")
    (top / "b").symlink_to("z", target_is_directory=True)
    (top / "m" / "c").symlink_to(top / "z")
    assert found(top) == ["m/deep/one", "z/two"]


def test_what_only_links_lead_to_has_the_name_of_the_first(top: Path) -> None:
    (top / "a").symlink_to(top.parent / "outside")
    (top / "b").symlink_to(top.parent / "outside" / "below")
    (top.parent / "outside" / "back").symlink_to(top)  # a cycle
    (top.parent / "outside" / "below" / "again").symlink_to(".")
    assert found(top) == ["m/deep/one", "z/two", "a/below/three"]
    (top / "a").unlink()
    assert found(top) == ["m/deep/one", "z/two", "b/three"]


def test_the_top_may_be_a_link(top: Path) -> None:
    (top.parent / "link").symlink_to(top)
    assert found(top.parent / "link") == ["m/deep/one", "z/two"]
