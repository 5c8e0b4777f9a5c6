"""The routes of the digest filter: who gets it, in which pieces, and what has changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from dedupindex import digest_filter
from dedupindex.digest_filter import KnownKey, Part, read_manifest
from dedupindex.errors import Damaged
from dedupindex.index import tokens
from dedupindex.index.engines.engine_base import FileEngine
from dedupindex.index.filter_store import FilterStore
from dedupindex.index.tokens import Role
from server.api import filter_routes
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1
from tests.support.commands import typed


@pytest.fixture
def index(make_index: MakeIndex) -> Path:
    index = make_index([capture(number) for number in range(40)])
    typed("index", "--digest-filter", index)
    return index


def served(index: Path, *, private: bool = False) -> FlaskClient:
    live = LiveIndex(index)
    live.refresh()
    return create_app(Config(index, private=private), live).test_client()


def test_the_manifest_names_parts_that_have_every_digest(index: Path) -> None:
    web = served(index)
    answer = web.get("/digest-filter")
    (info,) = read_manifest(answer.data)
    assert answer.get_json()["digests"] == info.digests == 40
    data = web.get(f"/digest-filter/{info.id}")
    assert data.content_type == "application/octet-stream"
    assert data.content_length == info.size == len(data.data)
    part = Part(data.data, info.id)
    assert all(part.may_have(KnownKey.of(*sha1(number))) for number in range(40))
    assert sum(part.may_have(KnownKey.of(*sha1(number))) for number in range(40, 1040)) < 20


def test_what_has_not_changed_is_not_sent_again(index: Path) -> None:
    web = served(index)
    first = web.get("/digest-filter")
    assert first.headers["Cache-Control"] == "no-cache"
    unchanged = web.get("/digest-filter", headers={"If-None-Match": first.headers["ETag"]})
    assert (unchanged.status_code, unchanged.data) == (304, b"")
    path = f"/digest-filter/{first.get_json()['parts'][0]['id']}"
    part = web.get(path)
    assert "immutable" in part.headers["Cache-Control"]
    held = {"If-None-Match": part.headers["ETag"]}
    assert web.get(path, headers=held).status_code == 304
    assert web.get(f"{path}?piece=0", headers=held).status_code == 200


def test_a_part_comes_in_pieces(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    web = served(index)
    (info,) = read_manifest(web.get("/digest-filter").data)
    path = f"/digest-filter/{info.id}"
    assert digest_filter.PIECE == 4 << 20
    monkeypatch.setattr(filter_routes, "PIECE", 50)
    pieces = [web.get(f"{path}?piece={n}").data for n in range(info.size // 50 + 3)]
    assert b"".join(pieces) == web.get(path).data and pieces[-1] == b""
    for wrong in ("piece=-1", "piece=x", "piece=1&piece=2", "part=1", "piece=1000000000"):
        assert web.get(f"{path}?{wrong}").status_code == 400


def test_what_is_not_there_is_not_found(make_index: MakeIndex, index: Path) -> None:
    plain = served(make_index([capture(1)]))
    answer = plain.get("/digest-filter")
    assert (answer.status_code, answer.get_json()["error"]["code"]) == (404, "no_filter")
    assert 'dedupindex_errors_total{code="no_filter"} 0.0' in plain.get("/metrics").text
    assert "Errors answered" not in plain.get("/").text  # it was asked whether there is one
    web = served(index)
    for name in ("0" * 64, "x", "manifest.json", "..%2Findex.json", "A" * 64):
        answer = web.get(f"/digest-filter/{name}")
        assert (answer.status_code, answer.get_json()["error"]["code"]) == (404, "not_found")


def test_a_damaged_manifest_is_no_filter(index: Path) -> None:
    web = served(index)
    path = FilterStore(index).directory / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"digests": 40', b'"digests": 4.'))
    answer = web.get("/digest-filter")
    assert (answer.status_code, answer.get_json()["error"]["code"]) == (503, "damaged")
    with pytest.raises(Damaged):
        FilterStore(index).manifest()
    assert "dedupindex_ready" in web.get("/metrics").text


def test_a_filter_of_another_state_of_the_index_is_not_sent(
    make_index: MakeIndex, index: Path
) -> None:
    """As after the files of an index were restored beside the filter of a newer one."""
    other = make_index([capture(number) for number in range(1000, 1040)])
    shutil.copytree(index / "filter", other / "filter")
    assert "another state" in typed("index", "--check", other, status=Damaged.exit_status)[0]
    answer = served(other).get("/digest-filter")
    assert (answer.status_code, answer.get_json()["error"]["code"]) == (404, "no_filter")


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_filter_is_sent_while_the_index_is_loaded(
    index: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It has what is loaded, whichever of both a server has seen."""
    web, state = served(index), FileEngine._state
    store = FilterStore(index)

    def loaded(engine: FileEngine) -> int:
        if when == "meanwhile":
            store.commit(77)
        return state(engine) + 1

    if when == "before":
        store.extend([])
    monkeypatch.setattr(FileEngine, "_state", loaded)
    assert web.get("/digest-filter").get_json()["digests"] == 40


@pytest.mark.parametrize("private", [False, True])
def test_only_those_who_may_look_up_get_it(index: Path, private: bool) -> None:
    (info,) = FilterStore(index).manifest().parts
    secret, web = (
        tokens.add(index, "reader", Role.READ, namespaces="news"),
        served(index, private=private),
    )
    for headers in ({}, {"Authorization": f"Bearer {secret}"}, {"Authorization": "Bearer x"}):
        allowed = web.get(f"/lookup?digest={sha1(1)}", headers=headers).status_code
        assert allowed == (401 if private and secret not in str(headers) else 200)
        for path in ("/digest-filter", f"/digest-filter/{info.id}"):
            assert web.get(path, headers=headers).status_code == allowed


def test_its_size_is_in_the_metrics(index: Path) -> None:
    assert "dedupindex_filter_digests 40.0" in served(index).get("/metrics").text
