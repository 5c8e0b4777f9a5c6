"""What metadata first is measured against: all records are read, and each is looked at.

    python -m tests.benchmarks.plain [--spark MASTER] WANTED FILE...

WANTED is a JSON object: url, host, month (``202211``), html, digits (of which the digest begins
with one), latest. Prints a JSON object with count and sum of what was found: URL, time and title.
warcio reads, and the title is taken by what bin/corpus takes it with: only reading differs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from hashlib import blake2b
from multiprocessing import Pool
from typing import Any
from urllib.parse import urlsplit

from warcio.archiveiterator import ArchiveIterator

from dedupindex.corpus import html_text

Found = tuple[str, str, str]  # URL, 14 digits, title


def scan(wanted: dict[str, Any], path: str) -> list[Found]:
    """What is wanted of a file."""
    found = []
    with open(path, "rb") as stream:
        for record in ArchiveIterator(stream):
            if record.rec_type == "response" and _is_wanted(wanted, record):
                url = record.rec_headers.get_header("WARC-Target-URI")
                date = record.rec_headers.get_header("WARC-Date")
                digits = "".join(filter(str.isdigit, date))[:14]
                found.append((url, digits, _title(record)))
    return found


def _is_wanted(wanted: dict[str, Any], record: Any) -> bool:
    headers, answer = record.rec_headers, record.http_headers
    url, date = headers.get_header("WARC-Target-URI"), headers.get_header("WARC-Date")
    digest = headers.get_header("WARC-Payload-Digest").removeprefix("sha1:")
    mime = (answer.get_header("Content-Type") or "").partition(";")[0].strip().lower()
    return (
        wanted.get("url", url) == url
        and wanted.get("host", "") in ("", urlsplit(url).hostname)
        and date[:7].replace("-", "").startswith(wanted.get("month", ""))
        and (not wanted.get("html") or (mime == "text/html" and answer.get_statuscode() == "200"))
        and (not wanted.get("digits") or digest[0] in wanted["digits"])
    )


def _title(record: Any) -> str:
    stated = record.http_headers.get_header("Content-Type") or ""
    content = record.content_stream().read()
    found = html_text.sniff_mime(content)
    text = html_text.text_of(content, stated, found)
    if text is None or not html_text.is_html(stated.partition(";")[0].strip().lower(), found):
        return ""
    return html_text.title(html_text.parsed(text)) or ""


def checksum(found: Iterable[Found], *, latest: bool) -> dict[str, Any]:
    """Count and sum, whatever the order."""
    rows = sorted(found)
    if latest:
        rows = sorted({url: (url, *rest) for url, *rest in rows}.values())
    return {"count": len(rows), "sum": blake2b(json.dumps(rows).encode()).hexdigest()}


def _on_spark(master: str, wanted: dict[str, Any], paths: list[str]) -> Iterator[Found]:
    from pyspark import SparkConf, SparkContext

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # which has warcio
    conf = SparkConf().setMaster(master).set("spark.ui.enabled", "false")
    context = SparkContext(conf=conf)
    try:
        yield from context.parallelize(paths, len(paths)).flatMap(partial(scan, wanted)).collect()
    finally:
        context.stop()


def main() -> None:
    words = sys.argv[1:]
    master = words[1] if words[0] == "--spark" else ""
    text, *paths = words[2:] if master else words
    wanted = json.loads(text)
    if master:
        found = list(_on_spark(master, wanted, paths))
    else:
        with Pool(2) as pool:
            found = [one for some in pool.map(partial(scan, wanted), paths, 1) for one in some]
    print(json.dumps(checksum(found, latest=bool(wanted.get("latest")))))


if __name__ == "__main__":
    main()
