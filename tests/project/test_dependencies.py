"""Private functions of dependencies that we use: each by name, with the signature that was tested.

A test fails where a new version has changed it, so that somebody looks before the upper bound in
pyproject.toml is raised.
"""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from importlib import import_module
from importlib.metadata import version
from typing import Any, Generic

import pytest

from server.run import _GranianServer
from tests.support.paths import ROOT

# By distribution: module, name in it, and its parameters.
PRIVATE = {
    "granian": {
        ("granian._granian", "SocketHolder"): "fd, uds, backlog",
        ("granian.server.mp", "MPServer._init_shared_socket"): "self",
        ("granian.server.mp", "MPServer._spawn_worker"): "self, idx, target, callback_loader",
        ("granian.server.mp", "WorkerProcess._watch"): "self",
        ("granian.server.mp", "MPServer._reload"): "self, spawn_target, target_loader",
        ("granian.server.mp", "MPServer._stop_workers"): "self",
        ("granian.server.mp", "MPServer.build_ssl_context"): (
            "self, cert, key, password, proto, ca, crl, client_verify"
        ),
    },
    "whoosh-reloaded": {
        ("whoosh.index", "TOC._filename"): "indexname, gen",
        ("whoosh.writing", "SegmentWriter._finalize_segment"): "self",
        ("whoosh.writing", "SegmentWriter._finish"): "self",
        ("whoosh.writing", "SegmentWriter"): (
            "ix, poolclass, timeout, delay, _lk, limitmb, docbase, codec, compound, kwargs"
        ),
    },
    "s3fs": {
        ("s3fs", "S3FileSystem._iterdir"): "self, bucket, max_items, delimiter, prefix, versions"
    },
    "fsspec": {("fsspec.implementations.http", "HTTPFileSystem._ls"): "self, url, detail, kwargs"},
}
ATTRIBUTES = {"_shd", "_sso", "main_loop_interrupt", "interrupt_children"}
"""Attributes of Granian's server that `_GranianServer` sets."""
PUBLIC = {"_asdict", "_exit", "_make", "_replace", "_fields"}  # documented, in Python itself
PYTHON = {"_Compress", "_Decompress"}  # zlib's types, in annotations
NAMES = [(package, *where) for package, names in PRIVATE.items() for where in names]


def named(module: str, path: str) -> Any:
    found: Any = import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize(("package", "module", "path"), NAMES)
def test_private_functions_have_the_known_signature(package: str, module: str, path: str) -> None:
    parameters = ", ".join(inspect.signature(named(module, path)).parameters)
    assert parameters == PRIVATE[package][module, path], f"{package} {version(package)}"


def test_the_attributes_that_are_set_for_granian_are_used_there() -> None:
    bases = [base for base in _GranianServer.__mro__[1:-1] if base is not Generic]
    source = "".join(map(inspect.getsource, bases))
    assert {name for name in ATTRIBUTES if f"self.{name}" in source} == ATTRIBUTES


def test_dependencies_with_private_uses_have_a_version_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    requirements = [*project["dependencies"], *(text for extra in extras for text in extra)]
    for text in requirements:
        name = re.match(r"[a-z0-9-]+", text)
        assert name is not None and ">=" in text, text
        if name[0] not in PRIVATE:
            continue
        assert ",<" in text, f"{text}: versions that nobody has tried must be left out"
        parts = re.findall(r"[0-9.]+$", text)[0].split(".")
        now = version(name[0]).split(".")[: len(parts)]
        assert list(map(int, now)) < list(map(int, parts)), text


def test_nothing_else_is_private() -> None:
    own, used = set[str](), set[str]()
    for package in ("dedupindex", "server"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                own |= defined(node)
                used |= asked(node)
    names = {part for _, _, path in NAMES for part in path.split(".")}
    modules = {part for _, module, _ in NAMES for part in module.split(".")}
    known = names | modules | PUBLIC | PYTHON | {"_lk", "_typeshed"}
    assert used - own - known == set()
    base = _GranianServer.__mro__[1]
    overridden = {name for name in vars(_GranianServer) if name[:2] != "__" and hasattr(base, name)}
    assert overridden <= names


def defined(node: ast.AST) -> set[str]:
    """What is ours: names of functions and classes, fields, and attributes of `self`."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.AnnAssign | ast.Assign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {target.id for target in targets if isinstance(target, ast.Name)}
    own = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    if own and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
        return {node.attr}
    return set()


def asked(node: ast.AST) -> set[str]:
    """The private names that something is asked for."""
    found: list[str] = []
    if isinstance(node, ast.Attribute):
        found = [node.attr]
    elif isinstance(node, ast.keyword) and node.arg:
        found = [node.arg]
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        found = [*node.module.split("."), *(name.name for name in node.names)]
    return {name for name in found if name[0] == "_" and name[:2] != "__"}
