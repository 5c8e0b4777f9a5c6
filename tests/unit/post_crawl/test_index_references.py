"""What revisits that an index knows refer to is kept; else an index only adds originals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.cli import main
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.support.budgets import examples
from tests.support.commands import typed
from tests.support.warc_cases import gz, response, revisit, sha1
from tests.unit.post_crawl.test_index_originals import BODIES, index_of, plan_of, write

BODY = BODIES[0]


def referring(path: Path, **fields: Any) -> Path:
    """A file with one revisit, by default of the body's digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    usual = {
        "Target_URI": b"http://r.test/", "Date": b"2026-02-01T00:00:00Z",
        "Payload_Digest": sha1(BODY), "number": 700,
    }  # fmt: skip
    path.write_bytes(gz(revisit(**{**usual, **fields})))
    return path


def to(url: bytes, date: bytes | None) -> dict[str, Any]:
    return {"Refers_To_Target_URI": url, "Refers_To_Date": date}


GONE = to(b"http://b.test/0", b"2026-01-03T00:00:09Z")


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        (to(b"http://b.test/0", b"2026-01-03T00:00:00Z"), {"referred-to": 1}),
        (to(b"http://b.test/0", b"2026-01-03T00:00:09Z"), {"referred-to": 2, "unused-original": 1}),
        (to(b"http://c.test/0", b"2026-01-03T00:00:00Z"), {}),
        (to(b"http://a.test/0", b"2026-01-02T00:00:00Z"), {}),
        (
            {**to(b"http://a.test/0", None), "Target_URI": b"http://b.test/0"},
            {"referred-to": 2, "unused-original": 1},
        ),
        ({**GONE, "Payload_Digest": sha1(BODIES[1])}, {}),
        (
            {**GONE, "Payload_Digest": b"sha256:" + sha256(BODIES[1]).hexdigest().encode()},
            {"referred-to": 2, "unused-original": 1},
        ),
    ],
    ids=[
        "a copy", "a second that nothing has", "another URL", "the original", "no date",
        "another payload", "another algorithm",
    ],
)  # fmt: skip
def test_what_a_revisit_in_the_ledger_refers_to_stays(
    tmp_path: Path, fields: dict[str, Any], kept: dict[str, int]
) -> None:
    write(tmp_path / "set/y.warc.gz", 2, [BODY])
    write(tmp_path / "set/z.warc.gz", 3, [BODY], "b")
    write(tmp_path / "set/zz.warc.gz", 4, [BODY], "b")
    index = index_of(tmp_path, tmp_path / "set", referring(tmp_path / "far/r.warc.gz", **fields))
    plan = plan_of(tmp_path, tmp_path / "set", index)
    assert (plan.totals.kept, plan.totals.copies) == (kept, 2 - kept.get("referred-to", 0))


@pytest.mark.parametrize("gone", [False, True])
def test_a_reference_to_a_capture_elsewhere_keeps_nothing_in_the_set(
    tmp_path: Path, gone: bool
) -> None:
    """Unless that file is gone: then replay takes another capture of its URL and digest."""
    first = write(tmp_path / "far/w.warc.gz", 1, [BODY], "b")
    write(tmp_path / "set/y.warc.gz", 3, [BODY])
    write(tmp_path / "set/z.warc.gz", 4, [BODY], "b")
    write(tmp_path / "set/zz.warc.gz", 5, [BODY], "b")
    original = to(b"http://b.test/0", b"2026-01-01T00:00:00Z")
    revisits = referring(tmp_path / "far/r.warc.gz", **original)
    for options, copies in (((), 3), (("--keep", "latest"), 2)):  # then it is in the ledger
        index = index_of(tmp_path, first, tmp_path / "set", revisits, options=options)
        if gone:
            first.rename(tmp_path / "gone")
        plan = plan_of(tmp_path, tmp_path / "set", index, f"plan{len(options)}")
        kept = {"referred-to": 2, "unused-original": 1} if gone else {}
        assert (plan.totals.kept, plan.totals.copies) == (kept, 0 if gone else copies)
        if gone:
            (tmp_path / "gone").rename(first)
        index.rename(tmp_path / f"index{len(options)}")


def test_captures_stay_while_the_revisits_of_a_crawl_are_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write(tmp_path / "set/y.warc.gz", 2, [BODY])
    second = write(tmp_path / "set/z.warc.gz", 3, [BODY], "b")
    third = write(tmp_path / "set/zz.warc.gz", 4, [BODY], "b")  # loses to the second in the index
    write(tmp_path / "set/zzz.warc.gz", 5, [BODY], "c")  # the index has never had it
    index = index_of(tmp_path, second)
    for path in (first, third):
        assert main(["index", "--add", str(path), str(index)]) == 0
    with asking(index) as web:
        web.post("/crawls", json={"name": "weekly"})
        answer = web.get(f"/lookup?crawl=weekly&digest={sha1(BODY).decode()}")
        assert answer.get_json()["duplicate"]
    capsys.readouterr()
    end = "commit or cancel weekly (POST /crawls/NAME/commit)"
    for step, state in enumerate(["open", "committed"]):
        if state == "committed":
            with asking(index) as web:
                web.post("/crawls/weekly/commit")
        plan = plan_of(tmp_path, tmp_path / "set", index, f"plan-{step}")
        assert (plan.totals.kept, plan.totals.copies) == ({"indexed": 2}, 1)
        messages = capsys.readouterr().err
        assert "the revisits of weekly are not known" in messages
        assert (end in messages) is (state == "open")
    report = ("dedup", tmp_path / "set", "--index", index, "--out", tmp_path / "out", "--dry-run")
    assert "bin/index --add --crawl NAME  indexed: the index has it" in typed(*report)[0]
    original = to(b"http://a.test/0", b"2026-01-02T00:00:00Z")
    revisits = referring(tmp_path / "weekly/r.warc.gz", **original)
    assert main(["index", "--add", "--crawl", "weekly", str(revisits), str(index)]) == 0
    plan = plan_of(tmp_path, tmp_path / "set", index, "read")
    assert (plan.totals.kept, plan.totals.copies) == ({}, 3)


@pytest.mark.parametrize("state", ["open", "commit", "merged"])
def test_a_crawl_without_warcs_is_forgotten_as_the_warnings_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], state: str
) -> None:
    """Then captures are replaced as before it, and what it reported answers no lookup."""
    for day, host in ((2, "a"), (3, "b"), (4, "c")):
        write(tmp_path / f"set/{host}.warc.gz", day, [BODY], host)
    index = index_of(tmp_path, tmp_path / "set")
    mine = {"digest": sha1(b"mine").decode(), "url": "http://q.test/", "size": 4, "status": 200}
    with asking(index) as web:
        web.post("/crawls", json={"name": "trial"})
        assert web.get(f"/lookup?crawl=trial&digest={sha1(BODY).decode()}").get_json()["duplicate"]
        sent = web.post("/captures?crawl=trial", json={**mine, "date": "2026-03-01T00:00:00Z"})
        assert sent.get_json()["added"] == 1
        if state != "open":
            web.post("/crawls/trial/commit")
    if state == "merged":
        assert main(["index", "--merge", str(index)]) == 0
    impact, way_out = ["impact", str(index), "--host", "b.test"], "bin/purge INDEX --crawl"
    capsys.readouterr()
    assert plan_of(tmp_path, tmp_path / "set", index, "kept").totals.copies == 0
    assert f"({way_out} NAME removes a crawl that wrote no WARCs" in capsys.readouterr().err
    assert main(impact) == 0
    assert f"({way_out} trial removes a crawl that wrote no WARCs" in capsys.readouterr().err
    assert main(["purge", str(index), "--crawl", "trial"]) == 0
    capsys.readouterr()
    assert plan_of(tmp_path, tmp_path / "set", index, "freed").totals.copies == 2
    assert main(impact) == 0
    assert "warning" not in capsys.readouterr().err
    with asking(index) as web:
        for digest, stored in ((mine["digest"], False), (sha1(BODY).decode(), True)):
            assert web.get(f"/lookup?digest={digest}").get_json()["duplicate"] is stored


@contextmanager
def asking(index: Path) -> Iterator[FlaskClient]:
    """A client of a server over an index; afterwards this process may open the index again."""
    live = LiveIndex(index)
    live.refresh()
    yield create_app(Config(index), live).test_client()
    live.close()
    live.opened().engine.close()
    if (store := live.crawls.store()) is not None:
        store.close()


CAPTURE = st.tuples(
    st.integers(0, 3),  # file; the last two are outside of the set
    st.sampled_from([b"http://a.test/", b"http://a.test/?", b"http://b.test/"]),
    st.integers(0, 3),  # second
    st.sampled_from([b"one" * 90, b"two" * 90]),
    st.sampled_from([b"text/html", b"image/png"]),
)


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(CAPTURE, min_size=2, max_size=10), st.sets(st.integers(0, 3), min_size=1))
def test_an_index_only_adds_originals(
    tmp_path_factory: pytest.TempPathFactory,
    captures: list[tuple[int, bytes, int, bytes, bytes]],
    indexed: set[int],
) -> None:
    top = tmp_path_factory.mktemp("sets")
    files: dict[Path, bytes] = {}
    for number, (file, url, second, body, mime) in enumerate(captures):
        path = top / ("set" if file < 2 else "far") / f"{file}.warc.gz"
        head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n\r\n" % mime
        date = b"2026-01-01T00:00:%02dZ" % second
        record = response(body, head=head, number=number + 1, Target_URI=url, Date=date)
        files[path] = files.get(path, b"") + gz(record)
    for path, data in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    (top / "set").mkdir(exist_ok=True)
    (top / "set/none.warc.gz").write_bytes(gz(response(b"none" * 50, number=900)))
    known = [path for path in files if int(path.name[0]) in indexed]
    index = index_of(top, top / "set/none.warc.gz", *known)
    without, with_it = (
        plan_of(top, top / "set", index if used else None, f"plan-{used}").totals
        for used in (False, True)
    )
    assert with_it.copies >= without.copies
    assert with_it.lines == without.lines
