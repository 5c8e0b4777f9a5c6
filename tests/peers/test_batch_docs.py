"""What docs/batch.md and docs/scale.md type for a cluster of one's own: a standalone Spark.

A master and two workers run as the page starts them, each in a process of its own, and the
commands read and write a real object store. Elsewhere tests use Spark's `local-cluster`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from random import Random

import pytest

from demo.executors import s3_server
from demo.steps import free_port
from tests.peers.environments import ROOT
from tests.peers.spark import spark
from tests.support.stores import web
from tests.unit.post_crawl.test_index_originals import write

pytestmark = pytest.mark.peer
DATA = ROOT / "tests/data/warc"
ARCHIVE = {  # a file twice is an archive with duplicates
    "a/example.warc.gz": DATA / "example.warc.gz",
    "b/warcfile.warc.gz": DATA / "warcfile.warc.gz",
    "b/again.warc.gz": DATA / "example.warc.gz",
}
PREFIXES = ("crawl-2026", "warcs", "of-scale/warcs")
READY = "registered with master"  # a worker's log says so


def shown(page: str, begin: str, end: str) -> list[str]:
    part = (ROOT / "docs" / page).read_text().split(begin)[1].split(end)[0]
    return re.findall(r"^    ((?:bin/|export |\$SPARK_HOME).*)$", part, re.MULTILINE)


def here(line: str, master: str, site: str) -> str:
    """A line with the names that it has on this machine."""
    host, port = master.removeprefix("spark://").split(":")
    for name, ours in (
        ("--host master.example.org --port 7077", f"--host {host} --port {port}"),
        ("spark://master.example.org:7077", master),
        ("--spark yarn", f"--spark {master}"),  # there is no Hadoop here
        ("https://store.example.org", site),
        ("s3://bucket/", "s3://archive/of-scale/"),
        ("/data/state", "data/state"),
        ("/scratch", "~/scratch"),
        ("--sample 2%", "--sample 70%"),  # two percent of three files are none
    ):
        line = line.replace(name, ours)
    return line


def test_each_command_works_as_typed(tmp_path: Path) -> None:
    environment = spark()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / "bin").symlink_to(ROOT / "bin")
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    for folder in ("scratch", "store/warcs", "data"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(DATA / "example.warc.gz", tmp_path / "store/warcs")
    with zipfile.ZipFile(tmp_path / "store/crawl.wacz", "w") as packed:
        packed.write(DATA / "warcfile.warc.gz", "archive/warcfile.warc.gz")
        packed.writestr("datapackage.json", "{}")

    begun = shown("batch.md", "### A cluster of your own\n", "And the command, on the driver:")
    setup, home, master, *worker = begun
    assert setup == "bin/setup remote spark" and "worker.Worker" in worker[-1]
    remote = shown("batch.md", "## Remote sources\n", "## On Apache Spark\n")
    on_spark = shown("batch.md", "## On Apache Spark\n", "### Loading into Cassandra\n")
    again = shown("batch.md", "And the command, on the driver:", "* **Executors")
    large = shown("scale.md", "## Rewriting a petabyte of WARC files\n", "### Without Spark\n")
    scale = (ROOT / "docs/scale.md").read_text()
    verify = re.findall(r"`(bin/verify --against s3:[^`]+ --spark [^`]+)`", scale)
    typed = [*remote, *on_spark, *again, *large, *verify]
    assert (len(remote), len(on_spark), len(again), len(large), len(verify)) == (4, 4, 1, 4, 1)

    where = f"spark://127.0.0.1:{free_port()}"
    keys = [line for line in worker if "AWS_" in line]  # the store's are in the environment
    rooms = [line for line in worker if line.startswith("export") and line not in keys]
    assert (len(keys), len(rooms)) == (2, 1)
    script = ["trap 'kill $(jobs -p) 2>/dev/null || :' EXIT", home, f"{master} 2>master &"]
    script += [f"({rooms[0]}; exec {worker[-1]}) 2>worker-{number} &" for number in (1, 2)]
    for n in (1, 2):
        script.append(
            f"for _ in {{1..1200}}; do grep -qs '{READY}' worker-{n} && break; sleep 0.1; done"
        )
        script.append(f"grep '{READY}' worker-{n}")
    for line in typed:
        if line != setup:
            script += ["rm -rf my-index"] if re.search("bin/index s3:.* my-index", line) else []
            if "--instead-of" in line:  # of an index that was made before
                script += ["rm -rf my-index", "bin/index --all s3://bucket/warcs/ my-index"]
            script.append(line)
    files = {f"{prefix}/{name}": path for prefix in PREFIXES for name, path in ARCHIVE.items()}
    with web(tmp_path / "store") as site, s3_server(files) as store:
        whole = "\n".join(here(line, where, site.url) for line in script)
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", whole],
            cwd=tmp_path,
            env={**environment, **store, "HOME": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
        )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    commands = [line for line in typed if "spark://" in line or line.endswith("yarn")]
    applications = list((tmp_path / "scratch/work").glob("app-*"))
    assert len(applications) >= len(commands)
    for application in applications:  # both workers worked, and left nothing behind
        assert {"0", "1"} <= set(os.listdir(application))
    assert not list(tmp_path.glob("scratch/dedupindex-*")), os.listdir(tmp_path / "scratch")


def test_each_host_rewrites_and_restores_its_own_files(tmp_path: Path) -> None:
    """The commands for three hosts without Spark, with nothing but the store in common."""
    (tmp_path / "bin").symlink_to(ROOT / "bin")
    pages = ("scale", "post-crawl-in-stores")
    scale, stores = ((ROOT / f"docs/{name}.md").read_text() for name in pages)
    each, once, rewrite, check, told, *parts = shown(
        "scale.md", "### Without Spark\n", "`bin/verify` runs on one"
    )
    assert [part.split(" --partition ")[1][:3] for part in parts] == ["1/3", "2/3", "3/3"]
    old = "bin/index --all s3://bucket/warcs/ my-index"
    (share,) = re.findall(r"`(bin/verify --against s3:[^`]+/h0 [^`]+)`", scale)
    (undo,) = re.findall(r"^    (bin/undedup s3:.*/h0 .*)$", stores, re.MULTILINE)
    records = "bin/verify --against s3://bucket/warcs/h0 s3://bucket/again/h0 --records"

    def of_hosts(line: str) -> list[str]:
        return [line.replace("h0", f"h{n}").replace("st0", f"st{n}") for n in range(3)]

    script = [old, *of_hosts(each), once, "mv plan whole", *parts, *of_hosts(rewrite), check, told]
    script += [*of_hosts(share), *of_hosts(undo), *of_hosts(records)]
    bodies = [Random(number).randbytes(1500) for number in range(3)]
    files = {f"by-host/warcs/h{n}/{n}.warc.gz": tmp_path / f"{n}.warc.gz" for n in range(3)}
    for day, path in enumerate(files.values(), 1):
        write(path, day, bodies)
    with s3_server(files) as store:
        whole = "\n".join(line.replace("s3://bucket/", "s3://archive/by-host/") for line in script)
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", whole],
            cwd=tmp_path,
            env={**os.environ, **store, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    assert done.stdout.count("of 3 records in the plan 3 became revisits") == 2
    assert "read 3 files in place of those in s3://archive/by-host/warcs" in done.stdout
    assert done.stdout.count("1 file: 3 records restored") == 2
