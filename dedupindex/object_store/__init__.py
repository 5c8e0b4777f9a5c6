"""Objects in stores and on web servers, as files that are read: by fsspec, with patience.

`found` tells what an address, a directory or a glob means, `entries` what is in a directory,
`facts` what an object is now, and `RemoteFile` reads one; `opened` is for what is here or there.
Who is never given an address never imports fsspec, which is an extra.
"""

from __future__ import annotations

from dedupindex.object_store.glob import AT_ONCE, Met, RemoteEntry, entries, found, is_many
from dedupindex.object_store.read_object import RemoteFile, opened
from dedupindex.object_store.store_address import check_here, check_path, is_remote, kept, local
from dedupindex.object_store.stores import ObjectFacts, check_reader, facts, facts_or_none

__all__ = [
    "AT_ONCE", "ObjectFacts", "Met", "RemoteEntry", "RemoteFile", "check_here", "check_path",
    "check_reader", "entries", "facts", "facts_or_none", "found", "is_many", "is_remote", "kept",
    "local", "opened",
]  # fmt: skip
