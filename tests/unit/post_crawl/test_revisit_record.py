"""Headers of revisits against a model: for any header, only the documented fields change."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from dedupindex.post_crawl.rewrite.revisit_record import Reference, respelled, revisit
from dedupindex.warc.headers import parse
from tests.support.warc_cases import record_id, sha1

_NAMES = st.from_regex(rb"[A-Za-z][A-Za-z0-9-]{0,12}", fullmatch=True).map(
    lambda name: b"X-" + name
)
_TEXT = st.binary(max_size=30).map(
    lambda text: text.replace(b"\n", b"").replace(b"\r", b"").strip(b" \t")
)
_SPACES = st.sampled_from([b"", b" ", b"  ", b"\t"])
_FOLDS = st.lists(_TEXT.filter(bool), max_size=2)


@st.composite
def _line(draw: st.DrawFn) -> bytes:
    folds = b"".join(b"\r\n " + fold for fold in draw(_FOLDS))
    return draw(_NAMES) + b":" + draw(_SPACES) + draw(_TEXT) + draw(_SPACES) + folds + b"\r\n"


def _cased(name: bytes) -> st.SearchStrategy[bytes]:
    return st.sampled_from([name, name.lower(), name.upper()])


@st.composite
def _header(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A header, and the lines that must stay as they are."""
    stay = [*draw(st.lists(_line(), max_size=5)), b"WARC-Record-ID: <x:1>\r\n"]
    if draw(st.booleans()):
        stay.append(b"WARC-Concurrent-To: <x:2>\r\nWARC-Concurrent-To: <x:3>\r\n")
    stay.append(b"WARC-Payload-Digest: " + sha1(b"body") + b"\r\n")
    change = [
        draw(_cased(b"WARC-Type")) + b":" + draw(_SPACES) + b"response\r\n",
        draw(_cased(b"Content-Length")) + b":" + draw(_SPACES) + b"1234\r\n",
    ]
    if draw(st.booleans()):
        change.append(b"WARC-Block-Digest:\r\n " + sha1(b"old") + b" \r\n")
    version = draw(st.sampled_from([b"WARC/1.0\r\n", b"WARC/1.1\r\n"]))
    lines = draw(st.permutations(stay + change))
    kept = [line for line in lines if line in stay]
    return version + b"".join(lines) + b"\r\n", [version, *kept]


@given(_header(), st.binary(max_size=200))
def test_only_necessary_fields_change(made: tuple[bytes, list[bytes]], block: bytes) -> None:
    header, kept = made
    reference = Reference(b"http://x/", b"2020-01-01T00:00:00Z", record_id(1)[1:-1], sha1(b"body"))
    found = revisit(header, block, reference)
    head, _, rest = found.partition(b"\r\n\r\n")
    assert rest == block + b"\r\n\r\n"
    at = 0
    for line in kept:  # all are there, whole, in their order
        at = found.index(line, at) + len(line)
    fields = parse(head).fields
    old = parse(header[:-4]).fields
    added = {
        b"WARC-Type": b"revisit",
        b"Content-Length": b"%d" % len(block),
        b"WARC-Profile": b"http://netpreserve.org/warc/%b/revisit/identical-payload-digest"
        % header[5:8],
        b"WARC-Truncated": b"length",
        b"WARC-Refers-To": record_id(1),
        b"WARC-Refers-To-Target-URI": b"http://x/",
        b"WARC-Refers-To-Date": b"2020-01-01T00:00:00Z",
    }
    if b"WARC-Block-Digest" in old:
        added[b"WARC-Block-Digest"] = sha1(block)
    assert fields == {**old, **added}
    assert parse(head).repeated == ()


@given(st.binary(max_size=50))
@example(b"")
def test_block_digests_keep_algorithm_and_spelling(data: bytes) -> None:
    hexed = b"SHA-256:" + b"A" * 64
    assert respelled(hexed, data)[:8] == b"SHA-256:"
    assert respelled(hexed, data)[8:].isupper() or respelled(hexed, data)[8:].isdigit()
    assert respelled(sha1(b"other"), data) == sha1(data)
    assert respelled(b"md5:" + b"a" * 26 + b"======", data).endswith(b"======")


def test_an_ambiguous_id_is_not_named() -> None:
    reference = Reference(b"http://x/", b"2020-01-01T00:00:00Z", b"", sha1(b"body"))
    found = revisit(b"WARC/1.0\r\nWARC-Type: response\r\n\r\n", b"", reference)
    assert b"WARC-Refers-To:" not in found
    assert b"WARC-Payload-Digest: " + sha1(b"body") in found
