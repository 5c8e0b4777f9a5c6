"""A refused command leaves no files: no second index, no empty directory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dedupindex.cli import main
from dedupindex.errors import FOR_CLIENTS, BadInput, as_called
from dedupindex.index import open_index
from dedupindex.indexer.pipeline import build_index
from tests.conftest import MakeIndex, need
from tests.support.captures import capture
from tests.support.commands import ended, typed
from tests.support.paths import ROOT
from tests.support.rewriting import small_set
from tests.support.verifying import write as write_records
from tests.support.warc_cases import HTTP, gz, request, response, revisit, sha1
from tests.unit.indexer.test_never_originals import write
from tests.unit.indexer.test_pipeline import HEADER, cdx_line


@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
@pytest.mark.parametrize("action", ["--add", "--replace"])
def test_adding_needs_an_index(action: str, engine: str, tmp_path: Path) -> None:
    """A name that is misspelled makes no second index, with other settings."""
    source, index, typo = tmp_path / "x.cdx", tmp_path / "index", tmp_path / "indx"
    source.write_text(HEADER + cdx_line(1, 1, 1))
    words = ("index", action, "--engine", engine, source)
    _, messages = typed(*words, typo, status=6)
    assert f"there is no index at {typo} to add to" in messages
    assert f"bin/index SOURCE... {typo}" in messages and f"bin/index --empty {typo}" in messages
    assert not typo.exists()
    typo.mkdir()
    typed(*words, typo, status=6)
    assert list(typo.iterdir()) == []
    typed("index", "--empty", "--engine", engine, index)
    out, _ = typed(*words, index, "--json")
    assert json.loads(out)["added"] == 1


def test_what_an_index_cannot_be_given_later_is_named_at_once(tmp_path: Path) -> None:
    source, index = tmp_path / "x.cdx", tmp_path / "index"
    source.write_text(HEADER + cdx_line(1, 1, 1))
    typed("index", "--all", source, index)
    other = tmp_path / "y.cdx"
    other.write_text(HEADER + cdx_line(2, 1, 1))
    _, messages = typed("index", "--by-url", "--all", other, index, status=5)
    assert "other settings than --by-url; an index keeps its settings: name another" in messages
    assert "--add" not in messages
    _, messages = typed("index", "--all", other, index, status=5)
    assert "give --add to add to it" in messages
    _, messages = typed("index", "--mime", "x", other, index, status=5)
    assert "other settings than --mime; " in messages
    typed("index", source, tmp_path / "plain")
    _, messages = typed("index", "--all", other, tmp_path / "plain", status=5)
    assert "other settings than --all; " in messages


def test_what_can_be_changed_is_named_before_what_cannot(tmp_path: Path) -> None:
    source = tmp_path / "x.cdx"
    bad = [cdx_line(day, day, day).replace(" 202611", " 202613") for day in (1, 2)]
    text = cdx_line(3, 1, 1).replace("image/png", "text/html")
    source.write_text(HEADER + "".join(bad) + text)
    last = typed("index", source, tmp_path / "index")[0].splitlines()[-1]
    assert last.startswith("nothing was added: 1 of 3 refused records is 'mime'"), last
    source.write_text(HEADER + "".join(bad))
    last = typed("index", source, tmp_path / "other")[0].splitlines()[-1]
    assert last.startswith("nothing was added: 2 of 2 refused records are 'bad-date'"), last


def test_no_new_index_is_advised_for_what_was_purged(tmp_path: Path) -> None:
    source = tmp_path / "x.cdx"
    source.write_text(HEADER + cdx_line(1, 1, 1) + cdx_line(2, 2, 2))
    typed("index", source, tmp_path / "index")
    typed("purge", tmp_path / "index", "--url", "http://", "--prefix")
    for gone in (1, 3):
        left_out = [cdx_line(n, n, n).replace(" 200 ", " 404 ") for n in range(3, 3 + gone)]
        again = tmp_path / f"again-{gone}.cdx"
        again.write_text(source.read_text() + "".join(left_out))
        last = typed("index", "--add", again, tmp_path / "index")[0].splitlines()[-1]
        most = "2 of 3 refused records are 'purged'" if gone == 1 else "3 of 5"
        assert last.startswith(f"nothing was added: {most}") and "a new index" not in last, last


@pytest.mark.parametrize("command", ["impact", "purge"])
def test_two_kinds_of_targets_are_too_many(command: str, tmp_path: Path) -> None:
    names = "--container, --crawl, --host, --url and --captures"
    both = ("--url", "http://a.example/", "--crawl", "c")
    assert f"give only one of {names}" in typed(command, tmp_path, *both, status=2)[1]
    assert f"give one of {names}" in typed(command, tmp_path, status=2)[1]


def test_revisits_that_name_no_original_are_not_said_to_be_refused(tmp_path: Path) -> None:
    """Those of wget name it by its record id only, and are counted all the same."""
    fields: dict[str, Any] = {"Refers_To_Target_URI": None, "Refers_To_Date": None}
    source, index = tmp_path / "x.warc", tmp_path / "index"
    source.write_bytes(revisit(Refers_To=b"<urn:uuid:1>", **fields))
    out = typed("index", "--all", source, index)[0]
    assert "  revisits that add no original: 1  (unresolved-revisit), such as answers 304" in out
    assert "do not state URL and date of their original (WARC-Refers-To alone names a" in out
    assert "refused: " not in out
    assert out.splitlines()[-1] == "nothing was added: revisits that add no original: 1"
    assert json.loads(typed("index", "--stats", index, "--json")[0])["total"]["revisits"] == 1


@pytest.mark.parametrize("options", [(), ("--no-url-index",), ("--engine", "whoosh")])
def test_originals_that_a_changed_file_no_longer_has_are_counted(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Nothing says that nothing is lost: revisits without an original do not prove it."""
    first, other = gz(response(b"other" * 9, number=9)), tmp_path / "other.warc.gz"
    bodies = [b"%d" % n * 30 for n in range(4)]
    whole = [gz(response(body, number=n)) for n, body in enumerate(bodies, 1)]
    fields: dict[str, Any] = {"Refers_To_Target_URI": None, "Refers_To_Date": None}
    seen = [gz(revisit(number=n + 20, Payload_Digest=sha1(bodies[n]), **fields)) for n in (2, 3)]
    source, index = tmp_path / "x.warc.gz", tmp_path / "index"
    other.write_bytes(first)
    source.write_bytes(b"".join(whole))
    assert "removed" not in typed("index", "--all", *options, source, other, index)[0]
    source.write_bytes(b"".join([*whole[:2], *seen]))
    assert "removed" not in typed("index", "--add", other, index)[0]
    again = typed("index", "--replace", source, index)[0]
    assert "\n  removed                                2  originals of the index" in again
    assert "nothing is lost" not in again and "(unresolved-revisit)" in again
    assert json.loads(typed("index", "--stats", index, "--json")[0])["captures"] == 3
    source.write_bytes(whole[0])
    assert json.loads(typed("index", "--replace", source, index, "--json")[0])["removed"] == 1


@pytest.mark.parametrize("name", ["my crawl", "my/crawl", "Grün", "..", "x" * 201])
def test_a_new_crawl_has_a_name_that_servers_take_too(tmp_path: Path, name: str) -> None:
    index, source = tmp_path / "index", tmp_path / "x.warc"
    source.write_bytes(response(b"new" * 9))
    for words in (["--crawl", name], []):
        env = {} if words else {"DEDUPINDEX_INDEX_CRAWL": name}
        said = typed("index", "--all", *words, source, index, status=4, **env)[1]
        assert "a crawl's name has 1 to 200 printable" in said or "relative step" in said
        assert not index.exists()
        with pytest.raises(BadInput):
            build_index(source, index, crawl=name)
    typed("index", "--all", source, index)
    typed("index", "--add", "--crawl", name, source, index, status=4)


def test_a_crawl_of_an_older_version_keeps_its_name(make_index: MakeIndex, tmp_path: Path) -> None:
    index = make_index([capture(1, crawl="my crawl", container="/w/x.warc.gz")])
    source = tmp_path / "y.warc"
    source.write_bytes(response(b"new" * 9))
    typed("index", "--add", "--crawl", "my crawl", source, index)
    assert json.loads(typed("index", "--stats", index, "--json")[0])["crawls"][-1]["files"] == 1
    typed("purge", index, "--crawl", "my crawl")


def test_with_further_digests_what_is_removed_is_not_known(tmp_path: Path) -> None:
    source, index = tmp_path / "x.warc.gz", tmp_path / "index"
    for numbers, option in (((1, 2), "--also-digest=sha256"), ((3,), "--replace")):
        source.write_bytes(b"".join(gz(response(b"%d" % n * 30, number=n)) for n in numbers))
        out = typed("index", option, *([] if len(numbers) == 1 else ["--all"]), source, index)[0]
    assert "\n  removed: not known, as the index has further digests" in out


def test_what_no_file_has_alone_is_said_to_be_so(tmp_path: Path) -> None:
    """A row of a record that was read and refused is known when both are merged."""
    out = typed("index", "--all", *write(tmp_path, "truncated"), tmp_path / "index")[0]
    (line,) = (line for line in out.splitlines() if "refused: contradicted" in line)
    assert line.split("  ")[-1] == "known only when all files are merged, so none is named"


def test_sources_that_cannot_be_read_make_no_index(tmp_path: Path) -> None:
    """It would have the settings of the command that failed."""
    empty, index = tmp_path / "zero.warc.gz", tmp_path / "index"
    empty.write_bytes(b"")
    (tmp_path / "empty.cdx").write_bytes(b"")
    for words in ([empty], [tmp_path], ["--engine", "whoosh", empty]):
        _, messages = typed("index", *words, index, status=4)
        assert "no file could be read, so no index was made: " in messages
        assert f"{empty} is empty" in messages or "; and 1 more file\n" in messages
        assert not index.exists()
    source = tmp_path / "x.cdx"
    source.write_text(HEADER + cdx_line(1, 1, 1))
    typed("index", "--all", source, index)
    out, _ = typed("index", "--add", empty, index, status=7)
    assert "nothing was added: no file could be read" in out


def test_nothing_to_read_is_refused(make_index: MakeIndex, tmp_path: Path) -> None:
    index, folder, notes = make_index([]), tmp_path / "folder", tmp_path / "notes.txt"
    folder.mkdir()
    notes.write_text("hello\n")
    for more in ([], ["--format", "json"]):
        _, messages = typed("report", index, "--against", folder, *more, status=4)
        assert f"nothing to read in {folder}: no WARC" in messages
    for words in (["dedup", "--out", tmp_path / "out"], ["manifest", "-o", tmp_path / "out"]):
        _, messages = typed(*words, notes, status=4)
        assert f"{notes} is of no known kind; a manifest is of WARC" in messages
    assert not (tmp_path / "out").exists()
    damaged = tmp_path / "cut.warc.gz"  # is named like one
    damaged.write_bytes(b"hello\n")
    typed("dedup", damaged, "--out", tmp_path / "out", status=7)


def test_adding_needs_a_finished_first_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, index = tmp_path / "x.cdx", tmp_path / "index"
    source.write_text(HEADER + cdx_line(1, 1, 1))
    with monkeypatch.context() as patch:
        patch.setattr("dedupindex.indexer.pipeline._load", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            main(["index", "-w", "-m", ".*", str(source), str(index)])
    _, messages = typed("index", "--add", source, index, status=6)
    assert f"the first build of {index} has not finished" in messages
    typed("index", "-w", "-m", ".*", source, index)
    typed("index", "--add", source, index)


@pytest.mark.parametrize(
    "words",
    [
        *(f"index {action} TYPO" for action in ("--stats", "--check", "--compact", "--merge")),
        "index --copy copy TYPO",
        "token TYPO", "token TYPO --add x", "token TYPO --remove x",
        "purge TYPO --url http://x/", "impact TYPO --url http://x/",
        "serve TYPO --port 0",
        "export --wget TYPO --out o.cdx", "export --redis redis://127.0.0.1:1/0 TYPO",
        "lookup TYPO --digest sha1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB",
        "report TYPO --crawl x", "report TYPO --against x.cdx", "search TYPO x",
        "resolve manifest -o plan --index TYPO",
        "export --self-contained TYPO -o out", "corpus TYPO -o out", "dedup TYPO --out out",
        "dedup TYPO --in-place", "rewrite TYPO --in-place", "rewrite TYPO --undo",
        "undedup TYPO --out out", "convert TYPO --out out", "manifest TYPO -o out",
        "resolve TYPO -o out", "hash_documents TYPO/* out", "dedup_hashes TYPO out",
        "run_pipeline TYPO/* out", "rehearse TYPO --work out", "verify TYPO",
    ],
)  # fmt: skip
def test_a_misspelled_name_is_refused_and_makes_nothing(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.cdx").write_text(HEADER + cdx_line(1, 1, 1))
    small_set(tmp_path / "warcs")
    assert main(["manifest", "warcs", "-o", "manifest"]) == 0
    before = sorted(tmp_path.rglob("*"))
    status = main([word.replace("TYPO", str(tmp_path / "typo")) for word in words.split()])
    assert status in (4, 6)
    assert sorted(tmp_path.rglob("*")) == before


def test_dictionaries_that_cannot_be_used(tmp_path: Path) -> None:
    for name, data in (("text", b"text"), ("a:b", b"")):
        (tmp_path / name).write_bytes(data)
    for name in ("text", "a:b", "missing"):
        for command in ("index", "manifest", "corpus"):
            words = ("--zstd-dictionary", tmp_path / name, tmp_path, "-o", tmp_path / "o.jsonl")
            _, err = typed(command, *(words if command != "index" else words[:3]), status=4)
            assert "--zstd-dictionary" in err and name in err


def test_a_build_counts_zstd_files_as_not_read(tmp_path: Path) -> None:
    zstd = b"\x28\xb5\x2f\xfd\0\0\0\0"
    sources = tmp_path / "in"
    sources.mkdir()
    (sources / "a.warc.zst").write_bytes(zstd)
    (sources / "dictionary.warc.zst").write_bytes(b"\x5d\x2a\x4d\x18\0\0\0\0" + zstd)
    typed("index", sources, tmp_path / "index", status=4)
    (sources / "x.cdx").write_text(HEADER + cdx_line(1, 1, 1))
    out, err = typed("index", sources, tmp_path / "index", status=7)
    assert "files read: 1," in out and "  files not read (zstd): 2\n" in out
    assert err.endswith("status 7: 2 files were not read (zstd); all other data was read\n")
    (sources / "empty.warc").touch()
    out, err = typed("index", sources, tmp_path / "other", "--json", status=7)
    counts = json.loads(out)
    assert (counts["containers"], counts["problems"], counts["not_read_zstd"]) == (1, 3, 2)
    assert err.endswith(
        "2 files were not read (zstd) and damaged or unreadable data was left out; "
        "all other data was read\n"
    )


def test_a_file_of_which_nothing_was_taken_is_named(tmp_path: Path) -> None:
    """Not if what is refused is chosen by settings, or if there is no response in it."""
    index = tmp_path / "index"
    bad = [response(b"%d" % number, Date=b"yesterday", number=number) for number in range(3)]
    file = write_records(tmp_path / "bad.warc.gz", [*bad, request(number=9)])
    html = response(b"<p>", head=HTTP.replace(b"200", b"404"))
    for name, records in (("no", [request(), revisit()]), ("404", [html]), ("good", [response()])):
        write_records(tmp_path / f"{name}.warc.gz", records)
    said = typed("index", "--all", tmp_path, index)[1]
    assert said == f"warning: nothing of {file} was taken, as refused: bad-date 3\n"
    out = typed("index", "--all", "--json", file, tmp_path / "json")[0]
    assert json.loads(out)["nothing_taken"] == {str(file): {"bad-date": 3}}
    with closing(open_index(index)) as engine, engine.view() as view:
        problems = {Path(found.name).stem for found in view.containers() if found.damaged}
    assert problems == {"bad.warc"}
    write_records(tmp_path / "other.warc.gz", bad)
    said = typed("index", "--add", "--crawl", "x", "--reread", tmp_path, index)[1]
    assert f"nothing of {file} was taken, as refused: bad-date 3; nor of 1 more (see " in said


def test_few_of_many_bad_lines_are_shown(tmp_path: Path) -> None:
    source = tmp_path / "x.cdx"
    source.write_text(HEADER + "junk\n" * 30 + cdx_line(1, 1, 1))
    out, err = typed("index", "--json", source, tmp_path / "index", status=7)
    assert json.loads(out)["problems"] == 30
    assert err.count(": line ") == 10
    assert f"warning: {source}: and 20 more lines like these\n" in err


def test_misspelled_commands_sections_and_settings_are_answered_with_what_is_like_them(
    tmp_path: Path,
) -> None:
    assert "there is no command 'indx'; did you mean index?" in typed("indx", status=2)[1]
    assert "dedupindex --help lists them" in typed("zzz", status=2)[1]
    settings = tmp_path / "settings.toml"
    for text, hint in (
        ("[serv]\nport = 1\n", "no section [serv]; did you mean serve or search?"),
        ("[zzz]\nport = 1\n", "no section [zzz], but index, serve,"),
        ("[serve]\nprot = 1\n", "[serve] has no setting 'prot'; did you mean port"),
        ("[index]\nmin-sise = 1\n", "did you mean min_size?"),
    ):
        settings.write_text(text)
        command = "index" if "[index]" in text else "serve"
        assert hint in typed(command, "x", "--config", settings, status=4)[1]


ARCHIVES = "name archives: WARC or ARC files, or directories of them"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("report INDEX --against INDEX", "is an index; --against takes the files of a crawl"),
        ("export --self-contained INDEX -o out", f"is an index; {ARCHIVES}"),
        ("verify INDEX", f"is an index; {ARCHIVES}"),
        ("verify --against INDEX INDEX", f"is an index; {ARCHIVES}"),
        ("dedup INDEX --out out", f"is an index; {ARCHIVES}"),
        ("manifest INDEX -o out", f"is an index; {ARCHIVES}"),
        ("convert INDEX --out out", "is an index; name archives"),
        ("index --copy INDEX copy", f"is: the copy is named first: {ROOT}/bin/index --copy copy /"),
        ("resolve INDEX -o out", "is an index, not a manifest"),
        ("rewrite INDEX --undo", "is an index, not a plan"),
        ("undedup INDEX --out out", f"an index; name a directory that {ROOT}/bin/dedup wrote"),
        ("serve plain.txt --port 0", "plain.txt is a file; an index is a directory"),
        ("index INDEX plain.txt", "is an index; the sources come first, the index last"),
        ("index --add INDEX plain.txt", "is an index; the sources come first, the index last"),
        ("export --wget INDEX --out no/x", "no/x cannot be written: its directory does not exist"),
        ("verify INDEX --html no/x.html", "no/x.html cannot be written: its directory does not"),
    ],
)
def test_what_stands_in_the_wrong_place_is_named(
    words: str, said: str, make_index: MakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain.txt").write_text("hello")
    status, _, messages = ended(*words.replace("INDEX", str(make_index())).split())
    usage = words.endswith(("no/x", "no/x.html", "plain.txt"))
    assert status in ((2,) if usage else (4, 6)) and said in messages, messages
    assert not Path("out").exists()


def test_a_variable_that_names_no_setting_is_reported(
    make_index: MakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEDUPINDEX_LIST_LIMTI", "5")
    monkeypatch.setenv("DEDUPINDEX_LIST_LIMIT", "5")
    monkeypatch.setenv("DEDUPINDEX_DEDUP_HASHES_MEMORY", "1GB")  # of a command that begins alike
    _, messages = typed("list", make_index(), status=10)
    warning = "DEDUPINDEX_LIST_LIMTI names no setting of this command; did you mean LIMIT?"
    assert messages.count("warning: ") == 1 and warning in messages
    _, messages = typed("dedup", "nothing-there", "--out", "x", status=4)
    assert "warning: " not in messages


WITHOUT_RIGHTS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search",
                  "--inh-caps=-dac_override,-dac_read_search"]  # fmt: skip


def run_without_rights(words: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a user who may not do everything, as root may."""
    by = WITHOUT_RIGHTS if os.getuid() == 0 else []
    if by:
        need("setpriv", found=shutil.which("setpriv") is not None)
    return subprocess.run(
        [*by, sys.executable, "-m", "dedupindex", *words.split()],
        cwd=directory, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_an_index_that_may_not_be_written_is_named(make_index: MakeIndex, tmp_path: Path) -> None:
    index = make_index([])
    (tmp_path / "x.cdx").write_text(HEADER + cdx_line(1, 1, 1))
    (index / "lock").touch()
    index.chmod(0o555)
    done = run_without_rights(f"index --add {tmp_path / 'x.cdx'} {index}", tmp_path)
    index.chmod(0o755)
    assert done.returncode == 6, done
    assert f"adding to {index} failed: {index} is not writable; the index is" in done.stderr
    assert "Errno" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "index closed.warc.gz out", "verify closed.warc.gz", "manifest closed.warc.gz -o out",
        "manifest closed -o out", "dedup closed.warc.gz --out out", "index closed out",
        "corpus closed.warc.gz -o out.jsonl", "list closed",
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said_to_be_unreadable(words: str, tmp_path: Path) -> None:
    """Root reads everything; it gives this right away here."""
    (tmp_path / "closed.warc.gz").write_bytes(b"")
    (tmp_path / "closed.warc.gz").chmod(0)
    (tmp_path / "closed").mkdir(0)
    done = run_without_rights(words, tmp_path)
    assert done.returncode in (4, 6, 7), done
    said = done.stdout + done.stderr
    assert "Permission denied" in said and "Errno" not in said and "Traceback" not in said
    assert any(word in said for word in ("cannot be read", "cannot be opened", "unreadable")), said


@pytest.mark.parametrize("by_name", [True, False])
def test_one_unreadable_file_does_not_end_a_run(tmp_path: Path, by_name: bool) -> None:
    """It is named, whether it was given by name or is in a directory."""
    (tmp_path / "in").mkdir()
    for number in (1, 2):
        record = response(b"equal" * 90, number=number, Date=b"2026-01-0%dT00:00:00Z" % number)
        (tmp_path / f"in/{number}.warc.gz").write_bytes(gz(record))
    closed = tmp_path / "in/closed.warc.gz"
    closed.write_bytes(gz(response(b"equal" * 90, number=3)))
    closed.chmod(0)
    words = "in/1.warc.gz in/2.warc.gz in/closed.warc.gz" if by_name else "in"
    done = run_without_rights(f"dedup {words} --out out --dry-run --json", tmp_path)
    assert done.returncode == 7, done
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["captures"] == 2
    assert [one["file"] for one in report["problems"]] == [str(closed)]
    assert f"warning: {closed}: cannot be read: Permission denied" in done.stderr
    assert run_without_rights(f"manifest {words} -o listed", tmp_path).returncode == 7
    gone = run_without_rights("dedup in/1.warc.gz in/none.warc.gz --out out", tmp_path)
    assert gone.returncode == 4 and "none.warc.gz cannot be read: No such file" in gone.stderr
    alone = run_without_rights("dedup in/closed.warc.gz --out out", tmp_path)
    assert alone.returncode == 4 and f"{closed} cannot be read: Permission" in alone.stderr


def test_files_that_a_crawler_writes_are_said_to_be_unfinished(tmp_path: Path) -> None:
    (tmp_path / "warcs").mkdir()
    (tmp_path / "warcs" / "a.warc.gz.open").write_bytes(b"")
    (tmp_path / "warcs" / "notes.open").write_bytes(b"")
    _, said = typed("index", "--all", tmp_path / "warcs", tmp_path / "none", status=4)
    hint = "1 ends in .open: its crawler has not closed it; once it has ended, rename it without"
    assert f"(2 files of no known kind passed over; {hint} .open)" in said
    (tmp_path / "warcs" / "b.warc.open").write_bytes(b"")
    (tmp_path / "warcs" / "c.cdx").write_text(HEADER + cdx_line(1, 1, 1))
    said, _ = typed("index", "--all", tmp_path / "warcs", tmp_path / "some")
    assert "  files skipped, not of a known kind: 3\n" in said
    assert "  2 end in .open: their crawler has not closed them; once it has ended, ren" in said


def test_messages_count_one_thing_as_one(make_index: MakeIndex, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "notes.txt").write_text("hello")
    _, said = typed("index", "--all", tmp_path / "files", tmp_path / "none", status=4)
    assert "(1 file of no known kind passed over)" in said
    index = make_index([capture(1), capture(1, b"http://b.example/", 2)])
    _, said = typed("export", "--wget", index, "--out", tmp_path / "out.cdx")
    assert "  1 capture at other URLs left out: wget takes one URL for a digest." in said
    single = make_index([capture(1)])
    out, _ = typed("index", "--check", single)
    assert out.endswith(": 1 original checked, no problem found\n")


def test_commands_are_named_by_their_path_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, whole = "run bin/index again", f"run {ROOT}/bin/index again"
    monkeypatch.chdir(ROOT)
    assert as_called(text) == text
    monkeypatch.chdir(tmp_path)
    assert as_called(text) == as_called(whole) == whole
    page = "docs/formats.md#what-is-refused"
    assert as_called(page) == as_called(f"{ROOT}/{page}") == f"{ROOT}/{page}"
    monkeypatch.setenv(FOR_CLIENTS, "1")  # they have no checkout
    assert (as_called(text), as_called(page)) == (text, page)
    monkeypatch.delenv(FOR_CLIENTS)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "index").write_text("")  # of the user
    assert as_called(text) == text


def test_a_temporary_directory_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python takes another without a word; what needs no room does not warn of it."""
    (tmp_path / "warcs").mkdir()
    small_set(tmp_path / "warcs")
    words = ("manifest", tmp_path / "warcs", "-o", tmp_path / "manifest", "--jobs", "1")
    gone = tmp_path / "gone"
    monkeypatch.setattr(tempfile, "tempdir", None)
    _, said = typed(*words, TMPDIR=str(gone))
    assert said.count(f"TMPDIR {gone} is no directory: temporary files go to ") == 1
    for more in ((), ("TMPDIR",)):
        _, said = typed(*words, **dict.fromkeys(more, str(tmp_path)))
        assert "temporary files" not in said
    assert "temporary" not in typed("plan", "--captures", "1e9", TMPDIR=str(gone))[1]


def test_what_is_named_like_an_archive_is_refused_alike(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    text = tmp_path / "in" / "text.warc.gz"
    text.write_text("hello\n")
    said = "is named like an archive and does not begin with a record: its beginning is damaged"
    for source in (text, tmp_path / "in"):
        messages = typed("index", "--all", source, tmp_path / "index", status=4)[1]
        assert str(text) in messages and said in messages


def test_known_files_with_defects_are_counted(tmp_path: Path) -> None:
    source, index = tmp_path / "in", tmp_path / "index"
    source.mkdir()
    whole = (ROOT / "tests/data/warc/example.warc.gz").read_bytes()
    (source / "whole.warc.gz").write_bytes(whole)
    (source / "cut.warc.gz").write_bytes(whole[:-9])
    typed("index", "--all", source, index, status=7)
    for words in (("--all", source), ("--add", source)):
        out, said = typed("index", *words, index)
        assert "known before: 2" in out and "warning" not in said
        assert "of these read with defects: 1; --reread names them\n" in out
    out, said = typed("index", "--reread", source, index, status=7)
    assert "with defects" not in out and f"warning: {source}/cut.warc.gz at " in said
    shutil.copy(ROOT / "tests/data/warc/warcfile.warc.gz", source / "whole.warc.gz")
    out, said = typed("index", "--replace", source, index, status=7)  # reads the others, too
    assert "with defects" not in out and f"warning: {source}/cut.warc.gz at " in said
