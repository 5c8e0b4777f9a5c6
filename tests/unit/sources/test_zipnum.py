"""ZipNum clusters: their parts as sources, and the blocks of a prefix."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.capture import Capture, Problem
from dedupindex.errors import BadSource
from dedupindex.sources import expand, open_source, zipnum
from dedupindex.sources.zipnum import ZipNumBlock, ZipNumCluster, is_cluster, read_blocks
from tests.support.budgets import examples
from tests.support.clusters import write_cluster
from tests.support.stores import object_store, web
from tests.support.tables import BASE32


def row(key: str, second: int = 17) -> bytes:
    date = f"202611200914{second:02}"
    url = "http://" + key.partition(")")[0].replace("com,", "") + ".com/"
    return f"{key} {date} {url} text/html 200 {BASE32} - - 10 20 x.warc.gz".encode()


LINES = sorted(row(f"com,{name})/{number}") for name in "abcde" for number in range(10))


def captures(paths: list[str]) -> int:
    count = 0
    for path in paths:
        with open_source(path) as source:
            count += sum(isinstance(item, Capture) for item in source.items())
    return count


@pytest.mark.parametrize("locations", ["", "parts"])
@pytest.mark.parametrize("ended", [True, False])
def test_the_index_names_the_parts(tmp_path: Path, *, ended: bool, locations: str) -> None:
    index = write_cluster(tmp_path, LINES, ended=ended, locations=locations)
    parts = sorted(tmp_path.rglob("*.gz"))
    assert len(parts) == 5
    found = expand([str(index)]).paths
    assert found == list(map(str, parts))
    assert captures(found) == len(LINES)
    # a directory has the parts, too
    assert expand([str(tmp_path)]).paths == found
    assert expand([str(tmp_path), str(index)]).paths == found


def test_a_part_that_is_missing(tmp_path: Path) -> None:
    index = write_cluster(tmp_path, LINES)
    (tmp_path / "cdx-00002.gz").unlink()
    with pytest.raises(BadSource, match=r"names the part cdx-00002\.gz, which is not there"):
        expand([str(index)])


def test_what_is_no_cluster(tmp_path: Path) -> None:
    for name, text in {
        "a.idx": "something else\n",
        "b.idx": "com,a)/ 2014\tpart\tx\t5\n",
        "c.cdx": "com,a)/ 20140101000000\tpart\t0\t5\t1\n",
        "d.idx": "",
        "e.idx": "com,a)/ 2014\tpart\t0\t0\t1\n",  # an empty block
        "f.idx": f"com,a)/ 2014\tpart\t0\t{1 << 40}\t1\n",
        "g.idx": f"com,a)/ 2014\tpart\t{'9' * 30}\t5\t1\n",
        "h.idx": f"com,a)/ 2014\tpart\t{'9' * 3000}\t{'9' * 900}\t1\n",
    }.items():
        (tmp_path / name).write_text(text)
        assert not is_cluster(str(tmp_path / name))
    assert not is_cluster(str(tmp_path / "missing.idx"))
    index = tmp_path / "e.idx"
    index.write_text("com,a)/ 20140101000000\tpart\t0\t5\t1\r\nno block\n")
    assert is_cluster(str(index))
    with (
        ZipNumCluster(str(index)) as cluster,
        pytest.raises(BadSource, match="line that is not of a"),
    ):
        list(cluster.blocks())


def of_prefix(index: Path, prefix: bytes) -> list[bytes]:
    """Return the rows that begin with a prefix, of the blocks that can have them."""
    found = []
    with ZipNumCluster(str(index)) as cluster:
        blocks = list(cluster.blocks_of(prefix))
        for block in blocks:
            for _, data in read_blocks(cluster.path_of(block.part), [block], []):
                lines = gzip.decompress(data).splitlines()
                found += [line for line in lines if line.startswith(prefix)]
    assert len(set(blocks)) == len(blocks)
    return found


keys = st.text("abc,)/?", min_size=1, max_size=5)


@settings(max_examples=examples(150), deadline=None)
@given(
    names=st.lists(st.tuples(keys, st.integers(0, 3)), min_size=1, max_size=60),
    prefix=keys,
    window=st.sampled_from([90, 100, 400, 1 << 16]),
    rows=st.integers(1, 4),
)
def test_all_rows_of_a_prefix_are_found(
    names: list[tuple[str, int]],
    prefix: str,
    window: int,
    rows: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    lines = sorted(row(key, second) for key, second in names)
    index = write_cluster(tmp_path_factory.mktemp("cluster"), lines, rows=rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zipnum, "_WINDOW", window)
        expected = [line for line in lines if line.startswith(prefix.encode())]
        assert of_prefix(index, prefix.encode()) == expected


def test_few_blocks_are_read(tmp_path: Path) -> None:
    index = write_cluster(tmp_path, LINES)
    with ZipNumCluster(str(index)) as cluster:
        assert len(list(cluster.blocks_of(b"com,c)/5 "))) == 1
        assert len(list(cluster.blocks_of(b"com,c)"))) == 4  # of 10 rows, in blocks of 3
        assert len(list(cluster.blocks_of(b"com,"))) == len(list(cluster.blocks()))
        assert list(cluster.blocks_of(b"a")) == []


def test_an_index_that_is_not_sorted(tmp_path: Path) -> None:
    index = write_cluster(tmp_path, LINES)
    index.write_bytes(b"".join(reversed(index.read_bytes().splitlines(keepends=True))))
    with ZipNumCluster(str(index)) as cluster, pytest.raises(BadSource, match="not sorted"):
        list(cluster.blocks_of(b"com,zz"))


def test_adjacent_blocks_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "part"
    path.write_bytes(bytes(range(100)))
    blocks = [ZipNumBlock("p", offset, 10) for offset in (20, 0, 10, 50, 60, 70)]
    assert [(at, len(data)) for at, data in read_blocks(str(path), blocks, [])] == [
        (0, 30),
        (50, 30),
    ]
    monkeypatch.setattr(zipnum, "_MOST_RUN", 25)
    spans = [(at, len(data)) for at, data in read_blocks(str(path), blocks, [])]
    assert spans == [(0, 20), (20, 10), (50, 20), (70, 10)]
    assert b"".join(data for _, data in read_blocks(str(path), blocks[1:3], [])) == bytes(range(20))


def test_blocks_beyond_the_end_of_a_part(tmp_path: Path) -> None:
    """As in a copy that was interrupted: what is there is read, and the rest is a problem."""
    path = tmp_path / "part"
    blocks = [ZipNumBlock("p", offset, 10) for offset in (0, 10, 40)]
    for size, expected in (
        (50, []),
        (45, [40]),
        (40, [40]),
        (20, [20]),
        (10, [0, 10]),
        (0, [0, 0]),
    ):
        path.write_bytes(bytes(size))
        problems: list[Problem] = []
        found = b"".join(data for _, data in read_blocks(str(path), blocks, problems))
        assert len(found) == min(size, 20) + max(size - 40, 0)
        assert [problem.offset for problem in problems] == expected


def test_a_cluster_on_a_web_server(tmp_path: Path) -> None:
    write_cluster(tmp_path, LINES)
    with web(tmp_path) as server:
        found = expand([f"{server.url}/cluster.idx"])
        assert found.paths == [f"{server.url}/cdx-{part:05}.gz" for part in range(5)]
        assert found.remote.keys() == set(found.paths)
        assert captures(found.paths) == len(LINES)


@pytest.mark.parametrize("locations", ["", "parts"])
def test_a_cluster_in_an_object_store(tmp_path: Path, locations: str) -> None:
    """Its parts are found beside the index, or where a file beside it says."""
    write_cluster(tmp_path, LINES, locations=locations)
    with object_store() as make_bucket:
        bucket = make_bucket()
        for path in filter(Path.is_file, tmp_path.rglob("*")):
            bucket.put(f"cc/{path.relative_to(tmp_path)}", path.read_bytes())
        found = expand([f"{bucket.url}/cc/cluster.idx"])
        folder = "/".join(filter(None, [bucket.url, "cc", locations]))
        assert found.paths == [f"{folder}/cdx-{part:05}.gz" for part in range(5)]
        assert captures(found.paths) == len(LINES)
        with ZipNumCluster(f"{bucket.url}/cc/cluster.idx") as cluster:
            problems: list[Problem] = []
            blocks = list(cluster.blocks_of(b"com,c)/3"))
            data = b"".join(
                stored
                for block in blocks
                for _, stored in read_blocks(cluster.path_of(block.part), [block], problems)
            )
        assert problems == []
        assert LINES[23] in gzip.decompress(data).splitlines() and len(blocks) < 4
        bucket.client.delete_object(Bucket=bucket.name, Key=found.paths[2].split("/", 3)[3])
        with pytest.raises(BadSource, match="which is not there"):
            expand([f"{bucket.url}/cc/cluster.idx"])
