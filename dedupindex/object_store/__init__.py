"""Read objects of stores and web servers as files, and write objects, through fsspec.

`find_objects` expands an address, a directory or a glob, `list_directory` lists a directory,
`facts` returns size and version of an object, `RemoteFile` reads one, and `upload` writes one.
Failures are retried. fsspec is an extra; it is imported when the first address is used.
"""

from __future__ import annotations

from dedupindex.object_store.copied_parts import in_same_store
from dedupindex.object_store.count_requests import (
    CountedRequests,
    TaskRequests,
    add_task_requests,
    counted_requests,
    counting_task,
    task_rows,
)
from dedupindex.object_store.create_object import (
    PartialCopy,
    check_creatable,
    copy_object,
    copy_source,
    create_object,
    fetched,
    is_object,
)
from dedupindex.object_store.glob import (
    AT_ONCE,
    FoundObject,
    RemoteEntry,
    addresses_below,
    find_objects,
    is_many,
    list_directory,
)
from dedupindex.object_store.read_object import RemoteFile, open_anywhere
from dedupindex.object_store.replace_object import check_conditions, locked_prefix, replace_object
from dedupindex.object_store.store_address import (
    check_address,
    check_path,
    is_remote,
    local,
    meant_address,
    redacted,
)
from dedupindex.object_store.stores import (
    ObjectFacts,
    check_reader,
    facts,
    facts_or_none,
    is_lasting,
    with_retries,
)
from dedupindex.object_store.write_object import (
    check_writable,
    download,
    remove_object,
    upload,
    write_marker,
)

__all__ = [
    "AT_ONCE", "CountedRequests", "FoundObject", "ObjectFacts", "PartialCopy", "RemoteEntry",
    "RemoteFile", "TaskRequests", "add_task_requests", "addresses_below", "check_address",
    "check_conditions", "check_creatable", "check_path", "check_reader", "check_writable",
    "copy_object", "copy_source", "counted_requests", "counting_task", "create_object", "download",
    "facts", "facts_or_none", "fetched", "find_objects", "in_same_store", "is_lasting", "is_many",
    "is_object", "is_remote", "list_directory", "local", "locked_prefix", "meant_address",
    "open_anywhere", "redacted", "remove_object", "replace_object", "task_rows", "upload",
    "with_retries", "write_marker",
]  # fmt: skip
