"""Regular expressions that anybody may send: what they may cost is known before."""

from __future__ import annotations

import re
from time import thread_time

import pytest

from dedupindex.errors import BadQuery
from dedupindex.runtime.safe_regex import LONGEST, LONGEST_MATCHED, LONGEST_SEARCHED, Bounded

MANY = "|".join(["a"] * 90)
SLOW = [
    "a*b", ".*" + "a" * 190 + "b", f".*({MANY})b", ".*.*b", "a*a+b", "[ab]*[ab]*b",
    ".*.*" + "a" * 150 + "b", ".*a.*" + "a" * 150 + "b", f".*.*({MANY})b", f".*({MANY}).*b",
    f"(.*.*|{MANY})b", ".*.*(" + "|".join(["[ab]"] * 35) + ")b", "[a-z]*[a-z]*" + "[^b]" * 40 + "b",
    ".{1,1000}.{1,1000}" + "a" * 150 + "b", ".*.{2}b", "a*?b", "a?a*b",
]  # fmt: skip


@pytest.mark.parametrize("text", SLOW)
def test_no_expression_takes_more_steps_than_it_says(text: str) -> None:
    """A step is at most 2 ns or so; the rest is for slow machines, and a millisecond for all."""
    expression, value = Bounded(text), "a" * 500
    start = thread_time()
    assert expression.matches(value) is None
    assert thread_time() - start < 0.001 + expression.steps(len(value)) * 20e-9
    assert re.fullmatch(text, value + "b") or "[^b]" in text
    assert expression.longest in (LONGEST_MATCHED, LONGEST_SEARCHED)


def test_what_has_two_repeats_is_for_shorter_texts() -> None:
    assert Bounded("https?://[^?]*").longest == LONGEST_MATCHED == Bounded("a{3}").longest
    assert {Bounded(text).longest for text in ("a*b*", "a+b{2}", "a{1,}b+")} == {LONGEST_SEARCHED}
    for text in (r"a\*b\+c*", "[*+]*", "[]*+{(]*(?:b)", r"[^\]*+{(]*"):  # one repeat each
        assert Bounded(text).longest == LONGEST_MATCHED


@pytest.mark.parametrize(
    "text",
    [
        "a" * (LONGEST + 1), "a*b*c*", "a?b?c?", "a{1}b{1}c{1}", "(a)(b)", "(a*)*", "(a)+", "(a)?",
        "(a){9}", "(?:a)*", "(?=a)", "(?!a)", "(?<=a)", "(?P<n>a)", "(?i)a", "(?>a)", "(?#a)",
        r"(a)\1", r"[\]](a*)*", "[]](a*)*", "[^]](a*)*[]]", "(a", "a**", "a{9999999999}", "[",
    ],
)  # fmt: skip
def test_what_has_no_bound_is_refused(text: str) -> None:
    with pytest.raises(BadQuery):
        Bounded(text)
