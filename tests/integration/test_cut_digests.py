"""Digests that a writer cut at a zero byte are no digests, wherever one is read or asked for."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest
from flask.testing import FlaskClient

from dedupindex.capture import Capture, Evidence
from dedupindex.client import Client, Miss
from dedupindex.client.answers import Claimed
from dedupindex.corpus.select import digest_key
from dedupindex.cover import document_lines as cover_lines
from dedupindex.digest import CANONICAL, CUT_DIGEST, EMPTY, SIZES, Digest, Spelling, cut_at_zero
from dedupindex.export import browsertrix_redis, wget_cdx
from dedupindex.index.format.fast_answer import sha1_prefix
from dedupindex.index.identity import Settings
from dedupindex.indexer.admission import admission_filter, reasons
from dedupindex.runtime.duckdb import one_thread
from dedupindex.sources import open_source
from dedupindex.sources.browsertrix import BrowsertrixEntry, BrowsertrixSource
from dedupindex.sources.cdx import CdxSource
from tests.conftest import MakeIndex
from tests.support import paths
from tests.support.captures import capture, sha1
from tests.support.commands import typed
from tests.support.transports import ToApp
from tests.support.verifying import copy_of, page, write
from tests.support.warc_cases import CHUNKED_HTTP, chunked
from tests.unit.server.test_crawl_api import begin, report, served

DATA = paths.DATA / "wget-at"
PAGE = "http://example.com/a"
NOTHING = "sha1:" + "A" * 32
ANY = ("--whitelist", "--mime", ".*")
REFUSE = admission_filter(Settings(mime=".*", whitelist=True))


def cut(name: str, kept: int = 0) -> Digest:
    """A digest of which only the first bytes are left."""
    return Digest(name, bytes(range(1, kept + 1)).ljust(SIZES[name], b"\0"))


CUT = [cut(name, kept) for name in SIZES for kept in (0, 1, SIZES[name] - 4)]
NOT_CUT = [cut(name, SIZES[name] - 3) for name in SIZES]


def body_whose_digest_is_cut(kept: int, more: bytes = b"") -> bytes:
    """A body whose SHA-1 has its first zero byte behind `kept` bytes, and is no cut one itself."""
    for number in range(1_000_000):
        body = b"page %d" % number + more
        if hashlib.sha1(body).digest().find(b"\0") == kept:
            return body
    raise AssertionError


def stated(body: bytes) -> bytes:
    """The digest of a body as such a writer states it."""
    raw = cut_at_zero(hashlib.sha1(body).digest())
    return b"sha1:" + base64.b32encode(raw)


# --- indexing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "added", "refused"),
    [("k-nul.warc.gz", 4, 12), ("k-nul-off.warc.gz", 4, 12), ("k-nul-off.cdx", 4, 12),
     ("k-nul.cdx", 4, 9)],
)  # fmt: skip
def test_indexing_files_of_wget_at(name: str, added: int, refused: int, tmp_path: Path) -> None:
    out, _ = typed("index", *ANY, "--json", DATA / name, tmp_path / "ix")
    report = json.loads(out)
    assert report["added"] == added and report["refused"][CUT_DIGEST] == refused
    out, _ = typed("lookup", tmp_path / "ix", "--digest", NOTHING, "--json", status=10)
    assert json.loads(out) == {"duplicate": False, "reason": CUT_DIGEST}
    words = ("lookup", tmp_path / "ix", "--digest", NOTHING, "--explain")
    assert CUT_DIGEST in typed(*words, status=10)[0]
    found = b"sha1:SSWMNIHTPPUV4KI5E6HNP4FZEQOQJQJ3".decode()
    out, _ = typed("lookup", tmp_path / "ix", "--digest", found, "--json")
    assert json.loads(out)["duplicate"] is True


def test_payloads_of_wget_at_are_true_ones_of_which_cut_digests_are_stated() -> None:
    raw = hashlib.sha1(body_whose_digest_is_cut(0)).digest()
    assert cut_at_zero(raw) == bytes(20) != raw
    assert cut_at_zero(b"\1" * 20) == b"\1" * 20


SPELLINGS = [Spelling(1, 0), Spelling(0, 0), Spelling(1, 2), Spelling(4, 3)]


@pytest.mark.parametrize("spelling", SPELLINGS, ids=str)
def test_rows_and_logs(spelling: Spelling, tmp_path: Path) -> None:
    """Beside each a digest that is one, so that the line as such is good."""
    cdx, cdxj, log = [" CDX N b a m s k r M S V g"], [], []
    for number, digest in enumerate([cut("sha1"), cut("sha1", 16), cut("sha1", 17), sha1(5)]):
        url, text = f"{PAGE}{number}", digest.spelled(spelling)
        moment = f"2026112009140{number}"
        cdx.append(f"- {moment} {url} image/png 200 {text} - - 90 0 a.warc.gz")
        row = {"url": url, "mime": "image/png", "status": "200", "digest": text, "filename": "a"}
        cdxj.append(f"com,example)/a{number} {moment} {json.dumps(row)}")
        log.append(
            f"2026-11-20T09:14:17.000Z 200 5 {url} L - image/png #1 {moment}000+5 {text} - -"
        )
    for name, lines in (("a.cdx", cdx), ("a.cdxj", cdxj), ("crawl.log", log)):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        index = tmp_path / f"{name}.index"
        out, _ = typed("index", "--json", tmp_path / name, index)
        report = json.loads(out)
        assert (report["added"], report["refused"]) == (2, {CUT_DIGEST: 2}), name


def test_admission_of_rows_and_captures_is_the_same(tmp_path: Path) -> None:
    """Four zeros that lie across two digests cut neither."""
    raws = [b"\1" * 18 + b"\0\0", b"\0\0" + b"\1" * 18, b"\1" * 16 + bytes(4), bytes(20)]
    lines = [
        f"- 20261120091417 {PAGE}{number} image/png 200 {base64.b32encode(raw).decode()} - - 9 0 a"
        for number, raw in enumerate(raws)
    ]
    path = tmp_path / "a.cdx"
    path.write_text("\n".join([" CDX N b a m s k r M S V g", *lines * 2]) + "\n")
    found: list[str] = []
    with open_source(str(path)) as source:
        assert isinstance(source, CdxSource)
        for batch in source.batches():
            found += list(map(REFUSE, batch)) if isinstance(batch, list) else reasons(REFUSE, batch)  # type: ignore[arg-type]
    assert found == ["", "", CUT_DIGEST, CUT_DIGEST] * 2


@pytest.mark.parametrize("digest", CUT, ids=str)
def test_cut_digests_are_refused_from_every_source(digest: Digest) -> None:
    named = capture(1)._replace(digest=digest, evidence=Evidence.NAMED)
    assert REFUSE(named) == REFUSE(capture(1)._replace(digest=digest)) == CUT_DIGEST
    assert REFUSE(capture(1)._replace(also=(sha1(2), digest))) == CUT_DIGEST
    source = BrowsertrixSource("redis://127.0.0.1:1/0")
    text = digest.spelled(CANONICAL if digest.algorithm != "sha1" else Spelling(0, 0)).encode()
    item = source._item(text, BrowsertrixEntry(0, b"20261120091417", PAGE.encode(), 5), ["a.wacz"])
    assert isinstance(item, Capture) and REFUSE(item) == CUT_DIGEST


@pytest.mark.parametrize("digest", NOT_CUT, ids=str)
def test_three_zeros_cut_nothing(digest: Digest) -> None:
    """A SHA-1 with so many bytes left still distinguishes payloads."""
    assert REFUSE(capture(1)._replace(digest=digest)) == ""


@pytest.mark.parametrize("kept", [0, 1, 12, 18])
def test_a_response_whose_digest_was_cut_is_whole_but_no_original(
    kept: int, tmp_path: Path
) -> None:
    body = body_whose_digest_is_cut(kept)
    whole = page(1, body, Payload_Digest=stated(body))
    in_chunks = page(2, chunked(body), head=CHUNKED_HTTP, Payload_Digest=stated(body))
    path = write(tmp_path / "a.warc.gz", [whole, in_chunks, page(3)])
    report = json.loads(typed("index", *ANY, "--json", path, tmp_path / "ix")[0])
    assert (report["added"], report["refused"]) == (1, {CUT_DIGEST: 2})
    rotten = write(tmp_path / "b.warc.gz", [whole.replace(b"page ", b"PAGE ")])
    report = json.loads(typed("index", *ANY, "--json", rotten, tmp_path / "iy", status=7)[0])
    assert report["refused"] == {"digest-mismatch": 1}


def test_a_revisit_with_a_cut_digest_is_no_evidence(tmp_path: Path) -> None:
    """It names what would be an original, were its digest one."""
    plain, false = (copy_of(2, 1, Payload_Digest=text) for text in (None, NOTHING.encode()))
    other = copy_of(3, 1, Payload_Digest=b"sha1:" + base64.b32encode(b"\1" * 20))
    told = {}
    for name, record in (("plain", plain), ("false", false), ("other", other)):
        path = write(tmp_path / f"{name}.warc.gz", [record])
        out, _ = typed("index", *ANY, "--json", path, tmp_path / name)
        told[name] = json.loads(out)
    assert told["other"]["added"] == 1
    assert told["plain"]["refused"] == {"unresolved-revisit": 1}
    assert told["false"]["refused"] == {CUT_DIGEST: 1}


# --- asking --------------------------------------------------------------------------------------


@pytest.fixture
def web(make_index: MakeIndex, engine: str) -> FlaskClient:
    """A server over an index that, against all rules, has captures with cut digests."""
    held = [capture(1)._replace(digest=digest) for digest in CUT]
    return served(make_index([capture(90), *held], Settings(by_url=True), engine))


NONE = {"duplicate": False, "reason": CUT_DIGEST}


def test_lookups(web: FlaskClient) -> None:
    spellings = (Spelling(1, 0), Spelling(1, 2), Spelling(4, 3))
    for text in (digest.spelled(spelling) for digest in CUT for spelling in spellings):
        for more in ("", f"&url={PAGE}", "&bridge=1", f"&url={PAGE}&strategy=EXACT_URL"):
            assert web.get(f"/lookup?digest={quote(text)}{more}").get_json() == NONE
        explained = web.get(f"/lookup?digest={quote(text)}&explain=1").get_json()
        assert explained == {**NONE, "considered": []}
        plain = web.get(f"/lookup?digest={quote(text)}", headers={"Accept": "text/plain"})
        assert (plain.status_code, plain.data) == (204, b"")
        assert plain.headers["Dedup-Reason"] == CUT_DIGEST
        some = [{"digest": text, "url": PAGE}, {"digest": text}, {"digest": text, "url": PAGE}]
        for body in ({"lookups": some}, {"lookups": some, "in_batch": True}):
            assert web.post("/lookup", json=body).get_json() == {"answers": [NONE] * 3}
        lines = "\n".join(map(json.dumps, some))
        answer = web.post("/lookup", data=lines, content_type="application/x-ndjson")
        assert [json.loads(line) for line in answer.data.splitlines()] == [NONE] * 3


def test_dialects(web: FlaskClient) -> None:
    for digest in (digest for digest in CUT if digest.algorithm == "sha1"):
        bare = digest.spelled(Spelling(0, 0))
        assert web.get(f"/api/records/{bare}?uri={PAGE}").status_code == 404
        assert web.get(f"/api/records/{digest}?uri={PAGE}").status_code == 404
        for query in ("", f"&filter=digest:{bare}", f"&filter=digest:{digest}", "&limit=-1"):
            answer = web.get(f"/cdx?url={PAGE}{query}")
            assert answer.status_code == 200 and bare.encode() not in answer.data, query


def test_the_fast_path_does_not_answer_for_cut_digests() -> None:
    """The full lookup answers for them, with the reason."""
    for digest in (digest for digest in CUT if digest.algorithm == "sha1"):
        for encoding in (0, 2):
            assert sha1_prefix(digest.spelled(Spelling(0, encoding))) is None
    assert sha1_prefix(cut("sha1", 17).spelled(Spelling(0, 0))) is not None


def test_claims(web: FlaskClient) -> None:
    """Every claimant stores: the payload of another claim may differ."""
    for name in ("a", "b"):
        begin(web, name, seen_by="all")
    nothings = [*CUT[:6], *sorted(EMPTY)]
    for digest in nothings:
        for name in ("a", "b"):
            body = {"crawl": name, "digest": str(digest), "url": PAGE}
            answer = web.post("/claims", json=body).get_json()
            assert answer["duplicate"] is False and answer["claimed"] is True and answer["token"]
            assert answer.get("reason") == (CUT_DIGEST if digest in CUT else None)
        some = [{"digest": str(digest), "url": PAGE}] * 2
        answer = web.post("/claims", json={"crawl": "a", "claims": some}).get_json()["answers"]
        assert [one["claimed"] for one in answer] == [True, True]
        assert not any("in_batch" in one for one in answer)


def test_reports(web: FlaskClient) -> None:
    begin(web)
    some = [report(1, digest=str(digest)) for digest in CUT]
    answer = web.post("/captures", json={"crawl": "a", "captures": some}).get_json()
    assert (answer["added"], answer["refused"]) == (0, {CUT_DIGEST: len(CUT)})
    answer = web.post("/captures?crawl=a", json=report(1, also=[str(CUT[0])])).get_json()
    assert answer["refused"] == {CUT_DIGEST: 1}
    record = {"id": cut("sha1").spelled(Spelling(0, 0)), "uri": PAGE, "date": 20261120091417}
    assert web.post("/api/records", json=[record]).status_code == 201
    assert web.get("/crawls/doppelganger").get_json()["captures"] == 0


def test_the_client(make_index: MakeIndex) -> None:
    app = served(make_index([capture(1)._replace(digest=CUT[0])])).application
    with Client(crawl="", transport=ToApp(app)) as client:
        assert client.lookup(str(CUT[0]), PAGE) == Miss(CUT_DIGEST)
        answers = client.lookups([(str(digest), PAGE) for digest in CUT])  # type: ignore[misc]
        assert answers == [Miss(CUT_DIGEST)] * len(CUT)
        client.begin("a")
        assert isinstance(client.claim(str(CUT[0]), PAGE, crawl="a"), Claimed)


def test_batches_of_the_command_line(make_index: MakeIndex, tmp_path: Path) -> None:
    index = make_index([capture(1)._replace(digest=CUT[0])])
    (tmp_path / "asked").write_text(json.dumps({"digest": str(CUT[0]), "url": PAGE}) + "\n")
    out, _ = typed("lookup", index, "--batch", tmp_path / "asked")
    assert json.loads(out) == NONE


def test_savings_of_a_crawl_exclude_cut_digests(make_index: MakeIndex) -> None:
    index = make_index([capture(1)._replace(digest=CUT[0])])
    out, _ = typed("report", index, "--against", DATA / "k-nul-off.cdx", "--json")
    report = json.loads(out)
    assert report["refused"] == {CUT_DIGEST: 12} and report["lookups"] == 4


def test_exports_leave_cut_digests_out() -> None:
    held = [(digest, capture(1)._replace(digest=digest)) for digest in (CUT[3], sha1(5))]
    lines = wget_cdx.WgetExport()
    assert len(list(wget_cdx.lines(held, wget_cdx.read_scope(), lines))) == 2  # with its header
    assert lines.left_out == {CUT_DIGEST: 1}
    keys = browsertrix_redis.BrowsertrixExport()
    choice = browsertrix_redis.ExportChoice("other", algorithm="sha1")
    found = browsertrix_redis.originals(held, lambda name: None, choice, keys)
    assert len(list(found)) == 1
    assert keys.left_out == {CUT_DIGEST: 1}


# --- after the crawl -----------------------------------------------------------------------------


def test_false_revisits_are_named() -> None:
    out, _ = typed("verify", DATA / "k-nul.warc.gz", "--json", status=8)
    *found, totals = map(json.loads, out.splitlines())
    assert totals["findings"] == {CUT_DIGEST: 3, "claimed-length": 2, "payload-digest": 9}
    false = [one for one in found if one["reason"] == CUT_DIGEST]
    assert {one["level"] for one in false} == {"loss"}
    assert [one["offset"] for one in false] == [2178, 3222, 4269]
    assert all("0 of 20 bytes" in one["message"] for one in false)
    cut_ones = [one for one in found if one["reason"] == "payload-digest"]
    assert all("cut at its first zero byte" in one["message"] for one in cut_ones)


def test_a_revisit_of_a_cut_digest_refers_to_nothing_by_it(tmp_path: Path) -> None:
    """Equal ones are no reason to say that the payload is elsewhere."""
    body = body_whose_digest_is_cut(0)
    original = page(1, body, Payload_Digest=NOTHING.encode())
    lost = copy_of(2, 9, Payload_Digest=NOTHING.encode())
    path = write(tmp_path / "a.warc.gz", [original, lost])
    out, _ = typed("verify", path, "--json", status=8)
    findings = json.loads(out.splitlines()[-1])["findings"]
    assert findings == {"payload-digest": 1, CUT_DIGEST: 1, "dangling": 1}
    path = write(tmp_path / "b.warc.gz", [original, copy_of(2, 1, Payload_Digest=NOTHING.encode())])
    out, _ = typed("verify", path, "--json", status=8)
    findings = json.loads(out.splitlines()[-1])["findings"]
    assert findings == {"payload-digest": 1, CUT_DIGEST: 1}


def test_deduplication_keeps_records_with_cut_digests(tmp_path: Path) -> None:
    """Replay finds the original of a revisit by a digest, and these name no payload."""
    source, body = tmp_path / "in", body_whose_digest_is_cut(0, b"." * 2000)
    same = [page(number, body, Payload_Digest=stated(body)) for number in (1, 2)]
    write(source / "a.warc.gz", [*same, page(3), page(4)])
    report = json.loads(typed("dedup", source, "--out", tmp_path / "out", "--json")[0])
    assert (report["revisits"], report["refused"]) == (1, {CUT_DIGEST: 2})
    out, _ = typed("verify", "--against", source, tmp_path / "out", "--json")
    assert json.loads(out)["findings"] == {}


def test_undedup_does_not_call_a_cut_digest_damage(tmp_path: Path) -> None:
    """Neither in a record that is restored by itself nor in a file that is copied."""
    source, body = tmp_path / "in", body_whose_digest_is_cut(0, b"." * 2000)
    cut_page = page(1, body, Payload_Digest=stated(body))
    write(source / "a.warc.gz", [cut_page, page(3), page(4)])
    write(source / "b.warc.gz", [page(2, body, Payload_Digest=stated(body))])
    typed("dedup", source, "--out", tmp_path / "out")
    _, err = typed("undedup", tmp_path / "out", "--out", tmp_path / "back")
    assert "damage" not in err
    typed("verify", "--against", source, tmp_path / "back", "--records")
    write(tmp_path / "out" / "c.warc.gz", [page(5, Payload_Digest=stated(body))])
    _, err = typed("undedup", tmp_path / "out", "--out", tmp_path / "back", status=7)
    assert "c.warc.gz was copied with what is broken in it: payload-digest" in err


def test_a_corpus_never_groups_cut_digests(tmp_path: Path) -> None:
    """`--first digest` of twelve pages with cut digests, four of which have the same."""
    out, again = tmp_path / "pages.jsonl", tmp_path / "again.jsonl"
    typed("corpus", DATA / "k-nul-off.warc.gz", "--first", "digest", "-o", out)
    assert len(out.read_text().splitlines()) == 17  # and the resource that wget writes
    shutil.copy(DATA / "k-nul.warc.gz", tmp_path / "k-nul.warc.gz")
    words = ["corpus", tmp_path / "k-nul.warc.gz", "--enrich", "html.title", "-o", again]
    typed(*words, status=7)
    assert again.read_text().count("its original is not known") == 3  # of revisits


@pytest.mark.parametrize("digest", [one for one in CUT if one.algorithm != "md5"], ids=str)
def test_digests_of_metadata_in_sql(digest: Digest) -> None:
    spellings = [Spelling(1, 2), Spelling(3, 3)]
    spellings += [Spelling(0, 0), Spelling(1, 1)] if digest.algorithm == "sha1" else []
    query = f"SELECT {digest_key('d')} FROM (SELECT ? AS d)"
    with one_thread() as database:
        for spelling in spellings:
            for one, cut_off in ((digest, True), (digest._replace(raw=b"\1" * 20), False)):
                row = database.execute(query, [one.spelled(spelling)]).fetchone()
                assert row is not None and (row[0] is None) is cut_off


def test_bodies_to_which_an_indexer_gave_the_digest_of_nothing_are_not_the_same(
    tmp_path: Path,
) -> None:
    """As pywb, cdxj-indexer and warcio do it for what has no HTTP header."""
    nothing, lines = "3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ", [" CDX N b a m s k r M S V g"]
    for number in range(3):
        url = f"{PAGE}{number}"
        lines.append(f"- 2026112009141{number} {url} image/png 200 {nothing} - - 90 0 a.warc.gz")
    (tmp_path / "a.cdx").write_text("\n".join(lines) + "\n")
    out, _ = typed("corpus", tmp_path / "a.cdx", "--first", "digest")
    assert len(out.splitlines()) == 3


def test_covers_compare_none() -> None:
    assert cover_lines._digest(NOTHING) is cover_lines._digest("AAAA") is None
    assert cover_lines._digest(str(sha1(1))) == str(sha1(1))
