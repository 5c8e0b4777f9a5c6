"""An index as CDX and CDXJ: what a row has, what has no row, and the way back into an index."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.capture import Capture, Evidence, Item
from dedupindex.digest import Digest, Spelling
from dedupindex.export import cdx_file
from dedupindex.export.cdx_file import HEADER, CdxExport, CdxForm, rows
from dedupindex.index import open_index
from dedupindex.index.engine import IndexCounts, IndexedContainer
from dedupindex.index.format.cells import ContainerRef
from dedupindex.index.identity import Settings
from dedupindex.runtime import external_sort
from tests.conftest import MakeIndex
from tests.support import captures as some
from tests.support.budgets import examples
from tests.support.captures import capture, sha1
from tests.support.commands import typed
from tests.support.paths import ROOT
from tests.support.text_sources import BY_KIND

EVERYTHING = Settings(mime=".*", whitelist=True, status="1xx,2xx,3xx,4xx,5xx")
FORMS = pytest.mark.parametrize("kind", ["cdx", "cdxj"])
HEX = Spelling(1, 2)


class Held:
    """A view of an index that holds these captures, and has read these files."""

    def __init__(self, held: Iterable[Capture], files: Iterable[str] = ()) -> None:
        self._held, self._files = list(held), set(files)

    def captures(self) -> Iterator[tuple[Digest, Capture]]:
        yield from sorted((one.digest, one) for one in self._held)

    def counts(self) -> IndexCounts:
        return IndexCounts(len(self._held), 0, 0)

    def places(self) -> Iterator[tuple[int, ContainerRef]]:
        names = sorted({one.container for one in self._held} | self._files)
        yield from enumerate(map(ContainerRef, names), 1)

    def container(self, name: str) -> IndexedContainer | None:
        return IndexedContainer(name, 1, "", 1) if name in self._files else None


def written(
    *held: Capture, files: Iterable[str] = (), exported: CdxExport | None = None, **how: bool
) -> list[str]:
    """The lines that are written of some captures, in a CDX without its header."""
    view: Any = Held(held, files)
    found = list(rows(view, CdxForm(**how), exported or CdxExport()))
    if not how.get("json"):
        assert found.pop(0) == HEADER == b" CDX N b a m s k r M S V g\n"
    assert all(line.endswith(b"\n") for line in found)
    return [line.decode()[:-1] for line in found]


def column(name: str, *held: Capture, **how: Any) -> str:
    (line,) = written(*held, **how)
    return line.split(" ")[HEADER.decode().split()[1:].index(name)]


def test_a_row_has_eleven_columns() -> None:
    value = str(sha1(1)).removeprefix("sha1:")
    assert written(capture(1)) == [
        "com,example)/a 20261101091417 http://example.com/a image/png 200 "
        f"{value} - - - 1000 1.warc.gz"
    ]
    sized = capture(1, size=600, size_of_record=True)
    assert column("S", sized) == "600"


def test_a_row_of_cdxj_has_what_is_known() -> None:
    value = str(sha1(1)).removeprefix("sha1:")
    (line,) = written(capture(1, size=600, size_of_record=True), json=True)
    key, digits, text = line.split(" ", 2)
    assert (key, digits) == ("com,example)/a", "20261101091417")
    assert json.loads(text) == {
        "url": "http://example.com/a", "mime": "image/png", "status": "200", "digest": value,
        "length": "600", "offset": "1000", "filename": "1.warc.gz",
    }  # fmt: skip
    (line,) = written(capture(1, status=0, mime=b"", offset=-1), json=True, placeless=True)
    assert json.loads(line.split(" ", 2)[2]) == {"url": "http://example.com/a", "digest": value}
    stated = {"etag": b'"\xe9"', "last_modified": b"Mon, 02 Jan 2023 03:04:05 GMT"}
    (line,) = written(capture(1, **stated), json=True)
    row = json.loads(line.split(" ", 2)[2])
    assert {name: row[name].encode("latin-1") for name in stated} == stated


def test_what_is_not_known_is_a_hyphen() -> None:
    one = capture(1, status=0, mime=b"")
    assert [column(name, one) for name in "msrMS"] == ["-"] * 5


def test_a_digest_is_written_as_its_record_states_it() -> None:
    raw = sha1(1).raw
    exported = CdxExport()
    one = capture(1)._replace(spelling=HEX)
    assert column("k", one, exported=exported) == raw.hex()
    assert exported.not_base32 == 1
    assert column("k", one, base32=True) == str(sha1(1)).removeprefix("sha1:")
    sha256 = Digest("sha256", bytes(range(32)))
    for spelling, label in ((Spelling(0, 2), "sha256:"), (Spelling(3, 2), "sha-256:")):
        other = capture(1)._replace(digest=sha256, spelling=spelling)
        exported = CdxExport()
        assert column("k", other, exported=exported, base32=True) == label + sha256.raw.hex()
        assert exported.not_base32 == 1


def test_a_capture_is_written_under_its_own_digest_only() -> None:
    view: Any = Held([])
    one = capture(1)
    view.captures = lambda: iter([(one.digest, one), (sha1(2), one)])
    assert len(list(rows(view, CdxForm(), CdxExport()))) == 2  # with the header


@pytest.mark.parametrize(
    ("one", "files"),
    [
        (capture(1, offset=-1), []),
        (capture(1, container=""), []),
        (capture(1, container="", offset=-1, evidence=Evidence.NAMED), []),
        # A row that names no file: the file is the CDX itself, and the offset in another.
        (capture(1, container="/x/listing.cdx", evidence=Evidence.ROW), ["/x/listing.cdx"]),
    ],
)
def test_captures_without_a_place_are_counted(one: Capture, files: list[str]) -> None:
    """In a CDX, "-" for a file would make a revisit of them, and OutbackCDX refuses the load."""
    for as_json in (False, True):
        exported = CdxExport()
        assert written(one, files=files, exported=exported, json=as_json) == []
        assert exported.left_out == {"no-place": 1}
    exported = CdxExport()
    (line,) = written(one, files=files, exported=exported, json=True, placeless=True)
    assert "filename" not in line and "offset" not in line and exported.placeless == 1


def test_files_have_their_last_name_unless_another_has_it() -> None:
    def names(*containers: str, files: Iterable[str] = ()) -> list[str]:
        held = [capture(number, container=name) for number, name in enumerate(containers)]
        return sorted(line.split(" ")[10] for line in written(*held, files=files))

    assert names("/x/a.warc.gz", "/y/b.warc.gz") == ["a.warc.gz", "b.warc.gz"]
    assert names("/x/a.warc.gz", "a.warc.gz") == ["a.warc.gz", "a.warc.gz"]
    assert names("/x/a.warc.gz", "/y/a.warc.gz") == ["/x/a.warc.gz", "/y/a.warc.gz"]
    assert names("s3://bucket/x/a.warc.gz") == ["a.warc.gz"]
    assert names("/x/archive/a.warc.gz") == ["a.warc.gz"]
    of_wacz = "/x/one.wacz/archive/data.warc.gz"  # as every WACZ calls it
    assert names(of_wacz, files=["/x/one.wacz"]) == [of_wacz]


def test_what_is_not_ascii_is_counted() -> None:
    """OutbackCDX writes "?" for it, which makes another URL."""
    exported = CdxExport()
    accented = "http://example.com/caf\u00e9"
    assert column("a", capture(1, accented.encode()), exported=exported) == accented
    column("a", capture(1, container="/x/\u00e9.warc.gz"), exported=exported)
    column("a", capture(1), exported=exported)
    assert exported.not_ascii == 2 and exported.written == 3


def test_rows_that_a_line_cannot_carry_are_counted() -> None:
    spaced = capture(1, b"http://example.com/a b")
    named = capture(2, container="/x/a b.warc.gz")
    odd = capture(3, container="/x/\udce9.warc.gz")
    exported = CdxExport()
    assert len(written(spaced, named, exported=exported)) == 0
    assert exported.left_out == {"url-with-spaces": 1, "file-with-spaces": 1}
    exported = CdxExport()
    first, second = written(spaced, named, odd, exported=exported, json=True)
    assert '"http://example.com/a b"' in first + second and '"a b.warc.gz"' in first + second
    assert exported.left_out == {"not-utf-8": 1} and exported.written == 2


def test_rows_are_in_the_order_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `LC_ALL=C sort` has them, also if they do not fit in memory."""
    monkeypatch.setattr(external_sort, "_IN_MEMORY", 7)
    monkeypatch.setattr(external_sort, "_RUNS", 3)
    urls = [b"http://example.com/%b" % part for part in (b"", b"a", b"a/b", b"a-b", b"A?x", b"~")]
    held = [
        capture(number, url + b"%d" % (number % 3), number % 28 + 1)
        for number, url in enumerate(urls * 40)
    ]
    for as_json in (False, True):
        found = written(*held, json=as_json)
        assert len(found) == len(held)
        path = tmp_path / "unsorted"
        path.write_text("\n".join(reversed(found)) + "\n")
        done = subprocess.run(["sort", path], env={"LC_ALL": "C"}, capture_output=True, check=True)
        assert done.stdout.decode().splitlines() == found


@pytest.mark.parametrize("directory", ["", "/a/archive/"], ids=["one file", "a file for each"])
def test_memory_does_not_grow_with_the_index(directory: str) -> None:
    """In a process of its own: what earlier tests have left in this one allocates, too."""
    code = f"from {__name__} import print_peaks; print_peaks({directory!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    few, many = json.loads(done.stdout)
    assert many < 1.5 * few


def print_peaks(directory: str) -> None:
    """Print the peaks of memory with 8,000 and 27,000 captures; 1 run and 4 runs are left."""
    external_sort._IN_MEMORY, external_sort._RUNS, cdx_file._CACHED = 1000, 3, 1 << 16

    def one(number: int) -> Capture:
        return capture(number, container=f"{directory}{number if directory else 1}.warc.gz")

    def peak(count: int) -> int:
        view: Any = Held([])
        view.captures = lambda: ((found.digest, found) for found in map(one, range(count)))
        view.places = lambda: (
            (number, ContainerRef(one(number).container)) for number in range(count)
        )
        tracemalloc.start()
        for _ in rows(view, CdxForm(), CdxExport()):
            pass
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(2000)
    print(json.dumps([peak(8000), peak(27_000)]))


def essence(one: Capture) -> tuple[object, ...]:
    """What a row carries of a capture."""
    size = one.size if one.size_of_record else -1
    place = one.container.rpartition("/")[2], one.offset
    return one.digest, one.url, one.date[:19], one.status, one.mime, size, *place


def _may_be_hex(one: Capture) -> bool:
    """Whether 32 small letters of base32 could as well be an MD5 in hex."""
    return re.fullmatch("[a-f2-7]{32}", one.digest.spelled(Spelling(0, 1))) is not None


def parsed(kind: str, lines: list[str]) -> list[Item]:
    data = "".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape")
    return list(BY_KIND[kind]("source", io.BytesIO(HEADER * (kind == "cdx") + data)).items())


_captures = st.builds(
    lambda one, path, container, offset: one._replace(
        url=b"http://www.example.com/" + path.encode(), container=container, offset=offset
    ),
    some.captures,
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"]), max_size=9),
    st.sampled_from(["a.warc.gz", "/x/b.warc.gz", "/y/b.warc.gz", "/x/\u00e9 a.warc.gz"]),
    st.integers(0, 1 << 39),
)


@FORMS
@given(st.lists(_captures.filter(lambda one: not _may_be_hex(one)), max_size=8), st.booleans())
def test_a_reader_gets_what_was_written(kind: str, held: list[Capture], base32: bool) -> None:
    exported = CdxExport()
    lines = written(*held, exported=exported, json=kind == "cdxj", base32=base32)
    found = parsed(kind, lines)
    assert all(isinstance(item, Capture) for item in found)
    left_out = sum(exported.left_out.values())
    assert exported.written == len(found) == len(held) - left_out
    kept = {essence(one) for one in held}
    assert {essence(item) for item in found if isinstance(item, Capture)} <= kept
    if not left_out:
        assert len({essence(item) for item in found if isinstance(item, Capture)}) == len(kept)


@FORMS
@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_an_index_comes_back_equal(
    kind: str, engine: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """bin/index, bin/export and bin/index again: all captures that have places."""
    folder = tmp_path_factory.mktemp("round")
    rows_of = st.tuples(st.integers(1, 6), st.sampled_from("abé?&%=~"), st.integers(1, 28))
    first = folder / "first.cdx"
    text = HEADER.decode()
    for number, path, day in data.draw(st.lists(rows_of, min_size=1, unique=True)):
        value = str(sha1(number)).removeprefix("sha1:")
        text += (
            f"key 202611{day:02}091417 https://example.com/{path} text/html 200 {value} - - "
            f"{number * 7} {day * 100} {day}.warc.gz\n"
        )
    first.write_text(text)
    words = ["--engine", engine, "-w", "-m", ".*"]
    typed("index", *words, first, folder / "one")
    typed("export", f"--{kind}", folder / "one", "-o", folder / "moved")
    typed("index", *words, folder / "moved", folder / "two")
    one, two = (_held(folder / name) for name in ("one", "two"))
    assert one == two


def _held(index: Path) -> dict[tuple[Digest, bytes], Capture]:
    with closing(open_index(index)) as engine, engine.view() as view:
        return {(digest, one.url): one for digest, one in view.captures()}


@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
def test_the_command_writes_a_file_and_reports(
    engine: str, make_index: MakeIndex, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = [
        capture(1),
        capture(2, size=500, size_of_record=True)._replace(spelling=HEX),
        capture(3, offset=-1),
        capture(4, b"http://example.com/a b"),
    ]
    index, out = make_index(held, EVERYTHING, engine), tmp_path / "x.cdx"
    _, said = typed("export", "--cdx", index, "-o", out)
    assert "2 originals written" in said
    assert "1 without the size of the record" in said
    assert "1 whose digest is no SHA-1 in base32: OutbackCDX damages it (--bridge" in said
    assert "left out: no-place" in said and "--cdxj --placeless writes them" in said
    assert "left out: url-with-spaces" in said
    assert out.read_bytes().startswith(HEADER) and out.read_bytes().count(b"\n") == 3
    shown, _ = typed("export", "--cdx", index)
    assert shown.encode() == out.read_bytes()
    shown, _ = typed(
        "export", "--cdxj", "--placeless", "--bridge", index, "--json", "-o", tmp_path / "j"
    )
    assert json.loads(shown) == {
        "written": 4, "placeless": 1, "no_size": 3, "not_base32": 0, "not_ascii": 0,
        "full_names": 0,
        "left_out": {},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give one of --cdx, --cdxj, --wget, --warcprox, --redis and --self-contained"),
        (["--cdx", "--cdxj"], "give only one of"),
        (["--cdx", "--redis", "redis://localhost"], "give only one of"),
        (["--cdx", "--placeless"], "--placeless takes --cdxj"),
        (["--cdxj", "--json"], "--json needs --out"),
        (["--cdxj", "-o", "."], "is a directory"),
        (["--redis", "redis://localhost", "-o", "x"], "--out is not for --redis"),
    ],
)
def test_usage(words: list[str], message: str, make_index: MakeIndex) -> None:
    _, said = typed("export", *words, make_index([capture(1)], EVERYTHING), status=2)
    assert message in said


def test_a_failed_export_leaves_no_file(make_index: MakeIndex, tmp_path: Path) -> None:
    index, out = make_index([capture(1)], EVERYTHING), tmp_path / "x.cdx"
    out.write_bytes(HEADER + b"what was there before")
    (index / "index.json").write_text("{}")
    with pytest.raises(AssertionError):
        typed("export", "--cdx", index, "-o", out)
    assert out.read_bytes() == HEADER + b"what was there before"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
