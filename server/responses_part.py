"""Responses of Flask."""

from __future__ import annotations

from typing import Any

import orjson
from flask import Response

from server.responses import Reply


def response_of(reply: Reply) -> Response:
    """Return a reply as a response."""
    status, headers, body = reply
    return Response(body, status=status, headers=headers)


def json_of(content: dict[str, Any]) -> Response:
    """Return a JSON object as a response."""
    return Response(orjson.dumps(content), content_type="application/json")
