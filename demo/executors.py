"""Two executors of Apache Spark and an object store on this machine: a part of `demo.cluster`.

PySpark comes from PyPI into a directory of its own: half a gigabyte that nothing else needs.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from demo.harvest import await_second_after, harvest, now
from demo.nodes import PEERS, Missing
from demo.site import Page, hosted
from demo.steps import product, step

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements-spark.lock"
MASTER = "local-cluster[2,1,1024]"  # two executors, each a process of its own with a core
BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # half the time of what lives for a minute
BUCKET = "archive"


def spark_environment(directory: Path = PEERS) -> dict[str, str]:
    """Return the environment of a process that finds PySpark, fetched once; raises `Missing`."""
    if shutil.which("java") is None:
        raise Missing("java", "apt install openjdk-17-jre-headless")
    directory.mkdir(exist_ok=True)
    home = directory / "spark"
    with open(directory / ".spark.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # others may want it, too
        _fetch(home)
    paths = [str(home), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "JAVA_TOOL_OPTIONS": BRIEF}


def _fetch(home: Path) -> None:
    stamp = home / "packages.txt"
    if stamp.exists() and stamp.read_text() == LOCK.read_text():
        return
    shutil.rmtree(home, ignore_errors=True)
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(home)]
    words += ["--require-hashes", "--no-build-isolation", "-r", str(LOCK)]
    env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=env)
    if done.returncode:
        raise Missing("Spark (from PyPI)", f"pip: {' '.join(done.stderr.split())[-300:]}")
    stamp.write_text(LOCK.read_text())


@contextmanager
def s3_server(files: Mapping[str, Path]) -> Iterator[dict[str, str]]:
    """Run an S3 server (moto) with a bucket of files; give the environment of its clients."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    try:
        host, port = moto.get_host_and_port()
        url = f"http://{host}:{port}"
        keys = {"aws_access_key_id": "demo", "aws_secret_access_key": "demo"}
        client: Any = boto3.client("s3", endpoint_url=url, region_name="us-east-1", **keys)
        client.create_bucket(Bucket=BUCKET)
        for key, path in files.items():
            client.put_object(Bucket=BUCKET, Key=key, Body=path.read_bytes())
        yield {
            **{name.upper(): value for name, value in keys.items()},
            "AWS_ENDPOINT_URL": url,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        moto.stop()


def rewritten(pages: dict[str, Page], out: Path) -> list[str]:
    """Harvest pages twice as crawlers without deduplication do, and make them smaller in a store.

    Returns what is wrong, as sentences. Raises `nodes.Missing`.
    """
    names = ("harvest-1.warc.gz", "harvest-2.warc.gz")
    files = {f"warcs/{name}": out / name for name in names}
    with hosted(pages) as port:
        harvest(pages, port, out / names[0])
        await_second_after(now())
        harvest(pages, port, out / names[1])
    source, target, state = f"s3://{BUCKET}/warcs/", f"s3://{BUCKET}/smaller", out / "state"
    words = [source, "--out", target, "--state", state, "--spark", MASTER]
    step(f"8. bin/dedup {' '.join(map(str, words))}")
    print("   an archive of two harvests without deduplication, in an object store;")
    print("   two executors read and write it. PySpark comes from PyPI (the first time)")
    with s3_server(files) as store:
        env = {**store, **spark_environment()}
        report = json.loads(product("dedup", *words, "--json", **env))
        print(f"   {report['bytes_before']:,} bytes before, {report['bytes_after']:,} after;")
        print(f"   {report['revisits']} responses have become revisits")
        compared = json.loads(product("verify", "--against", source, target, "--json", **env))
        rebuilt = compared["revisits_rebuilt"]
        print(f"   bin/verify --against {source} {target}: {rebuilt} revisits rebuilt")
    expected = {
        "responses that became revisits": (report["revisits"], len(pages)),
        "revisits rebuilt from their originals": (rebuilt, len(pages)),
    }
    return [f"{what}: {a}, not {b}" for what, (a, b) in expected.items() if a != b]
