"""What is asked of an object store for results, and whose journals a state has."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from dedupindex.errors import SettingsConflict
from dedupindex.object_store import facts
from dedupindex.post_crawl.rewrite.result_place import (
    StoredPath,
    StorePlace,
    bind_state,
    store_of_state,
)
from dedupindex.post_crawl.rewrite.undo_directory import (
    DIRECTORY,
    mark_uncorrected,
    uncorrected,
)
from dedupindex.verify.file_bytes import UnreadableFile
from tests.support.commands import typed
from tests.support.rewriting import content
from tests.support.stores import Bucket, Server
from tests.support.warc_cases import gz, response

BLOCK = 1 << 16


def ranges(server: Server) -> list[tuple[int, int]]:
    """Return offset and length of the ranges that were requested, in order."""
    asked = [re.fullmatch(r"bytes=(\d+)-(\d+)", value) for _, _, value in server.requests]
    return [(int(one[1]), int(one[2]) - int(one[1]) + 1) for one in asked if one]


def test_each_block_of_an_original_file_is_requested_once(buckets: Callable[[], Bucket]) -> None:
    bucket, random = buckets(), Random(3)
    data = random.randbytes(20 * BLOCK + 17)
    bucket.put("noise", data)
    with closing(StoredPath(f"{bucket.url}/noise").open(scattered=True)) as file:
        for _ in range(400):
            offset, size = random.randrange(len(data) + 9), random.choice((1, 4, 9000, 3 * BLOCK))
            assert file.read(offset, size) == data[offset : offset + size]
    asked = ranges(bucket.server)
    assert len(asked) <= 21 and sum(length for _, length in asked) <= len(data)
    with closing(StoredPath(f"{bucket.url}/noise").open(scattered=True)) as file:
        bucket.server.requests.clear()
        for offset in range(0, len(data), 30_000):  # as in one large record
            assert file.read(offset, 30_000) == data[offset : offset + 30_000]
    assert [length // BLOCK for _, length in ranges(bucket.server)] == [1, 2, 4, 8, 5]


def test_an_object_that_becomes_shorter_cannot_be_read(buckets: Callable[[], Bucket]) -> None:
    bucket = buckets()
    bucket.put("noise", bytes(3 * BLOCK))
    with closing(StoredPath(f"{bucket.url}/noise").open(scattered=True)) as file:
        assert file.read(5, 5) == bytes(5)
        bucket.put("noise", bytes(BLOCK))
        assert file.read(9, 5) == bytes(5)  # as it was when it was opened
        with pytest.raises(UnreadableFile):
            file.read(2 * BLOCK, 5)


def test_an_object_is_not_read_with_facts_that_it_no_longer_has(
    buckets: Callable[[], Bucket],
) -> None:
    bucket = buckets()
    path = StoredPath(bucket.put("noise", bytes(BLOCK)))
    known = StoredPath(path.address, facts(path.address))
    assert known == path
    bucket.server.requests.clear()
    with closing(known.open(scattered=True)) as file:
        assert file.read(5, 5) == bytes(5)
    assert len(bucket.server.requests) == 1
    bucket.put("noise", bytes(9) + b"1" * (BLOCK - 9))
    with closing(known.open(scattered=True)) as file, pytest.raises(UnreadableFile):
        file.read(5, 5)


def test_verification_reads_little_more_than_the_files(
    buckets: Callable[[], Bucket], tmp_path: Path
) -> None:
    bucket, random, order = buckets(), Random(4), list(range(100))
    bodies = [random.randbytes(6000) for _ in order]
    (tmp_path / "warcs").mkdir()
    for year, name in enumerate(("a", "b"), 2020):
        records = (
            response(
                bodies[at], number=1000 * year + at, Target_URI=b"http://a.test/%d" % at,
                Date=b"%d-01-01T00:00:00Z" % year,
            )
            for at in order
        )  # fmt: skip
        (tmp_path / f"warcs/{name}.warc.gz").write_bytes(b"".join(map(gz, records)))
        random.shuffle(order)  # so that originals are not read in the order of their file
    typed("dedup", tmp_path / "warcs", "--out", tmp_path / "smaller", "--jobs", "1")
    size = 0
    for top in ("warcs", "smaller"):
        for name, data in content(tmp_path / top).items():
            bucket.put(f"{top}/{name}", data)
            size += len(data)
    bucket.server.requests.clear()
    _, said = typed("verify", "--against", f"{bucket.url}/warcs", f"{bucket.url}/smaller")
    assert "100 revisits rebuilt" in said
    asked = ranges(bucket.server)
    assert len(asked) < 60 and sum(length for _, length in asked) < 2.2 * size


def test_a_state_of_a_run_that_wrote_no_revisit_may_get_another_address(tmp_path: Path) -> None:
    (tmp_path / DIRECTORY).mkdir()
    bind_state(tmp_path, "s3://bucket/wrong")
    mark_uncorrected(tmp_path, {"a.warc.gz"})
    (tmp_path / DIRECTORY / ".uncorrected.4711.part").touch()  # of a run that was killed
    bind_state(tmp_path, "s3://bucket/right")
    assert store_of_state(tmp_path) == "s3://bucket/right" and not uncorrected(tmp_path)
    (tmp_path / DIRECTORY / "0.jsonl").touch()
    with pytest.raises(SettingsConflict):
        bind_state(tmp_path, "s3://bucket/wrong")


def test_which_objects_are_there(buckets: Callable[[], Bucket], tmp_path: Path) -> None:
    bucket = buckets()
    names = ["x.warc", "a/b %.warc", "a/b/\u00e9.warc", "none/x.warc", "a/none"]
    for name in names[:3]:
        bucket.put(f"out/{name}", b"1")
    place = StorePlace(f"{bucket.url}/out/", tmp_path)
    bucket.server.requests.clear()
    assert place.existing(names) == set(names[:3])
    assert len(bucket.server.requests) == 1
    assert StorePlace(f"{bucket.url}/other", tmp_path).existing(names) == set()
