"""Files that appear whole, and what is not replaced by one."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dedupindex.errors import BadInput, IndexBusy
from dedupindex.runtime.files import check_writable, exclusive, write_file


def test_the_file_that_a_link_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link", tmp_path / "there" / "page.html"
    link.symlink_to(target)
    for content in (b"first", b"second"):
        check_writable(link)
        write_file(link, content)
        assert link.is_symlink() and target.read_bytes() == content
    assert os.listdir(tmp_path / "there") == ["page.html"]


def test_a_pipe_behind_a_link_of_the_kernel_is_not_replaced() -> None:
    """The link of `/dev/stdout` leads to a name that does not exist."""
    receiver, sender = os.pipe()
    try:
        with pytest.raises(BadInput, match="is no regular file"):
            check_writable(Path(f"/proc/self/fd/{sender}"))
    finally:
        os.close(receiver)
        os.close(sender)


@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize("change", [check_writable, lambda path: write_file(path, b"new")])
def test_what_is_no_regular_file_is_not_replaced(
    tmp_path: Path, change: Callable[[Path], None], is_link: bool
) -> None:
    """Else root would lose `/dev/null` to a page of HTML."""
    path = pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    if is_link:
        path = tmp_path / "link"
        path.symlink_to(pipe)
    with pytest.raises(BadInput, match="is no regular file, and is not replaced"):
        change(path)
    assert pipe.is_fifo()


def test_a_lock_file_that_its_holder_removes_locks_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who opened the file before it was removed locks the new one, as all others do."""
    lock, flock = tmp_path / "lock", fcntl.flock

    def late(descriptor: int, how: int) -> None:
        lock.unlink()
        monkeypatch.setattr(fcntl, "flock", flock)
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with (
        exclusive(lock, "it"),
        pytest.raises(IndexBusy, match="another process is writing to it"),
        exclusive(lock, "it"),
    ):
        pass
