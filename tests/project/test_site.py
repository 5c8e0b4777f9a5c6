"""The manual as a site: `bin/docs`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run([ROOT / "bin" / "docs", out], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return out


def test_every_page_is_in_the_site_and_loads_what_is_in_it(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert {path.stem for path in (site / "docs").glob("*.html")} == pages
    loaded = re.compile(r"<(?:script|img|iframe)[^>]* src=\"([^\"]+)|<link[^>]* href=\"([^\"]+)")
    styles = "".join(path.read_text() for path in site.glob("_static/**/*.css"))
    assert not re.search(r"url\([\"']?(?:https?:)?//|@import", styles)
    seen = 0
    for page in site.glob("**/*.html"):
        for found in loaded.finditer(page.read_text()):
            address = (found[1] or found[2]).partition("?")[0].partition("#")[0]
            seen += 1
            assert (page.parent / address).exists(), f"{page.name} loads {address}"
    assert seen > 100


def test_the_site_has_a_search_and_the_docstrings(site: Path) -> None:
    index = (site / "searchindex.js").read_text()
    assert "Search.setIndex" in index and "doppelgang" in index  # words are stemmed
    reference = (site / "docs" / "api.html").read_text()
    for name in ("dedupindex.build", "dedupindex.Index.lookup", "dedupindex.client.Client.lookup"):
        assert f'id="{name}"' in reference or f'href="#{name}"' in reference, name
