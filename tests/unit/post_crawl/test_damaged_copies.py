"""A damaged copy of a record beside the whole one: replay tools may choose it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from dedupindex.cli import main
from dedupindex.errors import Damaged
from tests.support.rewriting import members
from tests.support.warc_cases import response
from tests.support.zstd_files import zst

BODY = Random(1).randbytes(50_000)
YEARS = (2020, 2021, 2022)

Damaging = Callable[[bytes], bytes]


def cut(whole: bytes) -> bytes:
    return whole[:-20_000]


def flipped(whole: bytes) -> bytes:
    return whole[:20_000] + bytes([whole[20_000] ^ 4]) + whole[20_001:]


def page(year: int) -> bytes:
    date = b"%d-01-01T00:00:00Z" % year
    return response(BODY, number=year, Target_URI=b"http://b/", Date=date)


FORMS: dict[str, tuple[str, Callable[[bytes], bytes], Damaging]] = {
    "gzip, cut": ("warc.gz", members, cut),
    "gzip, a bit flipped": ("warc.gz", members, flipped),
    "plain, cut": ("warc", bytes, cut),
    "zstd, cut": ("warc.zst", zst, cut),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["a-damaged", "z-damaged"])
@pytest.mark.parametrize(("damaged", "revisits"), [(2020, {2022: 2021}), (2021, {2022: 2020})])
def test_neither_original_nor_revisit_shares_its_second_with_a_damaged_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str, name: str, damaged: int,
    revisits: dict[int, int],
) -> None:  # fmt: skip
    ending, pack, damage = FORMS[form]
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for year in YEARS:
        (source / f"{year}.{ending}").write_bytes(pack(page(year)))
    (source / f"{name}.{ending}").write_bytes(damage(pack(page(damaged))))
    command = ["dedup", str(source), "--out", str(out), "--jobs", "1", "--json"]
    assert main(command) == Damaged.exit_status  # a file is left as it is
    assert json.loads(capsys.readouterr().out)["revisits"] == len(revisits)
    for copy, original in revisits.items():
        written = (out / f"{copy}.{ending}").stat().st_size
        assert written < 2000 < (out / f"{original}.{ending}").stat().st_size
