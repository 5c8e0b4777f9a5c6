"""`dedupindex.timestamps`: dates stay as written, and impossible ones are refused."""

from __future__ import annotations

import pytest
from hypothesis import given

from dedupindex.errors import BadDate, BadInput
from dedupindex.timestamps import (
    check_date,
    check_digits,
    date_of_digits,
    digits_of_date,
    first_digits,
    last_digits,
    seconds,
    sort_key,
)
from tests.support.captures import dates


@given(dates)
def test_dates_are_accepted_and_their_digits_round_trip(date: bytes) -> None:
    assert check_date(date) == date
    digits = check_digits(digits_of_date(date))
    assert check_date(date_of_digits(digits))[:19] == date[:19]


@given(dates, dates)
def test_order_is_that_of_time(one: bytes, other: bytes) -> None:
    def exact(date: bytes) -> tuple[int, float]:
        return seconds(date), float(b"0" + date[19:-1]) if len(date) > 20 else 0.0

    assert (sort_key(one) < sort_key(other)) == (exact(one) < exact(other))


@pytest.mark.parametrize(
    "text",
    [
        b"2016-01",
        b"2016-01-01",
        b"2016-01-01T00:00:00+00:00",
        b"2016-01-01t00:00:00z",
        b"2016-02-30T00:00:00Z",
        b"2016-13-01T00:00:00Z",
        b"2016-01-01T24:00:00Z",
        b"0001-01-01T00:00:00Z",
        b"9999-12-31T23:59:59Z",
        b"2016-01-01T00:00:00.Z",
        b"2016-01-01T00:00:00.1234567890Z",
        b"",
        b"\xd9\xa2016-01-01T00:00:00Z",
    ],
)
def test_case_66_odd_dates_are_refused(text: bytes) -> None:
    with pytest.raises(BadDate):
        check_date(text)


@pytest.mark.parametrize("text", [b"20160101", b"20161332000000", b"2016010100000", b"", b"-" * 14])
def test_odd_digits_are_refused(text: bytes) -> None:
    with pytest.raises(BadDate):
        check_digits(text)


@pytest.mark.parametrize("typed", ["2016-12-31T23:59:60Z", "20161231235960"])
def test_a_leap_second_may_be_typed(typed: str) -> None:
    assert first_digits(typed) == last_digits(typed) == b"20161231235960"


@pytest.mark.parametrize("typed", ["20161231235961", "20161231236000", "20161260"])
def test_no_other_unit_has_60(typed: str) -> None:
    with pytest.raises(BadInput):
        first_digits(typed)


def test_seventeen_digits_are_cut() -> None:
    assert check_digits(b"20261120091417123") == b"20261120091417"
    assert seconds(b"1970-01-02T00:00:01.5Z") == 86401
