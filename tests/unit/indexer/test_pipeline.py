"""`dedupindex.indexer`: any order, any number of processes, any interruption: the same index."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest

from dedupindex.capture import Capture
from dedupindex.counts import ProgressUpdate
from dedupindex.digest import Digest, Spelling
from dedupindex.errors import ContainerChanged, IndexBusy, IndexExists, SettingsConflict
from dedupindex.index import open_index
from dedupindex.index.identity import Settings
from dedupindex.indexer import pipeline
from dedupindex.indexer.pipeline import Build, Built, build
from dedupindex.runtime.files import exclusive, exclusive_in_turn
from tests.support.captures import sha1
from tests.support.commands import with_small_files
from tests.support.tables import table_of_cdx

EVERYTHING = Settings(mime=".*", whitelist=True)
HEADER = " CDX N b a m s k r M S V g\n"


def cdx_line(number: int, digest: int, day: int, url: str = "", mime: str = "image/png") -> str:
    url = url or f"http://h{number % 7}.example/p{number}"
    spelled = sha1(digest).spelled(Spelling(0, 0))
    when, place = f"202611{day:02d}091417", f"500 {number * 600} d{day}.warc.gz"
    return f"- {when} {url} {mime} 200 {spelled} - - {place}\n"


@pytest.fixture
def crawls(tmp_path: Path) -> Path:
    """Six files of lines that repeat and contradict one another, and some that are refused."""
    rnd = random.Random(5)
    folder = tmp_path / "crawls"
    folder.mkdir()
    for name in "abcdef":
        lines = [HEADER]
        for _ in range(400):
            number = rnd.randrange(300)
            mime = rnd.choice(["image/png", "image/png", "text/html", "warc/revisit"])
            lines.append(cdx_line(number, 1 + number // 2, rnd.randint(1, 28), mime=mime))
        lines.append("this is no CDX line\n")
        (folder / f"{name}.cdx").write_text("".join(lines))
    return folder


def test_a_table_and_the_cdx_of_its_captures_make_equal_indexes(tmp_path: Path) -> None:
    rnd = random.Random(5)
    lines = [HEADER]
    for _ in range(5000):
        number = rnd.randrange(4000)
        mime = rnd.choice(["image/png", "text/html", "warc/revisit", "-"])
        url = rnd.choice(["", "", "", f"http://é.org/{number}", "dns:a.org"])
        lines.append(cdx_line(number, 1 + number // 2, rnd.randint(1, 28), url, mime))
    cdx = tmp_path / "all.cdx"
    cdx.write_text("".join(lines))
    table = table_of_cdx(cdx, tmp_path / "all.parquet")
    built = {
        source: build(Build([str(source)], tmp_path / source.suffix, EVERYTHING, "lmdb"))
        for source in (cdx, table)
    }
    found = {source: content(tmp_path / source.suffix) for source in built}
    assert found[cdx] == found[table]
    assert len(found[cdx]) > 1000
    tallies = [vars(result.tally) | {"seconds": 0} for result in built.values()]
    files = [tally.pop("refused_in") for tally in tallies]
    assert tallies[0] == tallies[1]
    assert [set(of_reason.values()) for of_reason in files] == [{str(cdx)}, {str(table)}]
    added = build(Build([str(table)], tmp_path / ".parquet", EVERYTHING, "lmdb", add=True))
    assert (added.tally.known, added.tally.records) == (1, 0)


def content(index: Path) -> list[tuple[Digest, Capture]]:
    with closing(open_index(index)) as engine, engine.view() as view:
        assert engine.check() == []
        return list(view.captures())


def run(index: Path, *sources: Path, **fields: object) -> Built:
    chosen = {"settings": EVERYTHING, **fields}
    return build(Build([str(source) for source in sources], index, **chosen))  # type: ignore[arg-type]


def test_every_record_is_accounted_for(crawls: Path, tmp_path: Path) -> None:
    built = run(tmp_path / "index", crawls)
    tally = built.tally
    assert tally.containers == 6
    assert tally.records == 6 * 401
    assert tally.refused["bad-line"] == 6
    assert len(built.problems) == 6
    assert tally.refused["unresolved-revisit"] > 0
    assert tally.added == len(content(tmp_path / "index"))
    assert tally.added + tally.replaced + tally.unchanged + tally.refused.total() == tally.records


@pytest.mark.parametrize("keep", ["earliest", "latest"])
def test_any_order_and_any_processes_give_the_same_index(
    crawls: Path, tmp_path: Path, keep: str
) -> None:
    chosen = Settings(mime=".*", whitelist=True, keep=keep)
    files = sorted(crawls.glob("*.cdx"))
    run(tmp_path / "one", crawls, settings=chosen)
    expected = content(tmp_path / "one")
    run(tmp_path / "two", crawls, settings=chosen, jobs=2)
    assert content(tmp_path / "two") == expected
    random.Random(1).shuffle(files)
    for number, file in enumerate(files):
        run(tmp_path / "three", file, settings=chosen, add=number > 0)
    assert content(tmp_path / "three") == expected


def test_keep_chooses_the_earliest_or_the_latest(tmp_path: Path) -> None:
    for day in (5, 2, 9):
        (tmp_path / f"{day}.cdx").write_text(HEADER + cdx_line(1, 1, day))
    for keep, kept in (("earliest", b"2026-11-02"), ("latest", b"2026-11-09")):
        index = tmp_path / keep
        chosen = Settings(keep=keep)
        built = run(index, tmp_path / "5.cdx", settings=chosen)
        assert (built.tally.added, built.tally.replaced) == (1, 0)
        run(index, tmp_path / "2.cdx", tmp_path / "9.cdx", settings=chosen, add=True)
        assert [capture.date[:10] for _, capture in content(index)] == [kept]


def test_the_same_command_again_finds_nothing_to_do(crawls: Path, tmp_path: Path) -> None:
    run(tmp_path / "index", crawls)
    before = content(tmp_path / "index")
    again = run(tmp_path / "index", crawls)
    assert (again.tally.containers, again.tally.known, again.tally.records) == (0, 6, 0)
    assert content(tmp_path / "index") == before


def test_captures_keep_the_crawl_that_they_were_indexed_for(tmp_path: Path) -> None:
    for name, number in (("a", 1), ("b", 2)):
        path = tmp_path / f"{name}.cdx"
        path.write_text(HEADER + cdx_line(number, number, 1) + cdx_line(3, 3, number))
        run(tmp_path / "index", path, crawl=name, add=name == "b")
    crawls = {capture.url[-1:]: capture.crawl for _, capture in content(tmp_path / "index")}
    assert crawls == {b"1": "a", b"2": "b", b"3": "a"}


def test_another_command_must_say_add(crawls: Path, tmp_path: Path) -> None:
    run(tmp_path / "index", crawls / "a.cdx")
    with pytest.raises(IndexExists, match="--add"):
        run(tmp_path / "index", crawls / "b.cdx")
    run(tmp_path / "index", crawls / "b.cdx", add=True)


def test_a_directory_that_is_no_index_is_not_changed(crawls: Path, tmp_path: Path) -> None:
    with pytest.raises(IndexExists, match="not empty"):
        run(crawls, crawls / "a.cdx")


@pytest.mark.parametrize(
    ("chosen", "name"),
    [
        (Settings(url_index=False, canonical=False, mime=".*", whitelist=True), "url_index"),
        (Settings(canonical=False, mime=".*", whitelist=True), "canonical"),
        (Settings(mime="^image/", whitelist=True), "mime"),
        (Settings(mime=".*", whitelist=True, keep="latest"), "keep"),
        (Settings(mime=".*", whitelist=True, also_digest="sha256"), "also_digest"),
        (Settings(mime=".*", whitelist=True, etag=True), "etag"),
    ],
)
def test_a_mixed_add_is_refused_by_name(
    crawls: Path, tmp_path: Path, chosen: Settings, name: str
) -> None:
    run(tmp_path / "index", crawls / "a.cdx")
    before = content(tmp_path / "index")
    with pytest.raises(SettingsConflict, match=name):
        run(tmp_path / "index", crawls / "b.cdx", settings=chosen, add=True)
    assert content(tmp_path / "index") == before


def test_a_changed_container_is_an_error_until_replaced(tmp_path: Path) -> None:
    file, index = tmp_path / "x.cdx", tmp_path / "index"
    file.write_text(HEADER + cdx_line(1, 1, 5))
    run(index, file)
    file.write_text(HEADER + cdx_line(2, 2, 6))
    with pytest.raises(ContainerChanged, match="--replace"):
        run(index, file, add=True)
    built = run(index, file, replace=True)
    assert (built.tally.added, built.removed) == (1, 0)  # a row is of the file that it names
    with closing(open_index(index)) as engine, engine.view() as view:
        container = view.container(str(file))
        assert container is not None
        assert container.records == 1
    assert run(index, file, add=True).tally.known == 1


def test_a_container_that_was_only_touched_is_known_still(tmp_path: Path) -> None:
    file, index = tmp_path / "x.cdx", tmp_path / "index"
    file.write_text(HEADER + cdx_line(1, 1, 5))
    run(index, file)
    os.utime(file, (1, 1))
    assert run(index, file, add=True).tally.known == 1


def test_a_change_that_keeps_the_size_is_seen(tmp_path: Path) -> None:
    file, index = tmp_path / "x.cdx", tmp_path / "index"
    file.write_text(HEADER + 10 * cdx_line(2, 1, 5))
    run(index, file)
    file.write_text(HEADER + 10 * cdx_line(3, 1, 5))
    os.utime(file, (1, 1))
    with pytest.raises(ContainerChanged, match=r"\(1,(\d{3}) bytes then, 1,\1 now\); give --repl"):
        run(index, file, add=True)


def test_one_writer_at_a_time(
    crawls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setattr(pipeline, "exclusive_in_turn", partial(exclusive_in_turn, wait=0.2))
    with exclusive(index / "lock", "it"), pytest.raises(IndexBusy):
        run(index, crawls)
    run(index, crawls)


def test_a_build_waits_for_a_server_that_merges(crawls: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    index.mkdir()
    with ExitStack() as merging:
        merging.enter_context(exclusive(index / "lock", "it"))
        phases = list[str]()

        def on_progress(seen: ProgressUpdate) -> None:
            phases.append(seen.phase)
            merging.close()

        build(Build([str(crawls)], index), on_progress)
    assert phases[0] == "waiting for another process that writes"


def command(index: Path, crawls: Path, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "dedupindex", "index", "--whitelist", "--mime", ".*"),
        *("--jobs", "2", *more, str(crawls), str(index)),
    ]


@pytest.mark.parametrize("more", [[], ["--resume"]])
def test_a_killed_build_can_be_repeated(crawls: Path, tmp_path: Path, more: list[str]) -> None:
    """Kill -9 of the whole process group, at moments spread over the run."""
    start = time.monotonic()
    subprocess.run(command(tmp_path / "whole", crawls), check=False, capture_output=True)
    whole = time.monotonic() - start
    expected = content(tmp_path / "whole")
    index = tmp_path / "index"
    for part in range(1, 9):
        process = subprocess.Popen(
            command(index, crawls, *more),
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        with process:
            try:
                process.communicate(timeout=whole * part / 8)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                # Until nobody has the pipe: a process of the group that is not quite dead has the
                # index's lock, too.
                process.communicate()
    done = subprocess.run(command(index, crawls, *more), capture_output=True, text=True)
    assert done.returncode in (0, 7), done.stderr  # 7: the six bad lines, if it was read now
    assert content(index) == expected
    assert files(index) == files(tmp_path / "whole")


def files(index: Path) -> list[str]:
    """What lies in an index; one more generation is no difference: it may load twice."""
    return sorted(re.sub(r"data-\d+", "data", path.name) for path in index.iterdir())


@pytest.mark.parametrize("more", [[], ["--resume"]])
@pytest.mark.parametrize("step", ["stage", "sample", "load", "loaded", "commit"])
def test_builds_killed_at_the_worst_steps(
    crawls: Path, tmp_path: Path, step: str, more: list[str]
) -> None:
    """Dies in the middle of a task, while the sample is written beside its file, just before the
    load commits, just after it, and when the load has cleared up behind itself."""
    moments = {
        "stage": "import dedupindex.indexer.stage as m; f = m.RunWriter.flush; "
        "m.RunWriter.flush = lambda self: (f(self), die())",
        "sample": "import dedupindex.runtime.files as m; f = m.os.replace; "
        "m.os.replace = lambda old, new: die() if 'unconfirmed' in str(new) else f(old, new)",
        "load": "import dedupindex.index.identity as m; f = m.Identity.write; "
        "m.Identity.write = lambda self, index: (die() if self.generation else None, "
        "f(self, index))[1]",
        "loaded": "import dedupindex.index.identity as m; f = m.Identity.write; "
        "m.Identity.write = lambda self, index: (f(self, index), self.generation and die())[0]",
        "commit": "import dedupindex.index.load.staging as m; "
        "m.Staging.finish.__globals__['done'] = 1; f = m.Staging.clear; "
        "m.Staging.clear = lambda self: die() if self.done else f(self)",
    }
    script = (
        "import os, signal, sys\n"
        "def die(): os.kill(os.getpid(), signal.SIGKILL)\n"
        f"{moments[step]}\n"
        "from dedupindex.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    index = tmp_path / "index"
    line = command(index, crawls)
    line[line.index("--jobs") + 1] = "1"
    killed = subprocess.run([sys.executable, "-c", script, *line[3:]], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    run(tmp_path / "whole", crawls)
    for _ in range(2):
        again = subprocess.run(command(index, crawls, *more), capture_output=True, text=True)
        assert again.returncode in (0, 7), again.stderr
        assert content(index) == content(tmp_path / "whole")
        assert files(index) == files(tmp_path / "whole")


def test_resume_does_not_read_finished_sources_again(crawls: Path, tmp_path: Path) -> None:
    from dedupindex.indexer import pipeline

    index = tmp_path / "index"
    seen: list[str] = []

    def failing(job: pipeline.Build, *rest: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "_load", failing)
        with pytest.raises(KeyboardInterrupt):
            run(index, crawls)
    with pytest.MonkeyPatch.context() as patch:
        real = pipeline.run_task
        patch.setattr(
            pipeline, "run_task", lambda task, on: (seen.append(str(task)), real(task, on))[1]
        )
        built = run(index, crawls, resume=True)
    assert seen == []
    assert built.tally.containers == 6
    run(tmp_path / "whole", crawls)
    assert content(index) == content(tmp_path / "whole")


@pytest.mark.parametrize(
    ("files", "mebibytes", "jobs", "largest"),
    [(40, 6.5, 1, 58.5), (40, 6.5, 2, 32.5), (400, 6.5, 2, 78), (90, 500, 1, 1000), (9, 1, 1, 9)],
)
def test_a_killed_build_loses_a_small_part_of_what_it_has_read(
    tmp_path: Path, files: int, mebibytes: float, jobs: int, largest: float
) -> None:
    """What is read again is at most a task for each process; small ones would cost more."""
    from dedupindex.indexer.tasks import make_plan
    from dedupindex.sources import Expanded

    found = Expanded()
    for number in range(files):
        path = tmp_path / f"{number}.warc"
        path.touch()
        os.truncate(path, int(mebibytes * (1 << 20)))
        found.paths.append(str(path))
    plan = make_plan(found, None, replace=False, reread=False, jobs=jobs, index="", done={})
    sizes = [sum(item.size for item in task) / (1 << 20) for task in plan.tasks]
    assert sum(sizes) == files * mebibytes
    assert max(sizes) == largest


def test_a_full_disk_leaves_the_index_as_it_was(crawls: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    run(index, crawls / "a.cdx")
    before = content(index)

    failed = subprocess.run(
        with_small_files(19, command(index, crawls, "--add")), capture_output=True, text=True
    )
    assert failed.returncode not in (0, 7)
    assert "Traceback" not in failed.stderr
    assert content(index) == before
    run(index, crawls, add=True)
    run(tmp_path / "whole", crawls)
    assert content(index) == content(tmp_path / "whole")


def test_a_file_that_grows_while_it_is_read_is_left_for_the_next_time(
    crawls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dedupindex.indexer import stage

    growing, index = crawls / "b.cdx", tmp_path / "index"
    real = stage.open_source

    def grown(path: str, *rest: object) -> object:
        source = real(path, *rest)  # type: ignore[arg-type]
        if path == str(growing):
            with open(path, "a") as stream:
                stream.write(cdx_line(1, 1, 1))
        return source

    with monkeypatch.context() as patch:
        patch.setattr(stage, "open_source", grown)
        patch.setattr(stage, "RunWriter", partial(stage.RunWriter, run_bytes=20_000))
        built = run(index, crawls)
    assert [p.container for p in built.problems if "still being written" in p.message] == [
        str(growing)
    ]
    with closing(open_index(index)) as engine, engine.view() as view:
        assert view.container(str(growing)) is None
    others = [path for path in sorted(crawls.glob("*.cdx")) if path != growing]
    run(tmp_path / "others", *others)
    assert content(index) == content(tmp_path / "others")
    assert run(index, crawls).tally.containers == 1
    run(tmp_path / "whole", crawls)
    assert content(index) == content(tmp_path / "whole")


def test_captures_that_lost_to_a_replaced_container_come_back(tmp_path: Path) -> None:
    later, earlier, index = tmp_path / "a.cdx", tmp_path / "b.cdx", tmp_path / "index"
    later.write_text(HEADER + cdx_line(1, 1, 5))
    earlier.write_text(HEADER + cdx_line(1, 1, 2).replace("d2.warc.gz", str(earlier)))
    run(index, later, earlier)
    assert [capture.date[:10] for _, capture in content(index)] == [b"2026-11-02"]
    earlier.write_text(HEADER + cdx_line(2, 2, 2))
    run(index, later, earlier, replace=True)
    kept = {capture.url: capture.date[:10] for _, capture in content(index)}
    assert kept[b"http://h1.example/p1"] == b"2026-11-05"


def interrupted(index: Path, *sources: Path, **fields: object) -> None:
    """A build that has read all sources and loaded no rows."""
    from dedupindex.indexer import pipeline

    def failing(*rest: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "_load", failing)
        with pytest.raises(KeyboardInterrupt):
            run(index, *sources, **fields)


def test_a_build_with_replace_is_resumed_with_replace(tmp_path: Path) -> None:
    source, index = tmp_path / "a.cdx", tmp_path / "index"
    source.write_text(HEADER + cdx_line(1, 1, 1).replace("d1.warc.gz", str(source)))
    run(index, source)
    source.write_text(HEADER + cdx_line(2, 2, 1).replace("d1.warc.gz", str(source)))
    interrupted(index, source, replace=True)
    with pytest.raises(ContainerChanged, match="--replace"):
        run(index, source, add=True, resume=True)
    run(index, source, replace=True, resume=True)
    assert [capture.url for _, capture in content(index)] == [b"http://h2.example/p2"]


def test_resume_is_of_the_same_build(crawls: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    interrupted(index, crawls)
    for fields in ({"crawl": "x"}, {"settings": Settings()}, {"engine": "whoosh"}):
        with pytest.raises(SettingsConflict, match="without --resume"):
            run(index, crawls, resume=True, **fields)
    with pytest.raises(SettingsConflict, match="other sources"):
        run(index, crawls / "a.cdx", resume=True)
    (crawls / "b.cdx").unlink()
    with pytest.raises(ContainerChanged, match=r"b\.cdx is not among the sources"):
        run(index, crawls, resume=True)
    run(index, crawls)
    run(tmp_path / "whole", crawls)
    assert content(index) == content(tmp_path / "whole")


def test_resume_refuses_containers_that_have_changed(crawls: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    interrupted(index, crawls)
    (crawls / "a.cdx").write_text(HEADER + cdx_line(1, 1, 1))
    with pytest.raises(ContainerChanged, match="without --resume"):
        run(index, crawls, resume=True)
    run(index, crawls)
    run(tmp_path / "whole", crawls)
    assert content(index) == content(tmp_path / "whole")


def test_statuses_that_are_never_whole_are_refused_whatever_is_allowed(tmp_path: Path) -> None:
    lines = [cdx_line(n, n, 1).replace(" 200 ", f" {status} ") for n, status in
             enumerate((200, 203, 204, 206), 1)]  # fmt: skip
    (tmp_path / "x.cdx").write_text(HEADER + "".join(lines))
    chosen = Settings(status="2xx")
    built = run(tmp_path / "i", tmp_path / "x.cdx", settings=chosen)
    assert built.tally.added == 2
    assert built.tally.refused == {"empty": 1, "partial": 1}


def test_two_pipes_are_two_containers(tmp_path: Path) -> None:
    index = tmp_path / "index"
    for day, more in ((1, []), (2, ["--add"])):
        done = subprocess.run(
            [sys.executable, "-m", "dedupindex", "index", *more, "-", str(index)],
            input=HEADER + cdx_line(day, day, day), text=True, capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    with closing(open_index(index)) as engine, engine.view() as view:
        assert [container.name[:2] for container in view.containers()] == ["-:", "-:"]
    done = subprocess.run(
        [sys.executable, "-m", "dedupindex", "index", "-", str(index)],
        input=HEADER, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 5
