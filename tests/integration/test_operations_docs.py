"""The commands of docs/operations.md, in the order of the page, on one machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from demo.steps import free_port
from tests.support.paths import ROOT

# What the page calls things, and what they are here: programs run where the script puts them.
HERE = {
    "INDEX": "my-index",
    "~/warcs": "warcs",
    "~/new-crawl": "new-crawl",
    "/data/": "data/",
    "/backup/": "nightly/",
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
