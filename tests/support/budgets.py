"""How many examples property tests try: more when the profile of hypothesis says so."""

from __future__ import annotations

from hypothesis import settings

FULL = 100
"""Examples of a test that names no number, if the profile says nothing else."""


def examples(number: int) -> int:
    """Return the number of examples for a test that is to try `number`.

    It follows the loaded profile: with ``max_examples=50``, as in ordinary runs, it tries half as
    many, and with ``max_examples=1000`` (``bin/test --thorough``) ten times as many.
    """
    return max(1, number * settings.default.max_examples // FULL)


def thorough() -> bool:
    """Return whether the loaded profile asks for more than an ordinary run."""
    return settings.default.max_examples > FULL
