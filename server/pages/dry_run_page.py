"""The page of a dry run: what rewriting the archives of a directory would save.

Only directories below those that the setting `dry_run_dir` names can be read, by those who may
administer the index. Nothing is written but a plan, which is deleted at the end.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any
from urllib.parse import parse_qs

import orjson
from flask import render_template, request

from dedupindex.errors import BadInput, as_named
from dedupindex.index.tokens import Role
from dedupindex.runtime.tables import UNKNOWN
from server import commands
from server.pages.login import is_own_request
from server.services import Handlers

SAMPLES = {"": "all files", "10%": "a tenth of the files", "1%": "one file of a hundred"}
_ENTRIES = 50_000  # files and directories of one run
_PREFIX = "dedupindex-dry-run-"
_ROWS = 20  # hosts and problems


class DryRunPage(Handlers):
    def dry_run(self) -> tuple[str, int]:
        """Show the form and, if it was filled in, what a dry run has found.

        The command reads whole archives, so it needs the role admin if there are tokens, and no
        page of another server can start it.
        """
        given = parse_qs(request.environ.get("QUERY_STRING", ""), True, errors="surrogateescape")
        root, path, sample = (given.get(name, [""])[0] for name in ("root", "path", "sample"))
        found, problem, status, chosen = None, "", 200, None
        ours = is_own_request(request.environ)
        if ours:
            self._access.require(request.environ, Role.ADMIN)
        if "path" in given and ours:
            try:
                chosen = self._directory(root, path)
                found = self._found(chosen, sample)
            except BadInput as error:
                problem, status = str(error), 400
        page = render_template(
            "dry_run.html",
            roots=[str(directory) for directory in self._config.dry_run_dirs],
            root=root,
            path=path,
            asked="path" in given,
            samples=SAMPLES,
            sample=sample,
            found=found,
            problem=problem,
            rows=_ROWS,
            **(_tables(found) if found is not None and not sample else {}),
            longest=commands.LONGEST,
            command="" if chosen is None else _typed(chosen, sample),
        )
        return page, status

    def _directory(self, root: str, path: str) -> Path:
        """Return a directory below one of the roots, without links that lead out; or `BadInput`."""
        roots = self._config.dry_run_dirs
        if not (root.isascii() and root.isdigit()) or len(root) > 3 or int(root) >= len(roots):
            raise BadInput("choose one of the directories")
        if "\0" in path:
            raise BadInput("a name cannot hold a byte of 0")
        top = roots[int(root)]
        # The same sentence for what is elsewhere and what is nowhere: nobody can look around.
        refused = BadInput(f"there is no such directory below {top}")
        try:
            real_top = top.resolve(strict=True)
            real = (real_top / path).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            raise refused from None
        if not real.is_relative_to(real_top) or not real.is_dir():
            raise refused
        _check_links(real, real_top)
        return real

    def _found(self, directory: Path, sample: str) -> dict[str, Any]:
        if sample not in SAMPLES:
            raise BadInput(f"choose {', '.join(SAMPLES.values())}")
        _remove_leftovers()
        with TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as scratch:
            options = [
                *_options(directory, sample),
                f"--out={scratch}/out",
                f"--work={scratch}/work",
                *("--json", "--jobs=2", "--memory=500MB"),
            ]
            output = self._commands.run("dedup", options, indexed=False)
        found: dict[str, Any] = orjson.loads(output.last)
        return found


def _tables(found: dict[str, Any]) -> dict[str, Any]:
    """Return the tables of a report of ``bin/dedup``, and their rows."""
    from dedupindex.post_crawl import dedup_report  # loads DuckDB, which only this page needs

    refused = [
        {**row, "reason": as_named(row["reason"]), "option": as_named(row["option"])}
        for row in dedup_report.refused_rows(
            found["refused"], found["refused_bytes"], found["captures"]
        )
    ]
    hosts = [
        dedup_report.HostNumbers(
            host["host"] or UNKNOWN, host["captures"], host["revisits"], host["bytes_saved"]
        ).as_row()
        for host in found["hosts"][:_ROWS]
    ]
    return {
        "refused_table": dedup_report.refused_table(refused, dry_run=True),
        "refused": refused,
        "reasons": as_named(dedup_report.REASONS),
        "host_table": dedup_report.hosts_table(dry_run=True),
        "hosts": hosts,
    }


def _options(directory: Path, sample: str) -> list[str]:
    return [str(directory), "--dry-run", *([f"--sample={sample}"] if sample else [])]


def _typed(directory: Path, sample: str) -> str:
    return commands.typed("dedup", [*_options(directory, sample), "--out=NEW-DIRECTORY"])


def _check_links(directory: Path, top: Path) -> None:
    """Raise `BadInput` if a link below a directory leads out of the root, or there is too much."""
    seen = 0
    # A directory that cannot be listed has no links to follow; bin/dedup names it.
    for where, directories, files in os.walk(directory, onerror=None):
        for name in (*directories, *files):
            seen += 1
            entry = Path(where, name)
            if seen > _ENTRIES:
                raise BadInput(
                    f"there are more than {_ENTRIES:,} files: use bin/dedup itself, on the server"
                )
            if entry.is_symlink() and not _leads_into(entry, top):
                raise BadInput(f"{entry.name} is a link that leads out of {top}")


def _leads_into(link: Path, top: Path) -> bool:
    try:
        return link.resolve().is_relative_to(top)
    except (OSError, RuntimeError):
        return False


def _remove_leftovers() -> None:
    """Delete the plans of runs whose worker was killed."""
    oldest = time.time() - 2 * commands.LONGEST
    for path in Path(gettempdir()).glob(_PREFIX + "*"):
        with suppress(OSError):
            status = path.lstat()
            if status.st_uid == os.getuid() and status.st_mtime < oldest:
                shutil.rmtree(path)
