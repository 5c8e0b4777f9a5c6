"""Shards in an object store: no machine of a run needs the disk of another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from blake3 import blake3

from dedupindex.documents import hash_objects, shard_target
from dedupindex.documents.dedup_shards import dedup_hashes
from dedupindex.documents.hash_objects import HashOptions, HashReport, hash_documents
from dedupindex.documents.shard_target import UNFINISHED
from dedupindex.documents.shards import ShardLayout
from dedupindex.errors import BadInput, BadSource, DedupError
from dedupindex.object_store import stores
from tests.support.commands import typed
from tests.support.paths import ROOT
from tests.support.stores import Bucket, Fault
from tests.unit.documents.test_documents import kept

NAMES = [blake3(b"%d" % number).hexdigest(8) for number in range(60)]
DATA = {f"{name}.txt": b"content %d" % (number // 3) for number, name in enumerate(NAMES)}
JOBS = ROOT / "conf" / "kubernetes" / "documents.yaml"


@pytest.fixture
def bucket(buckets: Callable[[], Bucket]) -> Bucket:
    made = buckets()
    for name, data in DATA.items():
        made.put(f"docs/{name}", data)
    made.server.requests.clear()
    return made


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries do not wait, and the state is saved after each batch."""
    monkeypatch.setattr(stores, "_FIRST_WAIT", 0.0)
    monkeypatch.setattr(shard_target, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(hash_objects, "_COMMIT_SECONDS", 0.0)
    monkeypatch.setattr(hash_objects, "_BATCH_FILES", 10)


def objects(bucket: Bucket, prefix: str) -> dict[str, bytes]:
    """The objects below a prefix, by name."""
    found = bucket.client.list_objects_v2(Bucket=bucket.name, Prefix=prefix).get("Contents", [])
    return {
        one["Key"].removeprefix(prefix): bucket.client.get_object(
            Bucket=bucket.name, Key=one["Key"]
        )["Body"].read()
        for one in found
    }


def shards(bucket: Bucket, prefix: str = "hashes/") -> dict[str, bytes]:
    return {
        name: data for name, data in objects(bucket, prefix).items() if not name.startswith(".")
    }


def hashed(
    bucket: Bucket, glob: str = "docs/*", out: str = "hashes", **options: object
) -> HashReport:
    return hash_documents(
        f"{bucket.url}/{glob}",
        f"{bucket.url}/{out}",
        HashOptions(**options),
    )


def unique(bucket: Bucket, tmp_path: Path, pattern: str = "hashes") -> dict[bytes, str]:
    output = tmp_path / "unique.parquet"
    dedup_hashes(f"{bucket.url}/{pattern}", output)
    return kept(output)


def expected(bucket: Bucket) -> dict[bytes, str]:
    first: dict[bytes, str] = {}
    for name in sorted(DATA):
        first.setdefault(blake3(DATA[name]).digest(), f"{bucket.url}/docs/{name}")
    return first


def test_shards_in_a_store_are_those_of_a_directory(bucket: Bucket, tmp_path: Path) -> None:
    report = hashed(bucket, deterministic=True)
    here = tmp_path / "here"
    other = hash_documents(f"{bucket.url}/docs/*", here, HashOptions(deterministic=True))
    assert report.rows == other.rows == len(DATA) and report.shards == other.shards
    assert shards(bucket) == {path.name: path.read_bytes() for path in here.glob("[0-9a-f]_*")}
    assert {name[-6:] for name in objects(bucket, "hashes/")} == {".state", "arquet"}
    assert unique(bucket, tmp_path) == expected(bucket)
    dedup_hashes(str(here), f"{bucket.url}/unique/all.csv")
    assert len(objects(bucket, "unique/")["all.csv"].splitlines()) == len(set(DATA.values()))


def test_later_runs_hash_what_is_new_and_replace_shards(bucket: Bucket, tmp_path: Path) -> None:
    """Also on another machine, since the state is in the store."""
    first = hashed(bucket)
    bucket.put("docs/new.txt", b"new")
    bucket.client.delete_object(Bucket=bucket.name, Key=f"docs/{NAMES[0]}.txt")
    again = hashed(bucket)
    assert (again.num_files_processed, again.known, again.gone) == (1, len(DATA) - 1, 1)
    assert again.run == first.run
    wide = hash_documents(
        f"{bucket.url}/docs/*", f"{bucket.url}/hashes/", HashOptions(ShardLayout(2, "csv"))
    )
    assert wide.known == len(DATA)
    assert {name[2] + name[-4:] for name in shards(bucket)} == {"_.csv"}  # the others are gone
    assert "new.txt" in "".join(unique(bucket, tmp_path).values())


def test_globs_share_a_directory_also_below_the_documents(bucket: Bucket, tmp_path: Path) -> None:
    """Shards that a glob would match are not documents."""
    for glob in ("[0-7]*", "[89a-f]*"):
        hashed(bucket, f"docs/{glob}", "docs/0hashes")
        assert hashed(bucket, f"docs/{glob}", "docs/0hashes").num_files_processed == 0
    assert hashed(bucket, "docs/**", "docs/0hashes").rows == len(DATA)
    assert unique(bucket, tmp_path, "docs/0hashes/?_*") == expected(bucket)


@pytest.mark.parametrize("number", [0, 1, 2, 5, 9, 20])
def test_a_run_that_failed_at_any_write_is_resumed(
    bucket: Bucket, tmp_path: Path, number: int
) -> None:
    """Until it is whole, its shards are not read."""
    writes = [0]

    def count() -> bool:
        writes[0] += 1
        return writes[0] > number

    fault = Fault("", 1 << 30, status=403, method="PUT", when=count)
    bucket.server.faults.append(fault)
    with pytest.raises(BadSource, match="cannot be written"):
        hashed(bucket)
    assert not any("<" in name for name in shards(bucket))
    bucket.server.faults.clear()
    if objects(bucket, "hashes/"):
        with pytest.raises((BadInput, BadSource), match="is unfinished|nothing matches"):
            unique(bucket, tmp_path)
    report = hashed(bucket)
    assert report.known + report.num_files_processed == len(DATA)
    assert number < 8 or report.known >= 10
    assert unique(bucket, tmp_path) == expected(bucket)
    assert len({name.split("_")[1] for name in shards(bucket)}) == 1
    assert not [name for name in objects(bucket, "hashes/") if name.endswith(UNFINISHED)]


def test_a_later_run_that_failed_is_not_read_half(bucket: Bucket, tmp_path: Path) -> None:
    hashed(bucket)
    bucket.put("docs/new.txt", b"new")
    bucket.server.faults.append(Fault(".parquet", 1 << 30, status=403, method="PUT"))
    with pytest.raises(BadSource):
        hashed(bucket)
    bucket.server.faults.clear()
    with pytest.raises(BadInput, match="is unfinished"):
        unique(bucket, tmp_path)
    hashed(bucket)
    assert len(unique(bucket, tmp_path)) == len(expected(bucket)) + 1


def test_addresses_that_cannot_be_used(bucket: Bucket, tmp_path: Path) -> None:
    for words, message in (
        (["hash_documents", str(tmp_path), "https://example.org/x"], "nothing can be written"),
        (["hash_documents", str(tmp_path), "s3://me:secret@bucket/x"], "with a password"),
        (["dedup_hashes", f"{bucket.url}/none/", str(tmp_path / "u.csv")], "none"),
        (["dedup_hashes", f"{bucket.url}/docs/*", "http://example.org/u.csv"], "nothing can be"),
        (["hash_documents", f"{bucket.url}/none/*", f"{bucket.url}/hashes"], "nothing matches"),
    ):
        _, error = typed(*words, status=4)
        assert message in error and "secret" not in error
    assert not [name for name in objects(bucket, "hashes/") if name.endswith(UNFINISHED)]
    with pytest.raises(DedupError):
        dedup_hashes(f"{bucket.url}/docs/*", tmp_path / "u.csv")  # not shards


# --- the Jobs for Kubernetes, as processes here ---------------------------------------------------


class Pods:
    """The containers of a Job, run as processes of this machine."""

    def __init__(self, name: str, **values: str) -> None:
        jobs = {
            job["metadata"]["name"]: job["spec"] for job in yaml.safe_load_all(JOBS.read_text())
        }
        spec = jobs[name]
        [container] = spec["template"]["spec"]["containers"]
        self.count: int = spec["completions"]
        self._line = [*container["command"], *container["args"]]
        self._env = {one["name"]: one["value"] for one in container["env"]} | values
        assert self.count == len(self._env["GLOBS"].splitlines())

    def start(self, index: int) -> subprocess.Popen[bytes]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {**os.environ, **self._env, "PATH": path, "JOB_COMPLETION_INDEX": str(index)}
        return subprocess.Popen(
            self._line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
        )

    def run(self, index: int) -> dict[str, int]:
        with self.start(index) as process:
            out, error = process.communicate(timeout=120)
        assert process.returncode == 0, error.decode()
        found: dict[str, int] = json.loads(out)
        return found


def test_the_jobs_for_kubernetes(bucket: Bucket) -> None:
    """One Pod is killed while it hashes; started again, it continues."""
    where = {"SHARDS": f"{bucket.url}/hashes", "UNIQUE": f"{bucket.url}/unique"}
    hashing = Pods("hash-documents", DOCUMENTS=f"{bucket.url}/docs", **where)
    victims: list[subprocess.Popen[bytes]] = []
    fault = Fault(".txt", 1, status=503, then=lambda: victims[0].send_signal(signal.SIGKILL),
                  when=lambda: bool(victims))  # fmt: skip
    bucket.server.faults.append(fault)
    with hashing.start(0) as process:
        victims.append(process)
        process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    bucket.server.faults.clear()
    _, error = typed("dedup_hashes", where["SHARDS"], f"{bucket.url}/x.csv", status=4)
    assert "is unfinished" in error or "nothing matches" in error
    reports = [hashing.run(index) for index in range(hashing.count)]
    assert sum(report["rows"] for report in reports) == len(DATA)
    grouping = Pods("dedup-hashes", **where)
    reports = [grouping.run(index) for index in range(grouping.count)]
    assert sum(report["unique_files"] for report in reports) == len(set(DATA.values()))
    assert sum(report["total_files"] for report in reports) == len(DATA)
    assert len(shards(bucket, "unique/")) == grouping.count
