"""The text format of warcsum: written by bin/resolve, and files of other tools checked."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from dedupindex.cli import main
from dedupindex.post_crawl.manifest.parquet import Line
from dedupindex.post_crawl.plan.group_duplicates import GroupingRule
from dedupindex.post_crawl.plan.make_plan import ResolveOptions, resolve
from dedupindex.post_crawl.plan.plan_file import open_plan
from dedupindex.post_crawl.plan.warcsum_format import read_text
from tests.support.budgets import examples
from tests.support.manifests import write_manifest
from tests.support.warc_cases import gz, request, response
from tests.unit.post_crawl.test_make_plan import PLACES, lines, model


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=examples(8),
)
@given(lines())
def test_all_lines_with_the_right_references(tmp_path: Path, lines: list[Line]) -> None:
    import shutil

    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    contents = {place: [one for one in lines if PLACES[one.container] == place] for place in PLACES}
    manifest = write_manifest(tmp_path / "run/manifest", contents)
    texts = []
    for parts in (1, 3):
        for part in range(1, parts + 1):
            stream = io.BytesIO()
            options = ResolveOptions(GroupingRule((part, parts)), threads=1)
            resolve([manifest], tmp_path / f"run/plan-{parts}", options, text=stream)
            texts.append(stream.getvalue().splitlines(keepends=True))
    whole = texts[0]
    assert sorted(whole) == sorted(line for part in texts[1:] for line in part)
    assert len(whole) == len(lines)

    by_name = {place.name.rpartition("/")[2].encode(): place.name for place in PLACES}
    at = {(PLACES[one.container].name, one.offset): one for one in lines}
    expected = model(lines)
    keys = [(by_name[hint.file], hint.offset) for hint in read_text(whole)]
    assert keys == sorted(keys, key=lambda key: (key[0].encode(), key[1]))
    for key, hint, text in zip(keys, read_text(whole), whole, strict=True):
        copy, original = expected.get(key, (1, key))
        one = at[original]
        reference = b"- -" if copy == 1 else one.url + b" " + one.date
        assert hint.copy == copy and text.endswith(b" " + reference + b"\n")
        assert hint.extension == 1 + [
            strong for strong in _strongs(lines, at[key])
        ].index(at[key].strong)  # fmt: skip


def _strongs(lines: list[Line], one: Line) -> list[bytes]:
    """The payloads of one digest, in the order of their first lines."""
    from tests.unit.post_crawl.test_make_plan import order

    criteria = [
        other for other in lines
        if (other.digest or other.payload) == (one.digest or one.payload)
    ]  # fmt: skip
    return list(dict.fromkeys(other.strong for other in sorted(criteria, key=order)))


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    top = tmp_path / "sources"
    for number, name in enumerate(("a/x.warc.gz", "b/x.warc.gz", "c d.warc")):
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pack = gz if name.endswith("gz") else bytes
        days = [b"2026-01-0%dT00:00:00Z" % (number * 2 + n) for n in (1, 2)]
        records = (request(), response(number=number * 2 + 10, Date=days[0]),
                   response(b"other", number=number * 2 + 11, Date=days[1]))  # fmt: skip
        path.write_bytes(b"".join(map(pack, records)))
    return top


def check(
    sources: Path, tmp_path: Path, text: bytes, capfd: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, int], str]:
    (tmp_path / "lines.txt").write_bytes(text)
    argv = ["manifest", str(sources), "-o", str(tmp_path / "m"), "--jobs", "1", "--json"]
    capfd.readouterr()
    status = main([*argv, "--check", str(tmp_path / "lines.txt")])
    said = capfd.readouterr()
    counts = json.loads(said.out)["checked"] if said.out else {}
    return status, {name: count for name, count in counts.items() if count}, said.err


def test_foreign_lines_are_checked(
    sources: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    manifest, plan = tmp_path / "m", tmp_path / "plan"
    assert main(["manifest", str(sources), "-o", str(manifest), "--jobs", "1"]) == 0
    capfd.readouterr()
    text = tmp_path / "text"
    assert main(["resolve", str(manifest), "-o", str(plan), "--text", str(text)]) == 0
    ours = text.read_bytes()
    assert len(ours.splitlines()) == 6
    assert main(["resolve", str(manifest), "-o", str(manifest)]) == 4  # that is not a plan
    assert main(["resolve", str(manifest), "-o", str(plan), "--partition", "1/2"]) == 0
    nothing = str(tmp_path / "no-lines")
    assert main(["manifest", str(sources), "-o", str(manifest), "--check", nothing]) == 4
    capfd.readouterr()
    assert check(sources, tmp_path, ours, capfd)[:2] == (0, {"same": 6})
    assert check(sources, tmp_path, b"", capfd)[:2] == (0, {"unlisted": 6})

    as_warcsum = re.sub(rb" (http\S+) ", rb" <\1> ", ours).replace(b"%20", b" ")
    assert check(sources, tmp_path, as_warcsum, capfd)[:2] == (0, {"same": 6})
    mislabelled = ours.replace(b" sha1:", b" sha256:")
    assert check(sources, tmp_path, mislabelled, capfd)[:2] == (0, {"same": 6})
    other = re.sub(rb"sha1:[0-9a-f]{40}", b"md5:" + b"ab" * 16, ours)
    assert check(sources, tmp_path, other, capfd)[:2] == (0, {"other-algorithm": 6})

    lines = ours.splitlines(keepends=True)
    wrong = (
        re.sub(rb"sha1:..", b"sha1:00", lines[4]),  # of the one file of its name
        re.sub(rb" http://\S+", b" http://else.test/", lines[5]),
        b"gone" + lines[0],
    )
    status, counts, told = check(sources, tmp_path, b"".join(wrong), capfd)
    assert status == 8
    assert counts == {"digest": 1, "url": 1, "no-file": 1, "unlisted": 4}
    assert "another digest" in told and "gonex.warc.gz" in told
    for pattern, new, verdict in (
        (rb"^(\S+) ([0-9]+) ", rb"\1 7\2 ", "no-record"),
        (rb"^(\S+) ([0-9]+) ([0-9]+) ", rb"\1 \2 7\3 ", "length"),
        (rb" 2026-", b" 2025-", "date"),
    ):
        status, counts, _ = check(sources, tmp_path, re.sub(pattern, new, lines[4]), capfd)
        assert (status, counts.get(verdict)) == (8, 1)
    assert check(sources, tmp_path, b"no line\n", capfd)[0] == 4


def test_chunked_framing_is_not_reported_as_a_difference(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from tests.support.warc_cases import sha1

    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunked = b"7\r\npayload\r\n0\r\n\r\n"
    sources = tmp_path / "s"
    sources.mkdir()
    (sources / "x.warc").write_bytes(response(chunked, head=head, Payload_Digest=sha1(b"payload")))
    manifest = ["manifest", str(sources), "--jobs", "1", "-o"]
    stored = tmp_path / "stored.txt"
    assert main([*manifest, str(tmp_path / "forced"), "--force", "--text", str(stored)]) == 0
    status, counts, _ = check(sources, tmp_path, stored.read_bytes(), capfd)
    assert (status, counts) == (0, {"other-bytes": 1})


def test_the_text_goes_to_stdout_alone(
    sources: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    manifest, plan = str(tmp_path / "m"), str(tmp_path / "plan")
    assert main(["manifest", str(sources), "-o", manifest, "--jobs", "1"]) == 0
    capfd.readouterr()
    assert main(["resolve", manifest, "-o", plan, "--json", "--text", "-"]) == 2
    assert main(["resolve", manifest, "-o", plan, "--text", "-"]) == 0
    out = capfd.readouterr().out.encode()
    hints = list(read_text(out.splitlines()))
    assert sorted(hint.copy for hint in hints) == [1, 1, 2, 2, 3, 3]
    assert open_plan(plan).totals.copies == 4
