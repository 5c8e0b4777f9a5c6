"""Run a whole conversion on copies, in one directory, and check each step.

The seven steps of Bibliotheca Alexandrina's execution plan:

test       check the sources for damage, and the disk for room
manifest   list all sources, WARC and ARC
convert    copy them, ARC as WARC
validate   compare the manifest of the copy with that of the sources
dedup      deduplicate the copy to another directory, verified
compare    compare the manifest of the results: only revisits are gone; rebuild a sample
commit     deduplicate the copy in place, undo, deduplicate again, drop the undo records
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from dedupindex.capture import Problem
from dedupindex.counts import OnProgress
from dedupindex.errors import BadInput, DedupError
from dedupindex.object_store import is_remote
from dedupindex.post_crawl.convert.arc_to_warc import conversion_tasks, convert
from dedupindex.post_crawl.convert.conversion import convert_all
from dedupindex.post_crawl.dedup_all import DedupOptions, copy, dedup
from dedupindex.post_crawl.dedup_report import DedupReport
from dedupindex.post_crawl.directory_format import check_new_or_ours
from dedupindex.post_crawl.manifest.make_manifest import ManifestReport, make
from dedupindex.post_crawl.manifest.parquet import (
    SAME_CAPTURE,
    SAME_RECORD,
    Manifest,
    ManifestDifference,
    compare,
    open_manifest,
)
from dedupindex.post_crawl.manifest.record_lines import ManifestOptions
from dedupindex.post_crawl.rewrite.journal import JournalEntry, entries, journals
from dedupindex.post_crawl.rewrite.result_place import DirectoryPlace, to_verify
from dedupindex.post_crawl.rewrite.revisit_record import END
from dedupindex.post_crawl.rewrite.rewrite_all import check_names, locked
from dedupindex.post_crawl.undo import Restored, Undo, commit, restore
from dedupindex.runtime.atomic_replace import (
    Untouched,
    content_hash,
    free_space,
    open_for_reading,
    same_bytes,
)
from dedupindex.runtime.files import exclusive
from dedupindex.runtime.tables import amount
from dedupindex.runtime.walk_directories import walk_links
from dedupindex.sources.warc_files import Sources, find
from dedupindex.verify.collection import Collection, archives_below
from dedupindex.verify.issues import REMARK, Broken, Finding
from dedupindex.verify.locate_originals import OriginalsIndex, rebuilt_block
from dedupindex.verify.walk_file import is_archive

_MAX_PROBLEMS = 20  # listed for each step
_DIRECTORIES = ("before", "copy", "converted", "out", "dedup", "after", "in-place")
_PYWB_TIMEOUT = 60.0  # seconds
_FIELD = re.compile(
    r"^WARC-(Target-URI|Date)[ \t]*:[ \t]*<?([^\r\n>]*)", re.IGNORECASE | re.MULTILINE
)
_Revisit = tuple[Path, JournalEntry]  # the file, and the revisit's entry in the journal
_ReplayAnswer = tuple[int, list[tuple[str, str]], bytes]  # status, headers, body
_SERVER_HEADERS = ("date", "connection", "server")  # of pywb's answer, not of the capture


@dataclass
class Step:
    name: str
    did: str  # in a few words
    numbers: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)  # the first; `failed` counts all
    failed: int = 0
    left: list[Problem] = field(default_factory=list)  # files that a run would leave alone
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        return not self.failed

    def fail(self, problem: str, count: int = 1) -> None:
        self.failed += count
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(problem)

    def fail_findings(self, findings: Iterable[Finding], baseline: Counter[str]) -> Counter[str]:
        """Record findings of `verify` that are more than `baseline` has; return their counts."""
        reasons: Counter[str] = Counter()
        for finding in findings:
            if finding.level != REMARK:
                reasons[finding.reason] += 1
                if reasons[finding.reason] > baseline[finding.reason]:
                    place = f"{finding.file} at {finding.offset}"
                    self.fail(f"{place}: {finding.reason}: {finding.message}")
        return reasons

    def expect(self, **numbers: tuple[int, int]) -> None:
        """Record numbers, given as pairs (actual, expected)."""
        for name, (actual, expected) in numbers.items():
            self.numbers[name] = actual
            if actual != expected:
                self.fail(f"{name.replace('_', ' ')}: {actual:,}, not {expected:,}")

    def as_json(self) -> dict[str, Any]:
        return {
            "step": self.name, "did": self.did, "sound": self.sound, **self.numbers,
            "failed": self.failed, "problems": self.problems,
            "left": [problem.as_json() for problem in self.left], "seconds": round(self.seconds, 3),
        }  # fmt: skip


@dataclass(frozen=True)
class RehearseOptions:
    work: Path
    sample: int = 100  # revisits to rebuild
    seed: int = 0
    jobs: int = 1
    memory: str = "1GB"


def rehearse(
    sources: list[str],
    options: RehearseOptions,
    say: Callable[[str], None] = lambda text: None,
    on_progress: OnProgress = lambda seen: None,
) -> Iterator[Step]:
    """Run the steps and yield each when it is done; raises `DedupError`. Only reads the sources."""
    yield from _Rehearsal(sources, options, say, on_progress).steps()


class _Rehearsal:
    def __init__(
        self, sources: list[str], options: RehearseOptions, say: Callable[[str], None],
        on_progress: OnProgress,
    ) -> None:  # fmt: skip
        self._sources, self._found, self._options = sources, find(sources), options
        self._files = [*self._found.files, *self._found.others]
        self._say, self._progress = say, on_progress
        self._top = Path(os.path.abspath(options.work))  # without "..", as in the names of files
        self._copy, self._out = self._top / "copy", self._top / "out"
        self._baseline: Counter[str] = Counter()  # findings in the sources, by reason
        self._report = DedupReport(dry_run=False)
        self._resources = 0  # documents of ARC files that are not HTTP responses

    def steps(self) -> Iterator[Step]:
        if not self._files:
            raise BadInput("the sources contain no WARC or ARC file")
        check_names(self._files, self._top, self._found.searched)
        steps = (
            (self._test, "test", "the sources read to their ends"),
            (self._list, "manifest", "a line for every response of the sources"),
            (self._convert, "convert", "a copy of the sources, ARC as WARC"),
            (self._validate, "validate", "the manifest of the copy beside that of the sources"),
            (self._dedup, "dedup", "the copy to a folder, verified"),
            (self._compare, "compare", "the results beside the copy, and a sample of revisits"),
            (self._commit, "commit", "the copy in place: undone, done again, committed"),
        )
        with _work_directory(self._top, [file.path for file in self._files]):
            for run, name, did in steps:
                step = Step(name, did)
                self._say(f"{name}: {did}")
                begin = time.monotonic()
                run(step)
                step.seconds = time.monotonic() - begin
                yield step

    def _test(self, step: Step) -> None:
        size = sum(file.size for file in self._files)
        needed = 4 * size  # a copy, the results, and in place the new file and the undo records
        if (free := free_space(self._top)) < needed:
            raise DedupError(
                f"{self._top}: a rehearsal may write {amount(needed)}, {amount(free)} are free"
            )
        paths = map(to_verify, (file.path for file in self._files))  # also what cannot be listed
        collection = Collection([path for path in paths if is_archive(path)])
        levels = (finding for finding in collection.findings() if finding.level != REMARK)
        self._baseline.update(finding.reason for finding in levels)
        step.numbers = {**collection.totals(), "bytes": size, "findings": dict(self._baseline)}

    def _list(self, step: Step) -> None:
        made, manifest = self._made("before", self._found)
        listed = manifest.entries.values()
        report = DedupReport(dry_run=True)
        report.add_found(self._found, made.problems)
        report.add_manifest(manifest)
        step.left = report.left
        step.numbers = {
            "files": len(listed),
            "not_read": len(self._files) - len(listed),
            "records": sum(entry.readable for entry in listed),
            "damaged": sum(entry.damaged for entry in listed),
            "captures": sum(entry.lines for entry in listed),
        }

    def _convert(self, step: Step) -> None:
        names = {self._copy / file.name for file in self._files}
        tasks, _ = conversion_tasks(self._sources, self._copy, keep=True)
        clashes = [task for task in tasks if task.target in names]
        for task in clashes:
            self._say(f"{task.path} is copied, not converted: the sources have {task.target.name}")
        tasks = [task for task in tasks if task.target not in names]
        outcomes = convert_all(tasks, self._copy, self._options.jobs, convert)
        converted = {outcome.name: outcome for outcome in outcomes if not outcome.problem}
        copied = 0
        for file in self._files:
            if file.path not in converted:
                try:
                    copy(file, DirectoryPlace(self._copy))
                    copied += 1
                except Untouched as left:
                    step.fail(f"{file.path}: {left}")
        for path, _, message in self._found.problems:
            if path in self._found.unlisted:
                step.fail(f"{path}: {message}")
        self._resources = sum(outcome.resources for outcome in converted.values())
        step.numbers = {
            "copied": copied, "converted": len(converted), "names_taken": len(clashes),
            "resources": self._resources,
        }  # fmt: skip

    def _validate(self, step: Step) -> None:
        manifest = self._manifest("converted", [str(self._copy)])
        difference = self._difference(step, "before", "converted", SAME_CAPTURE)
        if difference.gone.number != self._resources:  # manifests list responses only
            for url, date in difference.gone.named:
                step.fail(f"is gone: {url} {date}", 0)
        step.expect(gone=(difference.gone.number, self._resources), new=(difference.new.number, 0))
        step.numbers["captures"] = sum(entry.lines for entry in manifest.entries.values())

    def _dedup(self, step: Step) -> None:
        self._report = self._deduplicated(step, self._top / "dedup", self._out)
        names = ("files", "captures", "originals", "revisits", "bytes_before", "bytes_after")
        step.numbers = {name: getattr(self._report, name) for name in names}
        step.numbers["refused"] = dict(sorted(self._report.refused.items()))

    def _compare(self, step: Step) -> None:
        self._manifest("after", [str(self._out)])
        difference = self._difference(step, "converted", "after", SAME_RECORD)
        step.expect(
            gone=(difference.gone.number, self._report.revisits), new=(difference.new.number, 0)
        )
        self._check_collection(step, self._out)
        options = self._options
        sample = _rebuild_sample(step, self._out, options.sample, options.seed, self._top)
        _compare_replay(step, self._copy, self._out, sample, self._top)

    def _commit(self, step: Step) -> None:
        before = open_manifest(self._top / "converted").containers().values()
        for turn in ("first", "second"):
            report = self._deduplicated(step, self._top / "in-place" / turn)
            step.expect(revisits=(report.revisits, self._report.revisits))
            self._check_in_place(step, [container.path for container in before])
            if turn == "first":
                step.numbers["undone"] = _undo_or_commit(step, self._copy, restore)
                for container in before:
                    with open_for_reading(container.path) as file:
                        if content_hash(file) != container.content_hash:
                            step.fail(
                                f"{container.path}: undone, it differs from the original file"
                            )
        step.numbers["committed"] = _undo_or_commit(step, self._copy, commit)
        self._check_collection(step, self._copy)

    def _made(self, name: str, sources: Sources | list[str]) -> tuple[ManifestReport, Manifest]:
        top, jobs = self._top / name, self._options.jobs
        made = make(sources, top, ManifestOptions(), jobs=jobs, on_progress=self._progress)
        return made, open_manifest(top)

    def _manifest(self, name: str, sources: list[str]) -> Manifest:
        return self._made(name, sources)[1]

    def _difference(
        self, step: Step, before: str, after: str, columns: tuple[str, ...]
    ) -> ManifestDifference:
        old, new = open_manifest(self._top / before), open_manifest(self._top / after)
        difference = compare(old, new, columns, self._top, self._options.memory)
        for url, date in difference.new.named:
            step.fail(f"was not there before: {url} {date}", 0)
        return difference

    def _deduplicated(self, step: Step, work: Path, out: Path | None = None) -> DedupReport:
        """Deduplicate the copy to `out`, or in place."""
        jobs, memory = self._options.jobs, self._options.memory
        options = DedupOptions(out=out, work=work, jobs=jobs, memory=memory)
        report = dedup([str(self._copy)], options, self._say, self._progress)
        step.fail_findings(report.proof.named, Counter())
        return report

    def _check_collection(self, step: Step, folder: Path) -> None:
        """Fail for findings that are more than the sources had of their reason."""
        reasons = step.fail_findings(Collection([folder]).findings(), self._baseline)
        step.numbers["findings"] = dict(reasons)

    def _check_in_place(self, step: Step, paths: Iterable[str]) -> None:
        """Fail for files that in place became other bytes than in the other directory."""
        for path in map(Path, paths):
            other = self._out / path.relative_to(self._copy)
            with (
                suppress(FileNotFoundError),
                open_for_reading(path) as mine,
                open_for_reading(other) as theirs,
            ):
                if same_bytes(mine, theirs):
                    continue
            step.fail(f"{path} differs from {other}")


def _undo_or_commit(step: Step, folder: Path, work: Callable[[Undo], Restored]) -> int:
    """Undo or commit all that was done in place; returns the number of files."""
    count = 0
    with locked([folder] if list(journals(folder)) else []):
        for journal in list(journals(folder)):
            done = work(Undo(folder, journal.name, None))
            if done.state == "left_alone":
                step.fail(f"{folder / done.name}: {done.problem}")
            count += done.state in ("exact", "committed")
    return count


@contextmanager
def _work_directory(top: Path, sources: Iterable[str]) -> Iterator[None]:
    """Empty and lock the work directory; raises `BadInput` or `IndexBusy`."""
    marker = top / "rehearsal"
    check_new_or_ours(marker, (), "name another directory")
    top.mkdir(parents=True, exist_ok=True)
    _check_sources_outside(top, sources)
    marker.touch()
    with exclusive(top / "lock", f"the rehearsal in {top}"):
        for name in _DIRECTORIES:
            shutil.rmtree(top / name, ignore_errors=True)
            if os.path.lexists(top / name):  # a link to files that are not ours
                raise BadInput(f"{top / name} cannot be removed: name another directory")
        yield


def _check_sources_outside(top: Path, sources: Iterable[str]) -> None:
    """Compare directories by inode, since links and mounts give them several names."""
    ours = {_inode(top)}
    for name in _DIRECTORIES:
        for inside, _, _ in walk_links(top / name, lambda error: None):  # sources cannot be there
            with suppress(FileNotFoundError):
                ours.add(_inode(Path(inside)))
    paths = (Path(name).resolve() for name in sources if not is_remote(name))
    folders = {folder: path for path in paths for folder in path.parents}
    for folder, source in folders.items():
        if _inode(folder) in ours:
            raise BadInput(
                f"{source} is in {top}, which is emptied before a rehearsal: name another "
                "directory with --work"
            )


def _inode(folder: Path) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _rebuild_sample(step: Step, folder: Path, size: int, seed: int, beside: Path) -> list[_Revisit]:
    """Rebuild `size` random revisits below `folder`; returns them, sorted by place.

    Originals are found as replay tools do, by URL and date. With its old header each must have
    the SHA-256 of the record that was replaced.
    """
    random = Random(seed)
    revisits = (
        (folder / journal.name, entry)
        for journal in journals(folder)
        for entry in entries(journal.lines)
    )
    sample = heapq.nsmallest(size, revisits, key=lambda _: random.random())
    sample.sort(key=lambda revisit: (str(revisit[0]), revisit[1].new_offset))
    with TemporaryDirectory(prefix=".sample-", dir=beside) as name:
        originals = OriginalsIndex(Path(name) / "places.sqlite")
        originals.add_files(list(archives_below(folder, partial(_fail_unreadable, step))))
        for path, entry in sample:
            digest = hashlib.sha256(entry.header.encode("latin-1"))
            try:
                for piece in rebuilt_block(originals, path, entry.new_offset):
                    digest.update(piece)
            except Broken as broken:
                step.fail(f"{path} at {entry.new_offset}: {broken}")
                continue
            digest.update(END)
            if digest.hexdigest() != entry.sha256:
                step.fail(f"{path} at {entry.new_offset}: it is not the record that was replaced")
    step.numbers["sample"] = len(sample)
    return sample


def _fail_unreadable(step: Step, error: OSError) -> None:
    step.fail(f"{error.filename}: {error.strerror}")


def _compare_replay(
    step: Step, before: Path, after: Path, sample: Sequence[_Revisit], beside: Path
) -> None:
    """Compare what pywb replays for revisits with what it replays for the replaced records.

    Without pywb on PATH the number "replayed" is None. A record that pywb does not replay from the
    old file is not compared; if it replays none of the sample, the step fails.
    """
    wayback, indexer = shutil.which("wayback"), shutil.which("cdx-indexer")
    if not sample:
        return
    if wayback is None or indexer is None:
        step.numbers["replayed"] = None
        return
    replayed = 0
    with TemporaryDirectory(prefix=".replay-", dir=beside) as name:
        home = Path(name)
        collections = {"before": before, "after": after}
        for collection, folder in collections.items():
            _index(step, indexer, folder, home / f"{collection}.cdxj")
        with _serving(wayback, collections, home) as port:
            for _, entry in sample:
                fields = {name.lower(): value for name, value in _FIELD.findall(entry.header)}
                url, date = fields["target-uri"], fields["date"]
                path = f"{''.join(filter(str.isdigit, date))[:14]}id_/{url}"
                old, new = (_get(port, collection, path) for collection in collections)
                if any(name == "memento-datetime" for name, _ in old[1]):
                    replayed += 1
                    if old != new:
                        step.fail(f"{url} {date}: pywb serves something else")
    step.numbers["replayed"] = replayed
    if not replayed:
        step.fail("pywb replayed nothing of the sample, so replay was not checked")


def _index(step: Step, indexer: str, folder: Path, target: Path) -> None:
    words = [indexer, "-j", "-s", "-r", "-d", str(folder), "-o", str(target), str(folder)]
    done = subprocess.run(words, check=False, capture_output=True)
    if done.returncode:
        errors = done.stderr.decode("utf-8", "replace").strip().splitlines()
        step.fail(f"pywb could not index {folder}: {errors[-1] if errors else done.returncode}")


@contextmanager
def _serving(wayback: str, collections: dict[str, Path], home: Path) -> Iterator[int]:
    """Run pywb; yields its port."""
    config = {
        "collections": {
            name: {"index": str(home / f"{name}.cdxj"), "archive_paths": f"{folder.resolve()}/"}
            for name, folder in collections.items()
        }
    }
    (home / "config.yaml").write_text(json.dumps(config))  # JSON is YAML, too
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    with open(home / "log", "wb") as log:
        process = subprocess.Popen(
            [wayback, "-b", "127.0.0.1", "-p", str(port)], cwd=home, stdout=log, stderr=log
        )
    try:
        end = time.monotonic() + _PYWB_TIMEOUT
        while process.poll() is None and time.monotonic() < end:
            with socket.socket() as client:
                if not client.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


def _get(port: int, collection: str, path: str) -> _ReplayAnswer:
    """Ask pywb for a capture; status 599 if that fails."""
    connection = HTTPConnection("127.0.0.1", port, timeout=_PYWB_TIMEOUT)
    try:
        # Without this header pywb would decompress what the site sent compressed.
        accept = {"Accept-Encoding": "gzip, deflate, br"}
        connection.request("GET", f"/{collection}/{path}", headers=accept)
        response = connection.getresponse()
        headers = [
            (name.lower(), value.replace(collection, ""))  # links name the collection
            for name, value in response.getheaders()
            if name.lower() not in _SERVER_HEADERS
        ]
        return response.status, headers, response.read()
    except (OSError, HTTPException, ValueError) as error:
        return 599, [], str(error).encode()
    finally:
        connection.close()
