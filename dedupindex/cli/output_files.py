"""Which existing file a command replaces by the one that it writes.

An archive cannot be made again, and a name is mistyped easily. So a command replaces only what it
may have written before: a file that begins as its own do, or an empty one. Then it can be repeated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from dedupindex.errors import BadInput
from dedupindex.index.identity import check_outside_index

_HEAD = 1 << 16  # bytes: a line with a long URL


class OutputForm(NamedTuple):
    """A form of file that commands write, and how all files of this form begin."""

    name: str
    begin: re.Pattern[bytes]


PAGE = OutputForm("page of HTML", re.compile(rb"<!DOCTYPE HTML>", re.IGNORECASE))
CDX = OutputForm("CDX of 11 columns", re.compile(rb" CDX N b a m s k r M S V g\n"))
CDXJ = OutputForm("CDXJ", re.compile(rb"\S+ (?:\d{14}|\d{17}) \{"))
WGET_CDX = OutputForm("CDX for wget", re.compile(rb" CDX a k u\n"))
OFFSETS = OutputForm("map of offsets", re.compile(rb"file\toffset\tbytes\tnew_offset\tnew_bytes\n"))
TEXT_LINES = OutputForm(
    "list of warcsum or warccollres",
    re.compile(rb"\S+ \d+ \d+ \S+ \S+ [a-z0-9]+:[0-9a-f]+(?: \d+ \d+ \S+ \S+)?\n"),
)
RATES = OutputForm("file of rates", re.compile(rb"\[[\w.]+\]\n"))
PICTURE = OutputForm("picture (SVG)", re.compile(rb"<svg "))
PARQUET = OutputForm("Parquet file", re.compile(rb"PAR1"))
UNIQUE_CSV = OutputForm("CSV of unique files", re.compile(rb"\"?[0-9a-f]{64}\"?,"))


def check_output(path: Path, form: OutputForm, inputs: Iterable[str | Path] = ()) -> None:
    """Raise `BadInput` if a file of a form must not be written to `path`.

    It must not replace one of `inputs` nor a file of another form, and must not be in the directory
    of an index. Raises `OSError` for an existing file that cannot be read.
    """
    check_outside_index(path)
    if not path.is_file():
        return
    for given in inputs:
        if os.path.exists(given) and os.path.samefile(path, given):
            raise BadInput(f"{path} is read by this command: name another file to write to")
    with open(path, "rb") as stream:
        head = stream.read(_HEAD)
    if head and not form.begin.match(head):
        raise BadInput(
            f"{path} is no {form.name}, and is not overwritten: name another, or remove it"
        )
