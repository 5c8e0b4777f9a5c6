"""`dedupindex.runtime.lmdb_disk`: a full disk is an error, and kills no process."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import lmdb
import pytest

from dedupindex.runtime.lmdb_disk import MAX_READERS, full_hint, reserve_lock
from tests.conftest import MakeIndex, need
from tests.support.captures import capture
from tests.support.paths import ROOT

NAMESPACE = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--user", "--map-root-user"])]


def used(path: Path) -> int:
    return os.stat(path).st_blocks * 512


def test_a_lock_has_no_holes(tmp_path: Path) -> None:
    data, lock = tmp_path / "x.mdb", tmp_path / "x.mdb-lock"
    reserve_lock(data)
    size = lock.stat().st_size
    with lmdb.open(str(data), subdir=False, max_readers=MAX_READERS) as env:
        assert env.info()["max_readers"] >= MAX_READERS
        assert used(lock) >= size == lock.stat().st_size
        reserve_lock(data)  # while others have it mapped
        assert lock.stat().st_size == size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.mdb", "x.mdb-lock"]


def test_the_lock_of_an_older_version_keeps_its_size(tmp_path: Path) -> None:
    """Processes that have mapped it know the places of so many readers."""
    data, lock = tmp_path / "x.mdb", tmp_path / "x.mdb-lock"
    with lmdb.open(str(data), subdir=False, max_readers=MAX_READERS):
        size = lock.stat().st_size
        assert used(lock) < size
        reserve_lock(data)
        assert lock.stat().st_size == size <= used(lock)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"No space left on device.*x\.mdb-lock"):
        reserve_lock(tmp_path / "x.mdb")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fails_is_not_asked_whether_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error that says what failed must not be lost: a server would answer 500, not 503."""

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    assert full_hint(tmp_path / "x.mdb") == ""
    monkeypatch.setattr(os, "statvfs", broken)
    assert full_hint(tmp_path / "x.mdb") == ""


def test_a_file_system_that_has_no_links_is_left_to_lmdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", none)
    reserve_lock(tmp_path / "x.mdb")
    assert not list(tmp_path.iterdir())


def test_commands_on_a_full_disk(make_index: MakeIndex, tmp_path: Path) -> None:
    """Each fails with a message; none is killed by a signal, as a page of a hole would do."""
    tried = subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"])
    need("unshare with a mount namespace", found=not tried.returncode)
    index, disk = make_index([capture(1)]), tmp_path / "disk"
    disk.mkdir()
    steps = f"""
mount -t tmpfs -o size=900k none {disk}
cp -r {index} {disk}/index
rm -f {disk}/index/*-lock
dd if=/dev/zero of={disk}/rest bs=1k count=2000 2>/dev/null
for words in "list {disk}/index" "index --compact {disk}/index" "index --check {disk}/index"; do
  {ROOT}/bin/$words; echo "status $?"
done
"""
    done = subprocess.run([*NAMESPACE, "sh", "-c", steps], capture_output=True, text=True)
    assert done.stdout.split("\n")[:-1] == ["status 6"] * 3, (done.stdout, done.stderr)
    assert done.stderr.count("No space left on device") == 3
