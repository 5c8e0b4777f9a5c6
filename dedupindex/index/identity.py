"""The identity of an index: format, engine, canonicaliser, generation and settings.

``INDEX/index.json`` is read first and written last, in one rename: it makes a directory an index,
and commits each new generation of data files.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from shlex import quote
from typing import Any

from dedupindex.errors import (
    BadInput,
    Damaged,
    FormatFromFuture,
    FormatFromPast,
    IndexUnavailable,
    SettingsConflict,
)
from dedupindex.index.address import Address, is_cluster, shown
from dedupindex.index.format.cells import Keys, sealed
from dedupindex.runtime.files import write_file
from dedupindex.urlkey import CANONICALISER

FORMAT = 3  # of all stored data, crawls too; raised when an older reader would misread it
FILE = "index.json"
_CHECKSUM = "checksum"  # in the file: of everything else in it


def check_outside_index(path: Path) -> None:
    """Raise `BadInput` if a file to write would be in the directory of an index."""
    if (path.resolve().parent / FILE).exists():
        raise BadInput(f"{path} is in the directory of an index: name another place")


@dataclass(frozen=True)
class Settings:
    """The settings of an index, which every build that adds to it must share."""

    url_index: bool = True
    canonical: bool = True
    etag: bool = False
    mime: str = "^text/.*"
    whitelist: bool = False
    status: str = "200"
    min_size: int = 0
    also_digest: str = ""
    keep: str = "earliest"
    revisit_annotation: str = ""
    by_url: bool = False

    def as_options(self) -> str:
        """Return the options of ``bin/index`` for these settings, without defaults."""
        default = asdict(Settings())
        if (self.mime, self.whitelist) == (".*", True):
            rest = replace(self, mime=default["mime"], whitelist=default["whitelist"])
            return " ".join(filter(None, ("--all", rest.as_options())))
        return " ".join(
            OPTIONS[name] if isinstance(value, bool) else f"{OPTIONS[name]} {quote(str(value))}"
            for name, value in asdict(self).items()
            if value != default[name]
        )

    @classmethod
    def options_of(cls, stored: Any) -> str:
        """Return the options for settings stored in another format, as far as they are known."""
        given = stored if isinstance(stored, dict) else {}
        known = {
            field.name: given[field.name]
            for field in fields(cls)
            if type(given.get(field.name)) is type(field.default)
        }
        return cls(**known).as_options()

    def keys(self) -> Keys:
        """Return the form of keys."""
        return Keys(self.url_index, self.url_index and self.canonical)


OPTIONS = {  # setting -> option of the command line
    field.name: f"--{field.name.replace('_', '-')}" for field in fields(Settings)
}
OPTIONS |= {"url_index": "--no-url-index", "canonical": "--no-canonicalized"}


@dataclass(frozen=True)
class Identity:
    """The content of ``index.json``."""

    engine: str
    settings: Settings
    canonicaliser: str = CANONICALISER
    generation: int = 0  # raised when data files are replaced; 0 before the first load

    def write(self, index: Path) -> None:
        """Write it to a directory, atomically and durably."""
        content = {"format": FORMAT, **asdict(self)}
        content[_CHECKSUM] = checksum_of(content)
        write_file(index / FILE, json.dumps(content, indent=2).encode() + b"\n")

    def next_generation(self) -> Identity:
        return replace(self, generation=self.generation + 1)

    def check_canonicaliser(self) -> None:
        """Raise `SettingsConflict` if another canonicaliser made the index's urlkeys."""
        if self.canonicaliser != CANONICALISER:
            raise SettingsConflict(
                f"the index has urlkeys of {self.canonicaliser}, this version makes those of "
                f"{CANONICALISER}; build the index again from its sources"
            )

    def check_settings(self, engine: str, settings: Settings) -> None:
        """Raise `SettingsConflict` unless a build with this engine and settings may add to it."""
        if not same_engine(self.engine, engine):
            raise SettingsConflict(
                f"the index is on engine {shown(self.engine)}, not {engine}; "
                "to add to it leave --engine out"
            )
        self.check_canonicaliser()
        mine, theirs = asdict(self.settings), asdict(settings)
        other = [name for name in OPTIONS if mine[name] != theirs[name]]
        if other:
            built = ", ".join(f"{name} = {json.dumps(mine[name])}" for name in other)
            asked = ", ".join(f"{name} = {json.dumps(theirs[name])}" for name in other)
            raise SettingsConflict(
                f"the index was built with {built} and cannot be added to with {asked}; "
                f"to add to it leave {', '.join(OPTIONS[name] for name in other)} out"
            )


def same_engine(one: str, other: str) -> bool:
    """Return whether two names mean one engine; the options of an address do not matter."""
    if is_cluster(one) and is_cluster(other):
        return Address.parse(one).where == Address.parse(other).where
    return one == other


def unfinished(index: Path) -> str:
    """Return the error message for an index whose first build has not finished."""
    return (
        f"the first build of {index} has not finished; if it is not running, run bin/index again "
        "(with --resume to keep what was read)"
    )


def read_identity(index: Path) -> Identity:
    """Return the identity of the index in a directory; raises as `open_index`."""
    try:
        content: dict[str, Any] = json.loads((index / FILE).read_bytes())
        checksum = content.pop(_CHECKSUM, None)
        version = content["format"]
        ours = not isinstance(version, int) or version <= FORMAT  # a later one may have another
        if ours and checksum is not None and checksum != checksum_of(content):
            raise ValueError("another checksum")
        if version != FORMAT:
            options = Settings.options_of(content.get("settings"))
            raise other_format(f"the index at {index}", version, options, "NEW-INDEX")
        if checksum is None:
            raise ValueError("no checksum")
        del content["format"]
        return Identity(**{**content, "settings": Settings(**content["settings"])})
    except FileNotFoundError as error:
        raise IndexUnavailable(f"there is no index at {index}; make one with bin/index") from error
    except NotADirectoryError as error:
        raise IndexUnavailable(
            f"{index} is a file; an index is a directory, and bin/index makes one"
        ) from error
    except OSError as error:
        raise IndexUnavailable(f"the index at {index} cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise Damaged(f"{index / FILE} is damaged; restore it from a copy") from error


def existing_identity(index: Path) -> Identity | None:
    """Return the identity of the index in a directory, None if there is none; or `Damaged`."""
    return read_identity(index) if (index / FILE).exists() else None


def checksum_of(content: dict[str, Any]) -> str:
    """Return a checksum of JSON that does not depend on its layout."""
    text = json.dumps(content, sort_keys=True).encode()
    return sealed(b"", text)[len(text) :].hex()


def other_format(what: str, version: Any, options: str, target: str) -> IndexUnavailable:
    """Return the error for an index, named `what`, in a format other than `FORMAT`."""
    if isinstance(version, int) and version < FORMAT:
        words = " ".join(filter(None, ("bin/index", options, "SOURCE...", target)))
        return FormatFromPast(
            f"{what} has format {version}, this version reads format {FORMAT} and cannot convert "
            f"or copy it; build it again from its sources: {words}"
        )
    return FormatFromFuture(
        f"{what} has format {version}, this version reads format {FORMAT}; "
        "use the dedupindex that wrote it, or a newer one"
    )


Stamp = tuple[Identity, list[tuple[str, int]]]


def stamp_of(index: Path) -> Stamp:
    """Return what changes when the index or its data file is replaced, but not when it grows."""
    identity = read_identity(index)
    data = f"data-{identity.generation}"
    try:
        files = sorted(
            (entry.name, entry.inode())
            for entry in os.scandir(index)
            if entry.name.startswith(data) and not entry.name.endswith("-lock")
        )
    except OSError as error:
        raise IndexUnavailable(f"the index at {index} cannot be read: {error.strerror}") from error
    return identity, files
