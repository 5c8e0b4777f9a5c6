"""The fast reader gives the same result as the reference reader for every file."""

from __future__ import annotations

import hashlib
import tempfile
from base64 import b32encode
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dedupindex.capture import Capture, Item
from dedupindex.sources import warc_records
from dedupindex.sources import warc_records as source
from dedupindex.sources.source import DEFAULTS
from dedupindex.sources.warc_records import WarcSource
from dedupindex.warc import fast_reader, gzip_members, headers, reader, record_facts, window
from dedupindex.warc.record import Sound
from dedupindex.warc.window import open_window
from tests.support.budgets import examples
from tests.support.warc_cases import (
    CHUNKED_HTTP,
    HTTP,
    chunked,
    gz,
    record,
    request,
    response,
    revisit,
    sha1,
)
from tests.support.zstd_files import skippable, zst

HTTP_TYPE = b"application/http; msgtype=response"
PATH = Path(tempfile.mkdtemp()) / "t.warc.gz"
MANY = settings(
    max_examples=examples(400),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

lines = st.sampled_from(
    [
        b"Content-Type: text/html", b"content-type:IMAGE/Png ; x=y", b"Content-Type: ",
        b"CONTENT-TYPE: a/b", b" folded: yes", b"\tContent-Type: c/d", b"Content-Length: 7",
        b"Transfer-Encoding: chunked", b"transfer-encoding: identity", b"TRANSFER-ENCODING: gzip",
        b"Content-Range: bytes 0-1/2", b"Content-Encoding: gzip", b"Connection: close",
        b"Server: x", b"no colon", b"\rstray", b"", b"T", b"Content-Typ: e/f", b"X: \xff\0",
    ]
)  # fmt: skip
statuses = st.sampled_from(
    [b"HTTP/1.1 200 OK"] * 5
    + [b"HTTP/1.1 206 Partial", b"HTTP/1.0  404", b"HTTP/2 3000", b"HTTP/1.1 OK", b"ICY 200"]
)
bodies = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [chunked(b"one", b"two"), chunked(), chunked(b"x") + b"y", chunked(b"x", end=b"0\r\n")]
        + [b"0\r\n\r\n", b"00\r\n\r\n", b"3;x\r\none\r\n0\r\n\r\n", b"3\r\n", b"3\none\n0\n\n"]
    ),
)


SPELLINGS = ["sha1:b32"] * 4 + ["sha1:hex", "SHA1:hex", "sha-1:B32", "sha256:hex", "md5:b32"]


def spelled(data: bytes, form: str) -> bytes:
    """The digest of a payload as some crawler writes it."""
    label, _, encoding = form.partition(":")
    raw = hashlib.new(label.lower().replace("-", ""), data).digest()
    text = raw.hex() if encoding == "hex" else b32encode(raw).decode()
    return f"{label}:{text.lower() if encoding == 'B32' else text}".encode()


@st.composite
def answers(draw: st.DrawFn, number: int) -> bytes:
    """A response with any head and body, its digest now and then that of something else."""
    eol = draw(st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"]))
    head = eol.join([draw(statuses), *draw(st.lists(lines, max_size=5))])
    head += draw(st.sampled_from([eol * 2, eol * 2, eol * 2, eol, b"\n\n", b""]))
    body = draw(bodies)
    entity = body[3:6] + body[11:14]
    of = draw(st.sampled_from([body, body, body, entity, b"?"]))
    digest = draw(st.sampled_from([*map(partial(spelled, of), SPELLINGS), b"x", None]))
    return response(body, head=head, number=number, Payload_Digest=digest, **draw(fields()))


@st.composite
def fields(draw: st.DrawFn) -> dict[str, Any]:
    """WARC fields that replace the usual ones."""
    odd: dict[str, list[bytes | None]] = {
        "Date": [
            b"2026-11-20T09:14:17.25Z",
            b"2026-11-20T09:14:17.123456789Z",
            b"2026-02-30T09:14:17Z",
            b"2026-11-20",
            None,
        ],
        "Target_URI": [
            b"<http://x/>",
            b"<https://x:80/%41>",
            b"<HTTP://x/>",
            b"<http://x/",
            b"<>",
            b"HTTP://x/",
            b"dns:x",
            b"",
            b"https://x/ ",
            None,
        ],
        "Record_ID": [b"", b"bare", b"<open", b"<>", None],
        "Content_Type": [b"application/http", b"text/plain", None],
        "Truncated": [b"length"],
        "Segment_Number": [b"1"],
        "Type": [b"Response", b"REQUEST", b"other", None],
        "Concurrent_To": [b"<urn:uuid:00000000-0000-4000-8000-000000000002>"],
    }
    names = draw(st.lists(st.sampled_from(sorted(odd)), max_size=2)) if draw(st.booleans()) else []
    return {name: draw(st.sampled_from(odd[name])) for name in names}


def reordered(made: bytes, random: Random) -> bytes:
    """The same record with the fields of its header in another order."""
    head, _, rest = made.partition(b"\r\n\r\n")
    version, *lines = head.split(b"\r\n")
    random.shuffle(lines)
    return b"\r\n".join([version, *lines, b"", rest])


@st.composite
def records(draw: st.DrawFn, number: int) -> bytes:
    """Any record, of which some must be read with care."""
    kind = draw(st.sampled_from(["response"] * 4 + ["request"] * 3 + ["revisit", "metadata"]))
    if kind == "response":
        made = draw(answers(number))
    elif kind == "request":
        method = draw(st.sampled_from([b"GET"] * 4 + [b"POST", b"get", b"GETS", b""]))
        made = request(method, number, **draw(fields()))
    elif kind == "revisit":
        made = revisit(number=number, **draw(fields()))
    else:
        made = record(b"metadata", b"fetch: 1\r\n\r\n", number=number)
    if not draw(st.integers(0, 3)):
        made = reordered(made, draw(st.randoms(use_true_random=False)))
    if draw(st.integers(0, 9)):
        return made
    return draw(
        st.sampled_from(
            [
                made.replace(b"\r\n", b"\n"),
                made.replace(b"WARC-Date: ", b"WARC-Date:\r\n "),
                made.replace(b"WARC-Date", b"warc-date"),
                made.replace(b"WARC/1.0", b"WARC/1.1"),
                made.replace(b"WARC/1.0", b"WARC/3.0"),
                made.replace(b"Content-Length: ", b"Content-Length: 0"),
                made.replace(b"Content-Length: ", b"Content-Length: 1"),
                made.replace(b"WARC-Date: ", b"WARC-Date:   ", 1),
                made.replace(b"WARC-Date: ", b"WARC-Date: x\r\nWARC-Date: ", 1),
                made.replace(b"WARC-Date: ", b"X: y\nWARC-Date: ", 1),
                made.replace(b"WARC-Type: ", b"no field\r\nWARC-Type: ", 1),
                made + made, made[:-2], made + b"\r\n", b"\r\n" + made, b"", b"junk",
            ]
        )
    )  # fmt: skip


@st.composite
def archives(draw: st.DrawFn) -> bytes:
    """A file, now and then with something between its members or a byte of it changed."""
    count = draw(st.integers(0, 14))
    parts = []
    for number in range(count):
        parts.append(gz(draw(records(number)), draw(st.integers(0, 9))))
        if not draw(st.integers(0, 30)):
            parts.append(
                draw(st.sampled_from([b"\0\0", gz(b""), b"WARC/1.0\r\n", b"\x1f\x8b\x08"]))
            )
    whole = bytearray(b"".join(parts))
    if whole and not draw(st.integers(0, 4)):
        whole[draw(st.integers(0, len(whole) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(whole)


@st.composite
def zstd_archives(draw: st.DrawFn) -> bytes:
    """The same in zstd: records in one frame or two, now and then without a checksum."""
    whole = bytearray()
    for number in range(draw(st.integers(0, 14))):
        text, sound = draw(records(number)), draw(st.integers(0, 9))
        cut = draw(st.integers(0, len(text))) if not sound else 0
        for part in (text[:cut], text[cut:]) if cut else (text,):
            whole += zst(part, checksum=sound != 1, size=draw(st.booleans()))
        if not draw(st.integers(0, 30)):
            odd = [b"\0\0", zst(b""), b"WARC/1.0\r\n", skippable(b"x"), b"\x28\xb5\x2f\xfd"]
            whole += draw(st.sampled_from(odd))
    if whole and not draw(st.integers(0, 4)):
        whole[draw(st.integers(0, len(whole) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(whole)


def items_of(path: Path) -> tuple[list[Item], str]:
    with WarcSource(path.name, path) as opened:
        items = list(opened.items())
    return items, opened.content_hash


@MANY
@given(
    data=archives(),
    feed=st.sampled_from([1 << 15, 1 << 15, 200, 40]),
    first=st.sampled_from([fast_reader._FIRST, 0]),
)
@example(data=gz(response(Record_ID=b"<>")), feed=1 << 15, first=0)
def test_fast_reader_yields_the_same_as_the_reference(
    data: bytes, feed: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal item by item, whichever record forms were seen before in the file."""
    PATH.write_bytes(gz(request()) * 5 + gz(response()) * 5 + data)
    with monkeypatch.context() as patch:
        patch.setattr(gzip_members, "FEED", feed)
        patch.setattr(fast_reader, "_FIRST", first)
        fast_items = items_of(PATH)
        patch.setattr(source, "read", reader.read)
        patch.setattr(record_facts.FastFacts, "read", lambda *_: None)
        assert fast_items == items_of(PATH)


@MANY
@given(
    data=zstd_archives(),
    chunk=st.sampled_from([1 << 20, 1 << 20, 4000, 300]),
    first=st.sampled_from([fast_reader._FIRST, 0]),
)
def test_frames_yield_the_same_as_the_reference(
    data: bytes, chunk: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    PATH.write_bytes(zst(request()) * 5 + zst(response()) * 5 + data)
    with monkeypatch.context() as patch:
        patch.setattr(window, "CHUNK", chunk)
        patch.setattr(fast_reader, "_FIRST", first)
        fast_items = items_of(PATH)
        patch.setattr(source, "read", reader.read)
        patch.setattr(record_facts.FastFacts, "read", lambda *_: None)
        assert fast_items == items_of(PATH)


@pytest.mark.parametrize(
    "size", [1 << 16, 1 << 20, gzip_members.SHORT - 500, gzip_members.SHORT + 1]
)
@pytest.mark.parametrize("deflates", [True, False])
def test_fast_reader_yields_the_same_for_large_records(
    size: int, deflates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Larger than a feed, than what is held of the file, than what counts as short."""
    body = bytes(size) if deflates else Random(1).randbytes(size)
    large = gz(response(body, Payload_Digest=sha1(body)))
    PATH.write_bytes((gz(request()) * 2 + gz(response()) * 5 + large) * 3)
    fast_items = items_of(PATH)
    assert sum(isinstance(item, Capture) for item in fast_items[0]) == 18
    monkeypatch.setattr(source, "read", reader.read)
    assert fast_items == items_of(PATH)


CRAWLERS: dict[str, dict[str, Any]] = {  # what their archives have in common
    "wget": {
        "Target_URI": b"<http://x.org:8080/a%20b>",
        "Content_Type": HTTP_TYPE.replace(b" ", b""),
    },
    "Heritrix": {"version": b"WARC/1.0", "Content_Type": HTTP_TYPE, "IP_Address": b"192.0.2.7"},
    "warcprox": {"Content_Type": HTTP_TYPE.replace(b" ", b""), "form": "sha1:hex"},
    "Zeno": {"version": b"WARC/1.1", "Date": b"2026-11-20T09:14:17.123456789Z"},
    "Browsertrix": {
        "version": b"WARC/1.1",
        "Date": b"2026-11-20T09:14:17.25Z",
        "form": "sha256:hex",
    },
}


@pytest.mark.parametrize("coding", ["", "stored", "entity"])
@pytest.mark.parametrize("crawler", CRAWLERS)
def test_records_of_every_crawler_take_the_fast_path(crawler: str, coding: str) -> None:
    shape = dict(CRAWLERS[crawler])
    body = chunked(b"pay", b"load") if coding else b"payload"
    digest = spelled(b"payload" if coding == "entity" else body, shape.pop("form", "sha1:b32"))
    head = CHUNKED_HTTP if coding else HTTP
    PATH.write_bytes(gz(response(body, head=head, Payload_Digest=digest, **shape)) * 20)
    window = open_window("t", PATH)
    sound = [event for event in fast_reader.read(window) if isinstance(event, Sound)]
    window.close()
    usual = warc_records.Responses("t", DEFAULTS)
    found = [usual.fast(event) for event in sound]
    assert len(sound) > 10 and all(found[1:])  # the first chunked one only shows what is hashed
    assert found[1:] == [usual.response(event) for event in sound[1:]]


def test_fields_in_any_order_take_the_fast_path() -> None:
    """As Zeno writes them: gowarc keeps the fields of a header without order."""
    random, version = Random(3), b"WARC/1.1"
    parts = []
    for number in range(200):
        more = (b"WARC-IP-Address", b"192.0.2.7"), (b"WARC-Warcinfo-ID", b"<urn:uuid:1>")
        parts.append(response(b"payload", *more, number=2 * number, version=version))
        parts.append(request(number=2 * number + 1, version=version))
    PATH.write_bytes(b"".join(gz(reordered(part, random)) for part in parts))
    window = open_window("t", PATH)
    events = list(fast_reader.read(window))
    window.close()
    usual = warc_records.Responses("t", DEFAULTS)
    fast = [event for event in events if isinstance(event, Sound) and usual.fast(event)]
    assert len(fast) > 150 and sum(event is None for event in events) > 150
    assert sum(isinstance(item, Capture) for item in items_of(PATH)[0]) == 200


_LINES = [b"WARC/1.1", b"Content-Length: 7", b"WARC-Date: 2026-11-20T09:14:17Z"]


@pytest.mark.parametrize(
    ("more", "regular"),
    [
        (b"WARC-Type: response\r\nX-y: z", True),
        (b"WARC-Type:  Response \t\r\nWARC-Target-URI:   http://x/ \r", True),
        (b"WARC-Type: response\r\nWARC-Truncated: length", True),
        (b"WARC-Type: request\r\nWARC-Record-ID: ", True),
        (b"WARC-Type: response\r\nWARC-Date: 2026-11-20T09:14:17Z", False),
        (b"WARC-Concurrent-To: <a>\r\nWARC-Concurrent-To: <b>", False),
        (b"WARC-Type: response\nX-y: z", False),
        (b"WARC-Type: response\r\n folded", False),
        (b"WARC-Type: response\r\nno field", False),
        (b"WARC-Type: response\r\nX y: z", False),
        (b"WARC-Type: response\r\nwarc-record-id: <a>", False),
        (b"WARC-Type:response", False),
    ],
)
def test_headers_in_any_order(more: bytes, regular: bool) -> None:
    text = b"\r\n".join([*_LINES, more])
    head, found = headers.parse(text), headers.in_any_order(text + b"\r\n\r\npayload")
    assert (found is not None) == regular
    if found is not None:
        kind, values, begin = found
        assert (kind.type, kind.special, values) == (head.type, head.special, head.values)
        assert kind.response == (head.type == b"response" and not head.special)
        assert kind.request == (head.type == b"request") and begin == len(text) + 4
    for start in (text.replace(b"WARC/1.1", b"WARC/3.0"), text.replace(b": 7", b": x")):
        assert headers.in_any_order(start + b"\r\n\r\npayload") is None
    assert headers.in_any_order(text) is None


def test_most_records_take_the_fast_path() -> None:
    body = Random(1).randbytes(gzip_members.FEED + 1)
    large = gz(response(body, Payload_Digest=sha1(body)))
    PATH.write_bytes((gz(request()) + gz(response()) + gz(request()) + large) * 25)
    window = open_window("t", PATH)
    events = list(fast_reader.read(window))
    window.close()
    assert sum(event is None for event in events) > 40
    assert sum(isinstance(event, Sound) for event in events) > 40
    usual = warc_records.Responses("t", DEFAULTS)
    sound = [event for event in events if isinstance(event, Sound)]
    first = usual.response(sound[0])
    assert usual.fast(sound[0]) == first
