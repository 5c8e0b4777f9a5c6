"""The report of a deduplication: numbers by host."""

from __future__ import annotations

from pathlib import Path

from dedupindex.post_crawl.dedup_report import HostNumbers, by_host, host_lines
from dedupindex.runtime.duckdb import one_thread, write_parquet


def test_hosts_with_unusual_characters_are_counted(tmp_path: Path) -> None:
    spool, lines = tmp_path / "revisits.jsonl", tmp_path / "lines.parquet"
    urls = ('http://a"b/1', 'http://a"b/2', "http://c/")
    with one_thread() as database:
        rows = " UNION ALL ".join(f"SELECT '{url}' AS url" for url in urls)
        write_parquet(database, rows, lines)
    spool.write_bytes(b"".join(host_lines({'a"b': [1, 30], "c": [1, 5], "\t\n": [1, 2]})))
    most = [HostNumbers('a"b', 2, 1, 30), HostNumbers("c", 1, 1, 5)]
    rest = HostNumbers("1 others", 0, 1, 2)
    assert by_host(str(lines), spool, 2, "1GB") == [*most, rest]
