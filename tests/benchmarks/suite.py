"""What jobs share: how large they are, where their inputs lie, and the lines they give."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

import duckdb

from dedupindex.documents.generate import GeneratorOptions, generate, generate_shards
from tests.benchmarks import harvest, repeated_harvests
from tests.benchmarks.captures import (
    CDX_HEADER,
    CDX_WITH_IDS,
    Captures,
    cdx,
    cdx_with_ids,
    crawl_log,
)
from tests.benchmarks.fetching import Shape, fetch
from tests.benchmarks.measure import ROOT, Cores
from tests.benchmarks.peers import Peers

T = TypeVar("T")
INDEX, SERVE = ROOT / "bin" / "index", ROOT / "bin" / "serve"
EVERYTHING = ("--whitelist", "--mime", ".*")


@dataclass(frozen=True)
class Size:
    """How much a run does."""

    responses: int  # of the harvest
    files: int  # it lies in
    lines: int  # of CDX and crawl.log
    served: int  # captures in the index that is asked
    outback: int  # captures in OutbackCDX when it is asked
    scale: tuple[int, int]  # captures of the two builds whose rates are compared
    seconds: int  # that a load lasts
    fetched: int  # URLs of a whole crawl by warcprox
    crawled: int  # URLs of a whole crawl by Heritrix
    manifest: int  # lines to resolve
    seldom: int  # responses of a collection with few duplicates
    corpus: int  # bytes of documents
    rows: int  # of hash and path
    client: int  # lookups by the Python client
    by_wget: int  # responses of a harvest by wget
    warm: bool = True  # whether a round comes first that does not count


SIZES = {
    "tiny": Size(
        24,
        2,
        2_000,
        2_000,
        2_000,
        (1_000, 3_000),
        1,
        24,
        24,
        2_000,
        200,
        1 << 22,
        20_000,
        100,
        24,
        warm=False,
    ),
    "small": Size(
        600,
        4,
        50_000,
        200_000,
        100_000,
        (50_000, 200_000),
        2,
        400,
        1_000,
        200_000,
        6_000,
        1 << 28,
        1_000_000,
        5_000,
        1_000,
    ),  # fmt: skip
    "full": Size(
        39_000,
        8,
        1_000_000,
        10_000_000,
        1_000_000,
        (1_000_000, 10_000_000),
        8,
        11_000,
        11_000,
        50_000_000,
        110_000,
        1 << 32,
        10_000_000,
        20_000,
        13_000,
    ),
}


@dataclass(frozen=True)
class Target:
    """What a figure must reach."""

    value: float
    of: str = "ratio"  # or "ours"
    most: bool = False  # the figure must not be above it
    goal: float | None = None  # what we would like

    def met(self, line: Line) -> bool | None:
        """Whether a line reaches it; None if it cannot be told."""
        figure = line.ratio if self.of == "ratio" else line.ours
        if figure is None:
            return None
        return figure <= self.value if self.most else figure >= self.value

    def __str__(self) -> str:
        words = f"{'at most' if self.most else 'at least'} {self.value:,g}"
        return f"{words} (goal {self.goal:,g})" if self.goal else words


@dataclass
class Line:
    """One measured figure, beside its reference if there is one."""

    job: str
    unit: str
    ours: float
    beside: str = ""  # what the reference is
    reference: float | None = None
    ratio: float | None = None  # above 1: we are the better
    target: Target | None = None
    note: str = ""
    spread: tuple[float, float] | None = None  # smallest and largest of the runs

    @property
    def verdict(self) -> str:
        """What to make of it, in a word or two."""
        if self.target is None:
            return ""
        met = self.target.met(self)
        if met is None:
            return "no reference"
        return "met" if met else "MISSED"

    def __str__(self) -> str:
        reference = (
            f"{_figure(self.reference)} {self.beside}" if self.reference is not None else "-"
        )
        ratio = f"{self.ratio:.2f}" if self.ratio is not None else "-"
        columns = (
            f"{self.job:<22}",
            f"{_figure(self.ours):>11} {self.unit:<12}",
            f"{reference:<36}",
            f"{ratio:>6}",
            f"{str(self.target or ''):<24}",
            f"{self.verdict:<8}",
            self.note,
        )
        return "  ".join(columns).rstrip()


HEADING = (
    f"{'job':<22}  {'ours':>11} {'':<12}  {'reference':<36}  {'ratio':>6}  {'target':<24}  verdict"
)


def _figure(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.3g}"


class Bench:
    """One run of the suite: its size, its inputs (made once, kept), its scratch space."""

    def __init__(
        self,
        size: Size,
        directory: Path,
        peers: Path | None,
        *,
        runs: int = 3,
        captures: int | None = None,
        responses: int | None = None,
        cluster: str = "",
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.size, self.runs, self.say = size, runs, say
        self.cluster = cluster
        self.captures = captures or size.scale[1]
        self.responses = responses  # of each harvest that is repeated, if the user names it
        self.cores = Cores.here()
        self.inputs = Inputs(directory / "inputs", say)
        self.scratch = directory / "scratch"
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir(parents=True)
        self.peers = Peers(peers, self.scratch)
        self.kept: dict[str, Path] = {}  # indexes that several jobs use, by what they hold

    def interleaved(self, contenders: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
        """Run all in turn, so that a noisy moment hits all alike; a first round only warms up."""
        results: dict[str, list[T]] = {name: [] for name in contenders}
        for number in range(self.runs + self.size.warm):
            for name, contend in contenders.items():
                result = contend()
                if number >= self.size.warm:
                    results[name].append(result)
        return results

    def fresh(self, name: str) -> Path:
        """A path in the scratch space where nothing is."""
        path = self.scratch / name
        shutil.rmtree(path, ignore_errors=True)
        return path


class Inputs:
    """The files that jobs read, made when they are first wanted and then kept."""

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        self._directory, self._say = directory, say
        directory.mkdir(parents=True, exist_ok=True)

    def _made(self, name: str, make: Callable[[Path], None]) -> Path:
        path = self._directory / name
        if not path.exists():
            self._say(f"making {path}")
            beside = path.with_name(f"{name}.part")
            shutil.rmtree(beside, ignore_errors=True)
            make(beside)
            beside.rename(path)
        return path

    def harvest(self, size: Size) -> Path:
        """A directory of WARC files."""

        def make(path: Path) -> None:
            path.mkdir()
            harvest.write(path, responses=size.responses, files=size.files)

        return self._made(f"harvest-{size.responses}-{size.files}-in-order", make)

    def repeated(self, responses: int, files: int, times: int) -> Path:
        """A directory of directories of WARC files: one harvest again and again."""

        def make(path: Path) -> None:
            repeated_harvests.write(path, responses=responses, files=files, times=times)

        return self._made(f"repeated-{responses}-{files}-{times}", make)

    def fetched(self, shape: Shape, responses: int) -> Path:
        """A directory of WARC files that wget has written; raises `Missing`."""
        kind = "small" if shape.small else "static"
        name = f"fetched-{responses}-{kind}{shape.port.replace(':', '-')}-{shape.copies}"
        return self._made(name, lambda path: fetch(path, shape, responses))

    def zstd(self, harvest: Path) -> Path:
        """The files of a harvest as ``.warc.zst``."""

        def make(path: Path) -> None:
            words = [ROOT / "bin" / "convert", "--to", "zstd", harvest, "--out", path]
            subprocess.run(words, check=True, capture_output=True)

        return self._made(f"{harvest.name}-zstd", make)

    def crawled(self, crawler: str, count: int, crawl: Callable[[Path], None]) -> Path:
        """A directory of WARC files that a crawl of so many pages has written; raises `Missing`."""
        return self._made(f"crawled-{crawler}-{count}", crawl)

    def cdx(self, count: int) -> Path:
        """A CDX file of 11 columns."""
        return self._lines(f"cdx-{count}.cdx", CDX_HEADER, cdx(Captures(), 0, count))

    def table(self, count: int) -> Path:
        """The captures of `cdx` as a Parquet table with the columns of Common Crawl."""
        lines = self.cdx(count)
        return self._made(f"table-{count}.parquet", lambda path: _table(lines, path))

    def more_cdx(self, after: int, count: int) -> Path:
        """The captures that follow the first so many."""
        lines = cdx(Captures(), after, after + count)
        return self._lines(f"more-{after}-{count}.cdx", CDX_HEADER, lines)

    def cdx_with_ids(self, count: int) -> Path:
        """A CDX file with record ids, its URLs of 70 characters in the mean."""
        lines = cdx_with_ids(Captures(url_length=70), 0, count)
        return self._lines(f"ids-{count}.cdx", CDX_WITH_IDS, lines)

    def crawl_log(self, count: int) -> Path:
        """The captures of `cdx` as a crawl.log."""
        return self._lines(f"crawl-{count}.log", "", crawl_log(Captures(), 0, count))

    def manifest(self, count: int) -> Path:
        """A manifest of so many lines."""
        from tests.benchmarks.resolving import made_up  # which knows this module

        return self._made(f"manifest-{count}", lambda path: made_up(path, count))

    def seldom(self, size: Size) -> Path:
        """A directory of WARC files with few duplicates."""
        from tests.benchmarks.deduping import write_seldom  # which knows this module

        count, files = size.seldom, size.files
        return self._made(
            f"seldom-{count}-{files}",
            lambda path: write_seldom(path, responses=count, files=files),
        )

    def corpus(self, size: int) -> Path:
        """A directory of documents of about 500 KiB."""
        return self._made(f"corpus-{size}", lambda path: _corpus(path, size))

    def rows(self, count: int) -> Path:
        """A directory of shards of hashes."""
        return self._made(f"rows-{count}", lambda path: generate_shards(path, count))

    def _lines(self, name: str, header: str, lines: Iterator[bytes]) -> Path:
        def make(path: Path) -> None:
            with open(path, "wb") as stream:
                stream.write(header.encode())
                stream.writelines(lines)

        return self._made(name, make)


def _table(lines: Path, path: Path) -> None:
    with duckdb.connect() as database:
        database.execute(
            "COPY (SELECT c[1] AS url_surtkey, c[3] AS url, "
            "strptime(c[2], '%Y%m%d%H%M%S') AS fetch_time, c[5]::SMALLINT AS fetch_status, "
            "c[6] AS content_digest, c[4] AS content_mime_type, c[11] AS warc_filename, "
            "c[10]::BIGINT AS warc_record_offset, c[9]::INTEGER AS warc_record_length "
            "FROM (SELECT string_split(line, ' ') AS c FROM read_csv("
            f"'{lines}', columns = {{'line': 'VARCHAR'}}, delim = '\x1f', quote = '', "
            "escape = '', header = false, skip = 1, auto_detect = false))) "
            f"TO '{path}' (FORMAT parquet, COMPRESSION gzip)"
        )


def _corpus(path: Path, size: int) -> None:
    generate(path, GeneratorOptions(size=size))


def compare(
    job: str,
    unit: str,
    amount: float,
    ours: list[float],
    theirs: list[float] | None,
    beside: str,
    target: Target | None,
    note: str = "",
) -> Line:
    """A line of rates from seconds: `amount` done in each of the runs."""
    rates = [amount / seconds for seconds in ours]
    line = Line(job, unit, amount / median(ours), beside, target=target, note=note)
    line.spread = (min(rates), max(rates))
    if theirs:
        line.reference = amount / median(theirs)
        line.ratio = line.ours / line.reference
    return line
