"""The identity of an index is read back; settings that differ are refused by name."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from dedupindex.errors import (
    Damaged,
    FormatFromFuture,
    FormatFromPast,
    IndexUnavailable,
    SettingsConflict,
)
from dedupindex.index.identity import FILE, OPTIONS, Identity, Settings, read_identity
from dedupindex.urlkey import CANONICALISER

OTHER = Settings(
    url_index=False,
    canonical=False,
    etag=True,
    mime="^image/.*",
    whitelist=True,
    status="2..",
    min_size=7,
    also_digest="sha256",
    keep="latest",
    revisit_annotation="dup",
    by_url=True,
)


def test_an_identity_is_read_back(tmp_path: Path) -> None:
    identity = Identity("whoosh", OTHER, generation=3)
    identity.write(tmp_path)
    assert read_identity(tmp_path) == identity
    assert read_identity(tmp_path).next_generation().generation == 4
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_no_index_is_an_outage_and_not_an_empty_index(tmp_path: Path) -> None:
    with pytest.raises(IndexUnavailable, match=f"no index at {tmp_path}/none"):
        read_identity(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(IndexUnavailable):
        read_identity(tmp_path / "file")


def test_a_future_format_is_refused_by_name(tmp_path: Path) -> None:
    Identity("lmdb", Settings()).write(tmp_path)
    content = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps({**content, "format": 4, "settings": {"new": 1}}))
    with pytest.raises(FormatFromFuture, match=r"format 4, this version reads format 3"):
        read_identity(tmp_path)


def test_an_older_format_is_refused_with_the_command_that_makes_it_anew(tmp_path: Path) -> None:
    """Format 1 had no checksums, so its content can be neither trusted nor copied."""
    chosen = {**asdict(Settings(canonical=False, mime="^text/html")), "gone": 1}
    del chosen["by_url"]  # which came later
    content = {"format": 1, "engine": "lmdb", "settings": chosen, "canonicaliser": CANONICALISER}
    (tmp_path / FILE).write_text(json.dumps({**content, "generation": 3}))
    anew = r"bin/index --no-canonicalized --mime '\^text/html' SOURCE\.\.\. NEW-INDEX"
    with pytest.raises(FormatFromPast, match=f"format 1, .* reads format 3 .* copy it; .*{anew}"):
        read_identity(tmp_path)


def test_a_flipped_bit_of_an_identity_is_never_another_identity(tmp_path: Path) -> None:
    Identity("whoosh", OTHER, generation=3).write(tmp_path)
    sound, before = (tmp_path / FILE).read_bytes(), read_identity(tmp_path)
    for bit in range(8 * len(sound)):
        data = bytearray(sound)
        data[bit // 8] ^= 1 << bit % 8
        (tmp_path / FILE).write_bytes(data)
        with suppress(Damaged, IndexUnavailable):
            assert read_identity(tmp_path) == before  # white space


@pytest.mark.parametrize("name", [field.name for field in fields(Settings)])
def test_every_setting_is_refused_by_its_name_and_option(name: str) -> None:
    other = replace(Settings(), **{name: getattr(OTHER, name)})
    with pytest.raises(SettingsConflict, match=rf"with {name} = .*leave {OPTIONS[name]} out"):
        Identity("lmdb", Settings()).check_settings("lmdb", other)
    with pytest.raises(SettingsConflict, match=rf"with {name} = .*leave {OPTIONS[name]} out"):
        Identity("lmdb", other).check_settings("lmdb", Settings())


def test_engine_and_canonicaliser_are_refused_by_name() -> None:
    identity = Identity("lmdb", Settings())
    identity.check_settings("lmdb", Settings())
    with pytest.raises(SettingsConflict, match="engine lmdb, not whoosh"):
        identity.check_settings("whoosh", Settings())
    other = replace(identity, canonicaliser="surt-0.2")
    with pytest.raises(SettingsConflict, match=f"of surt-0.2, .* those of {CANONICALISER}"):
        other.check_settings("lmdb", Settings())


def test_without_urls_there_are_no_canonical_ones() -> None:
    assert not Settings(url_index=False).keys().canonical


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "[1]",
        "null",
        "7",
        '"format"',
        "{}",
        '{"format": 3}',
        '{"format": 3, "settings": []}',
        '{"format": 3, "engine": "lmdb", "settings": {"url_index": true}}',
    ],
)
def test_a_damaged_identity_is_not_a_missing_one(content: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(Damaged, match=FILE):
        read_identity(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("engine", 5), ("generation", "x"), ("generation", -1), ("canonicaliser", None), ("more", 1)],
)
def test_values_of_wrong_types_are_damage(name: str, value: object, tmp_path: Path) -> None:
    Identity("lmdb", Settings()).write(tmp_path)
    content = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps({**content, name: value}))
    with pytest.raises(Damaged, match=FILE):
        read_identity(tmp_path)


@pytest.mark.parametrize(("name", "value"), [("keep", 1), ("url_index", "yes"), ("min_size", None)])
def test_settings_of_wrong_types_are_damage(name: str, value: object, tmp_path: Path) -> None:
    Identity("lmdb", Settings()).write(tmp_path)
    content = json.loads((tmp_path / FILE).read_text())
    content["settings"][name] = value
    (tmp_path / FILE).write_text(json.dumps(content))
    with pytest.raises(Damaged, match=FILE):
        read_identity(tmp_path)
