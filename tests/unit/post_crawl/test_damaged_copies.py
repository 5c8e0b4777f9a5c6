"""Damage beside whole records: replay tools may choose a damaged copy, and read no further."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from warcio.archiveiterator import ArchiveIterator
from warcio.exceptions import ArchiveLoadFailed

from dedupindex.cli import main
from dedupindex.errors import Damaged
from tests.support.rewriting import members
from tests.support.warc_cases import gz, response
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


def replayable(top: Path) -> dict[tuple[str, str], bytes]:
    """Return the body of each capture that warcio, which pywb uses, reads before any damage."""
    bodies, revisits = {}, {}
    for path in sorted(top.glob("*.warc*")):
        with open(path, "rb") as file, suppress(ArchiveLoadFailed):
            for one in ArchiveIterator(file):
                get = one.rec_headers.get_header
                place = get("WARC-Target-URI"), get("WARC-Date")
                if one.rec_type == "revisit":
                    named = get("WARC-Refers-To-Target-URI"), get("WARC-Refers-To-Date")
                    revisits[place] = named
                elif one.rec_type == "response":
                    bodies[place] = one.content_stream().read()
    found = {place: bodies[named] for place, named in revisits.items() if named in bodies}
    return {**found, **bodies}


def of_zeros(member: bytes) -> bytes:
    return b"\0" * 20 + member


def in_the_middle(member: bytes) -> bytes:
    return member[: len(member) // 2] + b"?????" + member[len(member) // 2 + 5 :]


def of_the_header(member: bytes) -> bytes:
    return b"WORC" + member[4:]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("ending", "pack", "damage"),
    [
        ("warc.gz", gz, in_the_middle),
        ("warc.gz", gz, of_zeros),
        ("warc", bytes, of_the_header),
        ("warc", bytes, of_zeros),
    ],
)
@pytest.mark.parametrize("first", [False, True])
def test_what_replayed_before_replays_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str, pack: Damaging,
    damage: Damaging, seed: int, first: bool,
) -> None:  # fmt: skip
    """One of three files is damaged within; it may have the earliest captures."""
    random, source, out = Random(seed), tmp_path / "in", tmp_path / "out"
    source.mkdir()
    payloads = [random.randbytes(3000) for _ in range(6)]
    for year in YEARS:
        found = []
        for number, body in enumerate(random.sample(payloads, 6)):
            at = {"Target_URI": b"http://b/%d/%d" % (year, number), "Date": b"%d-01-01T00:00:00Z"}
            at["Date"] %= year
            found.append(pack(response(body, number=10 * year + number, **at)))
        if (year == YEARS[0]) == first and year < YEARS[2]:
            found[2] = damage(found[2])
        (source / f"{year}.{ending}").write_bytes(b"".join(found))
    before = replayable(source)
    command = ["dedup", str(source), "--out", str(out), "--jobs", "1", "--json"]
    assert main(command) == Damaged.exit_status  # a file is left as it is
    report = json.loads(capsys.readouterr().out)
    assert len(before) == 14 and report["revisits"] >= 6
    assert replayable(out) == before


@pytest.mark.parametrize("form", ["gzip, a bit flipped", "zstd, cut"])
def test_a_copy_with_originals_behind_damage_only_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """The record before the damage is an original, the one behind it is none."""
    ending, pack, damage = FORMS[form]
    source, bodies = tmp_path / "in", [Random(seed).randbytes(50_000) for seed in range(3)]
    source.mkdir()

    def packed(number: int, year: int) -> bytes:
        at = {"Target_URI": b"http://b/%d" % number, "Date": b"%d-01-01T00:00:00Z" % year}
        return pack(response(bodies[number], number=year + number, **at))

    old = packed(0, 2020), in_the_middle(packed(1, 2020)), packed(2, 2020)
    (source / f"a.{ending}").write_bytes(b"".join(old))
    (source / f"b.{ending}").write_bytes(b"".join(packed(number, 2021) for number in range(3)))
    command = ["dedup", str(source), "--out", str(tmp_path / "out"), "--jobs", "1", "--json"]
    assert main(command) == Damaged.exit_status
    report = json.loads(capsys.readouterr().out)
    assert (report["revisits"], report["refused"]) == (1, {"damaged": 1, "unused-original": 1})
