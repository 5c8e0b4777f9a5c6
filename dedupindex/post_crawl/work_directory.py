"""The directory of working files of `dedup_all`.

It has

    dedup.json     format, sources, whether a run began to write (ever), and the options of
                   one that has not finished
    files.jsonl    the files that this run in place began with, a path a line
    lock           held by a running process
    manifest/      updated by each run
    plan/          of the last run
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_hexdigest

from dedupindex.errors import BadInput, IndexBusy, SettingsConflict
from dedupindex.object_store import is_remote
from dedupindex.post_crawl.directory_format import check_new_or_ours, read_description
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY, UNDOING, is_half_undone
from dedupindex.runtime.files import (
    atomic_file,
    exclusive,
    is_utf8,
    make_directory,
    shared,
    shown_name,
    write_file,
)
from dedupindex.runtime.tables import names_text, printable

_IN_PLACE = "in place"  # how files were rewritten, in the description of working files
_FORMAT = 2  # format 1 has neither the files nor all options of a run in place
_FILE, _FILES, _LOCK = "dedup.json", "files.jsonl", "lock"
_NAMED = 3  # files that a message names


def work_directory(roots: Sequence[str], out: Path | None) -> Path:
    """Return the default directory of working files; raises `BadInput` if there is none."""
    if out is None and len(roots) > 1:
        raise BadInput(
            "these sources are in several directories: name one for working files with --work DIR"
        )
    place = Path(os.path.abspath(roots[0] if out is None else out))
    if out is None and not is_utf8(str(place)):
        raise BadInput(
            f"{shown_name(str(place))}: this name is not UTF-8, so the directory of working files "
            "cannot be beside it: name one with --work DIR"
        )
    return place.with_name(f"{place.name}.dedup")


class WorkDirectory:
    """A directory of working files, locked."""

    def __init__(self, top: Path, fields: dict[str, Any]) -> None:
        self.top = top
        self.manifest, self.plan = top / "manifest", top / "plan"
        self._fields = fields

    @property
    def unfinished_options(self) -> dict[str, Any] | None:
        """The options of an unfinished run in place, by their typed names."""
        found: dict[str, Any] | None = self._fields.get("begun")
        return found

    def mark_real(self) -> None:
        """Record that this was no dry run: other sources must not take these files."""
        self._fields["rewritten"] = self._fields.get("rewritten") or True
        self._write(self.unfinished_options)

    def begin(self, options: dict[str, Any], files: Iterable[str]) -> None:
        """Record the options and files of a run in place that begins."""
        self._fields["rewritten"] = _IN_PLACE
        with atomic_file(self.top / _FILES) as stream:
            stream.writelines(json.dumps(path).encode("ascii") + b"\n" for path in files)
        self._write(options)

    def end(self) -> None:
        """Record that the run in place has finished or was given up."""
        self._write(None)
        (self.top / _FILES).unlink(missing_ok=True)

    def interrupted(self) -> SettingsConflict:
        """Return the error of another command while a run in place is unfinished."""
        return SettingsConflict(
            f"a run in place was interrupted ({self.top}): finish it first, with --in-place, "
            "without --dry-run, and with the options and files that it started with; or undo it "
            f"with bin/rewrite {printable(shlex.quote(str(self.plan)))} --undo; or give it up with "
            "--in-place --restart, without --dry-run"
        )

    def check_same(self, options: dict[str, Any], files: Iterable[str]) -> None:
        """Raise `SettingsConflict` for other options or files than the run in place began with."""
        before = self.unfinished_options or {}
        if before.keys() != options.keys():
            raise SettingsConflict(
                f"an earlier version started a run in place ({self.top}) and did not record its "
                "options: let that version finish it, or give it up with --restart"
            )
        differences = [_difference(name, before[name], options[name]) for name in options]
        with open(self.top / _FILES, "rb") as stream:
            known = {json.loads(line) for line in stream}
        now = set(files)
        differences.append(_named(now - known, "that it did not start with"))
        differences.append(_named(known - now, "of it that are gone"))
        if found := [difference for difference in differences if difference]:
            raise SettingsConflict(
                f"a run in place was interrupted ({self.top}), and this one is another: "
                f"{'; '.join(found)}. Nothing was changed. Finish it with the options and files "
                "that it started with, or give it up with --restart, which plans anew"
            )

    def _write(self, options: dict[str, Any] | None) -> None:
        self._fields.update(format=_FORMAT, begun=options)
        write_file(self.top / _FILE, json.dumps(self._fields, indent=1).encode("ascii") + b"\n")


def check_finished(plan: Path, roots: Iterable[Path]) -> None:
    """Raise `SettingsConflict` if a run in place of `plan` or in `roots` was interrupted.

    Resumed, it needs the removed records of the files that it has replaced; an undo that was
    interrupted needs those that are left. Working files that `--work` keeps elsewhere are found if
    the plan is in them.
    """
    for root in (roots := list(roots)):
        if is_half_undone(root):
            undo = f"bin/rewrite {shlex.quote(str(plan))} --undo"
            mark = shlex.quote(str(root / DIRECTORY / UNDOING))
            raise SettingsConflict(
                f"an undo in {root} was interrupted: some files are restored, and the removed "
                "records of the others are needed to restore these; nothing was changed: finish it "
                f"first with {printable(undo)}, or, if the others are to stay as they are, delete "
                f"{printable(mark)} and repeat this"
            )
    for top in (plan.resolve().parent, *(work_directory([str(root)], None) for root in roots)):
        if not (top / _FILE).is_file():
            continue
        fields = read_description(top / _FILE, f"the working directory {top}", _FORMAT)
        if fields.get("begun") is not None:
            words = [*_all_absolute(fields["sources"]), "--in-place", "--work", str(top)]
            raise SettingsConflict(
                f"a run in place was interrupted ({top}) and needs the removed records; nothing "
                f"was changed: finish it first with bin/dedup {printable(shlex.join(words))} and "
                "the options that it started with, or restore the files with bin/rewrite "
                f"{printable(shlex.quote(str(top / 'plan')))} --undo"
            )


def _mark(plan: Path, host: str, roots: Iterable[str]) -> Path:
    """Return the mark of the files of a host below some roots, which may be those of a copy."""
    key = xxh3_64_hexdigest("\0".join((host, *sorted(roots))).encode("utf-8", "surrogateescape"))
    return plan / f".unfinished-{key}"


def mark_unfinished(plan: Path, host: str, roots: Iterable[str]) -> None:
    """Mark a plan, if its directory can be written to, before a file is replaced.

    The mark stays if the run is interrupted. Resumed, that run needs the removed records of what
    it has replaced: without them it finds files that changed since they were scanned.
    """
    with suppress(OSError):
        write_file(_mark(plan, host, roots), b"")


def unmark_unfinished(plan: Path, host: str, roots: Iterable[str]) -> None:
    """Remove the mark: all files were rewritten, or restored."""
    with suppress(OSError):
        _mark(plan, host, roots).unlink()


def check_not_unfinished(plan: Path, host: str, roots: Iterable[str]) -> None:
    """Raise `SettingsConflict` if rewriting in place by a plan was interrupted."""
    if not (mark := _mark(plan, host, roots)).exists():
        return
    command = f"bin/rewrite {printable(shlex.quote(str(plan)))}"
    raise SettingsConflict(
        f"{command} --in-place was interrupted, and needs the removed records to go on; nothing "
        f"was changed: finish it first with that command and the options that it had, or restore "
        f"the files with {command} --undo. To keep what it has done, and no more, delete "
        f"{printable(shlex.quote(str(mark)))} and repeat this"
    )


def end_undone(top: Path, sources: Sequence[str] | None = None) -> bool:
    """End the interrupted run in place of some working files: all its files were restored.

    With `sources`, only a run on these. Returns whether a run was ended. Working files that a
    process has are left to it. Raises `DedupError` if the working files cannot be read.
    """
    if not (top / _FILE).is_file():
        return False
    with suppress(IndexBusy), exclusive(top / _LOCK, f"the working files {top}"):
        fields = read_description(top / _FILE, f"the working directory {top}", _FORMAT)
        known = _all_absolute(fields.get("sources", []))
        work = WorkDirectory(top, fields)
        if work.unfinished_options is not None and sources in (None, known):
            work.end()
            return True
    return False


def _difference(name: str, before: Any, now: Any) -> str:
    """Describe how an option has changed; empty if it has not."""
    if before == now:
        return ""
    if isinstance(now, bool):
        return f"{name} is given, and was not" if now else f"{name} is not given, and was"
    then, after = (f"{name} {value}" if value else f"no {name}" for value in (before, now))
    return f"it started with {then}, this one has {after}"


def _named(paths: set[str], what: str) -> str:
    if not paths:
        return ""
    shown = [printable(path) for path in sorted(paths)[:_NAMED]]
    return f"files {what}: {names_text(shown, _NAMED, len(paths))}"


def check_idle(top: Path) -> None:
    """Raise `IndexBusy` if a run has the working files; returns at once, and makes nothing."""
    with suppress(OSError), shared(top / _LOCK, f"the working files {top}"):
        pass


@contextmanager
def working(top: Path, sources: list[str]) -> Iterator[WorkDirectory]:
    """Create or open the working files of these sources, and lock them; raises `DedupError`."""
    named = _all_absolute(sources)
    check_new_or_ours(top / _FILE, (_LOCK,), "name another directory with --work")
    make_directory(top, "the directory of working files beside --out or SOURCE (or --work)")
    with exclusive(top / _LOCK, f"the working files {top}"):
        if not (top / _FILE).exists():
            WorkDirectory(top, {"sources": named}).end()
        fields = read_description(top / _FILE, f"the working directory {top}", _FORMAT)
        if (before := _all_absolute(fields.get("sources", []))) != named:
            if fields.get("begun") or fields.get("rewritten"):
                undo = ", by which bin/rewrite --undo restores what was rewritten in place"
                in_place = fields.get("begun") or fields["rewritten"] == _IN_PLACE
                delete = "" if in_place else f", or delete {top}, which nothing needs any more"
                raise SettingsConflict(
                    f"{top} has the working files of a run with other sources "
                    f"({', '.join(before)}): its manifest and plan{undo if in_place else ''}. Name "
                    f"those sources, or another directory with --work{delete}"
                )
            work = WorkDirectory(top, {"sources": named})  # nothing depends on those
            for directory in (work.manifest, work.plan):
                shutil.rmtree(directory, ignore_errors=True)
            work.end()
            fields = read_description(top / _FILE, f"the working directory {top}", _FORMAT)
        yield WorkDirectory(top, fields)


def _all_absolute(sources: Iterable[str]) -> list[str]:
    """Return sources, sorted, so that two ways to write them are the same."""
    return sorted({one.rstrip("/") if is_remote(one) else os.path.abspath(one) for one in sources})
