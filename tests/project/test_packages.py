"""The wheel and the source archive: what is in them, and what an installed command says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.paths import ROOT

_DEADLINE = 60  # seconds
_PAGES = (
    *("/", "/pages/content", "/pages/containers", "/pages/compare", "/pages/what-if"),
    *("/pages/dry-run", "/pages/sign-in", "/pages/crawls", "/pages/lookup"),
    *("/pages/impact?kind=host&name=x.example", "/pages/captures?host=x.example"),
    *("/pages/lookup?url=http://x.example/", "/pages/lookup?digest=md5:" + "0" * 32),
)
_OF_CRAWL = ("/crawls/a", "/pages/crawl?name=a", "/crawls/a/report?format=text")
_OF_API = ("/digest-filter", "/openapi.json", "/metrics", "/crawls/b")


def built(source: Path, out: Path) -> tuple[Path, Path]:
    """Build as for PyPI, without downloads: the source archive, and the wheel from that."""
    words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source]
    done = subprocess.run(words, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return next(out.glob("*.tar.gz")), next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return built(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(packages: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that ``python -m dedupindex`` runs the wheel from."""
    home = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(packages[1]) as wheel:
        wheel.extractall(home)
    return home


def typed(installed: Path, *words: str | Path, status: int = 0) -> str:
    """Run an installed command; returns its output and messages."""
    line = [sys.executable, "-m", "dedupindex", *words]
    done = subprocess.run(line, cwd=installed, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def test_the_wheel_has_all_that_a_command_or_a_page_names(packages: tuple[Path, Path]) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "conf", "docs"], cwd=ROOT, capture_output=True, text=True
    )
    if tracked.returncode:
        pytest.skip("not a git checkout")
    with zipfile.ZipFile(packages[1]) as wheel:
        names = set(wheel.namelist())
        for name in tracked.stdout.split():
            assert wheel.read(f"dedupindex/{name}") == (ROOT / name).read_bytes(), name
    for package in ("dedupindex", "server"):
        assert {str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py")} <= names
    assert {name.split("/")[0].partition("-")[0] for name in names} == {
        *("dedupindex", "server", "demo"),
    }
    pages = {name.rpartition("/")[2] for name in names if ".data/data/share/man/man1/" in name}
    assert pages == {page.name for page in (ROOT / "docs" / "man").iterdir()}


def test_the_source_archive_builds_the_same_wheel(
    packages: tuple[Path, Path], tmp_path: Path
) -> None:
    """`packages` has a wheel of the checkout's archive; this one is of the archive's archive."""
    with tarfile.open(packages[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    _, again = built(source, tmp_path / "dist")
    direct = tmp_path / "direct"
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", direct]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    assert again.read_bytes() == packages[1].read_bytes() == next(direct.iterdir()).read_bytes()


def test_a_package_index_would_take_both(packages: tuple[Path, Path]) -> None:
    words = [sys.executable, "-m", "twine", "check", "--strict", *packages]
    done = subprocess.run(words, capture_output=True, text=True)
    assert not done.returncode, done.stdout


def test_an_installed_command_names_commands_and_files_as_they_are_there(installed: Path) -> None:
    shipped = installed / "dedupindex"
    for words, status in ((["lookup", "none", "--digest", "sha1:" + "A" * 32], 6),
                          (["index", "--help"], 0), (["cover", "--help"], 0),
                          (["demo", "--help"], 0)):  # fmt: skip
        shown = typed(installed, *words, status=status)
        assert "bin/" not in shown and "dedupindex index" in shown or "cover" in words
        for word in shown.replace("(", " ").replace(")", " ").replace(";", " ").split():
            if "conf/" in word or "docs/" in word:
                assert word.startswith(str(shipped)) and Path(word.partition("#")[0]).exists()
    assert f"{shipped}/conf/dedupindex.toml" in typed(installed, "index", "--help")
    assert f"{shipped}/docs/batch.md" in typed(installed, "index", "s3://b/", "s3://b/", status=4)
    where = "from dedupindex.cli.heritrix_profile import CONF; print(CONF / 'dedupindex.groovy')"
    done = subprocess.run([sys.executable, "-c", where], cwd=installed, capture_output=True)
    assert Path(done.stdout.decode().strip()).is_relative_to(shipped)


@contextmanager
def served(installed: Path, index: Path) -> Iterator[str]:
    """The address of the server of an installed package, while it runs."""
    words = [sys.executable, "-m", "dedupindex", "serve", index, "--port", "0", "--json"]
    with subprocess.Popen(
        words, cwd=installed, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def answered(url: str, content: object = None) -> str:
    """What a server answers, also if that is an error."""
    body = None if content is None else json.dumps(content).encode()
    try:
        with urlopen(
            Request(url, body, {"Content-Type": "application/json"}), None, _DEADLINE
        ) as it:
            return str(it.read().decode())
    except HTTPError as error:
        return error.read().decode()


def test_an_installed_server_names_commands_and_files_as_they_are_there(
    installed: Path, tmp_path: Path
) -> None:
    cdx = tmp_path / "one.cdx"
    cdx.write_text(" CDX N b a m s k r M S V g\n" + " ".join((
        *("example,x)/", "20260101000000", "http://x.example/", "image/png", "200"),
        *("sha1:" + "B" * 32, "-", "-", "100", "0", "x.warc.gz\n"),
    )))  # fmt: skip
    typed(installed, "index", cdx, tmp_path / "index")
    typed(installed, "index", "--empty", tmp_path / "empty")
    shown = {}
    with served(installed, tmp_path / "empty") as url:
        shown |= {path: answered(url + path) for path in ("/", "/pages/content")}
    with served(installed, tmp_path / "index") as url:
        shown |= {f"{path} of all": answered(url + path) for path in (*_PAGES, *_OF_API)}
        answered(f"{url}/crawls", {"name": "a"})
        answered(f"{url}/crawls/a/counts", {"not_looked_up": 2})
        shown |= {path: answered(url + path) for path in _OF_CRAWL}
        shown["form"] = answered(f"{url}/pages/what-if", {})
    for path, text in shown.items():
        assert not re.search(r"(?<![\w/.-])(bin/[a-z]|docs/[a-z-]+\.md)", text), path
    for path, command in (
        *(("/", "index"), ("/pages/compare of all", "report"), ("/pages/dry-run of all", "serve")),
        *(("/digest-filter of all", "index"), ("form", "report"), ("/pages/crawl?name=a", "index")),
        *(("/pages/lookup?url=http://x.example/ of all", "list"),),
        *(("/pages/captures?host=x.example of all", "list"),),
        *(("/pages/impact?kind=host&name=x.example of all", "purge"),),
        *(("/crawls/a/report?format=text", "index"),),
    ):
        assert f"dedupindex {command} " in shown[path], path
    assert f"See {installed}/dedupindex/docs/crawlers.md." in shown["/pages/crawl?name=a"]
