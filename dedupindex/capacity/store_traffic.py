"""Estimate the requests and bytes of each run over an archive in an object store."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import cached_property
from math import ceil, log2

from dedupindex.capacity.rates import Table

_OPEN = 64  # files with originals that are open at the same time
_TRIED = 6  # PUTs, parts and POSTs with which a run tries the store of its results
_FEED = 1 << 14  # bytes that a reader reads beyond a record, on average


@dataclass(frozen=True)
class StoreTraffic:
    """What a step or a run sends to a store, and gets from it."""

    bytes_read: float
    bytes_written: float
    gets: float
    heads: float
    lists: float
    puts: float  # also parts of uploads, and what begins and ends those

    @property
    def reads(self) -> float:
        """GETs and HEADs, which have one price, and one limit."""
        return self.gets + self.heads

    def __add__(self, other: StoreTraffic) -> StoreTraffic:
        sums = map(sum, zip(astuple(self), astuple(other), strict=True))
        return StoreTraffic(*sums)

    def cost(self, prices: Table) -> float:
        """Return dollars."""
        by_price = {"gets": self.reads, "lists": self.lists, "puts": self.puts}
        return sum(
            count * float(prices[f"price_per_1000_{kind}"]) / 1000
            for kind, count in by_price.items()
        )


class StoredArchive:
    """WARC files in a store, of one size, and the duplicates in them.

    The originals of the duplicates of a file are in other files, drawn at random; if there is only
    one file, they are in that.
    """

    def __init__(self, size: float, inputs: Table) -> None:
        """`size` is in bytes."""
        self.rates, self.prices = inputs["post_crawl"], inputs["documents"]
        rates = self.rates
        self.size = size
        self._first, self._most = float(rates["bytes_per_first_get"]), float(rates["bytes_per_get"])
        self.captures = float(size / rates["bytes_per_capture"])
        self.files = max(float(size / rates["bytes_per_file"]), 1.0)
        self.per_file = size / self.files
        self.saved = float(size * rates["bytes_saved"])
        self.written = size - self.saved
        self.result = self.written / self.files  # bytes of each
        self.copies = self.captures * float(rates["duplicates"]) if self.files > 1 else 0.0
        self.others_read = self.saved if self.files > 1 else 0.0  # an original is as large

    @cached_property
    def pairs(self) -> float:
        """The pairs of a file and another with originals of it, as expected at random."""
        others = self.files - 1
        if not self.copies:
            return 0.0
        each = self.copies / self.files
        if others <= 1:
            return self.files * others * min(each, 1.0)
        occupied = float(1 - (1 - 1 / others) ** each)
        return min(self.files * others * occupied, self.copies)

    @cached_property
    def openings(self) -> float:
        """How often a file with originals is opened, beside that with the copies.

        Those that were used last stay open.
        """
        others = self.files - 1
        missed = 1 - _OPEN / others if others > _OPEN else 0.0
        return max(self.pairs, self.copies * missed)

    def manifest(self) -> StoreTraffic:
        """Each file is recognised by its first block, and then read; also by ``bin/index``."""
        first = min(self.per_file, self._first)
        return self._of_files(
            "manifest", self.size + self.files * first, self._scanned(self.per_file)
        )

    def compare(self) -> StoreTraffic:
        """What a dry run does after the manifest: what rewriting reads before it writes."""
        return self._compared("dry_run")

    def rewrite(self) -> StoreTraffic:
        """The store is tried; each file is read, its originals, and then the result of it."""
        back = StoreTraffic(
            self.written, self.written, self.files * self._whole(self.result), 0, 0,
            self.files * self._puts(self.result) + _TRIED,
        )  # fmt: skip
        return self._compared("rewrite") + back

    def verify(self) -> StoreTraffic:
        """The archive and the result are read, and blocks around originals in other results."""
        scans = self._scanned(self.per_file) + self._scanned(self.result)
        found = self._of_files("verify", self.size + self.written, scans)
        originals = StoreTraffic(0, 0, 0, min(self.files, self.pairs), 0, 0)
        return found + originals + self._blocks_of_originals()

    def verify_again(self) -> StoreTraffic:
        """``bin/verify --against`` has no plan: it reads the results once more.

        It looks at each revisit again there, which begins new requests: about one for each, and
        the two blocks that were read ahead are read again.
        """
        blocks = ceil(self.result / self._first)
        again = max(min(self.copies / self.files, blocks - 1), 0)
        scans = self._scanned(self.per_file) + 2 * self._scanned(self.result) + again
        count = self.size + 2 * self.written + self.files * again * 2 * self._first
        found = self._of_files("verify_again", count, scans)
        return found + StoreTraffic(0, 0, 0, self.openings, 0, 0) + self._blocks_of_originals()

    def undo(self) -> StoreTraffic:
        """``bin/undedup`` into a store: results and originals are read, and what was written."""
        wholes = self._whole(self.result) + self._whole(self.per_file)
        found = self._of_files("undo", self.written + self.size, wholes)
        puts = self.files * self._puts(self.per_file) + _TRIED
        written = StoreTraffic(0, self.size, 0, 0, 0, puts)
        return found + written + self._originals(self.openings)

    def _compared(self, run: str) -> StoreTraffic:
        return self._of_files(run, self.size, self._whole(self.per_file)) + self._originals(
            self.pairs
        )

    def _of_files(self, run: str, count: float, gets: float) -> StoreTraffic:
        """Return the traffic to read `count` bytes with `gets` requests for each file.

        The fixed requests of a file are added, and those that list all files.
        """
        fixed = self.rates["per_file"][run]
        pages = ceil(self.files / self.prices["documents_per_list"])
        return StoreTraffic(
            count, 0, self.files * (gets + fixed["gets"]), self.files * fixed["heads"],
            self.files * fixed["lists"] + fixed["listings"] * pages, 0,
        )  # fmt: skip

    def _originals(self, heads: float) -> StoreTraffic:
        """Each is one request."""
        return StoreTraffic(self.others_read, 0, self.copies, heads, 0, 0)

    def _blocks_of_originals(self) -> StoreTraffic:
        """The first block of a file is read, and those with its originals, but none twice."""
        if not self.openings:
            return StoreTraffic(0, 0, 0, 0, 0, 0)
        each = self.copies / self.openings  # originals in a file that is opened
        gets, count = self._scattered(self.per_file * self.files / self.captures)
        first = self._first
        gets = min(1 + each * gets, ceil(self.result / first))
        count = min(first + each * count, self.result)
        return StoreTraffic(self.openings * count, 0, self.openings * gets, 0, 0, 0)

    def _scattered(self, size: float) -> tuple[float, float]:
        """Return requests and bytes for an original of `size` bytes, which begins anywhere.

        A block is requested first, then twice as many each time.
        """
        first, most = self._first, self._most
        needed, covered, length = (size + _FEED) / first, 1.0, 1.0  # blocks
        gets, count = 1.0, 1.0
        while (share := min(needed - covered + 1, 1.0)) > 0:  # how many need another request
            length = max(min(2 * length, most // first), 1.0)
            gets, count, covered = gets + share, count + share * length, covered + length
        return gets, count * first

    def _puts(self, size: float) -> int:
        """Return the requests to write an object; two of them begin and complete an upload."""
        part = float(self.rates["bytes_per_put"])
        return ceil(size / part) + 2 if size >= 2 * part else 1

    def _whole(self, size: float) -> float:
        """Return the requests for an object that is known to be read whole."""
        return ceil(size / self._most)

    def _scanned(self, size: float) -> float:
        """Return the requests for an object that is read in order: each asks for twice as much."""
        first, most = self._first, self._most
        ramp = ceil(log2(most / first)) if most > first else 0
        ramped = first * float(2**ramp - 1)
        if size <= ramped:
            return ceil(log2(size / first + 1))
        return ramp + ceil((size - ramped) / most)
