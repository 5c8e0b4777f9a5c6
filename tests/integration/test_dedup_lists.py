"""``bin/dedup --cdxj --offsets``: where the records of the results are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dedupindex.warc.random_access import ExactRecord
from tests.integration.test_dedup import Dedup, dedup, source
from tests.support.rewriting import members
from tests.support.warc_cases import revisit, sha1

__all__ = ["dedup", "source"]  # fixtures


@pytest.mark.parametrize("in_place", [False, True])
def test_a_cdxj_and_a_map_of_the_results(
    source: Path, tmp_path: Path, dedup: Dedup, in_place: bool
) -> None:
    """With all captures, also revisits that were there before and those of files not rewritten."""
    before = revisit(
        number=901, Target_URI=b"http://other.test/again", Payload_Digest=sha1(b"x"),
        Refers_To_Target_URI=b"http://other.test/",
    )  # fmt: skip
    (source / "before.warc.gz").write_bytes(members(before))
    how = ["--in-place"] if in_place else ["--out", tmp_path / "out"]
    lists = ["--cdxj", tmp_path / "all.cdxj", "--offsets", tmp_path / "moved.tsv"]
    done = dedup(source, *how, *lists)
    lines = (tmp_path / "all.cdxj").read_bytes().splitlines()
    assert lines == sorted(lines) and len(lines) == done["captures"] + 1
    found: dict[bytes, int] = {}
    for line in lines:
        row = json.loads(line.split(b" ", 2)[2])
        path = (source if in_place else tmp_path / "out") / row["filename"]
        with open(path, "rb", buffering=0) as file:
            head = ExactRecord(file, int(row["offset"]), int(row["length"])).head
        assert head.fields[b"WARC-Target-URI"] == row["url"].encode()
        assert (head.type == b"revisit") == (row["mime"] == "warc/revisit")
        found[head.type] = found.get(head.type, 0) + 1
    assert found == {
        b"revisit": done["revisits"] + 1,
        b"response": len(lines) - 1 - done["revisits"],
    }
    moved = (tmp_path / "moved.tsv").read_text().splitlines()[1:]
    assert {line.split("\t")[0] for line in moved} == {"c.warc", "deep/b.warc.gz"}
