"""What a crawl would have saved: a CDX file or crawl log is sent, and looked up as a whole.

A process of its own does that, by ``bin/report`` and at low priority, so that no lookup of a
crawler waits for it, and it can be ended when it takes too long. What was sent lies in a file
without a name, which is gone with the request.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import PurePosixPath, PureWindowsPath
from threading import BoundedSemaphore
from typing import IO, Any

import orjson
from flask import render_template, request

from dedupindex.errors import BadInput, Damaged, IndexUnavailable
from dedupindex.report import GROUPS, STRATEGIES
from server.bodies import Bodies
from server.config import Config
from server.pages.chart import bar
from server.pages.forms import received
from server.replies import RequestError

LONGEST = 60  # seconds of one
AT_ONCE = 2  # in one worker
_ROWS = 50  # of the largest groups


class WhatIf:
    """The views of the form and of its answer."""

    def __init__(self, config: Config, bodies: Bodies) -> None:
        self._config, self._bodies = config, bodies
        self._free = BoundedSemaphore(AT_ONCE)

    def what_if(self) -> str:
        """The form."""
        return self._page()

    def try_out(self) -> tuple[str, int]:
        """The answer."""
        if not self._free.acquire(blocking=False):
            raise RequestError("overloaded", f"{AT_ONCE} of these are being made; try again soon")
        try:
            return self._answered()
        finally:
            self._free.release()

    def _answered(self) -> tuple[str, int]:
        form, files = received(request.environ, self._bodies, self._config.max_body)
        sent = files.get("crawl")
        by = form.get("by", "host")
        if sent is None or not sent.filename:
            return self._page(problem="Choose a file first.", by=by), 400
        name = PurePosixPath(PureWindowsPath(sent.filename).as_posix()).name
        with sent.stream as stream:
            try:
                if by not in GROUPS:
                    raise BadInput(f"there are groups by {', '.join(GROUPS)}")
                stream.seek(0)
                report, said = _reported(self._config.index, stream, by)
            except BadInput as error:
                return self._page(problem=str(error), by=by), 400
        return self._page(report=report, said=said, name=name, by=by), 200

    def _page(self, *, report: dict[str, Any] | None = None, **more: Any) -> str:
        shown = {"problem": "", "by": "host", "said": [], "name": "", "bar": [], **more}
        if report is not None:
            shown["bar"] = _bar(report)
            for group in report["groups"]:
                group["bar"] = _bar(group, report["groups"][0]["handled_bytes"])
        return render_template(
            "what_if.html",
            report=report,
            groups=list(GROUPS),
            strategies=[strategy.value for strategy in STRATEGIES],
            limit=self._config.max_body,
            rows=_ROWS,
            longest=LONGEST,
            **shown,
        )


def _bar(sums: dict[str, Any], whole: float = 0) -> Any:
    """The bytes of a group by what would have become of them."""
    names = ("exact_url", "canonical_url", "digest", "new")
    return bar([(name, sums[f"{name}_bytes"]) for name in names], whole)


def _reported(index: Any, stream: IO[bytes], by: str) -> tuple[dict[str, Any], list[str]]:
    """The report on a file, and what was said of it; raises `BadInput`, `IndexUnavailable`."""
    words = ["report", os.path.abspath(index), "--against", "-", "--json"]
    command = ["nice", "-n", "10", sys.executable, "-m", "dedupindex", *words]
    path = os.pathsep.join(filter(None, sys.path))
    try:
        done = subprocess.run(
            [*command, "--by", by, "--limit", str(_ROWS)],
            env={**os.environ, "PYTHONPATH": path},
            stdin=stream,
            capture_output=True,
            check=False,
            timeout=LONGEST,
        )
    except subprocess.TimeoutExpired as error:
        raise BadInput(
            f"that takes more than {LONGEST} seconds: use bin/report INDEX --against FILE"
        ) from error
    said = done.stderr.decode("utf-8", "replace").splitlines()[-20:]
    if done.returncode == BadInput.exit_status:
        raise BadInput(said[-1].removeprefix("dedupindex: ") if said else "it cannot be read")
    if done.returncode == IndexUnavailable.exit_status:
        raise IndexUnavailable(said[-1] if said else "the index cannot be read now")
    if done.returncode not in (0, Damaged.exit_status):
        raise RuntimeError(f"bin/report ended with {done.returncode}: {said}")
    report: dict[str, Any] = orjson.loads(done.stdout)
    return report, [line for line in said if line]
