"""Made-up captures by the million: as CDX lines, as crawl.log lines, and as questions to ask.

Everything follows from the seed and a capture's number, so any part can be made again without
the rest: a file, a pipe of a hundred million lines, a sample to look up. Hosts are uneven as on
the web, one URL in eight has capitals, one in fifty a percent escape (which takes the slow way
through canonicalisation), one in six a query. Digests are random: nothing is a duplicate.

    python -m tests.benchmarks.captures COUNT    writes CDX lines to stdout
"""

from __future__ import annotations

import argparse
import sys
from array import array
from base64 import b32decode
from collections.abc import Iterator
from operator import itemgetter
from random import Random
from typing import NamedTuple

BLOCK = 10_000  # captures made at once
PER_FILE = 20_000  # captures of one WARC, as their rows say
HOSTS = 2_000

CDX_HEADER = " CDX N b a m s k r M S V g\n"
CDX_WITH_IDS = " CDX N b a m s k r M S V g u\n"

_BASE32 = bytes(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[byte & 31] for byte in range(256))
_TABLE = 1 << 16  # rows of each table that lines are made of
_VOCABULARY = (
    "news article image archive report library page photo static content media list view detail "
    "index blog item category product assets about contact press search research people events "
    "history science culture politics regional download document publication gallery thumbnails"
)
_WORDS = _VOCABULARY.split()
_TLDS = ["com", "com", "com", "org", "org", "net", "de", "co.uk", "is", "fr", "pl", "info"]
_MIMES = ["text/html"] * 6 + ["image/jpeg", "image/png", "text/css", "text/javascript"]
_MIMES += ["application/json", "application/pdf"]
_ENDINGS = [".html"] * 5 + [".jpg"] * 3 + [".png", ".css", ".js", ".pdf", "/", "", "", ".php"]


class Row(NamedTuple):
    """One capture, every field as text."""

    number: int
    key: str  # urlkey
    url: str
    date: str  # 14 digits
    mime: str
    digest: str  # base32
    size: int
    offset: int


Front = tuple[str, str]  # urlkey and URL as far as the number
End = tuple[str, str, str]  # the rest of a urlkey, of a URL, the media type
Column = tuple[int, Front, End, str, str, tuple[int, int]]


class Captures:
    """A stream of captures, each at its number."""

    def __init__(self, *, seed: int = 7, url_length: int = 53) -> None:
        self.seed = seed
        rng = Random(f"{seed} {url_length}")
        tails = [_tail(rng) for _ in range(_TABLE)]
        self._ends = [
            (tail.lower(), tail, _MIMES[at % len(_MIMES)]) for at, tail in enumerate(tails)
        ]
        mean = sum(map(len, tails)) / _TABLE + 6.6  # 6.6 digits are of the number
        self._fronts = _fronts(rng, url_length - mean)
        self._dates = [_date(rng) for _ in range(_TABLE)]
        self._places = [(rng.randint(400, 90_000), rng.getrandbits(30)) for _ in range(_TABLE)]

    def columns(self, block: int) -> Iterator[Column]:
        """What the captures from number ``block * BLOCK`` on are made of.

        All that varies comes from tables, so that a pipe gets half a million lines a second.
        """
        rng = Random(f"{self.seed} block {block}")
        noise = rng.randbytes(8 * BLOCK)
        picks = [array("H", noise[at : at + 2 * BLOCK]) for at in range(0, 8 * BLOCK, 2 * BLOCK)]
        letters = rng.randbytes(32 * BLOCK).translate(_BASE32).decode()
        return zip(
            range(block * BLOCK, block * BLOCK + BLOCK),
            itemgetter(*picks[0])(self._fronts),
            itemgetter(*picks[1])(self._ends),
            itemgetter(*picks[2])(self._dates),
            [letters[at : at + 32] for at in range(0, 32 * BLOCK, 32)],
            itemgetter(*picks[3])(self._places),
            strict=True,
        )

    def rows(self, start: int, stop: int) -> Iterator[Row]:
        """Captures by their numbers."""
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            for number, front, end, date, digest, (size, offset) in self.columns(block):
                if start <= number < stop:
                    key, url = f"{front[0]}{number}{end[0]}", f"{front[1]}{number}{end[1]}"
                    yield Row(number, key, url, date, end[2], digest, size, offset)

    def sample(self, count: int, most: int) -> list[Row]:
        """Some of the first `count` captures, in no order, at most `most`."""
        starts = range(0, count, BLOCK)
        rng = Random(f"{self.seed} sample")
        chosen = rng.sample(starts, min(len(starts), 200))
        picked: list[Row] = []
        for start in chosen:
            rows = list(self.rows(start, min(start + BLOCK, count)))
            picked += rng.sample(rows, min(-(-most // len(chosen)), len(rows)))
        rng.shuffle(picked)
        return picked[:most]


def _fronts(rng: Random, length: float) -> list[Front]:
    """URL beginnings of a mean length; half of them spread evenly over hosts, half unevenly."""
    hosts = []
    for _ in range(HOSTS):
        name = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(4, 12)))
        hosts.append((rng.choice(("http://www.", "https://www.", "https://", "http://")), name))
    fronts = []
    short = 0.0  # characters missing to the mean so far
    for number in range(_TABLE):
        even = number % 2
        at = number // 2 % HOSTS if even else int(rng.paretovariate(0.6)) % HOSTS
        scheme, name = hosts[at]
        domain = f"{name}.{_TLDS[at % len(_TLDS)]}"
        wanted = length + short - len(scheme) - len(domain)
        path = _path(rng, wanted)
        short += length - len(scheme) - len(domain) - len(path)
        key = ",".join(reversed(domain.split("."))) + ")" + path.lower()
        fronts.append((key, f"{scheme}{domain}{path}"))
    return fronts


def _path(rng: Random, wanted: float) -> str:
    """A path of about that many characters that a number can follow."""
    path = "/"
    while len(path) < wanted - 4:
        path += rng.choice(_WORDS) + rng.choice("/////--_")
    if path[-1] == "/":
        path = path + rng.choice(("", "", "p-", "item-", "a"))
    if rng.random() < 0.125:
        path = path.title()
    if rng.random() < 0.02:
        path += "%C3%A9-"
    return path


def _tail(rng: Random) -> str:
    ending = rng.choice(_ENDINGS)
    if rng.random() < 1 / 6:
        ending += f"?id={rng.randint(1, 9999)}"
        if rng.random() < 0.3:
            ending += f"&lang={rng.choice(('en', 'de', 'is'))}"
    return ending


def _date(rng: Random) -> str:
    day = f"{rng.randint(2012, 2025)}{rng.randint(1, 12):02d}{rng.randint(1, 28):02d}"
    return f"{day}{rng.randint(0, 23):02d}{rng.randint(0, 59):02d}{rng.randint(0, 59):02d}"


def cdx(captures: Captures, start: int, stop: int) -> Iterator[bytes]:
    """11 columns without header, some thousands of lines at a time."""
    for first in range(start - start % BLOCK, stop, BLOCK):
        tail = f"WEB-{first // PER_FILE:05d}.warc.gz\n"
        lines = [
            f"{front[0]}{number}{end[0]} {date} {front[1]}{number}{end[1]} {end[2]} 200 {digest} "
            f"- - {place[0]} {place[1]} {tail}"
            for number, front, end, date, digest, place in captures.columns(first // BLOCK)
        ]
        yield "".join(lines[max(start - first, 0) : stop - first]).encode()


def cdx_with_ids(captures: Captures, start: int, stop: int) -> Iterator[bytes]:
    """12 columns, the last a record id; the header is `CDX_WITH_IDS`."""
    for row in captures.rows(start, stop):
        text = b32decode(row.digest).hex()
        uuid = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"
        yield (
            f"{row.key} {row.date} {row.url} {row.mime} 200 {row.digest} - - {row.size} "
            f"{row.offset} WEB-{row.number // PER_FILE:05d}.warc.gz <urn:uuid:{uuid}>\n"
        ).encode()


def crawl_log(captures: Captures, start: int, stop: int) -> Iterator[bytes]:
    """Lines as Heritrix writes them: 12 columns."""
    for number, _, url, date, mime, digest, size, _ in captures.rows(start, stop):
        yield (
            f"{date[:4]}-{date[4:6]}-{date[6:8]}T{date[8:10]}:{date[10:12]}:{date[12:]}.417Z   200 "
            f"{size:10d} {url} LLE {url[: url.find('/', 9)]}/ {mime} #{number % 300:03d} "
            f"{date}093+{size % 997} sha1:{digest} - -\n"
        ).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description="Write made-up captures as CDX lines.")
    parser.add_argument("count", type=int)
    parser.add_argument("--url-length", type=int, default=53, help="mean, in characters")
    arguments = parser.parse_args()
    sys.stdout.write(CDX_HEADER)
    sys.stdout.flush()
    for block in cdx(Captures(url_length=arguments.url_length), 0, arguments.count):
        sys.stdout.buffer.write(block)


if __name__ == "__main__":
    main()
