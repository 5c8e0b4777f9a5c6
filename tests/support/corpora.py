"""Small archives for the tests of corpora: WARC files and their CDX."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dedupindex.urlkey import urlkey
from tests.support.warc_cases import HTTP, gz, record, response, revisit, sha1


def html(title: str, text: str = "some text") -> bytes:
    return f"<!doctype html><title>{title}</title><p>{text}</p>".encode()


@dataclass
class Page:
    """One capture; `of` makes it a revisit of another."""

    url: str
    day: int = 1  # of November 2026
    body: bytes = b""
    mime: str = "text/html"
    status: int = 200
    file: str = "a.warc.gz"
    of: Page | None = None
    fields: dict[str, Any] = field(default_factory=dict)  # of the record
    head: bytes = b""  # in the place of the usual HTTP header
    offset: int = -1
    stored: bytes = b""

    @property
    def timestamp(self) -> str:
        return f"202611{self.day:02d}091417"

    @property
    def date(self) -> bytes:
        return b"2026-11-%02dT09:14:17Z" % self.day

    @property
    def digest(self) -> str:
        body = self.of.body if self.of else self.body
        return sha1(body).decode().removeprefix("sha1:")

    def record(self, number: int) -> bytes:
        head = self.head or HTTP.replace(b"200 OK", b"%d X" % self.status).replace(
            b"text/html; charset=utf-8", self.mime.encode()
        )
        usual: dict[str, Any] = {
            "Target_URI": self.url.encode(), "Date": self.date, "number": number, **self.fields
        }  # fmt: skip
        if self.of is None:
            return response(self.body, head=head, **usual)
        named = {
            "Payload_Digest": sha1(self.of.body),
            "Refers_To_Target_URI": self.of.url.encode(),
            "Refers_To_Date": self.of.date,
        }
        return revisit(head, **{**named, **usual})

    def cdx(self) -> str:
        mime = self.mime if self.of is None else "warc/revisit"
        status = str(self.status) if self.of is None else "-"
        key = urlkey(self.url.encode()).decode()
        return (
            f"{key} {self.timestamp} {self.url} {mime} {status} {self.digest} - - "
            f"{len(self.stored)} {self.offset} {self.file}\n"
        )


HEADER = " CDX N b a m s k r M S V g\n"


def archive(folder: Path, *pages: Page, cdx: str = "all.cdx") -> Path:
    """Write the WARC files of some captures, with requests between them, and their CDX."""
    folder.mkdir(exist_ok=True)
    files: dict[str, bytes] = {}
    for number, page in enumerate(pages, 1):
        pack = gz if page.file.endswith(".gz") else bytes
        page.stored = pack(page.record(number))
        before = files.get(page.file, pack(record(b"warcinfo", b"x: y\r\n", Target_URI=None)))
        before += pack(record(b"request", b"GET / HTTP/1.1\r\n\r\n", number=1000 + number))
        page.offset = len(before)
        files[page.file] = before + page.stored
    for name, data in files.items():
        (folder / name).write_bytes(data)
    path = folder / cdx
    path.write_text(HEADER + "".join(sorted(page.cdx() for page in pages)))
    return path
