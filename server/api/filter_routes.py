"""Routes of the digest filter, with which clients answer most misses themselves.

The manifest is asked for again and again, a part once: it never changes. A part that was merged
into another meanwhile is not found; the client then asks for the manifest again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from hashlib import sha256
from typing import BinaryIO

import orjson
from flask import Response, request

from dedupindex.digest_filter import CHECKSUM, PIECE, manifest_json
from dedupindex.index.filter_store import FilterStore
from server.api.request_fields import read_parameters
from server.responses import RequestError, error_reply, response_of
from server.routes import Route
from server.services import Handlers, Services

_ID = re.compile(rf"[0-9a-f]{{{2 * CHECKSUM}}}")
_READ = 1 << 18  # bytes
_NONE = "the index has no current digest filter; bin/index --digest-filter makes one"
PIECES = {
    "piece": {
        "type": "integer",
        "minimum": 0,
        "maximum": 999_999_999,
        "description": "Only the bytes from 4 MiB × `piece` on, at most 4 MiB.",
    }
}


class FilterRoutes(Handlers):
    """Sends the filter to everybody who may look up."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._store = FilterStore(services.live.index)

    @Route("GET", "/digest-filter", {200: ("DigestFilter",), 304: ()}, errors=(404,))
    def digest_filter(self) -> Response:
        """The parts of the filter of all digests."""
        self._access.may_read(request.environ)
        parts = self._live.opened().engine.filter_parts()
        if parts is None:  # the answer to the question whether there is one: no error to count
            return response_of(error_reply("no_filter", _NONE))
        body = orjson.dumps(manifest_json(parts))
        response = Response(body, content_type="application/json")
        response.set_etag(sha256(body).hexdigest()[:32])
        response.headers["Cache-Control"] = "no-cache"
        response.make_conditional(request)
        return response

    @Route(
        "GET",
        "/digest-filter/{part}",
        {200: ("application/octet-stream",), 304: ()},
        errors=(404,),
        parameters=PIECES,
    )
    def digest_filter_part(self, part: str) -> Response:
        """One part of the filter, whole or in pieces."""
        self._access.may_read(request.environ)
        piece = read_parameters(request.environ, PIECES).get("piece")
        etag = part if piece is None else f"{part}-{piece}"
        if request.if_none_match.contains(etag):
            return Response(status=304)
        try:
            if not _ID.fullmatch(part):
                raise FileNotFoundError(part)
            stream = open(self._store.path_of(part), "rb")  # noqa: SIM115 (closed with the response)
        except FileNotFoundError:
            raise RequestError(
                "not_found", "the filter does not have this part (now): ask for its manifest"
            ) from None
        if piece is None:
            response = Response(_blocks(stream), direct_passthrough=True)
            response.content_length = os.fstat(stream.fileno()).st_size
        else:
            response = Response(os.pread(stream.fileno(), PIECE, piece * PIECE))
            stream.close()
        response.call_on_close(stream.close)
        response.content_type = "application/octet-stream"
        response.set_etag(etag)
        response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
        return response


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    with stream:
        while data := stream.read(_READ):
            yield data
