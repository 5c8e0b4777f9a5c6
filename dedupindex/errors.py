"""The exceptions of dedupindex, with the exit status and HTTP status of each.

    DedupError            exit 3, HTTP 500
      BadInput            exit 4, HTTP 400   BadDigest, BadDate, BadSource, StoreUnavailable,
                                             BadQuery, UnknownCrawl (HTTP 404)
      SettingsConflict    exit 5, HTTP 409   StrategyUnavailable, ContainerChanged, IndexExists,
                                             CrawlEnded, CrawlExists, HasDependents
      IndexUnavailable    exit 6, HTTP 503   IndexBusy, FormatFromFuture, FormatFromPast
      Damaged             exit 7, HTTP 503
      SpotCheckFailed     exit 9, HTTP 500

Exit status 1 is a crash, 2 a usage error. A command that had to leave damaged input out ends with
7, too.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import ClassVar

_HERE = Path(__file__).resolve().parent
_BIN = _HERE.parent / "bin"
SCRIPTS = _BIN if (_BIN / "setup").is_file() else None
"""The directory of the commands as scripts, in a checkout."""
SHIPPED = _HERE.parent if SCRIPTS else _HERE
"""The directory that has conf/ and docs/: the checkout, or the installed package."""
FOR_CLIENTS = "_DEDUPINDEX_FOR_CLIENTS"
"""A variable of the environment of commands whose messages a server passes on."""
STDOUT = "standard output"
"""File name of an `OSError` of what a command prints; its message begins so."""
RESTORE_OR_BUILD = "restore the index from a copy, or build it again in another directory"
_OF_CHECKOUTS = "setup|test|cluster-demo|completion|bench|docs|lock"
_COMMAND = re.compile(rf"(?<![\w/.-])bin/(?!(?:{_OF_CHECKOUTS})\b)(?=[a-z])")
_SCRIPT = re.compile(r"(?<![\w/.-])bin/([a-z][\w-]*)(?![\w/-])(?!\.\w)")
_MANUAL = re.compile(r"(?<![\w/.-])docs/[a-z-]+\.md")
_SETTINGS = re.compile(r"(?<![\w/.-])(?=conf/[a-z])")


class DedupError(Exception):
    """The base class; the text says what happened, where, and what to do."""

    exit_status: ClassVar[int] = 3
    http_status: ClassVar[int] = 500
    code: ClassVar[str] = "error"

    def __init_subclass__(cls, code: str = "", exit_status: int = 0, http_status: int = 0) -> None:
        """Set what the class statement names; the rest is inherited."""
        cls.code = code or cls.code
        cls.exit_status = exit_status or cls.exit_status
        cls.http_status = http_status or cls.http_status

    def __str__(self) -> str:
        return as_named(super().__str__())


def as_called(text: str) -> str:
    """Return a text with the commands in it, ``bin/index``, as they can be called here.

    As `as_named`, but outside of the directory of the checkout they are called by their whole path,
    as pages of the manual are named. It is for what is shown where commands are typed: clients of
    the server need no such paths.
    """
    named = "bin/" in text or "docs/" in text
    if SCRIPTS is None or not named or FOR_CLIENTS in os.environ or _is_here(SCRIPTS):
        return as_named(text)
    text = _MANUAL.sub(lambda page: page[0] if Path(page[0]).exists() else _shipped(page), text)
    return _SCRIPT.sub(partial(_whole_path, SCRIPTS), text)


def _shipped(page: re.Match[str]) -> str:
    return str(SHIPPED / page[0])


def _is_here(scripts: Path) -> bool:
    try:
        return Path("bin").samefile(scripts)
    except OSError:
        return False


def _whole_path(scripts: Path, found: re.Match[str]) -> str:
    path = scripts / found[1]
    is_script = path.is_file() and not Path(found[0]).exists()  # not a file of the user's
    return shlex.quote(str(path)) if is_script else found[0]


def as_named(text: str) -> str:
    """Return a text with the commands in it by the names that they have in this installation.

    Where the package is installed there is no ``bin/``: the command is ``dedupindex index``. Pages
    of the manual are named by their place there.
    """
    if SCRIPTS or not ("bin/" in text or "docs/" in text):
        return text
    return _MANUAL.sub(_shipped, as_installed(text))


def as_installed(text: str) -> str:
    """Return a text with the commands in it as they are called where the package is installed."""
    return _COMMAND.sub("dedupindex ", text)


def help_as_called(text: str) -> str:
    """Return `as_named` of a help page, which also names files of conf/ by their place.

    Errors do not: there ``conf/`` may be a directory of the user's.
    """
    return text if SCRIPTS else _SETTINGS.sub(lambda _: f"{SHIPPED}/", as_named(text))


def to_install(extra: str) -> str:
    """Return the command that installs the packages of an extra.

    In a checkout this is not pip: ``pip install '.[spark]'`` would install a copy of the checkout,
    and commands would run that copy.
    """
    if SCRIPTS and Path(sys.prefix).resolve().parent == SHIPPED:
        return f"bin/setup {extra}"
    return f"pip install 'dedupindex[{extra}]'"


class BadInput(DedupError, code="bad_input", exit_status=4, http_status=400):
    """A file, option or request is not valid."""


class BadDigest(BadInput, code="bad_digest"):
    """Text is not a digest of a known algorithm."""


class BadDate(BadInput, code="bad_date"):
    """Text is not a WARC-Date or a 14-digit time."""


class BadSource(BadInput, code="bad_source"):
    """A source is missing, unreadable or of no known kind."""


class StoreUnavailable(BadInput, code="store_unavailable"):
    """An object store or web server did not answer, after all tries; it may answer later.

    It is no `BadSource`, which may be left out: what a store did not give is no property of the
    archive. The run ends, and is repeated.
    """


SOURCE_ERRORS = (BadSource, StoreUnavailable)
"""What reading an object raises, for those who clean up and raise it again."""


class BadQuery(BadInput, code="bad_query"):
    """A lookup or search is not valid."""


class UnknownCrawl(BadInput, code="unknown_crawl", http_status=404):
    """There is no crawl with this name."""


class SettingsConflict(DedupError, code="settings_conflict", exit_status=5, http_status=409):
    """The index was built with other settings than those asked for."""


class StrategyUnavailable(SettingsConflict, code="strategy_unavailable"):
    """The index was built without the URLs that the strategy needs."""


class ContainerChanged(SettingsConflict, code="container_changed"):
    """A file with this name was indexed before with other content."""


class IndexExists(SettingsConflict, code="index_exists"):
    """The target of a build is not empty."""


class CrawlEnded(SettingsConflict, code="crawl_ended"):
    """The crawl has been committed or cancelled."""


class CrawlExists(SettingsConflict, code="crawl_exists"):
    """A crawl of this name was begun with other settings."""


class HasDependents(SettingsConflict, code="has_dependents"):
    """Revisits refer to captures that would be removed, or may refer to them."""


class IndexUnavailable(DedupError, code="index_unavailable", exit_status=6, http_status=503):
    """The index cannot be read. Never treat this as "no duplicate"."""


class IndexBusy(IndexUnavailable, code="index_busy"):
    """Another process is writing to this index."""


class FormatFromFuture(IndexUnavailable, code="format_from_future"):
    """The index was written by a newer version."""


class FormatFromPast(IndexUnavailable, code="format_from_past"):
    """The index was written by an older version whose format is not read any more."""


class Damaged(DedupError, code="damaged", exit_status=7, http_status=503):
    """Stored data is damaged; a lookup that reads it must not answer "new"."""


class SpotCheckFailed(DedupError, code="spot_check_failed", exit_status=9):
    """Lookups do not find what a load, copy, merge or purge has written."""
