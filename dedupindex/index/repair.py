"""The commands that repair an index: which files to read again."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from dedupindex.index.engine import View

_NAMED = 20  # files that a command names; of more it says SOURCE...


def reread(index: str, sources: Iterable[str], crawl: str = "") -> str:
    """The command that reads files again, though the index knows them."""
    return shlex.join(
        ["bin/index", "--reread", *(["--crawl", crawl] if crawl else []), *sources, index]
    )


def reread_all(view: View, index: str) -> Iterator[str]:
    """The commands that read all files of an index again, one for each crawl."""
    files: dict[str, list[str]] = {}
    for one in view.containers():
        of_crawl = files.setdefault(one.crawl, [])
        if not one.purged and len(of_crawl) <= _NAMED:
            of_crawl.append(one.name)
    for crawl, names in sorted(files.items()):
        if names:
            yield reread(index, names if len(names) <= _NAMED else ["SOURCE..."], crawl)
