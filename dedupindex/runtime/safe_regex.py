"""Regular expressions of users: RE2, whose time is linear in the text.

DuckDB has the same engine, so an expression has the same meaning in Python and in SQL. RE2 has no
lookaround and no backreferences. ``\\p``, ``\\P`` and ``\\C`` are refused, too: the Unicode tables
of the two copies are of different versions, and ``\\C`` divides a character.
"""

from __future__ import annotations

import re

import re2

from dedupindex.errors import BadQuery

LONGEST = 200  # characters of an expression that a server accepts
LONGEST_MATCHED = 2_000  # characters of what is matched with it
MEMORY = 1 << 16  # bytes that its program and automata may take
_MEMORY = 8 << 20  # RE2's own limit, and DuckDB's

_DIFFERING = re.compile(r"(?<!\\)(?:\\\\)*\\([pPC])")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Pattern:
    """A compiled expression. ``.`` is any character, ``^`` and ``$`` are the ends of the text."""

    def __init__(self, text: str, memory: int = _MEMORY) -> None:
        """Raises `BadQuery` with the reason."""
        options = re2.Options()
        options.max_mem = memory
        options.log_errors = False
        options.never_capture = options.dot_nl = True
        try:
            if differing := _DIFFERING.search(text):
                raise re2.error(b"invalid escape sequence: \\" + differing[1].encode())
            compiled = re2.compile(_utf8(text), options)  # of bytes: str takes 3 times as long
        except re2.error as error:
            reason = error.args[0].decode("utf-8", "replace")
            raise BadQuery(
                f"{text!r} is no regular expression of RE2, which has no lookaround and no "
                f"backreferences: {reason}"
            ) from error
        self._search, self._fullmatch = compiled.search, compiled.fullmatch
        self._size: int = compiled.programsize

    def found_in(self, text: str) -> bool:
        """Whether some part of the text matches."""
        return self._search(_utf8(text)) is not None

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        return self._fullmatch(_utf8(text)) is not None

    def steps(self, characters: int) -> int:
        """The most steps, of about 1 ns, in which a text of this length matches or does not."""
        return self._size * (characters + 1)


def of_request(text: str) -> Pattern:
    """An expression that anybody may send: short, and small when compiled. Raises `BadQuery`."""
    if len(text) > LONGEST:
        raise BadQuery(f"a regular expression has at most {LONGEST} characters")
    return Pattern(text, MEMORY)


def _utf8(text: str) -> bytes:
    """Bytes that are no UTF-8, which Python keeps as surrogates, count as unknown characters."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text).encode()
