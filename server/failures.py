"""Replies to failed requests: every failure is counted, and defects are logged."""

from __future__ import annotations

from typing import Any

from dedupindex.errors import DedupError
from server.logs import report
from server.metrics import Metrics
from server.responses import ERRORS, Reply, code_of, error_reply, failure


def reply_to(error: Exception, environ: dict[str, Any], metrics: Metrics) -> Reply:
    """Return the reply to a request that ended with an error."""
    if isinstance(error, DedupError):
        metrics.error(code_of(error))
        return failure(error)
    report(error, environ)
    metrics.error("internal")
    return error_reply("internal", ERRORS["internal"][1])
