"""Canonical URLs of OpenWayback, as the DeDuplicator has them: what docs/formats.md says of them.

The DeDuplicator is in no registry: its archive must be in DEDUPINDEX_PEERS. Groovy is Heritrix's.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.peers.environments import DEADLINE
from tests.peers.heritrix import heritrix_home
from tests.unit.test_urlkey import url_pairs

pytestmark = pytest.mark.peer
SCRIPT = """
def keys = new org.archive.wayback.util.url.AggressiveUrlCanonicalizer()
System.in.eachLine('UTF-8') { println keys.urlStringToKey(it) }
"""


def test_the_table_of_the_docs_is_right_about_openwayback(tmp_path: Path) -> None:
    archive = Path(os.environ.get("DEDUPINDEX_PEERS", "."), "deduplicator.tar.gz")
    if not archive.exists():
        pytest.skip("deduplicator.tar.gz is in no package registry and not in DEDUPINDEX_PEERS")
    (groovy,) = (heritrix_home() / "lib").glob("groovy-[0-9]*.jar")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    pairs = url_pairs()
    urls = [url for pair in pairs for url in (pair.one, pair.other)]
    path = f"{groovy}:{tmp_path}/deduplicator/lib/*"
    done = subprocess.run(
        ["java", "-Dfile.encoding=UTF-8", "-cp", path, "groovy.ui.GroovyMain", "-e", SCRIPT],
        input="\n".join(urls), capture_output=True, encoding="utf-8", timeout=DEADLINE,
    )  # fmt: skip
    keys = done.stdout.splitlines()
    assert len(keys) == len(urls), done.stderr
    for number, pair in enumerate(pairs):
        assert (keys[2 * number] == keys[2 * number + 1]) is pair.openwayback, pair
