"""Regular expressions from requests: linear time, and no more steps than the limit."""

from __future__ import annotations

import re
from time import thread_time

import pytest

from dedupindex.errors import BadQuery
from dedupindex.runtime.safe_regex import LONGEST, LONGEST_MATCHED, Pattern, of_request

MANY = "|".join(["a"] * 90)
SLOW = [
    "a*b", ".*" + "a" * 190 + "b", f".*({MANY})b", ".*.*b", "a*a+b", "[ab]*[ab]*b",
    ".*.*" + "a" * 150 + "b", ".*a.*" + "a" * 150 + "b", f".*.*({MANY})b", f".*({MANY}).*b",
    f"(.*.*|{MANY})b", ".*.*(" + "|".join(["[ab]"] * 35) + ")b", "[a-z]*[a-z]*" + "[^b]" * 40 + "b",
    ".*.{2}b", "a*?b", "a?a*b",
    "(a*)*b", "((a?){12}){12}b", "(.*.*){60}b", "(.{1,9}){9}b", "(a|aa)*b", ".*a.{60}b",
]  # fmt: skip


@pytest.mark.parametrize("text", SLOW)
def test_steps_bound_the_time_of_an_expression(text: str) -> None:
    """A step is about 1 ns; the rest is for slow machines, and a millisecond for all."""
    expression, value = of_request(text), "a" * LONGEST_MATCHED
    start = thread_time()
    assert not expression.matches(value)
    assert thread_time() - start < 0.001 + expression.steps(len(value)) * 20e-9
    short = "a" * (500 if len(text) > 100 else 62)
    assert expression.matches(short + "b") or "[^b]" in text or "{" in text


@pytest.mark.parametrize(
    "text",
    [
        "a" * (LONGEST + 1), "(?=a)", "(?!a)", "(?<=a)", "(?>a)", "(?#a)", r"(a)\1", "(a", "a**",
        "a{1001}", "[", "(a{40}){40}", ".{1,1000}.{1,1000}", "*", "[z-a]", "\\",
        r"\pN", r"\P{Lu}", r"\C", r"\\\pN", "\ud800(",
    ],
)  # fmt: skip
def test_expressions_without_a_bound_are_refused(text: str) -> None:
    with pytest.raises(BadQuery):
        of_request(text)


def test_error_message_names_the_reason() -> None:
    for text, reason in (("(?=a)", "invalid perl operator: (?="), (r"(a)\1", r"\1"), ("(a", "(a")):
        said = (
            f"{text!r} is not a regular expression of RE2, which has no lookaround and no backref"
        )
        with pytest.raises(BadQuery, match=re.escape(said) + f".*{re.escape(reason)}"):
            Pattern(text)


def test_groups_and_repeats_are_not_counted() -> None:
    assert of_request("(a*)*(b?)+c{1}(?i)D").matches("aabbcd")
    assert of_request("a{9999999999}").matches("a{9999999999}")  # no repeat: each { is itself
    assert of_request("(?P<n>a)(?:b)+").matches("abb")
    assert of_request(r"\\pN").matches(r"\pN") and of_request(r"[\\]pN").matches(r"\pN")


def test_a_dot_is_any_character_and_ends_are_those_of_the_text() -> None:
    assert Pattern("a.b").found_in("xa\nb") and Pattern("a.b").matches("a\udcffb")
    assert not Pattern("a$").found_in("a\n") and not Pattern("^b").found_in("a\nb")
    assert Pattern("é.").matches("éß") and not Pattern("é").matches("éé")
