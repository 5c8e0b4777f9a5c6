"""Data frames of real Polars, pandas and PySpark, and RDDs, hold what the corpus yields."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.peers.environments import DEADLINE, ROOT, environment
from tests.peers.spark import spark
from tests.support.corpora import Page, archive, html

pytestmark = pytest.mark.peer

_CORPUS = """
import json, sys
from dedupindex.corpus import Corpus
corpus = Corpus.from_cdx(sys.argv[1]).enrich("html.title", "html.links")
corpus = corpus.map("payload.string.text", "words", lambda text: len(text.split()))
"""


def ran(code: str, cdx: Path, env: dict[str, str]) -> Any:
    """What a program prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", _CORPUS + code, cdx], env=env, capture_output=True, text=True,
        timeout=DEADLINE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def collection(folder: Path) -> Path:
    one = Page("http://a.org/", 1, html("é", "<a href=/x>link</a> two words"))
    pages = [Page(f"http://b.org/{n}", 2, html(f"t{n}", "x " * n)) for n in range(30)]
    image = Page("http://a.org/i.png", 3, b"\x89PNG\r\n\x1a\n", "image/png")
    return archive(folder, one, Page("http://a.org/again", 4, of=one), image, *pages)


@pytest.mark.parametrize("library", ["polars", "pandas"])
def test_a_data_frame(tmp_path: Path, library: str) -> None:
    home = environment(library, (f"{library}>=2" if library == "pandas" else f"{library}>=1",))
    (packages,) = (home.parent / "lib").glob("python*/site-packages")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(packages)])}
    code = f"""
frame = corpus.to_dataframe("{library}")
assert type(frame).__module__.startswith("{library}"), type(frame)
assert type(corpus.where("status == 200").to_dataframe()) is type(frame)
titles = [one if isinstance(one, str) else None for one in frame["payload.string.html.title"]]
counts = frame["payload.string.text.words"].astype("Int64") if "{library}" == "pandas" else (
    frame["payload.string.text.words"])
words = [int(word) if str(word).isdigit() else None for word in counts]
print(json.dumps([list(frame.columns), len(frame), titles, words]))
"""
    columns, length, titles, words = ran(code, collection(tmp_path), env)
    assert length == 33
    assert columns[:3] == ["surtUrl", "timestamp", "originalUrl"]
    assert titles[:2] == ["é", "é"]
    assert words[:2] == [3, 3]
    assert titles[2] is None and words[2] is None
    assert words[3:] == list(range(30))


def test_an_rdd_and_a_data_frame_of_spark(tmp_path: Path) -> None:
    code = """
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rdd = corpus.to_rdd(session.sparkContext)
assert rdd.getNumPartitions() > 2
assert rdd.collect() == list(corpus)
assert rdd.count() == 33
frame = corpus.to_dataframe(spark=session)
rows = frame.select("record.originalUrl", "payload.string.html.title").collect()
total = frame.selectExpr("sum(payload.string.text.words)").collect()[0][0]
try:
    corpus.filter("record").latest("url").to_rdd(session.sparkContext)
except Exception as error:
    refused = str(error)
print(json.dumps([[list(row) for row in rows], total, refused]))
"""
    rows, total, refused = ran(code, collection(tmp_path), spark())
    assert len(rows) == 33
    assert ["http://a.org/again", "é"] in rows
    assert total == 3 + 3 + sum(range(30))
    assert "an RDD has no latest" in refused
