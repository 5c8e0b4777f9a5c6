"""Compressed documents are hashed as their content, if that is wanted."""

from __future__ import annotations

import bz2
import gzip
import os
from pathlib import Path

import pytest
import zstandard
from blake3 import blake3

from dedupindex.documents import hash_objects
from dedupindex.documents.dedup_shards import dedup_hashes
from tests.support.commands import typed
from tests.support.stores import web
from tests.unit.documents.test_documents import fill, hashed, kept, rows_of

TEXT = b"".join(b"line %d of a document\n" % number for number in range(60_000))
SHORT = b"another document"
ZSTD = zstandard.ZstdCompressor()
FILES = {
    "plain.txt": TEXT,
    "a.gz": gzip.compress(TEXT),
    "members.gz": gzip.compress(TEXT[:999]) + gzip.compress(TEXT[999:]),
    "b.bz2": bz2.compress(TEXT[:7]) + bz2.compress(TEXT[7:]),
    "c": ZSTD.compress(TEXT),  # by content, whatever the name
    "frames.zst": ZSTD.compress(TEXT[:99]) + ZSTD.compress(TEXT[99:]),
    "short.gz": gzip.compress(SHORT),
    "empty.gz": gzip.compress(b""),
    "empty": b"",
}
DAMAGED = {  # hashed as they are
    "cut.gz": gzip.compress(TEXT)[:-9], "cut.zst": ZSTD.compress(TEXT)[:-9],
    "cut.bz2": bz2.compress(TEXT)[:-9], "tail.gz": gzip.compress(SHORT) + b"tail",
    "magic": b"\x1f\x8b\x08", "BZh": b"BZh", "wrong.gz": b"\x1f\x8b\x08" + bytes(99),
}  # fmt: skip


def expected() -> dict[bytes, bytes]:
    contents = dict.fromkeys(FILES, TEXT) | {"short.gz": SHORT, "empty.gz": b"", "empty": b""}
    return {name.encode(): blake3(data).digest() for name, data in (contents | DAMAGED).items()}


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    fill(tmp_path / "in", {name.encode(): data for name, data in (FILES | DAMAGED).items()})
    for path in (tmp_path / "in").iterdir():
        os.utime(path, (1_000_000_000, 1_000_000_000))
    return tmp_path / "in"


def names_of(rows: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {path.rpartition(b"/")[2]: digest for path, digest in rows.items()}


@pytest.mark.parametrize("jobs", [1, 2])
def test_content_is_hashed_and_damage_as_it_is(documents: Path, tmp_path: Path, jobs: int) -> None:
    out = tmp_path / "out"
    _, problems = hashed(documents, out, form="csv", decompress=True, jobs=jobs)
    assert not problems and names_of(rows_of(out)) == expected()
    unique = dedup_hashes(str(out), tmp_path / "unique.csv")
    assert unique.duplicate_files == 5 + 1
    first = kept(tmp_path / "unique.csv")[blake3(TEXT).digest()]
    assert first == f"{documents}/a.gz"


def test_sizes_are_those_of_the_content(documents: Path, tmp_path: Path) -> None:
    hashed(documents, tmp_path / "out", decompress=True)
    unique = dedup_hashes(str(tmp_path / "out"), tmp_path / "unique.parquet")
    assert unique.bytes_saved == 5 * len(TEXT)


def test_later_runs_know_what_was_hashed_how(
    documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hashes of another kind are made again, in the same shards."""
    monkeypatch.setattr(hash_objects, "_COARSE", -(1 << 62))  # these files are new
    out, count = tmp_path / "out", len(FILES) + len(DAMAGED)
    runs = [
        hashed(documents, out, form="csv", decompress=one)[0]
        for one in (True, True, False, False, True)
    ]
    assert [run.known for run in runs] == [0, count, 0, count, 0]
    assert len({run.run for run in runs}) == 1
    assert names_of(rows_of(out)) == expected()


def test_objects_elsewhere(documents: Path, tmp_path: Path) -> None:
    with web(documents) as server:
        hashed(f"{server.url}/", tmp_path / "out", form="csv", decompress=True)
        assert names_of(rows_of(tmp_path / "out")) == expected()
        again, _ = hashed(f"{server.url}/", tmp_path / "out", form="csv", decompress=True)
    assert again.known == len(FILES) + len(DAMAGED)


def test_the_commands(tmp_path: Path) -> None:
    """A generated corpus of texts; half of them also compressed, which are copies then."""
    corpus = tmp_path / "corpus"
    typed("generate_corpus", corpus, "--size", "200KiB", "--mean", "2KiB", "--ending", ".txt")
    names = [path.name for path in corpus.iterdir()]
    assert names and all(name.endswith(".txt") for name in names)
    for path in sorted(corpus.iterdir())[::2]:
        path.with_suffix(".txt.gz").write_bytes(gzip.compress(path.read_bytes()))
    typed("hash_documents", corpus, tmp_path / "hashes", "--decompress")
    out, _ = typed("dedup_hashes", tmp_path / "hashes", tmp_path / "unique.csv")
    known = {blake3((corpus / name).read_bytes()).digest() for name in names}
    assert f"{len(known):,} unique of {len(names) + (len(names) + 1) // 2:,} files" in out
    typed("generate_corpus", tmp_path / "x", "--ending", "/x", status=4)


def test_a_corpus_has_copies_by_default(tmp_path: Path) -> None:
    out, _ = typed("generate_corpus", tmp_path / "corpus", "--size", "20MiB")
    assert int(out.split(";")[1].split()[0]) > 0
