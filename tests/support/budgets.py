"""How many examples property tests try: more when the profile of hypothesis says so."""

from __future__ import annotations

from hypothesis import settings

USUAL = 100
"""Examples of a test that names no number, in an ordinary run."""


def examples(number: int) -> int:
    """Return the number of examples for a test that tries `number` in an ordinary run.

    It follows the loaded profile: with ``max_examples=1000`` every test tries ten times as many.
    """
    return max(1, number * settings.default.max_examples // USUAL)


def thorough() -> bool:
    """Return whether the loaded profile asks for more than an ordinary run."""
    return settings.default.max_examples > USUAL
