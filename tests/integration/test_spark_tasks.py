"""What runs on a cluster, run here: the same tasks, spread and brought together without Spark."""

from __future__ import annotations

import marshal
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.capture import RefersTo, Revisit
from dedupindex.cli import main
from dedupindex.documents.dedup_shards import dedup_hashes, dedup_on
from dedupindex.errors import BadInput, BadSource, DedupError, IndexExists
from dedupindex.index import open_index
from dedupindex.index.format.cells import Keys, encode, encode_revisit
from dedupindex.index.format.ledger import dependent
from dedupindex.index.identity import Settings
from dedupindex.index.load.staging import renumbered
from dedupindex.indexer import stage_spark
from dedupindex.indexer import tasks as plan
from dedupindex.indexer.pipeline import Build, Built, build
from dedupindex.indexer.stage import StageTask
from dedupindex.post_crawl.manifest.make_manifest import make
from dedupindex.post_crawl.manifest.parquet import open_manifest
from dedupindex.post_crawl.manifest.record_lines import ManifestOptions
from dedupindex.post_crawl.plan.make_plan import ResolveOptions, resolve, resolve_on
from dedupindex.post_crawl.plan.plan_file import COLUMNS, open_plan
from dedupindex.runtime import spark as clusters
from dedupindex.runtime.spark import Cluster, FilePiece, PieceWriter, pieces
from tests.support import local_spark
from tests.support.budgets import examples
from tests.support.captures import capture
from tests.support.local_spark import Here, Rows, run_spark_here
from tests.support.warc_cases import gz, revisit
from tests.support.zstd_files import dictionary_frame, trained, zst
from tests.unit.object_store.test_object_store import EVERYTHING, archive, captures, containers

HEADER = " CDX N b a m s k r M S V g\n"


@pytest.fixture(autouse=True, params=[64 << 20, 3000], ids=["whole", "sliced"])
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    run_spark_here(monkeypatch, request.param)


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """Archives that repeat one another, revisits, and rows that name the archives.

    One is compressed with zstd, another with zstd and a dictionary.
    """
    folder = tmp_path / "crawl"
    folder.mkdir()
    words = trained()
    packs: dict[int, Callable[[bytes], bytes]] = {4: zst, 5: partial(zst, words=words)}
    for number in range(6):
        pack = packs.get(number, gz)
        data = archive(20 * number, 60, size=200, pack=pack) + pack(revisit(number=5000 + number))
        dictionary = dictionary_frame(words, compressed=True) if number == 5 else b""
        (folder / f"w{number}.warc.gz").write_bytes(dictionary + data)
    for name in "ab":
        row = "- 2026110{}091417 http://a.test/{} image/png 200 {} - - 5 {} w{}.warc.gz\n"
        lines = [
            row.format(1 + at % 7, at, "A" * 30 + "BCDEFGH"[at % 7] + "A", 60 * at, at % 9)
            for at in range(300)
        ]
        (folder / f"{name}.cdx").write_text("".join([HEADER, *lines, "no line\n"]))
    return folder


def built(index: Path, *sources: Path | str, **more: Any) -> Built:
    return build(Build([str(one) for one in sources], index, EVERYTHING, **more))


def test_an_index_is_the_same(tmp_path: Path, collection: Path) -> None:
    one = built(tmp_path / "one", collection, crawl="c")
    for cores in ("1", "2", "5"):
        other = built(tmp_path / cores, collection, crawl="c", spark=cores)
        one.tally.seconds = other.tally.seconds = 0
        assert other.tally == one.tally
        assert sorted(other.problems) == sorted(one.problems)
        assert captures(tmp_path / cores, "") == captures(tmp_path / "one", "")
        assert containers(tmp_path / cores) == containers(tmp_path / "one")
        assert _revisits(tmp_path / cores) == _revisits(tmp_path / "one")


def _revisits(index: Path) -> list[tuple[bytes, str]]:
    """What the ledger has, with the names of containers."""
    from dedupindex.index.format.cells import DEPENDENT
    from dedupindex.index.format.ledger import Dependent

    with closing(open_index(index)) as engine, engine.view() as view:
        lengths = engine.identity.settings.keys().lengths()
        found = []
        for item in view.ledger():
            at = lengths[item[0]]
            if item[at] == DEPENDENT:
                told = Dependent.of(item[at:])
                found.append((told.url, view.place_of(told.container).container))
        return sorted(found)


def test_adding_and_going_on(tmp_path: Path, collection: Path) -> None:
    first, rest = collection / "a.cdx", collection
    for name, more in (("here", {}), ("there", {"spark": "2"})):
        built(tmp_path / name, first)
        built(tmp_path / name, rest, add=True, **more)
    assert captures(tmp_path / "there", "") == captures(tmp_path / "here", "")


def test_a_failed_run_is_resumed_from_its_finished_tasks(
    tmp_path: Path, collection: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round for each file; the last but one cannot be read, and then it can."""
    monkeypatch.setattr(clusters, "AT_ONCE", 1)
    monkeypatch.setattr(plan, "TASK_BYTES", 1)
    missing = collection / "b.cdx"
    text = missing.read_bytes()
    built(tmp_path / "here", collection)
    index = tmp_path / "there"
    ended = []
    stage = stage_spark._stage

    def staged(groups: int, task: StageTask) -> Iterator[Any]:
        if task.inputs[0].path == str(missing):
            missing.unlink(missing_ok=True)
        ended.append(task.inputs[0].path)
        return stage(groups, task)

    monkeypatch.setattr(stage_spark, "_stage", staged)
    monkeypatch.setattr(local_spark, "_sent", lambda value: _listed(value))
    with pytest.raises(BadSource, match="b.cdx"):
        built(index, collection, spark="1")
    missing.write_bytes(text)
    monkeypatch.setattr(stage_spark, "_stage", stage)
    before = set(ended) - {str(missing)}
    assert 0 < len(before) < 8
    os.utime(missing, ns=(0, 1))
    result = built(index, collection, spark="1", resume=True)
    assert captures(index, "") == captures(tmp_path / "here", "")
    assert result.tally.containers == 8


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, Iterator) else value


def test_damaged_and_missing_sources_on_spark(tmp_path: Path, collection: Path) -> None:
    path = collection / "w3.warc.gz"
    path.write_bytes(path.read_bytes()[:-20])
    result = built(tmp_path / "index", collection, spark="2")
    assert [problem.container for problem in result.problems if "cut" in problem.message] == [
        str(path)
    ]
    with pytest.raises(BadInput, match="not -"):
        built(tmp_path / "other", "-", spark="2")
    from dedupindex.indexer.stage_spark import _stage
    from dedupindex.indexer.tasks import Input
    from dedupindex.sources import SourceOptions

    task = StageTask(0, [Input("/nowhere.warc", 1)], tmp_path, tmp_path, EVERYTHING, None,
                SourceOptions(), "")  # fmt: skip
    with pytest.raises(BadSource, match="every executor reads the sources itself"):
        list(_stage(1, task))


def test_a_container_that_is_read_twice_must_be_the_same(tmp_path: Path) -> None:
    from dedupindex.indexer.stage_spark import StagedPart, _gather

    part = StagedPart(0, 4, "then", False, marshal.dumps([]))
    with pytest.raises(BadSource, match="was not the same"):
        list(_gather(Settings(), {4: ("now", [0])}, {}, 0, iter([part])))
    assert list(_gather(Settings(), {4: ("then", [0])}, {}, 0, iter([part]))) == []
    for parts in ([], [part]):  # its only container cannot be read any more
        with pytest.raises(BadSource, match="could not be read"):
            list(_gather(Settings(), {4: ("then", [0])}, {0: 1}, 0, iter(parts)))


def test_an_index_of_which_a_container_is_lost_with_its_executor_is_not_made(
    tmp_path: Path, collection: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task is done again, finds nothing to read, and has nothing in any range."""
    really = Rows.flatMap

    def lost(rows: Rows, work: Callable[[Any], Iterable[Any]]) -> Rows:
        kept = Rows(rows.parts)
        kept.parts[0] = [
            row
            for row in kept.parts[0]
            if row.last or not isinstance(row.value, stage_spark.StagedPart)
        ]
        return really(kept, work)

    monkeypatch.setattr(Rows, "flatMap", lost)
    with pytest.raises(BadSource, match="could not be read"):
        built(tmp_path / "index", collection, spark="2")


@given(st.lists(st.integers(0, 4), max_size=5), st.data())
def test_rows_that_are_made_again_in_the_midst_are_never_mixed(
    sizes: list[int], data: st.DataObject
) -> None:
    first = [list(clusters._run_task(lambda task, given: given, task, iter(range(size))))
             for task, size in enumerate(sizes)]  # fmt: skip
    came = [row for some in first for row in some]
    values = [row.value for row in came if not row.last]
    assert list(clusters.complete_rows(came, len(sizes))) == values
    if not sizes:
        return
    task = data.draw(st.integers(0, len(sizes) - 1))
    again = list(
        clusters._run_task(
            lambda task, given: given, task, iter(range(data.draw(st.integers(0, 4))))
        )
    )
    begin, end = (data.draw(st.integers(0, len(some))) for some in (first[task], again))
    mixed = [*first[task][:begin], *again[end:]]
    rows = [row for some in [*first[:task], mixed, *first[task + 1 :]] for row in some]
    if mixed in (first[task], again):
        assert (
            list(clusters.complete_rows(rows, len(sizes)))[: sum(sizes[:task])]
            == values[: sum(sizes[:task])]
        )
    else:
        with pytest.raises(DedupError, match="executor was lost"):
            list(clusters.complete_rows(rows, len(sizes)))


def test_a_manifest_and_a_plan_are_the_same(tmp_path: Path, collection: Path) -> None:
    made = [
        make([str(collection)], tmp_path / name, ManifestOptions(), spark=master)
        for name, master in (("one", ""), ("two", "2"))
    ]
    assert [one.as_json() | {"seconds": 0} for one in made][0] == made[1].as_json() | {"seconds": 0}
    lines = [
        {place.path: list(manifest.lines(place.number))
         for place in manifest.containers().values()}
        for manifest in (open_manifest(tmp_path / "one"), open_manifest(tmp_path / "two"))
    ]  # fmt: skip
    assert lines[0] == lines[1]
    (collection / "w1.warc.gz").unlink()
    (collection / "w9.warc.gz").write_bytes(archive(900, 4))
    again = make([str(collection)], tmp_path / "two", ManifestOptions(), spark="2")
    assert (again.files, again.known, again.gone) == (1, 5, 1)
    make([str(collection)], tmp_path / "one", ManifestOptions())
    here = resolve([tmp_path / "one"], tmp_path / "plan", ResolveOptions())
    for cores in (1, 3):
        there = resolve_on(
            Here(cores), [tmp_path / "one"], tmp_path / f"plan{cores}", ResolveOptions()
        )
        assert there.totals == here.totals
        assert _rows(tmp_path / f"plan{cores}") == _rows(tmp_path / "plan")
    with pytest.raises(IndexExists):
        resolve_on(Here(), [tmp_path / "one"], tmp_path / "plan3", ResolveOptions())
    assert here.totals.copies > 50


def _rows(plan: Path) -> list[tuple[Any, ...]]:
    return sorted(open_plan(plan)._rows("copies-*.parquet", COLUMNS))


def test_a_manifest_that_executors_do_not_have(tmp_path: Path, collection: Path) -> None:
    from dedupindex.post_crawl.plan.make_plan import _resolve_part

    make([str(collection)], tmp_path / "one", ManifestOptions())
    with pytest.raises(BadInput, match="storage that the driver and all executors mount"):
        list(_resolve_part([tmp_path / "one"], [b"another"], ResolveOptions(), (1, 1)))


def test_no_text_and_no_partition(tmp_path: Path, capsys: Any) -> None:
    for more in (["--text", "-"], ["--partition", "1/2"]):
        words = ["resolve", str(tmp_path), "-o", str(tmp_path / "plan"), "--spark", "2", *more]
        assert main(words) == 2
        assert "makes all parts" in capsys.readouterr().err


def test_without_the_package(
    tmp_path: Path, collection: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(BadInput, match="bin/setup spark"):
        built(tmp_path / "index", collection, spark="local[1]")
    assert not (tmp_path / "index" / "index.json").exists()


@given(st.integers(0, 40), st.integers(0, 40), st.booleans(), st.booleans())
def test_renumbering(number: int, given_number: int, url: bool, canonical: bool) -> None:
    keys = Keys(url or canonical, canonical)
    one = capture(number)
    key = keys.key_of(one.digest, one.url)
    given = [0] * 41
    given[number] = given_number
    lengths = keys.lengths()
    staged = key + encode(one, number)
    assert renumbered(staged, lengths, given.__getitem__) == key + encode(one, given_number)
    mark = key + encode_revisit(one)
    assert renumbered(mark, lengths, given.__getitem__) == mark
    refers = Revisit(one, RefersTo(b"http://example.com/b", b"2026-10-01T00:00:00Z"))
    item = dependent(refers, keys, number)
    assert renumbered(item, lengths, given.__getitem__) == dependent(refers, keys, given_number)


@given(st.lists(st.integers(0, 3 * 10), min_size=1, max_size=4))
def test_files_come_whole(sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(clusters, "PIECE", 10)
        home = Path(name)
        (home / "from").mkdir()
        (home / "to").mkdir()
        files = PieceWriter(home / "to")
        for number, size in enumerate(sizes):
            path = home / "from" / f"{number}"
            path.write_bytes(bytes(range(size)))
            for piece in pieces(path, path.name):
                files.take(FilePiece(*piece))
        files.finish()
        for path in (home / "from").iterdir():
            assert (home / "to" / path.name).read_bytes() == path.read_bytes()
        assert len(list((home / "to").iterdir())) == len(sizes)


@settings(max_examples=examples(4))
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40)), min_size=1, max_size=60))
def test_documents_are_deduplicated_alike(rows: list[tuple[int, int]]) -> None:
    from hashlib import sha256

    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        texts: dict[str, str] = {}
        for number, path in rows:
            digest = sha256(b"%d" % number).hexdigest()
            texts[digest[0]] = texts.get(digest[0], "") + f"{digest},/p{path}\n"
        (home / "hashes").mkdir()
        for first, text in texts.items():
            (home / "hashes" / f"{first}_run.csv").write_text(text)
        here = dedup_hashes(str(home / "hashes"), home / "here.csv")
        there = dedup_on(Here(2), str(home / "hashes"), home / "there.csv")
        here.elapsed_time_secs = there.elapsed_time_secs = here.rate_rps = there.rate_rps = 0
        assert there == here
        found = [sorted((home / f"{name}.csv").read_text().split()) for name in ("here", "there")]
        assert found[0] == found[1]


def test_shards_that_executors_do_not_have(tmp_path: Path) -> None:
    from dedupindex.documents.dedup_shards import _dedup
    from dedupindex.documents.read_shards import Shard

    shard = Shard("a", "a", (tmp_path / "a_run.csv",))
    (tmp_path / "a_run.csv").write_text("another")
    with pytest.raises(BadInput, match="storage that the driver and all executors mount"):
        list(_dedup("1GB", 1, (0, [shard], [5])))


def test_errors_in_recomputed_rows_are_raised() -> None:
    with pytest.raises(BadSource, match="gone by now"):
        list(clusters._keyed(lambda row: 0, clusters.SparkRow(0, b"", 0, BadSource("gone by now"))))


def test_rows_that_are_kept_are_read_twice() -> None:
    """Tasks of several jobs: of each the rows are chosen from, then all are worked on."""
    count = 5 * clusters.AT_ONCE + 3
    chosen, worked, jobs = list[int](), list[int](), 0
    for kept in Here(2).kept_packed(_up_to, range(count)):
        chosen += kept.filtered(_is_zero)
        worked += kept.applied(_summed)
        jobs += 1
    assert jobs == 3
    assert chosen == [0] * (count - 1)  # the first task has none
    assert worked == [task * (task - 1) // 2 for task in range(count)]


def test_an_error_of_work_on_kept_rows_is_raised() -> None:
    for work, task in ((_summed, -1), (_failing, 1)):
        for kept in Here(2).kept_packed(_up_to, [2, task]):
            with pytest.raises(BadSource, match="no such"):
                list(kept.applied(work))


def _up_to(task: int) -> Iterator[int]:
    if task < 0:
        raise BadSource("no such task")
    yield from range(task)


def _is_zero(row: int) -> bool:
    return row == 0


def _summed(rows: Iterator[int]) -> Iterator[int]:
    yield sum(rows)


def _failing(rows: Iterator[int]) -> Iterator[int]:
    yield next(rows)
    raise BadSource("no such row")


@pytest.mark.parametrize("master", ["127.0.0.1:7077", "http://127.0.0.1:7077", "spark://host"])
def test_masters_without_scheme_or_port_are_refused(master: str) -> None:
    with pytest.raises(BadInput, match="name a master as spark://HOST:PORT"):
        clusters.check_master(master)


@pytest.mark.parametrize(("active", "said"), [([], False), ([0], True), ([0, 1], False)])
def test_a_cluster_without_executors_is_not_waited_for_in_silence(
    active: list[int], said: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """`active` has the tasks that run of each stage."""
    monkeypatch.setattr(clusters, "_CHECK_EVERY", 0.0)
    ended, asked = threading.Event(), list[int]()

    def active_stages() -> Sequence[int]:
        asked.append(1)
        if len(asked) == 3:
            ended.set()
        return range(len(active))

    def stage_info(stage: int) -> object:
        return SimpleNamespace(numActiveTasks=active[stage], numCompletedTasks=0)

    tracker = SimpleNamespace(getActiveStageIds=active_stages, getStageInfo=stage_info)
    clusters.report_waiting("spark://host:1", tracker, ended)
    err = capsys.readouterr().err
    assert err.count("spark://host:1 has had no executor for this run") == said


def test_a_stopped_spark_master_is_reported_in_one_sentence() -> None:
    said = "while calling x\n: java.lang.IllegalStateException: Cannot call a stopped SparkContext"

    def parallelize(*_: object) -> None:
        raise RuntimeError(said)

    cluster = Cluster(SimpleNamespace(defaultParallelism=1, parallelize=parallelize))
    with pytest.raises(DedupError, match="^Spark ended the application: no Spark master of this"):
        list(cluster.rows(str, ["task"]))


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (
            "ModuleNotFoundError: No module named 'isal'",
            r"a node cannot .*: No module named 'isal' ",
        ),
        ("OSError: [Errno 28] No space left", r"printed: OSError: \[Errno 28\] No space left$"),
    ],
)
def test_what_python_raises_on_a_node_is_named(raised: str, message: str) -> None:
    """Its trace, as Spark has it, is long."""
    said = (
        "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
        ": org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        + '  File "worker.py", line 1, in main\n' * 40
        + f"{raised}\n\n\tat org.apache.spark.X.y(z.scala:1)\n"
    )

    def parallelize(*_: object) -> None:
        raise RuntimeError(said)

    cluster = Cluster(SimpleNamespace(defaultParallelism=1, parallelize=parallelize))
    with pytest.raises(DedupError, match=message):
        list(cluster.rows(str, ["task"]))
