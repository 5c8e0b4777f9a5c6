"""Regular expressions that others may send: those whose time is bounded.

What repeats a group, looks around or refers back can take years to fail, and one asker would stop
the server for all. Of the others the steps that they can take are known before.
"""

from __future__ import annotations

import re

from dedupindex.errors import BadQuery

LONGEST = 200  # characters of an expression
LONGEST_MATCHED = 2_000  # of what meets one
LONGEST_SEARCHED = 500  # the same of an expression with two repeats, whose time is squared
_REPEATS = 2  # *, +, ? and {}, which each may multiply its time


def footprint(text: str) -> int:
    """Bytes of memory that an expression takes when it is compiled, at most about."""
    return 1000 + 40 * len(text)


class Bounded:
    """An expression for a whole text of at most `longest` characters."""

    def __init__(self, text: str) -> None:
        """Raises `BadQuery`."""
        bare = re.sub(r"\\.", "x", text, flags=re.DOTALL)  # without what is escaped
        bare = re.sub(r"\[\^?\]?[^\]]*\]", "x", bare).replace("(?:", "(")  # or one of a set
        if len(text) > LONGEST or len(re.findall(r"[*+?{]", bare)) > _REPEATS:
            raise BadQuery(
                f"a regular expression has at most {LONGEST} characters, and {_REPEATS} repeats"
            )
        if bare.count("(") > 1 or re.search(r"\)[*+?{]|\(\?", bare) or re.search(r"\\[0-9]", text):
            raise BadQuery(
                "a regular expression has at most one group, not repeated, and does not look "
                "around or refer back"
            )
        try:
            self.matches = re.compile(text).fullmatch
        except (re.error, OverflowError, RecursionError) as error:
            raise BadQuery(f"{text!r} is no regular expression: {error}") from error
        self._factor, self._repeats = len(text) or 1, len(re.findall(r"[*+{]", bare))
        self.longest = LONGEST_SEARCHED if self._repeats > 1 else LONGEST_MATCHED

    def steps(self, characters: int) -> int:
        """At most about so many steps, of 2 ns, does it take to match a text or to fail.

        A repeat may end after each character; what stands beside it, all alternatives of a group
        say, may be tried each time. `?` is twice at most.
        """
        return int(self._factor * (characters + 1) ** self._repeats)
