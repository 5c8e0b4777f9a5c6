"""Forms of the pages, and sign-in: a cookie holds the token, as browsers send no token themselves.

The cookie is valid for pages only, not for the API, and browsers send it only from our own pages
(SameSite=Strict). A POST must also come from a page of this server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import Any, cast
from urllib.parse import urlsplit

from flask import Response, redirect, render_template, request
from werkzeug.datastructures import FileStorage
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import parse_form_data

from dedupindex.errors import BadQuery
from dedupindex.index.tokens import Role
from dedupindex.runtime.tables import amount
from server.api.request_body import BodySlots
from server.responses import RequestError
from server.services import Handlers

COOKIE = "dedupindex_token"
_FOR_ADMINS = ("/pages/impact", "/pages/purge", "/pages/dry-run")
FIELDS = 1 << 14  # bytes of a form beside its file
_PARTS = 20
_LONGEST_ORIGIN = 300  # characters; urlsplit caches its arguments
_HELD = FIELDS + (1 << 17)  # bytes in memory: Werkzeug also counts 64 KiB that it has just read


class Login(Handlers):
    """The pages that set and delete the cookie."""

    def sign_in(self) -> Response:
        return self.form(_local(request.args.get("next", "")))

    def form(self, target: str, problem: str = "", status: int = 200) -> Response:
        """Return the form, which leads to `target`."""
        needs_admin = any(path.startswith(_FOR_ADMINS) for path in (request.path, target))
        role = "admin" if needs_admin else "read"
        page = render_template("sign_in.html", target=target, problem=problem, role=role)
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
            problem = "This is not a token of this index. Tokens begin with dedup_."
            return self.form(target, problem, 401)
        answer = cast(Response, redirect(target, 303))
        answer.set_cookie(COOKIE, sent, httponly=True, samesite="Strict", secure=_secure())
        return answer

    def sign_out(self) -> Response:
        if request.environ.get("CONTENT_LENGTH"):  # an aborted request changes nothing
            read_form(request.environ, self._bodies)
        answer = cast(Response, redirect("/", 303))
        answer.delete_cookie(COOKIE, httponly=True, samesite="Strict", secure=_secure())
        return answer


def _local(target: str) -> str:
    """Return the path of one of our pages, else that of the first."""
    own = target.startswith("/pages/") and "\\" not in target and target.isprintable()
    return target if own else "/"


def _secure() -> bool:
    """Return whether the browser uses TLS, with the server, or with a proxy that reports it."""
    forwarded = request.environ.get("HTTP_X_FORWARDED_PROTO", "")
    return request.is_secure or forwarded.strip().lower() == "https"


def check_names(given: Iterable[str], known: Sequence[str]) -> None:
    """Raise `BadQuery` for a parameter that a page does not take, as the API does."""
    for name in given:
        if name not in known:
            raise BadQuery(f"there is no parameter {name[:64]!r}; there are {', '.join(known)}")


def is_own_request(environ: dict[str, Any]) -> bool:
    """Return whether no page of another server sent this request: what it starts takes long."""
    return environ.get("HTTP_SEC_FETCH_SITE") in (None, "same-origin", "none")


def from_own_page(environ: dict[str, Any]) -> bool:
    """Return whether one of our own pages sent this request, by the headers of the browser."""
    site = environ.get("HTTP_SEC_FETCH_SITE")
    if site is not None:
        return bool(site == "same-origin")
    # Behind a proxy the scheme may be another one here than there, the host is the same.
    host, origin = environ.get("HTTP_HOST", ""), environ.get("HTTP_ORIGIN", "")
    if len(origin) > _LONGEST_ORIGIN:
        return False
    try:
        return bool(host) and urlsplit(origin).netloc == host
    except ValueError:
        return False


def read_form(
    environ: dict[str, Any], bodies: BodySlots, most: int = 0
) -> tuple[dict[str, str], dict[str, FileStorage]]:
    """Return the fields and files of a form.

    Files have at most `most` bytes, 0 for no files, and are unnamed files on disk. Raises
    `RequestError`, or an error of Werkzeug for a form that is cut off.
    """
    length = environ.get("CONTENT_LENGTH")
    if not length:  # a form that is cut off is still a form
        raise RequestError("bad_request", "a form needs its Content-Length")
    if length.isdigit() and int(length) > most + FIELDS:
        larger = "; larger files: bin/report INDEX --against FILE" if most else ""
        raise RequestError(
            "too_large",
            f"{amount(int(length))} were sent, and at most {amount(most or FIELDS)} are taken here"
            + larger,
        )
    fields = RequestError("too_large", f"the fields of a form have at most {FIELDS:,} bytes")
    with bodies.slot(), ExitStack() as opened:
        try:
            _, form, files = parse_form_data(
                environ,
                stream_factory=lambda *_, **__: opened.enter_context(TemporaryFile()),
                max_form_memory_size=_HELD,
                max_content_length=most + FIELDS,
                max_form_parts=_PARTS,
            )
        except RequestEntityTooLarge as error:
            raise fields from error
        if sum(len(value.encode("utf-8", "replace")) for value in form.values()) > FIELDS:
            raise fields
        opened.pop_all()  # their reader closes them
    return dict(form.items()), dict(files.items())
