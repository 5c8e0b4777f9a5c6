"""What browsers send: forms of our own pages, whole, and no larger than they may be."""

from __future__ import annotations

from tempfile import TemporaryFile
from typing import IO, Any
from urllib.parse import urlsplit

from werkzeug.datastructures import FileStorage
from werkzeug.formparser import parse_form_data

from server.bodies import Bodies
from server.replies import RequestError

FIELDS = 1 << 14  # bytes of a form beside its file
_PARTS = 20


def from_here(environ: dict[str, Any]) -> bool:
    """Whether a browser says that one of our own pages sent this request."""
    site = environ.get("HTTP_SEC_FETCH_SITE")
    if site is not None:
        return bool(site == "same-origin")
    # Behind a proxy the scheme may be another one here than there, the host is the same.
    host = environ.get("HTTP_HOST", "")
    try:
        return bool(host) and urlsplit(environ.get("HTTP_ORIGIN", "")).netloc == host
    except ValueError:
        return False


def received(
    environ: dict[str, Any], bodies: Bodies, most: int = 0
) -> tuple[dict[str, str], dict[str, FileStorage]]:
    """The fields and files of a form; files have `most` bytes and lie on disk without a name.

    Raises `RequestError`, or what Werkzeug raises of a form that is too large or broken off.
    """
    if not environ.get("CONTENT_LENGTH"):  # half a form would be a form, too
        raise RequestError("bad_request", "a form needs its Content-Length")
    with bodies.one():
        _, form, files = parse_form_data(
            environ,
            stream_factory=_unnamed,
            max_form_memory_size=FIELDS,
            max_content_length=most + FIELDS,
            max_form_parts=_PARTS,
        )
    return dict(form.items()), dict(files.items())


def _unnamed(
    total_content_length: int | None,
    content_type: str | None,
    filename: str | None,
    content_length: int | None = None,
) -> IO[bytes]:
    """Where the parser of forms writes a file."""
    return TemporaryFile()
