"""Sign-in to the pages: a cookie holds the token, because browsers send no token themselves.

The cookie is valid for pages only, not for the API, and browsers send it only from our own pages
(SameSite=Strict). A POST must also come from a page of this server.
"""

from __future__ import annotations

from typing import Any

from flask import Response, redirect, render_template, request
from werkzeug.http import parse_cookie

from dedupindex.index.tokens import Role
from server.api.request_body import BodySlots
from server.auth import Access
from server.pages.forms import read_form
from server.responses import RequestError

COOKIE = "dedupindex_token"


def with_token(environ: dict[str, Any]) -> dict[str, Any]:
    """Return a request with the token of its cookie."""
    token = parse_cookie(environ.get("HTTP_COOKIE", "")).get(COOKIE, "")
    return {**environ, "HTTP_AUTHORIZATION": f"Bearer {token}"}


class Login:
    """The pages that set and delete the cookie."""

    def __init__(self, access: Access, bodies: BodySlots) -> None:
        self._access, self._bodies = access, bodies

    def sign_in(self) -> Response:
        """Show the form."""
        return self.form(_local(request.args.get("next", "")))

    def form(self, target: str, problem: str = "", status: int = 200) -> Response:
        """Return the form, which leads to `target`."""
        page = render_template("sign_in.html", target=target, problem=problem)
        return Response(page, status, [("WWW-Authenticate", "Bearer")] if status == 401 else [])

    def take_token(self) -> Response:
        """Take the token from the form, and set the cookie."""
        fields, _ = read_form(request.environ, self._bodies)
        token, target = fields.get("token", "").strip(), _local(fields.get("next", ""))
        # A header or cookie can carry no other characters, and no token has them.
        sent = token if token.isascii() and token.isprintable() else ""
        given = {**request.environ, "HTTP_AUTHORIZATION": f"Bearer {sent}"}
        try:
            self._access.require(given, Role.READ)
        except RequestError:
            problem = "This is no token of this index. Tokens begin with dedup_."
            return self.form(target, problem, 401)
        answer = _to(target)
        answer.set_cookie(COOKIE, sent, httponly=True, samesite="Strict", secure=_secure())
        return answer

    def sign_out(self) -> Response:
        """Delete the cookie."""
        if request.environ.get("CONTENT_LENGTH"):  # an aborted request changes nothing
            read_form(request.environ, self._bodies)
        answer = _to(_local(""))
        answer.delete_cookie(COOKIE, httponly=True, samesite="Strict", secure=_secure())
        return answer


def _to(target: str) -> Response:
    answer = redirect(target, 303)
    assert isinstance(answer, Response)
    return answer


def _local(target: str) -> str:
    """Return the path of one of our pages, else that of the first."""
    own = target.startswith("/pages/") and "\\" not in target and target.isprintable()
    return target if own else "/"


def _secure() -> bool:
    """Return whether the browser uses TLS, with the server or with a proxy that says so."""
    forwarded = request.environ.get("HTTP_X_FORWARDED_PROTO", "")
    return request.is_secure or forwarded.strip().lower() == "https"
