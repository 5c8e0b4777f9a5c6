"""Answers as Flask sends them."""

from __future__ import annotations

from typing import Any

import orjson
from flask import Response

from server.responses import Reply


def response_of(reply: Reply) -> Response:
    """An answer that was made without Flask."""
    status, headers, body = reply
    return Response(body, status=status, headers=headers)


def json_of(content: dict[str, Any]) -> Response:
    """A JSON object."""
    return Response(orjson.dumps(content), content_type="application/json")
