"""The commands of docs/formats.md and docs/digest-filter.md, as they are typed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import duckdb

from tests.support.paths import ROOT

CDX = (
    " CDX N b a m s k r M S V g\n"
    "com,example)/b 20261120091417 http://example.com/b image/png 200 "
    "FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN - - 700 4711 crawl.warc.gz\n"
)


def test_each_command_works_as_typed(tmp_path: Path) -> None:
    pages = [(ROOT / "docs" / name).read_text() for name in ("formats.md", "digest-filter.md")]
    typed = re.findall(r"^    ((?:bin/|rm ).*)$", "\n".join(pages), re.MULTILINE)
    assert len(typed) == 6
    (tmp_path / "bin").symlink_to(ROOT / "bin")
    (tmp_path / "warcs").mkdir()
    shutil.copy(ROOT / "tests/data/warc/example.warc.gz", tmp_path / "warcs")
    (tmp_path / "crawl.cdx").write_text(CDX)
    duckdb.execute(
        f"""COPY (SELECT 'http://example.com/c' AS uri, '2WAXX5NUWNNCS2BDKCO5OVDQBJVNKIVV' AS sha1,
        TIMESTAMP '2026-11-20 09:14:17' AS captured_at) TO '{tmp_path}/captures.parquet'"""
    )
    of_table = next(line for line in typed if "captures.parquet" in line)
    script = "\n".join(
        line.replace(" my-index", " of-table") if line == of_table else line for line in typed
    )
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for name, url in (("my-index.cdx", b" http://example.com/b "), ("my-index.cdxj", b"/b")):
        assert url in (tmp_path / name).read_bytes()
    assert not (tmp_path / "my-index" / "filter").exists()
