"""A master that does not answer is an error at once, in a sentence."""

from __future__ import annotations

import socket
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from dedupindex.counts import ProgressUpdate
from dedupindex.errors import BadInput, DedupError
from dedupindex.runtime import progress, spark
from dedupindex.runtime.spark import Cluster, check_master, spark_errors
from tests.support.ports import refusing_port


def test_a_master_that_does_not_answer() -> None:
    with refusing_port() as port:
        place = f"127.0.0.1:{port}"
        for master in (f"spark://{place}", f"spark://{place},{place}"):
            with pytest.raises(BadInput) as raised:
                check_master(master)
            assert str(raised.value) == f"no Spark master answers at {master}: Connection refused"
        with closing(socket.create_server(("127.0.0.1", 0))) as listening:
            check_master(f"spark://{place},127.0.0.1:{listening.getsockname()[1]}")
    with pytest.raises(BadInput, match="no Spark master answers"):
        check_master("spark://127.0.0.1:99999")


@pytest.mark.parametrize("master", ["local[2]", "yarn", "k8s://https://h:1", "2", ""])
def test_other_masters_are_left_to_spark(master: str) -> None:
    check_master(master)


def test_the_tasks_of_running_jobs_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_EVERY", 0.001)
    stages = {1: (3, 8), 2: (1, 2), 3: None}
    infos = {
        number: counts and SimpleNamespace(numCompletedTasks=counts[0], numTasks=counts[1])
        for number, counts in stages.items()
    }
    tracker = SimpleNamespace(getActiveStageIds=lambda: list(infos), getStageInfo=infos.get)
    context = SimpleNamespace(statusTracker=lambda: tracker, defaultParallelism=2)
    seen, told = list[ProgressUpdate](), threading.Event()

    def update(one: ProgressUpdate) -> None:
        seen.append(one)
        told.set()

    with Cluster(context).shown("resolving", update):
        assert told.wait(60)
    assert seen[0] == ProgressUpdate("resolving", part=0.4)
    told.clear()
    infos.clear()
    count = len(seen)
    with Cluster(context).shown("resolving", update):
        assert not told.wait(0.05)  # between two jobs nothing is known
    assert len(seen) == count


def test_an_application_that_spark_ended() -> None:
    """Java names only the call that came too late."""
    with pytest.raises(DedupError) as raised, spark_errors():
        raise RuntimeError(
            "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext."
        )
    assert str(raised.value).startswith("Spark ended the application: no Spark master")
    with (
        pytest.raises(DedupError, match="reason that it has printed: x.Exception: why"),
        spark_errors(),
    ):
        raise RuntimeError("x.Exception: why")


def test_settings_of_the_users_own_for_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert not spark.has_log_settings()
    (tmp_path / "log4j2.properties").touch()
    assert spark.has_log_settings()
    monkeypatch.delenv("SPARK_CONF_DIR")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path.parent))
    assert not spark.has_log_settings()


def test_what_executors_get_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths are absolute, as executors work in other directories."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("DEDUPINDEX_REMOTE_TRIES", "3")
    monkeypatch.setenv("DEDUPINDEX_ZSTD_DICTIONARY", "one.dict:/two.dict")
    passed = {"DEDUPINDEX_REMOTE_TRIES": "3"}
    passed["DEDUPINDEX_ZSTD_DICTIONARY"] = f"{tmp_path}/one.dict:/two.dict"
    assert dict(spark._passed_on()) == passed
    monkeypatch.delenv("DEDUPINDEX_ZSTD_DICTIONARY")
    assert dict(spark._passed_on()) == {"DEDUPINDEX_REMOTE_TRIES": "3"}
