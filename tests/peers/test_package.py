"""The wheel in an empty environment and an empty directory, with packages of PyPI."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tomllib
from hashlib import sha256
from pathlib import Path

import pytest

from tests.peers.environments import ROOT, environment
from tests.project.test_packages import built
from tests.support.documented import run_page

pytestmark = pytest.mark.peer
NEEDING = {  # of each extra, a command that cannot work without it
    "remote": ("index", "s3://bucket/x.cdx", "index"),
    "spark": ("manifest", "--spark", "local[1]", "warcs", "-o", "manifest"),
    "redis": ("index", "redis://127.0.0.1:9/0", "index"),
    "corpus": ("corpus", "warcs", "--enrich", "html.title", "-o", "pages.jsonl"),
    "cassandra": ("index", "--stats", "cassandra://127.0.0.1/dedup"),
    "cover": ("cover", "warcs", "--relation", "r.txt", "-o", "cover.jsonl"),
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of an environment with what a plain ``pip install`` brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(NEEDING) == set(project["optional-dependencies"])
    found = environment("package", tuple(project["dependencies"]))
    _, wheel = built(ROOT, tmp_path_factory.mktemp("dist"))
    pip = [found / "python", "-m", "pip", "--quiet"]
    checksum, installed = sha256(wheel.read_bytes()).hexdigest(), found.parent / "wheel.sha256"
    with open(found.parent / "wheel.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes may run tests with this very wheel
        if not installed.exists() or installed.read_text() != checksum:
            subprocess.run([*pip, "install", "--force-reinstall", "--no-deps", wheel], check=True)
            subprocess.run([*pip, "check"], check=True)
            installed.write_text(checksum)
    return found


def typed(programs: Path, where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    line = [programs / "dedupindex", *words]
    return subprocess.run(line, cwd=where, env=environ, capture_output=True, text=True)


def test_the_demo_of_the_package_works_in_an_empty_directory(
    programs: Path, tmp_path: Path
) -> None:
    done = typed(programs, tmp_path, "demo", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "All numbers are right" in done.stdout and "bin/" not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_commands_of_the_readme_work_with_the_package(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    run_page("README.md", tmp_path, tmp_path / "empty", programs=programs)
    assert not any((tmp_path / "empty").iterdir())


@pytest.mark.parametrize("extra", NEEDING)
def test_a_command_names_the_extra_that_it_needs(
    extra: str, programs: Path, tmp_path: Path
) -> None:
    (tmp_path / "warcs").mkdir()
    page = b"WARC/1.0\r\nWARC-Type: warcinfo\r\nContent-Length: 0\r\n\r\n\r\n\r\n"
    (tmp_path / "warcs" / "a.warc").write_bytes(page)
    shutil.copy(ROOT / "conf" / "cover" / "earliest.txt", tmp_path / "r.txt")
    done = typed(programs, tmp_path, *NEEDING[extra])
    assert done.returncode in range(2, 8), done.stderr
    assert f"pip install 'dedupindex[{extra}]'" in done.stderr and done.stderr.count("\n") == 1
