"""The mark of ``bin/rewrite PLAN --in-place`` in its plan, which stays if a run is interrupted.

Resumed, that run needs the removed records of the files that it has replaced, and so it finds that
it was itself that changed these.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from dedupindex.errors import SettingsConflict
from dedupindex.runtime.files import write_file
from dedupindex.runtime.tables import printable


def _mark(plan: Path, host: str) -> Path:
    return plan / f".unfinished{'-' if host else ''}{quote(host, safe='')}"


def mark_unfinished(plan: Path, host: str) -> None:
    """Mark a plan, if its directory can be written to, before a file is replaced."""
    with suppress(OSError):
        write_file(_mark(plan, host), b"")


def unmark_unfinished(plan: Path, host: str) -> None:
    """Remove the mark: all files were rewritten, or restored."""
    with suppress(OSError):
        _mark(plan, host).unlink()


def check_not_unfinished(plan: Path, host: str) -> None:
    """Raise `SettingsConflict` if rewriting in place by a plan was interrupted."""
    if not (mark := _mark(plan, host)).exists():
        return
    command = f"bin/rewrite {printable(shlex.quote(str(plan)))}"
    raise SettingsConflict(
        f"{command} --in-place was interrupted, and needs the removed records to go on; nothing "
        f"was changed: finish it first with that command and the options that it had, or restore "
        f"the files with {command} --undo. To keep what it has done, and no more, delete "
        f"{printable(shlex.quote(str(mark)))} and repeat this"
    )
