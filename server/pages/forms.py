"""Forms that browsers send from our own pages, with limits of their size."""

from __future__ import annotations

from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import Any
from urllib.parse import urlsplit

from werkzeug.datastructures import FileStorage
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import parse_form_data

from server.api.request_body import BodySlots
from server.pages.escape import amount
from server.responses import RequestError

FIELDS = 1 << 14  # bytes of a form beside its file
_PARTS = 20
_LONGEST_ORIGIN = 300  # characters; urlsplit caches its arguments
_HELD = FIELDS + (1 << 17)  # bytes in memory: Werkzeug also counts 64 KiB that it has just read


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
