"""What is to go from an index: captures of containers, of crawls, of URLs, or single ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from dedupindex.digest import Digest
from dedupindex.errors import BadInput
from dedupindex.index.engine import IndexedContainer, View
from dedupindex.index.format.cells import (
    ALSO,
    DIGEST_KEY,
    NOWHERE,
    ContainerRef,
    Keys,
    container_of,
    decode,
    digest_of_key,
    packed_url,
    url_of,
)
from dedupindex.index.format.file_names import files_of, is_one_of, spellings
from dedupindex.index.format.ledger import DEPENDENT, Dependent, dependent_container
from dedupindex.index.format.packing import pack
from dedupindex.index.format.tombstones import NAMED
from dedupindex.timestamps import digits_of_date


class TargetKind(Enum):
    """By what captures are chosen."""

    CONTAINER = "container"
    CRAWL = "crawl"
    URL = "url"
    PREFIX = "prefix"  # of URLs
    CAPTURE = "capture"


@dataclass(frozen=True)
class One:
    """A single capture: all of a URL with a digest, or that of a date (to the second)."""

    digest: Digest
    url: bytes
    date: bytes = b""


@dataclass(frozen=True)
class Target:
    """What is to go: names, URLs or captures of one kind."""

    kind: TargetKind
    texts: tuple[str, ...] = ()  # names, or URLs
    ones: tuple[One, ...] = ()

    def __post_init__(self) -> None:
        if not (self.ones if self.kind is TargetKind.CAPTURE else self.texts) or not all(
            self.texts
        ):
            raise BadInput(f"say which {self.kind.value} is meant")

    @property
    def urls(self) -> tuple[bytes, ...]:
        """The texts as URLs, exact to the byte."""
        return tuple(text.encode("utf-8", "surrogateescape") for text in self.texts)


@dataclass
class ResolvedTarget:
    """A target in an index: which entries it takes, and what of it was found."""

    target: Target
    keys: Keys
    numbers: dict[int, set[int]] = field(default_factory=dict)  # of containers -> places of texts
    found: set[int] = field(default_factory=set)  # places of texts or captures in the target
    files: set[str] = field(default_factory=set)  # the names of those containers
    elsewhere: dict[int, str] = field(default_factory=dict)  # place of a text -> file without any

    def __post_init__(self) -> None:
        kind, urls = self.target.kind, self.target.urls
        if kind is TargetKind.CAPTURE:
            urls = tuple(one.url for one in self.target.ones)
        self._spelled = [spellings(text) for text in self.target.texts]
        self._packed = {pack(url): place for place, url in enumerate(urls)}
        self._tails = frozenset(self.keys.tail(url) for url in urls)
        self._by_url = kind in (TargetKind.URL, TargetKind.PREFIX, TargetKind.CAPTURE)
        self._ones: dict[bytes, list[tuple[int, One]]] = {}
        for place, one in enumerate(self.target.ones):
            self._ones.setdefault(pack(one.url), []).append((place, one))

    def check(self) -> None:
        """Raise `BadInput` if a file is meant that was read, but has no captures of its own."""
        for at, name in self.elsewhere.items():
            if at not in self.found:
                raise BadInput(
                    f"the index has no capture of {name} itself: rows of CDX files and crawl logs "
                    "are captures of the files that they name; give those. Nothing was purged"
                )

    def meaning(self, name: str) -> list[int]:
        """The places of the texts that mean a container."""
        return [at for at, texts in enumerate(self._spelled) if is_one_of(texts, name)]

    @property
    def anywhere(self) -> bool:
        """Whether what goes is to stay away whatever container it comes from."""
        return self._by_url

    def may_hold(self, key: bytes) -> bool:
        """Whether something under a key may go; told without looking at it."""
        if self.target.kind in (TargetKind.URL, TargetKind.CAPTURE) and self.keys.url:
            return key[DIGEST_KEY[key[0]] :] in self._tails
        return True

    def takes(self, key: bytes, entry: bytes) -> bool:
        """Whether an entry that is no mark goes; what it is found by is noted."""
        if self.target.kind is TargetKind.CAPTURE:
            return self._takes_one(key, entry)
        if self._by_url:
            return self._takes_url(packed_url(entry), entry)
        if entry[0] & 3 == NAMED and self.target.kind is TargetKind.CONTAINER:
            return False
        return self._takes_container(container_of(entry))

    def takes_dependent(self, dependent: bytes) -> bool:
        """Whether the revisit of a ledger's item, the key left out, goes itself."""
        if self.target.kind is TargetKind.CAPTURE:
            return False
        if self._by_url:
            return self.means(Dependent.of(dependent).url)
        return dependent_container(dependent) in self.numbers

    def drops(self, key: bytes, body: bytes) -> bool:
        """Whether an item of the ledger goes."""
        if body[0] == DEPENDENT:
            return self.takes_dependent(body)
        return self.may_hold(key) and self.takes(key, body)

    def means(self, url: bytes) -> bool:
        """Whether all captures of a URL go."""
        if self.target.kind is TargetKind.PREFIX:
            return url.startswith(self.target.urls)
        return self.target.kind is TargetKind.URL and pack(url) in self._packed

    def _takes_container(self, number: int) -> bool:
        places = self.numbers.get(number)
        if places is None:
            return False
        self.found |= places
        return True

    def _takes_url(self, packed: bytes, entry: bytes) -> bool:
        if self.target.kind is TargetKind.URL:
            place = self._packed.get(packed)
            if place is not None:
                self.found.add(place)
            return place is not None
        url = url_of(entry)
        places = [at for at, prefix in enumerate(self.target.urls) if url.startswith(prefix)]
        self.found.update(places)
        return bool(places)

    def _takes_one(self, key: bytes, entry: bytes) -> bool:
        rivals = self._ones.get(packed_url(entry))
        if not rivals:
            return False
        digest, taken = digest_of_key(key), False
        if entry[1] & ALSO:  # stands under a further digest; it is asked for by its own
            digest = decode(key, entry, _no_place).digest
        second = int.from_bytes(entry[2:8], "big")
        for place, one in rivals:
            if one.digest == digest and (not one.date or int(digits_of_date(one.date)) == second):
                self.found.add(place)
                taken = True
        return taken


def _no_place(number: int) -> ContainerRef:
    return NOWHERE


def chosen(target: Target, view: View, keys: Keys) -> ResolvedTarget:
    """A target in an index: containers and crawls by their numbers."""
    what = ResolvedTarget(target, keys)
    if target.kind not in (TargetKind.CONTAINER, TargetKind.CRAWL):
        return what
    for number, place in view.places():
        if target.kind is TargetKind.CRAWL:
            names = [place.crawl]
            wanted = {at for at, text in enumerate(target.texts) if text == place.crawl}
        else:
            names = _names(view, place.container)
            wanted = {at for name in names for at in what.meaning(name)}
        if wanted:
            what.numbers[number] = wanted
            what.files.update(names)
    held = set[int]().union(*what.numbers.values())
    for at, container in _registered(what, view):
        if target.kind is TargetKind.CRAWL or at in held:
            what.found.add(at)
        else:
            what.elsewhere[at] = container.name
    return what


def _names(view: View, name: str) -> list[str]:
    """A container's name, and that of the registered WACZ that it is in."""
    _, *around = files_of(name)
    return [name, *(file for file in around if view.container(file) is not None)]


def registered(what: ResolvedTarget, view: View) -> Iterable[str]:
    """The names of registered containers whose captures go."""
    known = dict.fromkeys(container.name for _, container in _registered(what, view))
    for name in known:
        if what.target.kind is TargetKind.CRAWL or name in what.files:
            yield name


def _registered(what: ResolvedTarget, view: View) -> Iterator[tuple[int, IndexedContainer]]:
    """The registered containers that a target means, with the place of each text that does."""
    if what.target.kind in (TargetKind.CONTAINER, TargetKind.CRAWL):
        for container in view.containers():
            for at in _meaning(what, container):
                yield at, container


def _meaning(what: ResolvedTarget, container: IndexedContainer) -> list[int]:
    if what.target.kind is TargetKind.CONTAINER:
        return what.meaning(container.name)
    return [at for at, text in enumerate(what.target.texts) if text == container.crawl]
