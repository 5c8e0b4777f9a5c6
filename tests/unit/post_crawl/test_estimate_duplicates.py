"""Duplicates of a set are estimated from a sample of its files, with the error of that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.cli import main
from dedupindex.errors import BadInput
from dedupindex.post_crawl.estimate_duplicates import (
    DuplicateEstimate,
    SampledFile,
    draw,
    estimate_duplicates,
)
from dedupindex.post_crawl.manifest.parquet import TYPES
from dedupindex.sources.warc_files import SourceFile
from tests.support.budgets import examples
from tests.support.rewriting import members
from tests.support.warc_cases import response

FILES = 200
COPIES = {  # how many copies a payload has
    "none": lambda random: 1,
    "two": lambda random: 2,
    "mixed": lambda random: random.choice([1, 1, 2, 5]),
    "geometric": lambda random: 1 + min(int(random.expovariate(0.5)), 100),
    "heavy": lambda random: min(int(random.paretovariate(1.0)), 2 * FILES),
}


class Population:
    """Records of `FILES` files: file, payload and bytes of each; copies are anywhere."""

    def __init__(self, kind: str, seed: int) -> None:
        random, self.rows = Random(seed), list[tuple[int, int, int]]()
        payload = duplicates = 0
        while len(self.rows) < 20 * FILES:
            count, size = COPIES[kind](random), random.choice([100, 1000, 5000])
            self.rows += [(random.randrange(FILES), payload, size) for _ in range(count)]
            duplicates += (count - 1) * size
            payload += 1
        self.sizes = [0] * FILES
        for file, _, size in self.rows:
            self.sizes[file] += size
        self.share = duplicates / sum(self.sizes)

    def estimate(self, count: int, seed: int) -> DuplicateEstimate:
        drawn = Random(seed).sample(range(len(self.sizes)), count)
        columns = ", ".join(f'"{name}" {kind}' for name, kind in TYPES.items())
        with closing(duckdb.connect()) as database:
            database.execute(f"CREATE TABLE lines ({columns})")
            chosen = set(drawn)
            values = ", ".join(
                f"({file + 1}, 'sha1:{payload}', {size}, '')"
                for file, payload, size in self.rows if file in chosen
            )  # fmt: skip
            database.execute(
                "INSERT INTO lines (container, digest, stored, not_rewritable_reason) "
                f"VALUES {values}"
            )
            sample = [SampledFile(file + 1, self.sizes[file]) for file in drawn]
            return estimate_duplicates(database, sample, len(self.sizes), sum(self.sizes))


@settings(max_examples=examples(25))
@given(st.sampled_from(sorted(COPIES)), st.sampled_from([10, 20, 60, 150]), st.integers(0, 1 << 30))
def test_the_share_of_the_set_is_in_the_interval(kind: str, count: int, seed: int) -> None:
    population = Population(kind, seed)
    found = population.estimate(count, seed + 1)
    # Hypothesis looks for the worst case, so five standard errors instead of two.
    assert found.at_least - 5 * found.at_least_error <= population.share + 1e-9
    assert population.share <= found.at_most + 5 * found.at_most_error + 1e-9
    assert found.at_least <= found.at_most + 1e-9
    assert 0 <= found.low <= found.high <= 1


@pytest.mark.parametrize("kind", ["none", "two", "mixed", "heavy"])
def test_the_interval_has_the_share_nineteen_times_of_twenty(kind: str) -> None:
    inside, errors = 0, []
    for seed in range(20):
        population = Population(kind, seed)
        found = population.estimate(30, seed)
        inside += found.low - 1e-9 <= population.share <= found.high + 1e-9
        errors.append(found.at_most - population.share)
        # The share within the sample alone would be far too low.
        if kind in ("two", "mixed"):
            assert found.at_least < population.share / 2
    assert inside >= 18
    assert abs(sum(errors) / len(errors)) < 0.15
    if kind in ("none", "two"):  # all payloads have equally many copies: no bias
        assert abs(sum(errors) / len(errors)) < 0.03


FILES_OF = {  # how many files there are, and in how many each file is, as a whole
    "pairs": (40, 2), "pairs of many": (400, 2), "threes": (60, 3), "ten": (200, 10),
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(FILES_OF))
@pytest.mark.parametrize("count", [2, 3, 5, 10, 25])
def test_the_interval_of_a_small_sample_of_whole_copies_has_the_share(
    kind: str, count: int
) -> None:
    """Files of two crawls that are the same: of most samples no two files have anything."""
    files, copies = FILES_OF[kind]
    population = Population("none", 1)
    inside = 0
    for seed in range(20):
        random = Random(seed)
        payloads = [at // copies for at in range(files)]
        random.shuffle(payloads)
        weights = [random.choice([900, 1000, 1100]) for _ in range(files // copies)]
        population.sizes = [weights[one] for one in payloads]
        population.rows = [(file, one, weights[one]) for file, one in enumerate(payloads)]
        found = population.estimate(count, seed)
        inside += found.low <= 1 - 1 / copies <= found.high
        assert found.low < found.high
    assert inside >= 19


@pytest.mark.parametrize("count", [2, 5, 20, 60])
def test_no_repeat_in_a_sample_does_not_say_that_there_is_none(count: int) -> None:
    population = Population("none", 3)
    found = population.estimate(count, 3)
    assert (found.repeats, found.low, found.at_least) == (0, 0, 0)
    assert f"{found.at_most:.3f} {found.low:.3f}" == "0.000 0.000"  # and not -0.000
    assert found.high > {2: 0.98, 5: 0.9, 20: 0.6, 60: 0.1}[count]


def test_duplicates_within_files_are_no_repeats_of_files() -> None:
    population = Population("none", 4)
    population.rows = [(file, file, 500) for file in range(FILES) for _ in range(2)]
    population.sizes = [1000] * FILES
    found = population.estimate(50, 4)
    assert found.repeats == 0 and 0.3 < found.low < 0.5 < found.high


@pytest.mark.parametrize("kind", sorted(COPIES))
def test_a_sample_of_all_files_is_exact(kind: str) -> None:
    population = Population(kind, 1)
    found = population.estimate(FILES, 1)
    assert found.at_most == pytest.approx(population.share)
    assert found.at_least == pytest.approx(population.share)
    assert found.at_most_error == found.at_least_error == 0


def test_what_is_drawn() -> None:
    files = [SourceFile("/x", f"{at:03}", 1, 0, 0, 0) for at in range(100)]
    assert len(draw(files, "10%", 0)) == len(draw(files, "10", 0)) == 10
    assert draw(files, "10%", 0) == draw(files[::-1], "10%", 0) != draw(files, "10%", 1)
    assert len(set(draw(files, "1000", 0))) == 100
    for size in ("1", "0.4%", "x", "2.5", "-3", "0", "100.5%", "150%"):
        with pytest.raises(BadInput, match="--sample"):
            draw(files, size, 0)


@pytest.fixture
def harvest(tmp_path: Path) -> Iterator[Path]:
    """Forty files of ten captures each; half of the payloads are in the next file, too."""
    source = tmp_path / "in"
    source.mkdir()
    for at in range(40):
        bodies = [Random(10 * at + one).randbytes(1500) for one in range(5)]
        bodies += [Random(10 * (at - at % 2) + 5 + one).randbytes(1500) for one in range(5)]
        records = [
            response(
                body, number=100 * at + one, Target_URI=b"http://a.test/%d-%d" % (at, one),
                Date=b"20%02d-01-01T00:00:%02dZ" % (at + 1, one),
            )
            for one, body in enumerate(bodies)
        ]  # fmt: skip
        (source / f"{at:02}.warc.gz").write_bytes(members(*records))
    yield source


def test_the_command(harvest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = ["dedup", str(harvest), "--out", str(out), "--dry-run"]
    assert main([*words, "--sample", "50%", "--seed", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["files"], found["sampled_files"], found["sampled_captures"]) == (40, 20, 200)
    assert found["low"] < 0.25 < found["high"] and found["at_most_error"] > 0
    assert main([*words, "--sample", "40"]) == 0
    text = capsys.readouterr().out
    assert "400 captures, 100 of them duplicates" in text
    assert "duplicates in all files: 25.0% of the bytes" in text and "too low" not in text
    assert main([*words, "--sample", "2"]) == 0
    text = capsys.readouterr().out
    assert "this cannot tell how much would be saved: too few files were drawn" in text
    assert "-0.0" not in text
    assert main([*words, "--json"]) == 0  # the sample need not be read again
    whole = json.loads(capsys.readouterr().out)
    assert whole["revisits"] == 100
    assert not out.exists()
    assert main(["dedup", str(harvest), "--out", str(out), "--sample", "9"]) == 2
    for size in ("abc", "200%", "0", "0%"):
        assert main([*words, "--sample", size]) == 2


def test_a_sample_of_all_files_has_the_counts_and_problems_of_a_dry_run(
    harvest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (harvest / "no-archive.warc.gz").write_bytes(b"nothing of the kind" * 50)
    (harvest / "new.warc.gz.open").write_bytes(b"not copied")
    damaged = bytearray((harvest / "00.warc.gz").read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    (harvest / "00.warc.gz").write_bytes(damaged)
    words = ["dedup", str(harvest), "--out", str(tmp_path / "out"), "--dry-run", "--json"]
    assert main(words) == 7
    whole = json.loads(capsys.readouterr().out)
    assert main([*words, "--sample", "100%", "--work", str(tmp_path / "work")]) == 7
    estimated = json.loads(capsys.readouterr().out)
    for name in ("files", "bytes_before"):
        assert estimated[name] == whole[name], name
    assert estimated["sampled_captures"] == whole["captures"]
    assert estimated["sampled_files"] == 42
    main(["verify", str(harvest), "--json"])
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[-1])["records"] == whole["records"] and whole["damaged"] > 0

    def order(problem: dict[str, object]) -> str:
        return str(problem)

    assert sorted(estimated["problems"], key=order) == sorted(whole["problems"], key=order)


def test_what_an_earlier_sample_has_read_is_not_counted(
    harvest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is the damage in it named."""
    damaged = bytearray((harvest / "00.warc.gz").read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    (harvest / "00.warc.gz").write_bytes(damaged)
    words = ["dedup", str(harvest), "--out", str(tmp_path / "out"), "--dry-run", "--json"]
    ten = ["--sample", "10", "--seed", "1"]
    assert main([*words, *ten, "--work", str(tmp_path / "fresh")]) == 0
    fresh = json.loads(capsys.readouterr().out)
    assert fresh["sampled_captures"] == 100
    used = ["--work", str(tmp_path / "used")]
    assert main([*words, "--sample", "100%", *used]) == 7
    capsys.readouterr()
    assert main([*words, *ten, *used]) == 0
    assert json.loads(capsys.readouterr().out) == fresh
