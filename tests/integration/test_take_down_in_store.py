"""Taking a URL out of results in a store, as the manual shows it: few files change."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from textwrap import dedent

import pytest

from tests.support.commands import typed
from tests.support.paths import ROOT
from tests.support.stores import Bucket
from tests.unit.post_crawl.test_index_originals import write

URL = "http://a.test/0"
BODIES = [Random(number).randbytes(1500) for number in range(3)]
PAGE = (ROOT / "docs/post-crawl-in-stores.md").read_text()


def shown(begin: str) -> list[str]:
    part = PAGE.split(begin)[1].split("\n\n`bin/undedup` restores all records")[0]
    return re.findall(r"^    (\S.*?)(?: {2,}#.*)?$", part, re.MULTILINE)


def copy(bucket: Bucket, source: str, target: str) -> None:
    """As ``aws s3 cp`` does."""
    if source.startswith("s3://"):
        key = source.removeprefix(f"{bucket.url}/")
        data = bucket.client.get_object(Bucket=bucket.name, Key=key)["Body"].read()
    else:
        data = Path(source).read_bytes()
    if target.startswith("s3://"):
        bucket.put(target.removeprefix(f"{bucket.url}/"), data)
    else:
        Path(target).write_bytes(data)


def named(output: str) -> set[tuple[str, str]]:
    """The files that bin/impact --list names, and for what."""
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    kinds = ("original", "copy", "revisit", "dependent")
    return {(kind, one[kind]["container"]) for one in rows for kind in kinds if kind in one}


def test_the_commands_as_typed(
    tmp_path: Path, buckets: Callable[[], Bucket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more file has a revisit of another record of the file that changes."""
    bucket = buckets()
    monkeypatch.chdir(tmp_path)
    sources = {}
    for day, host, bodies in ((2, "a", BODIES), (3, "b", BODIES), (4, "d", BODIES[1:2])):
        path = write(tmp_path / f"set/2020/{host}.warc.gz", day, bodies, host)
        sources[host] = path.read_bytes()
        bucket.put(f"warcs/2020/{host}.warc.gz", sources[host])
    url, index = bucket.url, tmp_path / "my-index"
    typed("index", "--all", f"{url}/warcs/", index)
    typed("dedup", f"{url}/warcs", "--out", f"{url}/smaller", "--state", "state")
    typed("index", "--replace", f"{url}/smaller", index, "--instead-of", f"{url}/warcs")
    untouched = bucket.content("smaller")["2020/d.warc.gz"]
    page = (ROOT / "docs/in-place.md").read_text()
    begin = page.index("        import os, sys  # of WARC")
    script = dedent(page[begin : page.index("\n   Put the new file", begin)])
    Path("take_out.py").write_text(script)
    lines = shown("\n## Taking down one URL\n")
    assert len(lines) == 9
    for line in lines:
        line = line.replace("s3://bucket", url).replace("http://example.com/secret", URL)
        words = shlex.split(line.replace("~/", ""))
        match words[:3]:
            case ["aws", "s3", "cp"]:
                copy(bucket, *words[3:])
            case ["python", *_]:
                subprocess.run([sys.executable, *words[1:]], check=True)
            case _:
                words = words[: words.index(">")] if ">" in words else words
                output, _ = typed(words[0].removeprefix("bin/"), *words[1:])
                if words[0] == "bin/impact":
                    assert named(output) == {
                        ("original", f"{url}/smaller/2020/a.warc.gz"),
                        ("dependent", f"{url}/smaller/2020/b.warc.gz"),
                    }
    assert bucket.content("smaller")["2020/d.warc.gz"] == untouched
    typed("impact", index, "--url", URL, status=10)
    typed("index", "--check", index)
    listed, _ = typed("list", index, "--json")
    places = {one["url"]: one["container"] for one in map(json.loads, listed.splitlines())}
    assert URL not in places and places["http://b.test/0"] == f"{url}/smaller/2020/b.warc.gz"
    typed("undedup", f"{url}/smaller", "--state", "state", "--out", "later")
    typed("verify", "--against", "set/2020/d.warc.gz", "later/2020/d.warc.gz", "--records")
    typed("verify", "--against", "set/2020/b.warc.gz", "later/2020/b.warc.gz", "--records")
