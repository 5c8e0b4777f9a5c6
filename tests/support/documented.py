"""Runs the commands that pages of the manual show, as they are typed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from demo.steps import free_port
from tests.support.paths import ROOT

# Pages, where what they show begins and ends, and how many commands it has at least.
PAGES = {
    "README.md": ("\n## Your own WARCs\n", "\n## Where to go on\n", 20),
    "docs/post-crawl.md": ("# After the crawl\n", "\n| word |", 11),
    "docs/documents.md": ("# Documents\n", "\n## Globs\n", 7),
    "docs/from-deduplicator.md": ("\n## An example\n", "\n## What is different\n", 5),
    "docs/from-outbackcdx.md": ("\n## Taking captures over\n", "\n## What is different\n", 4),
    "docs/from-jwarc.md": ("\n## An example\n", "\n## What is different\n", 4),
    "docs/corpus.md": ("# Corpora\n", "\n## An example\n", 2),
}
_NOT_HERE = (  # the web, Heritrix, S3, an OutbackCDX
    "wget ", "bin/heritrix-profile", "bin/corpus my.cdx", "bin/index --all --by-url outbackcdx",
)  # fmt: skip
_AWAIT = 'for _ in {1..900}; do curl -s "$server/healthz" && break; sleep 0.1; done\n'


def run_page(page: str, home: Path, directory: Path, *, programs: Path | None = None) -> None:
    """Type what a page shows in a directory, with archives in `home`; check what it answers.

    The commands are those of ``bin/``, or of the package that is installed beside `programs`.
    """
    begin, end, least = PAGES[page]
    shown_here = (ROOT / page).read_text().split(begin)[1].split(end)[0]
    lines = [line[4:] for line in shown_here.splitlines() if line.startswith("    ")]
    typed = [line for line in lines if not line.startswith((*_NOT_HERE, "{", ' "'))]
    assert len(typed) >= least
    for folder, name in (("my-warcs", "example.warc.gz"), ("new-crawl", "warcfile.warc.gz")):
        (home / folder).mkdir()
        shutil.copy(ROOT / "tests" / "data" / "warc" / name, home / folder)
    (home / "my-arcs").mkdir()
    shutil.copy(ROOT / "tests" / "data" / "warc" / "example.arc.gz", home / "my-arcs")
    shutil.copy(home / "my-warcs" / "example.warc.gz", home / "my-warcs" / "again.warc.gz")
    port = str(free_port())
    script = "\n".join(typed).replace("curl ", "curl -sS --fail ").replace("8484", port)
    begun = f" 2>~/log &\nserver=http://127.0.0.1:{port}\n{_AWAIT}"
    script = re.sub(r" &$", begun, script, flags=re.MULTILINE)
    environment = {**os.environ, "HOME": str(home)}
    if programs is not None:
        script = re.sub(r"(?<![\w/.-])bin/(?=[a-z])", "dedupindex ", script)
        environment.pop("PYTHONPATH", None)  # of bin/test: the checkout
        environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", f"trap 'kill $(jobs -p) 2>/dev/null || :' EXIT\n{script}"],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = "".join(line.strip() for line in lines if line.startswith(("{", ' "')))
    for part in re.split("…}*", shown):  # the answers that it shows are those that come
        assert part.rstrip(",") in done.stdout
