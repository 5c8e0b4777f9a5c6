"""bin/cover: its output, its report, and updates."""

from __future__ import annotations

import csv
import gzip
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.cli import main
from dedupindex.cover import document_store, exact, result
from dedupindex.cover.find_cover import CoverOptions, CoverReport, run, settings_of
from dedupindex.cover.load_documents import ArchiveOptions, gather, lines_of
from dedupindex.cover.relation import parse
from dedupindex.runtime.duckdb import Database, open_database, write_parquet
from tests.support.budgets import examples
from tests.support.corpora import Page, archive, html
from tests.support.covering import (
    DOCUMENTS,
    JOURNALIST,
    RELATIONS,
    all_pairs,
    lines,
    made,
    uncovered,
)
from tests.support.paths import ROOT
from tests.unit.cover.test_cover import VERSIONS, page

EXAMPLE = ROOT / "conf" / "cover" / "journalist.txt"


def written(path: Path, documents: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in documents))
    return path


def cover(*words: str | Path) -> int:
    return main(["cover", *map(str, words)])


def test_results_and_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written(tmp_path / "pages.jsonl", VERSIONS)
    out = tmp_path / "cover.jsonl"
    status = cover(
        source, "--relation", EXAMPLE, "-o", out, "--what-if", "0.5,0.95",
        "--html", tmp_path / "page.html", "--list", tmp_path / "list.csv",
    )  # fmt: skip
    assert status == 0
    output = capsys.readouterr().out
    assert "kept: 3 of 5; covered: 2 (40.0 %), 300 B of 1.1 kB in files (28.6 %)" in output
    assert "this is optimal: no cover costs less" in output
    assert "5 URLs with 1.00 documents each (standard deviation 0.00, at most 1)" in output
    assert "shingles of 5 terms: 157, of them 50 distinct" in output
    assert re.search(r"^ +1 +4 +1 +20.0 % .* 9.5 %  0.95$", output, re.MULTILINE)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["id"] for row in rows] == [one["id"] for one in VERSIONS]
    assert rows[0] == {
        "id": "v1", "url": "http://a.example/v1", "timestamp": "20200101000000", "bytes": 100,
        "component": rows[2]["component"], "kept": False, "covered_by": "v3",
        "covered_by_others": 0,
        "why": {"containment(k=5)": 0.8611, "shingles(k=5)": [36, 40, 31]},
    }  # fmt: skip
    with open(tmp_path / "list.csv", newline="") as stream:
        assert [(row["id"], row["covered_by"]) for row in csv.DictReader(stream)] == [
            ("v1", "v3"), ("v2", "v3"),
        ]  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cover.jsonl", "list.csv", "page.html", "pages.jsonl",
    ]  # fmt: skip


def test_as_json_and_compressed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "pages.jsonl.gz"
    source.write_bytes(gzip.compress(b"".join(line + b"\n" for _, line in lines(VERSIONS))))
    assert cover(source, "--relation", JOURNALIST, "-o", tmp_path / "out", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["documents"], report["kept"], report["covered"], report["bytes_covered"]) == (
        5, 3, 2, 300,
    )  # fmt: skip
    assert report["minimal"] and report["hosts"][0]["host"] == "a.example"


def test_lines_of_a_corpus(tmp_path: Path) -> None:
    record = {"originalUrl": "http://a.example/", "timestamp": "2020-01-02T00:00:00Z",
              "mime": "text/html", "status": 200, "digest": "-", "compressedSize": 77}  # fmt: skip
    text = VERSIONS[0]["text"]
    corpus = [
        {"record": record, "payload": {"string": {"text": text, "html": {"title": "t"}}}},
        {"record": {**record, "timestamp": "2020-01-03T00:00:00Z"},
         "payload": {"string": {"_": text, "html": {"main": text}}}},
        {"record": {**record, "timestamp": "2020-01-01T00:00:00Z", "mime": "-"},
         "payload": {"string": text}},
    ]  # fmt: skip
    outcome = made(corpus, JOURNALIST, tmp_path)
    assert outcome.kept == {"20200103000000/http://a.example/"}
    assert {row["bytes"] for row in outcome.rows} == {77}


def test_an_archive_with_revisits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The later capture is a revisit of the earlier one, which it covers and cannot be without."""
    source = ROOT / "tests" / "data" / "warc" / "example.warc.gz"
    out, listed = tmp_path / "cover.jsonl", tmp_path / "list.csv"
    words = [source, "--relation", EXAMPLE, "-o", out, "--list", listed]
    assert cover(*words, "--where", "status == 200", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["covered"], report["listed"], report["needed"]) == (1, 0, 1)
    first, second = map(json.loads, out.read_text().splitlines())
    assert first["covered_by"] == first["needed_by"] == second["id"]
    assert (first["offset"], first["bytes"]) == (784, 1228)
    assert first["container"] == str(source)
    assert listed.read_text().count("\n") == 1
    assert cover(*words, "--where", "timestamp > '2017-03-06T04:02'") == 0
    assert "kept: 1 of 1; covered: 0" in capsys.readouterr().out
    other = tmp_path / "other.jsonl"
    assert cover(out, "--relation", EXAMPLE, "-o", other, "--where", "status == 200") == 4
    assert "are of archives" in capsys.readouterr().err


def test_pairs_of_real_pages_are_those_of_brute_force(tmp_path: Path) -> None:
    """Samples of several crawlers: real HTML, and files of the same captures."""
    source = str(ROOT / "tests" / "data" / "warc")
    files, _, report, _ = gather([source], ArchiveOptions(), tmp_path, lambda seen: None)
    documents = [
        {**json.loads(line), "id": str(number)} for number, (_, line) in enumerate(lines_of(files))
    ]
    assert report.problems and len(documents) > 20
    for text in (JOURNALIST, "dice(k=2) > 0.3 and size(a) <= size(b)", "jaccard(k=1) >= 0.15"):
        relation = parse(text)
        outcome = made(documents, relation, tmp_path)
        assert outcome.pairs == all_pairs(documents, relation) != set()
        assert not uncovered({one["id"] for one in documents}, outcome.kept, outcome.pairs)


def test_cover_of_corpus_lines_equals_cover_of_the_warc(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ROOT / "tests" / "data" / "warc" / "example.warc.gz"
    lines_ = tmp_path / "pages.jsonl.zst"
    corpus = ["corpus", str(source), "--enrich", "html.title,text", "-o", str(lines_)]
    assert main(corpus) == 0
    found = []
    for number, one in enumerate((source, lines_)):
        out = tmp_path / f"{number}.jsonl"
        assert cover(one, "--relation", JOURNALIST, "-o", out) == 0
        rows = map(json.loads, out.read_text().splitlines())
        found.append([(row["id"], row["bytes"], row["kept"], row.get("why")) for row in rows])
    assert found[0] == found[1]
    capsys.readouterr()
    lines_.write_bytes(lines_.read_bytes()[:-9])
    assert cover(lines_, "--relation", JOURNALIST, "-o", tmp_path / "out") == 4
    assert f"{lines_} cannot be read: it ends within" in capsys.readouterr().err


def test_text_of_the_web_is_escaped_on_the_page(tmp_path: Path) -> None:
    evil = "http://a.example/<script>alert(1)</script>&\"'\u202e"
    documents = [{**one, "url": evil} for one in VERSIONS[:3]]
    source = written(tmp_path / "pages.jsonl", documents)
    shown = tmp_path / "page.html"
    assert cover(source, "--relation", JOURNALIST, "-o", tmp_path / "o", "--html", shown) == 0
    text = shown.read_text()
    assert "<script" not in text and "\u202e" not in text and "&lt;script&gt;" in text
    assert text.count("<circle") == 3 and 'class="covers"' in text
    assert "://" not in re.sub(r"http://a\.example", "", text)  # nothing is fetched


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--relation", "containment(k=5) >= 7"], 4, "above 0 and at most 1"),
        (["--relation", JOURNALIST, "--what-if", "0.5,2"], 2, "takes thresholds"),
        (["--relation", JOURNALIST, "--what-if", "x"], 2, "takes thresholds"),
        (["--relation", JOURNALIST, "--cost", "siz"], 4, "there is no siz here"),
        (["--relation", JOURNALIST, "--update", "none.jsonl"], 4, "there is no state of a run"),
        (["--relation", JOURNALIST, "--memory", "lots"], 2, "lots is no amount of memory"),
        (["--relation", JOURNALIST, "--exact-seconds", "nan"], 2, "'nan' is not a number"),
        (
            ["--relation", "none.txt"],
            4,
            "--relation none.txt: there is no such file, and it is not",
        ),
        (["--relation", "conf/cover (copy)/r.txt"], 4, "there is no such file"),
        (["--relation", __file__ + "x"], 4, "there is no such file"),
    ],
)
def test_wrong_usage(
    words: list[str], status: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = written(tmp_path / "pages.jsonl", VERSIONS)
    assert cover(source, "-o", tmp_path / "out", *words) == status
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_lines_of_a_cdx_that_are_no_captures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cdx = archive(tmp_path, Page("http://a.org/", 1, html("a", "some words of a page")))
    words = ["cover", str(cdx), "--relation", JOURNALIST, "-o", str(tmp_path / "o.jsonl")]
    assert main(words) == 0
    with cdx.open("a") as stream:
        stream.write("this is not a capture\n")
    capsys.readouterr()
    assert main(words) == 7
    assert capsys.readouterr().err == "CDX lines skipped, not captures: 1\n"


def test_nothing_is_written_into_an_index(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive(tmp_path / "a", Page("http://a.org/", 1, html("a"), file="a.warc.gz"))
    warc, index = str(tmp_path / "a" / "a.warc.gz"), tmp_path / "index"
    assert main(["index", "--whitelist", "--mime", ".*", warc, str(index)]) == 0
    before = {path: path.read_bytes() for path in index.iterdir() if path.is_file()}
    capsys.readouterr()
    for name in ("index.json", "new.jsonl"):
        out = ["-o", str(index / name)]
        for words in (
            ["cover", warc, "--relation", JOURNALIST, *out, "--originals", str(index)],
            ["cover", str(index), "--relation", JOURNALIST, *out],
            ["corpus", str(index), *out],
        ):
            assert main(words) == 4, words
            assert "is in the directory of an index" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in index.iterdir() if path.is_file()} == before


def test_a_source_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "none.jsonl"
    assert cover(there, "--relation", JOURNALIST, "-o", tmp_path / "out") == 4
    assert f"{there} cannot be read" in capsys.readouterr().err


def test_without_the_solver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                            capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setattr(exact, "find_spec", lambda name: None)
    source = written(tmp_path / "pages.jsonl", VERSIONS)
    words = [source, "--relation", JOURNALIST, "-o", tmp_path / "out"]
    assert cover(*words) == 4
    assert "bin/setup cover" in capsys.readouterr().err
    assert cover(*words, "--exact-seconds", "0") == 0


def test_only_covers_load_the_solver() -> None:
    code = (
        "import sys, dedupindex.cli.index, dedupindex.cli.serve, dedupindex.cli.lookup, "
        "dedupindex.cli.corpus, dedupindex.cli.cover, server.run; "
        "sys.exit(any(name in sys.modules for name in ('highspy', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


# --- updates -----------------------------------------------------------------------------------


def test_an_update_reports_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "cover.jsonl"
    first = written(tmp_path / "first.jsonl", VERSIONS)
    assert cover(first, "--relation", EXAMPLE, "-o", out, "--updatable") == 0
    newer = page("v4", "20200201000000", VERSIONS[2]["text"] + " and on", bytes=10)
    more = written(tmp_path / "more.jsonl", [newer, VERSIONS[0]])
    capsys.readouterr()
    words = [more, "--relation", EXAMPLE, "--update", out, "-o", out]
    assert cover(*words, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["documents"], report["fresh"], report["repeated"]) == (6, 1, 1)
    assert report["changed"] == {"covered_now": 1, "kept_again": 0}
    rows = {row["id"]: row for row in map(json.loads, out.read_text().splitlines())}
    assert {name for name, row in rows.items() if row["kept"]} == {"v4", "alone", "else"}
    assert rows["v1"]["covered_by"] == "v4"
    assert cover(*words) == 0  # once more: there is nothing new
    again = {row["id"]: row for row in map(json.loads, out.read_text().splitlines())}
    assert again == rows


def test_an_update_counts_each_capture_without_text_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, bare = tmp_path / "cover.jsonl", [page(f"bare{n}", "20200101000000", "") for n in range(3)]
    first = written(tmp_path / "first.jsonl", [*VERSIONS, bare[0], bare[0]])
    rest = written(tmp_path / "rest.jsonl", [*bare, bare[1]])
    rule = ["--relation", EXAMPLE, "-o", out, "--json"]
    capsys.readouterr()
    for words, empty in (([first, "--updatable"], 1), ([rest, "--update", out], 2)):
        assert cover(*words, *rule) == 0
        assert json.loads(capsys.readouterr().out)["empty"] == empty


def test_an_update_of_another_relation_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "cover.jsonl"
    source = written(tmp_path / "first.jsonl", VERSIONS)
    assert cover(source, "--relation", EXAMPLE, "-o", out, "--updatable") == 0
    before = out.read_bytes()
    other = JOURNALIST.replace("0.7", "0.8")
    assert cover(source, "--relation", other, "--update", out, "-o", out) == 5
    assert "is of another relation" in capsys.readouterr().err
    assert out.read_bytes() == before


@pytest.mark.parametrize("dies_in", ["write_parquet", "write_file", "shutil.rmtree"])
def test_an_update_that_is_killed_leaves_a_state(
    dies_in: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it stops the state is that from before or that of all, and an update takes it up."""
    out = tmp_path / "cover.jsonl"
    first = written(tmp_path / "first.jsonl", VERSIONS[:2])
    more = written(tmp_path / "more.jsonl", VERSIONS[2:])
    assert cover(first, "--relation", EXAMPLE, "-o", out, "--updatable") == 0
    words = [more, "--relation", EXAMPLE, "--update", out, "-o", out]

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"dedupindex.cover.document_store.{dies_in}", dies)
        assert cover(*words) != 0
    assert document_store.read_state(tmp_path / "cover.jsonl.state")["next"] in (2, 5)
    assert cover(*words) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["id"] for row in rows if row["kept"]} == {"v3", "alone", "else"}
    assert len(list((tmp_path / "cover.jsonl.state").iterdir())) == 2


@pytest.mark.parametrize("first", [[], ["--approximate"]])
def test_an_update_takes_over_only_pairs_that_were_found_in_the_same_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], first: list[str]
) -> None:
    out = tmp_path / "cover.jsonl"
    source = written(tmp_path / "first.jsonl", VERSIONS)
    assert cover(source, "--relation", EXAMPLE, "-o", out, "--updatable", *first) == 0
    before = out.read_bytes()
    words = [source, "--relation", EXAMPLE, "--update", out, "-o", out]
    then = [] if first else ["--approximate"]
    assert cover(*words, *then) == 5
    assert "--approximate" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert cover(*words, *first) == 0


@settings(max_examples=examples(8), deadline=None)
@given(DOCUMENTS.filter(bool), st.integers(0, 9), RELATIONS)
def test_an_update_is_as_good_as_a_run_on_all(
    documents: list[dict[str, Any]], cut: int, text: str
) -> None:
    relation = parse(text)
    first, more = documents[: min(cut, len(documents) - 1) or 1], documents
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        state = home / "state"

        def finish(database: Database, report: CoverReport) -> None:
            assert list(result.rows(database, relation))
            document_store.save(database, state, relation.ks, settings_of(relation, CoverOptions()))

        run(lines(first), relation, CoverOptions(), home, finish)
        updated = made(more, relation, home, before=state)
        whole = made(documents, relation, home)
    assert updated.pairs == whole.pairs
    assert len(updated.kept) == len(whole.kept)
    assert not uncovered({one["id"] for one in documents}, updated.kept, whole.pairs)


@pytest.mark.parametrize(
    "words",
    [
        ["-o", "pages.jsonl"],
        ["-o", "new.jsonl", "--list", "pages.jsonl"],
        ["-o", "new.jsonl", "--html", "new.jsonl"],
        ["-o", "my.warc.gz"],
    ],
)
def test_nothing_that_is_read_is_written_over(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "pages.jsonl", VERSIONS)
    (tmp_path / "my.warc.gz").write_bytes(b"an archive")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert cover("pages.jsonl", "--relation", EXAMPLE, *words) == 4
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_results_are_compressed_as_their_names_say(tmp_path: Path, ending: str) -> None:
    first = written(tmp_path / "first.jsonl", VERSIONS[:3])
    rest = written(tmp_path / "rest.jsonl", VERSIONS[3:])
    plain, out = tmp_path / "out.jsonl", tmp_path / f"out.jsonl.{ending}"
    beside = {"--list": tmp_path / "list.csv"}
    packed = {name: path.with_name(f"{path.name}.{ending}") for name, path in beside.items()}
    rule = ["--relation", EXAMPLE]
    assert cover(first, *rule, "-o", out, "--updatable", *chain(*packed.items())) == 0
    assert cover(first, *rule, "-o", plain, *chain(*beside.items())) == 0
    assert unpacked(out) == plain.read_bytes() != out.read_bytes()
    for name, path in packed.items():
        assert unpacked(path) == beside[name].read_bytes() != path.read_bytes()
    assert cover(rest, *rule, "--update", out, "-o", out) == 0
    assert cover(first, rest, *rule, "-o", plain) == 0
    assert unpacked(out) == plain.read_bytes()


def unpacked(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    found: bytes = zstandard.ZstdDecompressor().stream_reader(data).read()
    return found


def test_errors_of_a_relation_name_the_position(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = written(tmp_path / "pages.jsonl", VERSIONS)
    for relation, part in (
        ("jaccard >= 0.5 and hostname == hostname", "at character"),
        ("same title", "at character"),
        ("none.txt", "there is no such file"),
    ):
        assert cover(source, "--relation", relation, "-o", tmp_path / "out") == 4
        assert part in capsys.readouterr().err
    words = [source, "--relation", JOURNALIST, "-o", tmp_path / "out", "--memory", "-5GB"]
    assert cover(*words) == 2
    assert "-5GB is no amount of memory: write a number with MB or GB" in capsys.readouterr().err
    assert main(["corpus", "-"]) == 4
    assert "a corpus cannot be read from stdin" in capsys.readouterr().err


_RATED = {"v1": 9, "v2": 1, "v3": 2, "alone": 1, "else": 0.5}


@pytest.mark.parametrize("name", ["q.csv", "q.csv.gz", "q.jsonl.zst", "q.parquet", "url.ndjson"])
def test_quality_comes_from_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    key = "url" if name.startswith("url") else "id"
    rows = {one[key]: _RATED[one["id"]] for one in VERSIONS} | {"unknown": 7}
    text = "".join(f"{value},{quality}\n" for value, quality in rows.items())
    if ".csv" not in name:
        named = [{"quality": quality, key: value} for value, quality in rows.items()]
        text = "".join(json.dumps(one) + "\n" for one in named)
    data = (f"{key},quality\n{text}" if ".csv" in name else text).encode()
    pack = {".gz": gzip.compress, ".zst": zstandard.compress}.get(Path(name).suffix, bytes)
    (tmp_path / name).write_bytes(pack(data))
    if name.endswith(".parquet"):
        (tmp_path / "rows.jsonl").write_bytes(data)
        with open_database(tmp_path, "1GB", 1) as (database, _):
            write_parquet(database, f"FROM read_json('{tmp_path}/rows.jsonl')", tmp_path / name)
    source, out = written(tmp_path / "pages.jsonl", VERSIONS), tmp_path / "out.jsonl"
    relation = "jaccard(k=5) >= 0.6 and hostname(a) == hostname(b)"
    words = [source, "--relation", relation, "-o", out, "--quality", tmp_path / name]
    assert cover(*words, "--cost", "1 / quality") == 0
    assert "quality: 5 of 5 documents" in capsys.readouterr().out
    kept = {row["id"] for row in map(json.loads, out.read_text().splitlines()) if row["kept"]}
    assert kept == {"v1", "alone", "else"}  # by default the latest is kept
    assert cover(*words) == 4
    assert "takes a --cost that names it" in capsys.readouterr().err
    assert cover(*words[:-1], tmp_path / "none.csv", "--cost", "quality") == 4
    assert f'there is no file "{tmp_path}/none.csv"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("q.csv", "id,quality\nv1,good\n", "the quality good of v1 is no number"),
        ("q.csv", "id,quality\nv1,1\nv1,2\n", "the quality 1 of v1 is one of several"),
        ("q.csv", "name,quality\nv1,1\n", "needs the columns quality, and id or url; it has name"),
        ("q.csv", "id,quality\nv2,1\n", "that of v1 is not known"),
        ("q.csv", "id,quality\nv1,nan\n", "the quality nan of v1 is no number"),
        ("q.txt", "id,quality\nv1,1\n", "its name must end with .csv"),
        ("q.parquet", "id,quality\nv1,1\n", "q.parquet"),
        ("q.jsonl", "no JSON", "q.jsonl"),
    ],
)  # fmt: skip
def test_tables_that_state_no_quality(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    source, out = written(tmp_path / "pages.jsonl", VERSIONS), tmp_path / "out.jsonl"
    words = [source, "--relation", JOURNALIST, "-o", out, "--quality", tmp_path / name]
    assert cover(*words, "--cost", "quality") == 4
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_documents_kept_for_hosts_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = written(tmp_path / "pages.jsonl", VERSIONS)
    words = [source, "--relation", JOURNALIST, "-o", tmp_path / "out", "--cost", "size"]
    assert cover(*words, "--min-per-host", "9") == 0
    output = capsys.readouterr().out
    assert "2 of them are kept only for --min-per-host" in output
    assert "this is optimal: no cover costs less" in output  # all that there are
    assert cover(*words) == 0
    assert "--min-per-host" not in capsys.readouterr().out
