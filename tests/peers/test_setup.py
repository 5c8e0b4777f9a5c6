"""`bin/setup` and the environment of a checkout, with pip as users run it.

The checkout is a copy of this one in ``.peers``, with an environment of its own that later runs
use again.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import need
from tests.peers.environments import PEERS, ROOT

pytestmark = pytest.mark.peer
NEW = "# a change that a pull brings\nprint('the new code')\n"
VERSION = "from importlib.metadata import version; print(version('cassandra-driver'))"


def run(*words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(words, capture_output=True, text=True, env={**clean, **env}, check=False)


@pytest.fixture
def checkout() -> Iterator[Path]:
    home = PEERS / "checkout"
    home.mkdir(parents=True, exist_ok=True)
    with open(PEERS / ".checkout.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side
        command = "git ls-files -co --exclude-standard -z | xargs -0 -r cp --parents -t"
        copied = subprocess.run(
            f"{command} {home}", shell=True, cwd=ROOT, capture_output=True, text=True
        )
        assert not copied.returncode, copied.stderr
        done = run(home / "bin" / "setup")
        told = done.stderr
        need(f"packages of PyPI: {told[-200:]}", found="cannot be downloaded" not in told)
        assert not done.returncode, told
        yield home


def test_a_copy_that_pip_puts_in_place_of_the_checkout_is_noticed(checkout: Path) -> None:
    lookup, pip = checkout / "bin" / "lookup", checkout / ".venv" / "bin" / "pip"
    assert run(lookup, "--help").stderr == ""
    done = run(pip, "install", "--no-deps", checkout)  # as '.[spark]' does, with packages
    assert not done.returncode, done.stderr
    with open(checkout / "dedupindex" / "cli" / "lookup.py", "a") as module:
        module.write(NEW)
    done = run(lookup, "--help")
    assert done.returncode == 0 and "the new code" in done.stdout
    assert done.stderr.count("\n") == 1 and "bin/setup EXTRA" in done.stderr
    done = run(lookup, "--help")
    assert "the new code" in done.stdout and done.stderr == ""


def test_extras_come_from_their_locks_and_stay(checkout: Path) -> None:
    setup, stamp = checkout / "bin" / "setup", checkout / ".venv" / "dedupindex-stamp"
    python = checkout / ".venv" / "bin" / "python"
    done = run(setup, "typo")
    assert done.returncode == 2 and "Usage" in done.stderr
    stamp.write_text(stamp.read_text().replace("\ncassandra\n", "\n\n"))  # of an earlier test run
    assert not run(python, "-m", "pip", "uninstall", "--yes", "cassandra-driver").returncode
    done = run(setup, "cassandra", "corpus")
    assert done.returncode == 0 and "adding cassandra" in done.stderr
    locked = (checkout / "requirements-cassandra.lock").read_text()
    asked = run(python, "-c", VERSION).stdout.strip()
    assert f"cassandra-driver=={asked} " in locked
    done = run(setup, "cassandra")
    assert (done.returncode, done.stderr) == (0, "")
    assert not run(python, "-m", "pip", "uninstall", "--yes", "cassandra-driver").returncode
    with open(checkout / "pyproject.toml", "a") as project:
        project.write("# a change\n")
    done = run(checkout / "bin" / "lookup", "--help")  # renews the environment
    assert done.returncode == 0 and "up to date" in done.stderr
    assert run(python, "-c", "import cassandra").returncode == 0
    outside = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_NO_CACHE_DIR": "1"}
    done = run(setup, "spark", **outside, PIP_RETRIES="0")
    assert done.returncode == 3 and "cannot be downloaded" in done.stderr
    assert run(checkout / "bin" / "lookup", "--help").stderr == ""  # as it was


def test_errors_name_the_way_that_fits(checkout: Path) -> None:
    python = checkout / ".venv" / "bin" / "python"
    ask = "from dedupindex.errors import to_install; print(to_install('spark'))"
    assert run(python, "-I", "-c", ask).stdout == "bin/setup spark\n"
    done = run(python, "-I", "-c", f"import sys; sys.prefix = '/usr'; {ask}")
    assert done.stdout == "pip install 'dedupindex[spark]'\n"
