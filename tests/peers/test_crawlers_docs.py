"""What docs/crawlers.md shows of Python, warcprox and wget, as it is typed there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dedupindex.runtime.tables import amount
from demo.steps import free_port
from tests.conftest import need
from tests.peers.environments import ROOT, WARCPROX, environment
from tests.peers.replay import records
from tests.peers.site import PAGES, site

pytestmark = pytest.mark.peer
PAGE = "\n" + (ROOT / "docs/crawlers.md").read_text()
SERVER, PROXY = 8484, 8000
WAIT = "curl -sS --fail --retry 60 --retry-delay 1 --retry-connrefused -o /dev/null"


def shown(heading: str) -> list[str]:
    """The commands in a section, without those of its subsections."""
    section = re.split(r"\n#+ ", PAGE.split(f"\n{heading}\n")[1])[0]
    lines = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    assert lines, heading
    return lines


def typed(home: Path, script: list[str], **more: str) -> str:
    """Type lines in a directory as a checkout is, with ports of their own; return the output."""
    for folder in ("bin", "conf"):
        (home / folder).symlink_to(ROOT / folder)
    whole = "\n".join(["trap 'kill $(jobs -p) 2>/dev/null || :' EXIT", *script])
    for usual in (SERVER, PROXY):
        whole = re.sub(rf"\b{usual}\b", str(free_port()), whole)
    kept = {name: text for name, text in os.environ.items() if not name.startswith("DEDUPINDEX_")}
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", whole],
        cwd=home,
        env={**kept, "PYTHONPATH": "", **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def served(line: str = "bin/serve my-index &") -> list[str]:
    """Start the server as the page does, and wait until it answers."""
    assert line.startswith("bin/serve ")
    return [
        f"{line.removesuffix('&')} --port {SERVER} & server=$!",
        f"{WAIT} http://127.0.0.1:{SERVER}/healthz",
    ]


def proxied(line: str, url: str, *paths: str) -> list[str]:
    """Start a warcprox as the page does, fetch paths through it, and stop it."""
    port = "" if f"-p {PROXY}" in line else f" -p {PROXY}"
    fetch = f"curl -sS --fail -o /dev/null -x http://127.0.0.1:{PROXY}"
    return [
        f"{line}{port} & proxy=$!",
        f"{WAIT} http://127.0.0.1:{PROXY}/status",
        *(f"{fetch} {url}{path}" for path in paths),
        "kill $proxy; wait $proxy",
    ]


@pytest.fixture
def path_with_warcprox(tmp_path: Path) -> str:
    """A PATH whose warcprox may fetch from loopback."""
    tools, allowed = environment("warcprox", WARCPROX), tmp_path / "tools" / "warcprox"
    allowed.parent.mkdir()
    main = ROOT / "tests/peers/warcprox_main.py"
    allowed.write_text(f'#!/bin/sh\nexec "{tools / "python"}" "{main}" "$@"\n')
    allowed.chmod(0o755)
    return f"{allowed.parent}{os.pathsep}{os.environ['PATH']}"


def types(folder: Path) -> dict[str, str]:
    """Type by path: warcprox processes URLs at the same time, so their order is open."""
    written = records(folder.glob("*.warc.gz"))
    kinds = {urlsplit(one.url).path: one.type for one in written}
    assert len(kinds) == len(written)
    return kinds


def test_the_first_lookup_and_the_client_in_python(tmp_path: Path) -> None:
    first, lookup = shown("# Crawlers")
    block = PAGE.split("## Any crawler in Python")[1].split("```python\n")[1].split("```")[0]
    (tmp_path / "warcs").mkdir()
    shutil.copy(ROOT / "tests/data/warc/example.warc.gz", tmp_path / "warcs")
    said = typed(
        tmp_path,
        [
            "bin/index --all warcs my-index",
            *served(first),
            lookup,
            f"PYTHONPATH={ROOT} python3 - <<'END'\n{block}END",
        ],
    )
    assert '"duplicate":' in said and "'lookups': 1" in said


def test_the_plugin_of_warcprox(tmp_path: Path, path_with_warcprox: str) -> None:
    serve, proxy = shown("### The plugin")
    with site() as url:
        typed(
            tmp_path,
            [
                "bin/index --empty --all my-index",
                *served(serve),
                *proxied(proxy, url, "/logo.png", "/copy/logo.png"),
            ],
            PATH=path_with_warcprox,
        )
    written = types(tmp_path / "warcs")
    assert written.keys() == {"/logo.png", "/copy/logo.png"}
    assert sorted(written.values()) == ["response", "revisit"]


def test_a_database_for_warcprox(tmp_path: Path, path_with_warcprox: str) -> None:
    export, proxy = shown("### A database made of an index")
    with site() as url:
        typed(
            tmp_path,
            [
                *proxied("warcprox -d first -z", url, "/logo.png"),
                "rm warcprox.sqlite",  # this warcprox had no database before
                "bin/index --all first my-index",
                export,
                *proxied(f"{proxy} -z", url, "/copy/logo.png", "/catalogue.pdf"),
                "bin/index --add warcprox.sqlite my-index",
            ],
            PATH=path_with_warcprox,
        )
    kinds = {"/copy/logo.png": "revisit", "/catalogue.pdf": "response"}
    assert types(tmp_path / "warcs") == kinds


def test_the_cdx_mode_of_warcprox(tmp_path: Path, path_with_warcprox: str) -> None:
    (proxy,) = shown("### Its own CDX mode")
    with site() as url:
        typed(
            tmp_path,
            [
                *proxied("warcprox -d first -z --base32 -g sha1", url, "/logo.png"),
                "bin/index --all --by-url first my-index",
                *served(),
                *proxied(proxy, url, "/logo.png", "/catalogue.pdf"),
            ],
            PATH=path_with_warcprox,
        )
    kinds = {"/logo.png": "revisit", "/catalogue.pdf": "response"}
    assert types(tmp_path / "warcs") == kinds


def test_wget_with_an_exported_file(tmp_path: Path) -> None:
    need("wget", found=shutil.which("wget") is not None)
    export, wget, index, saved = shown("## wget")
    with site() as url:
        (tmp_path / "seeds.txt").write_text(f"{url}/logo.png\n{url}/catalogue.pdf\n")
        first = f"wget -q --warc-file=first {url}/logo.png -O logo.png"
        begin = [first, "bin/index --all first.warc.gz my-index"]
        told = typed(tmp_path, [*begin, export, wget, index, saved])
    size = re.escape(amount(len(PAGES["/logo.png"].body)))
    assert re.search(rf"^revisit records +1 +{size} ", told, re.MULTILINE), told
    assert [one.type for one in records([tmp_path / "harvest.warc.gz"])] == ["revisit", "response"]
