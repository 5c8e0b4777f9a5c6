"""The oldest versions that pyproject.toml allows: the most usual commands run with them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.peers.environments import ROOT, environment
from tests.support.rewriting import small_set

pytestmark = pytest.mark.peer
Run = Callable[..., str]
CLIENT = """
import subprocess, sys
from dedupindex.client import Client
line = [sys.executable, "-m", "dedupindex", "serve", sys.argv[1], "--port", "0", "--json"]
with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as server:
    try:
        import json
        url = json.loads(server.stdout.readline())["url"]
        with Client(url) as client:
            print(type(client.lookup(sys.argv[2], url=sys.argv[3])).__name__)
    finally:
        server.terminate()
"""


def oldest() -> tuple[str, ...]:
    """Each dependency at its lower bound; but PySpark, which is half a gigabyte."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = settings["project"]
    extras = project["optional-dependencies"]
    del extras["spark"]
    wanted = [*project["dependencies"], *(text for extra in extras.values() for text in extra)]
    return tuple(re.sub(r">=([0-9.]+).*", r"==\1", text) for text in wanted)


@pytest.fixture(scope="module")
def python() -> Path:
    return environment("lower-bounds", oldest()) / "python"


@pytest.fixture
def run(python: Path, tmp_path: Path) -> Run:
    def typed(*words: object, status: int = 0) -> str:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
        line = [str(python), *map(str, words)]
        done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=env)
        assert done.returncode == status, done.stderr[-3000:]
        return done.stdout

    return typed


@pytest.fixture
def command(run: Run) -> Run:
    return lambda *words, **options: run("-m", "dedupindex", *words, **options)


@pytest.fixture
def warcs(tmp_path: Path) -> Path:
    small_set(tmp_path / "warcs")
    return tmp_path / "warcs"


def test_the_versions_are_the_oldest(run: Run) -> None:
    said = run("-m", "pip", "freeze").lower().replace("_", "-")
    for text in oldest():
        name = re.sub(r"\[.*\]", "", text)
        assert f"{name}\n" in f"{said}\n", name


def test_the_main_job(run: Run) -> None:
    """Harvest, index, serve and look up, report: Granian, Flask, LMDB and warcio."""
    run("-m", "demo", "--out", "demo")


@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
def test_an_index_is_looked_after(command: Run, warcs: Path, engine: str) -> None:
    everything = ("-w", "-m", ".*", "--engine", engine)
    command("index", *everything, warcs / "a.warc.gz", "index")
    command("index", "--add", warcs / "c.warc", "index")
    command("index", "--check", "index")
    command("index", "--compact", "index")
    assert json.loads(command("index", "--stats", "--json", "index"))["captures"]
    command("impact", "index", "--url", "http://example.com/", "--prefix")
    if engine == "whoosh":
        assert "example.com" in command("search", "index", "host:example.com")


def test_a_client_asks(command: Run, run: Run, warcs: Path) -> None:
    command("index", "-w", "-m", ".*", warcs, "index")
    listed = command("impact", "index", "--url", "http://example.com/", "--prefix", "--list")
    original = json.loads(listed.splitlines()[0])["original"]
    assert run("-c", CLIENT, "index", original["digest"], original["url"]) == "Hit\n"


def test_archives_become_smaller(command: Run, warcs: Path) -> None:
    assert json.loads(command("dedup", warcs, "--out", "out", "--json"))["revisits"] == 19
    command("verify", "--against", warcs, "out")
    command("undedup", "out", "--out", "back")


def test_a_corpus_and_its_cover(command: Run, run: Run) -> None:
    run("-m", "demo", "--out", "demo")
    enrich = ("--enrich", "html.title,text,language")
    harvests = ("demo/first.warc.gz", "demo/second.warc.gz")  # the second one has revisits
    command("corpus", *harvests, *enrich, "-o", "pages.jsonl.zst")
    relation = ROOT / "conf" / "cover" / "journalist.txt"
    told = command("cover", "pages.jsonl.zst", "--relation", relation, "-o", "c.jsonl", "--json")
    assert json.loads(told)["documents"]


def test_documents(command: Run, warcs: Path) -> None:
    command("run_pipeline", f"{warcs}/*", "pipeline")


def test_the_other_packages_are_found(run: Run) -> None:
    """A cluster and Redis are not there, but their clients load as we use them."""
    modules = ("index.engines.cassandra.cql", "sources.browsertrix", "object_store.stores")
    run("-c", "; ".join(f"import dedupindex.{module}" for module in modules))
    store = "import s3fs, fsspec.implementations.http as h; s3fs.S3FileSystem._iterdir"
    run("-c", f"{store}; h.HTTPFileSystem._ls; import redis.backoff, redis.retry")
    run("-c", "import brotli; brotli.Decompressor().process(b'', output_buffer_limit=1)")
