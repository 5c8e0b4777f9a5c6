"""What ``bin/impact`` and ``bin/purge`` say of an index whose files were rewritten since."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from dedupindex.cli.common import NOTHING_FOUND
from dedupindex.errors import BadInput, HasDependents
from tests.support.commands import typed
from tests.support.warc_cases import gz, record
from tests.unit.post_crawl.test_index_originals import index_of, write

BODIES = [Random(number).randbytes(1500) for number in range(3)]
HOSTS = [["a", "a"], ["a", "b"]]  # of two files: the copies have the same URLs, or others


@pytest.fixture(params=HOSTS)
def index(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """An index of two files with the same payloads, and of a third one that has others."""
    one, two = request.param
    index = index_of(tmp_path, write(tmp_path / "set/one.warc.gz", 2, BODIES, one))
    others = [Random(number).randbytes(1500) for number in (8, 9, 9)]
    for name, day, bodies, host in (("two", 3, BODIES, two), ("other", 4, others, "c")):
        typed("index", "--add", write(tmp_path / f"set/{name}.warc.gz", day, bodies, host), index)
    return index


def test_files_that_were_rewritten_since_are_named_and_stop_a_purge(index: Path) -> None:
    files = index.parent / "set"
    two = files / "two.warc.gz"
    size = two.stat().st_size
    target = index, "--container", "one.warc.gz"
    out, said = typed("impact", *target, "--json")
    before = json.loads(out)
    assert before["outdated"] == [] and said == ""
    assert before["nowhere"]["captures"] == 0
    out, _ = typed("dedup", files, "--in-place")
    assert f"bin/index --replace {files} INDEX" in out.splitlines()[-1]
    now = two.stat().st_size
    found = json.loads(typed("impact", *target, "--json")[0])
    # other.warc.gz was rewritten, too, but has no copies of what would go
    assert found["outdated"] == [{"file": str(two), "size_indexed": size, "size_now": now}]
    assert found["fingerprint"] != before["fingerprint"]
    told = f"1 file changed since the index read it, as by bin/dedup --in-place: {two} ("
    assert f"warning: {told}" in typed("impact", *target)[1]
    said = typed("purge", *target, status=HasDependents.exit_status)[1]
    assert told in said and "nothing was purged" in said and "--force" in said
    typed("index", "--replace", files, index)
    read, said = typed("impact", *target, "--json")
    found = json.loads(read)
    assert found["outdated"] == [] and said == "" and found["broken"]["captures"] == 3
    assert "3 revisits" in typed("purge", *target, status=HasDependents.exit_status)[1]


def test_a_url_that_was_purged_stays_away_when_its_revisits_are_undone(
    index: Path, request: pytest.FixtureRequest
) -> None:
    files = index.parent / "set"
    url = f"http://{request.node.callspec.params['index'][1]}.test/1"  # two.warc.gz has it
    typed("dedup", files, "--in-place")
    typed("index", "--replace", files, index)
    found = json.loads(typed("purge", index, "--url", url, "--force", "--json")[0])
    assert found["revisits"]["captures"] == 1
    typed("rewrite", index.parent / "set.dedup/plan", "--undo")
    typed("index", "--replace", files, index)
    typed("impact", index, "--url", url, status=NOTHING_FOUND)
    typed("impact", index, "--url", url.replace("/1", "/2"))


def test_files_that_were_touched_or_are_gone_stop_no_purge(index: Path) -> None:
    (index.parent / "set/two.warc.gz").touch()
    (index.parent / "set/one.warc.gz").unlink()
    out, said = typed("purge", index, "--container", "one.warc.gz", "--json")
    assert json.loads(out)["originals"]["captures"] == 3
    assert said.startswith("the index forgot these captures") and said.count("\n") == 1


def test_a_purge_of_outdated_files_can_be_forced(index: Path) -> None:
    typed("dedup", index.parent / "set", "--in-place")
    out, said = typed("purge", index, "--container", "one.warc.gz", "--force")
    assert "were removed" in out and "warning: 1 file changed" in said


def test_an_archive_of_which_nothing_is_indexed(tmp_path: Path) -> None:
    """It is told from a name that the index does not know, and from a CDX file."""
    index = index_of(tmp_path, write(tmp_path / "one.warc.gz", 2, BODIES))
    post = tmp_path / "post.warc.gz"
    post.write_bytes(gz(record(b"request", b"GET / HTTP/1.1\r\n\r\n")))
    cdx = tmp_path / "two.cdx"
    row = "test,a)/ 20260101000000 http://a.test/ text/html 200 {} - - {} {} two.warc.gz"
    cdx.write_text(f" CDX N b a m s k r M S V g\n{row.format('A' * 32, 9, 0)}\n")
    typed("index", "--add", post, cdx, index)
    for command in ("impact", "purge"):
        out, said = typed(command, index, "--container", post, status=NOTHING_FOUND)
        assert out == "nothing found: the index has nothing of it\n"
        assert f"not found: {post} (it was read, and nothing of it is in the index" in said
        said = typed(command, index, "--container", cdx, status=BadInput.exit_status)[1]
        assert "rows of CDX files" in said and "purged" not in said
    out, _ = typed("impact", index, "--container", "one.warc.gz")
    assert out.splitlines()[-1].startswith("only captures in the index are counted")


def test_a_plan_that_is_rewritten_in_place_names_the_command(index: Path) -> None:
    typed("dedup", index.parent / "set", "--in-place", "--dry-run")
    plan = index.parent / "set.dedup/plan"
    hint = "next: an index that has these files is outdated: bin/index --replace"
    assert hint not in typed("rewrite", plan, "--in-place", "--dry-run")[0]
    assert hint in typed("rewrite", plan, "--in-place")[0]
