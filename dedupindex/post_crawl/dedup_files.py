"""The directory of working files, and copies of files that are not archives.

dedup.json     format, sources, and the options of a run in place that has not finished
files.jsonl    the files that this run in place began with, a path a line
lock           held by a running process
manifest/      updated by each run
plan/          of the last run
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dedupindex.errors import Damaged, SettingsConflict
from dedupindex.post_crawl.directory_format import check_new_or_ours, read_description
from dedupindex.post_crawl.rewrite.rewrite_file import ANOTHER
from dedupindex.runtime.atomic_replace import (
    FileSink,
    Untouched,
    being_written,
    copy_metadata,
    create_file,
    identity,
    open_for_reading,
    open_part,
    part_path,
    remove_stale_parts,
    removing,
    same_bytes,
)
from dedupindex.runtime.files import atomic_file, exclusive, write_file
from dedupindex.runtime.tables import printable
from dedupindex.sources.discover import is_unfinished
from dedupindex.sources.warc_files import SourceFile

_FORMAT = 2  # format 1 has neither the files nor all options of a run in place
_FILE, _FILES, _LOCK = "dedup.json", "files.jsonl", "lock"
_NAMED = 3  # files that a message names


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

    def begin(self, options: dict[str, Any], files: Iterable[str]) -> None:
        """Record the options and files of a run in place that begins."""
        with atomic_file(self.top / _FILES) as stream:
            stream.writelines(json.dumps(path).encode("ascii") + b"\n" for path in files)
        self._write(options)

    def end(self) -> None:
        """Record that the run in place has finished or was given up."""
        self._write(None)
        (self.top / _FILES).unlink(missing_ok=True)

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
    shown = ", ".join(printable(path) for path in sorted(paths)[:_NAMED])
    more = f" and {len(paths) - _NAMED:,} more" if len(paths) > _NAMED else ""
    return f"files {what}: {shown}{more}"


@contextmanager
def working(top: Path, sources: list[str]) -> Iterator[WorkDirectory]:
    """Create or open the working files of these sources, and lock them.

    Raises `SettingsConflict` if they are of other sources, `BadInput` if `top` is something else,
    `IndexBusy` if another run is at work.
    """
    named = sorted({os.path.abspath(source) for source in sources})
    check_new_or_ours(top / _FILE, (_LOCK,), "name another directory with --work")
    top.mkdir(parents=True, exist_ok=True)
    with exclusive(top / _LOCK, f"the working files {top}"):
        if not (top / _FILE).exists():
            WorkDirectory(top, {"sources": named}).end()
        fields = read_description(top / _FILE, f"the working directory {top}", _FORMAT)
        if (sources := fields.get("sources", [])) != named:
            raise SettingsConflict(
                f"{top} has the working files of other sources ({', '.join(sources)}): "
                "name those, or another directory with --work"
            )
        yield WorkDirectory(top, fields)


def to_be_copied(file: SourceFile, out: Path | None) -> bool:
    """Whether a file that cannot be read as an archive has still to be copied to `out`."""
    return out is not None and not is_unfinished(file.name) and not (out / file.name).exists()


def copy(file: SourceFile, out: Path, *, dry: bool = False) -> None:
    """Copy a file below `out`, whole or not at all; in a dry run, only check whether it can be.

    Raises `Untouched` for what changes meanwhile, cannot be read, or is there with another content;
    `OSError` where writing fails.
    """
    target = out / file.name
    try:
        source = open_for_reading(file.path)
    except OSError as error:
        raise Untouched(f"it cannot be read: {error.strerror}") from error
    with source:
        if being_written(source):
            raise Untouched("another process is writing to it")
        if target.exists():
            with open_for_reading(target) as there:
                if not same_bytes(source, there):
                    raise Untouched(f"{target} exists already, with other content: {ANOTHER}")
            return
        if dry:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_stale_parts([target])  # of a killed run
        part = part_path(target)
        before = os.fstat(source.fileno())
        with removing(part), open_part(part) as into:
            try:
                FileSink(into).copy(source, 0, before.st_size)
            except Damaged as error:
                raise Untouched("it became shorter while it was copied") from error
            copy_metadata(source, into)
            os.fsync(into.fileno())
            if identity(os.stat(file.path)) != identity(before):
                raise Untouched("it was changed while it was copied")
            try:
                create_file(part, into, target)
            except FileExistsError as error:  # by another process, since
                raise Untouched(f"{target} exists already: {ANOTHER}") from error
