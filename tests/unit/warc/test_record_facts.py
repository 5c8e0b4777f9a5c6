"""The facts of a WARC record, where two readers once read them by different rules."""

from __future__ import annotations

import pytest

from dedupindex.urlkey import unbracket
from dedupindex.warc import http
from dedupindex.warc.record_facts import (
    Refused,
    divided,
    http_url,
    record_ids,
    refers_to,
    says_identical,
    says_not_modified,
    timestamp14,
)
from tests.support.warc_cases import HTTP


@pytest.mark.parametrize(
    ("written", "bare"),
    [
        (b"<http://e.com/>", b"http://e.com/"),
        (b"http://e.com/<>", b"http://e.com/<>"),
        (b"<http://e.com/", b"<http://e.com/"),
        (b"http://e.com/>", b"http://e.com/>"),
        (b"<<urn:x>>", b"<urn:x>"),
        (b"<>", b""),
        (b"<", b"<"),
        (b"", b""),
    ],
)
def test_case_77_one_pair_of_brackets_is_removed(written: bytes, bare: bytes) -> None:
    assert unbracket(written) == bare
    assert record_ids(written) == ({bare} if written else set())
    named = {b"WARC-Refers-To": written, b"WARC-Refers-To-Target-URI": written}
    assert refers_to(named) == (bare, b"", bare)


@pytest.mark.parametrize("url", [b"<http://e.com/", b"< http://e.com/>", b"ftp://e.com/", b"<>>"])
def test_case_77_url_with_half_a_pair_of_brackets(url: bytes) -> None:
    with pytest.raises(Refused, match="not-http"):
        http_url(url)


def test_case_55_several_ids_in_one_field() -> None:
    assert record_ids(b"<urn:a> urn:b  <urn:c>") == {b"urn:a", b"urn:b", b"urn:c"}


@pytest.mark.parametrize("date", [b"2016-01", b"2016-01-01", b"2016-01-01T00:00:00+00:00", b""])
def test_case_66_invalid_date_has_no_digits(date: bytes) -> None:
    assert timestamp14(date) == b""
    assert timestamp14(b"2016-01-01T01:02:03.999Z") == b"20160101010203"


@pytest.mark.parametrize(
    "form", ["http://netpreserve.org/warc/{}/{}", "<http://netpreserve.org/warc/{}/{}>"]
)
def test_case_81_profiles(form: str) -> None:
    for version in ("0.18", "1.0", "1.1"):
        profile = form.format(version, "revisit/identical-payload-digest").encode()
        assert says_identical({b"WARC-Profile": profile})
        assert not says_not_modified({b"WARC-Profile": profile})
        for misprint in ("server-not-modified", "revisit/server-not-modified"):
            other = {b"WARC-Profile": form.format(version, misprint).encode()}
            assert says_not_modified(other)
            assert not says_identical(other)
    assert not says_identical({})
    assert not says_not_modified({b"WARC-Profile": b"http://example.com/other"})


@pytest.mark.parametrize("size", [3, 5, 1 << 22])
def test_case_36_only_http_is_searched_for_a_header(size: int) -> None:
    pieces = iter([b"x" * 5] * (size // 5) + [b"y"])
    answer, body, reason = divided(pieces)
    assert (answer, reason) == (None, "not-http")
    assert sum(map(len, body)) == size // 5 * 5 + 1


@pytest.mark.parametrize("cut", range(1, len(HTTP) + 3))
def test_streamed_block_is_divided_after_its_header(cut: int) -> None:
    block = HTTP + b"body"
    answer, body, reason = divided(iter([block[:cut], block[cut:]]))
    assert answer is not None and answer.head == HTTP and not reason
    pieces = list(body)
    assert b"".join(pieces) == b"body" and all(pieces)


def test_case_47_order_of_codings_matters() -> None:
    one, two = b"\r\nContent-Encoding: gzip", b"\r\nContent-Encoding: br"
    codings = {
        http.codings(b"HTTP/1.1 200 OK" + text + b"\r\n\r\n") for text in (one + two, two + one)
    }
    assert codings == {b"\ngzip,br", b"\nbr,gzip"}
