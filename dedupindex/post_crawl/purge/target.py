"""Which captures to remove from an index: by container, crawl, host or URL, or single ones."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

from dedupindex.digest import Digest
from dedupindex.errors import BadInput
from dedupindex.index.engine import IndexedContainer, View
from dedupindex.index.format import cells
from dedupindex.index.format.file_names import (
    ContainerNames,
    files_of,
    is_too_wide,
    last_name,
)
from dedupindex.index.format.ledger import Dependent
from dedupindex.index.format.packing import pack
from dedupindex.index.format.tombstones import NAMED
from dedupindex.index.format.visits import VISIT, Visit
from dedupindex.timestamps import digits_of_date
from dedupindex.urlkey import counted_host, host_name, in_idna, is_address

_ARCHIVE = re.compile(r"\.(w?arc(\.(gz|zst))?|wacz)$", re.IGNORECASE)


class TargetKind(Enum):
    CONTAINER = "container"
    CRAWL = "crawl"
    URL = "url"
    PREFIX = "prefix"  # of URLs
    HOST = "host"  # with its subdomains
    CAPTURE = "capture"


@dataclass(frozen=True)
class CaptureTarget:
    """The captures of a URL with a digest; with a date, only that of this second."""

    digest: Digest
    url: bytes
    date: bytes = b""


@dataclass(frozen=True)
class Target:
    """Names, URLs or captures of one kind."""

    kind: TargetKind
    texts: tuple[str, ...] = ()  # names, hosts or URLs
    captures: tuple[CaptureTarget, ...] = ()

    def __post_init__(self) -> None:
        given = self.captures if self.kind is TargetKind.CAPTURE else self.texts
        if not given or not all(self.texts):
            raise BadInput(f"name the {self.kind.value}")
        for text in self.texts if self.kind is TargetKind.CONTAINER else ():
            if is_too_wide(text):
                raise BadInput(
                    f"{text} would mean all files that there are: name a directory below / or a "
                    "bucket of a store"
                )

    @property
    def has_urls(self) -> bool:
        """Whether its texts say which URLs go, of captures, revisits and visits."""
        return self.kind in (TargetKind.URL, TargetKind.PREFIX, TargetKind.HOST)

    @property
    def urls(self) -> tuple[bytes, ...]:
        """The texts as URLs, exact to the byte."""
        return tuple(text.encode("utf-8", "surrogateescape") for text in self.texts)


@dataclass
class ResolvedTarget:
    """A target in an index; `found` has the positions of the texts or captures that are there."""

    target: Target
    keys: cells.Keys
    containers: dict[int, set[int]] = field(default_factory=dict)  # container -> its texts
    found: set[int] = field(default_factory=set)  # texts or captures
    open_crawls: list[str] = field(default_factory=list)  # see `PurgeSurvey.open_crawls`
    registered: list[IndexedContainer] = field(default_factory=list)  # whose captures go
    without_captures: dict[int, str] = field(default_factory=dict)  # text -> its container
    # Paths that were not read, but rows have their last names -> a file of that name that was.
    elsewhere: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kind, urls = self.target.kind, self.target.urls
        if kind is TargetKind.CAPTURE:
            urls = tuple(capture.url for capture in self.target.captures)
        self.names = ContainerNames(self.target.texts if kind is TargetKind.CONTAINER else ())
        self._packed = {pack(url): number for number, url in enumerate(urls)}
        self._packed_ends = tuple(self._packed)
        self._tails = frozenset(self.keys.tail(url) for url in urls)
        self._hosts: dict[bytes, list[int]] = {}
        if kind is TargetKind.HOST:
            for number, text in enumerate(self.target.texts):
                self._hosts.setdefault(host_name(text), []).append(number)
        # By URL: what goes stays away, whatever container it comes from.
        self.by_url = self.target.has_urls or kind is TargetKind.CAPTURE
        self._captures: dict[bytes, list[tuple[int, CaptureTarget]]] = {}
        for number, capture in enumerate(self.target.captures):
            self._captures.setdefault(pack(capture.url), []).append((number, capture))

    def check(self) -> None:
        """Raise `BadInput` for a CDX file or crawl log: it has no captures of its own."""
        for number, name in self.without_captures.items():
            if number not in self.found and not _ARCHIVE.search(name):
                raise BadInput(
                    f"the index has no capture of {name} itself: rows of CDX files and crawl logs "
                    "are captures of the files that they name; give those"
                )

    @property
    def unindexed(self) -> set[str]:
        """The texts that name archives which were read, and of which nothing is in the index."""
        return {self.target.texts[number] for number in self.without_captures}

    def texts_of(self, name: str) -> list[int]:
        """The texts that mean a crawl, or a container."""
        if self.target.kind is TargetKind.CRAWL:
            return [at for at, text in enumerate(self.target.texts) if text == name]
        return sorted(self.names.meaning(name))

    def may_hold(self, key: bytes) -> bool:
        """Whether entries under a key may go, by the key alone."""
        if self.target.kind in (TargetKind.URL, TargetKind.CAPTURE) and self.keys.url:
            return key[cells.DIGEST_KEY[key[0]] :] in self._tails
        return True

    def takes(self, key: bytes, entry: bytes) -> bool:
        """Whether an entry goes that is not a tombstone; updates `found`."""
        kind = self.target.kind
        numbers: Collection[int]
        if kind is TargetKind.CAPTURE:
            numbers = self._captures_of(key, entry)
        elif kind is TargetKind.URL:
            number = self._packed.get(cells.packed_url(entry))
            numbers = () if number is None else (number,)
        elif kind in (TargetKind.PREFIX, TargetKind.HOST):
            numbers = self._texts_for(cells.url_of(entry))
        elif kind is TargetKind.CONTAINER and entry[0] & 3 == NAMED:
            return False
        else:
            numbers = self.containers.get(cells.container_of(entry), ())
        self.found.update(numbers)
        return bool(numbers)

    def takes_dependent(self, dependent: bytes) -> bool:
        """Whether the revisit of a ledger item (without its key) goes; updates `found`."""
        if self.target.kind is TargetKind.CAPTURE:
            return False
        if self.target.kind is TargetKind.URL and not dependent.endswith(self._packed_ends):
            return False  # its own URL comes last; so most need not be parsed
        if self.by_url:
            return self._takes_and_finds(Dependent.of(dependent).url)
        return cells.container_of(dependent) in self.containers

    def takes_item(self, key: bytes, body: bytes) -> bool:
        if body[0] == cells.DEPENDENT:
            return self.takes_dependent(body)
        if body[0] == VISIT:  # it says no more than that there was such an answer
            return self.by_url and self.takes_visit(Visit.parse(body).url)
        return self.may_hold(key) and self.takes(key, body)

    def takes_visit(self, url: bytes) -> bool:
        """Whether a visit of a URL goes; updates `found`, as that may be all there is of it."""
        return self._takes_and_finds(url)

    def _takes_and_finds(self, url: bytes) -> bool:
        taken = self.takes_url(url)
        if taken:
            self.found.update(self._texts_for(url))
        return taken

    def takes_url(self, url: bytes) -> bool:
        kind = self.target.kind
        if kind is TargetKind.PREFIX:
            return url.startswith(self.target.urls)
        if kind is TargetKind.URL:
            return pack(url) in self._packed
        return kind is TargetKind.HOST and bool(self._texts_for(url))

    def _texts_for(self, url: bytes) -> list[int]:
        """The texts that mean a URL."""
        if self.target.kind is TargetKind.HOST:
            return self._texts_for_host(in_idna(counted_host(url)))
        if self.target.kind is TargetKind.PREFIX:
            return [at for at, prefix in enumerate(self.target.urls) if url.startswith(prefix)]
        return [at for at, one in enumerate(self.target.urls) if url == one]

    def _texts_for_host(self, host: bytes) -> list[int]:
        """The texts that mean a host, or one above it."""
        found = list(self._hosts.get(host, ()))
        if not is_address(host):
            while host:
                _, _, host = host.partition(b".")
                found += self._hosts.get(host, ())
        return found

    def _captures_of(self, key: bytes, entry: bytes) -> set[int]:
        candidates = self._captures.get(cells.packed_url(entry))
        if not candidates:
            return set()
        digest = cells.digest_of_key(key)
        if entry[1] & cells.ALSO:  # it is stored under a further digest; compare its own
            digest = cells.decode(key, entry, lambda number: cells.NOWHERE).digest
        second = int.from_bytes(entry[2:8], "big")
        return {
            number
            for number, capture in candidates
            if capture.digest == digest
            and (not capture.date or int(digits_of_date(capture.date)) == second)
        }


def resolve(target: Target, view: View, keys: cells.Keys) -> ResolvedTarget:
    """Find the containers of a target in an index."""
    resolved = ResolvedTarget(target, keys)
    if resolved.by_url:
        return resolved
    by_crawl, files = target.kind is TargetKind.CRAWL, set[str]()
    resolved.names.note_below(container.name for container in view.containers())
    for number, place in view.places():
        names = [place.crawl] if by_crawl else _files(view, place.container)
        if found := {at for name in names for at in resolved.texts_of(name)}:
            resolved.containers[number] = found
            files.update(names)
    with_captures = set[int]().union(*resolved.containers.values())
    paths, alike = _paths_by_last_name(target), dict[int, str]()  # text -> a file of its name
    for container in view.containers():
        texts = resolved.texts_of(container.crawl if by_crawl else container.name)
        for text in texts:
            if by_crawl or text in with_captures:
                resolved.found.add(text)
            else:
                resolved.without_captures[text] = container.name
        if texts and (by_crawl or container.name in files):
            resolved.registered.append(container)
        alike.update(dict.fromkeys(paths.get(last_name(container.name), ()), container.name))
    with_rows_only = alike.keys() & with_captures - resolved.found
    resolved.elsewhere = {target.texts[at]: alike[at] for at in sorted(with_rows_only)}
    return resolved


def _paths_by_last_name(target: Target) -> dict[str, list[int]]:
    """Return the texts that are paths of containers."""
    paths: dict[str, list[int]] = {}
    for at, text in enumerate(target.texts):
        if "/" in text and target.kind is TargetKind.CONTAINER:
            paths.setdefault(last_name(text), []).append(at)
    return paths


def _files(view: View, name: str) -> list[str]:
    """Return the name of a container, and of the registered WACZ that holds it."""
    _, *outer = files_of(name)
    return [name, *(file for file in outer if view.container(file) is not None)]
