r"""Regular expressions that mean the same in Python's ``re`` and in DuckDB's RE2.

What both know is read and written anew for each: sets, groups, alternatives, repeats, ``^``, ``$``
and ``\b``. ``\d``, ``\w``, ``\s`` and ``\b`` are of ASCII, a dot is any character, ``$`` the end of
the text; ``(?i)`` at the beginning makes letters of both cases alike. Each engine has its own mind
about which these are, so the sets of them are written out here.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NoReturn

_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\t\n\f\r "}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_WORD = "[0-9A-Za-z_]"
_EDGE = f"(?:(?<!{_WORD})(?={_WORD})|(?<={_WORD})(?!{_WORD}))"  # \b
_COUNTED = re.compile(r"\{([0-9]{1,4})(?:(,)([0-9]{1,4})?)?\}")
_MOST = 1000  # times that all counted repeats of an expression may multiply; RE2's own bound


class Wrong(Exception):
    """What is wrong with an expression, and where in it."""

    def __init__(self, what: str, at: int) -> None:
        super().__init__(what)
        self.at = at


def translate(text: str) -> tuple[str, str]:
    """An expression for Python and for RE2; raises `Wrong`."""
    reader = _Reader(text)
    python, re2 = reader.read()
    try:
        re.compile(python, re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:
        raise Wrong(f"this is no regular expression ({error})", 0) from error
    return python, re2


class _Reader:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._python: list[str] = []
        self._re2: list[str] = []
        self._times = 1
        self._any_case = False

    def read(self) -> tuple[str, str]:
        if self._text.startswith("(?i)"):
            self._at = 4
            self._any_case = True
        depth, repeatable = [], False
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in "*+?{":
                self._repeat(repeatable)
                repeatable = False
                continue
            begin, repeatable = self._at, char not in "(|^$"
            self._at += 1
            if char == "(":
                depth.append(begin)
                self._open()
            elif char == ")":
                if not depth:
                    self._fail("a group ends that did not begin", begin)
                depth.pop()
                self._emit(")")
            elif char == "[":
                self._emit(self._set(begin))
            elif char == "\\":
                repeatable = self._escaped(begin)
            elif char == "$":
                self._emit(r"\Z", r"\z")
            else:
                self._emit(char if char in ".|^" else self._alone(char))
        if depth:
            self._fail("a group does not end", depth[-1])
        return "".join(self._python), "".join(self._re2)

    def _emit(self, python: str, re2: str = "") -> None:
        self._python.append(python)
        self._re2.append(re2 or python)

    def _fail(self, what: str, at: int) -> NoReturn:
        raise Wrong(what, at)

    def _open(self) -> None:
        if self._text.startswith("?:", self._at):
            self._at += 2
        elif self._text.startswith("?", self._at):
            self._fail(
                "of groups there are ( ) and (?: ) only, and (?i) at the beginning", self._at
            )
        self._emit("(?:")

    def _repeat(self, allowed: bool) -> None:
        begin, char = self._at, self._text[self._at]
        if not allowed:
            self._fail(f"{char} repeats nothing", begin)
        words = char
        if char == "{":
            found = _COUNTED.match(self._text, begin)
            if found is None:
                self._fail(r"a { that repeats nothing is written \{", begin)
            words = found[0]
            least, most = int(found[1]), int(found[3] or found[1])
            self._times *= max(most, 1)
            if most < least or self._times > _MOST:
                self._fail(f"{words} repeats too often, or less than never", begin)
        self._at += len(words)
        if self._text.startswith("?", self._at):
            self._at += 1  # how much is taken makes no difference to whether something is found
        self._emit(words)

    def _escaped(self, begin: int) -> bool:
        """One character after a backslash; returns whether it can be repeated."""
        char = self._next(begin)
        if char in "bB":
            edge = _EDGE if char == "b" else f"(?!{_EDGE})"
            self._emit(edge, f"\\{char}")
            return False
        if char in _CLASSES:
            self._emit(f"[{_CLASSES[char]}]")
        elif char.lower() in _CLASSES:
            self._emit(f"[^{_CLASSES[char.lower()]}]")
        else:
            self._emit(self._alone(self._meant(char, begin)))
        return True

    def _next(self, begin: int) -> str:
        if self._at >= len(self._text):
            self._fail("the expression ends where it should go on", begin)
        self._at += 1
        return self._text[self._at - 1]

    def _meant(self, char: str, begin: int) -> str:
        """What a character after a backslash stands for."""
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char.isalnum() or not char.isascii():
            self._fail(f"\\{char} means nothing here", begin)
        return char

    def _alone(self, char: str) -> str:
        """A character out of sets."""
        others = self._others(char, char)
        return f"[{_plain(char)}{others}]" if others else _plain(char)

    def _others(self, first: str, last: str) -> str:
        return _other_cases(first, last) if self._any_case else ""

    def _set(self, begin: int) -> str:
        words, items = "[", []
        if self._text.startswith("^", self._at):
            self._at += 1
            words = "[^"
        while (char := self._next(begin)) != "]":
            items.append(self._item(char, begin))
        if not items:
            self._fail(r"a set is empty; a ] in a set is written \]", begin)
        return f"{words}{''.join(items)}]"

    def _item(self, char: str, begin: int) -> str:
        """One character of a set, several as ``\\d``, or a range."""
        if char == "\\":
            char = self._next(begin)
            if char in _CLASSES:
                return _CLASSES[char]
            first = self._meant(char, begin)
        else:
            first = char
        rest = self._text[self._at : self._at + 2]
        if len(rest) < 2 or rest[0] != "-" or rest[1] == "]":
            return _plain(first) + self._others(first, first)
        self._at += 1
        char = self._next(begin)
        last = self._meant(self._next(begin), begin) if char == "\\" else char
        return f"{_plain(first)}-{_plain(last)}{self._others(first, last)}"


@lru_cache(256)
def _other_cases(first: str, last: str) -> str:
    """Letters of the other case of those in a range, as a set has them."""
    found = {
        other
        for char in map(chr, range(ord(first), ord(last) + 1))
        for other in (char.lower(), char.upper())
        if len(other) == 1 and not first <= other <= last
    }
    return "".join(map(_plain, sorted(found)))


def _plain(char: str) -> str:
    """A character that means itself, in a set or out of it."""
    return char if char.isalnum() or char in " _" or not char.isascii() else _control(char)


def _control(char: str) -> str:
    return f"\\{char}" if char.isprintable() else f"\\x{ord(char):02x}"
