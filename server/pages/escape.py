"""The filters of templates: printable text, numbers, sizes and dates."""

from __future__ import annotations

import re
from typing import Any

from flask.sansio.app import App
from jinja2 import StrictUndefined
from jinja2.ext import Extension
from markupsafe import Markup, escape

from dedupindex.crawls.crawl_report import (
    commands_to_learn,
    left_out,
    not_asked,
    refused_text,
    reported_as,
    share_of,
)
from dedupindex.errors import as_named
from dedupindex.lookup.decide import Match
from dedupindex.runtime.report_table import exact_percent, share_text
from dedupindex.runtime.tables import UNKNOWN, amount, number, printable

_SHOWN = 400  # characters of one value
_UNBROKEN = 14  # characters of a word that does not break: those of a launch, 20261121094155
_PIECES = re.compile(r"(?<=[/?&=,_-])(?![/?&=,_-])|(?<=[^\W_])(?=\.\w)")
_OPTIONS = re.compile(r"(?<!\S)(--?[A-Za-z][\w-]*)")
_FIRST = {
    Match.EXACT_URL: "one of the same URL",
    Match.CANONICAL_URL: "one of the same canonical URL",
    Match.DIGEST: "one of another URL",
}
_WORDS = re.compile(r"[\s-]")


class CommandNames(Extension):
    """Names commands in the text of templates as they are called where the server is installed.

    What a page shows of archives and requests is not touched.
    """

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        return as_named(source)


def configure_templates(app: App) -> None:
    """Set up the templates of an application, with the filters of this module."""
    app.jinja_options = {
        **app.jinja_options,
        "extensions": [CommandNames],
        "undefined": StrictUndefined,
        "finalize": _printable,
        "trim_blocks": True,
        "lstrip_blocks": True,
    }
    app.jinja_env.tests["sendable"] = sendable
    app.jinja_env.filters.update(
        number=number,
        amount=amount,
        date=date,
        percent=percent,
        field=field,
        long=long,
        path=path,
        name=name,
        visible=printable,
        unit=unit,
        named=as_named,
        not_asked=not_asked,
        left_out=left_out,
        commands_to_learn=commands_to_learn,
        command=command,
        verdict=verdict,
        share_of=share_of,
        reported_as=reported_as,
        refused_text=refused_text,
    )


def _printable(value: Any) -> Any:
    """Return the value of an expression with invisible characters made visible.

    A URL must not look like another one.
    """
    return printable(value) if type(value) is str else value


def sendable(value: str) -> bool:
    """Return whether a link can carry a text: file names may not be UTF-8."""
    try:
        return bool(value.encode())
    except UnicodeEncodeError:
        return False


def field(value: str) -> Markup:
    """Return the value of a form field as it was given, not as it is shown."""
    return escape(value.encode("utf-8", "replace").decode())


def long(value: Any, most: int = _SHOWN) -> str:
    """Return a text, cut if it is long."""
    text = str(value)
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def path(value: str) -> Markup:
    """Return a path or URL that breaks after separators and before dots, and within long words."""
    return Markup("<wbr>").join(_word(part) for part in _PIECES.split(printable(value)) if part)


def name(value: str) -> Markup:
    """Return a name that breaks as `path` does if it has long words, else as any text."""
    text = printable(value)
    return path(text) if any(len(word) > _UNBROKEN for word in _WORDS.split(text)) else escape(text)


def command(text: str) -> Markup:
    """Return a command whose options do not break, as they would after each hyphen."""
    parts = _OPTIONS.split(printable(text))
    nowrap = Markup('<span class="nowrap">{}</span>').format
    return Markup("").join(nowrap(part) if n % 2 else part for n, part in enumerate(parts))


def verdict(text: str) -> str:
    """Return why a capture was chosen or not, with match classes as people read them."""
    for match, words in _FIRST.items():
        text = text.replace(f" {match.value} goes first", f" {words} goes first")
    return text


def _word(text: str) -> Markup:
    if len(text) <= _UNBROKEN:
        return escape(text)
    return Markup('<span class="long">{}</span>').format(text)


def percent(part: float | None, whole: float | None) -> str:
    """``12.5 %``."""
    if part is None or whole is None:
        return UNKNOWN
    return share_text(exact_percent(part, whole)) if whole else "–"


def unit(value: str) -> str:
    """Return a month, day or hour as a heading: ``2026-11-20 09:00``."""
    day, _, hour = value.partition("T")
    return f"{day} {hour}:00" if hour else day


def date(value: str | None) -> Markup:
    """Return a WARC-Date as a `time` element."""
    if not value:
        return Markup("never")
    day, _, clock = printable(value).removesuffix("Z").partition("T")
    shown = Markup("<span>{}</span> <span>{} UTC</span>").format(day, clock)
    return Markup('<time datetime="{}">{}</time>').format(printable(value), shown)
