"""Every kind of source keeps to what `conformance` checks, and what does not is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from dedupindex.capture import Item, Refusal
from dedupindex.sources import KINDS, Source, open_source
from dedupindex.sources.conformance import NotConforming, check_source
from tests.support.outbackcdx_model import outbackcdx_model, row
from tests.support.paths import DATA
from tests.support.tables import ROW, damage_group, write_table
from tests.support.text_sources import BASE32
from tests.support.warcprox_databases import USUAL, make_database

Sample = Callable[[Path], AbstractContextManager[str]]


def _file(name: str) -> Sample:
    return lambda folder: nullcontext(str(DATA / name))


def _wacz(folder: Path) -> AbstractContextManager[str]:
    path = folder / "x.wacz"
    with ZipFile(path, "w") as container:
        container.write(DATA / "warc" / "example.warc.gz", "archive/example.warc.gz")
    return nullcontext(str(path))


def _parquet(folder: Path) -> AbstractContextManager[str]:
    changes: list[dict[str, Any]] = [
        {}, {"url": "dns:a"}, {"content_mime_type": "warc/revisit"}, {"fetch_time": None},
        {"warc_record_offset": -1}, {"content_truncated": "length"}, {"fetch_status": 404},
    ]  # fmt: skip
    rows = [ROW | change for change in changes for _ in range(600)]
    return nullcontext(str(write_table(folder / "x.parquet", rows, group=2048)))


def _damaged_parquet(folder: Path) -> AbstractContextManager[str]:
    path = write_table(folder / "x.parquet", [ROW] * 3 * 2048, group=2048)
    damage_group(path, 1)
    return nullcontext(str(path))


def _warcprox(folder: Path) -> AbstractContextManager[str]:
    return nullcontext(make_database(folder / "warcprox.sqlite", [*USUAL, ("x|", "{}")]))


@contextmanager
def _outbackcdx(folder: Path) -> Iterator[str]:
    usual = {"digest": BASE32, "url": "http://a.com/", "filename": "x.warc.gz", "status": "200"}
    lines = [row("com,a)/", 20200101000000 + second, **usual) for second in range(9)]
    with outbackcdx_model([*lines, row("com,b)/", 20200101000000)], cap=4) as (address, _):
        yield address


SAMPLES: dict[str, list[Sample]] = {  # of each kind
    "warc": [_file("warc/example.warc.gz"), _file("warc/warcfile.warc.gz")],
    "arc": [_file("warc/example.arc.gz")],
    "wacz": [_wacz],
    "cdx": [_file("text/usual-11.cdx"), _file("text/two-layouts.cdx"), _file("text/wget.cdx")],
    "cdxj": [_file("text/pywb.cdxj"), _file("text/cdxj-indexer.cdxj")],
    "crawllog": [_file("text/heritrix.log"), _file("text/deduplicator.log")],
    "parquet": [_parquet, _damaged_parquet],
    "outbackcdx": [_outbackcdx],
    "warcprox": [_warcprox],
}
NEEDS_A_REDIS = {"browsertrix"}  # tests/peers/test_browsertrix.py


def test_every_kind_has_a_sample() -> None:
    assert SAMPLES.keys() | NEEDS_A_REDIS == set(KINDS)


@pytest.mark.parametrize(
    ("kind", "sample"), [(kind, sample) for kind, found in SAMPLES.items() for sample in found]
)
def test_every_kind_conforms(kind: str, sample: Sample, tmp_path: Path) -> None:
    with sample(tmp_path) as path:
        assert check_source(lambda: open_source(path))
        assert check_source(lambda: open_source(path, kind))


class Odd(Source):
    """A source with one fault."""

    def __init__(self, fault: str, opened: int) -> None:
        super().__init__("" if fault == "name" else "odd", 2)
        self.fault, self.opened = fault, opened
        self._position = 0

    @property
    def position(self) -> int:
        return self._position

    def items(self) -> Iterator[Item]:
        self._position = 2
        yield Refusal(f"no-{self.opened}" if self.fault == "items" else "no")
        self._position = 1 if self.fault in ("goes back", "ends at 1") else 2
        if self.fault != "ends at 1":
            yield Refusal("no")
        self.changed = self.fault == "changed"
        first = "0" if self.fault != "content hash when it is read again" else str(self.opened % 10)
        self.content_hash = "x" if self.fault == "no BLAKE3" else first * 64

    def batches(self) -> Iterator[list[Item]]:
        yield list(self.items())[: 1 if self.fault == "batches" else 2]


@pytest.mark.parametrize(
    "fault",
    [
        "name", "items", "goes back", "ends at 1", "changed", "no BLAKE3", "batches",
        "content hash when it is read again",
    ],
)  # fmt: skip
def test_a_fault_is_found(fault: str) -> None:
    opened: list[Odd] = []

    def open_again() -> Odd:
        opened.append(Odd(fault, len(opened)))
        return opened[-1]

    with pytest.raises(NotConforming, match=fault):
        check_source(open_again)
    fault = ""
    assert len(check_source(open_again)) == 2
