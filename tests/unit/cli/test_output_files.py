"""A command replaces a file that it may have written before, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from dedupindex.cli.output_files import CDX, check_output
from dedupindex.errors import BadInput
from tests.conftest import MakeIndex
from tests.support.captures import capture
from tests.support.commands import typed
from tests.support.verifying import write as write_records
from tests.support.warc_cases import gz, response
from tests.unit.export.test_cdx_file import EVERYTHING

FORMS = ["--cdx", "--cdxj", "--wget"]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "t.warc.gz"
    path.write_bytes(gz(response()))
    return path


@pytest.mark.parametrize("form", [*FORMS, "--warcprox"])
def test_an_export_overwrites_no_other_file(
    form: str, make_index: MakeIndex, archive: Path, tmp_path: Path
) -> None:
    index, plain = make_index([capture(1)], EVERYTHING), tmp_path / "notes"
    plain.write_text("http://example.com/a\n")
    files = [archive, plain, index / "index.json"]
    before = [path.read_bytes() for path in files]
    for path in files:
        _, said = typed("export", form, index, "--out", path, status=4)
        assert str(path) in said
    assert [path.read_bytes() for path in files] == before
    _, said = typed("export", form, index, "--out", index / "new", status=4)
    assert "is in the directory of an index" in said


@pytest.mark.parametrize("form", FORMS)
def test_an_export_replaces_an_earlier_one_of_its_form(
    form: str, make_index: MakeIndex, tmp_path: Path
) -> None:
    index, other, out = make_index([capture(1)], EVERYTHING), tmp_path / "other", tmp_path / "out"
    out.touch()  # as mktemp makes it
    typed("export", form, index, "--out", out)
    whole = out.read_bytes()
    out.write_bytes(whole[:-10])
    typed("export", form, index, "--out", out)
    assert out.read_bytes() == whole
    typed("export", FORMS[FORMS.index(form) - 1], index, "--out", other)
    _, said = typed("export", form, index, "--out", other, status=4)
    assert "is not overwritten: name another, or remove it" in said


@pytest.mark.parametrize("option", ["--seeds", "--hosts"])
def test_an_export_overwrites_no_input(option: str, make_index: MakeIndex, tmp_path: Path) -> None:
    index, read = make_index([capture(1)], EVERYTHING), tmp_path / "s.txt"
    for text in ("", " CDX a k u\n"):  # which could be replaced otherwise
        read.write_text(text)
        link = tmp_path / "link"
        link.unlink(missing_ok=True)
        link.symlink_to(read)
        _, said = typed("export", "--wget", index, option, read, "--out", link, status=4)
        assert "is read by this command" in said and read.read_text() == text


def test_lists_of_other_commands_overwrite_no_archive(archive: Path, tmp_path: Path) -> None:
    source = tmp_path / "warcs" / "a.warc.gz"
    source.parent.mkdir()
    write_records(source, [response()])
    before, manifest = archive.read_bytes(), tmp_path / "manifest"
    typed("manifest", source, "-o", manifest, "--text", tmp_path / "lines")
    typed("manifest", source, "-o", manifest, "--text", tmp_path / "lines")
    typed("resolve", manifest, "-o", tmp_path / "plan", "--text", tmp_path / "ten-fields")
    typed("resolve", manifest, "-o", tmp_path / "again", "--text", tmp_path / "ten-fields")
    hashes = tmp_path / "hashes"
    typed("hash_documents", str(source), hashes)
    for unique in ("unique.csv", "unique.parquet"):
        for _ in range(2):
            typed("dedup_hashes", f"{hashes}/*.parquet", tmp_path / unique)
    hidden = tmp_path / "archive.csv"
    hidden.symlink_to(archive)
    for words in (
        ("manifest", source, "-o", manifest, "--text", archive),
        ("resolve", manifest, "-o", tmp_path / "plan", "--text", archive),
        ("dedup", source, "--out", tmp_path / "out", "--offsets", archive),
        ("dedup", source, "--out", tmp_path / "out", "--cdxj", archive),
        ("plan", "--documents", "--svg", archive),
        ("dedup_hashes", f"{hashes}/*.parquet", archive),
        ("dedup_hashes", f"{hashes}/*.parquet", hidden),
    ):
        _, said = typed(*words, status=4)
        assert "is not overwritten" in said
        assert archive.read_bytes() == before
    typed("manifest", source, "-o", manifest, "--check", tmp_path / "lines")
    _, said = typed(
        "manifest", source, "-o", manifest, "--check", tmp_path / "lines", "--text",
        tmp_path / "lines", status=4,
    )  # fmt: skip
    assert "is read by this command" in said


def test_a_corpus_overwrites_no_archive_of_another_name(archive: Path, tmp_path: Path) -> None:
    named = tmp_path / "t.jsonl"
    archive.rename(named)
    before = named.read_bytes()
    source = tmp_path / "a.warc.gz"
    write_records(source, [response()])
    _, said = typed("corpus", source, "-o", named, status=4)
    assert "archives are never overwritten" in said and named.read_bytes() == before
    lines = tmp_path / "lines.jsonl.zst"
    for _ in range(2):
        typed("corpus", source, "-o", lines)


def test_what_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "x.cdx").write_bytes(b" CDX N b a")  # cut within the header
    with pytest.raises(BadInput, match="is no CDX of 11 columns"):
        check_output(tmp_path / "x.cdx", CDX)
