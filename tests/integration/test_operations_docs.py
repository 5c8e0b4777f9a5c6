"""The commands of docs/operations.md on one machine, and the script that takes records out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from warcio.archiveiterator import ArchiveIterator

from demo.steps import free_port
from tests.support.paths import ROOT

# What the page calls things, and what they are here: programs run where the script puts them.
HERE = {
    "INDEX": "my-index",
    "~/warcs": "warcs",
    "~/new-crawl": "new-crawl",
    "/data/": "data/",
    "/backup/": "nightly/",
    "/repository/": "repository/",
    "crawl-1.warc.gz": "example.warc.gz",
    "http://example.com/secret": "http://example.com/",
}
BEGIN = (
    "curl -sS --fail $server/crawls -H 'Content-Type: application/json' -d '{\"name\": \"weekly\"}'"
)


def commands() -> list[str]:
    """The commands that the page shows, but those on a cluster."""
    page = (ROOT / "docs/operations.md").read_text()
    alone, rest = page.split("\n## On a cluster\n")
    _, removing = rest.split("\n## Removing captures\n")
    shown = re.findall(r"^    (bin/.*)$", alone + removing, re.MULTILINE)
    assert any(line.startswith("bin/purge ") for line in shown)
    for word, here in HERE.items():
        shown = [line.replace(word, here) for line in shown]
    return shown


def served(line: str) -> list[str]:
    """Start a server as a line shows, on a port of its own, and wait until it answers."""
    line, port = line.partition("#")[0], free_port()
    secure = "--tls-cert" in line
    server = f"{'https://dedup.example.org' if secure else 'http://127.0.0.1'}:{port}"
    trusted = f"--cacert fullchain.pem --resolve dedup.example.org:{port}:127.0.0.1"
    wait = "curl -sS --fail --retry 60 --retry-delay 1 --retry-connrefused"
    return [
        f"server={server}; {line} --port {port} & pid=$!",
        f"{wait} {trusted if secure else ''} $server/healthz",
    ]


def test_each_command_works_as_typed(tmp_path: Path) -> None:
    (tmp_path / "bin").symlink_to(ROOT / "bin")
    for folder, name in (
        ("warcs", "example.warc.gz"),
        ("repository/warcs", "example.warc.gz"),  # where it was moved
        ("new-crawl", "warcfile.warc.gz"),
        ("data/weekly-46", "example.warc.gz"),
        ("data/weekly-47", "warcfile.warc.gz"),
        ("nightly", "README.md"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        shutil.copy(ROOT / "tests/data/warc" / name, tmp_path / folder)
    typed = commands()
    first = next(line for line in typed if line.startswith("bin/serve"))
    script = [
        "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out fullchain.pem -days 1"
        " -subj /CN=dedup.example.org -addext subjectAltName=DNS:dedup.example.org",
        "chmod 600 key.pem",
    ]
    earlier = "bin/index --add --crawl weekly-46 data/weekly-46/ my-index"  # the crawl before
    for line in typed:
        if line == first:
            script.append(earlier)
        if line.startswith("bin/serve"):
            script += served(line)
            script.append(BEGIN if line == first else "kill $pid; wait $pid")
        else:
            script += ["rm -rf backup"] if "--copy backup/" in line else []
            script += line.split(" && ")  # of two, -e would overlook that the first fails
    assert len(typed) >= 30
    mine = {name: text for name, text in os.environ.items() if not name.startswith("DEDUPINDEX_")}
    whole = "\n".join(["trap 'kill $(jobs -p) 2>/dev/null || :' EXIT", *script])
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", whole],
        cwd=tmp_path, env={**mine, "HOME": str(tmp_path)}, capture_output=True, text=True,
        check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("example.warc.gz", ["warcinfo", "warcinfo"]),
        ("example.warc", ["warcinfo", "warcinfo"]),
        ("example.arc.gz", ["arc_header"]),
        ("example.arc", ["arc_header"]),
    ],
)
def test_the_script_takes_the_records_of_a_url_out_and_leaves_all_else(
    tmp_path: Path, name: str, left: list[str]
) -> None:
    page = (ROOT / "docs/in-place.md").read_text()
    begin = page.index("        import os, sys")
    script = dedent(page[begin : page.index("\n   Put the new file", begin)])
    before, after = tmp_path / name, tmp_path / f"without-{name}"
    shutil.copy(ROOT / "tests/data/warc" / name, before)

    def without(url: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-c", script, url, before, after]
        return subprocess.run(line, check=False, capture_output=True, text=True)

    other = without("http://example.org/other")
    assert other.returncode == 1
    assert other.stderr == f"{before}: no record of http://example.org/other\n"
    assert after.read_bytes() == before.read_bytes()
    assert without("http://example.com/").returncode == 0
    with open(after, "rb") as stream:
        assert [record.rec_type for record in ArchiveIterator(stream)] == left
    assert before.read_bytes().startswith(after.read_bytes()[:100])
