"""Regular expressions that others may send: those whose time is bounded.

What repeats a group, looks around or refers back can take years to fail, and one asker would stop
the server for all.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from dedupindex.errors import BadQuery

LONGEST = 200  # characters of an expression
LONGEST_MATCHED = 2_000  # of what meets one
_REPEATS = 2  # *, +, ? and {}, which each may multiply its time


def bounded(text: str) -> Callable[[str], object]:
    """What matches a whole text of at most `LONGEST_MATCHED` characters; raises `BadQuery`."""
    bare = re.sub(r"\\.", "x", text, flags=re.DOTALL)  # without what is escaped
    repeats = len(re.findall(r"[*+?{]", bare.replace("(?:", "(")))
    if len(text) > LONGEST or repeats > _REPEATS:
        raise BadQuery(
            f"a regular expression has at most {LONGEST} characters, and {_REPEATS} repeats"
        )
    if bare.count("(") > 1 or re.search(r"\)[*+?{]|\(\?(?!:)", bare) or re.search(r"\\[0-9]", text):
        raise BadQuery(
            "a regular expression has at most one group, not repeated, and does not look around "
            "or refer back"
        )
    try:
        return re.compile(text).fullmatch
    except (re.error, OverflowError, RecursionError) as error:
        raise BadQuery(f"{text!r} is no regular expression: {error}") from error
