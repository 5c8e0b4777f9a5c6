"""The page of what depends on a container, crawl or URL: originals, and revisits of them."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import orjson
from flask import render_template, request

from dedupindex.errors import BadInput, BadQuery
from dedupindex.index.tokens import Role
from server import commands
from server.auth import Access
from server.commands import Commands
from server.pages.login import with_token

KINDS = {
    "container": "a container",
    "crawl": "a crawl",
    "url": "a URL",
    "prefix": "all URLs that begin with",
}
_LISTED = 100  # originals and revisits
_ROWS = 20  # containers and crawls
_OURS = (None, "same-origin", "none")


class ImpactPage:
    """The form and its answer."""

    def __init__(self, running: Commands, access: Access) -> None:
        self._commands, self._access = running, access

    def impact(self) -> tuple[str, int]:
        """It reads the whole index: if there are tokens, that is for administrators.

        And a page of another server cannot ask for it.
        """
        given = parse_qs(request.environ.get("QUERY_STRING", ""), errors="surrogateescape")
        kind, text = (given.get(name, [""])[0] for name in ("kind", "name"))
        found, problem, status = None, "", 200
        ours = request.environ.get("HTTP_SEC_FETCH_SITE") in _OURS
        if ours:
            self._access.require(with_token(request.environ), Role.ADMIN)
        if text and ours:
            try:
                found = self._found(kind, text)
            except BadInput as error:
                problem, status = str(error), 400
        page = render_template(
            "impact.html",
            kind=kind,
            kinds=KINDS,
            name=text,
            problem=problem,
            found=found,
            listed=_LISTED,
            shown=_ROWS,
            longest=commands.LONGEST,
        )
        return page, status

    def _found(self, kind: str, text: str) -> dict[str, Any]:
        if kind not in KINDS:
            raise BadQuery(f"kind takes one of {', '.join(KINDS)}")
        options = [f"--url={text}", "--prefix"] if kind == "prefix" else [f"--{kind}={text}"]
        output = self._commands.run("impact", [*options, "--list", "--json"], lines=_LISTED)
        found: dict[str, Any] = orjson.loads(output.last)
        return {**found, "listed": [orjson.loads(line) for line in output.lines]}
