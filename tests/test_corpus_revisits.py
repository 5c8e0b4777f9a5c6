"""Revisits in corpora: which original they are read as, and what is counted once."""

from __future__ import annotations

from pathlib import Path

import pytest

from dedupindex.corpus import Corpus
from dedupindex.errors import BadInput
from tests.corpora import Page, archive, html


def _days(corpus: Corpus) -> list[tuple[str, int]]:
    return sorted((e["record"]["originalUrl"], int(e["record"]["timestamp"][8:10])) for e in corpus)


def test_each_digest_once_of_those_that_pass(tmp_path: Path) -> None:
    same, other = html("Y"), html("X")
    pages = (Page("http://b.org/", 1, same), Page("http://a.org/", 2, other),
             Page("http://a.org/", 3, same), Page("http://a.org/", 4, other))  # fmt: skip
    once = Corpus.from_cdx(archive(tmp_path, *pages)).having(revisits="once", jobs=1)
    passed = once.filter("record", lambda record: "a.org" in record["originalUrl"])
    assert _days(passed) == [("http://a.org/", 2), ("http://a.org/", 3)]
    assert _days(once.where("hostname == 'a.org'")) == _days(passed)
    titled = once.filter("payload.string.html.title")
    assert _days(titled) == [("http://a.org/", 2), ("http://b.org/", 1)]
    assert _days(once.latest("url")) == [("http://a.org/", 4), ("http://b.org/", 1)]
    with pytest.raises(BadInput, match="grouped only once"):
        titled.latest("url")
    with pytest.raises(BadInput, match="grouped only once"):
        titled.having(revisits="resolve").latest("url").having(revisits="once")
