"""Documents in stores and on web servers: hashed as files are, or named."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from blake3 import blake3

from dedupindex.documents import hash_objects
from dedupindex.documents.dedup_shards import dedup_hashes
from dedupindex.errors import BadSource, StoreUnavailable
from dedupindex.object_store import glob, stores
from tests.support.commands import typed
from tests.support.stores import Bucket, Fault, web
from tests.unit.documents.test_documents import hashed, kept, rows_of

DATA = {
    "a.txt": b"one", "b.txt": b"two", "x/a.txt": b"one", "x/y/c d.txt": b"", "x/y/é": b"two",
    "x/y/large": bytes(9 << 20), "z[1]": b"3",
}  # fmt: skip


@pytest.fixture
def bucket(buckets: Callable[[], Bucket]) -> Bucket:
    made = buckets()
    for name, data in DATA.items():
        made.put(f"docs/{name}", data)
    made.put("docs/x/empty/", b"")  # what some tools put in the place of a directory
    made.server.requests.clear()
    return made


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries do not wait."""
    monkeypatch.setattr(stores, "_FIRST_WAIT", 0.0)


def hashes(url: str, top: Path) -> dict[bytes, bytes]:
    """As `rows_of`, of shards in CSV, which need no files to be there."""
    return {path.removeprefix(f"{url}/".encode()): digest for path, digest in rows_of(top).items()}


def expected(*names: str) -> dict[bytes, bytes]:
    return {name.encode(): blake3(DATA[name]).digest() for name in names or DATA}


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("docs", tuple(DATA)),
        ("docs/", tuple(DATA)),
        ("docs/**", tuple(DATA)),
        ("docs/*", ("a.txt", "b.txt", "z[1]")),
        ("docs/**/*.txt", ("a.txt", "b.txt", "x/a.txt", "x/y/c d.txt")),
        ("docs/?/*/[cl]*", ("x/y/c d.txt", "x/y/large")),
        ("docs/a.txt", ("a.txt",)),
        ("d*s/x/*", ("x/a.txt",)),
    ],
)
def test_a_bucket_is_hashed_like_a_directory(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, pattern: str,
    names: tuple[str, ...],
) -> None:  # fmt: skip
    monkeypatch.setattr(glob, "_PAGE", 2)
    jobs = 2 if pattern == "docs" else 1
    report, problems = hashed(f"{bucket.url}/{pattern}", tmp_path / "out", form="csv", jobs=jobs)
    assert not problems
    assert hashes(f"{bucket.url}/docs", tmp_path / "out") == expected(*names)
    assert report.bytes == sum(len(DATA[name]) for name in names)
    found = dedup_hashes(str(tmp_path / "out"), tmp_path / "unique.csv")
    first = {blake3(DATA[name]).digest(): name for name in sorted(names, reverse=True)}
    assert found.unique_files == len(first)
    assert kept(tmp_path / "unique.csv") == {
        digest: f"{bucket.url}/docs/{name}" for digest, name in first.items()
    }


@pytest.mark.parametrize("pattern", ["docs", "docs/**", "docs/x/*", "docs/x/**/*"])
def test_an_object_whose_name_ends_with_a_slash_is_named(
    tmp_path: Path, bucket: Bucket, pattern: str
) -> None:
    """fsspec cannot read it, and without content it only stands for a directory."""
    bucket.put("docs/x/", b"content")
    report, problems = hashed(f"{bucket.url}/{pattern}", tmp_path / "out", form="csv")
    [problem] = problems
    assert problem.container == f"{bucket.url}/docs/x/"
    assert "ends with a slash" in problem.message
    assert report.problems == 1
    assert report.rows == len(DATA) if pattern == "docs" else report.rows > 0


def gets(bucket: Bucket) -> list[str]:
    """The objects that were asked for, each time."""
    return [
        path.partition("/docs/")[2].partition("?")[0]
        for method, path, _ in bucket.server.requests
        if method == "GET" and "/docs/" in path.partition("?")[0]
    ]


def test_each_new_object_takes_one_request(tmp_path: Path, bucket: Bucket) -> None:
    hashed(f"{bucket.url}/docs/*.txt", tmp_path / "out", form="csv")
    assert sorted(gets(bucket)) == ["a.txt", "b.txt"]
    bucket.put("docs/b.txt", b"TWO")
    bucket.put("docs/new.txt", b"new")
    bucket.client.delete_object(Bucket=bucket.name, Key="docs/a.txt")
    bucket.server.requests.clear()
    report, _ = hashed(f"{bucket.url}/docs/*.txt", tmp_path / "out", form="csv")
    assert (report.num_files_processed, report.known, report.gone) == (2, 0, 1)
    again, _ = hashed(f"{bucket.url}/docs/*.txt", tmp_path / "out", form="csv")
    assert (again.num_files_processed, again.known) == (0, 2)
    assert sorted(gets(bucket)) == ["b.txt", "new.txt"]
    assert hashes(f"{bucket.url}/docs", tmp_path / "out") == {
        b"b.txt": blake3(b"TWO").digest(), b"new.txt": blake3(b"new").digest()
    }  # fmt: skip


def test_broken_downloads_are_repeated_and_refused_ones_named(
    tmp_path: Path, bucket: Bucket
) -> None:
    bucket.server.faults += [
        Fault("/large", 2, cut=1 << 20), Fault("/docs/b.txt", 99, status=403),
        Fault("/docs/a.txt", 2, status=503),
    ]  # fmt: skip
    report, problems = hashed(f"{bucket.url}/docs", tmp_path / "out", form="csv")
    assert [problem.container for problem in problems] == [f"{bucket.url}/docs/b.txt"]
    assert "cannot be read" in problems[0].message
    names = set(DATA) - {"b.txt"}
    assert hashes(f"{bucket.url}/docs", tmp_path / "out") == expected(*names)
    assert report.num_files_processed == len(names)


def test_an_object_replaced_while_it_is_hashed_is_noticed(tmp_path: Path, bucket: Bucket) -> None:
    """Between its two halves, or after it was read."""
    for name, size in (("y/large", 9 << 20), ("a.txt", 3)):
        again = partial(bucket.put, f"docs/x/{name}", b"!" * size)
        bucket.server.faults.append(Fault(f"/{name}", 1, then=again))
    _, problems = hashed(f"{bucket.url}/docs/x", tmp_path / "out", form="csv")
    assert {problem.message for problem in problems} <= {hash_objects.CHANGED}
    assert len(problems) == 2
    _, problems = hashed(f"{bucket.url}/docs/x", tmp_path / "out", form="csv")
    assert not problems
    found = hashes(f"{bucket.url}/docs", tmp_path / "out")
    assert found[b"x/a.txt"] == blake3(b"!!!").digest()


def test_a_listing_that_fails_ends_the_run(tmp_path: Path, bucket: Bucket) -> None:
    with pytest.raises(BadSource, match="nothing matches"):
        hashed(f"{bucket.url}/nowhere/*", tmp_path / "out")
    with pytest.raises(StoreUnavailable, match="no-such-bucket"):
        hashed("s3://no-such-bucket/*", tmp_path / "out")
    _, err = typed("hash_documents", "s3://no-such-bucket/*", tmp_path / "out", status=4)
    assert "no-such-bucket" in err
    with pytest.raises(BadSource, match="credentials"):
        hashed("https://host.test/x?sig=secret", tmp_path / "out")


def test_a_web_server(tmp_path: Path) -> None:
    for name in ("a.txt", "x/b.txt"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    with web(tmp_path / "in") as server:
        hashed(f"{server.url}/", tmp_path / "out", form="csv")
        assert hashes(server.url, tmp_path / "out") == {
            b"a.txt": blake3(b"a.txt").digest(), b"x/b.txt": blake3(b"x/b.txt").digest()
        }  # fmt: skip
        hashed(f"{server.url}/x/b.txt", tmp_path / "one", form="csv")
        assert hashes(server.url, tmp_path / "one").keys() == {b"x/b.txt"}
    with web(tmp_path / "in", sized=False) as server:
        _, problems = hashed(f"{server.url}/", tmp_path / "none")
        assert len(problems) == 2 and "does not state its size" in problems[0].message
