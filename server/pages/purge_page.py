"""Pages of deletion: what depends on a container, crawl, host or URL, and its removal.

The second request needs a token that the page of the impact has made: it names who
asked, for what, and what was shown. So nothing is removed that nobody has seen.
"""

from __future__ import annotations

import hmac
import json
import time
from typing import Any
from urllib.parse import parse_qs

import orjson
from flask import render_template, request

from dedupindex.errors import BadInput, BadQuery, HasDependents
from dedupindex.index.tokens import Role
from dedupindex.runtime.tables import printable
from dedupindex.urlkey import lacks_scheme, meant_host, meant_url
from server import commands, logs
from server.api.deletions import audited, counts_of
from server.pages.login import check_names, is_own_request, read_form
from server.responses import RequestError
from server.services import Handlers

KINDS = {
    "container": "a container",
    "crawl": "a crawl",
    "host": "a host and all below it",
    "url": "a URL",
    "prefix": "all URLs that begin with",
}
_OF_API = ("container", "crawl", "host", "url")  # parameters of `GET /impact`
VALID = 600  # seconds of a confirmation
_LISTED = 100  # originals, copies and revisits
_ROWS = 20  # containers and crawls
_LOGGED = 1000  # characters of a name


def _meant(kind: str, name: str) -> str:
    """Return what was meant with a URL or host that was not found, "" if nobody knows."""
    if kind == "host" and (host := meant_host(name)):
        return f"Give {host}"
    if kind not in ("url", "prefix") or not lacks_scheme(name):
        return ""
    return f"{name} has no scheme: did you mean {meant_url(name)}?"


def _target_of(given: dict[str, str]) -> tuple[str, str]:
    """Return kind and name of a query, which may have the parameters of `GET /impact` instead."""
    check_names(given, ("kind", "name", *_OF_API, "prefix"))
    named = [kind for kind in _OF_API if kind in given]
    begins = given.get("prefix", "false")
    if begins != "false" and (begins != "true" or named != ["url"]):
        raise BadQuery("prefix=true goes with url=, nothing else; prefix is true or false")
    if not named:
        return given.get("kind", ""), given.get("name", "")
    if len(named) > 1 or given.keys() & {"kind", "name"}:
        raise BadQuery(f"give kind and name, or one of {', '.join(_OF_API)}")
    return "prefix" if begins == "true" else named[0], given[named[0]]


class PurgePages(Handlers):
    def impact(self) -> tuple[str, int]:
        """Show the form and, if it was filled in, the impact.

        The command reads the whole index, so it needs the role admin if there are tokens, and no
        page of another server can start it.
        """
        given = parse_qs(request.environ.get("QUERY_STRING", ""), errors="surrogateescape")
        kind, name = _target_of({field: values[0] for field, values in given.items()})
        found, problem, status, who = None, "", 200, "-"
        ours = is_own_request(request.environ)
        if ours:
            who = self._access.require(request.environ, Role.ADMIN)
        if name and ours:
            try:
                found = self._found(kind, name)
            except BadInput as error:
                problem, status = str(error), 400
            if found is not None and not found["originals"]["captures"]:
                problem = _meant(kind, name)
        return self._page(kind, name, who, found, problem), status

    def purge(self) -> tuple[str, int]:
        """Remove what the page of the impact has shown; needs the role admin, and a token."""
        form, _ = read_form(request.environ, self._bodies)
        who = self._access.require(request.environ, Role.ADMIN)
        kind, name = form.get("kind", ""), form.get("name", "")
        until, _, shown = form.get("confirm", "").partition("-")
        if not (until.isascii() and until.isdigit()) or int(until[:12]) < time.time():
            raise RequestError(
                "bad_request", "this was shown too long ago to be confirmed; show it again"
            )
        try:
            found = self._found(kind, name)
            stamp = self._stamp(until, who, kind, name, found)
            if not hmac.compare_digest(shown.encode("utf-8", "replace"), stamp.encode()):
                changed = "It is not as it was shown. This is how it is now; nothing was removed."
                return self._page(kind, name, who, found, changed), 409
            force = ["--force"] if form.get("force") == "yes" else []
            only = f"--expect={found['fingerprint']}"
            asked = {"purge": kind, "name": printable(name[:_LOGGED]), "force": bool(force)}
            logs.audit(request.environ, who, {**asked, "intended": True})
            with audited(who):
                output = self._commands.run(
                    "purge", [*_options(kind, name), "--json", only, *force]
                )
        except HasDependents as error:
            return self._page(kind, name, who, found, str(error)), 409
        except BadInput as error:
            return self._page(kind, name, who, None, str(error)), 400
        self._live.refresh()
        removed = orjson.loads(output.last)
        logs.audit(request.environ, who, {**asked, **counts_of(removed)})
        return self._page(kind, name, who, None, removed=removed), 200

    def _page(
        self,
        kind: str,
        name: str,
        who: str,
        found: dict[str, Any] | None,
        problem: str = "",
        removed: dict[str, Any] | None = None,
    ) -> str:
        confirm = ""
        if found is not None and who != "-":
            until = str(int(time.time()) + VALID)
            confirm = f"{until}-{self._stamp(until, who, kind, name, found)}"
        options = _options(kind, name) if kind in KINDS and name else []
        may_depend = found is not None and bool(found["outdated"] or found["unread"])
        depends = found is not None and bool(found["dependents"]["captures"])
        return render_template(
            "impact.html",
            kind=kind,
            kinds=KINDS,
            name=name,
            problem=problem,
            found=found,
            removed=removed,
            confirm=confirm,
            minutes=VALID // 60,
            impact_command=self._commands.typed("impact", options),
            # The page says what to read before: the command must not go against that.
            purge_command=self._commands.typed(
                "purge", [*options, *["--force"] * (depends and not may_depend)]
            ),
            needs_force=depends or may_depend,
            listed=_LISTED,
            shown=_ROWS,
            longest=commands.LONGEST,
        )

    def _stamp(self, until: str, who: str, kind: str, name: str, found: dict[str, Any]) -> str:
        """Return the signature of what somebody was shown."""
        listed = found["listed"], found["fingerprint"]  # which has the counts that must not change
        text = json.dumps([until, who, kind, name, listed], sort_keys=True)
        return hmac.digest(self._config.secret, text.encode(), "sha256").hex()

    def _found(self, kind: str, name: str) -> dict[str, Any]:
        output = self._commands.run(
            "impact", [*_options(kind, name), "--list", "--json"], lines=_LISTED
        )
        found: dict[str, Any] = orjson.loads(output.last)
        return {**found, "listed": [orjson.loads(line) for line in output.lines]}


def _options(kind: str, name: str) -> list[str]:
    """Return the options of the commands; raises `BadQuery`."""
    if kind not in KINDS:
        raise BadQuery(f"choose what would go: {', '.join(KINDS.values())}")
    return [f"--url={name}", "--prefix"] if kind == "prefix" else [f"--{kind}={name}"]
