"""The manifest: its lines, its directory."""

from __future__ import annotations

from pathlib import Path

import duckdb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dedupindex.manifest.line import Line
from dedupindex.manifest.spool import Spool
from dedupindex.manifest.store import lines_of

texts = st.binary(max_size=40) | st.sampled_from([b"", b"\x01", b"a\tb", b'"', b"\xff\x00\r\n"])
codings = st.builds(lambda a, b: a + b"\n" + b, texts, texts)
longs = st.integers(0, 2**63 - 1)
lines = st.builds(
    Line, st.integers(0, 2**31 - 1), longs, longs, texts, texts, texts, texts, texts,
    st.integers(0, 3), st.binary(max_size=32), longs, st.integers(0, 999), codings,
    st.integers(0, 2**64 - 1), st.sampled_from(["", "arc"]), st.sampled_from(["", "empty"]),
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(lines, max_size=8))
def test_lines_come_back_from_parquet_as_they_were(tmp_path: Path, written: list[Line]) -> None:
    target = tmp_path / "[lines]*.parquet"
    with duckdb.connect(config={"threads": 1}) as database:
        spool = Spool(target)
        spool.add(written)
        spool.finish(database)
        assert list(lines_of(database, target)) == written
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
