"""Payload digests of stored bodies, and which bytes a stated digest covers.

Some tools hash the body as stored, chunk framing included, others the entity (RFC 9112 section
7.1). If they differ, both are computed in one pass, and the value of the stated digest decides.
"""

from __future__ import annotations

from collections.abc import Iterable

from dedupindex.capture import Covers
from dedupindex.digest import EMPTY, Digest, Hash, cut_at_zero, new_hash
from dedupindex.warc.http import Dechunker


class Hashes:
    """Running hashes of one body in several algorithms."""

    def __init__(self, algorithms: Iterable[str]) -> None:
        self.length = 0
        self._running: dict[str, Hash] = {name: new_hash(name) for name in algorithms}

    def update(self, data: bytes | memoryview) -> None:
        self.length += len(data)
        for running in self._running.values():
            running.update(data)

    def digests(self) -> list[Digest]:
        return [Digest(name, running.digest()) for name, running in self._running.items()]


class Payload:
    """The digests of one stored body, fed piece by piece.

    `coding` is its Transfer-Encoding in lower case. Only ``chunked`` can be decoded; the entity of
    a body with another coding is unknown.
    """

    def __init__(self, algorithm: str, also: Iterable[str], coding: bytes) -> None:
        algorithms = (algorithm, *[name for name in also if name != algorithm])
        self.stored = Hashes(algorithms)
        self._coded = bool(coding)
        self._entity = Hashes(algorithms) if coding == b"chunked" else None
        self._dechunker = Dechunker()

    def update(self, data: bytes | memoryview) -> None:
        self.stored.update(data)
        if self._entity is not None:
            for piece in self._dechunker.feed(data):
                self._entity.update(piece)

    @property
    def empty(self) -> bool:
        """Whether the body or, if it is chunked, its entity has no bytes."""
        entity = self._entity
        chunks_of_nothing = entity is not None and not entity.length and self._dechunker.complete
        return not self.stored.length or chunks_of_nothing

    def match(self, stated: Digest | None) -> tuple[Covers, list[Digest]] | None:
        """Return what `stated` covers and the digests of those bytes, its own first.

        Without a stated digest these are the digests of the stored body. None if `stated` is the
        digest of other bytes.
        """
        digests = self.stored.digests()
        if stated is None or digests[0] == stated:
            return Covers.STORED if self._coded else Covers.BOTH, digests
        if self._entity is not None and self._dechunker.complete:
            digests = self._entity.digests()
            if digests[0] == stated and stated not in EMPTY:
                return Covers.ENTITY, digests
        return None

    def was_cut(self, stated: Digest | None) -> bool:
        """Return whether `stated` is a digest of this body, cut at a zero byte by its writer."""
        if stated is None:
            return False
        hashes = [self.stored]
        if self._entity is not None and self._dechunker.complete:
            hashes.append(self._entity)
        true = [running.digests()[0] for running in hashes]
        return stated not in true and any(
            stated == digest._replace(raw=cut_at_zero(digest.raw)) for digest in true
        )
