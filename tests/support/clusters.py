"""ZipNum clusters for tests."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path


def write_cluster(
    folder: Path,
    lines: Sequence[bytes],
    *,
    rows: int = 3,
    blocks: int = 4,
    ended: bool = True,
    locations: str = "",
) -> Path:
    """Write sorted lines in blocks of some rows, and parts of some blocks; return the index.

    Unless `ended`, the last line of a block has no line end. `locations` is a folder of parts.
    """
    home = folder / locations if locations else folder
    home.mkdir(parents=True, exist_ok=True)
    index, places = [], []
    for part, first in enumerate(range(0, len(lines), rows * blocks)):
        data, name = b"", f"cdx-{part:05}.gz"
        for begin in range(first, min(first + rows * blocks, len(lines)), rows):
            block = b"\n".join(lines[begin : min(begin + rows, first + rows * blocks)])
            packed = gzip.compress(block + b"\n" * ended, mtime=0)
            key = b" ".join(lines[begin].split(b" ")[:2])
            index.append(b"%b\t%b\t%d\t%d\t%d\n" % (
                key, f"part-{part}".encode() if locations else name.encode(),
                len(data), len(packed), len(index) + 1,
            ))  # fmt: skip
            data += packed
        (home / name).write_bytes(data)
        places.append(f"part-{part}\tnowhere/{name}\t{locations}/{name}\n")
    if locations:
        (folder / "cluster.loc").write_text("".join(places))
    path = folder / "cluster.idx"
    path.write_bytes(b"".join(index))
    return path
