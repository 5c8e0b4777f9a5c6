"""Who may do what: bearer tokens, if the index has any."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from dedupindex.tokens import FILE, Role, Token, holder, read_tokens
from server.replies import RequestError

_LOOK_EVERY = 1.0  # seconds


class Access:
    """Checks requests against the tokens of an index, in any number of threads.

    Without tokens everything is allowed: such a server listens on loopback only, unless its
    operator said otherwise. With tokens, writing needs one; reading does if it is `private`.
    """

    def __init__(self, index: Path, *, private: bool = False) -> None:
        self._index, self.private = index, private
        self._tokens: list[Token] = []
        self._stamp: tuple[int, int] | None = None
        self._looked = -_LOOK_EVERY
        self._busy = threading.Lock()

    def require(self, environ: dict[str, Any], role: Role, crawl: str = "") -> str:
        """The name of whose token allows it, "-" if none is needed; raises `RequestError`.

        Raises `Damaged` or `IndexUnavailable` if it cannot tell.
        """
        tokens = self._known()
        if not tokens:
            return "-"
        scheme, _, text = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        token = holder(tokens, text.strip()) if scheme.lower() == "bearer" else None
        if token is None:
            raise RequestError("unauthorized", "send a token: Authorization: Bearer <token>")
        if not token.may(role, crawl):
            what = f" to crawl {crawl[:200]!r}" if crawl else ""
            raise RequestError("forbidden", f"token {token.name} may not {role.name.lower()}{what}")
        return token.name

    def may_read(self, environ: dict[str, Any]) -> None:
        """Raise `RequestError` if lookups are private and no token allows this one."""
        if self.private:
            self.require(environ, Role.READ)

    def _known(self) -> list[Token]:
        now = time.monotonic()
        if now - self._looked >= _LOOK_EVERY:
            with self._busy:
                stamp = _stamp(self._index / FILE)
                if stamp != self._stamp:
                    self._tokens, self._stamp = read_tokens(self._index), stamp
                self._looked = now
        return self._tokens


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
