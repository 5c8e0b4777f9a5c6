"""Log lines on stderr, text or JSON, with nothing that a stranger could use to forge one.

What is known of a line stands in its record's ``fields``; in JSON they are the object's fields.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any

from dedupindex.runtime.tables import printable

LOGGER = logging.getLogger("dedupindex.server")
_TRACE = 4000  # characters of a stack trace, its last


class _OneLine(logging.Formatter):
    """``2026-11-20T09:14:17Z ERROR text``, whatever the text."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _Json(logging.Formatter):
    """``{"time": "2026-11-20T09:14:17.042Z", "level": "INFO", "event": "audit", ...}``."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", None) or {
            "event": "log",
            "message": record.getMessage(),
        }
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {"time": f"{when}.{int(record.msecs):03d}Z", "level": record.levelname, **fields}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)[-_TRACE:]
        return json.dumps(line)  # in ASCII, so no text can end the line


_FORMATTERS = {"text": _OneLine, "json": _Json}


def configure(form: str = "text") -> None:
    """Send our lines to stderr, as text or as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_FORMATTERS[form]())
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False


def granian_config(form: str = "text") -> dict[str, Any]:
    """The same for what Granian has to say, which is about workers that ended or hang."""
    return {
        "formatters": {"line": {"()": _FORMATTERS[form]}},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "formatter": "line",
                "stream": "ext://sys.stderr",
            }
        },
        "loggers": {
            "_granian": {"handlers": ["stderr"], "propagate": False},
            "granian.access": {"handlers": ["stderr"], "propagate": False},
        },
    }


def report(error: BaseException, environ: Mapping[str, Any]) -> None:
    """A defect: what was asked, and where it went wrong, on one line."""
    trace = "".join(traceback.format_exception(error))[-_TRACE:]
    fields = {"event": "defect", **_request(environ), "trace": trace}
    LOGGER.error("%s: %s", asked(environ), trace, extra={"fields": fields})


def audit(
    environ: Mapping[str, Any], who: str, content: Mapping[str, Any], crawl: str = ""
) -> None:
    """One write, done or refused: from where, by whose token, to what, with what result."""
    content = {"crawl": crawl, **content} if crawl else content
    said = {name: content[name] for name in _RESULTS if name in content}
    result = " ".join(f"{name}={value}" for name, value in said.items())
    fields = {"event": "audit", **_request(environ), "token": who, **said}
    text = "audit %s token=%s %s %s"
    LOGGER.info(text, _address(environ), who, asked(environ), result, extra={"fields": fields})


_RESULTS = (
    *("crawl", "name", "state", "added", "unchanged", "bad", "broken_off", "denied"),
    *("duplicate", "claimed", "released", "found"),
)


def access(environ: Mapping[str, Any], status: str, seconds: float) -> None:
    """One request that was answered."""
    ms = round(seconds * 1000, 3)
    fields = {"event": "access", **_request(environ), "status": status[:3], "ms": ms}
    text = "%s %s %s %.3f ms"
    LOGGER.info(text, _address(environ), asked(environ), status[:3], ms, extra={"fields": fields})


def _address(environ: Mapping[str, Any]) -> str:
    address: str = environ.get("REMOTE_ADDR", "-")
    return address


def _request(environ: Mapping[str, Any]) -> dict[str, str]:
    method, _, path = asked(environ).partition(" ")
    return {"address": _address(environ), "method": method, "path": path}


def asked(environ: Mapping[str, Any]) -> str:
    """Method, path and query of a request, not all of a long one."""
    query = environ.get("QUERY_STRING", "")
    path = environ.get("PATH_INFO", "") + ("?" + query if query else "")
    return f"{environ.get('REQUEST_METHOD', '-')} {path[:1000]}"
