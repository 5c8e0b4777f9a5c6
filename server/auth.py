"""Bearer tokens: which requests an index with tokens allows."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from werkzeug.http import parse_cookie

from dedupindex.crawls.crawl import Crawl
from dedupindex.errors import DedupError, IndexUnavailable
from dedupindex.index.identity import read_identity
from dedupindex.index.tokens import FILE, Role, Token, holder, read_tokens
from server import logs
from server.responses import RequestError

_LOOK_EVERY = 1.0  # seconds between two checks of the file of tokens


class Access:
    """Checks requests against the tokens of an index; thread-safe.

    Without tokens everything is allowed, unless the server is `guarded` because it listens beyond
    loopback. With tokens, writing needs one; reading needs one if the server is `private`.
    """

    def __init__(self, index: Path, *, private: bool = False, guarded: bool = False) -> None:
        self._index, self.private = index, private
        self._guarded = private or guarded  # whether nothing is allowed without tokens
        self._tokens: list[Token] = []
        self._stamp: tuple[int, int] | None = None
        self._looked = -_LOOK_EVERY
        self._busy = threading.Lock()

    def require(
        self,
        environ: dict[str, Any],
        role: Role,
        crawl: str = "",
        namespaces: Callable[[], Iterable[str]] = tuple,
    ) -> str:
        """Return the name of the token that allows a request, "-" if none is needed.

        `namespaces` returns those that the request touches, "" for none; it is called only if
        the token is limited to some. A refused write leaves a line in the log.

        Raises:
            RequestError: the request is refused.
            Damaged, IndexUnavailable: the tokens cannot be read, or the index is away.
        """
        who = "-"

        def refused(code: str, message: str) -> RequestError:
            read_identity(self._index)  # if the index is away, its last tokens may be others
            if role is not Role.READ:
                logs.audit(environ, who, {"denied": code}, crawl[:200])
            return RequestError(code, message)

        tokens = self._known()
        if not tokens and not self._guarded:
            if role is not Role.READ and _from_web_page(environ):
                raise refused(
                    "forbidden", "a web page sent this; without tokens only programs may write"
                )
            return "-"
        token = _token(environ, tokens)
        if token is None:
            unknown = "this token is not known here: it was removed, or belongs to another index"
            missing = "send a token: Authorization: Bearer <token>"
            raise refused("unauthorized", unknown if _sent(environ) else missing)
        who = token.name
        touched = tuple(namespaces())
        if not token.may(role, crawl, touched):
            what = f", for crawl {crawl[:200]!r}" if crawl else ""
            where = f", in namespace {', '.join(touched)}" if any(touched) else ""
            has = f"token {token.name} has the role {token.role.name.lower()}"
            if token.role < role:
                reason = f"{has}; this needs {role.name.lower()}"
            else:
                inside = "" if token.namespaces == "*" else f" in namespaces {token.namespaces!r}"
                reason = f"{has} for crawls {token.crawls!r}{inside}, which does not allow this"
            raise refused("forbidden", f"{reason}{what}{where}")
        return token.name

    def holder(self, environ: dict[str, Any]) -> str:
        """Return the name of the known token of a request, "" if it has none."""
        try:
            token = _token(environ, self._known())
        except DedupError:
            return ""
        return token.name if token else ""

    def may_read(self, environ: dict[str, Any], namespaces: Iterable[str] = ()) -> None:
        """Raise `RequestError` if lookups are private and no token allows this one."""
        if self.private:
            self.require(environ, Role.READ, namespaces=lambda: namespaces)

    def _known(self) -> list[Token]:
        now = time.monotonic()
        if now - self._looked >= _LOOK_EVERY:
            with self._busy:
                stamp = _stamp(self._index / FILE)
                # The file is missing while the index is being replaced: keep the last tokens.
                if stamp is not None and stamp != self._stamp:
                    self._tokens, self._stamp = read_tokens(self._index), stamp
                self._looked = now
        return self._tokens


class NamespaceAccess:
    """Which crawls of namespaces a request may see."""

    def __init__(self, access: Access, environ: dict[str, Any]) -> None:
        self._access, self._environ = access, environ
        self._known: dict[str, bool] = {"": True}

    def require(self, crawl: Crawl) -> None:
        """Raise `RequestError` for a crawl of a namespace that the request may not read."""
        if crawl.namespace:
            self._access.may_read(self._environ, [crawl.namespace])

    def sees(self, crawl: Crawl) -> bool:
        """Return whether `require` accepts a crawl."""
        known = self._known.get(crawl.namespace)
        if known is None:
            try:
                self.require(crawl)
                known = True
            except RequestError:
                known = False
            self._known[crawl.namespace] = known
        return known


def with_cookie(environ: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a request with the token of a cookie in its header."""
    token = parse_cookie(environ.get("HTTP_COOKIE", "")).get(name, "")
    return {**environ, "HTTP_AUTHORIZATION": f"Bearer {token}"}


def _token(environ: dict[str, Any], tokens: list[Token]) -> Token | None:
    text = _sent(environ)
    return holder(tokens, text) if text else None


def _sent(environ: dict[str, Any]) -> str:
    """Return the text of the token of a request, "" for none."""
    scheme, _, text = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    return str(text.strip()) if scheme.lower() == "bearer" else ""


def _from_web_page(environ: dict[str, Any]) -> bool:
    """Return whether a browser sent a request to write on behalf of a web page.

    Any page of the web can make a browser do that to a server on the same machine. Crawlers send
    no Origin, and our own pages write nothing.
    """
    site = environ.get("HTTP_SEC_FETCH_SITE", "none")
    return "HTTP_ORIGIN" in environ or site not in ("none", "same-origin")


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise IndexUnavailable(f"{path} cannot be read: {error.strerror}") from error
    return status.st_ino, status.st_mtime_ns
