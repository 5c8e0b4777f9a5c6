"""Expressions: the same answer from Python and from DuckDB, and complaints that help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.errors import BadQuery
from dedupindex.expression.evaluate import holds, hostname, to_sql
from dedupindex.expression.parser import amount, condition, period
from dedupindex.expression.tree import (
    Attribute,
    Leaf,
    Lookup,
    Measure,
    OperandKind,
    Value,
    Vocabulary,
    leaves,
)
from tests.support.budgets import examples

WORDS = Vocabulary(
    {
        "url": OperandKind.TEXT,
        "mime": OperandKind.TEXT,
        "status": OperandKind.NUMBER,
        "size": OperandKind.NUMBER,
        "timestamp": OperandKind.TIME,
    }
)
PAIRS = Vocabulary(
    {"hostname": OperandKind.TEXT, "timestamp": OperandKind.TIME, "size": OperandKind.NUMBER},
    ("a", "b"),
    {"containment": ("k",)},
)
ROW: dict[str, Value] = {
    "url": "http://News.Example:8080/a.PDF?x=1",
    "mime": "text/html",
    "status": 200,
    "size": 1500,
    "timestamp": period("20200315120000")[0],
}
TYPES = {OperandKind.TEXT: "VARCHAR", OperandKind.NUMBER: "DOUBLE", OperandKind.TIME: "BIGINT"}


def asking(row: Mapping[str, Value]) -> Lookup:
    return lambda leaf: row[leaf.name]


def true_of(text: str, row: Mapping[str, Value] = ROW) -> bool:
    return holds(condition(text, WORDS), asking(row))


@pytest.mark.parametrize(
    "text",
    [
        "status == 200 and mime == 'text/html' and timestamp >= '2020'",
        "timestamp == '2020' and timestamp == '202003' and timestamp == '2020-03-15T12'",
        "timestamp <= '2020' and not timestamp < '2020' and timestamp > '2019'",
        "'2019' < timestamp and timestamp in ('2018', '2020-03') and timestamp != '2021'",
        "timestamp - 1w < '2020-03-09' and timestamp + 12h >= '2020-03-16'",
        "size == 1.5KB and size < 2KiB and size * 2 - 1000 == 4 * 500 and -size < 0",
        "status in (200, 203) and mime not in ('a', \"b\") and not (status == 404 or size > 1MB)",
        r"url =~ '(?i)\.pdf\?' and url =~ '^http://' and not url =~ 'example$'",
        "hostname(url) == 'news.example'",
        "1 + 2 * 3 == 7 and (1 + 2) * 3 == 9 and 7 - 2 - 1 == 4 and 8 / 4 / 2 == 1",
        "status == 200 or status == 1 and status == 2",
        "'it''s' == \"it's\" and '' < 'a'",
    ],
)
def test_conditions_that_hold(text: str) -> None:
    assert true_of(text)


def test_a_missing_value_equals_nothing() -> None:
    row = dict.fromkeys(ROW)
    for text in ("mime == mime", "size < 5", "size >= 5", "mime =~ ''", "size / 0 == size / 0"):
        assert not true_of(text, row)
        assert true_of(f"not ({text})", row)
    assert true_of("mime != 'a' and size != 5 and status not in (200)", row)
    assert not true_of("size / 0 == 1 or size / 0 != 1 and size / 0 < 1")


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("status == )", 11, "a value is expected, not ')'"),
        ("status == ", 10, "a value is expected, not the end"),
        ("status = 200", 8, "write =="),
        ("size => 5", 6, "=> means nothing here: write >="),
        ("size =< 5", 6, "=< means nothing here: write <="),
        ("size === 5", 6, "=== means nothing here: write =="),
        ("size > 0,7", 9, "not ',': of a number the point is a ."),
        ("size > 7, mime == 'x'", 9, "the end is expected, not ',', at"),
        ("mime == 'a','b'", 12, "the end is expected, not ',', at"),
        ("mime == 200", 6, "text has quotes and a number has none, as"),
        ("mime + 5 == 5", 8, "text + a number has no meaning, at"),
        ("size > '5KB'", 6, "text has quotes and a number has none, as"),
        ("status == 200 && size > 1", 15, "write and"),
        ("! status == 200", 1, "write not"),
        ("stattus == 200", 1, "there is no stattus here, but url, mime, status"),
        ("status == '200'", 8, "a number and text cannot be compared"),
        ("timestamp > 2020", 11, "date in quotes"),
        ("timestamp > 'May'", 11, "'2020-05'"),
        ("timestamp > '20201'", 11, "no date"),
        ("timestamp > '2020-13'", 11, "month"),
        ("timestamp - 5 > '2020'", 13, "7d"),
        ("size > 5d", 6, "7d, 12h"),
        ("size > 5XB", 8, "there is no unit XB, but s, m, h, d, w"),
        ("size > 99999999999999999999", 8, "too large"),
        ("size > 1e999", 8, "too large"),
        ("status", 1, "a condition is expected here, and this is a number"),
        ("status == 200 and size", 19, "a condition is expected"),
        ("not status", 5, "a condition is expected"),
        ("(status == 200", 15, ") is expected to end what a ( began"),
        ("status == 200)", 14, "not ')'"),
        ("1 < size < 3", 10, "only two things are compared"),
        ("mime == 'x", 9, "does not end"),
        ("mime == 'x' ; drop", 13, "';' means nothing here"),
        ("mime in 'x'", 9, "( is expected after 'in'"),
        ("mime in ('x', url)", 15, "'in' takes constants"),
        ("mime in (5)", 10, "cannot be compared"),
        ("mime not 5", 10, "'in' is expected"),
        ("mime =~ url", 6, "a regular expression in quotes"),
        ("mime =~ 'a(b'", 9, "'a(b' is not a regular expression of RE2"),
        ("mime =~ 'a(?=b)'", 9, "no lookaround and no backreferences: invalid perl operator: (?="),
        (r"mime =~ '(a)\1'", 9, r"invalid escape sequence: \1"),
        (r"mime =~ '\pL'", 9, r"invalid escape sequence: \p"),
        ("mime =~ '*'", 9, "no argument for repetition operator: *"),
        ("mime =~ 'a**'", 9, "bad repetition operator: **"),
        ("mime =~ 'a{2000}'", 9, "invalid repetition size: {2000}"),
        ("mime =~ '(a{40}){40}'", 9, "invalid repetition size: {40}"),
        ("mime =~ '[z-a]'", 9, "invalid character class range: z-a"),
        ("mime + 'x' == 'y'", 8, "text + text has no meaning"),
        ("hostname(size) == 'x'", 10, "text is expected here, and this is a number"),
        ("(" * 60 + "1" + ")" * 60 + " == 1", 51, "nested"),
        ("mime == 'a\0'", 11, "character 0"),
        ("", 1, "a value is expected, not the end"),
    ],
)
def test_errors_name_the_position_and_what_was_expected(text: str, at: int, message: str) -> None:
    with pytest.raises(BadQuery) as refused:
        condition(text, WORDS)
    assert message in str(refused.value)
    assert f"at character {at} of the expression: " in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("timestamp <= timestamp(b)", "write timestamp(a) or timestamp(b)"),
        ("timestamp(c) <= timestamp(b)", "write timestamp(a) or timestamp(b)"),
        ("timestamp(a <= timestamp(b)", ") is expected after timestamp(a"),
        ("containment >= 0.7", "containment is written containment(k=5)"),
        ("containment(5) >= 0.7", "containment is written containment(k=5)"),
        ("containment(k=0) >= 0.7", "containment is written containment(k=5)"),
        ("containment(k=5, k=6) >= 0.7", "containment is written containment(k=5)"),
        ("jaccard(k=5) >= 0.7", "there is no jaccard here, but hostname, timestamp, size, cont"),
        ("timestamp(a) - timestamp(b) < 604800", "7d, 12h"),
    ],
)
def test_errors_in_conditions_on_pairs(text: str, message: str) -> None:
    with pytest.raises(BadQuery, match=message.replace("(", r"\(").replace(")", r"\)")):
        condition(text, PAIRS)


def test_the_example_for_journalists() -> None:
    text = "containment(k=5) >= 0.7 and timestamp(a) <= timestamp(b) and hostname(a) == hostname(b)"
    node = condition(text, PAIRS)
    assert Measure("containment", (5,)) in leaves(node)
    values = {("containment", ""): 0.7, ("timestamp", "a"): 5, ("timestamp", "b"): 5,
              ("hostname", "a"): "x", ("hostname", "b"): "x"}  # fmt: skip

    def asked(leaf: Leaf) -> Value:
        return values[leaf.name, leaf.side if isinstance(leaf, Attribute) else ""]

    assert holds(node, asked)
    values["timestamp", "b"] = 4
    assert not holds(node, asked)


def test_a_number_is_no_condition() -> None:
    assert amount("size / 2 + status", WORDS).kind is OperandKind.NUMBER
    with pytest.raises(BadQuery, match="a number is expected here, and this is a condition"):
        amount("size > 2", WORDS)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://user:pw@News.example:80/x@y", "news.example"),
        ("https://[::1]:80/", "[::1]"),
        ("dns:example.org", None),
        ("http:///x", None),
        ("//example.org", None),
        (None, None),
    ],
)
def test_hostnames(url: str | None, host: str | None) -> None:
    assert hostname(url) == host


# --- Python and DuckDB agree -----------------------------------------------------------------

CHARACTERS = st.sampled_from("abAB09 _-.^$\\/'\"\n\tiIıİéÉſs\u212ak日%")
TEXTS = st.text(CHARACTERS, max_size=6)
NUMBERS = st.one_of(
    st.integers(-5, 5), st.integers(-(1 << 53), 1 << 53), st.sampled_from([0.5, 0.1, 1e-9, 1e15])
)
TIMES = st.integers(period("1996")[0], period("2026")[1])
DATES = st.sampled_from(["1996", "2019-12", "20200229", "2020-02-29T23", "20201231235959"])
PIECES = ["a", "b", "i", "ı", "[k-s]", "[^I]", "\\w", "\\n", "[a-z]", "[^a]", "[\\w-]", ".", "\\d",
          "\\W", "\\s", "(a|b)", "(?:a|é)*",
          "x?", "[.]", "\\.", "a{1,2}", "A+", "^", "$", "\\b", "\\B", "'", "-", "_", "[[:alpha:]]",
          "(?i:K)", "(?m:^a)", "(?-s:.)", "(?P<n>i)", "\\Q.^\\E", "\\x{212a}", "a{",
          "(?U)a*"]  # fmt: skip
PATTERNS = st.builds(
    lambda flag, pieces: flag + "".join(pieces),
    st.sampled_from(["", "(?i)"]),
    st.lists(st.sampled_from(PIECES), max_size=4),
)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def constant(value: float) -> str:
    return f"({value:f})" if isinstance(value, float) else f"({value})"


texts = st.one_of(st.sampled_from(["url", "mime", "hostname(url)"]), TEXTS.map(quoted))
numbers = st.recursive(
    st.one_of(st.sampled_from(["status", "size"]), NUMBERS.map(constant)),
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from("+-*/"), inner),
    max_leaves=4,
)
times = st.one_of(
    st.just("timestamp"),
    st.builds("timestamp {} {}{}".format, st.sampled_from("+-"), st.integers(0, 999),
              st.sampled_from("smhdw")),
)  # fmt: skip
signs = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
conditions = st.recursive(
    st.one_of(
        st.builds("{} {} {}".format, texts, signs, texts),
        st.builds("{} {} {}".format, numbers, signs, numbers),
        st.builds("{} {} {}".format, times, signs, st.one_of(times, DATES.map(quoted))),
        st.builds("{} {} {}".format, DATES.map(quoted), signs, times),
        st.builds("{} =~ {}".format, texts, PATTERNS.map(quoted)),
        st.builds("mime {} ({}, {})".format, st.sampled_from(["in", "not in"]),
                  TEXTS.map(quoted), TEXTS.map(quoted)),
        st.builds("{} in ({}, {})".format, st.sampled_from(["status", "size"]),
                  NUMBERS.map(constant), NUMBERS.map(constant)),
        st.builds("timestamp in ({}, {})".format, DATES.map(quoted), DATES.map(quoted)),
    ),
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("not {}".format, inner),
        st.builds("({})".format, inner),
    ),
    max_leaves=5,
)  # fmt: skip
urls = st.one_of(
    TEXTS, st.builds("http://{}/".format, TEXTS), st.builds("{}://a.B:1".format, TEXTS)
)
rows = st.fixed_dictionaries(
    {
        "url": st.none() | urls,
        "mime": st.none() | TEXTS,
        "status": st.none() | NUMBERS,
        "size": st.none() | NUMBERS,
        "timestamp": st.none() | TIMES,
    }
)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("i", "iI"),
        ("[a-z]", "iIkK\u212asSſ"),
        (r"\w", "iIkK\u212asSſ"),
        (r"\b", "iIkKsS"),
        (r"[\w]", "iIkK\u212asSſ"),
        ("[^a-z]", "ıİéÉßẞ\n"),
        ("É", "éÉ"),
        ("[à-þ]", "éÉ"),
        ("ß", "ßẞ"),
        (r"[\t-\n]", "\n"),
        (r"\n", "\n"),
    ],
)
def test_upper_and_lower_case_are_those_of_unicode(pattern: str, found: str) -> None:
    """Neither ı nor İ is an i, as they are to Python; the Kelvin sign is a k and ẞ an ß."""
    letters = "iIıİkK\u212asSſéÉßẞ\n"
    node = condition(f"url =~ '(?i){pattern}'", WORDS)
    assert {one for one in letters if holds(node, lambda leaf, one=one: one)} == set(found)
    with duckdb.connect() as database:
        query = (
            f"SELECT url FROM (SELECT unnest(?) AS url) WHERE {to_sql(node, lambda leaf: 'url')}"
        )
        rows = database.execute(query, [list(letters)]).fetchall()
    assert {one for (one,) in rows} == set(found)


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """One database for all examples of a test: to open one costs more than to ask it."""
    with duckdb.connect() as opened:
        yield opened


@settings(max_examples=examples(150), deadline=None)
@given(text=conditions, some=st.lists(rows, min_size=1, max_size=8))
def test_python_and_duckdb_agree(
    database: duckdb.DuckDBPyConnection, text: str, some: list[dict[str, Value]]
) -> None:
    node = condition(text, WORDS)
    columns = ", ".join(f"{name} {TYPES[kind]}" for name, kind in WORDS.attributes.items())
    database.execute(f"CREATE OR REPLACE TEMP TABLE rows (number INTEGER, {columns})")
    database.executemany(
        "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?)",
        [[number, *(row[name] for name in WORDS.attributes)] for number, row in enumerate(some)],
    )
    query = f"SELECT number FROM rows WHERE {to_sql(node, lambda leaf: leaf.name)} ORDER BY 1"
    found = [number for (number,) in database.execute(query).fetchall()]
    assert found == [n for n, row in enumerate(some) if holds(node, asking(row))]


@given(st.text(st.sampled_from("status mime()'\"<>=!&|~+-*/5d.,in\\[]{}"), max_size=30))
def test_any_text_is_parsed_or_refused_with_a_position(text: str) -> None:
    try:
        condition(text, WORDS)
    except BadQuery as refused:
        assert "of the expression: " in str(refused)


@given(TIMES)
def test_a_date_is_a_period(second: int) -> None:
    from datetime import UTC, datetime

    digits = datetime.fromtimestamp(second, UTC).strftime("%Y%m%d%H%M%S")
    for length in (4, 6, 8, 10, 12, 14):
        begin, end = period(digits[:length])
        assert begin <= second <= end
        before = datetime.fromtimestamp(begin - 1, UTC).strftime("%Y%m%d%H%M%S")
        after = datetime.fromtimestamp(end + 1, UTC).strftime("%Y%m%d%H%M%S")
        assert before[:length] < digits[:length] < after[:length]
