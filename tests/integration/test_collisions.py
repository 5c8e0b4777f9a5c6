"""The published SHA-1 collision through all stages, in every mode: two payloads, two originals."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

import pytest

from dedupindex.cli import main
from dedupindex.verify.collection import Collection
from dedupindex.verify.compare_collections import Against
from tests.support.commands import run_json
from tests.support.rewriting import content, records_of
from tests.support.verifying import page, write
from tests.support.warc_cases import sha1
from tests.unit.post_crawl.test_compare_payloads import SHATTERED

MODES = ("always", "sample 10", "strong-digest")
SUFFIX = b"the same behind both keeps the collision " * 40
ONE, OTHER = (block + SUFFIX for block in SHATTERED)


def bodies(*files: Path) -> dict[bytes, list[bytes]]:
    """Per type of record, the blocks behind the HTTP header."""
    found: dict[bytes, list[bytes]] = {b"response": [], b"revisit": []}
    for path in files:
        for text, block in records_of(path):
            kind = b"revisit" if b"WARC-Type: revisit" in text else b"response"
            found[kind].append(block.partition(b"\r\n\r\n")[2])
    return found


def named(path: Path) -> list[bytes]:
    """The URL that each revisit of a file names."""
    lines = [text.split(b"\r\n") for text, _ in records_of(path)]
    name = b"WARC-Refers-To-Target-URI: "
    return [line.removeprefix(name) for text in lines for line in text if line.startswith(name)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Both payloads in one file, both once more in another, the other way round."""
    assert ONE != OTHER and sha1(ONE) == sha1(OTHER)
    write(tmp_path / "in/a.warc.gz", [page(1, ONE), page(2, OTHER)])
    write(tmp_path / "in/b.warc.gz", [page(3, OTHER), page(4, ONE)])
    return tmp_path / "in"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("in_place", [False, True])
def test_both_payloads_stay(
    source: Path, tmp_path: Path, mode: str, in_place: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, plan, out = tmp_path / "m", tmp_path / "plan", tmp_path / "out"
    before = shutil.copytree(source, tmp_path / "before")
    run_json(capsys, "manifest", source, "-o", manifest, "--jobs", 1)
    resolved = run_json(capsys, "resolve", manifest, "-o", plan, "--compare", mode)
    assert (resolved["collisions"], resolved["collided"]) == (1, 2)
    where = ["--in-place"] if in_place else ["--out", out]
    assert run_json(capsys, "rewrite", plan, *where, "--jobs", 1)["revisits"] == 2
    new = source if in_place else out
    assert bodies(new / "a.warc.gz")[b"response"] == [ONE, OTHER]
    assert bodies(new / "b.warc.gz") == {b"response": [], b"revisit": [b"", b""]}
    assert named(new / "b.warc.gz") == [b"http://example.com/2", b"http://example.com/1"]
    assert list(Against(before, [new]).findings()) == []
    assert list(Collection([new]).findings()) == []
    if in_place:
        run_json(capsys, "rewrite", plan, "--undo")
        assert content(source) == content(before)
    else:
        run_json(capsys, "undedup", out, "--out", tmp_path / "back")
        for name in content(before):
            assert records_of(tmp_path / "back" / name) == records_of(before / name)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("in_place", [False, True])
def test_in_one_step(
    source: Path, tmp_path: Path, mode: str, in_place: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--in-place"] if in_place else ["--out", tmp_path / "out"]
    done = run_json(capsys, "dedup", source, *where, "--compare", mode, "--jobs", 1)
    assert done["revisits"] == 2
    new = source if in_place else tmp_path / "out"
    assert bodies(new / "a.warc.gz")[b"response"] == [ONE, OTHER]
    assert named(new / "b.warc.gz") == [b"http://example.com/2", b"http://example.com/1"]
    assert list(Collection([new]).findings()) == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("known", [[ONE], [OTHER, ONE]], ids=["one", "both"])
def test_collisions_with_originals_in_an_index(
    tmp_path: Path,
    mode: str,
    in_place: bool,
    known: list[bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What the index has becomes copy 1; what it has not keeps an original in the set."""
    numbers = count(1)
    old = write(tmp_path / "old/x.warc.gz", [page(next(numbers), body) for body in known])
    main(["index", "--by-url", "-w", "-m", ".*", str(old), str(tmp_path / "index")])
    source, out = tmp_path / "in", tmp_path / "out"
    for name, pair in (("a", (ONE, OTHER)), ("b", (OTHER, ONE))):
        write(source / f"{name}.warc.gz", [page(next(numbers), body) for body in pair])
    before = shutil.copytree(source, tmp_path / "before")
    manifest, plan = tmp_path / "m", tmp_path / "plan"
    run_json(capsys, "manifest", source, "-o", manifest, "--jobs", 1)
    how = ("--index", tmp_path / "index", "--compare", mode)
    run_json(capsys, "resolve", manifest, "-o", plan, *how)
    where = ["--in-place"] if in_place else ["--out", out]
    done = run_json(capsys, "rewrite", plan, *where, "--jobs", 1)
    new = source if in_place else out
    assert done["revisits"] == 4 - (2 - len(known))
    everywhere = bodies(old, new / "a.warc.gz", new / "b.warc.gz")[b"response"]
    assert sorted(everywhere) == sorted([ONE, OTHER])
    assert list(Against(before, [new], [old]).findings()) == []
    assert list(Collection([new], [old]).findings()) == []
