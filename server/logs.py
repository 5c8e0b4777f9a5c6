"""Log lines: one format, on stderr, with nothing in them that a stranger could use to forge one."""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any

LOGGER = logging.getLogger("dedupindex.server")


class _OneLine(logging.Formatter):
    """``2026-11-20T09:14:17Z ERROR text``, whatever the text."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record))


def escaped(text: str) -> str:
    """Text on one line: control characters, line ends and lone surrogates made visible."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def configure() -> None:
    """Send our lines to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine())
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False


def granian_config() -> dict[str, Any]:
    """The same for what Granian has to say, which is about workers that ended or hang."""
    return {
        "formatters": {"line": {"()": "server.logs._OneLine"}},
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
    trace = "".join(traceback.format_exception(error))
    LOGGER.error("%s: %s", asked(environ), trace[-4000:])


def audit(
    environ: Mapping[str, Any], who: str, content: Mapping[str, Any], crawl: str = ""
) -> None:
    """One write that was done: from where, by whose token, to what, with what result."""
    content = {"crawl": crawl, **content} if crawl else content
    result = " ".join(f"{name}={content[name]}" for name in _RESULTS if name in content)
    address = environ.get("REMOTE_ADDR", "-")
    LOGGER.info("audit %s token=%s %s %s", address, who, asked(environ), result)


_RESULTS = (
    *("crawl", "name", "state", "added", "unchanged", "bad", "broken_off"),
    *("duplicate", "claimed", "released"),
)


def access(environ: Mapping[str, Any], status: str, seconds: float) -> None:
    """One request that was answered."""
    address = environ.get("REMOTE_ADDR", "-")
    LOGGER.info("%s %s %s %.3f ms", address, asked(environ), status[:3], seconds * 1000)


def asked(environ: Mapping[str, Any]) -> str:
    """Method, path and query of a request, not all of a long one."""
    query = environ.get("QUERY_STRING", "")
    path = environ.get("PATH_INFO", "") + ("?" + query if query else "")
    return f"{environ.get('REQUEST_METHOD', '-')} {path[:1000]}"
