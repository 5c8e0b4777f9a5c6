"""A real OutbackCDX: it loads what ``bin/export`` writes, and ``bin/index`` reads it back."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from dedupindex.capture import Capture, Item, Refusal, Revisit
from dedupindex.digest import Digest
from dedupindex.index import open_index
from dedupindex.sources import open_source, outbackcdx
from dedupindex.sources.conformance import check_source
from demo.steps import free_port
from tests.conftest import need
from tests.peers.environments import DEADLINE, running
from tests.peers.replay import listening
from tests.peers.site import COPIES, PAGES, site
from tests.peers.test_wget_dedup import harvest
from tests.support.commands import typed
from tests.support.text_sources import BASE32, HEX

pytestmark = pytest.mark.peer
HEADER = " CDX N b a m s k r M S V g\n"


@contextmanager
def outback(folder: Path, *options: str) -> Iterator[str]:
    """A server with no collection; gives the address of one."""
    need("java", found=shutil.which("java") is not None)
    jar = Path(os.environ.get("DEDUPINDEX_PEERS", "."), "outbackcdx.jar")
    if not jar.exists():
        pytest.skip("outbackcdx.jar is in no package registry and not in DEDUPINDEX_PEERS")
    data, port = folder / "outbackcdx", free_port()
    data.mkdir(exist_ok=True)
    words: list[str | Path] = ["java", "-Xmx256m", "-jar", jar.absolute(), "-b", "127.0.0.1"]
    words += ["-p", str(port), "-d", data, *options]
    with running(words, folder / "outbackcdx.log", lambda: listening(port)):
        yield f"http://127.0.0.1:{port}/coll"


def post(collection: str, lines: bytes) -> str:
    with urlopen(Request(collection, lines), timeout=DEADLINE) as answer:
        return str(answer.read().decode())


def lines_of(collection: str, url: str) -> list[str]:
    with urlopen(f"{collection}?url={quote(url, safe='')}", timeout=DEADLINE) as answer:
        return list(answer.read().decode().splitlines())


def row(path: str, second: int, digest: str = BASE32, rest: str = "- - 100 10 x.warc.gz") -> str:
    return f"- {20200101000000 + second} http://a.example/{path} text/html 200 {digest} {rest}\n"


def captured(items: Sequence[Item]) -> set[tuple[bytes, bytes, int]]:
    return {(one.url, one.date, one.offset) for one in items if isinstance(one, Capture)}


@pytest.mark.parametrize("version", ["3", "4"])
@pytest.mark.parametrize("page", [3, 50_000])
def test_all_captures_are_read_whatever_the_server_caps(
    page: int, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With -r it ends each answer after four records, and says nothing."""
    monkeypatch.setattr(outbackcdx, "PAGE", page)
    paths = ["", "a", "a/b", "a?b=c", "ab", "b"]
    text = "".join(row(path, second) for path in paths for second in range(9))
    text += row("two", 1, rest="- - 100 10 x.warc.gz") + row("two", 1, rest="- - 100 20 x.warc.gz")
    with outback(tmp_path, "-r", "4", "--index-version", version) as collection:
        assert "Added 56" in post(collection, (HEADER + text).encode())
        with open_source(f"outbackcdx+{collection}") as source:
            items = list(source.items())
        check_source(lambda: open_source(f"outbackcdx+{collection}"))
    # Before version 4 the second capture of a second replaces the first.
    assert len(items) == len(captured(items)) == 54 + (2 if version == "4" else 1)


def test_what_it_answers_is_read_as_it_was_loaded(tmp_path: Path) -> None:
    """Digests in hex were damaged by it; a row without a file is of a revisit."""
    lines = [
        row("plain", 0),
        row("labelled", 0, f"sha1:{BASE32}"),
        row("hex", 0, HEX),
        row("caf\u00e9", 0),
        row("caf%C3%A9?x", 0),
        row("revisit", 0).replace("text/html", "warc/revisit"),
        row("no-file", 0, rest="- - - 0 -"),
        row("unknown", 0).replace("text/html 200", "- -"),
        f'- 20200101000000 {{"url":"http://a.example/c d","digest":"{BASE32}"}}\n',
    ]
    with outback(tmp_path) as collection:
        post(collection, "".join(lines).encode())
        with open_source(f"outbackcdx+{collection}") as source:
            found = list(source.items())
        saved = tmp_path / "saved.cdx"
        with urlopen(f"{collection}?urlkey=&matchType=range", timeout=DEADLINE) as answer:
            saved.write_bytes(answer.read())
    kinds: dict[str, Item] = {
        (item.capture if isinstance(item, Revisit) else item).url.decode().rpartition("/")[2]: item
        for item in found
        if isinstance(item, Capture | Revisit)
    }
    assert found.count(Refusal("bad-digest")) == 1 and len(found) == len(lines)
    assert found.count(Refusal("bad-url")) == 1  # it answers http://a.example/caf?
    assert {name for name, item in kinds.items() if isinstance(item, Revisit)} == {
        "revisit", "no-file", "c d",
    }  # fmt: skip
    assert {name for name, item in kinds.items() if isinstance(item, Capture)} == {
        "plain", "labelled", "unknown", "caf%C3%A9?x",
    }  # fmt: skip
    unknown = kinds["unknown"]
    assert isinstance(unknown, Capture) and (unknown.status, unknown.mime) == (0, b"")
    with open_source(str(saved)) as source:  # the same as a file, but for the damaged digest
        rows = [item for item in source.items() if isinstance(item, Capture)]
    assert {one.url.rpartition(b"/")[2] for one in rows} == {
        b"plain", b"labelled", b"unknown", b"hex", b"caf%C3%A9?x", b"caf?",
    }  # fmt: skip


@pytest.mark.parametrize("form", ["cdx", "cdxj"])
def test_an_index_moves_there_and_back(form: str, tmp_path: Path) -> None:
    """Every capture of the index is in OutbackCDX, with its place, and in the index made of it."""
    with site() as base:
        stored = harvest(tmp_path, "one", [base + path for path in (*PAGES, *COPIES)])
    words = ["index", "-w", "-m", ".*"]
    typed(*words, tmp_path / "one.warc.gz", tmp_path / "index")
    typed("export", f"--{form}", tmp_path / "index", "-o", tmp_path / "rows")
    with outback(tmp_path) as collection:
        assert f"Added {len(stored)} " in post(collection, (tmp_path / "rows").read_bytes())
        for one in stored:
            (line,) = lines_of(collection, one.url)
            columns = line.split(" ")
            digits = "".join(filter(str.isdigit, one.date))
            assert columns[1:3] == [digits, one.url]
            assert f"sha1:{columns[5]}" == one.digest and columns[10] == "one.warc.gz"
        typed(*words, f"outbackcdx+{collection}", tmp_path / "again")
        said = typed("index", "--add", f"outbackcdx+{collection}", tmp_path / "again")[0]
    assert "unchanged" in said
    first, second = _held(tmp_path / "index"), _held(tmp_path / "again")
    assert first == second and len(first) == len(stored)


def test_originals_without_a_place_are_loaded_as_cdxj(tmp_path: Path) -> None:
    """It takes no "-" for an offset in a CDX, so there such captures are left out."""
    listed = tmp_path / "listed.cdx"
    listed.write_text(f" CDX a b m s k\nhttp://a.example/ 20200101000000 text/html 200 {BASE32}\n")
    typed("index", "-w", "-m", ".*", listed, tmp_path / "index")
    words = ["export", tmp_path / "index", "-o", tmp_path / "rows"]
    typed(*words, "--cdx")
    assert (tmp_path / "rows").read_text() == HEADER
    (tmp_path / "rows").unlink()  # an export of another form is not overwritten
    typed(*words, "--cdxj", "--placeless")
    with outback(tmp_path) as collection:
        post(collection, (tmp_path / "rows").read_bytes())
        (line,) = lines_of(collection, "http://a.example/")
    assert BASE32 in line and " 200 " in line


def _held(index: Path) -> set[tuple[Digest, bytes, bytes, int, bytes, str, int]]:
    with closing(open_index(index)) as engine, engine.view() as view:
        return {
            (digest, one.url, one.date, one.status, one.mime, Path(one.container).name, one.offset)
            for digest, one in view.captures()
        }
