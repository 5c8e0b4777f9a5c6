"""Regular expressions of users, by RE2: its time is linear in the length of the text.

DuckDB uses RE2, too, so an expression has the same meaning in Python and in SQL. There is no
lookaround and no backreference. ``\\p``, ``\\P`` and ``\\C`` are refused, as the two copies of RE2
have different Unicode tables, and ``\\C`` splits a character.
"""

from __future__ import annotations

import re

import re2

from dedupindex.errors import BadQuery

LONGEST = 200  # characters of an expression that a server accepts
LONGEST_MATCHED = 2_000  # characters of a text that a server matches
MEMORY = 1 << 16  # bytes for program and automata of such an expression
_MEMORY = 8 << 20  # RE2's own limit, and DuckDB's

_DIFFERING = re.compile(r"(?<!\\)(?:\\\\)*\\([pPC])")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Pattern:
    """A compiled expression; ``.`` matches every character, ``^`` and ``$`` only its ends."""

    def __init__(self, text: str, memory: int = _MEMORY) -> None:
        """Compile an expression; raises `BadQuery` with the reason."""
        options = re2.Options()
        options.max_mem = memory
        options.log_errors = False
        options.never_capture = options.dot_nl = True
        try:
            if differing := _DIFFERING.search(text):
                raise re2.error(b"invalid escape sequence: \\" + differing[1].encode())
            compiled = re2.compile(_utf8(text), options)  # bytes, as str takes three times as long
        except re2.error as error:
            reason = error.args[0].decode("utf-8", "replace")
            raise BadQuery(
                f"{text!r} is not a regular expression of RE2, which has no lookaround and no "
                f"backreferences: {reason}"
            ) from error
        self._search, self._fullmatch = compiled.search, compiled.fullmatch
        self._size: int = compiled.programsize

    def found_in(self, text: str) -> bool:
        """Return whether a part of the text matches."""
        return self._search(_utf8(text)) is not None

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches."""
        return self._fullmatch(_utf8(text)) is not None

    def steps(self, characters: int) -> int:
        """Return the most steps, of about 1 ns, that matching a text of this length takes."""
        return self._size * (characters + 1)


def of_request(text: str) -> Pattern:
    """Compile an expression of a request, with limits; raises `BadQuery`."""
    if len(text) > LONGEST:
        raise BadQuery(f"a regular expression has at most {LONGEST} characters")
    return Pattern(text, MEMORY)


def _utf8(text: str) -> bytes:
    """Encode text; bytes that are not UTF-8, which Python keeps as surrogates, become U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text).encode()
