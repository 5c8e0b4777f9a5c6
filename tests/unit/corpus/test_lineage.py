"""Corpora say how they were made, and are made once more by what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dedupindex import __version__
from dedupindex.cli import main
from dedupindex.corpus import Corpus
from dedupindex.corpus.lineage import KEY, changed_sources, read_lineage
from dedupindex.errors import BadInput
from tests.support.commands import typed
from tests.unit.corpus.test_corpus import news
from tests.unit.post_crawl.test_index_originals import BODIES, index_of, write

TITLE = "payload.string.html.title"
FORMATS = ["o.jsonl", "o.jsonl.gz", "o.jsonl.zst", "o.parquet"]


def words(name: str) -> list[str]:
    return ["--lineage"] if ".jsonl" in name else []


@pytest.mark.parametrize("name", FORMATS)
def test_a_corpus_is_made_once_more(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = news(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    typed(
        "corpus", source.relative_to(tmp_path), "--where", "status == 200", "--latest", "url",
        "--matching", TITLE, "(?i)[a-z]", "--enrich", "html.title,mime", "--enrich", "language",
        "-o", name, *words(name),
    )  # fmt: skip
    made = read_lineage(Path(name))
    assert made["software"] == f"dedupindex/{__version__}"
    assert made["directory"] == str(tmp_path)
    assert made["revisits"] == "resolve"
    assert made["steps"][0] == "where('status == 200')"
    assert made["steps"][-2:] == ["enrich('html.title', 'mime')", "enrich('language')"]
    (fields,) = made["sources"]
    assert (fields["name"], fields["bytes"]) == (str(source), source.stat().st_size)
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = name.replace("o.", "again.")
    _, talk = typed("corpus", "--again", Path("..") / name, "-o", again)
    assert "warning" not in talk
    assert read_lineage(Path(again))["arguments"] == made["arguments"]
    first, second = (list_of(tmp_path / name), list_of(Path(again).absolute()))
    assert first == second


def list_of(path: Path) -> list[Any]:
    if path.suffix == ".parquet":
        import duckdb

        return duckdb.execute(f"SELECT * FROM '{path}' ORDER BY ALL").fetchall()
    from tests.unit.corpus.test_corpus_output import lines

    return lines(path)[1:]


def test_a_warc_says_it_in_its_warcinfo(tmp_path: Path) -> None:
    write(tmp_path / "in/y.warc.gz", 2, BODIES)
    write(tmp_path / "in/é z.warc.gz", 3, BODIES, "b")
    typed(
        "corpus", tmp_path / "in", "--where", "hostname == 'b.test'", "-o", tmp_path / "o.warc.gz"
    )
    made = read_lineage(tmp_path / "o.warc.gz")
    (fields,) = made["sources"]
    assert (fields["name"], fields["files"]) == (str(tmp_path / "in"), 2)
    assert list(changed_sources(made)) == []
    typed("corpus", "--again", tmp_path / "o.warc.gz", "-o", tmp_path / "again.warc.gz")
    typed("verify", tmp_path / "again.warc.gz")
    first, second = (
        [line.split('"length"')[0] for line in (tmp_path / name).read_text().splitlines()]
        for name in ("o.cdxj", "again.cdxj")
    )
    assert first == second and len(first) == 3
    with open(tmp_path / "in/y.warc.gz", "ab") as stream:
        stream.write(b"\0")
    _, talk = typed("corpus", "--again", tmp_path / "o.warc.gz", "-o", tmp_path / "third.jsonl")
    assert f"{tmp_path / 'in'} has changed since the corpus was made" in talk


def test_a_corpus_of_a_program_says_its_steps(tmp_path: Path) -> None:
    corpus = Corpus.from_cdx(news(tmp_path)).filter(TITLE).map(TITLE, "up", str.upper)
    corpus.first("digest").save_as_parquet(tmp_path / "o.parquet")
    made = read_lineage(tmp_path / "o.parquet")
    assert made["steps"] == [
        f"filter('{TITLE}', builtins.bool)", f"map('{TITLE}', 'up', a function)",
        "first('digest')",
    ]  # fmt: skip
    _, talk = typed(
        "corpus", "--again", tmp_path / "o.parquet", "-o", tmp_path / "x.jsonl",
        status=BadInput.exit_status,
    )  # fmt: skip
    assert "was made by a program" in talk


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b'{"record":{}}\n'), ("b.jsonl", b""), ("c.jsonl.gz", b"no gzip"),
        ("d.parquet", b"no parquet"), ("e.warc.gz", b"no gzip"), ("f.jsonl.zst", b"no zstd"),
        ("g.jsonl", json.dumps({KEY: 5}).encode()), ("h.jsonl", b"[1]"),
    ],
)  # fmt: skip
def test_other_files_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput):
        read_lineage(tmp_path / name)
    with pytest.raises(BadInput):
        read_lineage(tmp_path / "none" / name)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("arguments", 5),
        ("arguments", ["--again", "o.jsonl"]),
        ("sources", [5]),
        ("sources", [{"bytes": 1}]),
        ("directory", None),
    ],
)
def test_a_lineage_that_was_written_by_others_is_checked(
    tmp_path: Path, field: str, value: object
) -> None:
    made = {"arguments": ["--", "x"], "sources": [{"name": "x"}], "directory": "/"}
    path = tmp_path / "o.jsonl"
    path.write_text(json.dumps({KEY: made}))
    assert read_lineage(path) == made
    path.write_text(json.dumps({KEY: {**made, field: value}}))
    with pytest.raises(BadInput, match="does not say how it was made"):
        read_lineage(path)


def test_an_index_that_was_added_to_has_changed(tmp_path: Path) -> None:
    index = index_of(tmp_path, write(tmp_path / "a.warc.gz", 1, BODIES))
    assert main(["corpus", str(index), "-o", str(tmp_path / "o.jsonl"), "--lineage"]) == 0
    made = read_lineage(tmp_path / "o.jsonl")
    assert not list(changed_sources(made))
    added = write(tmp_path / "b.warc.gz", 2, [b"four" * 99], "b")
    assert main(["index", "--add", str(added), str(index)]) == 0
    assert list(changed_sources(made)) == [f"{index} has changed since the corpus was made"]


@pytest.mark.parametrize("words", [["--map", TITLE, "n", "os:system"], ["--out", "x"], ["-ox"]])
def test_what_a_file_must_not_decide_is_refused(tmp_path: Path, words: list[str]) -> None:
    typed("corpus", news(tmp_path), "--lineage", "-o", tmp_path / "o.jsonl")
    made = read_lineage(tmp_path / "o.jsonl")
    made["arguments"] = [*words, *made["arguments"]]
    (tmp_path / "foreign.jsonl").write_text(json.dumps({KEY: made}) + "\n")
    argv = ["corpus", "--again", tmp_path / "foreign.jsonl", "-o", tmp_path / "again.jsonl"]
    _, talk = typed(*argv, status=BadInput.exit_status)
    assert "type the command yourself" in talk and str(tmp_path) in talk
    assert not (tmp_path / "again.jsonl").exists()
