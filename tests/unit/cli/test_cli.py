"""The commands as a user meets them: help, answers, errors, exit statuses, settings."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import click
import pytest

from dedupindex import __version__
from dedupindex.cli import COMMANDS, group, main
from dedupindex.cli.common import settings_of
from dedupindex.index import ENGINES, open_index
from dedupindex.indexer.pipeline import ProgressUpdate
from dedupindex.lookup.savings import COLUMNS, DuplicationReport, ReportFilter
from dedupindex.sources import SourceOptions, open_source
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1
from tests.support.commands import typed
from tests.support.paths import ROOT
from tests.unit.indexer.test_pipeline import HEADER, cdx_line
from tests.unit.post_crawl.test_index_originals import write


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
    page, messages = typed(name, "--help")  # tests/project starts each command with it
    assert messages == ""
    assert page.startswith(f"Usage: bin/{name} ")
    assert "Examples:" in page
    assert f"bin/{name}" in page
    assert typed(name, "--version") == (f"dedupindex {__version__}\n", "")
    assert "Exit status:" in page
    assert "130 interrupted · 141 output closed by its reader" in page
    assert "--config" in page
    assert "--json" in page


ONCE = {
    "token": {"add", "remove"},
    "lookup": {"digest", "url", "batch", "not_record", "not_date"},
    "report": {"against"},
}


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_settings_file_holds_every_default(name: str) -> None:
    text = (ROOT / "conf" / "dedupindex.toml").read_text()
    section = re.split(r"^\[([\w-]+)\]$", text, flags=re.MULTILINE)
    documented = dict(zip(section[1::2], section[2::2], strict=True))[name]
    content = tomllib.loads(text)[name]
    settings = settings_of(commands()[name])
    for setting in settings.keys() - {"json"} - ONCE.get(name, set()):
        assert re.search(rf"^(# )?{setting} = ", documented, re.MULTILINE), setting
        if setting in content:
            default = settings[setting].get_default(click.Context(commands()[name]))
            value = content[setting]
            assert (tuple(value) if isinstance(value, list) else value) == default, setting
    assert set(content) <= set(settings)
    typed(name, "--config", ROOT / "conf" / "dedupindex.toml", "--nonsense", status=2)


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
        out, _ = typed("index", "--json", *options, tmp_path / "x.cdx", tmp_path / name, **env)
        return int(json.loads(out)["added"])

    assert added("default") == 2
    assert added("file", "--config", str(settings)) == 1
    env = {"DEDUPINDEX_CONFIG": str(settings), "DEDUPINDEX_INDEX_MIME": "^(text|image)/"}
    assert added("environment", **env) == 2
    assert added("line", "--mime", ".*", **env) == 3


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("[index]\ncolour = 1\n", "colour"),
        ("mime = [", "not TOML"),
        ("mime = 1\n", "section"),
        (
            "[idx]\nadd = true\n",
            "no section [idx]; did you mean index?",
        ),
        ("[index]\nstats = true\n", "no setting 'stats'"),
        ("[index]\njobs = -1\n", "settings.toml: [index] jobs: -1"),
    ],
)
def test_a_bad_settings_file_is_refused(tmp_path: Path, content: str, word: str) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(content)
    _, messages = typed("index", "--config", settings, "x", tmp_path / "i", status=4)
    assert word in messages


def test_index_json_is_one_object_that_adds_up(tmp_path: Path) -> None:
    (tmp_path / "x.cdx").write_text(HEADER + cdx_line(1, 1, 1) + cdx_line(2, 1, 2, mime="text/css"))
    out, messages = typed("index", "--json", tmp_path / "x.cdx", tmp_path / "i")
    assert messages == ""
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
        (["index", "--compact", "no-index"], 6, "no index"),
        (
            ["index", "--check", "--stats", "i"],
            2,
            "give one of --check, --stats, --compact, --copy",
        ),
        (["index", "--copy", "c", "--compact", "i"], 2, "give one of --check, --stats"),
        (["report", "i", "x", "--json", "--format", "csv"], 2, "either --json or --format csv"),
        (["nonsense"], 2, "there is no command"),
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
    out, messages = dedupindex(*words, status=status)
    assert out == ""
    assert sentence in messages
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_damaged_input_is_named_and_the_status_is_not_0(tmp_path: Path) -> None:
    (tmp_path / "x.cdx").write_text(HEADER + cdx_line(1, 1, 1) + "bad \x1b[31m line\n")
    out, messages = typed("index", "--json", tmp_path / "x.cdx", tmp_path / "i", status=7)
    assert json.loads(out)["added"] == 1
    assert f"warning: {tmp_path / 'x.cdx'} at 3" in messages
    assert "\x1b" not in messages


def test_an_action_takes_no_options_of_a_build(make_index: MakeIndex) -> None:
    index = str(make_index([capture(1)]))
    for more in (["--crawl", "x"], ["--mime", ".*"], ["--whitelist"]):
        _, messages = typed("index", "--stats", *more, index, status=2)
        assert "no effect with --stats" in messages
    typed("index", "--stats", "--json", index)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_empty_index_can_be_made_and_added_to(engine: str, tmp_path: Path) -> None:
    index, source = tmp_path / "index", tmp_path / "x.cdx"
    source.write_text(HEADER + cdx_line(1, 1, 1))
    for _ in range(2):  # again it changes nothing
        out, _ = typed("index", "--empty", "--engine", engine, "--status", "2xx", index)
        assert "is an empty index" in out
    assert typed("lookup", index, "--digest", sha1(1), status=10) == ("no duplicate\n", "")
    _, messages = typed("index", "--empty", source, index, status=2)
    assert "--empty takes an INDEX only" in messages
    out, _ = typed("index", "--add", "--engine", engine, "--status", "2xx", source, index)
    assert out.endswith(f"next: bin/serve {index}    or: bin/index --stats {index}\n")
    _, messages = typed("index", "--empty", "--status", "2xx", index, status=5)
    assert "there is an index" in messages
    with closing(open_index(index)) as opened, opened.view() as view:
        assert view.counts().captures == 1


STATED = (
    ["--whitelist", "--mime", ".*"],
    ["--etag", "--status", "2xx", "--min-size", "5", "--keep", "latest"],
    ["--also-digest", "sha256,md5", "--revisit-annotation", "dup", "--by-url"],
    ["--no-canonicalized"],
    ["--no-url-index"],
    ["--engine", "whoosh"],
)


@pytest.mark.parametrize("action", ["--add", "--replace"])
@pytest.mark.parametrize("words", STATED, ids=lambda words: words[-1])
def test_adding_uses_the_settings_of_the_index(
    words: list[str], action: str, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    for day in (1, 2):
        text = HEADER + cdx_line(day, day, day, mime="text/html" if ".*" in words else "image/png")
        (tmp_path / f"{day}.cdx").write_text(text)
    typed("index", *words, tmp_path / "1.cdx", index)
    identity = json.loads((index / "index.json").read_text())
    out, _ = typed("index", "--json", action, tmp_path / "2.cdx", index)
    assert json.loads(out)["added"] == 1
    now = json.loads((index / "index.json").read_text())
    assert (now["settings"], now["engine"]) == (identity["settings"], identity["engine"])


def test_adding_with_other_settings_is_refused(tmp_path: Path) -> None:
    index, source, settings = tmp_path / "index", tmp_path / "x.cdx", tmp_path / "settings.toml"
    source.write_text(HEADER + cdx_line(1, 1, 1))
    typed("index", "-w", "-m", ".*", "--json", source, index)
    add = ("index", "--add", source, index)
    typed(*add, "-m", ".*")
    _, messages = typed(*add, "-m", "^image/", "-e", status=5)
    assert "to add to it leave --etag, --mime out" in messages
    _, messages = typed(*add, "--engine", "whoosh", status=5)
    assert "leave --engine out" in messages
    settings.write_text("[index]\nwhitelist = false\n")
    _, messages = typed(*add, "--config", settings, status=5)
    assert (
        f"{settings}: [index] whitelist differs from the setting of the index at {index}"
        in messages
    )
    typed(*add, "--config", settings, "--whitelist")
    _, messages = typed(*add, status=5, DEDUPINDEX_INDEX_STATUS="2xx")
    assert "DEDUPINDEX_INDEX_STATUS (environment) differs from the setting" in messages


def test_a_build_that_adds_nothing_reports_the_reason(tmp_path: Path) -> None:
    source = tmp_path / "x.cdx"
    for number, (lines, word) in enumerate(
        (
            (
                cdx_line(1, 1, 1, mime="text/html"),
                "is 'mime' (left out by --mime; all: a new index with",
            ),
            (
                cdx_line(1, 1, 1).replace(" 200 ", " 404 "),
                "is 'status' (left out by --status; more: a new",
            ),
            ("", "no record is a response"),
        )
    ):
        source.write_text(HEADER + lines)
        out, _ = typed("index", source, tmp_path / str(number))
        assert "nothing was added: " in out.splitlines()[-1] and word in out.splitlines()[-1]
        assert "next: bin/serve" not in out


def test_lookup_answers_and_explains(make_index: MakeIndex) -> None:
    index = make_index([capture(1, b"http://example.com/a")])
    out, _ = typed("lookup", index, "--digest", sha1(1), "--json")
    assert json.loads(out)["match"] == "digest"
    out, _ = typed(
        "lookup", index, "--digest", sha1(1).raw.hex(), "--unlabelled", "sha1", "--explain",
        "--url", "http://example.com/a", "--max-age", "1s", status=10,
    )  # fmt: skip
    assert "no duplicate" in out
    assert "older than max_age" in out
    out, _ = typed("lookup", index, "--digest", sha1(2), "--explain", status=10)
    assert "nothing has the digest" in out


def test_an_explanation_on_the_command_line_is_bounded(make_index: MakeIndex) -> None:
    index = make_index([capture(1, b"http://example.com/%d" % number) for number in range(150)])
    words = ["lookup", index, "--digest", sha1(1), "--as-of", "2026-11-20", "--explain"]
    said = [one for one in typed(*words)[0].splitlines() if one.startswith("considered: ")]
    assert len(said) == 101 and said[-1] == "considered: more than are listed"
    answer = json.loads(typed(*words, "--json")[0])
    assert len(answer["considered"]) == 100 and answer["more"] is True


def test_a_batch_answers_in_order_and_continues_after_a_bad_line(make_index: MakeIndex) -> None:
    index = make_index([capture(1, b"http://example.com/a"), capture(2, b"http://example.com/b")])
    lines = [
        json.dumps({"digest": str(sha1(2)), "url": "http://example.com/b"}),
        "not json",
        json.dumps({"digest": str(sha1(3))}),
        json.dumps({"digest": "sha1:x"}),
        json.dumps([]),
        json.dumps({"digest": str(sha1(1)), "strategy": "EXACT_URL", "url": "http://example.com/"}),
    ]
    out, _ = typed("lookup", index, "--batch", "-", text="\n".join(lines) + "\n", status=4)
    answers = [json.loads(line) for line in out.splitlines()]
    assert len(answers) == len(lines)
    assert answers[0]["match"] == "exact_url"
    assert [answer.get("error", {}).get("code") for answer in answers] == [
        None, "bad_query", None, "bad_digest", "bad_query", None,
    ]  # fmt: skip
    assert answers[2] == answers[5] == {"duplicate": False}


def test_stats_compact_copy_and_check(make_index: MakeIndex, tmp_path: Path) -> None:
    index = make_index([capture(n, b"http://h%d.example/" % (n % 3)) for n in range(10)])
    out, _ = typed("index", "--stats", index, "--json")
    stats = json.loads(out)
    assert (stats["captures"], stats["digests"], stats["hosts"]) == (10, 10, 3)
    assert stats["settings"]["mime"] == "^text/.*"
    assert sum(row["captures"] for row in stats["largest_hosts"]) == 10
    typed("index", "--compact", index)
    typed("index", "--copy", tmp_path / "copy", index)
    out, _ = typed("index", "--check", tmp_path / "copy", "--json")
    assert json.loads(out) == {
        "ok": True, "problems": [], "captures": 10, "digests": 10, "containers": 0,
    }  # fmt: skip
    typed("index", "--copy", tmp_path / "copy", index, status=5)
    typed("token", tmp_path / "copy", "--add", "crawler")
    typed("index", "--check", tmp_path / "copy")
    (tmp_path / "copy" / "tokens.json").write_text("{")  # with which bin/serve does not start
    assert "tokens.json is damaged; " in typed("index", "--check", tmp_path / "copy", status=7)[0]
    assert "engine lmdb" in typed("index", "--stats", index)[0]


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
    out, _ = typed("report", index, "--against", crawl, "--format", "json")
    content = json.loads(out)
    names = ("handled", "exact_url", "canonical_url", "digest", "new")
    assert [content[name] for name in names] == [4, 1, 1, 1, 1]
    assert content["refused"] == {"status": 1}
    strategies = content["filters"][0]["strategies"]
    assert [strategies[name]["captures"] for name in strategies] == [1, 2, 3]
    out, _ = typed("report", index, "--against", crawl, "--format", "csv")
    rows = {row["host"]: row for row in csv.DictReader(io.StringIO(out))}
    assert rows["h1.example"]["exact_url"] == rows["h2.example"]["digest"] == "1"
    text, _ = typed("report", index, "--against", crawl)
    for field in (
        "Looked up", "Duplicates", "Payload", "Payload that would be saved", "No original",
        "Same URL", "Same canonical URL", "Another URL", "Average lookup time",
        "URL indexed", "Digest indexed", "Canonical URL available",
        "Search strategy", "Digest in index includes hashing algorithm", "Originals in index",
    ):  # fmt: skip
        assert field in text, field
    page, _ = typed("report", index, "--against", crawl, "--format", "html")
    assert "<dt>Payload saved</dt>" not in page and "<dt>Payload that would be saved</dt>" in page


def test_a_report_compares_filters(make_index: MakeIndex, tmp_path: Path) -> None:
    index = make_index([capture(n, b"http://h.example/%d" % n) for n in (1, 2)])
    crawl = tmp_path / "new.cdx"
    crawl.write_text(
        HEADER
        + cdx_line(1, 1, 9, "http://h.example/1", mime="text/html")
        + cdx_line(2, 2, 9, "http://h.example/2")
        + cdx_line(3, 3, 9, "http://h.example/3", mime="text/html")
    )
    out, warned = typed(
        "report", index, "--against", crawl, "--json", "--mime", "", "--mime", "^text/",
        "--min-size", "0", "--min-size", "1002", "--by", "mime",
    )  # fmt: skip
    content = json.loads(out)
    saved = [row["strategies"]["EXACT_URL"]["captures"] for row in content["filters"]]
    assert saved == [2, 1, 1, 1]  # sizes are those of the originals, 1001 and 1002
    assert {group["mime"] for group in content["groups"]} == {"text/html", "image/png"}
    says = "of media types that the index refuses (--mime '^text/.*'): 1. Shares count them as new"
    assert says in warned and says in content["warnings"][0]
    assert typed("report", index, "--against", crawl, "--mime", "^text/")[1] == ""


def test_a_report_never_counts_a_capture_as_its_own_duplicate(
    make_index: MakeIndex, tmp_path: Path
) -> None:
    crawl = tmp_path / "own.cdx"
    crawl.write_text(HEADER + cdx_line(1, 1, 5) + cdx_line(2, 1, 3))
    typed("index", crawl, tmp_path / "i")
    out, _ = typed("report", tmp_path / "i", "--against", crawl, "--json")
    content = json.loads(out)
    assert (content["handled"], content["digest"], content["new"]) == (2, 1, 1)


def test_a_record_is_not_the_duplicate_of_its_row_in_a_cdx(tmp_path: Path) -> None:
    """The row states no record id."""
    crawl, rows, index = tmp_path / "own.warc.gz", tmp_path / "own.cdx", tmp_path / "i"
    write(crawl, 1, [b"a body of its own"])
    typed("index", "--all", crawl, tmp_path / "first")
    typed("export", "--cdx", tmp_path / "first", "--out", rows)
    typed("index", "--all", rows, index)
    content = json.loads(typed("report", index, "--against", crawl, "--json")[0])
    assert (content["handled"], content["new"]) == (1, 1)
    assert content["already_indexed"] == 1
    assert (
        "captures that the index already has: 1 of the first 1, as of own.warc.gz ("
        in content["warnings"][0]
    )


def test_captures_of_one_second_are_not_originals_of_each_other(tmp_path: Path) -> None:
    """A fast crawler fetches several copies in a second; all but one of them are duplicates."""
    crawl, other = tmp_path / "own.cdx", tmp_path / "other.cdx"
    crawl.write_text(HEADER + "".join(cdx_line(number, 1, 5) for number in (3, 1, 4, 2)))
    other.write_text(HEADER + cdx_line(0, 1, 5))
    typed("index", crawl, tmp_path / "i")
    for source, digest in ((crawl, 3), (other, 1)):
        out, _ = typed("report", tmp_path / "i", "--against", source, "--json")
        content = json.loads(out)
        assert (content["digest"], content["handled"] - content["new"]) == (digest, digest)


def test_a_crawl_that_is_known_from_its_files_is_not_denied(tmp_path: Path) -> None:
    crawl, index = tmp_path / "x.cdx", tmp_path / "my index"
    crawl.write_text(HEADER + cdx_line(1, 1, 5))
    out, _ = typed("index", "--crawl", "november", crawl, index)
    assert f"serve '{index}'    or: " in out
    for words in (("list", index), ("lookup", index, "--digest", sha1(1))):
        _, said = typed(*words, "--crawl", "november", status=4)
        assert "crawl 'november' is known from its WARCs only" in said
        assert f"list '{index}' --of-crawl november lists its originals" in said
    assert " is known from " not in typed("list", index, "--crawl", "october", status=4)[1]


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
        typed("index", *words, status=status)
        assert not target.exists(), words
        assert [path.name for path in warcs.iterdir()] == ["x.cdx"], words
    _, messages = typed("index", warcs, status=2)
    assert f"give the sources, then the index: bin/index {warcs} my-index" in messages
    typed("index", warcs, target)
    _, messages = typed("index", "--add", target, status=2)
    assert f"give the sources, then the index: bin/index --add SOURCE... {target}" in messages


def test_explain_lists_captures_that_the_strategy_excludes(make_index: MakeIndex) -> None:
    index = make_index([capture(1, b"http://example.com/a")])
    out, _ = typed(
        "lookup", index, "--digest", sha1(1), "--url", "http://example.com/b", "--explain",
        "--strategy", "EXACT_URL", status=10,
    )  # fmt: skip
    assert "no duplicate" in out
    assert "http://example.com/a  another URL" in out


def test_a_report_says_how_many_captures_have_a_later_original_only(tmp_path: Path) -> None:
    """An older crawl that is read after a later one has no duplicates, and nobody would see why."""
    later, older = tmp_path / "later.cdx", tmp_path / "older.cdx"
    later.write_text(HEADER + cdx_line(1, 1, 5) + cdx_line(2, 2, 5))
    older.write_text(HEADER + "".join(cdx_line(number, number, 4) for number in (1, 2, 3)))
    typed("index", later, tmp_path / "i")
    words = ("report", tmp_path / "i", "--against", older)
    content = json.loads(typed(*words, "--json")[0])
    assert (content["handled"], content["new"], content["only_later"]) == (3, 3, 2)
    said = "but with one in the index that is later than they are, which does not count: 2. "
    assert said in content["warnings"][0] and said in typed(*words)[1]
    content = json.loads(typed(*words, "--json", "--min-size", "1000000")[0])
    assert (content["only_later"], content["warnings"]) == (0, [])


def test_a_report_warns_of_misleading_figures(tmp_path: Path) -> None:
    crawl = tmp_path / "own.cdx"
    crawl.write_text(HEADER + cdx_line(1, 1, 5).replace(" 500 ", " - "))
    typed("index", crawl, tmp_path / "i")
    page, new = tmp_path / "page.html", tmp_path / "new.cdx"
    out, messages = typed("report", tmp_path / "i", crawl, "--html", page)
    assert "an exact report is made before that" in messages
    assert "an exact report is made before that" in page.read_text()
    assert "would not have been stored again" not in page.read_text()
    warnings = json.loads(typed("report", tmp_path / "i", crawl, "--json")[0])["warnings"]
    assert ["the index already has: 1 of the first 1, as of " in one for one in warnings] == [True]
    new.write_text(HEADER + cdx_line(1, 2, 6))
    assert json.loads(typed("report", tmp_path / "i", new, "--json")[0])["warnings"] == []
    typed("report", tmp_path / "i", new, "--html", page)
    assert "would not have been stored again" in page.read_text()
    assert "0 stated, 0 those of their originals, 1 not known" in out
    assert "Payload:              not known\n" in out


def test_a_copy_is_not_made_inside_the_index(make_index: MakeIndex) -> None:
    index = make_index([capture(1)])
    _, messages = typed("index", "--copy", index / "copy", index, status=5)
    assert "inside the index" in messages


def test_an_index_that_cannot_be_written_can_be_read(make_index: MakeIndex) -> None:
    index = make_index([capture(1, b"http://example.com/a")])
    for path in index.glob("*-lock"):
        path.unlink()
    index.chmod(0o555)
    try:
        out, _ = typed("lookup", index, "--digest", sha1(1), "--json")
    finally:
        index.chmod(0o755)
    assert json.loads(out)["duplicate"]


def test_settings_have_the_names_of_options(make_index: MakeIndex, tmp_path: Path) -> None:
    index = make_index([capture(1)])
    crawl = tmp_path / "x.cdx"
    crawl.write_text(HEADER + cdx_line(1, 1, 9, mime="text/css"))
    settings = tmp_path / "settings.toml"
    settings.write_text(
        '[report]\nmime = "^text/"\nmin-size = [0, 9]\nformat = "csv"\n'
        "[index]\nno-url-index = true\nwhitelist = true\n"
    )

    def filters(*words: str, **env: str) -> list[tuple[str, int]]:
        out, _ = typed("report", index, crawl, "--json", *words, **env)
        return [(row["mime"], row["min_size"]) for row in json.loads(out)["filters"]]

    assert filters("--config", str(settings)) == [("^text/", 0), ("^text/", 9)]
    assert filters(DEDUPINDEX_REPORT_MIME="^x") == [("^x", 0)]
    assert typed("report", index, crawl, "--config", settings)[0].startswith("host,")
    typed("index", "--config", settings, crawl, tmp_path / "i")
    out, _ = typed("index", "--stats", "--json", tmp_path / "i")
    assert json.loads(out)["options"] == "--no-url-index --no-canonicalized --whitelist"
    _, messages = typed("index", crawl, "j", status=2, DEDUPINDEX_INDEX_JOBS="many")
    assert "DEDUPINDEX_INDEX_JOBS" in messages


def test_names_of_indexes_may_have_any_bytes(tmp_path: Path) -> None:
    crawl = tmp_path / "x.cdx"
    crawl.write_text(HEADER + cdx_line(1, 1, 1))
    index = os.fsdecode(bytes(tmp_path / "i") + b"\xe9")
    copy = os.fsdecode(bytes(tmp_path / "c") + b"\xe9")
    out, _ = dedupindex("index", crawl, index)
    assert r"\udce9" in out
    for action in ("--stats", "--check", "--compact"):
        dedupindex("index", action, index)
    dedupindex("index", "--add", crawl, index)
    out, _ = dedupindex("index", "--copy", copy, index, "--json")
    assert json.loads(out)["copy"] == str(tmp_path / "c") + r"\udce9"
    dedupindex("lookup", copy, "--digest", sha1(1))
    dedupindex("report", copy, crawl)
    _, messages = dedupindex("index", "--copy", copy, index, status=5)
    assert "not an empty directory" in messages


def test_stats_count_files_and_records_by_crawl(tmp_path: Path) -> None:
    index = tmp_path / "i"
    for number, words in enumerate((["--crawl", "spring"], ["--add"], ["--add"]), 1):
        crawl = tmp_path / f"{number}.cdx"
        crawl.write_text(HEADER + "".join(cdx_line(number, n, 1) for n in range(number)))
        typed("index", *words, crawl, index)
    out, _ = typed("index", "--stats", "--json", index)
    assert json.loads(out)["crawls"] == [
        {"crawl": "", "files": 2, "records": 5, "purged": 0},
        {"crawl": "spring", "files": 1, "records": 1, "purged": 0},
    ]
    out, _ = typed("index", "--stats", index)
    assert "crawl spring: 1 file, 1 record\n" in out
    assert "crawl (not named): 2 files, 5 records\n" in out


def test_a_report_streams_its_groups(make_index: MakeIndex, tmp_path: Path) -> None:
    index = make_index([capture(1)])
    crawl = tmp_path / "x.cdx"
    lines = (cdx_line(1 + n % 9, n, 9, f"http://h{n}.example/") for n in range(1, 3001))
    crawl.write_text(HEADER + "".join(lines))
    out, _ = typed("report", index, crawl, "--json")
    groups = json.loads(out)["groups"]
    assert len({group["host"] for group in groups}) == 3000
    out, _ = typed("report", index, crawl, "--format", "csv")
    assert [row["host"] for row in csv.DictReader(io.StringIO(out))] == [
        group["host"] for group in groups
    ]
    assert typed("report", index, crawl)[0].count(".example\n") == 20
    report = DuplicationReport([ReportFilter()])
    with closing(open_index(index)) as engine, engine.view() as view:
        settings = engine.identity.settings
        with open_source(str(crawl), None, SourceOptions()) as source:
            report.add(source.items(), view, settings)
    assert list(report.groups(2)) == groups[:2]
    for number in range(3000):
        report.rows.add(b"%d" % number, *[1] * len(COLUMNS))
    tracemalloc.start()
    assert sum(1 for _ in report.groups(0)) == 6000
    assert tracemalloc.get_traced_memory()[1] < 2e6  # as a list they take 9e6
    tracemalloc.stop()


def test_a_report_reads_annotations_and_shows_progress(
    make_index: MakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates: list[ProgressUpdate] = []

    @contextmanager
    def shown() -> Iterator[Callable[[ProgressUpdate], None]]:
        yield updates.append

    monkeypatch.setattr("dedupindex.cli.report.show_progress", shown)
    crawl = tmp_path / "crawl.log"
    line = (
        "2026-11-02T09:14:17.000Z   200        500 http://h1.example/p1 - - image/png #001 "
        f"20261102091416000+10 {sha1(1)} - seen-before\n"
    )
    crawl.write_text(line * 2048)
    index = make_index([capture(1, b"http://h1.example/p1")])
    revisits = []
    for words in ([], ["--revisit-annotation", "seen-.*"]):
        assert main(["report", str(index), str(crawl), *words]) == 0
    assert len(updates) == 2 and all(1000 <= seen.records <= 2048 for seen in updates)
    assert updates[0].of == len(line) * 2048
    for words in ([], ["--revisit-annotation", "seen-.*"]):
        out, _ = typed("report", index, crawl, "--json", *words)
        revisits.append(json.loads(out)["already_revisits"])
    assert revisits == [0, 2048]
    _, messages = typed("report", index, crawl, "--revisit-annotation", "(", status=4)
    assert "--revisit-annotation is not a regular expression" in messages


def test_the_server_imports_surt_before_lookups_are_timed(make_index: MakeIndex) -> None:
    index = make_index([capture(1)])
    made = "create_app(Config(Path(sys.argv[1])), LiveIndex(Path(sys.argv[1])))"
    imports = "\n".join(
        f"from {module} import {name}"
        for module, name in (
            ("pathlib", "Path"),
            ("server.app", "create_app"),
            ("server.config", "Config"),
            ("server.live_index", "LiveIndex"),
        )
    )
    program = f"import sys\n{imports}\nassert 'surt' not in sys.modules\n{made}\n"
    program += "assert 'surt' in sys.modules\n"
    done = subprocess.run([sys.executable, "-c", program, str(index)], capture_output=True)
    assert done.returncode == 0, done.stderr


def test_a_wrong_path_is_answered_with_the_right_one(tmp_path: Path) -> None:
    (tmp_path / "warcs.dedup" / "plan").mkdir(parents=True)
    messages = typed("rewrite", tmp_path / "warcs.dedup", "--undo", status=4)[1]
    assert f"{tmp_path / 'warcs.dedup' / 'plan'} is meant" in messages
    messages = typed("resolve", tmp_path, "-o", tmp_path / "plan", status=4)[1]
    assert "is not a manifest: bin/manifest" in messages and "Errno" not in messages
    assert "Try 'bin/dedup --help'" in typed("dedup", tmp_path, "--nope", status=2)[1]


def test_a_copy_to_an_object_store_makes_no_directory(
    make_index: MakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = make_index([capture(1)])
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    assert main(["index", "--copy", "s3://bucket/copy", str(index)]) == 4
    assert set(tmp_path.iterdir()) == before


def test_sigterm_ends_a_command_like_ctrl_c(make_index: MakeIndex) -> None:
    index, before = make_index([capture(1)]), signal.getsignal(signal.SIGTERM)
    try:
        assert main(["token", str(index)]) == 0
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_skipped_files_are_named(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "x.cdx").write_text(HEADER + cdx_line(1, 1, 1))
    for number in range(7):
        (source / f"notes{number}.txt").write_text("this is nothing that we know\n")
    out, _ = typed("index", source, tmp_path / "i")
    assert f"not of a known kind: 7\n  {source / 'notes0.txt'}\n" in out
    assert "notes4.txt\n  and 2 more (see --json)\n" in out and "notes5" not in out
    out, _ = typed("index", source, tmp_path / "j", "--json")
    assert json.loads(out)["skipped_files"] == [str(source / f"notes{n}.txt") for n in range(7)]
