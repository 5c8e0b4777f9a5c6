"""Corpora of remote archives: a CDX server lists captures, WARC files are read by range."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from dedupindex.corpus import Corpus
from dedupindex.errors import BadSource
from demo.steps import server
from tests.support.commands import typed
from tests.support.corpora import HEADER, Page, archive, html
from tests.support.stores import Fault, responding, web
from tests.unit.corpus.test_corpus import urls

FIELDS = ("urlkey", "timestamp", "url", "mime", "status", "digest", "redirect", "meta", "length",
          "offset", "filename")  # fmt: skip
OTHERS = {"url": "original", "mime": "mimetype", "status": "statuscode"}  # as others call them


def objects(cdx: Path) -> list[dict[str, Any]]:
    lines = cdx.read_text().splitlines()[1:]
    return [dict(zip(FIELDS, line.split(" "), strict=True)) for line in lines]


def forms(cdx: Path) -> dict[str, str]:
    """The same captures in all forms in which servers answer."""
    found = objects(cdx)
    names = [OTHERS.get(name, name) for name in FIELDS]
    return {
        "eleven": cdx.read_text().removeprefix(HEADER),
        "cdxj": "".join(f"{o['urlkey']} {o['timestamp']} {json.dumps(o)}\n" for o in found),
        "lines": "".join(json.dumps(one) + "\n" for one in found),
        "numbers": json.dumps([{**o, "offset": int(o["offset"])} for o in found]),
        "rows": json.dumps([names, *[list(one.values()) for one in found]]),
    }


def test_every_form_of_an_answer(tmp_path: Path) -> None:
    one = Page("http://a.org/", 1, html("original"))
    cdx = archive(tmp_path, one, Page("http://a.org/", 2, of=one, file="b.warc.gz"))
    wanted = list(Corpus.from_cdx(cdx).enrich("html.title"))
    assert [entry["payload"]["string"]["html"]["title"] for entry in wanted] == ["original"] * 2
    with web(tmp_path) as there:
        for name, text in forms(cdx).items():
            (tmp_path / name).write_text(text)
            there.requests.clear()
            corpus = Corpus.from_archive(
                f"{there.url}/{name}", url="http://a.org/", from_="2026", containers=f"{there.url}/"
            )
            assert list(corpus.enrich("html.title")) == wanted, name
            asked = [(path, part) for _, path, part in there.requests]
            query = f"/{name}?url=http%3A%2F%2Fa.org%2F&from=2026"
            assert asked[:2] == [(query, ""), (f"{query}&showNumPages=true", "")]
            assert all(part for path, part in asked if path == "/a.warc.gz" and part)
            nobody = corpus.where("status == 404").enrich("html.title")
            there.requests.clear()
            assert nobody.count() == 0
            assert [path for _, path, _ in there.requests if "warc" in path] == []
        (tmp_path / "none").write_text("")
        assert Corpus.from_archive(f"{there.url}/none", url="x").count() == 0


@pytest.mark.parametrize("form", ["eleven", "cdxj", "lines", "numbers", "rows"])
def test_all_pages_of_an_answer(tmp_path: Path, form: str) -> None:
    """A server with a compressed index gives the first, and says how many there are if asked."""
    pages = [
        forms(archive(tmp_path / f"{page}", *(
            Page(f"http://a.org/{page}/{n}", body=html(f"{n}")) for n in range(page)
        )))[form].rstrip("\n").encode()
        for page in (1, 2, 3)
    ]  # fmt: skip
    pages.insert(2, b"")  # in whose blocks a filter has left nothing

    def answer(path: str) -> tuple[int, bytes]:
        asked = parse_qs(urlsplit(path).query)
        if "showNumPages" in asked:
            return 200, b'{"pages": 4, "pageSize": 5, "blocks": 17}\n'
        return 200, pages[int(asked.get("page", ["0"])[0])]

    with responding(answer) as there:
        ask = partial(Corpus.from_archive, f"{there.url}/cdx", url="a.org/*")
        assert sorted(urls(ask())) == [f"http://a.org/{p}/{n}" for p in (1, 2, 3) for n in range(p)]
        assert urls(ask(page="1")) == ["http://a.org/2/0", "http://a.org/2/1"]
        assert ask(limit="1").count() == 1
        there.faults.append(Fault("cdx", 9, status=404, when=lambda: len(there.requests) % 2 == 0))
        there.requests.clear()
        assert ask().count() == 1  # one that does not know the question


@pytest.mark.parametrize("count", [b"4\n", b"", b"{}", b"[1]", b'{"pages": "4"}', b"org,a)/ 2026"])
def test_servers_that_do_not_count_pages(tmp_path: Path, count: bytes) -> None:
    cdx = archive(tmp_path, Page("http://a.org/", body=html("x")))
    line = forms(cdx)["cdxj"].encode()
    with responding(lambda path: (200, count if "showNumPages" in path else line)) as there:
        assert Corpus.from_archive(f"{there.url}/cdx", url="a.org").count() == 1


def test_invalid_answers(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("<html>sorry</html>")
    (tmp_path / "half").write_text('[{"url": "http://a.org/"')
    (tmp_path / "odd").write_text('["a", "b"]')
    (tmp_path / "number").write_text('[["urlkey", "timestamp"], 5]')
    (tmp_path / "unnamed").write_text("[[1, 2], [3, 4]]")
    with web(tmp_path) as there:
        report = Corpus.from_archive(f"{there.url}/unnamed", url="x").save_as_json(tmp_path / "o.j")
        assert (report.refused, report.entries) == (1, 0)
        for name, word in (
            ("page", "no known format of a CDX"),
            ("number", "not a capture: 5"),
            ("half", "invalid JSON"),
            ("odd", "not a capture"),
            ("gone", "cannot be read: HTTP 404"),
        ):
            with pytest.raises(BadSource, match=word):
                Corpus.from_archive(f"{there.url}/{name}", url="x").count()
        with pytest.raises(BadSource, match="needs a query with a url"):
            Corpus.from_archive(f"{there.url}/page").count()


def test_an_answer_that_breaks_off_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dedupindex.object_store.stores._FIRST_WAIT", 0.001)
    cdx = archive(tmp_path, *(Page(f"http://a.org/{n}", body=html(str(n))) for n in range(9)))
    (tmp_path / "eleven").write_text(forms(cdx)["eleven"])
    with web(tmp_path) as there:
        there.faults += [Fault("eleven", 1, cut=500), Fault("eleven", 1, status=503)]
        assert Corpus.from_archive(f"{there.url}/eleven", url="x").count() == 9


def test_our_own_server(tmp_path: Path) -> None:
    body = html("original")
    archive(tmp_path / "in", Page("http://a.org/", 1, body), Page("http://b.org/", 2, b"x"))
    with web(tmp_path) as there:
        typed("index", "--by-url", "--whitelist", "--mime", ".*",
                   f"{there.url}/in/a.warc.gz", tmp_path / "index")  # fmt: skip
        with server(tmp_path / "index") as address:
            for output in ("text", "json", "jsondict", "cdxj"):
                corpus = Corpus.from_archive(
                    f"{address}/cdx", url="http://a.org/", output=output,
                    containers=f"{there.url}/in/",
                )  # fmt: skip
                (entry,) = corpus.enrich("html.title")
                assert entry["payload"]["string"]["html"]["title"] == "original", output
            out, _ = typed("corpus", f"{address}/cdx?url=http://a.org/", "--enrich", "mime",
                                "--containers", tmp_path / "in")  # fmt: skip
            assert json.loads(out)["payload"] == {"mime": "text/html"}


def test_odd_values_of_a_server(tmp_path: Path) -> None:
    """No day, a status beyond any, no key: one is refused, the others are captures."""
    day = {"timestamp": "20260230000000", "url": "http://a.org/"}
    big = {"timestamp": "20260201000000", "url": "http://a.org/x", "status": str(1 << 40)}
    (tmp_path / "answer").write_text("".join(json.dumps(one) + "\n" for one in (day, big)))
    with web(tmp_path) as there:
        corpus = Corpus.from_archive(f"{there.url}/answer", url="http://a.org/")
        report = corpus.where("surt == 'org,a)/x'").save_as_parquet(tmp_path / "o.parquet")
    assert (report.refused, report.entries) == (1, 1)
