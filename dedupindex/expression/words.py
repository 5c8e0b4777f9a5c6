"""Words of an expression, taken one after the other."""

from __future__ import annotations

from typing import NoReturn

from dedupindex.expression.tokens import Lexeme, complain, tokens

KEYWORDS = ("and", "or", "not", "in")


class Words:
    """All words of a text, and the one that comes next. Raises `BadQuery`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens = list(tokens(text))
        self._next = 0

    @property
    def here(self) -> Lexeme:
        """The next word."""
        return self._tokens[self._next]

    @property
    def last(self) -> Lexeme:
        """The word that was taken last."""
        return self._tokens[self._next - 1]

    def fail(self, token: Lexeme, what: str) -> NoReturn:
        """Complain about the place of a word."""
        complain(self.text, token.at, what)

    def take(self) -> Lexeme:
        """Take the next word."""
        token = self.here
        self._next += token.kind != "end"
        return token

    def met(self, *words: str) -> str:
        """The next word if it is one of these, which is then taken; else empty."""
        token = self.here
        if token.kind == "sign" and token.text in words:
            return self.take().text
        word = token.text.lower()
        if token.kind == "word" and word in words and word in KEYWORDS:
            self.take()
            return word
        return ""

    def expect(self, sign: str, why: str) -> None:
        """Take a sign that must come next."""
        if not self.met(sign):
            self.fail(self.here, f"{sign} is expected {why}, not {shown(self.here)}")


def shown(token: Lexeme) -> str:
    """A word as a complaint quotes it."""
    return "the end" if token.kind == "end" else repr(token.text)
