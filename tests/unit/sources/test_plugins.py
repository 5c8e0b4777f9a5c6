"""Kinds of sources that other packages add: the example of the manual, and what can go wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupindex.capture import Capture, Evidence, Problem, Refusal, Revisit
from dedupindex.errors import BadSource
from dedupindex.sources import KINDS, SourceOptions, expand, open_source
from dedupindex.sources.conformance import check_source
from dedupindex.sources.plugins import GROUP, PluginSource, plugin_kinds
from tests.support.commands import typed
from tests.support.paths import ROOT
from tests.support.text_sources import BASE32, brief

MANUAL = (ROOT / "docs" / "sources.md").read_text()
(EXAMPLE,) = re.findall(r"```python\n(\"\"\"Captures of a table.*?)```", MANUAL, re.DOTALL)
TABLE = (
    f"http://a.example/\t20261120091417\tsha1:{BASE32}\t200\timage/png\n"
    f"http://b.example/\t20261120091418\t{BASE32}\t404\ttext/html\n"
    "a line of another form\n"
)
START = """
from dedupindex.capture import *
from dedupindex.digest import Digest, Spelling
DATE = b"2026-11-20T09:14:17Z"
GOOD = Capture(Digest("sha1", b"1" * 20), Spelling(1, 0), b"http://a.example/", DATE)
"""


def install(folder: Path, module: str, code: str, kind: str, value: str = "") -> None:
    """Install a package with one module and one entry point, as pip would."""
    folder.mkdir(exist_ok=True)
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    name = module.replace("_", "-")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{kind} = {value or module + ':read'}\n")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for packages, from which modules are imported anew."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def table(packages: Path, tmp_path: Path) -> str:
    """The example of the manual is installed; gives the path of a table."""
    install(packages, "my_archive", EXAMPLE, "table", "my_archive:read_table")
    path = tmp_path / "captures.tsv"
    path.write_text(TABLE)
    return str(path)


def test_the_manual_shows_what_works(table: str) -> None:
    assert len(EXAMPLE.splitlines()) <= 30
    items = check_source(lambda: open_source(table, "table"))
    digest = f"sha1:{BASE32}"
    assert list(map(brief, items)) == [
        "capture http://a.example/ 2026-11-20T09:14:17Z 200 image/png -1 -1 captures.tsv " + digest,
        "capture http://b.example/ 2026-11-20T09:14:18Z 404 text/html -1 -1 captures.tsv " + BASE32,
        "problem 3",
        "refused bad-line",
    ]


def test_commands_read_it(table: str, packages: Path, tmp_path: Path) -> None:
    """In processes of their own, which import the package only where they read."""
    words = [sys.executable, "-m", "dedupindex", "index", "--jobs", "2", "-i", "table"]
    done = subprocess.run(
        [*words, table, str(tmp_path / "index")],
        env={**os.environ, "PYTHONPATH": f"{packages}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7, done.stderr  # one line is damaged
    counts = dict(re.findall(r"^ +(added|refused: [a-z-]+) +(\d+)", done.stdout, re.MULTILINE))
    assert counts == {"added": "1", "refused: bad-line": "1", "refused: status": "1"}
    assert f"{table}" in done.stderr


def test_a_kind_is_imported_only_when_it_is_asked_for(packages: Path, tmp_path: Path) -> None:
    install(packages, "explosive", "raise SystemError('imported')", "explosive")
    path = tmp_path / "x.cdx"
    path.write_text(f"com,a)/ 20261120091417 http://a.com/ text/html 200 {BASE32} - - 1 2 x.warc\n")
    assert "explosive" in plugin_kinds()
    for kind in (None, *KINDS):
        try:
            with open_source(str(path), kind) as source:
                list(source.items())
        except BadSource:
            continue
    with pytest.raises(BadSource, match="there are warc, .*, explosive$"):
        open_source(str(path), "another")
    assert "explosive" not in sys.modules
    with pytest.raises(
        BadSource, match="'explosive' .package explosive 1.0, explosive:read. cannot"
    ):
        open_source(str(path), "explosive")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import nothing_of_this_name", "cannot be loaded: ModuleNotFoundError"),
        ("", "cannot be loaded: AttributeError"),
        ("read = 5", "is no function, but 5"),
        ("import sys\nsys.exit(0)", "cannot be loaded: SystemExit: 0"),
        (
            "def read(where, options):\n yield GOOD\n raise SystemExit(0)",
            "1 items of .*: SystemExit",
        ),
        (
            "class Mine(Refusal): pass\ndef read(where, options): yield Mine('bad-line')",
            "is neither .*, but Mine",
        ),
        ("def read(where, options): yield GOOD._replace(container='\\ud800')", "which is no text"),
        ("def read(where, options): yield Problem('\\ud800', 0, '')", "which is no text"),
        ("def read(where, options): return 5", "failed after 0 items of .*: TypeError"),
        ("def read(): yield", "failed after 0 items of .*: TypeError"),
        ("def read(where, options):\n yield GOOD\n 1 / 0", "failed after 1 items of .*: ZeroDiv"),
        ("def read(where, options): yield 'text'", "item 1 of .* is neither Capture.*, but str"),
        ("def read(where, options):\n yield GOOD\n yield None", "item 2 of .*, but NoneType"),
        (
            "def read(where, options): yield GOOD._replace(url='x')",
            "has the url 'x', which is no b",
        ),
        ("def read(where, options): yield GOOD._replace(date=b'2026')", "has the date b'2026'"),
        ("def read(where, options): yield GOOD._replace(size=-2)", "has the size -2"),
        ("def read(where, options): yield GOOD._replace(status='200')", "has the status '200'"),
        (
            "def read(where, options): yield GOOD._replace(digest=Digest('sha1', b'1'))",
            "the digest",
        ),
        ("def read(where, options): yield GOOD._replace(spelling='hex')", "has the spelling 'hex'"),
        ("def read(where, options): yield GOOD._replace(mime=b'Text/HTML')", "lower case"),
        (
            "def read(where, options): yield GOOD._replace(evidence=Evidence.REVISIT)",
            "of a revisit",
        ),
        ("def read(where, options): yield Revisit(GOOD, (b'x', b'y'))", "refers to"),
        ("def read(where, options): yield Refusal('No Reason!')", "a reason is small letters"),
        ("def read(where, options): yield Problem(where, 'x', 'y')", "is a problem with"),
    ],
)
def test_what_a_broken_package_does_is_named(
    code: str, words: str, packages: Path, tmp_path: Path
) -> None:
    install(packages, "broken", START + code, "broken")
    path = tmp_path / "some.file"
    path.write_text("x")
    with pytest.raises(BadSource) as caught:
        list(open_source(str(path), "broken").items())
    message = str(caught.value)
    assert message.startswith("the kind of source 'broken' (package broken 1.0, broken:read)")
    assert re.search(words, message), message


def test_a_broken_package_leaves_the_index_as_it_is(packages: Path, tmp_path: Path) -> None:
    install(packages, "broken", START + "def read(where, options):\n yield GOOD\n 1 / 0", "broken")
    path, index = tmp_path / "some.file", tmp_path / "index"
    path.write_text(TABLE)
    install(packages, "my_archive", EXAMPLE, "table", "my_archive:read_table")
    typed("index", "-i", "table", path, index, status=7)
    lookup = ["lookup", index, "--digest", f"sha1:{BASE32}", "--url", "http://a.example/"]
    before = typed(*lookup)
    path.write_text("x")
    words = ["index", "--replace", "-i", "broken", path, index]
    _, said = typed(*words, status=BadSource.exit_status)
    assert "package broken 1.0" in said and "ZeroDivisionError" in said
    assert typed(*lookup) == before and "http://a.example/" in before[0]


def test_two_packages_of_one_kind_are_refused(packages: Path, tmp_path: Path) -> None:
    for module in ("first", "second"):
        install(packages, module, "def read(where, options): return []", "twice")
    with pytest.raises(BadSource, match="first 1.0.* and .*second 1.0.* by several packages"):
        open_source(str(packages / "first.py"), "twice")


def test_captures_are_rows_whatever_they_state(packages: Path, tmp_path: Path) -> None:
    code = """def read(where, options):
    yield GOOD
    yield GOOD._replace(evidence=Evidence.NAMED, container="x.warc.gz")
    yield Revisit(GOOD, RefersTo(b"http://a.example/", b"2025-11-20T09:14:17Z"))
    yield Refusal("method", GOOD)
    yield Problem(where, 5, "is damaged")
"""
    install(packages, "plain", START + code, "plain")
    path = tmp_path / "some.file"
    path.write_text("x")
    first, second, third, *others = check_source(lambda: open_source(str(path), "plain"))
    assert isinstance(first, Capture) and isinstance(second, Capture) and isinstance(third, Revisit)
    assert (first.evidence, first.container) == (Evidence.ROW, str(path))
    assert (second.evidence, second.container) == (Evidence.NAMED, "x.warc.gz")
    assert (third.capture.evidence, third.capture.container) == (Evidence.REVISIT, str(path))
    assert isinstance(others[0], Refusal) and others[0].itself is not None
    assert others[0].itself.evidence == Evidence.REVISIT
    assert others[1:] == [Problem(str(path), 5, "is damaged")]


def test_addresses_are_passed_on_and_have_no_credentials_in_names(packages: Path) -> None:
    code = """def read(where, options):
    yield GOOD._replace(url=where.encode(), container=where)
    yield Problem(where, 1, "is damaged")
"""
    install(packages, "service", START + code, "service")
    address = "service+postgresql://me:secret@db.example/captures"
    assert expand([address]).paths == [address]
    with open_source(address) as source:
        item, problem = source.items()
        assert isinstance(source, PluginSource) and isinstance(item, Capture)
        assert problem == Problem(source.name, 1, "is damaged")
        assert item.url == b"postgresql://me:secret@db.example/captures"
        assert source.name == item.container == "service+postgresql://db.example/captures"
        assert source.size == -1 and len(source.content_hash) == 64
    with pytest.raises(BadSource, match="only be read as service, not as cdx"):
        open_source(address, "cdx")


def test_of_a_directory_files_of_no_known_kind_are_read(table: str, tmp_path: Path) -> None:
    warcs = tmp_path / "warcs"
    warcs.mkdir()
    (warcs / "a.tsv").write_text(TABLE)
    (warcs / ".hidden.tsv").write_text(TABLE)
    (warcs / "a.cdx").write_text(" CDX a b k\n")
    assert expand([str(warcs)], "table").paths == [str(warcs / "a.tsv")]
    assert expand([str(warcs)]).paths == [str(warcs / "a.cdx")]


@pytest.mark.parametrize("where", ["-", "https://example.org/captures.tsv"])
def test_pipes_and_objects_are_no_files(where: str, table: str) -> None:
    with pytest.raises(BadSource, match="reads files of this machine"):
        open_source(where, "table")


def test_a_file_that_changes_meanwhile_is_not_indexed(table: str) -> None:
    source = open_source(table, "table")
    items = source.items()
    next(items)
    Path(table).write_text(TABLE * 2)
    assert isinstance(list(items)[-1], Problem) and source.changed


def test_options_are_passed_on(packages: Path, tmp_path: Path) -> None:
    code = "def read(where, options):\n yield Refusal(options.digest_algorithm)"
    install(packages, "optional", START + code, "optional")
    path = tmp_path / "some.file"
    path.write_text("x")
    with open_source(str(path), "optional", SourceOptions(digest_algorithm="md5")) as source:
        assert list(source.items()) == [Refusal("md5")]
