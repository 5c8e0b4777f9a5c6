"""Log lines on stderr, as text or JSON, which requests cannot forge.

The attribute ``fields`` of a log record has the fields of the JSON object.
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
_REPEAT = 60.0  # seconds
_logged: dict[str, float] = {}  # when the last line on 503 was, by code


class _OneLine(logging.Formatter):
    """``2026-11-20T09:14:17Z ERROR text`` on one line, whatever the text."""

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
        return json.dumps(line)  # in ASCII, so no text ends the line


_FORMATTERS = {"text": _OneLine, "json": _Json}


def configure(form: str = "text") -> None:
    """Log to stderr, as text or as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_FORMATTERS[form]())
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False


def granian_config(form: str = "text") -> dict[str, Any]:
    """Return the same configuration for Granian, which logs workers that end or hang."""
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


_RESULTS = (  # fields of an answer that its audit has
    *(
        "crawl",
        "name",
        "state",
        "added",
        "unchanged",
        "revisits",
        "bad",
        "refused",
        "broken_off",
        "denied",
    ),
    *("duplicate", "claimed", "released", "found"),
    *("purge", "force", "intended", "removed", "unmerged"),
)


def report(error: BaseException, environ: Mapping[str, Any]) -> None:
    """Log a defect: request and traceback on one line."""
    trace = "".join(traceback.format_exception(error))[-_TRACE:]
    _log(logging.ERROR, "defect", environ, f"{request_line(environ)}: {trace}", {"trace": trace})


def log_unavailable(code: str, message: str, environ: Mapping[str, Any]) -> None:
    """Log why a request, or a lookup in it, is answered 503; one of a code in a minute."""
    now = time.monotonic()
    if now - _logged.get(code, -_REPEAT) < _REPEAT:
        return
    _logged[code] = now
    text = f"{request_line(environ)} answered 503 {code}: {message}"
    _log(logging.ERROR, "unavailable", environ, text, {"code": code, "message": message})


def audit(
    environ: Mapping[str, Any], who: str, content: Mapping[str, Any], crawl: str = ""
) -> None:
    """Log one write, done or refused: client, token, request and result."""
    content = {"crawl": crawl, **content} if crawl else content
    results = {name: content[name] for name in _RESULTS if content.get(name, {}) != {}}
    if not results.get("revisits"):  # few crawlers report them
        results.pop("revisits", None)
    result = " ".join(f"{name}={_result_text(value)}" for name, value in results.items())
    text = f"audit {_address(environ)} token={who} {request_line(environ)} {result}"
    _log(logging.INFO, "audit", environ, text, {"token": who, **results})


def _result_text(value: Any) -> str:
    """Return a result for a line of text; counts by reason are ``status:2,mime:1``."""
    if isinstance(value, dict):
        return ",".join(f"{name}:{count}" for name, count in value.items())
    return str(value)


def access(environ: Mapping[str, Any], status: str, seconds: float) -> None:
    """Log one request with its status and time."""
    ms = round(seconds * 1000, 3)
    text = f"{_address(environ)} {request_line(environ)} {status[:3]} {ms:.3f} ms"
    _log(logging.INFO, "access", environ, text, {"status": status[:3], "ms": ms})


def _log(
    level: int, event: str, environ: Mapping[str, Any], text: str, fields: dict[str, Any]
) -> None:
    method, _, path = request_line(environ).partition(" ")
    about = {"event": event, "address": _address(environ), "method": method, "path": path}
    LOGGER.log(level, "%s", text, extra={"fields": about | fields})


def _address(environ: Mapping[str, Any]) -> str:
    return str(environ.get("REMOTE_ADDR", "-"))


def request_line(environ: Mapping[str, Any]) -> str:
    """Return method, path and query of a request, cut if they are long."""
    query = environ.get("QUERY_STRING", "")
    path = environ.get("PATH_INFO", "") + ("?" + query if query else "")
    return f"{environ.get('REQUEST_METHOD', '-')} {path[:1000]}"
