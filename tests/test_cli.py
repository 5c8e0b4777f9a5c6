"""The commands as a user meets them: help, answers, errors, exit statuses, settings."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from dedupindex.cli import COMMANDS, group
from tests.captures import capture, sha1
from tests.conftest import MakeIndex
from tests.test_build import HEADER, cdx_line

ROOT = Path(__file__).parent.parent


def dedupindex(
    *words: object, status: int = 0, text: str | None = None, **env: str
) -> tuple[str, str]:
    """Runs a command; gives stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "dedupindex", *map(str, words)],
        input=text,
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


def commands() -> dict[str, click.Command]:
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in COMMANDS}  # type: ignore[attr-defined]
    return {name: command for name, command in found.items() if command is not None}


@pytest.mark.parametrize("name", list(COMMANDS))
def test_help_ends_with_examples_and_exit_statuses(name: str) -> None:
    page, talk = dedupindex(name, "--help")
    assert talk == ""
    assert page.startswith("Usage: dedupindex")
    assert "Examples:" in page
    assert f"bin/{name}" in page
    assert "Exit status:" in page
    assert "--config" in page
    assert "--json" in page


def test_the_settings_file_holds_every_default() -> None:
    content = tomllib.loads((ROOT / "conf" / "dedupindex.toml").read_text())
    text = (ROOT / "conf" / "dedupindex.toml").read_text()
    for name in ("index", "serve"):
        command = commands()[name]
        once = {"check", "stats", "compact", "copy_to", "mode", "as_json", "config", "help"}
        for param in command.params:
            if not isinstance(param, click.Option) or param.name in once:
                continue
            assert param.name is not None
            assert f"{param.name} =" in text, f"[{name}] {param.name} is not documented"
            if param.name in content[name]:
                default = param.get_default(click.Context(command))
                assert content[name][param.name] == default, f"[{name}] {param.name}"
        known = {param.name for param in command.params}
        assert set(content[name]) <= known


def test_command_line_over_environment_over_file(tmp_path: Path) -> None:
    (tmp_path / "x.cdx").write_text(
        HEADER
        + cdx_line(1, 1, 1, mime="text/html")
        + cdx_line(2, 2, 1, mime="image/png")
        + cdx_line(3, 3, 1, mime="video/mp4")
    )
    settings = tmp_path / "settings.toml"
    settings.write_text('[index]\nmime = "^text/"\nwhitelist = true\n')

    def added(name: str, *options: str, **env: str) -> int:
        out, _ = dedupindex("index", "--json", *options, tmp_path / "x.cdx", tmp_path / name, **env)
        return int(json.loads(out)["added"])

    assert added("default") == 2
    assert added("file", "--config", str(settings)) == 1
    env = {"DEDUPINDEX_CONFIG": str(settings), "DEDUPINDEX_INDEX_MIME": "^(text|image)/"}
    assert added("environment", **env) == 2
    assert added("line", "--mime", ".*", **env) == 3


@pytest.mark.parametrize(
    ("content", "word"),
    [("[index]\ncolour = 1\n", "colour"), ("mime = [", "not TOML"), ("mime = 1\n", "section")],
)
def test_a_bad_settings_file_is_refused(tmp_path: Path, content: str, word: str) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(content)
    _, talk = dedupindex("index", "--config", settings, "x", tmp_path / "i", status=4)
    assert word in talk


def test_index_json_is_one_object_that_adds_up(tmp_path: Path) -> None:
    (tmp_path / "x.cdx").write_text(HEADER + cdx_line(1, 1, 1) + cdx_line(2, 1, 2, mime="text/css"))
    out, talk = dedupindex("index", "--json", tmp_path / "x.cdx", tmp_path / "i")
    assert talk == ""
    tally = json.loads(out)
    assert tally["records"] == 2 == tally["added"] + sum(tally["refused"].values())
    assert {"containers", "records", "added", "replaced", "unchanged", "refused", "seconds"} <= set(
        tally
    )


def test_index_reads_standard_input_and_globs(tmp_path: Path) -> None:
    for day in (1, 2):
        (tmp_path / f"{day}.cdx").write_text(HEADER + cdx_line(day, day, day))
    text = (tmp_path / "1.cdx").read_text()
    out, _ = dedupindex("index", "--json", "-", tmp_path / "i", text=text)
    assert json.loads(out)["added"] == 1
    out, _ = dedupindex("index", "--json", tmp_path / "*.cdx", tmp_path / "j")
    assert json.loads(out)["added"] == 2


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["index", "nowhere.warc", "i"], 4, "nowhere.warc"),
        (["lookup", "no-index", "--digest", "x"], 6, "no index"),
        (["lookup", "no-index"], 2, "--digest or --batch"),
        (["report", "no-index", "--against", "x"], 6, "no index"),
        (["serve", "no-index", "--port", "0"], 6, "no index"),
        (["index", "--stats", "no-index"], 6, "no index"),
        (["nonsense"], 2, "No such command"),
        (["index", "-i", "spreadsheet", "x", "i"], 4, "spreadsheet"),
        (["index", "--also-digest", "crc32", "x", "i"], 4, "crc32"),
        (["index", "-m", "(", "x", "i"], 4, "regular expression"),
    ],
)
def test_errors_are_one_sentence(
    words: list[str], status: int, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").write_text(HEADER + cdx_line(1, 1, 1))
    out, talk = dedupindex(*words, status=status)
    assert out == ""
    assert sentence in talk


def test_damaged_input_is_named_and_the_status_is_not_0(tmp_path: Path) -> None:
    (tmp_path / "x.cdx").write_text(HEADER + cdx_line(1, 1, 1) + "bad \x1b[31m line\n")
    out, talk = dedupindex("index", "--json", tmp_path / "x.cdx", tmp_path / "i", status=7)
    assert json.loads(out)["added"] == 1
    assert f"warning: {tmp_path / 'x.cdx'} at 3" in talk
    assert "\x1b" not in talk


def test_lookup_answers_and_explains(make_index: MakeIndex) -> None:
    index = make_index([capture(1, b"http://example.com/a")])
    out, _ = dedupindex("lookup", index, "--digest", sha1(1), "--json")
    assert json.loads(out)["match"] == "digest"
    out, _ = dedupindex(
        "lookup", index, "--digest", sha1(1).raw.hex(), "--unlabelled", "sha1", "--explain",
        "--url", "http://example.com/a", "--max-age", "1s",
    )  # fmt: skip
    assert "no duplicate" in out
    assert "older than max_age" in out
    out, _ = dedupindex("lookup", index, "--digest", sha1(2), "--explain")
    assert "nothing has the digest" in out


def test_a_batch_answers_in_order_and_goes_on_after_a_bad_line(make_index: MakeIndex) -> None:
    index = make_index([capture(1, b"http://example.com/a"), capture(2, b"http://example.com/b")])
    lines = [
        json.dumps({"digest": str(sha1(2)), "url": "http://example.com/b"}),
        "not json",
        json.dumps({"digest": str(sha1(3))}),
        json.dumps({"digest": "sha1:x"}),
        json.dumps([]),
        json.dumps({"digest": str(sha1(1)), "strategy": "EXACT_URL", "url": "http://example.com/"}),
    ]
    out, _ = dedupindex("lookup", index, "--batch", "-", text="\n".join(lines) + "\n", status=4)
    answers = [json.loads(line) for line in out.splitlines()]
    assert len(answers) == len(lines)
    assert answers[0]["match"] == "exact_url"
    assert [answer.get("error", {}).get("code") for answer in answers] == [
        None, "bad_query", None, "bad_digest", "bad_query", None,
    ]  # fmt: skip
    assert answers[2] == answers[5] == {"duplicate": False}


def test_upkeep(make_index: MakeIndex, tmp_path: Path) -> None:
    index = make_index([capture(n, b"http://h%d.example/" % (n % 3)) for n in range(10)])
    out, _ = dedupindex("index", "--stats", index, "--json")
    stats = json.loads(out)
    assert (stats["captures"], stats["digests"], stats["hosts"]) == (10, 10, 3)
    assert stats["settings"]["mime"] == "^text/.*"
    assert sum(row["captures"] for row in stats["largest_hosts"]) == 10
    dedupindex("index", "--compact", index)
    dedupindex("index", "--copy", tmp_path / "copy", index)
    out, _ = dedupindex("index", "--check", tmp_path / "copy", "--json")
    assert json.loads(out) == {
        "ok": True, "problems": [], "captures": 10, "digests": 10, "containers": 0,
    }  # fmt: skip
    dedupindex("index", "--copy", tmp_path / "copy", index, status=5)
    assert "engine lmdb" in dedupindex("index", "--stats", index)[0]


def test_report_formats_agree(make_index: MakeIndex, tmp_path: Path) -> None:
    index = make_index([capture(1, b"http://h1.example/p1"), capture(2, b"http://other.example/")])
    crawl = tmp_path / "new.cdx"
    crawl.write_text(
        HEADER
        + cdx_line(1, 1, 9, "http://h1.example/p1")  # exact
        + cdx_line(2, 1, 9, "https://www.h1.example/P1/")  # canonical
        + cdx_line(3, 2, 9, "http://h2.example/")  # digest
        + cdx_line(4, 7, 9, "http://h2.example/new")  # new
        + cdx_line(5, 7, 9, "http://h2.example/new").replace(" 200 ", " 404 ")
    )
    out, _ = dedupindex("report", index, "--against", crawl, "--format", "json")
    content = json.loads(out)
    names = ("handled", "exact_url", "canonical_url", "digest", "new")
    assert [content[name] for name in names] == [4, 1, 1, 1, 1]
    assert content["not_handled"] == {"status": 1}
    strategies = content["filters"][0]["strategies"]
    assert [strategies[name]["captures"] for name in strategies] == [1, 2, 3]
    out, _ = dedupindex("report", index, "--against", crawl, "--format", "csv")
    rows = {row["host"]: row for row in csv.DictReader(io.StringIO(out))}
    assert rows["h1.example"]["exact_url"] == rows["h2.example"]["digest"] == "1"
    text, _ = dedupindex("report", index, "--against", crawl)
    for field in (
        "Total handled", "Duplicates found", "Bytes total", "Bytes duplicate", "New (no hits)",
        "Exact URL hits", "Canonical URL hits", "Digest hits", "Average lookup time",
        "Last lookup time", "URL indexed", "Digest indexed", "Canonical URL available",
        "Search strategy", "Digest in index includes hashing algorithm", "Records in index",
        "BloomFilter size", "BloomFilter hits",
    ):  # fmt: skip
        assert field in text, field


def test_report_tries_filters_side_by_side(make_index: MakeIndex, tmp_path: Path) -> None:
    index = make_index([capture(n, b"http://h.example/%d" % n) for n in (1, 2)])
    crawl = tmp_path / "new.cdx"
    crawl.write_text(
        HEADER
        + cdx_line(1, 1, 9, "http://h.example/1", mime="text/html")
        + cdx_line(2, 2, 9, "http://h.example/2")
    )
    out, _ = dedupindex(
        "report", index, "--against", crawl, "--json", "--mime", "", "--mime", "^text/",
        "--min-size", "0", "--min-size", "501", "--by", "mime",
    )  # fmt: skip
    content = json.loads(out)
    saved = [row["strategies"]["EXACT_URL"]["captures"] for row in content["filters"]]
    assert saved == [2, 0, 1, 0]
    assert {group["mime"] for group in content["groups"]} == {"text/html", "image/png"}


def test_a_report_never_counts_a_capture_as_its_own_duplicate(
    make_index: MakeIndex, tmp_path: Path
) -> None:
    crawl = tmp_path / "own.cdx"
    crawl.write_text(HEADER + cdx_line(1, 1, 5) + cdx_line(2, 1, 3))
    dedupindex("index", crawl, tmp_path / "i")
    out, _ = dedupindex("report", tmp_path / "i", "--against", crawl, "--json")
    content = json.loads(out)
    assert (content["handled"], content["digest"], content["new"]) == (2, 1, 1)


def test_a_refused_build_leaves_no_trace(tmp_path: Path) -> None:
    warcs = tmp_path / "warcs"
    warcs.mkdir()
    (warcs / "x.cdx").write_text(HEADER + cdx_line(1, 1, 1))
    (tmp_path / "empty").mkdir()
    (tmp_path / "junk").write_text("this is nothing that we know\n")
    target = tmp_path / "made" / "index"
    for words, status in (
        ([tmp_path / "nowhere", target], 4),
        ([tmp_path / "empty", target], 4),
        ([tmp_path / "junk", target], 4),
        (["--mime", "(", warcs, target], 4),
        (["--status", "x", warcs, target], 4),
        ([tmp_path / "junk", warcs], 5),
        ([warcs / "x.cdx", tmp_path / "junk"], 5),
    ):
        dedupindex("index", *words, status=status)
        assert not target.exists(), words
        assert [path.name for path in warcs.iterdir()] == ["x.cdx"], words
    _, talk = dedupindex("index", warcs, status=2)
    assert "give the sources, then the index" in talk


def test_explain_names_what_the_strategy_leaves_out(make_index: MakeIndex) -> None:
    index = make_index([capture(1, b"http://example.com/a")])
    out, _ = dedupindex(
        "lookup", index, "--digest", sha1(1), "--url", "http://example.com/b", "--explain",
        "--strategy", "EXACT_URL",
    )  # fmt: skip
    assert "no duplicate" in out
    assert "http://example.com/a  another URL" in out


def test_a_report_says_what_makes_its_figures_doubtful(tmp_path: Path) -> None:
    crawl = tmp_path / "own.cdx"
    crawl.write_text(HEADER + cdx_line(1, 1, 5).replace(" 500 ", " - "))
    dedupindex("index", crawl, tmp_path / "i")
    out, talk = dedupindex("report", tmp_path / "i", crawl)
    assert "make the report before bin/index --add" in talk
    assert "1 captures whose sizes the sources do not tell" in out


def test_a_copy_is_not_made_inside_the_index(make_index: MakeIndex) -> None:
    index = make_index([capture(1)])
    _, talk = dedupindex("index", "--copy", index / "copy", index, status=5)
    assert "inside the index" in talk


def test_an_index_that_cannot_be_written_can_be_read(make_index: MakeIndex) -> None:
    index = make_index([capture(1, b"http://example.com/a")])
    for path in index.glob("*-lock"):
        path.unlink()
    index.chmod(0o555)
    try:
        out, _ = dedupindex("lookup", index, "--digest", sha1(1), "--json")
    finally:
        index.chmod(0o755)
    assert json.loads(out)["duplicate"]
