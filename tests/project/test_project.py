"""The rules of the project: sizes, names, commands, locks, no paths of a machine."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from dedupindex import __version__
from tests.support.paths import ROOT

PACKAGES = ("dedupindex", "server", "demo")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
COMMANDS = sorted(path for path in (ROOT / "bin").iterdir() if path.is_file())
LOCKS = (
    "requirements.lock", "requirements-dev.lock",
    *(f"requirements-{extra}.lock" for extra in ("remote", "spark", "cassandra")),
)  # fmt: skip
MODULE_CEILING, FUNCTION_CEILING, SMALL = 600, 50, 60  # lines
# Exceptions of before these rules. None may be added.
TOO_SMALL: set[str] = set()
AMBIGUOUS: set[str] = set()


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module(path: Path) -> str:
    """The dotted name of a module; a package goes by its own."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """The dotted names that a module imports, of modules and of what is in them."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def normal(requirement: str) -> str:
    """The name in a requirement, as package indexes compare names."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def locked(lock: str) -> dict[str, str]:
    """Each locked name with its lines up to the next one."""
    blocks = re.split(r"^(?=[A-Za-z0-9])", (ROOT / lock).read_text(), flags=re.MULTILINE)[1:]
    return {normal(block): block for block in blocks}


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_module_is_small_and_has_a_docstring(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert text.count("\n") <= MODULE_CEILING
    assert ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            length = node.end_lineno - node.lineno + 1
            assert length <= FUNCTION_CEILING, f"{node.name} has {length} lines"


def test_small_modules_have_two_importers_or_guard_a_package() -> None:
    importers: dict[str, set[str]] = {}
    for path in MODULES:
        for name in imports(path):
            importers.setdefault(name, set()).add(module(path))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    guards = {name for contract in contracts for name in contract.get("allowed_importers", ())}
    commands = {f"dedupindex.cli.{path.name.replace('-', '_')}" for path in COMMANDS}  # by name
    found = {
        relative(path)
        for path in MODULES
        if path.name not in ("__init__.py", "__main__.py")
        and path.read_text().count("\n") < SMALL
        and len(importers.get(module(path), ())) < 2
        and module(path) not in guards | commands
    }
    assert found <= TOO_SMALL, "merge each of these into the module that imports it"


def test_file_names_are_unique() -> None:
    paths: dict[str, list[str]] = {}
    for path in MODULES:
        if path.name not in ("__init__.py", "__main__.py"):
            paths.setdefault(path.name, []).append(relative(path))
    assert {name for name, places in paths.items() if len(places) > 1} <= AMBIGUOUS


def test_class_names_are_unique() -> None:
    """A leading underscore does not make a name another one."""
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name.lstrip("_"), []).append(relative(path))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


@pytest.mark.parametrize("command", COMMANDS, ids=relative)
def test_commands_answer_help_from_anywhere(command: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(command)
    answer = subprocess.run([link, "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert "usage" in answer.stdout.lower()
    answer = subprocess.run([link, "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert (answer.returncode, answer.stdout) == (0, f"dedupindex {__version__}\n"), answer.stderr


def test_setup_names_an_unknown_extra() -> None:
    answer = subprocess.run([ROOT / "bin" / "setup", "nonsense"], capture_output=True, text=True)
    assert answer.returncode == 2
    assert "there is no extra 'nonsense'" in answer.stderr and "An EXTRA adds" in answer.stderr


@pytest.mark.parametrize("has_python", [True, False])
def test_a_checkout_of_another_user_is_refused_with_the_reason(
    tmp_path: Path, has_python: bool
) -> None:
    """Its Python may be below a directory that the user may not enter."""
    for name in ("bin", ".venv/bin", ".venv.lock"):  # a directory, so that nobody can write it
        (tmp_path / name).mkdir(parents=True)
    for name in ("setup", "list"):
        shutil.copy(ROOT / "bin" / name, tmp_path / "bin")
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "requirements.lock").touch()
    if has_python:
        (tmp_path / ".venv/bin/python").symlink_to(tmp_path / "locked" / "python3")
        (tmp_path / ".venv/dedupindex-stamp").write_text("runtime\n")
    answer = subprocess.run([tmp_path / "bin" / "list"], capture_output=True, text=True)
    assert (answer.returncode, answer.stdout) == (3, "")
    assert ("cannot be run by this user" in answer.stderr) is has_python, answer.stderr
    assert (f"{tmp_path}/locked/python3 does not exist" in answer.stderr) is has_python
    assert ("run this as the owner of the checkout" in answer.stderr) is not has_python
    assert answer.stderr.count("\n") == 1


def test_tracked_files_name_no_machine() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    machine = re.compile(rb"(?<![\w.-])/" rb"work/")  # no URL: a host comes before its path
    found = [
        name
        for name in filter(None, tracked.stdout.split("\0"))
        if (ROOT / name).is_file() and machine.search((ROOT / name).read_bytes())
    ]
    assert found == []


def test_locks_name_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    extras = project["project"]["optional-dependencies"]
    for extra, requirements in extras.items():  # bin/setup EXTRA installs what is not there
        file = f"requirements-{extra}.lock"
        there = locked(file if (ROOT / file).exists() else "requirements.lock").keys()
        assert {normal(text) for text in requirements} <= there
    del extras["spark"]  # half a gigabyte, which tests/peers/spark.py puts beside the environment
    needed = {normal(text) for text in project["project"]["dependencies"]}
    needed |= {normal(text) for text in groups["build"]}
    assert needed <= locked("requirements.lock").keys()
    tested = [*groups["dev"], *(text for extra in extras.values() for text in extra)]
    assert needed | {normal(text) for text in tested} <= locked(LOCKS[1]).keys()


def test_locks_agree_with_each_other() -> None:
    runtime, dev, *extras = ({n: b.split()[0] for n, b in locked(lock).items()} for lock in LOCKS)
    assert runtime.items() <= dev.items()
    for extra in extras:
        assert all(dev.get(name, version) == version for name, version in extra.items())


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_pin_and_hash_everything_and_name_no_index(lock: str) -> None:
    for name, block in locked(lock).items():
        assert "==" in block.splitlines()[0], name
        assert "--hash=sha256:" in block, name
    assert not re.search(r"^--|://", (ROOT / lock).read_text(), flags=re.MULTILINE)


def test_a_current_environment_costs_nothing(tmp_path: Path) -> None:
    """`bin/setup` runs before every command, so it may not even start Python."""
    poison = tmp_path / "python3"
    poison.write_text("#!/bin/sh\necho started >&2; exit 1\n")
    poison.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run([ROOT / "bin" / "setup", "--dev"], check=True)
    again = subprocess.run(
        [ROOT / "bin" / "setup"], env=environment, capture_output=True, text=True
    )
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
